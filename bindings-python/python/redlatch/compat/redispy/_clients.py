"""The redlatch client behind a redis-py client: one for each server, log-in and database, in each process."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar
from urllib.parse import quote, urlencode

from redlatch._base import BaseClient

C = TypeVar("C", bound=BaseClient)
Settings = tuple[str, tuple[tuple[str, Any], ...]]

REMEDY = "give the lock a redlatch client in its place"


class HasPool(Protocol):
    """A client of redis-py (or of valkey-py, which is the same in this)."""

    @property
    def connection_pool(self) -> Any: ...


class Clients(Generic[C]):
    """The clients of this process that were made here; closed when the program exits, as all clients are."""

    def __init__(self, make: Callable[..., C]) -> None:
        self._make = make
        self._forget()
        # A child makes its own.
        if sys.platform != "win32":
            os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._clients: dict[Settings, C] = {}

    def of(self, redis: HasPool) -> C:
        """The client for what this one is connected to. No I/O."""
        settings = settings_of(redis)
        with self._lock:
            if settings not in self._clients:
                url, options = settings
                self._clients[settings] = self._make(url, **dict(options))
            return self._clients[settings]


def settings_of(redis: HasPool) -> Settings:
    """URL and options of a client that connects to the same place as this one."""
    pool = getattr(redis, "connection_pool", None)
    if pool is None:
        raise TypeError(f"{_kind(redis)} has no connection pool, as a client of a cluster has none: {REMEDY}")
    if hasattr(pool, "sentinel_manager"):
        raise TypeError(f"{_kind(redis)} finds its server through Sentinel: {REMEDY}")
    given: dict[str, Any] = pool.connection_kwargs
    user, password = _login(redis, given)
    options = tuple((ours, given[theirs]) for theirs, ours in _OPTIONS.items() if given.get(theirs))
    if _is_tls(pool):
        raise TypeError(f"{_kind(redis)} speaks TLS, which is not taken over: {REMEDY}")
    if _is_fake(pool):
        raise TypeError(
            f"{_kind(redis)} has no server, and redlatch needs a real one: give the lock a client of a "
            "redlatch.testing.Server, or of the fixture redlatch_url"
        )
    if path := given.get("path"):
        return _unix_url(path, given.get("db"), user, password), options
    return _tcp_url(given, user, password), options


def _kind(redis: HasPool) -> str:
    """The client for people: all that it is made of fills a screen, and older versions show a password."""
    return f"this {type(redis).__module__}.{type(redis).__qualname__}"


_OPTIONS = {"socket_connect_timeout": "connect_timeout"}
"""Arguments of redis-py's connections, and the options that mean the same."""


def _login(redis: HasPool, given: dict[str, Any]) -> tuple[str, str]:
    if given.get("credential_provider") is not None:
        raise TypeError(f"{_kind(redis)} asks a credential provider for its password: {REMEDY}")
    return _text(given.get("username")), _text(given.get("password"))


def _text(value: str | bytes | None) -> str:
    return value.decode() if isinstance(value, bytes) else value or ""


def _is_tls(pool: Any) -> bool:
    return any(base.__name__ == "SSLConnection" for base in pool.connection_class.__mro__)


def _is_fake(pool: Any) -> bool:
    # Its connections name a host that is not there.
    return any(base.__module__.partition(".")[0] == "fakeredis" for base in pool.connection_class.__mro__)


def _tcp_url(given: dict[str, Any], user: str, password: str) -> str:
    login = f"{quote(user, safe='')}:{quote(password, safe='')}@" if user or password else ""
    host = given.get("host") or "localhost"
    place = f"[{host}]" if ":" in host else host
    return f"redis://{login}{place}:{given.get('port') or 6379}/{given.get('db') or 0}"


def _unix_url(path: str, database: object, user: str, password: str) -> str:
    query = {"db": database, "user": user, "pass": password}
    text = urlencode({key: value for key, value in query.items() if value}, quote_via=quote)
    return f"unix://{quote(path)}" + (f"?{text}" if text else "")
