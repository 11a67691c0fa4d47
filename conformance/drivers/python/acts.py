"""The acts of the fault matrix; see conformance/drivers/README.md. Each is a process of its own."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator
from dataclasses import dataclass
from typing import Any

import redlatch
from face import ASYNCIO, done, enter, finish, join, leave, pause, run, start, usage
from redlatch import aio

# How long anything may take that has no limit of its own: only a hang reaches it.
PATIENCE = 60.0


class Failed(Exception):
    """Something is not as it has to be."""


@dataclass
class Act:
    act: str
    url: str
    lock: str
    lease_ms: int
    size: int

    @property
    def lease(self) -> float:
        return self.lease_ms / 1000

    @property
    def busy(self) -> str:
        """The name that somebody else holds all the time."""
        return f"{self.lock}:busy"


def say(word: str) -> None:
    print(word, flush=True)


def ready() -> None:
    """Says `ready`, and goes on when the matrix says so."""
    say("ready")
    sys.stdin.readline()


def ensure(holds: object, text: str) -> None:
    if not holds:
        raise Failed(text)


async def until(text: str, holds: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not holds():
        ensure(time.monotonic() < end, text)
        await pause(0.002)


async def renewed(client: Any, times: int) -> None:
    """Waits until the client has renewed so many times more, so that a hold is known to live on."""
    before = client.stats()["renewed"]
    await until("nothing is renewed", lambda: client.stats()["renewed"] >= before + times)


async def at_rest(client: Any) -> None:
    def rests() -> bool:
        stats = client.stats()
        return bool(stats["holds"] == 0 and stats["waiting"] == 0)

    await until("something is still held or waited for", rests)


def say_resources(when: str) -> None:
    """Says what the process has, memory in KiB; the matrix compares."""
    gc.collect()
    memory, threads, descriptors = usage()
    say(f"{when} memory={memory} threads={threads} descriptors={descriptors}")


async def open_client(act: Act, *, direct: bool = True) -> Any:
    face: Any = aio if ASYNCIO else redlatch
    return await done(face.Client(act.url, watchdog_lease=act.lease, direct=direct).connect())


async def works(act: Act, client: Any) -> None:
    """The same client goes on as if nothing had happened."""
    lock = client.lock(act.lock, timeout=PATIENCE)
    grant = await done(enter(lock))
    ensure(grant.hold_count == 1, "the count is another one")
    await done(leave(lock))
    await at_rest(client)
    say("done")
    await done(client.close())


# ---- parts of the process end ----


def in_child(child: Callable[[], None]) -> None:
    """Runs it in a forked process, which leaves without running anybody's exit handlers."""
    number = os.fork()
    if not number:
        code = 1
        try:
            child()
            code = 0
        except BaseException as error:
            say(f"child {type(error).__name__}: {error}")
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])
    ensure(code == 0, f"the child ended with {code}")


async def fork(act: Act) -> None:
    client = await open_client(act)
    lock, entered = client.lock(act.lock), client.lock(f"{act.lock}:entered")
    await done(lock.acquire())
    grant = await done(enter(entered))

    async def wait() -> None:
        ensure(await done(client.lock(act.busy).acquire()), "what the parent waits for does not come")
        await done(client.close())

    waiting = start(wait)
    await until("nobody waits", lambda: client.stats()["waiting"] == 1)

    async def try_all() -> None:
        for call in (lock.acquire, lock.locked, grant.check):
            try:
                await done(call())
            except redlatch.ForkedError:
                continue
            ensure(False, f"{call} does not say that it is forked")
        own = await open_client(act)
        ensure(
            not await done(own.lock(act.lock).acquire(blocking=False)),
            "the child took what its parent holds",
        )
        free = own.lock(f"{act.lock}:child")
        await done(enter(free))
        await done(leave(free))
        await done(own.close())

    def child() -> None:
        ensure(not grant.held, "the child believes that it holds")
        if ASYNCIO:
            # Released as the end of an inherited block does it, with nothing to wait for.
            finish(leave(entered))
        else:
            ensure(not lock.owned(), "the child believes that it holds")
            lock.release()
            grant.release()
        run(try_all())

    in_child(child)
    ready()
    await renewed(client, 3)
    ensure(lock.owned() and lock.hold_count == 1 and grant.held, "the parent does not hold any more")
    await done(lock.release())
    await done(leave(entered))
    await join(waiting, PATIENCE)


