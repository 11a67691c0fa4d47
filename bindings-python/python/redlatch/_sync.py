"""The locks for threads."""

# Made of aio.py by scripts/lib/unasync.py.

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from types import TracebackType
from typing import ParamSpec, TypeVar

from redlatch import _dispatcher, _redlatch
from redlatch._base import (
    BaseClient,
    BaseCounter,
    BaseSemaphore,
    Holder,
    LockedOptions,
    Part,
    Permits,
    decorate,
    holders_of,
    multi,
    timeout_of,
    wait_of_semaphore,
)
from redlatch._dispatcher import OnLost
from redlatch._options import LockOptions
from redlatch._threads import Blocks, Grant, OwnedLock, PlainBlocks, acquire, ask, ask_unstarted, told
from redlatch._typing import Self, Unpack
from redlatch.exceptions import ClosedError, LockError, LockTimeoutError

__all__ = [
    "Client",
    "Grant",
    "Holder",
    "Latch",
    "Lock",
    "MultiLock",
    "Part",
    "PlainSemaphore",
    "RWLock",
    "Semaphore",
]

P = ParamSpec("P")
R = TypeVar("R")


class Client(BaseClient):
    """A connection to Redis under one identity, for any number of threads, greenlets and locks.

    `url` is by default the environment variable REDLATCH_URL. Nothing is sent, and no thread started, before the first request,
    so a client can be made before a fork; one that was used before belongs to the parent. The options that most programs need:

    connect_timeout: seconds in which the first connection has to be there
    outage: seconds without a server after which callers who wait get UnavailableError
    close_limit: seconds that `close` may take
    tls_ca: file or text of the authorities of the server's certificate
    watchdog_lease: seconds that a lock lives when this program dies; as all options of a lock, a default for its locks

    All others, with defaults and bounds: help(redlatch.ClientOptions), docs/options.md.
    """

    def connect(self) -> Self:
        """Waits until the server is reached; raises UnavailableError or AuthError if it cannot be."""
        ask(self, self._core.connect)
        return self

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

        timeout: seconds that a `with` block and `acquire()` wait for it; None for ever
        on_lost: called with the LockLostError when a hold is lost, on a thread of redlatch that it must not block
        canceller: ends the wait of a block from another thread, by its `cancel()`: LockCancelledError
        interrupt_on_lost: then interrupts the thread inside the block, which raises LockLostError
        lease: seconds after which the lock ends without being renewed; None renews it while the program lives
        reentrant: whether its holder may acquire it again, as threading.RLock
        kind: the form in Redis, as "fair", or "simple" for one that a token can hand on

        All other options: help(redlatch.LockOptions), docs/options.md.
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
        sides = self._core.rw_lock(name, dict(options))
        return RWLock(*(Lock(self, side, timeout, on_lost, canceller, interrupt_on_lost) for side in sides))

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
        return MultiLock(
            self, multi(self, locks, dict(options)), timeout, on_lost, canceller, interrupt_on_lost
        )

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

        `timeout` is how many seconds a `with` block waits for a permit, None for ever; `canceller` ends that wait from another thread.
        Permits of a program that dies never come back: take `semaphore`, unless other programs use RSemaphore.
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
        brace of the name itself is doubled. Or it is a function of the arguments. Several names are a multi lock. The options
        are those of `lock`: for a `def` of that of `redlatch.Client`, for an `async def` of that of `redlatch.aio.Client`.
        """
        return decorate(self, (name, *names), dict(options))

    def close(self) -> list[str]:
        """Releases what is held, ends what waits, and stops, all within the option `close_limit`.

        Returns the names of locks that could not be released in time (if that is 0, of all that are held); they end
        with their leases. Holders are told LockLostError, reason `closed`. Closing twice is no error.
        """
        names: list[str] = []
        # Closing a client that was never used sends nothing. As the interpreter exits it is closed already.
        with suppress(ClosedError):
            names = ask_unstarted(self._core.close)
        _dispatcher.dispatcher.flush()
        return names

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Lock(OwnedLock):
    """A lock for threads, as threading.Lock: a caller that holds it and acquires it again waits for itself.

    With `reentrant=True` it is as threading.RLock. The owner is a flow: what runs on one thread, in one task or greenlet, and
    in one context (contextvars) or its copies; docs/re-entry.md has the rest. `release`, `extend`, `owned` and the like mean
    what the calling flow has acquired. A `with` block gives back its own level, wherever it is left. A lock ends with the flow
    that owns it: it is not renewed any more, and a warning is logged.

    `threading.Condition(lock)` guards its condition in all processes. `notify` wakes waiters of its own process alone, so a
    waiter that waits for other processes too gives `wait` a timeout. Under gevent and eventlet a greenlet is what a thread
    is elsewhere, and lets its hub run while it waits.
    """

    __slots__ = ()

    def holder(self) -> Holder | None:
        """The holder of the lock, as Redis sees it now; of a read lock any of them.

        Its process comes from `CLIENT LIST`, which takes the server about a microsecond for each of its connections:
        `locked` does without.
        """
        return next(iter(self.holders()), None)

    def holders(self) -> list[Holder]:
        """All holders of the lock, as Redis sees them now: of a read lock there may be several."""
        return holders_of(ask(self._client, self._core.holders))

    def waiters(self) -> list[Holder]:
        """The queue of a fair lock, in the order in which its waiters are served, those of other programs included.

        The length is that of the queue, the index a position. `count` is 0; `remaining` is how long the place is kept if
        its waiter does not ask again. Raises ValueError for a lock of another kind, of which Redis keeps no queue.
        """
        return holders_of(ask(self._client, self._core.waiters))

    def release_token(self, token: str) -> None:
        """Frees the lock if `token` is its value, in whatever process it was acquired. Simple kinds only.

        Raises NotOwnerError if the lock is free or has another value.
        """
        ask(self._client, self._core.release_token, token)

    def extend_token(self, token: str, seconds: float) -> None:
        """Makes the lock live at least so many seconds from now if `token` is its value; as `release_token`."""
        ask(self._client, self._core.extend_token, token, seconds)

    def force_release(self) -> bool:
        """Deletes the lock whoever holds it; False if nobody does. Its holders are told that they lost it."""
        return bool(ask(self._client, self._core.force_release))


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


class MultiLock(Lock):
    """Several locks as one: a caller has all of them, or none.

        with client.multi_lock(["account:3", "account:7"]): ...

    Give the names in any order: every client waits for them in the same order, so no two callers wait for each other. While
    it waits, it keeps the names before the one that it waits for. The loss of one is the loss of the whole; the others stay
    held until the release.

    It has no key of its own: what asks Redis, as `locked` or `holders`, raises InvalidArgumentError. Ask each of its locks.
    """

    __slots__ = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names, as they stand in Redis, in the order in which it waits for them."""
        return tuple(self._core.names())


