"""One act of the fault matrix, in Python with asyncio; see README.md for the acts."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any

import redlatch
from act import (
    PATIENCE,
    Act,
    at_rest,
    counted,
    ensure,
    hold_the_gil,
    in_child,
    main,
    ready,
    renewed,
    say,
    say_resources,
    shares,
)
from redlatch import aio


async def open_client(act: Act, *, direct: bool = True) -> aio.Client:
    return await aio.Client(act.url, watchdog_lease=act.lease, direct=direct).connect()


async def until(text: str, holds: Callable[[], object]) -> None:
    """As `eventually`, for what the event loop has to do meanwhile."""
    end = time.monotonic() + PATIENCE
    while not holds():
        ensure(time.monotonic() < end, text)
        await asyncio.sleep(0.002)


async def rest(client: aio.Client) -> None:
    await asyncio.get_running_loop().run_in_executor(None, at_rest, client)


async def works(act: Act, client: aio.Client) -> None:
    """The same client goes on as if nothing had happened."""
    async with client.lock(act.lock, timeout=PATIENCE) as grant:
        ensure(grant.hold_count == 1, "the count is another one")
    await rest(client)
    say("done")
    await client.close()


# ---- parts of the process end ----


async def fork(act: Act) -> None:
    client = await open_client(act)
    lock, entered = client.lock(act.lock), client.lock(f"{act.lock}:entered")
    await lock.acquire()
    grant = await entered.__aenter__()
    waiting = asyncio.create_task(client.lock(act.busy).acquire())
    await until("nobody waits", lambda: client.stats()["waiting"] == 1)

    async def child_loop() -> None:
        for call in (lock.acquire, lock.locked):
            try:
                await call()
            except redlatch.ForkedError:
                continue
            ensure(False, f"{call} does not say that it is forked")
        async with aio.Client(act.url) as own:
            ensure(
                not await own.lock(act.lock).acquire(blocking=False), "the child took what its parent holds"
            )
            async with own.lock(f"{act.lock}:child"):
                pass

    def child() -> None:
        ensure(not grant.held, "the child believes that it holds")
        # Released as the end of an inherited block does it.
        with_nothing_to_wait_for(entered.__aexit__(None, None, None))
        asyncio.run(child_loop())

    in_child(child)
    ready()
    await asyncio.get_running_loop().run_in_executor(None, renewed, client, 3)
    ensure(lock.owned() and lock.hold_count == 1 and grant.held, "the parent does not hold any more")
    await lock.release()
    await entered.__aexit__(None, None, None)
    ensure(await asyncio.wait_for(waiting, PATIENCE), "what the parent waits for does not come")
    await client.close()


def with_nothing_to_wait_for(work: Coroutine[Any, Any, None]) -> None:
    """Runs what ends without suspending."""
    try:
        work.send(None)
    except StopIteration:
        return
    ensure(False, "it waits for something")


async def leave(act: Act) -> None:
    client = await open_client(act)
    await client.lock(act.lock).acquire()
    grant = await client.lock(f"{act.lock}:entered").__aenter__()
    waiting = [asyncio.create_task(client.lock(act.busy).acquire()) for _ in range(2)]
    await until("nobody waits", lambda: client.stats()["waiting"] == 2)
    ready()
    if act.name == "exit-exit":
        sys.exit(3)
    if act.name == "exit-exception":
        raise RuntimeError(f"on purpose, with {grant} and {len(waiting)} tasks")


async def owner_ends(act: Act) -> None:
    client = await open_client(act)

    async def hold() -> None:
        await client.lock(act.lock).acquire()
        ready()

    await asyncio.create_task(hold())
    say("ended")
    await works(act, client)


def runtime_ends(act: Act) -> None:
    """A loop is closed while its tasks hold and wait; what has a grant lives on, and another loop releases it."""
    loop = asyncio.new_event_loop()
    client = loop.run_until_complete(open_client(act))
    outside = client.lock(f"{act.lock}:outside")

    async def hold_and_wait() -> tuple[aio.Grant, asyncio.Task[bool]]:
        await client.lock(act.lock).acquire()
        grant = await outside.__aenter__()
        waiting = asyncio.create_task(client.lock(act.busy).acquire())
        await until("nobody waits", lambda: client.stats()["waiting"] == 1)
        return grant, waiting

    grant, waiting = loop.run_until_complete(hold_and_wait())
    ready()
    loop.close()
    say(f"closed with {waiting.get_name()}")
    renewed(client, 3)
    ensure(grant.held, "a grant does not survive its loop")
    del waiting

    async def go_on() -> None:
        await grant.release()
        await until("the waiter of a closed loop waits", lambda: client.stats()["waiting"] == 0)
        await works(act, client)

    asyncio.run(go_on())


async def collected(act: Act) -> None:
    client = await open_client(act)
    await asyncio.create_task(enter(client.lock(act.lock)))
    ready()
    gc.collect()
    await works(act, client)


async def enter(lock: aio.Lock) -> None:
    await lock.__aenter__()


async def gil(act: Act) -> None:
    await blocked(act, hold_the_gil)


async def blocked(act: Act, block: Callable[[float], None] = time.sleep) -> None:
    """The event loop does nothing for three leases."""
    client = await open_client(act)
    async with client.lock(act.lock) as grant:
        ready()
        block(3 * act.lease)
        grant.check()
        ready()
    ensure(client.stats()["lost"] == 0, "something was lost")
    await works(act, client)


# ---- cancelling ----


class CancelledAt:
    """Awaits something and cancels it at its n-th suspension; says whether there was one."""

    def __init__(self, work: Awaitable[None], turn: int) -> None:
        self.work, self.turn, self.cancelled = work, turn, False

    def __await__(self) -> Generator[Any, Any, bool]:
        steps, turn = self.work.__await__(), 0
        try:
            future = next(steps)
            while True:
                if turn == self.turn:
                    self.cancelled = True
                    future.cancel()
                    # What it waits for from now on is its own cleaning up.
                    future = steps.throw(asyncio.CancelledError())
                else:
                    yield future
                    future = next(steps)
                turn += 1
        except StopIteration:
            ensure(not self.cancelled, "a cancelled call goes on")
        except asyncio.CancelledError:
            ensure(self.cancelled, "somebody else cancelled it")
        return self.cancelled


async def everything(lock: aio.Lock) -> None:
    """All that can be done with a lock, with many places to stop at."""
    async with lock as grant, lock:
        await lock.extend(20)
        await grant.extend(21)
        await lock.holder()
        # Cancelled while it is sent, a release goes on.
        await lock.acquire()
        await lock.release()
    if await lock.acquire(blocking=False):
        await lock.release()
    async with lock:
        pass


async def steps(act: Act) -> None:
    # With answers at once there are no steps.
    client, other = await open_client(act, direct=False), await open_client(act)
    lock, others = client.lock(act.lock, reentrant=True), other.lock(act.lock)
    ready()
    stopped = 0
    for contended in (False, True):
        for turn in range(1000):
            release = asyncio.Event()
            holding = asyncio.create_task(hold_until(others, release)) if contended else None
            if contended:
                await until("it is not held", lambda: other.stats()["holds"] == 1)
                asyncio.get_running_loop().call_later(0.002, release.set)

            async def stop(turn: int = turn) -> bool:
                return await CancelledAt(everything(lock), turn)

            # In a task of its own: what it holds ends with it.
            was_cancelled = await asyncio.create_task(stop())
            if holding is not None:
                await holding
            async with client.lock(act.lock, timeout=PATIENCE) as grant:
                ensure(grant.hold_count == 1, f"cancelled at {turn}: the count is another one")
            if not was_cancelled:
                break
            stopped += 1
    ensure(stopped > 8, f"there were only {stopped} places to stop at")
    say(f"cancelled {stopped}")
    await works(act, client)


async def hold_until(lock: aio.Lock, release: asyncio.Event) -> None:
    async with lock:
        await release.wait()


async def instants(act: Act) -> None:
    """Cancelled some time after the call began, from nothing to longer than it takes."""
    client, other = await open_client(act), await open_client(act)
    lock, others = client.lock(act.lock), other.lock(act.lock)
    ready()
    granted = 0
    for turn in range(act.size):
        release = asyncio.Event()
        holding = asyncio.create_task(hold_until(others, release)) if turn % 2 else None
        if holding:
            await until("it is not held", lambda: other.stats()["holds"] == 1)

        async def take() -> None:
            async with lock:
                nonlocal granted
                granted += 1

        task = asyncio.create_task(take())
        await asyncio.sleep(0)
        release.set()
        end = time.monotonic() + act.lease / 400 * turn / act.size
        while time.monotonic() < end:
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        if holding:
            await holding
    say(f"granted {granted} not {act.size - granted}")
    await works(act, client)


async def granted(act: Act) -> None:
    """Cancelled when the lock is won and the task has not heard of it yet, which takes an answer from afar."""
    client = await open_client(act, direct=False)
    lock = client.lock(act.lock)
    ready()
    for _ in range(act.size):
        before = client.stats()["acquired"]
        task = asyncio.create_task(lock.acquire())
        await asyncio.sleep(0)
        # The loop stands still until the engine has the grant.
        counted(client, "acquired", before + 1)
        task.cancel()
        await asyncio.wait([task])
        ensure(task.cancelled(), "it was granted and cancelled")
        await rest(client)
        await until_free(lock)
    await works(act, client)


async def until_free(lock: aio.Lock) -> None:
    end = time.monotonic() + PATIENCE
    while await lock.locked():
        ensure(time.monotonic() < end, "the lock stays")


async def race(act: Act) -> None:
    """One level is given back while the next one is being acquired, by the same task."""
    client = await open_client(act)
    lock = client.lock(act.lock, reentrant=True)
    ready()
    for turn in range(act.size):
        first, second = await lock.__aenter__(), await lock.__aenter__()
        work = [second.release(), lock.acquire()]
        if turn % 2:
            work.reverse()
        await asyncio.gather(*work)
        holder = await lock.holder()
        counts = (lock.hold_count, holder.count if holder else 0)
        ensure(counts == (2, 2), f"client and server count {counts}, and not 2")
        await lock.release()
        for _ in (first, second):
            await lock.__aexit__(None, None, None)
        ensure(not await lock.locked(), "the lock stays")
    await works(act, client)


# ---- scale ----


async def waiters(act: Act) -> None:
    """All wait for one name and are served one after the other; then all wait again and are cancelled."""
    client, other = await open_client(act), await open_client(act)
    lock = client.lock(act.lock)
    ready()

    async def served() -> bool:
        async with client.lock(act.lock):
            return True

    for turn in range(3):
        for cancel in (False, True):
            async with other.lock(act.lock):
                tasks = [asyncio.create_task(served()) for _ in range(act.size)]
                await until("not all wait", lambda: client.stats()["waiting"] == act.size)
                if cancel:
                    for task in tasks:
                        task.cancel()
                    await asyncio.wait(tasks)
                    ensure(all(task.cancelled() for task in tasks), "not all are cancelled")
            if not cancel:
                ensure(all(await asyncio.gather(*tasks)), "not all are served")
            del tasks
        await rest(client)
        gc.collect()
        say_resources("after" if turn else "before")
    ensure(not await lock.locked(), "the lock stays")
    await works(act, client)


async def holds(act: Act) -> None:
    client = await open_client(act)
    ready()
    locks = [client.lock(f"{act.lock}:{number}") for number in range(act.size)]
    grants: list[aio.Grant] = []
    for part in shares(act.size, 500):
        grants += await asyncio.gather(*(locks[number].__aenter__() for number in part))
    say("held")
    loop = asyncio.get_running_loop()
    for _ in range(3):
        await loop.run_in_executor(None, renewed, client, act.size)
    kept = sum(grant.held for grant in grants)
    ensure(kept == act.size and client.stats()["lost"] == 0, f"{kept} of {act.size} are held")
    ready()
    for part in shares(act.size, 500):
        await asyncio.gather(*(locks[number].__aexit__(None, None, None) for number in part))
    await works(act, client)


async def names(act: Act) -> None:
    """Each name is used once. What grows while the second half is used grows with the names."""
    client = await open_client(act)
    ready()
    for half, numbers in enumerate(shares(act.size, act.size // 2)[:2]):
        for number in numbers:
            async with client.lock(f"{act.lock}:{number}"):
                pass
        await rest(client)
        gc.collect()
        say_resources("after" if half else "before")
    await works(act, client)


ACTS: dict[str, Callable[[Act], Coroutine[Any, Any, None]]] = {
    "fork": fork,
    "exit-return": leave,
    "exit-exit": leave,
    "exit-exception": leave,
    "owner-ends": owner_ends,
    "collected": collected,
    "gil": gil,
    "blocked": blocked,
    "cancel-steps": steps,
    "cancel-instants": instants,
    "cancel-granted": granted,
    "race": race,
    "waiters": waiters,
    "holds": holds,
    "names": names,
}


def play(act: Act) -> None:
    if act.name == "runtime-ends":
        runtime_ends(act)
    else:
        asyncio.run(ACTS[act.name](act))


if __name__ == "__main__":
    sys.exit(main(play))
