"""The part that clients, locks and grants for threads and for asyncio share: all that needs no waiting."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Iterable, Iterator
from functools import wraps
from string import Formatter
from typing import Any, NamedTuple, ParamSpec, TypeAlias, TypeVar, cast

from redlatch import _dispatcher, _green, _redlatch
from redlatch._dispatcher import OnLost
from redlatch._options import ClientOptions, LockOptions
from redlatch._typing import RedisClient, Self, Unpack
from redlatch.exceptions import (
    ClosedError,
    InvalidArgumentError,
    LockError,
    LockLostError,
    LostReason,
    NotOwnerError,
)

P = ParamSpec("P")
HolderRow: TypeAlias = tuple[str, int, float | None, tuple[str, str, int, str] | None]
R = TypeVar("R")

LONGEST_WAIT: float = next(most for name, _, _, most, _, _ in _redlatch.options() if name == "wait")


class Process(NamedTuple):
    """The process of a holder, as the names of its connections tell it."""

    client_name: str
    """The option `client_name` of its client."""
    language: str
    """`python`, `node`, `rust`, `c` or `cli`."""
    pid: int
    """The process id. Containers number their processes separately."""
    host: str
    """The name of the machine or container; empty if it cannot be told."""


class Holder(NamedTuple):
    """The holder of a lock, as Redis sees it."""

    owner: str
    """`<client id>:<number>`."""
    count: int  # type: ignore[assignment]
    """How many levels the hold has."""
    remaining: float | None
    """For how many seconds the lock lives without a renewal; None if it has no expiry."""
    process: Process | None = None
    """None for a holder that is not of redlatch (Redisson names no process), one with a token of its own, one that is
    no longer connected, and where the server refuses `CLIENT LIST`."""


# The locks of gevent and eventlet check less.
_allocate_lock = _green.original("_thread", "allocate_lock")


def wait_of(blocking: bool, timeout: float) -> float | None:
    """How long to wait, by the rules of threading.Lock.acquire: None for ever, 0 to try once."""
    if blocking is True and timeout == -1:
        return None
    # A value that is a time beyond doubt is not tried: that costs more than a lock's own part in the call.
    if blocking is True and type(timeout) in (float, int) and 0 <= timeout <= LONGEST_WAIT:
        return timeout
    if blocking not in (True, False):  # seconds to wait, as in other libraries; 0 and 1 are truth values
        raise TypeError(f"blocking is {blocking!r}; give it True or False; timeout=5 waits for 5 seconds")
    # The rules are those of the Python that runs, and but for one its errors: a lock that is free checks and returns.
    try:
        _allocate_lock().acquire(blocking, timeout)
    except TypeError:
        if isinstance(timeout, (int, float)):
            raise
        remedy = "give it seconds as a number, or -1 to wait for ever"
        raise TypeError(f"timeout is {timeout!r}; {remedy}") from None
    if not blocking:
        return 0
    if timeout == -1:
        return None
    return timeout if timeout <= LONGEST_WAIT else None


def wait_of_semaphore(blocking: bool, timeout: float | None) -> float | None:
    """How long to wait, by the rules of threading.Semaphore.acquire."""
    if blocking not in (
        True,
        False,
    ):  # a number of permits, as Java and Rust take it; 0 and 1 are truth values
        remedy = "give it True or False; permits=2 takes two at once"
        raise TypeError(f"blocking is {blocking!r}; {remedy}")
    if not blocking and timeout is not None:
        raise ValueError("can't specify timeout for non-blocking acquire")
    return wait_of(blocking, -1 if timeout is None else timeout)


def timeout_of(timeout: float | None) -> float | None:
    """How long a `with` block or a latch waits."""
    try:
        return None if timeout is None else _redlatch.seconds("wait", timeout)
    except InvalidArgumentError:
        remedy = f"give it seconds, 0 to {LONGEST_WAIT:.0f}, or None to wait for ever"
        raise InvalidArgumentError(f"invalid_argument: timeout is {timeout!r}; {remedy}") from None


def holders_of(rows: list[HolderRow]) -> list[Holder]:
    return [Holder(*row[:3], Process(*row[3]) if row[3] else None) for row in rows]


def noted(error: BaseException, failure: BaseException) -> bool:
    """Whether the failure of a release is told by a note of what is on its way; else it goes on itself."""
    if isinstance(failure, LockError):
        note(error, failure)
    return isinstance(failure, LockError)


def note(error: BaseException, failure: LockError) -> None:
    """Tells of a failed release beside the exception that is on its way already."""
    if isinstance(error, LockLostError) and error.lock_name == failure.lock_name:
        return  # told already
    if hasattr(error, "add_note"):
        error.add_note(f"redlatch: {failure}")
    else:  # Python 3.10
        _dispatcher.logger.warning("%s", failure)


def is_coroutine_function(function: object) -> bool:
    """Also of an object that is called as one."""
    import inspect  # which takes as long as all of redlatch, and is needed here and below alone

    called = getattr(type(function), "__call__", None)  # noqa: B004, for what kind of function it is
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)


def required(on_lost: OnLost | None) -> OnLost:
    """Refuses what cannot be called."""
    if not callable(on_lost):
        raise TypeError(f"on_lost is {on_lost!r}; give it a function of the LockLostError, or leave it out")
    return on_lost


class BaseClient:
    """A client, whoever waits for it."""

    _started = False

    def __init__(self, url: str | None = None, **options: Unpack[ClientOptions]) -> None:
        self._core = _redlatch.Client(url, dict(options))

    @classmethod
    def from_redis(cls, redis: RedisClient, **options: Unpack[ClientOptions]) -> Self:
        """A client for the server, cluster or service that a client of redis-py or valkey-py is connected to. No I/O.

        It takes over the address, log-in, database, TLS and `socket_connect_timeout` of a `Redis`, `RedisCluster` or
        `Sentinel.master_for(...)`, for threads or for asyncio, and has connections of its own. `options` come before what
        is taken over. Raises InvalidArgumentError for a setting that it has no counterpart of, such as a credential provider
        whose passwords change.
        """
        from redlatch.compat._settings import settings_of

        url, taken = settings_of(redis)
        given: dict[str, Any] = {**dict(taken), **options}
        return cls(url, **given)

    def _start(self) -> None:
        """Has the events of this client reach the log; before its first request."""
        if not self._started:
            try:
                _dispatcher.dispatcher.attach(self)
            except ClosedError:  # the request says so too, with the name of its lock
                return
            self._started = True

    def __del__(self, outlive: Callable[[BaseClient], None] = _dispatcher.outlive) -> None:
        # A caller that acquired a lock relies on it, also when it has forgotten the client.
        if self._started:
            outlive(self)

    def stats(self) -> dict[str, int]:
        """The counters of the client, by their names."""
        return self._core.stats()

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.{type(self).__qualname__} {self._core!r}>"


class Permits(NamedTuple):
    """How many permits a semaphore has."""

    available: int
    """The permits that nobody has. Negative when the semaphore was given fewer permits than are taken."""
    limit: int
    """All of them, taken ones included; 0 if nobody has set the number yet."""


class BaseName:
    """A name on a client, with options. A program may have very many, so it has only what nearly all need."""

    __slots__ = ("__weakref__", "_by_hand", "_client", "_core", "_on_lost", "_timeout", "_watched")

    def __init__(
        self,
        client: BaseClient,
        name: str | _redlatch.Lock,
        options: dict[str, Any],
        timeout: float | None,
        on_lost: OnLost | None,
    ) -> None:
        self._client = client
        self._core: _redlatch.Lock
        if isinstance(name, _redlatch.Lock):
            self._core = name
        else:
            self._core = client._core.lock(name, options)
        self._timeout = timeout_of(timeout)
        self._on_lost = self._callback(on_lost)
        self._watched: tuple[_redlatch.Hold, ...] = ()
        self._by_hand: list[tuple[Any, object]] | None = None

    @property
    def name(self) -> str:
        """The name, as it stands in Redis."""
        return self._core.name

    def _callback(self, on_lost: OnLost | None) -> OnLost | None:
        """Checks a callback."""
        raise NotImplementedError

    def _caller(self) -> object:
        """The task, greenlet or thread that calls."""
        raise NotImplementedError

    def _entered_by_hand(self, grant: BaseGrant) -> None:
        """Keeps the grant of an `__enter__` without a `with` statement, as an ExitStack calls it."""
        with _entering:
            self._by_hand = [*(self._by_hand or ()), (grant, self._caller())]

    def _leaving_by_hand(self) -> Any:
        """Takes out what such an `__exit__` gives back: the newest grant, but first one that is lost.

        The caller may not be the one who entered. Of a lock at most one of the holds is alive, and a loss is only told to
        somebody else by mistake; a living hold is never released in place of a lost one. Permits and readers live beside
        each other: there the grants of the caller come first.
        """
        if self._client._core.forked:  # what a child inherits is the parent's
            return None
        with _entering:
            entered = self._by_hand or ()
            grants = [grant for grant, _ in entered]
            if not grants:
                if isinstance(sys.exc_info()[1], LockError):
                    return None  # a condition could not acquire the lock again: that is told, and nothing is held
                raise NotOwnerError("not_owner: this lock was not entered with a `with` block")
            if self._core.shared:
                me = self._caller()
                grants = [grant for grant, caller in entered if caller == me] or grants
            grant = next((grant for grant in grants if not grant.held), grants[-1])
            self._forget_by_hand(grant)
            return grant

    def _forget_by_hand(self, grant: BaseGrant) -> None:
        with _entering:
            self._by_hand = [each for each in self._by_hand or () if each[0] is not grant]

    def _to_watch(self, hold: _redlatch.Hold) -> OnLost | None:
        """The callback of this lock, once for each hold and not for each level."""
        # Not by the owner: those who pass the lock on to each other have the same one.
        if self._on_lost is None or any(hold.is_same(watched) for watched in self._watched):
            return None
        self._watched = (*(watched for watched in self._watched if watched.count), hold)
        return self._on_lost

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.{type(self).__qualname__} {self.name!r}>"


class BaseLock(BaseName):
    """A lock of whoever waits for it."""

    __slots__ = ()

    def _hold(self) -> _redlatch.Hold:
        raise NotImplementedError

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


class Part(NamedTuple):
    """One of the names that a multi lock holds."""

    name: str
    owner: str
    """The owner as it stands in Redis."""
    fencing_token: int | None
    """A number that grows with every first acquisition of the name; None without the option `fencing`."""


def multi(client: BaseClient, locks: Iterable[str | BaseName], options: dict[str, Any]) -> _redlatch.Lock:
    """The multi lock of these names and locks. The options are of the names."""
    if isinstance(locks, (str, bytes)):
        raise InvalidArgumentError(
            f"invalid_argument: locks is {locks!r}, which is one name; give a list of names and locks"
        )
    if not isinstance(locks, Iterable):
        raise TypeError(f"locks is {locks!r}; give a list of names and locks")
    parts: list[_redlatch.Lock] = []
    named = False
    for lock in locks:
        if isinstance(lock, BaseName):
            parts.append(lock._core)
        elif isinstance(lock, str):
            named = True
            parts.append(client._core.lock(lock, options))
        else:
            raise TypeError(
                f"{lock!r} is no lock; give names, locks, sides of read-write locks (its .read or .write) and semaphores"
            )
    if options and not named:
        raise InvalidArgumentError(
            f"invalid_argument: {next(iter(options))} is given, but no name; give the options to the locks themselves"
        )
    return client._core.multi_lock(parts)


class BaseSemaphore(BaseName):
    """A semaphore of whoever waits for it."""

    __slots__ = ("_taken",)

    def __init__(
        self,
        client: BaseClient,
        name: str,
        options: dict[str, Any],
        timeout: float | None,
        on_lost: OnLost | None,
    ) -> None:
        super().__init__(client, client._core.semaphore(name, options), {}, timeout, on_lost)
        # The permits that acquire() took, with their number. Any thread or task may give them back.
        self._taken: list[tuple[_redlatch.Guard, int]] = []

    def _take(self, guard: _redlatch.Guard, permits: int) -> None:
        guard.keep()
        with _entering:
            self._taken.append((guard, permits))

    def _give(self, permits: int) -> list[_redlatch.Guard]:
        """Takes out what a release of so many permits gives back, the newest first."""
        if permits < 1:
            raise ValueError("n must be one or more")  # as threading.Semaphore
        with _entering:
            given, left = 0, len(self._taken)
            while given < permits and left > 0:
                left -= 1
                given += self._taken[left][1]
            if given != permits:
                raise NotOwnerError(self._not_taken(permits, given))
            guards = [guard for guard, _ in reversed(self._taken[left:])]
            del self._taken[left:]
            return guards

    def _not_taken(self, permits: int, given: int) -> str:
        if given < permits:
            what = f"release({permits}), but acquire() took {given or 'no'} permits that are not back yet"
        else:
            what = f"release({permits}), but the last acquire() took more at once; release as many as it took"
        return f"not_owner: semaphore {self.name!r}: {what}"


class BaseCounter:
    """Threads and asyncio share this part of a plain semaphore and a latch."""

    _client: BaseClient
    _core: _redlatch.PlainSemaphore | _redlatch.Latch

    @property
    def name(self) -> str:
        """The name, as it stands in Redis."""
        return self._core.name

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.{type(self).__qualname__} {self.name!r}>"


class BasePlainSemaphore(BaseCounter):
    """Threads and asyncio share this part of a plain semaphore."""

    _core: _redlatch.PlainSemaphore

    def __init__(self, client: BaseClient, name: str, timeout: float | None = None) -> None:
        self._client = client
        self._core = client._core.plain_semaphore(name)
        self._timeout = timeout_of(timeout)
        # The permits of blocks that were entered and not left. One is as good as another. Asyncio has the loop of each beside it.
        self._entered: list[Any] = []


class BaseGrant:
    """One level of a hold."""

    __slots__ = ("__weakref__", "_client", "_core", "_guard", "_hold", "_interrupt", "_released", "_tags")

    def __init__(self, lock: BaseName, guard: _redlatch.Guard) -> None:
        self._core = lock._core
        # The client lives as long as its grants, to be closed when the program exits.
        self._client = lock._client
        self._guard = guard
        self._hold = guard.hold()
        self._tags: tuple[int, ...] = ()
        self._interrupt: _redlatch.Interrupt | None = None
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

    @property
    def parts(self) -> tuple[Part, ...]:
        """The names of a multi lock, each with its owner and fencing token; empty for any other lock."""
        return tuple(Part(*part) for part in self._hold.parts())

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


# Guards what was entered by hand. Re-entrant, because a signal handler may come in between and use a lock as well.
_entering = _green.original("_thread", "RLock")()


def _after_fork() -> None:
    # Another thread of the parent may have held it.
    global _entering
    _entering = _green.original("_thread", "RLock")()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_after_fork)

L = TypeVar("L", bound=BaseLock)
Name = str | Callable[..., str]


class LockedOptions(LockOptions, total=False):
    """The options of `Client.locked`: those of `Client.lock`, in the face that the function is for."""

    timeout: float | None
    on_lost: OnLost | None
    canceller: _redlatch.Canceller | None  # for a `def`
    interrupt_on_lost: bool  # for a `def`
    cancel_on_lost: bool  # for an `async def`


_OF_BLOCKS = LockedOptions.__annotations__.keys() - LockOptions.__annotations__.keys()


def decorate(
    client: BaseClient, names: tuple[Name, ...], options: dict[str, Any]
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Makes the decorator of `Client.locked`."""
    import inspect

    for name in names:
        if (
            is_coroutine_function(name)
            or inspect.isgeneratorfunction(name)
            or inspect.isasyncgenfunction(name)
        ):
            raise TypeError(
                f"the name of a lock is {name!r}, whose calls give no text: write @client.locked(name)"
            )

    def decorator(function: Any = None, /, *more: Any, **named: Any) -> Callable[P, R]:
        from redlatch import _sync

        if not callable(function) or more or named:
            called = names[0] if callable(names[0]) and function is None else function
            raise TypeError(f"{called!r} is no function to lock here: write @client.locked(name) above one")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(
                f"{function!r} is a generator function: take the lock inside, with a `with` block"
            )
        if is_coroutine_function(function):
            return cast("Callable[P, R]", _decorate_coroutine_function(client, names, options, function))
        makers = (
            getattr(client, "_thread_lock", _sync.Lock),
            getattr(client, "_thread_multi_lock", _sync.MultiLock),
        )
        lock_for = _lock_maker(*makers, client, names, options, function)

        @wraps(function)
        def decorated(*args: P.args, **kwargs: P.kwargs) -> R:
            with lock_for(*args, **kwargs):
                result = function(*args, **kwargs)
                if not isinstance(result, _LATER):
                    return cast("R", result)
            # Its work begins after the release: nothing of it would be locked.
            if isinstance(result, Coroutine):
                result.close()
            raise TypeError(
                f"{function!r} returned {result!r}, whose work begins when the lock is released: put @client.locked "
                "directly above the `async def`, below all other decorators, or take the lock inside"
            )

        return decorated

    return decorator


