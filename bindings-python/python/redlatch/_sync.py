"""The lock for threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from redlatch import _dispatcher
from redlatch._base import (
    BaseClient,
    BaseGrant,
    BaseLock,
    Holder,
    decorate,
    holder_of,
    note,
    wait_of,
)
from redlatch.exceptions import ClosedError, LockError, LockTimeoutError

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from redlatch import _redlatch
    from redlatch._dispatcher import OnLost
    from redlatch._options import ClientOptions, LockOptions

P = ParamSpec("P")
R = TypeVar("R")


class _Thread(threading.local):
    """Names the calling thread; unlike get_ident() it is never used again."""

    def __init__(self) -> None:
        self.token = object()


_thread = _Thread()


class Client(BaseClient):
    """A connection to Redis under one identity, for any number of threads and locks.

    `url` is by default the environment variable REDLATCH_URL. The options are described in docs/options.md; those
    of a lock are defaults for the locks of this client. Nothing is sent, no thread is started before the first
    request, so a client can be made before a fork; one that was used before belongs to the parent.
    """

    def __init__(self, url: str | None = None, **options: Unpack[ClientOptions]) -> None:
        super().__init__(url, dict(options))

    def connect(self) -> Self:
        """Waits until the server is reached; raises UnavailableError or AuthError if it cannot be."""
        self._start()
        self._core.connect()
        return self

    def lock(
        self,
        name: str,
        *,
        timeout: float | None = None,
        on_lost: OnLost | None = None,
        **options: Unpack[LockOptions],
    ) -> Lock:
        """The lock of this name. No I/O.

        `timeout` is how many seconds a `with` block waits for it, None for ever. `on_lost` is called with the
        LockLostError when a hold of this lock is lost, on the thread that all clients of the process have for that. It
        should return soon: while it blocks, other callbacks and the log wait; locks are renewed, and calls answered.
        """
        return Lock(self, name, timeout=timeout, on_lost=on_lost, **options)

    def locked(
        self, name: str | Callable[..., str], **options: Any
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorates a function, `def` or `async def`, that must not run twice at the same time.

        `name` may be a function of the arguments; the options are those of `lock`.
        """
        return decorate(self, name, options)

    def close(self) -> list[str]:
        """Releases what is held, ends what waits, and stops, all within the option `close_limit`.

        Returns the names of locks that could not be released in time (if that is 0, of all that are held); they end
        with their leases. Holders are told LockLostError, reason `closed`. Closing twice is no error.
        """
        names: list[str] = []
        with suppress(ClosedError):  # the interpreter is exiting and has closed it
            names = self._core.close()
        _dispatcher.dispatcher.flush()
        return names

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Lock(BaseLock):
    """A re-entrant lock for threads: the thread that holds it can acquire it again, and releases as often."""

    __slots__ = ()

    def __init__(
        self,
        client: BaseClient,
        name: str,
        *,
        timeout: float | None = None,
        on_lost: OnLost | None = None,
        **options: Unpack[LockOptions],
    ) -> None:
        super().__init__(client, name, dict(options), timeout, on_lost)

    def acquire(
        self,
        blocking: bool = True,
        timeout: float = -1,
        *,
        lease: float | None = None,
        token: str | None = None,
    ) -> bool:
        """Acquires as threading.Lock does: True if the lock is held now, False if others had it, or waited for it, all the time.

        Raises UnavailableError, instead of returning False, if the server cannot be reached or its answer is late (by a
        second, or a tenth of a shorter lease): nobody knows then whether somebody has the lock.

        With `lease` the lock ends after so many seconds and is not renewed; when it has ended, the thread need not
        release it to acquire anew. It belongs to the calling thread, also when this object is gone; if the thread
        ends without release, it is not renewed any more. `token` is what a simple lock's key gets as its value, in
        place of a fresh one.
        """
        wait = None if blocking is True and timeout == -1 else wait_of(blocking, timeout)
        if not self._client._started:
            self._client._start()
        if self._on_lost is None:
            return self._core.acquire_here(wait, lease, token)
        try:
            guard = self._core.acquire(None, wait, lease, token, True)
        except LockTimeoutError:
            return False
        self._watch(guard.hold())
        guard.detach()
        return True

    def release(self) -> None:
        """Gives back the newest level of the calling thread.

        Raises NotOwnerError if it holds none, LockLostError if the lock was lost before, and UnavailableError if the
        server did not confirm; then the lock ends with its lease.
        """
        self._core.release(None)

    def locked(self) -> bool:
        """Whether anybody holds the lock, as Redis sees it now."""
        return self.holder() is not None

    def holder(self) -> Holder | None:
        """Who holds the lock, as Redis sees it now."""
        self._client._start()
        return holder_of(self._core.holder())

    def extend(self, seconds: float) -> None:
        """Makes the lock of the calling thread live at least so many seconds from now; never shortens it."""
        self._core.extend(None, seconds)

    def release_token(self, token: str) -> None:
        """Frees the lock if `token` is its value, in whatever process it was acquired. Simple kinds only.

        Raises NotOwnerError if the lock is free or has another value.
        """
        self._client._start()
        self._core.release_token(token)

    def extend_token(self, token: str, seconds: float) -> None:
        """Makes the lock live at least so many seconds from now if `token` is its value; as `release_token`."""
        self._client._start()
        self._core.extend_token(token, seconds)

    def force_release(self) -> bool:
        """Deletes the lock whoever holds it; False if nobody does. Its holders are told that they lost it."""
        self._client._start()
        return bool(self._core.force_release())

    def __enter__(self) -> Grant:
        self._client._start()
        guard = self._core.acquire(None, self._timeout, None, None, False)
        try:
            grant = Grant(self, guard)
            self._watch(grant._hold)
            self._enter(_thread.token, grant)
            return grant
        except BaseException:  # a signal's handler raised it: the block does not begin
            self._let_go(guard)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        who: object = _thread.token
        grant: Any = None
        try:
            while not self._left(grant := self._leaving(who)):
                pass
            if not grant._released:
                grant.release()
        except LockError as failure:
            if error is None:
                raise
            note(error, failure)
        except BaseException:  # a signal's handler raised it: released all the same
            self._let_go((grant or self._leaving(who))._guard)
            raise

    def _watch(self, hold: _redlatch.Hold) -> None:
        if on_lost := self._to_watch(hold):
            _dispatcher.dispatcher.watch(hold, on_lost)

    def _hold(self) -> _redlatch.Hold:
        return self._core.hold(None)


class Grant(BaseGrant):
    """What `with lock as grant` gives: one level of a hold."""

    __slots__ = ()

    def release(self) -> None:
        """Gives the level back before the block ends; see Lock.release. The end of the block does nothing then."""
        self._spend()
        try:
            self._guard.release()
        finally:
            self._forget()

    def extend(self, seconds: float) -> None:
        """Makes the lock live at least so many seconds from now; never shortens it."""
        self._guard.extend(seconds)

    def on_lost(self, callback: OnLost) -> None:
        """Calls `callback` once with the LockLostError when the lock is lost; on which thread, Client.lock says."""
        self._tags += (_dispatcher.dispatcher.watch(self._hold, callback),)

    def _watchers(self) -> _dispatcher.Watchers:
        return _dispatcher.dispatcher.watchers
