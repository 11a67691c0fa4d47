"""Read by mypy --strict, never run: what users write must be understood, and what is wrong must be refused."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import redis
import redis.asyncio
import redlatch
from redlatch import aio
from redlatch.compat import redispy
from redlatch.compat.redispy import aio as redispy_aio


def threads() -> None:
    with redlatch.Client("redis://localhost", watchdog_lease=10.0, tracking=False) as client:
        lock = client.connect().lock("a", timeout=2, lease=1.5, fencing=True, on_lost=told)
        with lock as grant:
            token: int | None = grant.fencing_token
            remaining: float = grant.remaining
            grant.check()
            print(token, remaining, grant.lost_reason)
        held: bool = lock.acquire(timeout=1, lease=5)
        holder: redlatch.Holder | None = lock.holder()
        if holder is not None:
            print(holder.owner, holder.count + 1, holder.remaining)
        queue: list[redlatch.Holder] = client.lock("b", kind="fair").waiters()
        print(queue)
        print(held, lock.locked() and lock.owned(), lock.hold_count + 1)
        unreleased: list[str] = client.close()
        print(unreleased)
        client.lock("a", leese=1)  # type: ignore[call-arg]
        client.lock("a", lease="soon")  # type: ignore[arg-type]

    options: redlatch.LockOptions = {"lease": 5, "fencing": True}
    with contextlib.ExitStack() as stack:
        entered: redlatch.Grant = stack.enter_context(client.lock("a", **options))
        permit: redlatch.Grant = stack.enter_context(client.semaphore("gpu", limit=2))
        print(entered, permit)
    # typeshed knows the two classes of the standard library alone.
    condition = threading.Condition(lock)  # type: ignore[arg-type]
    print(condition)

    seats = client.plain_semaphore("seats", timeout=2.5)
    with seats:
        set_now: bool = seats.try_set_permits(5)
    taken: bool = seats.acquire(timeout=1, permits=2)
    numbers: list[int] = [seats.add_permits(-1), seats.drain(), seats.available()]
    ready: redlatch.Latch = client.latch("ready")
    is_open: bool = ready.try_set_count(2) and ready.wait(timeout=1)
    numbers += [ready.count_down(), ready.count()]
    print(set_now, taken, numbers, is_open)
    client.plain_semaphore("seats", lease=1)  # type: ignore[call-arg]
    seats.acquire(permits="2")  # type: ignore[arg-type]

    @client.locked("name")
    def plain(number: int) -> str:
        return str(number)

    text: str = plain(1)
    plain("1")  # type: ignore[arg-type]
    print(text)
    client.locked("x", timeot=3)  # type: ignore[call-arg]
    client.locked("x", lease="5s")  # type: ignore[arg-type]
    client.locked("x", timeout=3, lease=5, on_lost=told, canceller=redlatch.Canceller())(told)


def told(lost: redlatch.LockLostError) -> None:
    reason: redlatch.LostReason | None = lost.reason
    name: str | None = lost.lock_name
    print(reason, name)


async def tasks() -> None:
    async with aio.Client() as client:
        lock = client.lock("a", timeout=2, cancel_on_lost=True)
        async with lock as grant:
            await grant.extend(3)
            await grant.release()
        held: bool = await asyncio.wait_for(lock.acquire(blocking=False), 1)
        print(held, await lock.locked(), lock.owned())
        await lock.release()

        async with client.plain_semaphore("seats") as nothing:
            print(nothing)
        async with contextlib.AsyncExitStack() as stack:
            entered: aio.Grant = await stack.enter_async_context(lock)
            permit: aio.Grant = await stack.enter_async_context(client.semaphore("gpu", limit=2))
            both: aio.Grant = await stack.enter_async_context(client.multi_lock([lock, "b"]))
            await stack.enter_async_context(client.plain_semaphore("seats"))
            print(entered, permit, both)
        seats: aio.PlainSemaphore = client.plain_semaphore("seats")
        is_open: bool = await seats.acquire() and await client.latch("ready").wait(1)
        print(is_open, await client.latch("ready").count_down() + 1)

        @client.locked("name:{number}", timeout=1, cancel_on_lost=True)
        async def function(number: int) -> str:
            return str(number)

        text: str = await function(1)
        print(text)


def with_redispy_s_interface(client: redlatch.Client, other: redis.Redis) -> None:
    lock = redispy.Lock(client, "a", timeout=2.5, on_lost=told)
    got: bool = lock.acquire(blocking_timeout=1, token=b"mine")
    token: bytes | None = lock.local.token
    with redispy.Redis().lock("b") as made, redispy.Lock(other, b"c"):
        made.extend(1, replace_ttl=True)
    redispy.Lock("redis://localhost", "a")  # type: ignore[arg-type]
    print(got, token, lock.owned())


async def with_redispy_s_asyncio_interface(client: aio.Client, other: redis.asyncio.Redis) -> None:
    async with redispy_aio.Lock(client, "a") as lock, redispy_aio.Lock(other, "b"):
        got: bool = await lock.acquire(blocking=False)
        print(got, await lock.reacquire())
