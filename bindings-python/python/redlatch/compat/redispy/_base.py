"""The part that the locks for threads and for asyncio share: redis-py's parameters, and the token."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from redlatch import _redlatch
from redlatch._base import LONGEST_WAIT, BaseClient, HolderRow
from redlatch._dispatcher import OnLost
from redlatch._typing import RedisClient
from redlatch.compat.redispy._clients import Clients
from redlatch.compat.redispy._errors import LockNotOwnedError, lock_error
from redlatch.exceptions import InvalidArgumentError, NotOwnerError

C = TypeVar("C", bound=BaseClient)

NOT_ACQUIRED = "Unable to acquire lock within the time specified"
NOT_RELEASABLE = "Cannot release a lock that's not owned or is already unlocked."
LEFT_UNLOCKED = "Lock was unlocked or no longer owned when exiting context manager."


def no_longer_owned(what: str) -> str:
    return f"Cannot {what} a lock that's no longer owned"


class Held:
    """A lock that this process acquired, and the token that stands for it."""

    renewed: ClassVar[set[_redlatch.Guard]] = set()
    """The guards that the watchdog renews: they stay held when their Lock objects are gone, as redis-py's do."""
    _sweep_at: ClassVar[int] = 64

    def __init__(self, guard: _redlatch.Guard, *, renewed: bool) -> None:
        self.guard = guard
        self.token: bytes = guard.hold().owner.encode()
        guard.keep()
        if renewed:
            self._sweep()
            self.renewed.add(guard)

    @classmethod
    def _sweep(cls) -> None:
        # Locks that were lost and never released go when there are twice as many as before.
        if len(cls.renewed) >= cls._sweep_at:
            cls.renewed.difference_update([guard for guard in cls.renewed.copy() if not guard.hold().held])
            cls._sweep_at = max(64, 2 * len(cls.renewed))


class Local(Protocol):
    """Where a lock keeps its token. Users of redis-py set `token` to that of another process."""

    token: bytes | None
    held: Held | None


_per_thread: dict[type, type[Local]] = {}


def _local() -> Local:
    """A `threading.local` with the attributes of Local. gevent and eventlet replace its class, perhaps after our import."""
    base = threading.local
    if base not in _per_thread:
        _per_thread[base] = type("_PerThread", (base,), {"token": None, "held": None})
    return _per_thread[base]()


class _Shared:
    token: bytes | None = None
    held: Held | None = None


class BaseLock(Generic[C]):
    """The parameters and attributes of redis-py's locks, and all that needs no waiting."""

    _clients: ClassVar[Clients[Any]]
    _own_client: ClassVar[type[BaseClient]]

    def __init__(
        self,
        redis: RedisClient | C,
        name: str | bytes | memoryview,
        timeout: float | None = None,
        sleep: float = 0.1,
        blocking: bool = True,
        blocking_timeout: float | None = None,
        thread_local: bool = True,
        raise_on_release_error: bool = True,
        *,
        on_lost: OnLost | None = None,
    ) -> None:
        self.redis = redis
        self.name = name
        self.timeout = timeout
        self.sleep = sleep
        self.blocking = blocking
        self.blocking_timeout = blocking_timeout
        self.thread_local: bool = bool(thread_local)
        self.raise_on_release_error = raise_on_release_error
        self.on_lost: OnLost | None = self._callback(on_lost)
        self.local: Local = _local() if self.thread_local else _Shared()
        self._client = self._find_client()

    def _callback(self, on_lost: OnLost | None) -> OnLost | None:
        """Checks a callback, as the client's own locks do."""
        raise NotImplementedError

    def _find_client(self) -> C:
        if isinstance(self.redis, BaseClient):
            if not isinstance(self.redis, self._own_client):
                raise TypeError(f"{self.redis!r} is not a {self._own_client!r}")
            return self.redis
        client: C = self._clients.of(self.redis)
        return client

    def _core(self) -> _redlatch.Lock:
        """The lock of the core, on a client of this process."""
        if self._client._core.forked:
            self._client = self._find_client()
        self._client._start()
        name = self.name if isinstance(self.name, str) else bytes(self.name).decode()
        # With a time-out, only a release or the time ends the lock: not the end of the program or of this object.
        return self._client._core.lock(name, {"kind": "redis-py", "linger": bool(self.timeout)})

    def _lease(self) -> float | None:
        """None for the watchdog."""
        if not self.timeout:
            return None
        return _redlatch.seconds("lease", float(self.timeout), called="timeout")

    def _wait(self, blocking: bool | None, blocking_timeout: float | None) -> float | None:
        """How long to wait: None for ever, 0 to try once."""
        if blocking is None:
            blocking = self.blocking
        if blocking_timeout is None:
            blocking_timeout = self.blocking_timeout
        if not blocking:
            return 0
        if blocking_timeout is None or blocking_timeout > LONGEST_WAIT:
            return None
        return max(float(blocking_timeout), 0)

    def _encoded(self, token: object) -> bytes:
        """A token as redis-py sends it."""
        if isinstance(token, bytes):
            return token
        if isinstance(self.redis, BaseClient):
            return str(token).encode()
        client: Any = self.redis
        return bytes(client.get_encoder().encode(token))

    def _keep(self, held: Held) -> None:
        self.local.held, self.local.token = held, held.token

    def _held(self, token: bytes) -> _redlatch.Guard | None:
        """The guard that this process got with this token; None if the token was set by hand."""
        held = self.local.held
        return held.guard if held is not None and held.token == token else None

    def _spend(self, token: bytes) -> _redlatch.Guard | None:
        """The same, before its release. If that fails, the token is still there and can be tried once more."""
        guard = self._held(token)
        if guard is not None:
            self.local.held = None
            Held.renewed.discard(guard)
        return guard

    @contextmanager
    def _releasing(self) -> Iterator[bytes]:
        """The token to release with. If the release fails, the token is there again, to be tried once more."""
        token = self.local.token
        if token is None:
            raise lock_error(NOT_RELEASABLE, self.name)
        # Before the release: after it somebody else may have acquired with this object, and put a token here.
        self.local.token = None
        try:
            yield token
        except LockNotOwnedError:
            raise
        except BaseException:
            self.local.token = self.local.token or token
            raise

    def _to_extend(self, what: str) -> bytes:
        if self.local.token is None:
            raise lock_error(f"Cannot {what} an unlocked lock", self.name)
        if not self.timeout:
            raise lock_error(f"Cannot {what} a lock with no timeout", self.name)
        return self.local.token


def text_of(token: bytes) -> str:
    try:
        return token.decode()
    except UnicodeDecodeError:
        raise InvalidArgumentError(f"invalid_argument: the token {token!r} is not UTF-8; encode it") from None


def is_owner(rows: list[HolderRow], token: bytes | None) -> bool:
    return token is not None and any(row[0].encode() == token for row in rows)


def longer(rows: list[HolderRow], token: bytes, seconds: float, *, replace: bool) -> float | None:
    """How long the lock has to live from now; None if it does so already, as it is never shortened."""
    remaining = rows[0][2] if is_owner(rows, token) else None
    if remaining is None:
        raise NotOwnerError("not_owner: the key has another token or no time-out")
    wanted = float(seconds) if replace else remaining + float(seconds)
    return wanted if wanted > remaining else None
