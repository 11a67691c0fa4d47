"""The conformance driver of redis-py's `redis.asyncio.lock.Lock`."""

import asyncio
import json
import sys
from typing import Any

import redis
from lines import answer, seconds
from redis.asyncio import Redis
from redis.asyncio.lock import Lock
from redis.exceptions import LockError, ResponseError

Job = dict[str, Any]
# It does not renew: what has no lease given must outlast the row.
LONG = 30.0


class Driver:
    def __init__(self) -> None:
        self.clients: dict[str, Redis] = {}
        self.locks: dict[tuple[str, str, str], Lock] = {}
        self.tasks: dict[tuple[str, str], tuple[asyncio.Queue[Job], asyncio.Task[None]]] = {}

    def take(self, request: Job) -> None:
        name = (request.get("client", ""), request.get("as", "main"))
        if name not in self.tasks:
            jobs: asyncio.Queue[Job] = asyncio.Queue()
            self.tasks[name] = (jobs, asyncio.create_task(self.work(jobs)))
        self.tasks[name][0].put_nowait(request)

    async def work(self, jobs: "asyncio.Queue[Job]") -> None:
        while True:
            request = await jobs.get()
            try:
                reply = await self.perform(request)
            except LockError as error:
                reply = {"status": "not_owner", "text": str(error)}
            except ResponseError as error:
                reply = {
                    "status": "foreign_kind" if "WRONGTYPE" in str(error) else "error",
                    "text": str(error),
                }
            answer(request, reply)

    async def perform(self, request: Job) -> dict[str, Any]:
        op = request["op"]
        if op == "hello":
            return {"status": "ok", "version": redis.__version__}
        if op == "open":
            self.clients[request["client"]] = Redis.from_url(request["url"])
            return {"status": "ok"}
        client = self.clients[request["client"]]
        if op == "close":
            await client.aclose()
            return {"status": "ok"}
        place = (request["client"], request["as"], request["lock"])
        if op == "acquire":
            lock = Lock(client, request["lock"], timeout=seconds(request, "lease_ms") or LONG)
            wait = seconds(request, "wait_ms")
            if not await lock.acquire(blocking=wait != 0, blocking_timeout=wait or None):
                return {"status": "timeout"}
            self.locks[place] = lock
            return {"status": "ok", "token": None}
        return await self.ask(
            op, request, self.locks.get(place) or Lock(client, request["lock"], timeout=LONG)
        )

    async def ask(self, op: str, request: Job, lock: Lock) -> dict[str, Any]:
        if op == "release":
            await lock.release()
        elif op == "extend":
            await lock.extend(request["lease_ms"] / 1000, replace_ttl=True)
        elif op == "held":
            return {"status": "ok", "value": await lock.owned()}
        elif op == "locked":
            return {"status": "ok", "value": await lock.locked()}
        elif op != "crash":  # nobody renews: nothing needs to be stopped
            return {"status": "unsupported"}
        return {"status": "ok"}


async def main() -> None:
    driver = Driver()
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        driver.take(json.loads(line))


if __name__ == "__main__":
    asyncio.run(main())