class Semaphore(Blocks, BaseSemaphore):
    """Permits for threads, as threading.BoundedSemaphore; the same as Redisson's RPermitExpirableSemaphore of this name.

        gpus = client.semaphore("gpu", limit=5)
        with gpus: ...  # at most five at once, over all programs

    Each permit has a lease, which is renewed while it is held. The permits of a program that dies are free again after
    their lease and 2 seconds. Callers of one client come in their order.

    A block gives back its own permit.
    `release` gives back what `acquire` took, on whatever thread.
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

        `permits` is how many to take at once, 1 to 1,000. `canceller` is as for Lock.acquire.
        With `lease` they are free again after so many seconds, and not renewed. Raises UnavailableError, instead of returning
        False, if the server cannot be reached or its answer is late.
        """
        wait = self._timeout if blocking is True and timeout is None else wait_of_semaphore(blocking, timeout)
        try:
            guard: _redlatch.Guard = acquire(self._client, self._core, wait, lease, permits, canceller)
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
        guards = self._give(n)
        try:
            for guard in guards:
                try:
                    ask(self._client, guard.release)
                except LockError as failure:  # the others are given back all the same
                    failures.append(failure)
        finally:
            for guard in guards:
                guard.let_go()  # if it was not sent
        if failures:
            raise failures[0]

    def permits(self) -> Permits:
        """How many permits there are, and how many are free, as Redis sees it now."""
        return Permits(*ask(self._client, self._core.permits, None))

    def set_permits(self, limit: int) -> Permits:
        """Gives the semaphore so many permits, whatever it had before. Permits that are held stay held."""
        return Permits(*ask(self._client, self._core.permits, limit))

    def holders(self) -> list[Holder]:
        """The holders of permits, as Redis sees them now; `count` is how many each has."""
        return holders_of(ask(self._client, self._core.holders))

    def waiters(self) -> list[Holder]:
        """The queue of a semaphore with the option `fair`, as Lock.waiters; `count` is how many permits each wants."""
        return holders_of(ask(self._client, self._core.waiters))

    def force_release(self) -> bool:
        """Takes all permits back, whoever has them; False if nobody does. Their holders are told that they lost them."""
        return bool(ask(self._client, self._core.force_release))


