"""How threads and greenlets wait, and what they own: the part of `redlatch` that tasks of asyncio have in another way (`_tasks`)."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import partial
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from redlatch import _dispatcher, _green, _redlatch
from redlatch._base import (
    BaseClient,
    BaseGrant,
    BaseLock,
    BaseName,
    BasePlainSemaphore,
    is_coroutine_function,
    required,
    wait_of,
)
from redlatch._dispatcher import OnLost
from redlatch._options import LockOptions
from redlatch._typing import Unpack
from redlatch.exceptions import InvalidArgumentError, LockTimeoutError, LostInterrupt, NotOwnerError

# The ways in and out look here themselves whether there are greenlets, which costs less than a call.
_modules = sys.modules

ask_unstarted = _green.ask


def ask(client: BaseClient, send: Callable[..., Any], *args: object) -> Any:
    """Sends a request of a client and waits for its answer, in a thread or greenlet."""
    client._start()
    return _green.ask(send, *args)


def told(
    client: BaseClient,
    send: Callable[..., Any],
    *args: object,
    canceller: _redlatch.Canceller | None,
) -> bool:
    """The same for permits and for a latch; False when the time is over."""
    client._start()
    return _green.told(send, *args, canceller=canceller)


def acquire(
    client: BaseClient,
    core: _redlatch.Lock,
    wait: float | None,
    lease: float | None,
    permits: int,
    canceller: _redlatch.Canceller | None,
) -> _redlatch.Guard:
    """Takes permits, which belong to no flow."""
    client._start()
    return _green.acquire(core, wait, lease, None, False, canceller, permits)


def watch(hold: _redlatch.Hold, on_lost: OnLost) -> int:
    """Has this called when the hold is lost; the tag of that."""
    return _dispatcher.dispatcher.watch(hold, on_lost)


def callback_of(on_lost: OnLost | None) -> OnLost | None:
    """Refuses a callback that would never run."""
    if on_lost is not None and is_coroutine_function(on_lost):
        raise TypeError(
            f"on_lost is {on_lost!r}, and no event loop would run it: give a `def`, or use redlatch.aio; a `def` may hand "
            "it to a loop with asyncio.run_coroutine_threadsafe(coroutine, loop)"
        )
    return None if on_lost is None else required(on_lost)


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

    def _caller(self) -> object:
        return _modules["greenlet"].getcurrent() if "greenlet" in _modules else threading.get_ident()

    def _watch(self, hold: _redlatch.Hold) -> None:
        if on_lost := self._to_watch(hold):
            watch(hold, on_lost)


class OwnedLock(Blocks, BaseLock):
    """A lock that a flow owns."""

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

        Raises UnavailableError, instead of returning False, if the server cannot be reached or its answer is late: nobody knows
        then whether somebody has the lock. `timeout` is by default that of the lock. With `lease` the lock ends after so many
        seconds and is not renewed. `token` is what a simple lock's key gets as its value. `canceller` ends the wait from another
        thread: LockCancelledError; a greenlet has its Timeout and `kill()` for that.
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
        guard = _green.ask(partial(self._core.acquire, adopts=True), None, None, lease, token, True)
        self._watch(guard.hold())
        guard.detach()

    def release(self) -> None:
        """Gives back the newest level of the calling flow.

        Raises NotOwnerError if it holds none, even if another flow does (use a `with` block to give back elsewhere),
        LockLostError if the lock was lost before, and UnavailableError if the server did not confirm; then the lock ends
        with its lease.
        """
        if "greenlet" not in _modules:
            self._core.release(None, None)
        else:
            _green.ask(self._core.release, None)

    def locked(self) -> bool:
        """Whether anybody holds the lock, as Redis sees it now."""
        return bool(ask(self._client, self._core.owners))

    def extend(self, seconds: float) -> None:
        """Makes the lock of the calling flow live at least so many seconds from now; never shortens it."""
        _green.ask(self._core.extend, None, seconds)

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
        blocks = [grant for grant, _ in self._by_hand or () if grant.held and grant._hold.is_same(hold)]
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


class PlainBlocks(_redlatch.PlainBlocks, BasePlainSemaphore):
    """The two ends of a `with` block of a plain semaphore."""

    def __init__(
        self,
        client: BaseClient,
        name: str,
        timeout: float | None = None,
        canceller: _redlatch.Canceller | None = None,
    ) -> None:
        super().__init__(client, name, timeout)
        self._canceller = canceller_of(canceller)


class Grant(BaseGrant):
    """The object that `with lock as grant` gives: one level of a hold."""

    __module__ = "redlatch._sync"
    __slots__ = ()

    def release(self) -> None:
        """Gives the level back before the block ends; see Lock.release. The end of the block does nothing then."""
        self._spend()
        try:
            if "greenlet" not in _modules:
                self._guard.release(None)
            else:
                _green.ask(self._guard.release)
        finally:
            self._forget()

    def extend(self, seconds: float) -> None:
        """Makes the lock live at least so many seconds from now; never shortens it."""
        _green.ask(self._guard.extend, seconds)

    def on_lost(self, callback: OnLost) -> None:
        """Calls `callback` once with the LockLostError when the lock is lost; on which thread, Client.lock says."""
        callback = required(callback_of(callback))
        self._tags += (watch(self._hold, callback),)

    def _watchers(self) -> _dispatcher.Watchers:
        return _dispatcher.dispatcher.watchers
