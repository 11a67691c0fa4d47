"""Requests about a plain semaphore or a latch."""

from __future__ import annotations

from typing import Any

from face import Job, done, seconds


async def ask(client: Any, request: Job) -> Job:
    name, counter = request["lock"], request["counter"]
    if counter == "plain-semaphore":
        return await of_semaphore(client.plain_semaphore(name), request)
    return await of_latch(client.latch(name), request)


async def of_semaphore(semaphore: Any, request: Job) -> Job:
    op, permits = request["op"], request.get("permits", 1)
    if op == "acquire":
        won = await done(semaphore.acquire(timeout=seconds(request, "wait_ms"), permits=permits))
        return {} if won else {"status": "timeout"}
    if op == "release":
        await done(semaphore.release(permits))
    elif op == "set":
        return {"value": await done(semaphore.try_set_permits(permits))}
    elif op == "add":
        await done(semaphore.add_permits(permits))
    elif op == "drain":
        return {"value": await done(semaphore.drain())}
    elif op == "permits":
        return {"value": await done(semaphore.available())}
    else:
        return {"status": "unsupported"}
    return {}


async def of_latch(latch: Any, request: Job) -> Job:
    op, number = request["op"], request.get("number", 1)
    if op == "wait":
        opened = await done(latch.wait(seconds(request, "wait_ms")))
        return {} if opened else {"status": "timeout"}
    if op == "set":
        return {"value": await done(latch.try_set_count(number))}
    if op == "down":
        await done(latch.count_down(number))
        return {}
    if op == "count":
        return {"value": await done(latch.count())}
    return {"status": "unsupported"}
