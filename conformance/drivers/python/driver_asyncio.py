"""The conformance driver of asyncio; see conformance/README.md for the protocol.

Every actor thread is a task that lives as long as its client, since the task is the owner.
"""

import asyncio
import sys
from collections import defaultdict
from typing import Any

import redlatch
from protocol import answer, client_options, failure, hello, lock_options, patience
from redlatch import aio

Job = dict[str, Any]


class Driver:
    def __init__(self) -> None:
        self.clients: dict[str, aio.Client] = {}
        self.entered: dict[tuple[str, str, str], list[tuple[aio.Lock, aio.Grant]]] = defaultdict(list)
        self.tasks: dict[tuple[str, str], tuple[asyncio.Queue[Job], asyncio.Task[None]]] = {}
        self.running: dict[int, asyncio.Task[None]] = {}

    def take(self, request: Job) -> None:
        if request["op"] == "cancel":
            task = self.running.get(request["target"])
            if task is not None:
                task.cancel()
            answer(request, {"status": "ok" if task is not None else "not_found"})
            return
        name = (request.get("client", ""), request.get("as", "main"))
        if name not in self.tasks:
            jobs: asyncio.Queue[Job] = asyncio.Queue()
            self.tasks[name] = (jobs, asyncio.create_task(self.work(jobs)))
        self.tasks[name][0].put_nowait(request)

    async def work(self, jobs: "asyncio.Queue[Job]") -> None:
        me = asyncio.current_task()
        assert me is not None
        while True:
            request = await jobs.get()
            self.running[request["id"]] = me
            try:
                reply = await self.perform(request)
            except redlatch.LockError as error:
                reply = failure(error)
            except asyncio.CancelledError:
                reply = {"status": "cancelled"}
            self.running.pop(request["id"], None)
            answer(request, reply)

    def grants(self, request: Job) -> list[tuple[aio.Lock, aio.Grant]]:
        return self.entered[request["client"], request["as"], request["lock"]]

    async def perform(self, request: Job) -> dict[str, Any]:
        op, name = request["op"], request.get("client", "")
        if op == "hello":
            return hello("asyncio")
        if op == "open":
            client = aio.Client(request["url"], **client_options(request))
            await client.connect()
            self.clients[name] = client
            return {"status": "ok"}
        client = self.clients[name]
        if op == "close":
            return {"status": "ok", "value": await client.close()}
        if op == "acquire":
            lock = client.lock(request["lock"], **lock_options(name, request))
            if "token" in request:
                won = await lock.acquire(timeout=patience(request), token=request["token"])
                return {"status": "ok" if won else "timeout", "token": None}
            grant = await lock.__aenter__()
            self.grants(request).append((lock, grant))
            if "extend_ms" in request:
                await grant.extend(request["extend_ms"] / 1000)
            return {"status": "ok", "token": grant.fencing_token}
        return await self.ask(op, request, client.lock(request["lock"]))

    async def ask(self, op: str, request: Job, lock: aio.Lock) -> dict[str, Any]:
        if op == "release":
            if grants := self.grants(request):
                entered, _ = grants.pop()
                await entered.__aexit__(None, None, None)
            else:
                await lock.release()
        elif op == "extend":
            await lock.extend(request["lease_ms"] / 1000)
        elif op == "force":
            return {"status": "ok", "value": await lock.force_release()}
        elif op == "held":
            return {"status": "ok", "value": lock.owned()}
        elif op == "count":
            return {"status": "ok", "value": lock.hold_count}
        elif op == "locked":
            return {"status": "ok", "value": await lock.locked()}
        elif op == "holder":
            holder = await lock.holder()
            return {"status": "ok", "value": holder and {"owner": holder.owner, "count": holder.count}}
        elif op == "lost":
            return await self.lost(request)
        else:
            return {"status": "unsupported"}
        return {"status": "ok"}

    async def lost(self, request: Job) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        told: asyncio.Future[redlatch.LockLostError] = loop.create_future()
        _, grant = self.grants(request)[-1]
        grant.on_lost(lambda error: loop.call_soon_threadsafe(told.set_result, error))
        try:
            error = await asyncio.wait_for(told, request["within_ms"] / 1000)
        except asyncio.TimeoutError:
            return {"status": "timeout"}
        return {"status": "ok", "reason": error.reason}


async def main() -> None:
    import json

    driver = Driver()
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        driver.take(json.loads(line))


if __name__ == "__main__":
    asyncio.run(main())