# A function returns one of these if its work is yet to come.
_LATER = (Awaitable, Generator, AsyncGenerator)


def _decorate_coroutine_function(
    client: BaseClient, names: tuple[Name, ...], options: dict[str, Any], function: Callable[..., Any]
) -> Callable[..., Awaitable[Any]]:
    from redlatch import aio

    makers = getattr(client, "_task_lock", aio.Lock), getattr(client, "_task_multi_lock", aio.MultiLock)
    lock_for = _lock_maker(*makers, client, names, options, function)

    @wraps(function)
    async def decorated(*args: Any, **kwargs: Any) -> Any:
        async with lock_for(*args, **kwargs):
            return await function(*args, **kwargs)

    return decorated


def _lock_maker(
    make: Callable[..., L],
    make_multi: Callable[..., L],
    client: BaseClient,
    names: tuple[Name, ...],
    options: dict[str, Any],
    function: Callable[..., Any],
) -> Callable[..., L]:
    """Gives the lock for the arguments of a call. All that is known now is checked now."""
    if len(names) == 1:
        return _named_lock_maker(make, client, names[0], options, function)
    of_block = {name: options[name] for name in options if name in _OF_BLOCKS}
    of_names = {name: options[name] for name in options if name not in _OF_BLOCKS}
    parts = [_named_lock_maker(make, client, name, of_names, function) for name in names]
    constant = [name for name in names if isinstance(name, str) and "{" not in name and "}" not in name]
    checked = constant or ["checks the options"]
    make_multi(client, multi(client, checked, of_names), **of_block)

    def lock_for(*args: Any, **kwargs: Any) -> L:
        locks = [part(*args, **kwargs) for part in parts]
        return make_multi(client, multi(client, locks, {}), **of_block)

    return lock_for


