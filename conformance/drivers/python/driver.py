"""The program of both Python faces; see conformance/drivers/README.md.

driver.py threads|asyncio [act JSON]
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import counters
import redlatch
from face import ASYNCIO, Actors, Job, done, enter, leave, seconds, usage
from redlatch import _redlatch, aio
from turn import Turn

Client: Any = aio.Client if ASYNCIO else redlatch.Client


def failure(error: Exception) -> Job | None:
    if not isinstance(error, redlatch.LockError):
        return None
    reply = {"status": error.kind, "text": str(error)}
    return reply | ({"reason": error.reason} if isinstance(error, redlatch.LockLostError) else {})


def hello() -> Job:
    return {
        "language": "asyncio" if ASYNCIO else "python",
        "version": _redlatch.__version__,
        "errors": {row[1]: row[0] for row in _redlatch.error_kinds()},
        "reasons": {row[1]: row[0] for row in _redlatch.lost_reasons()},
        "options": [row[0] for row in _redlatch.options()],
    }


def client_options(request: Job) -> dict[str, Any]:
    # The locks that scenarios re-enter in every language. Here that has to be asked for.
    options = {"watchdog_lease": request["watchdog_ms"] / 1000}
    if request.get("kind", "reentrant") in ("reentrant", "fair"):
        options["reentrant"] = True
    for name in ("recheck", "restart_delay"):
        if f"{name}_ms" in request:
            options[name] = request[f"{name}_ms"] / 1000
    if "preference_ms" in request:
        options["writer_preference"] = request["preference_ms"] / 1000
    same = ("fencing", "cluster_pubsub", "kind", "reentrant")
    return options | {name: request[name] for name in same if name in request}


def lock_of(client: Any, request: Job, **options: Any) -> Any:
    """The lock itself, or one side of the read-write lock of that name, or the multi lock."""
    if "multi" in request:
        return client.multi_lock(request["lock"].split(","), **options)
    if "kind" in request:
        return client.lock(request["lock"], kind=request["kind"], reentrant=False, **options)
    if "side" not in request:
        return client.lock(request["lock"], **options)
    return getattr(client.rw_lock(request["lock"], **options), request["side"])


class Permits:
    """The part of a semaphore that an actor thread has."""

    def __init__(self, client: Any, name: str, limit: int, fair: bool) -> None:
        self.told: Future[redlatch.LockLostError] = Future()
        self.semaphore = client.semaphore(name, limit=limit, fair=fair, on_lost=self.told.set_result)
        self.taken: list[int] = []

    async def ask(self, request: Job) -> Job:
        op, semaphore, permits = request["op"], self.semaphore, request.get("permits", 1)
        if op == "acquire":
            wait, lease = seconds(request, "wait_ms"), seconds(request, "lease_ms")
            won = await done(semaphore.acquire(timeout=wait, permits=permits, lease=lease))
            self.taken += [permits] if won else []
            return {} if won else {"status": "timeout"}
        if op == "release":
            await done(semaphore.release(self.taken.pop() if self.taken else 1))
        elif op == "set":
            await done(semaphore.set_permits(permits))
        elif op == "permits":
            found = await done(semaphore.permits())
            return {"free": found.available, "limit": found.limit}
        elif op == "holders":
            return {"value": sum(holder.count for holder in await done(semaphore.holders()))}
        elif op == "force":
            return {"value": await done(semaphore.force_release())}
        elif op == "lost":
            return await reason_of(self.told, request)
        else:
            return {"status": "unsupported"}
        return {}


async def reason_of(told: Future[redlatch.LockLostError], request: Job) -> Job:
    """Waits until a loss is told."""
    within = request["within_ms"] / 1000
    try:
        waiting = asyncio.wait_for(asyncio.wrap_future(told), within) if ASYNCIO else told.result(within)
        return {"reason": (await done(waiting)).reason}
    except TimeoutError:
        return {"status": "timeout"}


class Driver:
    # Writes a line that answers no request.
    tell: Callable[[Job], None]

    def __init__(self) -> None:
        self.semaphores: dict[tuple[str, str, str, int], Permits] = {}
        self.clients: dict[str, Any] = {}
        self.entered: dict[tuple[str, str, str, str], list[tuple[Any, Any]]] = defaultdict(list)

    def grants(self, request: Job) -> list[tuple[Any, Any]]:
        return self.entered[request["client"], request["as"], request["lock"], request.get("side", "")]

    async def perform(self, request: Job) -> Job:
        op, name = request["op"], request.get("client", "")
        if op == "hello":
            return hello()
        if op == "open":
            client = Client(request["url"], **client_options(request))
            await done(client.connect())
            self.clients[name] = client
            return {}
        if op == "usage":
            memory, threads, files = usage()
            stats = self.clients[name].stats() if name in self.clients else {}
            return {"memory": memory, "threads": threads, "files": files, **stats}
        if op == "forget":
            del self.clients[name]
            return {}
        client = self.clients[name]
        if op == "close":
            return {"value": await done(client.close())}
        if op == "turn":
            return await self.turn(client, request)
        if "counter" in request:
            return await counters.ask(client, request)
        if "limit" in request:
            seat = (name, request["as"], request["lock"], request["limit"])
            if seat not in self.semaphores:
                self.semaphores[seat] = Permits(client, *seat[2:], request.get("fair", False))
            return await self.semaphores[seat].ask(request)
        if op == "acquire":
            return await self.acquire(client, request)
        return await self.ask(op, request, lock_of(client, request))

    async def turn(self, client: Any, request: Job) -> Job:
        turn = Turn(request, self.tell)
        if turn.permits:
            return await turn.play(
                client.semaphore(request["lock"], limit=request["limit"], on_lost=turn.lost)
            )
        lease = {"lease": seconds(request, "lease_ms")} if "lease_ms" in request else {}
        return await turn.play(
            lock_of(client, request, timeout=seconds(request, "wait_ms"), on_lost=turn.lost, **lease)
        )

    async def acquire(self, client: Any, request: Job) -> Job:
        wait, lease = seconds(request, "wait_ms"), seconds(request, "lease_ms")
        lock = lock_of(client, request, timeout=wait, **({} if lease is None else {"lease": lease}))
        if "token" in request:
            patience = -1 if wait is None else wait
            won = await done(lock.acquire(timeout=patience, token=request["token"]))
            return {"status": "ok" if won else "timeout", "token": None}
        grant = await done(enter(lock))
        self.grants(request).append((lock, grant))
        if "extend_ms" in request:
            await done(grant.extend(request["extend_ms"] / 1000))
        return {"token": grant.fencing_token}

    async def ask(self, op: str, request: Job, lock: Any) -> Job:
        if op == "release":
            grants = self.grants(request)
            await done(leave(grants.pop()[0]) if grants else lock.release())
        elif op == "adopt":
            await done(lock.adopt(request["token"]))
        elif op == "extend":
            await done(lock.extend(request["lease_ms"] / 1000))
        elif op == "force":
            return {"value": await done(lock.force_release())}
        elif op == "held":
            return {"value": lock.owned()}
        elif op == "count":
            return {"value": lock.hold_count}
        elif op == "locked":
            return {"value": await done(lock.locked())}
        elif op == "holder":
            holder = await done(lock.holder())
            return {"value": holder and {"owner": holder.owner, "count": holder.count}}
        elif op == "lost":
            return await self.lost(request)
        elif op == "fork" and not ASYNCIO:
            return fork(lock)
        else:
            return {"status": "unsupported"}
        return {}

    async def lost(self, request: Job) -> Job:
        told: Future[redlatch.LockLostError] = Future()
        _, grant = self.grants(request)[-1]
        grant.on_lost(told.set_result)
        return await reason_of(told, request)


def fork(lock: redlatch.Lock) -> Job:
    """A child process is told this when it uses the parent's client."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            lock.acquire(timeout=1)
            os.write(writing, b"ok")
        except redlatch.LockError as error:
            os.write(writing, error.kind.encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        status = pipe.read().decode()
    os.waitpid(child, 0)
    return {"status": status}


def main(mode: str = "", plan: str = "{}") -> int:
    if mode == "act":
        import acts

        return acts.play(acts.Act(**json.loads(plan)))
    driver = Driver()
    actors = Actors(driver.perform, failure)
    driver.tell = actors.write
    actors.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[2:]))
