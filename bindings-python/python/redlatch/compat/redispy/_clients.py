"""The redlatch client behind a redis-py client: one for each server, log-in and database, in each process."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

from redlatch._base import BaseClient
from redlatch._typing import RedisClient
from redlatch.compat._settings import Settings, settings_of

C = TypeVar("C", bound=BaseClient)


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
        self._of_cluster: WeakKeyDictionary[RedisClient, Settings] = WeakKeyDictionary()

    def of(self, redis: RedisClient) -> C:
        """The client for what this one is connected to. No I/O."""
        settings = settings_of(redis)
        with self._lock:
            if hasattr(redis, "nodes_manager"):
                # The first ones stay: its nodes are others whenever it has asked the cluster for them.
                settings = self._of_cluster.setdefault(redis, settings)
            if settings not in self._clients:
                url, options = settings
                self._clients[settings] = self._make(url, **dict(options))
            return self._clients[settings]