def _named_lock_maker(
    make: Callable[..., L],
    client: BaseClient,
    name: Name,
    options: dict[str, Any],
    function: Callable[..., Any],
) -> Callable[..., L]:
    if not callable(name):
        if not isinstance(name, str) or not ("{" in name or "}" in name):
            lock = make(client, name, **options)
            return lambda *args, **kwargs: lock
        name = _template(name, function)
    make(client, "checks the options", **options)
    name_for = name
    return lambda *args, **kwargs: make(client, name_for(*args, **kwargs), **options)


def _template(template: str, function: Callable[..., Any]) -> Callable[..., str]:
    """The function that fills the parameters of this function into a name."""
    import inspect

    try:
        signature = inspect.signature(function)
    except ValueError:
        raise _bad_template(
            template, f"{function!r} tells nobody its parameters; give a function as name"
        ) from None
    for placeholder in _placeholders(template, template):
        if placeholder not in signature.parameters:
            raise _bad_template(
                template,
                f"{{{placeholder}}} is no parameter of {function!r}; it has "
                f"{', '.join(signature.parameters) or 'none'}. A brace of the name itself is written {{{{ or }}}}",
            )

    def name_for(*args: Any, **kwargs: Any) -> str:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return template.format_map(bound.arguments)

    return name_for


def _placeholders(text: str, template: str) -> Iterator[str]:
    try:
        parts = list(Formatter().parse(text))
    except ValueError as error:
        raise _bad_template(
            template, f"{error}. A brace of the name itself is written {{{{ or }}}}"
        ) from None
    for _, field, form, _ in parts:
        if field is not None:
            yield re.split(r"[.\[]", field, maxsplit=1)[0]
            yield from _placeholders(form or "", template)


def _bad_template(template: str, what: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"invalid_argument: name of the lock is {template!r}; {what}")
