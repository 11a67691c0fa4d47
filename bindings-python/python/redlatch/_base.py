"""What clients, locks and grants for threads and for asyncio have in common: all that needs no waiting."""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from typing import Any, Generic, ParamSpec, TypeVar, cast

from redlatch import _dispatcher, _redlatch
from redlatch._dispatcher import OnLost
from redlatch.exceptions import InvalidArgumentError, LockLostError, LostReason, NotOwnerError

P = ParamSpec("P")
R = TypeVar("R")

LONGEST_WAIT: float = next(most for name, _, _, most, _, _ in _redlatch.options() if name == "wait")


@dataclass(frozen=True)
class Holder:
    """Who holds a lock, as Redis sees it."""

    owner: str
    """`<client id>:<number>`."""
    count: int
    """How many levels the hold has."""
    remaining: float | None
    """For how many seconds the lock lives without a renewal; None if it has no expiry."""


def wait_of(blocking: bool, timeout: float) -> float | None:
    """How long to wait, by the rules of threading.Lock.acquire: None for ever, 0 to try once."""
    if blocking and timeout == -1:
        return None
    # What is a time beyond doubt is not tried: that costs more than a lock's own part in the call.
    if blocking is True and type(timeout) in (float, int) and 0 <= timeout <= LONGEST_WAIT:
        return timeout
    # The rules are those of the Python that runs, and but for one its errors: a lock that is free checks and returns.
    try:
        threading.Lock().acquire(blocking, timeout)
    except TypeError:
        if isinstance(timeout, (int, float)):
            raise
        remedy = "give it seconds as a number, or -1 to wait for ever"
        raise TypeError(f"timeout is {timeout!r}; {remedy}") from None
    if not blocking:
        return 0
    return timeout if timeout <= LONGEST_WAIT else None


def timeout_of(timeout: float | None) -> float | None:
    """How long `with` waits."""
    try:
        return None if timeout is None else _redlatch.seconds("wait", timeout)
    except InvalidArgumentError:
        remedy = f"give it seconds, 0 to {LONGEST_WAIT:.0f}, or None to wait for ever"
        raise InvalidArgumentError(f"invalid_argument: timeout is {timeout!r}; {remedy}") from None


def holder_of(row: tuple[str, int, float | None] | None) -> Holder | None:
    return None if row is None else Holder(*row)


def note(error: BaseException, failure: Exception) -> None:
    """Tells of a failed release beside the exception that is on its way already."""
    if hasattr(error, "add_note") and not isinstance(error, LockLostError):
        error.add_note(f"redlatch: {failure}")


class BaseClient:
    """A client, whoever waits for it."""

    def __init__(self, url: str | None, options: dict[str, Any]) -> None:
        self._core = _redlatch.Client(url, options)
        self._started = False

    def _start(self) -> None:
        """Has the events of this client reach the log; before its first request."""
        if not self._started:
            _dispatcher.dispatcher.attach(self)
            self._started = True

    def stats(self) -> dict[str, int]:
        """What the client has done so far, by the names of its counters."""
        return self._core.stats()

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.{type(self).__qualname__} {self._core!r}>"


class BaseLock:
    """A name on a client, with options. A program may have very many, so it has only what nearly all need."""

    __slots__ = ("__weakref__", "_client", "_core", "_entered", "_on_lost", "_timeout", "_watched")

    def __init__(
        self,
        client: BaseClient,
        name: str,
        options: dict[str, Any],
        timeout: float | None,
        on_lost: OnLost | None,
    ) -> None:
        self._client = client
        self._core = client._core.lock(name, options)
        self._timeout = timeout_of(timeout)
        self._on_lost = on_lost
        self._watched: _redlatch.Hold | None = None
        self._entered: Entered[Any] | None = None

    @property
    def name(self) -> str:
        """The name, as it stands in Redis."""
        return self._core.name

    def _hold(self) -> _redlatch.Hold:
        raise NotImplementedError

    def _enter(self, who: object, grant: BaseGrant) -> None:
        """A `with` block begins."""
        if self._entered is None:
            with _entering:
                self._entered = self._entered or Entered()
        self._entered.push(who, grant)

    def _leaving(self, who: object) -> Any:
        """A `with` block is about to end: the grant that it gave."""
        return (self._entered or Entered[Any]()).newest(who)

    def _left(self, grant: BaseGrant) -> bool:
        """It ends; false if this grant's has ended before, by another thread."""
        return self._entered is not None and self._entered.remove(grant._guard)

    def _let_go(self, guard: _redlatch.Guard) -> None:
        """Gives the level of a block back that an exception ended in between, as that of Ctrl-C may."""
        guard.let_go()
        if self._entered is not None:
            self._entered.remove(guard)

    def _to_watch(self, hold: _redlatch.Hold) -> OnLost | None:
        """The callback of this lock, once for each hold and not for each level."""
        # Not by the owner: those who pass the lock on to each other have the same one.
        if self._on_lost is None or (self._watched is not None and hold.is_same(self._watched)):
            return None
        self._watched = hold
        return self._on_lost

    def owned(self) -> bool:
        """Whether the calling thread or task holds the lock and can rely on it now. No I/O."""
        return self._hold().held

    @property
    def remaining(self) -> float:
        """For how many seconds the caller can rely on its hold if nothing more is heard from Redis; 0 without."""
        return self._hold().remaining

    @property
    def hold_count(self) -> int:
        """How many levels the calling thread or task holds; 0 without a hold."""
        return self._hold().count

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.{type(self).__qualname__} {self.name!r}>"


