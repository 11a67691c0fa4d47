"""The conformance driver of redis-py's locks, and of a lock that writes what Go's redsync writes.

foreign.py threads|asyncio
"""

from __future__ import annotations

import base64
import os
import random
import time
from typing import Any

import redis
import redis.asyncio
import redis.asyncio.lock
import redis.lock
from face import ASYNCIO, Actors, Job, done, seconds
from redis.exceptions import LockError, ResponseError

# Neither renews: what has no lease given must outlast the row.
LONG = 30.0


class Redsync:
    """One try after another, on one server; the scripts compare the value."""

    RELEASE = (
        "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end"
    )
    EXTEND = (
        "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2])"
        " else return 0 end"
    )

    def __init__(self, client: redis.Redis, name: str, timeout: float) -> None:
        self.client, self.name, self.timeout = client, name, timeout
        self.value = base64.b64encode(os.urandom(16)).decode()

    def acquire(self, blocking: bool, blocking_timeout: float | None) -> bool:
        end = None if blocking_timeout is None else time.monotonic() + blocking_timeout
        while True:
            if self.client.set(self.name, self.value, nx=True, px=round(self.timeout * 1000)):
                return True
            delay = random.uniform(0.05, 0.25)
            if not blocking or (end is not None and time.monotonic() + delay > end):
                return False
            time.sleep(delay)

    def release(self) -> None:
        if not self.client.eval(self.RELEASE, 1, self.name, self.value):
            raise LockError("taken by somebody else, or expired")

    def extend(self, lease: float, replace_ttl: bool) -> None:
        if not self.client.eval(self.EXTEND, 1, self.name, self.value, round(lease * 1000)):
            raise LockError("taken by somebody else, or expired")

    def owned(self) -> bool:
        return self.client.get(self.name) == self.value.encode()

    def locked(self) -> bool:
        return self.client.get(self.name) is not None


theirs: Any = redis.asyncio if ASYNCIO else redis
KINDS: dict[str, Any] = {"redis-py": theirs.lock.Lock, "redsync": Redsync}


def failure(error: Exception) -> Job | None:
    if isinstance(error, LockError):
        return {"status": "not_owner", "text": str(error)}
    if isinstance(error, ResponseError):
        return {"status": "foreign_kind" if "WRONGTYPE" in str(error) else "error", "text": str(error)}
    return None


class Driver:
    def __init__(self) -> None:
        self.clients: dict[str, tuple[Any, Any]] = {}
        self.locks: dict[tuple[str, str, str], Any] = {}

    async def perform(self, request: Job) -> Job:
        op = request["op"]
        if op == "hello":
            return {"version": redis.__version__ if request["side"] != "redsync" else "values"}
        if op == "open":
            self.clients[request["client"]] = (
                theirs.Redis.from_url(request["url"]),
                KINDS[request["kind"]],
            )
            return {}
        client, kind = self.clients[request["client"]]
        if op == "close":
            await done(client.aclose() if ASYNCIO else client.close())
            return {}
        place = (request["client"], request["as"], request["lock"])
        if op == "acquire":
            lock = kind(client, request["lock"], timeout=seconds(request, "lease_ms") or LONG)
            wait = seconds(request, "wait_ms")
            if not await done(lock.acquire(blocking=wait != 0, blocking_timeout=wait or None)):
                return {"status": "timeout"}
            self.locks[place] = lock
            return {"token": None}
        lock = self.locks.get(place) or kind(client, request["lock"], timeout=LONG)
        if op == "release":
            await done(lock.release())
        elif op == "extend":
            await done(lock.extend(request["lease_ms"] / 1000, replace_ttl=True))
        elif op in ("held", "locked"):
            return {"value": await done(lock.locked() if op == "locked" else lock.owned())}
        elif op != "crash":  # nobody renews: nothing needs to be stopped
            return {"status": "unsupported"}
        return {}


if __name__ == "__main__":
    Actors(Driver().perform, failure).serve()
