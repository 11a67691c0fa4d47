"""redis-py's clients with our locks, for those who make their locks with `client.lock(name)`."""

from __future__ import annotations

from typing import Any

import redis
import redis.asyncio

from redlatch.compat import redispy
from redlatch.compat.redispy import aio


def _unless_usual(raise_on_release_error: bool) -> dict[str, Any]:
    """The argument that the locks of older versions of redis-py do not have."""
    return {} if raise_on_release_error else {"raise_on_release_error": False}


class Redis(redis.Redis):
    """`redis.Redis`, whose `lock` makes locks of redlatch."""

    def lock(
        self,
        name: str,
        timeout: float | None = None,
        sleep: float = 0.1,
        blocking: bool = True,
        blocking_timeout: float | None = None,
        lock_class: Any = None,
        thread_local: bool = True,
        raise_on_release_error: bool = True,
    ) -> redispy.Lock:
        """A lock of this name; see `redlatch.compat.redispy.Lock`."""
        made: redispy.Lock = (lock_class or redispy.Lock)(
            self,
            name,
            timeout=timeout,
            sleep=sleep,
            blocking=blocking,
            blocking_timeout=blocking_timeout,
            thread_local=thread_local,
            **_unless_usual(raise_on_release_error),
        )
        return made


class AsyncRedis(redis.asyncio.Redis):
    """`redis.asyncio.Redis`, whose `lock` makes locks of redlatch."""

    def lock(  # type: ignore[override]
        self,
        name: str | bytes | memoryview,
        timeout: float | None = None,
        sleep: float = 0.1,
        blocking: bool = True,
        blocking_timeout: float | None = None,
        lock_class: Any = None,
        thread_local: bool = True,
        raise_on_release_error: bool = True,
    ) -> aio.Lock:
        """A lock of this name; see `redlatch.compat.redispy.aio.Lock`."""
        made: aio.Lock = (lock_class or aio.Lock)(
            self,
            name,
            timeout=timeout,
            sleep=sleep,
            blocking=blocking,
            blocking_timeout=blocking_timeout,
            thread_local=thread_local,
            **_unless_usual(raise_on_release_error),
        )
        return made