class BaseGrant:
    """One level of a hold."""

    __slots__ = ("__weakref__", "_client", "_core", "_guard", "_hold", "_released", "_tags")

    def __init__(self, lock: BaseLock, guard: _redlatch.Guard) -> None:
        self._core = lock._core
        # The client lives as long as its grants, to be closed when the program exits.
        self._client = lock._client
        self._guard = guard
        self._hold = guard.hold()
        self._tags: tuple[int, ...] = ()
        self._released = False
        guard.keep()

    @property
    def name(self) -> str:
        """The name of the lock."""
        return self._core.name

    @property
    def held(self) -> bool:
        """Whether the lock can be relied on now. No I/O, from a clock that counts suspend."""
        return self._hold.held

    def check(self) -> None:
        """Raises LockLostError if the lock cannot be relied on any more. No I/O."""
        self._hold.check()

    @property
    def remaining(self) -> float:
        """For how many seconds the lock can be relied on if nothing more is heard from Redis; 0 once lost."""
        return self._hold.remaining

    @property
    def hold_count(self) -> int:
        """How many levels the hold has."""
        return self._hold.count

    @property
    def fencing_token(self) -> int | None:
        """A number that grows with every first acquisition of the name; None without the option `fencing`."""
        return self._hold.fencing_token

    @property
    def lost_reason(self) -> LostReason | None:
        """Why the lock was lost, if it was."""
        return self._hold.lost_reason

    @property
    def owner(self) -> str:
        """The owner as it stands in Redis; callers of one client who passed the lock on to each other have the same."""
        return self._hold.owner

    def _watchers(self) -> _dispatcher.Watchers:
        raise NotImplementedError

    def _spend(self) -> None:
        """Before the release: whatever comes of it, there is no second one."""
        self._released = True

    def _forget(self) -> None:
        """After the release: its own callbacks are not called any more."""
        for tag in self._tags:
            self._watchers().remove(tag)

    def __repr__(self) -> str:
        state = "held" if self.held else f"lost ({self.lost_reason})" if self.lost_reason else "released"
        return f"<{type(self).__module__}.{type(self).__qualname__} {self.name!r} {state}>"


G = TypeVar("G", bound=BaseGrant)


class Entered(Generic[G]):
    """The grants of the `with` blocks of one lock that are open now."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: list[tuple[object, G]] = []

    def push(self, who: object, grant: G) -> None:
        self._entries.append((who, grant))

    def newest(self, who: object) -> G:
        """The newest grant of this thread or task.

        If it has none, the block was entered elsewhere (a generator, a fixture): then a lost one first, so that
        nobody's living hold is released in place of it.
        """
        entries = list(self._entries)
        if entries and entries[-1][0] is who:
            return entries[-1][1]
        own = [entry for entry in entries if entry[0] is who]
        lost = [entry for entry in entries if not entry[1].held]
        for one in (own or lost or entries)[-1:]:
            return one[1]
        raise NotOwnerError("not_owner: this lock was not entered with a `with` block")

    def remove(self, guard: _redlatch.Guard) -> bool:
        """Takes the grant of this guard out; false if it is not there any more."""
        for entry in list(self._entries):
            if entry[1]._guard is guard:
                with suppress(ValueError):  # another thread took it meanwhile
                    self._entries.remove(entry)
                    return True
        return False


# Two threads may enter a lock for the first time at once.
_entering = threading.Lock()


def _after_fork() -> None:
    # Another thread of the parent may have held it.
    global _entering
    _entering = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)

L = TypeVar("L", bound=BaseLock)
Name = str | Callable[..., str]


def decorate(
    client: BaseClient, name: Name, options: dict[str, Any]
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Makes the decorator of `Client.locked`."""

    def decorator(function: Callable[P, R]) -> Callable[P, R]:
        from redlatch import _sync

        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(
                f"{function!r} is a generator function: take the lock inside, with a `with` block"
            )
        if inspect.iscoroutinefunction(function):
            return cast("Callable[P, R]", _decorate_coroutine_function(client, name, options, function))
        lock_for = _lock_maker(_sync.Lock, client, name, options)

        @wraps(function)
        def decorated(*args: P.args, **kwargs: P.kwargs) -> R:
            with lock_for(*args, **kwargs):
                return function(*args, **kwargs)

        return decorated

    return decorator


def _decorate_coroutine_function(
    client: BaseClient, name: Name, options: dict[str, Any], function: Callable[..., Awaitable[Any]]
) -> Callable[..., Awaitable[Any]]:
    from redlatch import aio

    lock_for = _lock_maker(aio.Lock, client, name, options)

    @wraps(function)
    async def decorated(*args: Any, **kwargs: Any) -> Any:
        async with lock_for(*args, **kwargs):
            return await function(*args, **kwargs)

    return decorated


def _lock_maker(
    make: Callable[..., L], client: BaseClient, name: Name, options: dict[str, Any]
) -> Callable[..., L]:
    """Gives the lock for the arguments of a call; a name that is known now is checked now."""
    if callable(name):
        name_for = name
        return lambda *args, **kwargs: make(client, name_for(*args, **kwargs), **options)
    lock = make(client, name, **options)
    return lambda *args, **kwargs: lock
