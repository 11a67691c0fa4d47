"""The lock and the semaphore for threads."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from redlatch import _dispatcher, _green, _redlatch
from redlatch._base import (
    BaseClient,
    BaseGrant,
    BaseLatch,
    BaseLock,
    BaseMultiLock,
    BaseName,
    BasePlainSemaphore,
    BaseSemaphore,
    Holder,
    LockedOptions,
    Permits,
    decorate,
    holders_of,
    is_coroutine_function,
    multi,
    required,
    sides,
    timeout_of,
    wait_of,
    wait_of_semaphore,
)
from redlatch._dispatcher import OnLost
from redlatch._green import ask
from redlatch._help import documented
from redlatch._options import LockOptions
from redlatch._typing import Self, Unpack
from redlatch.exceptions import (
    ClosedError,
    InvalidArgumentError,
    LockError,
    LockTimeoutError,
    LostInterrupt,
    NotOwnerError,
)

# The ways in and out look here themselves whether there are greenlets, which costs less than a call.
_modules = sys.modules

P = ParamSpec("P")
R = TypeVar("R")


def _ask(client: BaseClient, send: Callable[..., Any], *args: object) -> Any:
    """Sends a request of a client and waits for its answer, in a thread or greenlet."""
    client._start()
    return ask(send, *args)


def callback_of(on_lost: OnLost | None) -> OnLost | None:
    """Refuses a callback that would never run."""
    if on_lost is not None and is_coroutine_function(on_lost):
        raise TypeError(
            f"on_lost is {on_lost!r}, and no event loop would run it: give a `def`, or use redlatch.aio; a `def` may hand "
            "it to a loop with asyncio.run_coroutine_threadsafe(coroutine, loop)"
        )
    return None if on_lost is None else required(on_lost)


@documented(client="Options of a client:", lock="Options of its locks, which each lock may have otherwise:")
class Client(BaseClient):
    """A connection to Redis under one identity, for any number of threads, greenlets and locks.

    `url` is by default the environment variable REDLATCH_URL. The options are keywords, and None is the default of each. Nothing is sent, no thread is started before the first
    request, so a client can be made before a fork; one that was used before belongs to the parent.
    """

    def connect(self) -> Self:
        """Waits until the server is reached; raises UnavailableError or AuthError if it cannot be."""
        _ask(self, self._core.connect)
        return self

    @documented(lock="Options, by default those of the client:")
    def lock(
        self,
        name: str,
        *,
        timeout: float | None = None,
        on_lost: OnLost | None = None,
        canceller: _redlatch.Canceller | None = None,
        interrupt_on_lost: bool = False,
        **options: Unpack[LockOptions],
    ) -> Lock:
        """The lock of this name. No I/O.

        `timeout` is how many seconds a `with` block and `acquire()` wait for it, None for ever. `canceller` ends
        the wait of a block from another thread: the block raises LockCancelledError, and its body does not run. `on_lost` is called with the
        LockLostError when a hold of this lock is lost, on the thread that all clients of the process have for that. It
        should return soon: while it blocks, other callbacks and the log wait; locks are renewed, and calls answered.
        Under gevent and eventlet it is called in a greenlet of its own, which may wait; and on that thread if the hub in
        which it was given has ended. With `interrupt_on_lost` the thread inside a `with` block is interrupted then, and the
        block raises LockLostError: by a LostInterrupt, at its next line of Python. A call that blocks outside of Python, as
        `time.sleep` or a read, ends first. Python drops an interrupt that comes in a finalizer, such as `__del__` or the
        callback of a weak reference; the end of the block tells the loss then. The block stays on one thread, without a
        `yield` or `await`: greenlets are refused, and so is a block inside a generator or coroutine.
        """
        return Lock(self, name, timeout, on_lost, canceller, interrupt_on_lost, **options)

    def rw_lock(
        self,
        name: str,
        *,
        timeout: float | None = None,
        on_lost: OnLost | None = None,
        canceller: _redlatch.Canceller | None = None,
        interrupt_on_lost: bool = False,
        **options: Unpack[LockOptions],
    ) -> RWLock:
        """The read-write lock of this name: many readers, or one writer. No I/O.

        The arguments are those of `lock`, for both sides; `fencing` is for the writer, and `kind` is not taken.
        """
        read, write = sides(dict(options))
        common: dict[str, Any] = {
            "timeout": timeout,
            "on_lost": on_lost,
            "canceller": canceller,
            "interrupt_on_lost": interrupt_on_lost,
        }
        return RWLock(self.lock(name, **common, **read), self.lock(name, **common, **write))

    def multi_lock(
        self,
        locks: Iterable[str | Lock | Semaphore],
        *,
        timeout: float | None = None,
        on_lost: OnLost | None = None,
        canceller: _redlatch.Canceller | None = None,
        interrupt_on_lost: bool = False,
        **options: Unpack[LockOptions],
    ) -> MultiLock:
        """Several locks as one: all of them, or none. No I/O.

        `locks` are names, and locks of this client of any kind, in any order. The options are those of the names; a lock
        that is given has its own. The other arguments are those of `lock`.
        """
        core = multi(self, locks, dict(options))
        return MultiLock(self, core, timeout, on_lost, canceller, interrupt_on_lost)

    def semaphore(
        self,
        name: str,
        *,
        timeout: float | None = None,
        on_lost: OnLost | None = None,
        canceller: _redlatch.Canceller | None = None,
        interrupt_on_lost: bool = False,
        **options: Unpack[LockOptions],
    ) -> Semaphore:
        """The semaphore of this name: at most `limit` owners at a time, over all programs. No I/O.

        The first acquisition gives it so many permits; a number that is there already stays. Without a limit, others set
        it. The other arguments are those of `lock`; `kind` is not taken.
        """
        return Semaphore(self, name, timeout, on_lost, canceller, interrupt_on_lost, **options)

    def plain_semaphore(
        self, name: str, *, timeout: float | None = None, canceller: _redlatch.Canceller | None = None
    ) -> PlainSemaphore:
        """The semaphore without leases of this name, the same as Redisson's RSemaphore. No I/O.

        `timeout` is how many seconds a `with` block waits for a permit, None for ever; `canceller` ends that wait from
        another thread. Permits of a program that dies never come back: take `semaphore`, unless other programs use RSemaphore.
        """
        return PlainSemaphore(self, name, timeout, canceller)

    def latch(self, name: str) -> Latch:
        """The count-down latch of this name, the same as Redisson's RCountDownLatch. No I/O."""
        return Latch(self, name)

    def locked(
        self,
        name: str | Callable[..., str],
        *names: str | Callable[..., str],
        **options: Unpack[LockedOptions],
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorates a function, `def` or `async def`, that must not run twice at the same time.

        `name` may hold parameters of the function, as `"order:{id}"` or `"order:{order.id:05}"`, which each call fills in; a
        brace of the name itself is doubled. Or it is a function of the arguments. Several names are a multi lock. The options are those of `lock`; for an
        `async def` those of `redlatch.aio.Client.lock`.
        """
        return decorate(self, (name, *names), dict(options))

    def close(self) -> list[str]:
        """Releases what is held, ends what waits, and stops, all within the option `close_limit`.

        Returns the names of locks that could not be released in time (if that is 0, of all that are held); they end
        with their leases. Holders are told LockLostError, reason `closed`. Closing twice is no error.
        """
        names: list[str] = []
        with suppress(ClosedError):  # the interpreter is exiting and has closed it
            names = ask(self._core.close)
        _dispatcher.dispatcher.flush()
        return names

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def canceller_of(canceller: _redlatch.Canceller | None) -> _redlatch.Canceller | None:
    """Refuses what cannot cancel."""
    if canceller is not None and not isinstance(canceller, _redlatch.Canceller):
        raise TypeError(f"canceller is {canceller!r}; give it a redlatch.Canceller, or leave it out")
    return canceller


_SUSPENDS = 0x20 | 0x80 | 0x200
"""The flags of a generator, a coroutine and an asynchronous generator, as `inspect` has them."""


def _interrupt() -> _redlatch.Interrupt:
    """Interrupts the calling thread when it is called."""
    if _green.hub_here() is not None:
        raise InvalidArgumentError(
            "invalid_argument: interrupt_on_lost is True, and a greenlet cannot be interrupted; give an on_lost that kills it"
        )
    frame: FrameType | None = sys._getframe(1)
    while frame and frame.f_code.co_name in ("_grant", "__enter__", "enter_context"):
        frame = frame.f_back
    if frame and frame.f_code.co_flags & _SUSPENDS:
        raise InvalidArgumentError(
            f"invalid_argument: interrupt_on_lost is True, and {frame.f_code.co_name!r} may be suspended inside the block: the "
            "interrupt would reach other code; leave it out, and call grant.check() or give an on_lost"
        )
    import ctypes

    # An object of our own: the attribute of this name is one for the process, whose argument types others may set.
    interrupt = ctypes.pythonapi["PyThreadState_SetAsyncExc"]
    interrupt.argtypes, interrupt.restype = (ctypes.c_ulong, ctypes.py_object), ctypes.c_int
    call = partial(interrupt, _green.original("_thread", "get_ident")())
    return _redlatch.Interrupt(partial(call, LostInterrupt), partial(call, ctypes.py_object()), LostInterrupt)


class Blocks(BaseName):
    """The part of locks and semaphores that a `with` block needs."""

    __slots__ = ()

    def __init__(
        self,
        client: BaseClient,
        name: str | _redlatch.Lock,
        timeout: float | None = None,
        on_lost: OnLost | None = None,
        canceller: _redlatch.Canceller | None = None,
        interrupt_on_lost: bool = False,
        **options: Unpack[LockOptions],
    ) -> None:
        super().__init__(client, name, dict(options), timeout, on_lost)
        self._canceller = canceller_of(canceller)  # type: ignore[misc]
        self._interrupt_on_lost = interrupt_on_lost  # type: ignore[misc]

    if TYPE_CHECKING:

        def __enter__(self) -> Grant: ...
        def __exit__(
            self,
            kind: type[BaseException] | None,
            error: BaseException | None,
            trace: TracebackType | None,
            /,
        ) -> None: ...

    else:
        __enter__ = _redlatch.Enter()
        __exit__ = _redlatch.Exit(awaited=False)

    def _grant(self, guard: _redlatch.Guard) -> Grant:
        """The grant of a block that was entered with this guard."""
        grant = Grant(self, guard)
        if self._on_lost is not None:
            self._watch(grant._hold)
        if self._interrupt_on_lost:
            grant._interrupt = _interrupt()
            grant.on_lost(grant._interrupt)
        return grant

    def _callback(self, on_lost: OnLost | None) -> OnLost | None:
        return callback_of(on_lost)

    def _watch(self, hold: _redlatch.Hold) -> None:
        if on_lost := self._to_watch(hold):
            _dispatcher.dispatcher.watch(hold, on_lost)


class Lock(Blocks, BaseLock):
    """A lock for threads, as threading.Lock: a caller that holds it and acquires it again waits for itself.

    With `reentrant=True` it is as threading.RLock: a flow that holds it acquires it again, and releases as often. A flow is
    what runs on one thread, in one task or greenlet, and in one context (contextvars) or its copies. `asyncio.to_thread` and
    web frameworks run a call in a copy of their own context: it is a flow of its own, unless that context has a flow of the
    same thread (docs/re-entry.md says when). Bare functions that a ThreadPoolExecutor runs on one thread are one flow.

    `release`, `extend`, `owned` and the like mean what the calling flow has acquired. A `with` block gives back its own
    level, wherever it is left.

    `threading.Condition(lock)` guards its condition in all processes. `notify` wakes waiters of its own process alone, so a
    waiter that waits for other processes too gives `wait` a timeout.

    Under gevent and eventlet a greenlet is what a thread is elsewhere, and lets its hub run while it waits.
    """

    __slots__ = ("_canceller", "_interrupt_on_lost")

    def acquire(
        self,
        blocking: bool = True,
        timeout: float = -1,
        *,
        lease: float | None = None,
        token: str | None = None,
        canceller: _redlatch.Canceller | None = None,
    ) -> bool:
        """Acquires as threading.Lock does: True if the lock is held now, False if others had it, or waited for it, all the time.

        Raises UnavailableError, instead of returning False, if the server cannot be reached or its answer is late (by a
        second, or a tenth of a shorter lease): nobody knows then whether somebody has the lock.

        Without `timeout` it waits as long as the lock's own `timeout` says, by default for ever.

        With `lease` the lock ends after so many seconds and is not renewed; when it has ended, the thread need not
        release it to acquire anew. It belongs to the flow that calls (see Lock), also when this object is gone; if the thread
        ends without release, it is not renewed any more. If it is lost, the flow has to release it before it acquires anew.
        `token` is what a simple lock's key gets as its value, in place of a fresh one. `canceller` ends the wait from another
        thread, which calls its `cancel()`: LockCancelledError, and nothing is left in Redis. A greenlet has its Timeout and
        `kill()` for that, and is refused a canceller.
        """
        wait = self._timeout if blocking is True and timeout == -1 else wait_of(blocking, timeout)
        if not self._client._started:
            self._client._start()
        if self._on_lost is None and "greenlet" not in _modules:
            return self._core.acquire_here(wait, lease, token, canceller)
        try:
            guard = _green.acquire(self._core, wait, lease, token, True, canceller)
        except LockTimeoutError:
            return False
        self._watch(guard.hold())
        guard.detach()
        return True

    def adopt(self, token: str, *, lease: float | None = None) -> None:
        """Takes over the lock if `token` is its value, in whatever process it was acquired. Simple kinds only.

        The calling flow holds it then, as after `acquire`. The token is worth nothing any more: who acquired with it can
        neither release nor extend the lock. Raises NotOwnerError if the lock is free or has another value.
        """
        self._client._start()
        guard = ask(partial(self._core.acquire, adopts=True), None, None, lease, token, True)
        self._watch(guard.hold())
        guard.detach()

    def release(self) -> None:
        """Gives back the newest level of the calling flow.

        Raises NotOwnerError if it holds none, even if another flow does (use a `with` block to give back elsewhere),
        LockLostError if the lock was lost before, and UnavailableError if the server did not confirm; then the lock ends
        with its lease.
        """
        if "greenlet" not in _modules:
            self._core.release(None)
        else:
            ask(self._core.release, None)

    def locked(self) -> bool:
        """Whether anybody holds the lock, as Redis sees it now."""
        return bool(_ask(self._client, self._core.owners))

    def holder(self) -> Holder | None:
        """The holder of the lock, as Redis sees it now; of a read lock any of them.

        Its process comes from `CLIENT LIST`, which takes the server about a microsecond for each of its connections:
        `locked` does without.
        """
        return next(iter(self.holders()), None)

    def holders(self) -> list[Holder]:
        """All holders of the lock, as Redis sees them now: of a read lock there may be several."""
        return holders_of(_ask(self._client, self._core.holders))

    def waiters(self) -> list[Holder]:
        """The queue of a fair lock, in the order in which its waiters are served, those of other programs included.

        The length is that of the queue, the index a position. `count` is 0; `remaining` is how long the place is kept if
        its waiter does not ask again. Raises ValueError for a lock of another kind, of which Redis keeps no queue.
        """
        return holders_of(_ask(self._client, self._core.waiters))

    def extend(self, seconds: float) -> None:
        """Makes the lock of the calling flow live at least so many seconds from now; never shortens it."""
        ask(self._core.extend, None, seconds)

    def release_token(self, token: str) -> None:
        """Frees the lock if `token` is its value, in whatever process it was acquired. Simple kinds only.

        Raises NotOwnerError if the lock is free or has another value.
        """
        _ask(self._client, self._core.release_token, token)

    def extend_token(self, token: str, seconds: float) -> None:
        """Makes the lock live at least so many seconds from now if `token` is its value; as `release_token`."""
        _ask(self._client, self._core.extend_token, token, seconds)

    def force_release(self) -> bool:
        """Deletes the lock whoever holds it; False if nobody does. Its holders are told that they lost it."""
        return bool(_ask(self._client, self._core.force_release))

    # threading.Condition uses these three.

    def _is_owned(self) -> bool:
        try:
            self._hold().check()
        except NotOwnerError:
            return False
        return True

    def _release_save(self) -> tuple[int, int]:
        """Gives back all levels of the calling flow; how many were of blocks of the condition, and how many others."""
        hold = self._hold()
        blocks = [grant for grant in self._by_hand or () if grant.held and grant._hold.is_same(hold)]
        others = self.hold_count - len(blocks)
        for grant in blocks:
            self._forget_by_hand(grant)
            grant.release()
        for _ in range(others):
            self.release()
        return len(blocks), others

    def _acquire_restore(self, levels: tuple[int, int]) -> None:
        blocks, others = levels
        for _ in range(blocks):
            self.__enter__()
        for _ in range(others):
            self.acquire()

    def _hold(self) -> _redlatch.Hold:
        return self._core.hold(None)


class RWLock:
    """Both sides of a read-write lock, the same as the RReadWriteLock of Redisson with this name.

        prices = client.rw_lock("prices")
        with prices.read: ...   # beside other readers
        with prices.write: ...  # alone

    Each side is a Lock. A flow that has the write side may take the read side too, and keep it when it releases the write
    side. The other way round it would wait for itself: WouldDeadlockError.
    """

    __slots__ = ("read", "write")

    def __init__(self, read: Lock, write: Lock) -> None:
        self.read: Lock = read
        """The side that many may have at a time."""
        self.write: Lock = write
        """The side that one may have, while nobody else has the other."""

    @property
    def name(self) -> str:
        """The name, as it is in Redis."""
        return self.write.name

    def __repr__(self) -> str:
        return f"<redlatch.RWLock {self.write.name!r}>"


class MultiLock(Lock, BaseMultiLock):
    """Several locks as one: a caller has all of them, or none.

        with client.multi_lock(["account:3", "account:7"]): ...

    Give the names in any order: every client waits for them in the same order, so no two callers wait for each other. While
    it waits, it keeps the names before the one that it waits for. The loss of one is the loss of the whole; the others stay
    held until the release.

    It has no key of its own: what asks Redis, as `locked` or `holders`, raises InvalidArgumentError. Ask each of its locks.
    """

    __slots__ = ()


class Semaphore(Blocks, BaseSemaphore):
    """Permits for threads, as threading.BoundedSemaphore; the same as Redisson's RPermitExpirableSemaphore of this name.

        gpus = client.semaphore("gpu", limit=5)
        with gpus: ...  # at most five at once, over all programs

    Each permit has a lease, which is renewed while it is held. The permits of a program that dies are free again after
    their lease and 2 seconds. Callers of one client come in their order.

    A `with` block gives back its own permit. `release` gives back what `acquire` took, on whatever thread.
    """

    __slots__ = ("_canceller", "_interrupt_on_lost")

    def acquire(
        self,
        blocking: bool = True,
        timeout: float | None = None,
        *,
        permits: int = 1,
        lease: float | None = None,
        canceller: _redlatch.Canceller | None = None,
    ) -> bool:
        """Takes permits, as threading.Semaphore does: True if they are taken now, False if there were not enough in time.

        `permits` is how many to take at once, 1 to 1,000. With `lease` they are free again after so many seconds, and not
        renewed. `canceller` is as for Lock.acquire. Raises UnavailableError, instead of returning False, if the server
        cannot be reached or its answer is late.
        """
        wait = self._timeout if blocking is True and timeout is None else wait_of_semaphore(blocking, timeout)
        self._client._start()
        try:
            guard = _green.acquire(self._core, wait, lease, None, False, canceller, permits)
        except LockTimeoutError:
            return False
        self._take(guard, permits)
        self._watch(guard.hold())
        return True

    def release(self, n: int = 1) -> None:
        """Gives back n permits that `acquire` took, those taken last first.

        Raises NotOwnerError if there are not so many, or if they were taken as part of more; LockLostError if they were
        lost before, and UnavailableError if the server did not confirm: then they are free after their lease.
        """
        failures = []
        for guard in self._give(n):
            try:
                ask(guard.release)
            except LockError as failure:  # the others are given back all the same
                failures.append(failure)
        if failures:
            raise failures[0]

    def permits(self) -> Permits:
        """How many permits there are, and how many are free, as Redis sees it now."""
        return Permits(*_ask(self._client, self._core.permits))

    def set_permits(self, limit: int) -> Permits:
        """Gives the semaphore so many permits, whatever it had before. Permits that are held stay held."""
        return Permits(*_ask(self._client, self._core.permits, limit))

    def holders(self) -> list[Holder]:
        """The holders of permits, as Redis sees them now; `count` is how many each has."""
        return holders_of(_ask(self._client, self._core.holders))

    def waiters(self) -> list[Holder]:
        """The queue of a semaphore with the option `fair`, as Lock.waiters; `count` is how many permits each wants."""
        return holders_of(_ask(self._client, self._core.waiters))

    def force_release(self) -> bool:
        """Takes all permits back, whoever has them; False if nobody does. Their holders are told that they lost them."""
        return bool(_ask(self._client, self._core.force_release))


class PlainSemaphore(BasePlainSemaphore, _redlatch.PlainBlocks):
    """Permits without leases for threads, as threading.Semaphore; the same as Redisson's RSemaphore of this name.

        seats = client.plain_semaphore("seats")
        seats.try_set_permits(5)  # if it has no number yet
        with seats: ...  # one permit, given back at the end

    It is a number in Redis, and nothing says who has permits. The permits of a program that dies never come back, until somebody
    adds them anew: client.semaphore(...) has leases. A semaphore without a number has no permits. Callers of one client come
    in their order; clients do not wait for each other.

    `release` gives back what `acquire` took, on whatever thread and in whatever program.
    """

    def __init__(
        self,
        client: BaseClient,
        name: str,
        timeout: float | None = None,
        canceller: _redlatch.Canceller | None = None,
    ) -> None:
        super().__init__(client, name, timeout)
        self._canceller = canceller_of(canceller)

    def acquire(
        self,
        blocking: bool = True,
        timeout: float | None = None,
        *,
        permits: int = 1,
        canceller: _redlatch.Canceller | None = None,
    ) -> bool:
        """Takes permits, as threading.Semaphore does: True if they are taken now, False if there were not enough in time.

        `permits` is how many to take at once. `canceller` is as for Lock.acquire. A signal's exception that ends the wait
        leaves nothing taken. Raises UnavailableError, instead of returning False, if the server cannot be reached.
        """
        wait = self._timeout if blocking is True and timeout is None else wait_of_semaphore(blocking, timeout)
        self._client._start()
        return _green.told(self._core.acquire, permits, wait, canceller=canceller)

    def release(self, n: int = 1) -> None:
        """Gives n permits back, whoever took them. Nothing stops a caller that gives back more than were taken.

        Raises UnavailableError if the server did not confirm: they are given back as soon as it answers, so do not release
        them again.
        """
        _ask(self._client, self._core.release, n)

    def try_set_permits(self, permits: int) -> bool:
        """Gives the semaphore so many permits if it has no number yet; whether it did."""
        return bool(_ask(self._client, self._core.try_set_permits, permits))

    def add_permits(self, permits: int) -> int:
        """Adds permits, or takes some away if the number is negative, without waiting for them; the new number."""
        return int(_ask(self._client, self._core.add_permits, permits))

    def drain(self) -> int:
        """Takes all permits that there are; how many. A number below 0 becomes 0."""
        return int(_ask(self._client, self._core.drain))

    def available(self) -> int:
        """How many permits there are, as Redis sees it now."""
        return int(_ask(self._client, self._core.available))


class Latch(BaseLatch):
    """A count-down latch for threads; the same as Redisson's RCountDownLatch of this name.

        ready = client.latch("ready")
        ready.try_set_count(3)  # if it has none
        ready.count_down()  # in each worker
        ready.wait()  # until the count is 0

    At 0 the latch is open: everybody who waits goes on, and so does a late caller at once, as with threading.Event. A latch
    without a count is open. Its key goes away at 0, and it can get a count again.
    """

    def wait(self, timeout: float | None = None, *, canceller: _redlatch.Canceller | None = None) -> bool:
        """Waits until the count is 0, as threading.Event.wait: True then, False if the time in seconds was over before.

        `canceller` ends the wait from another thread. Raises UnavailableError, instead of returning False, if the server
        cannot be reached.
        """
        wait = timeout_of(timeout)
        self._client._start()
        return _green.told(self._core.wait, wait, canceller=canceller)

    def try_set_count(self, count: int) -> bool:
        """Gives the latch this count if it has none; whether it did."""
        return bool(_ask(self._client, self._core.try_set_count, count))

    def count_down(self, by: int = 1) -> int:
        """Counts down, to 0 at most; what is left."""
        return int(_ask(self._client, self._core.count_down, by))

    def count(self) -> int:
        """The count, as Redis sees it now; 0 if the latch is open."""
        return int(_ask(self._client, self._core.count))


class Grant(BaseGrant):
    """The object that `with lock as grant` gives: one level of a hold."""

    __slots__ = ()

    def release(self) -> None:
        """Gives the level back before the block ends; see Lock.release. The end of the block does nothing then."""
        self._spend()
        try:
            if "greenlet" not in _modules:
                self._guard.release()
            else:
                ask(self._guard.release)
        finally:
            self._forget()

    def extend(self, seconds: float) -> None:
        """Makes the lock live at least so many seconds from now; never shortens it."""
        ask(self._guard.extend, seconds)

    def on_lost(self, callback: OnLost) -> None:
        """Calls `callback` once with the LockLostError when the lock is lost; on which thread, Client.lock says."""
        callback = required(callback_of(callback))
        self._tags += (_dispatcher.dispatcher.watch(self._hold, callback),)

    def _watchers(self) -> _dispatcher.Watchers:
        return _dispatcher.dispatcher.watchers
