"""The conformance driver of redis-py's `Lock`, and of a lock that writes what Go's redsync writes.

Every actor thread is a real thread, since redis-py keeps its token there.
"""

import base64
import os
import queue
import random
import threading
import time
from typing import Any

import redis
from lines import answer, lines, seconds
from redis.exceptions import LockError, ResponseError
from redis.lock import Lock

Job = dict[str, Any]
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

    def __init__(self, client: "redis.Redis", name: str, timeout: float) -> None:
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


KINDS: dict[str, Any] = {"redis-py": Lock, "redsync": Redsync}


class Driver:
    def __init__(self) -> None:
        self.clients: dict[str, tuple[redis.Redis, Any]] = {}
        self.locks: dict[tuple[str, str, str], Any] = {}
        self.threads: dict[tuple[str, str], queue.SimpleQueue[Job]] = {}

    def take(self, request: Job) -> None:
        name = (request.get("client", ""), request.get("as", "main"))
        if name not in self.threads:
            self.threads[name] = queue.SimpleQueue()
            threading.Thread(target=self.work, args=(self.threads[name],), daemon=True).start()
        self.threads[name].put(request)

    def work(self, jobs: "queue.SimpleQueue[Job]") -> None:
        while True:
            request = jobs.get()
            try:
                reply = self.perform(request)
            except LockError as error:
                reply = {"status": "not_owner", "text": str(error)}
            except ResponseError as error:
                reply = {
                    "status": "foreign_kind" if "WRONGTYPE" in str(error) else "error",
                    "text": str(error),
                }
            answer(request, reply)

    def perform(self, request: Job) -> dict[str, Any]:
        op = request["op"]
        if op == "hello":
            return {
                "status": "ok",
                "version": redis.__version__ if request["side"] != "redsync" else "values",
            }
        if op == "open":
            kind = KINDS[request["kind"]]
            self.clients[request["client"]] = (redis.Redis.from_url(request["url"]), kind)
            return {"status": "ok"}
        client, kind = self.clients[request["client"]]
        if op == "close":
            client.close()
            return {"status": "ok"}
        place = (request["client"], request["as"], request["lock"])
        if op == "acquire":
            lock = kind(client, request["lock"], timeout=seconds(request, "lease_ms") or LONG)
            wait = seconds(request, "wait_ms")
            if not lock.acquire(blocking=wait != 0, blocking_timeout=wait or None):
                return {"status": "timeout"}
            self.locks[place] = lock
            return {"status": "ok", "token": None}
        return self.ask(op, request, self.locks.get(place) or kind(client, request["lock"], timeout=LONG))

    def ask(self, op: str, request: Job, lock: Any) -> dict[str, Any]:
        if op == "release":
            lock.release()
        elif op == "extend":
            lock.extend(request["lease_ms"] / 1000, replace_ttl=True)
        elif op == "held":
            return {"status": "ok", "value": lock.owned()}
        elif op == "locked":
            return {"status": "ok", "value": lock.locked()}
        elif op != "crash":  # nobody renews: nothing needs to be stopped
            return {"status": "unsupported"}
        return {"status": "ok"}


def main() -> None:
    driver = Driver()
    for request in lines():
        driver.take(request)
    os._exit(0)


if __name__ == "__main__":
    main()