async def end_so(act: Act) -> None:
    client = await open_client(act)
    await done(client.lock(act.lock).acquire())
    grant = await done(enter(client.lock(f"{act.lock}:entered")))

    async def wait() -> None:
        await done(client.lock(act.busy).acquire())

    waiting = [start(wait) for _ in range(2)]
    await until("nobody waits", lambda: client.stats()["waiting"] == 2)
    ready()
    if act.act == "exit-exit":
        sys.exit(3)
    if act.act == "exit-exception":
        raise RuntimeError(f"on purpose, with {grant} and {len(waiting)} that wait")


async def owner_ends(act: Act) -> None:
    client = await open_client(act)

    async def hold() -> None:
        await done(client.lock(act.lock).acquire())
        ready()

    await join(start(hold))
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
    asyncio.run(renewed(client, 3))
    ensure(grant.held, "a grant does not survive its loop")
    del waiting

    async def go_on() -> None:
        await grant.release()
        await until("the waiter of a closed loop waits", lambda: client.stats()["waiting"] == 0)
        await works(act, client)

    asyncio.run(go_on())


async def collected(act: Act) -> None:
    client = await open_client(act)

    async def hold() -> None:
        await done(enter(client.lock(act.lock)))

    await (asyncio.create_task(hold()) if ASYNCIO else hold())
    ready()
    gc.collect()
    # Until then this thread would enter it again.
    await at_rest(client)
    await works(act, client)


def hold_the_gil(seconds: float) -> None:
    """Unlike CDLL, PyDLL keeps the GIL."""
    import ctypes

    begun = time.monotonic()
    while (left := begun + seconds - time.monotonic()) > 0:
        # usleep takes less than a second everywhere.
        ctypes.PyDLL(None).usleep(min(900_000, int(left * 1_000_000) + 1))


async def stand_still(act: Act) -> None:
    """The GIL is held, or the event loop does nothing, for three leases."""
    client = await open_client(act)
    lock = client.lock(act.lock)
    grant = await done(enter(lock))
    ready()
    (hold_the_gil if act.act == "gil" else time.sleep)(3 * act.lease)
    grant.check()
    ready()
    await done(leave(lock))
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
                    # From now on it waits for its own clean-up.
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
            held = await HeldByOther.begin(others, other) if contended else None
            if held:
                asyncio.get_running_loop().call_later(0.002, held.release.set)

            async def stop(turn: int = turn) -> bool:
                return await CancelledAt(everything(lock), turn)

            # In a task of its own: what it holds ends with it.
            was_cancelled = await asyncio.create_task(stop())
            if held:
                await join(held.holding)
            async with client.lock(act.lock, timeout=PATIENCE) as grant:
                ensure(grant.hold_count == 1, f"cancelled at {turn}: the count is another one")
            if not was_cancelled:
                break
            stopped += 1
    ensure(stopped > 8, f"there were only {stopped} places to stop at")
    say(f"cancelled {stopped}")
    await works(act, client)


class HeldByOther:
    """Another client holds the lock until `release` is set."""

    def __init__(self, lock: Any) -> None:
        self.lock = lock
        self.release: Any = asyncio.Event() if ASYNCIO else threading.Event()
        self.holding = start(self.hold)

    @classmethod
    async def begin(cls, lock: Any, client: Any) -> HeldByOther:
        held = cls(lock)
        await until("it is not held", lambda: client.stats()["holds"] == 1)
        return held

    async def hold(self) -> None:
        await done(enter(self.lock))
        await done(self.release.wait())
        await done(leave(self.lock))