class PlainSemaphore(PlainBlocks):
    """Permits without leases for threads, as threading.Semaphore; the same as Redisson's RSemaphore of this name.

        seats = client.plain_semaphore("seats")
        seats.try_set_permits(5)  # if it has no number yet
        with seats: ...  # one permit, given back at the end

    It is a number in Redis, and nothing says who has permits. The permits of a program that dies never come back, until somebody
    adds them anew: client.semaphore(...) has leases. A semaphore without a number has no permits. Callers of one client come
    in their order. Between clients there is no order.

    `release` gives back what `acquire` took, on whatever thread and in whatever program.
    """

    def acquire(
        self,
        blocking: bool = True,
        timeout: float | None = None,
        *,
        permits: int = 1,
        canceller: _redlatch.Canceller | None = None,
    ) -> bool:
        """Takes permits, as threading.Semaphore does: True if they are taken now, False if there were not enough in time.

        `permits` is how many to take at once. `canceller` is as for Lock.acquire. A signal's exception leaves nothing taken.
        Raises UnavailableError, instead of returning False, if the server does not answer.
        """
        wait = self._timeout if blocking is True and timeout is None else wait_of_semaphore(blocking, timeout)
        return bool(told(self._client, self._core.acquire, permits, wait, canceller=canceller))

    def release(self, n: int = 1) -> None:
        """Gives n permits back, whoever took them. Nothing stops a caller that gives back more than were taken.

        Raises UnavailableError if the server did not confirm: they are given back as soon as it answers, so do not release
        them again.
        """
        ask(self._client, self._core.release, n)

    def try_set_permits(self, permits: int) -> bool:
        """Gives the semaphore so many permits if it has no number yet; whether it did."""
        return bool(ask(self._client, self._core.try_set_permits, permits))

    def add_permits(self, permits: int) -> int:
        """Adds permits, or takes some away if the number is negative, without waiting for them; the new number."""
        return int(ask(self._client, self._core.add_permits, permits))

    def drain(self) -> int:
        """Takes all permits that there are; how many. A number below 0 becomes 0."""
        return int(ask(self._client, self._core.drain))

    def available(self) -> int:
        """How many permits there are, as Redis sees it now."""
        return int(ask(self._client, self._core.available))


class Latch(BaseCounter):
    """A count-down latch for threads; the same as Redisson's RCountDownLatch of this name.

        ready = client.latch("ready")
        ready.try_set_count(3)  # if it has none
        ready.count_down()  # in each worker
        ready.wait()  # until the count is 0

    At 0 the latch is open: everybody who waits goes on, and so does a late caller at once, as with threading.Event. A latch
    without a count is open. Its key goes away at 0, and it can get a count again.
    """

    _core: _redlatch.Latch

    def __init__(self, client: BaseClient, name: str) -> None:
        self._client = client
        self._core = client._core.latch(name)

    def wait(self, timeout: float | None = None, *, canceller: _redlatch.Canceller | None = None) -> bool:
        """Waits until the count is 0, as threading.Event.wait: True then, False if the time in seconds was over before.

        `canceller` ends the wait from another thread. Raises UnavailableError, instead of returning False, if the server
        cannot be reached.
        """
        return bool(told(self._client, self._core.wait, timeout_of(timeout), canceller=canceller))

    def try_set_count(self, count: int) -> bool:
        """Gives the latch this count if it has none; whether it did."""
        return bool(ask(self._client, self._core.try_set_count, count))

    def count_down(self, by: int = 1) -> int:
        """Counts down, to 0 at most; what is left."""
        return int(ask(self._client, self._core.count_down, by))

    def count(self) -> int:
        """The count, as Redis sees it now; 0 if the latch is open."""
        return int(ask(self._client, self._core.count))
