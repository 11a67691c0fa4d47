# --- asyncio ---
"""redis-py's asyncio `Lock` with redlatch behind it: change the import, and keep the rest.

    from redlatch.compat.redispy.aio import Lock  # in place of redis.asyncio.lock
    from redlatch.compat.redispy.aio import Redis  # in place of redis.asyncio, for those who call its lock()

The differences, with their reasons, are in docs/redis-py.md.
"""

# `__init__.py` is made of this file: scripts/lib/unasync.py says how.
# --- threads ---
# """redis-py's `Lock` with redlatch behind it: change the import, and keep the rest.
#
#     from redlatch.compat.redispy import Lock  # in place of redis.lock
#     from redlatch.compat.redispy import Redis  # in place of redis, for those who call its lock()
#
# It excludes and is excluded by redis-py's own locks of the same name. The differences, with their
# reasons, are in docs/redis-py.md. For asyncio see `redlatch.compat.redispy.aio`.
# """
#
# # Made of aio.py by scripts/lib/unasync.py.
# --- both ---

from __future__ import annotations

import logging
from collections.abc import Awaitable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from redlatch import _redlatch, aio
from redlatch._base import HolderRow
from redlatch._dispatcher import OnLost
from redlatch._tasks import ask, callback_of, watch
from redlatch._typing import Self
from redlatch.compat.redispy._base import (
    LEFT_UNLOCKED,
    NOT_ACQUIRED,
    BaseLock,
    Held,
    is_owner,
    longer,
    no_longer_owned,
    text_of,
)
from redlatch.compat.redispy._clients import Clients
from redlatch.compat.redispy._errors import LockError, LockNotOwnedError, chain, lock_error, redis_errors
from redlatch.exceptions import LockTimeoutError

if TYPE_CHECKING:
    from redlatch.compat.redispy._redis import AsyncRedis as Redis

__all__ = ["Lock", "LockError", "LockNotOwnedError", "Redis"]

logger: logging.Logger = logging.getLogger("redlatch")


class Lock(BaseLock[aio.Client]):
    """A lock with the parameters, attributes, methods and exceptions of `redis.asyncio.lock.Lock`.

    `redis` is a client of redis.asyncio, whose server, database and log-in are taken over by a redlatch client that
    all locks of the process share, or a `redlatch.aio.Client`. Times are in seconds. Without `timeout` the lock is
    renewed while this process lives. `sleep` means nothing: a waiter is woken. `on_lost`, which redis-py has not, is
    called with the LockLostError, in the event loop, when the lock is lost.
    """

    _clients = Clients(aio.Client)
    _own_client = aio.Client

    async def acquire(
        self,
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """Waits for the lock; True if it is held now, False if it was not to be had in `blocking_timeout`.

        Cancelled, it leaves nothing behind.
        """
        given = None if token is None else self._encoded(token)
        try:
            with redis_errors(self.name, NOT_ACQUIRED):
                guard = await self._acquire(self._wait(blocking, blocking_timeout), self._lease(), given)
        except LockTimeoutError:
            return False
        self._take(guard)
        return True

    async def release(self) -> None:
        """Gives the lock back; LockError if this one has no token, LockNotOwnedError if it is not its any more.

        After a ConnectionError or a cancellation the token is still there, to try again.
        """
        with self._releasing() as token, redis_errors(self.name, no_longer_owned("release")):
            if guard := self._spend(token):
                await ask(self._client, guard.release)
            else:
                core = self._core()
                await ask(self._client, core.release_token, text_of(token))

    async def locked(self) -> bool:
        """Whether anybody holds the lock, as Redis sees it now."""
        return bool(await self._holders())

    async def owned(self) -> bool:
        """Whether the lock has the token of this one, as Redis sees it now."""
        return is_owner(await self._holders(), self.local.token)

    def extend(self, additional_time: float, replace_ttl: bool = False) -> Awaitable[Literal[True]]:
        """Makes the lock live so many seconds longer, or with `replace_ttl` so many from now; never shorter."""
        return self._extend(self._to_extend("extend"), additional_time, replace_ttl, "extend")

    def reacquire(self) -> Awaitable[Literal[True]]:
        """Makes the lock live for its `timeout` from now."""
        return self._extend(self._to_extend("reacquire"), self.timeout or 0, True, "reacquire")

    async def __aenter__(self) -> Self:
        if await self.acquire():
            return self
        raise lock_error(NOT_ACQUIRED, self.name)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.release()
        except LockError as failure:
            if self.raise_on_release_error:
                chain(failure, error)
                raise
            logger.warning(LEFT_UNLOCKED)

    async def _extend(self, token: bytes, seconds: float, replace: bool, what: str) -> Literal[True]:
        with redis_errors(self.name, no_longer_owned(what)):
            wanted = longer(await self._holders(), token, seconds, replace=replace)
            guard = self._held(token)
            if wanted is not None and guard is not None:
                await ask(self._client, guard.extend, wanted)
            elif wanted is not None:
                core = self._core()
                await ask(self._client, core.extend_token, text_of(token), wanted)
        return True

    async def _holders(self) -> list[HolderRow]:
        with redis_errors(self.name, NOT_ACQUIRED):
            # A client of the parent process is replaced by one of this process.
            core = self._core()
            rows: list[HolderRow] = await ask(self._client, core.owners)
        return rows

    async def _acquire(self, wait: float | None, lease: float | None, token: bytes | None) -> _redlatch.Guard:
        core, text = self._core(), None if token is None else text_of(token)
        # --- asyncio ---
        owner, tied = _redlatch.Key(), False
        # --- threads ---
        # owner = _redlatch.Key.of_caller() if self.thread_local else _redlatch.Key()
        # # It is renewed no longer than its thread lives, the only one that could release it.
        # tied = self.thread_local and not self.timeout
        # --- both ---
        guard: _redlatch.Guard = await ask(self._client, core.acquire, owner, wait, lease, text, tied)
        return guard

    def _callback(self, on_lost: OnLost | None) -> OnLost | None:
        return callback_of(on_lost)

    def _take(self, guard: _redlatch.Guard) -> None:
        self._keep(Held(guard, renewed=not self.timeout))
        if self.on_lost is not None:
            watch(guard.hold(), self.on_lost)


def __getattr__(name: str) -> Any:
    """`Redis` is made only for those who have redis-py."""
    if name == "Redis":
        from redlatch.compat.redispy._redis import AsyncRedis

        return AsyncRedis
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