async def instants(act: Act) -> None:
    """Cancelled some time after the call began, from nothing to longer than it takes; a thread by a signal."""
    client, other = await open_client(act), await open_client(act)
    lock, others = client.lock(act.lock), other.lock(act.lock)
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    ready()
    granted = 0
    for turn in range(act.size):
        held = await HeldByOther.begin(others, other) if turn % 2 else None
        free = held.release.set if held else lambda: None
        attempt = cancelled_task if ASYNCIO else interrupted
        granted += await attempt(lock, act.lease / 400 * turn / act.size, free, act.lease / 200)
        if held:
            await join(held.holding, PATIENCE)
    say(f"granted {granted} not {act.size - granted}")
    await works(act, client)


async def cancelled_task(lock: aio.Lock, delay: float, free: Callable[[], None], _inside: float) -> bool:
    granted = False

    async def take() -> None:
        nonlocal granted
        async with lock:
            granted = True

    task = asyncio.create_task(take())
    await asyncio.sleep(0)
    free()
    end = time.monotonic() + delay
    while time.monotonic() < end:
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    return granted


async def interrupted(lock: redlatch.Lock, delay: float, free: Callable[[], None], inside: float) -> bool:
    """KeyboardInterrupt in the main thread."""
    granted = False
    try:
        free()  # before the timer: an event that is interrupted in set() wakes nobody
        signal.setitimer(signal.ITIMER_REAL, max(delay, 1e-6))
        with lock:
            granted = True
            time.sleep(inside)  # the signal comes here, if it has not come before
    except KeyboardInterrupt:
        pass
    if lock.owned():
        # A hold that an interruption between two bytecodes left is nobody's: collected, it is not renewed any more.
        gc.collect()
        await until("an interrupted block still holds", lambda: not lock.owned())
    return granted


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
        end = time.monotonic() + PATIENCE
        while client.stats()["acquired"] == before:
            ensure(time.monotonic() < end, "it is not granted")
            time.sleep(0.002)
        task.cancel()
        await asyncio.wait([task])
        ensure(task.cancelled(), "it was granted and cancelled")
        await at_rest(client)
        end = time.monotonic() + PATIENCE
        while await lock.locked():
            ensure(time.monotonic() < end, "the lock stays")
    await works(act, client)


async def race(act: Act) -> None:
    """One level is given back, by another thread or the same task, while the owner acquires the next one."""
    client = await open_client(act)
    lock = client.lock(act.lock, reentrant=True)
    ready()
    for turn in range(act.size):
        await done(enter(lock))
        second = await done(enter(lock))
        if ASYNCIO:
            work = [second.release(), lock.acquire()]
            await asyncio.gather(*(reversed(work) if turn % 2 else work))
        else:
            releasing = start(lambda second=second: done(second.release()))  # type: ignore[misc]
            time.sleep(turn % 20 * 1e-5)
            ensure(lock.acquire(), "re-entry is refused")
            await join(releasing, PATIENCE)
        counts = (lock.hold_count, getattr(await done(lock.holder()), "count", 0))
        ensure(counts == (2, 2), f"client and server count {counts}, and not 2")
        await done(lock.release())
        for _ in range(2):
            await done(leave(lock))
        ensure(not await done(lock.locked()), "the lock stays")
    await works(act, client)


# ---- scale ----


async def waiters(act: Act) -> None:
    """All wait for one name and are served one after the other; then all wait again in vain: tasks are cancelled, the
    time of threads is over."""
    client, other = await open_client(act), await open_client(act)
    threading.stack_size(256 * 1024)
    ready()
    for turn in range(3):
        await wait_and_be_served(act, client, other)
        await wait_in_vain(act, client, other)
        await at_rest(client)
        say_resources("after" if turn else "before")
    ensure(not await done(client.lock(act.lock).locked()), "the lock stays")
    await works(act, client)


async def all_wait(act: Act, client: Any, work: Callable[[], Coroutine[Any, Any, None]]) -> list[Any]:
    started = [start(work) for _ in range(act.size)]
    await until("not all wait", lambda: client.stats()["waiting"] == act.size)
    return started


async def wait_and_be_served(act: Act, client: Any, other: Any) -> None:
    served = 0
    held = other.lock(act.lock)
    await done(enter(held))

    async def be_served() -> None:
        nonlocal served
        lock = client.lock(act.lock)
        await done(enter(lock))
        served += 1  # one at a time
        await done(leave(lock))

    waiting = await all_wait(act, client, be_served)
    await done(leave(held))
    for one in waiting:
        await join(one, 2 * PATIENCE + act.size / 10)
    ensure(served == act.size, f"{served} of {act.size} were served")


async def wait_in_vain(act: Act, client: Any, other: Any) -> None:
    refused: list[bool] = []
    limit = 2 + act.size / 500
    held = other.lock(act.lock)
    await done(enter(held))

    async def be_refused() -> None:
        patience = {} if ASYNCIO else {"timeout": limit}
        refused.append(not await done(client.lock(act.lock).acquire(**patience)))

    if ASYNCIO:
        tasks = await all_wait(act, client, be_refused)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        refused = [task.cancelled() for task in tasks]
    else:
        # On a busy machine the first may have given up before the last waits.
        for thread in [start(be_refused) for _ in range(act.size)]:
            await join(thread, limit + PATIENCE)
    await done(leave(held))
    ensure(refused == [True] * act.size, f"{sum(refused)} of {act.size} were refused")


async def each(count: int, work: Callable[[int], Any]) -> list[Any]:
    """In an event loop 500 at a time, in a thread one after the other."""
    found: list[Any] = []
    for first in range(0, count, 500):
        part = [work(number) for number in range(first, min(first + 500, count))]
        found += await asyncio.gather(*part) if ASYNCIO else part
    return found


async def holds(act: Act) -> None:
    client = await open_client(act)
    ready()
    locks = [client.lock(f"{act.lock}:{number}") for number in range(act.size)]
    grants = await each(act.size, lambda number: enter(locks[number]))
    say("held")
    for _ in range(3):
        await renewed(client, act.size)
    kept = sum(grant.held for grant in grants)
    ensure(kept == act.size and client.stats()["lost"] == 0, f"{kept} of {act.size} are held")
    ready()
    await each(act.size, lambda number: leave(locks[number]))
    await works(act, client)


async def names(act: Act) -> None:
    """Each name is used once. Memory that grows while the second half is used grows with the names."""
    client = await open_client(act)
    ready()
    for number in range(act.size):
        if number == act.size // 2:
            await at_rest(client)
            say_resources("before")
        lock = client.lock(f"{act.lock}:{number}")
        await done(enter(lock))
        await done(leave(lock))
    await at_rest(client)
    say_resources("after")
    await works(act, client)


ACTS: dict[str, Callable[[Act], Coroutine[Any, Any, None]]] = {
    "fork": fork,
    "exit-return": end_so,
    "exit-exit": end_so,
    "exit-exception": end_so,
    "owner-ends": owner_ends,
    "collected": collected,
    "gil": stand_still,
    "blocked": stand_still,
    "cancel-steps": steps,
    "cancel-instants": instants,
    "cancel-granted": granted,
    "race": race,
    "waiters": waiters,
    "holds": holds,
    "names": names,
}


def play(act: Act) -> int:
    try:
        if act.act == "runtime-ends":
            runtime_ends(act)
        else:
            run(ACTS[act.act](act))
    except (Failed, redlatch.LockError, TimeoutError) as error:
        say(f"failed {type(error).__name__}: {error}")
        return 1
    return 0
