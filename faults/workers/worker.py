"""The soak's program in Python, for threads and for asyncio; README.md says what it does and writes.

worker.py face=threads|asyncio NAME=VALUE...

Both faces run the same coroutines: the steps of a thread are done when they return, so that nothing is ever awaited.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import redlatch
from redlatch import aio

PATIENCE = 20.0  # seconds until threads and descriptors of a closed client have to be gone
REENTERING = 2.0
LOOK = 0.05  # how often one that holds looks whether it does
WAITS = [0.02, 0.2, 2.0, 20.0]
now = time.monotonic_ns


def usage() -> tuple[int, int, int]:
    """Resident kilobytes, threads, open files."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]), int(fields["Threads"]), len(os.listdir("/proc/self/fd"))


class Threads:
    """Steps that end before they return."""

    def __init__(self, plan: Plan) -> None:
        self.client = redlatch.Client(plan.url, **plan.options)

    async def connect(self) -> None:
        self.client.connect()

    async def close(self) -> list[str]:
        return self.client.close()

    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)

    async def enter(self, lock: Any) -> Any:
        return lock.__enter__()

    async def again(self, lock: Any) -> bool:
        return lock.acquire(timeout=REENTERING)

    async def end(self, grant: Any) -> None:
        grant.release()

    async def release(self, lock: Any) -> None:
        lock.release()

    async def extend(self, grant: Any, seconds: float) -> None:
        grant.extend(seconds)


class Tasks:
    def __init__(self, plan: Plan) -> None:
        self.client = aio.Client(plan.url, **plan.options)

    async def connect(self) -> None:
        await self.client.connect()

    async def close(self) -> list[str]:
        return await self.client.close()

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def enter(self, lock: Any) -> Any:
        return await lock.__aenter__()

    async def again(self, lock: Any) -> bool:
        return await lock.acquire(timeout=REENTERING)

    async def end(self, grant: Any) -> None:
        await grant.release()

    async def release(self, lock: Any) -> None:
        await lock.release()

    async def extend(self, grant: Any, seconds: float) -> None:
        await grant.extend(seconds)


class Plan:
    """The arguments. Chances are per thousand, times seconds."""

    def __init__(self, words: list[str]) -> None:
        given = dict(word.split("=", 1) for word in words)
        self.face, self.url, self.file = given.pop("face"), given.pop("url"), given.pop("file")
        self.number = {name: int(value) for name, value in given.items()}
        self.until, self.lease = self.number["until"], self.number["lease"] / 1000
        self.options: dict[str, Any] = {"watchdog_lease": self.lease, "fencing": True}


class Caller:
    """A thread or a task."""

    def __init__(self, worker: Worker, number: int) -> None:
        self.worker, self.face, self.plan, self.number = worker, worker.face, worker.plan, number
        self.random = random.Random(f"{self.plan.number['seed']}/{number}")
        self.attempts = self.granted = 0

    def chance(self, name: str) -> bool:
        return self.random.randrange(1000) < self.plan.number[name]

    def name(self) -> tuple[str, str]:
        if self.chance("hot"):
            return f"hot{self.random.randrange(self.plan.number['hot_names'])}", "reentrant"
        number = self.random.randrange(self.plan.number["cold_names"])
        return f"cold{number}", "reentrant" if number % 5 else "simple"

    async def run(self) -> None:
        while now() < self.plan.until:
            await self.attempt()

    async def attempt(self) -> None:
        name, kind = self.name()
        tried = self.chance("tries")
        wait = 0.0 if tried else self.random.choice(WAITS)
        lease = {"lease": self.plan.lease} if self.chance("fixed") else {}
        called = now()
        write, number = self.worker.write, self.number

        def told(error: redlatch.LockLostError) -> None:
            write(f"l {number} {called} {now()} {error.reason}\n")

        enters = kind == "reentrant"
        lock = self.face.client.lock(name, kind=kind, reentrant=enters, timeout=wait, on_lost=told, **lease)
        write(f"b {number} {name} {called}\n")
        self.attempts += 1
        try:
            grant, status = await self.face.enter(lock), "ok"
        except redlatch.LockError as error:
            grant, status = None, error.kind
        begun = f"e {number} {name} {called} {now()} {status} {tried:d}"
        if grant is None:
            return write(f"{begun} - 0 0 0 0 0 0 0 -\n")
        self.granted += 1
        levels, told_levels, sure, kept = await self.hold(lock, grant, kind)
        until, freed, status = await self.release(lock, grant, levels)
        write(
            f"{begun} {grant.fencing_token} {levels} {told_levels} {sure} {kept:d} "
            f"{until} {freed} {now()} {status}\n"
        )

    async def hold(self, lock: Any, grant: Any, kind: str) -> tuple[int, int, int, bool]:
        """Does what holders do: the levels made and told, when it was last called held, and if it was in the end."""
        levels, sure = 1, 0
        if kind == "reentrant" and self.chance("reenter"):
            levels += await outcome(self.face.again(lock)) is True
        if self.chance("extend"):
            # A refusal is the loss that the release will tell.
            await outcome(self.face.extend(grant, self.plan.lease))
        told, rest = lock.hold_count, self.pause()
        while True:
            at = now()
            if kept := grant.held:
                sure = at
            if rest <= 0:
                return levels, told, sure, kept
            await self.face.pause(min(rest, LOOK))
            rest -= LOOK

    def pause(self) -> float:
        if self.chance("oversleep"):
            return self.plan.lease * 1.5
        return self.plan.lease * self.random.randrange(50) / 100 if self.chance("linger") else 0.0

    async def release(self, lock: Any, grant: Any, levels: int) -> tuple[int, int, str]:
        for _ in range(levels - 1):
            await outcome(self.face.release(lock))
        freed, remaining = now(), grant.remaining
        until = freed + int(remaining * 1e9) if remaining else 0
        result = await outcome(self.face.end(grant))
        return until, freed, "ok" if result is None else str(result)


async def outcome(step: Awaitable[Any]) -> Any:
    """What a step brings, or the kind of its error."""
    try:
        return await step
    except redlatch.LockError as error:
        return error.kind


class Worker:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.file = os.open(plan.file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        self.face: Any = Threads(plan) if plan.face == "threads" else Tasks(plan)
        self.callers = [Caller(self, number) for number in range(plan.number["callers"])]
        self.middle = (0, 0)

    def write(self, line: str) -> None:
        """In the file at once, whole: what a killed program did is known."""
        os.write(self.file, line.encode())

    def attempts(self) -> int:
        return sum(caller.attempts for caller in self.callers)

    def measure(self) -> None:
        self.middle = (usage()[0], self.attempts())

    def half(self) -> float:
        return max(0, self.plan.until - now()) / 2e9

    async def warm_up(self) -> None:
        """The thread that calls on_lost, and what brings answers into an event loop, belong to the process."""
        face = type(self.face)(self.plan)
        lock = face.client.lock("warm", on_lost=lambda _: None)
        await face.end(await face.enter(lock))
        await face.close()

    async def run(self, work: Callable[[], Awaitable[None]]) -> None:
        await outcome(self.warm_up())
        _, threads, files = usage()
        await self.face.connect()
        await work()
        memory, stats = usage()[0], self.face.client.stats()
        unreleased = await self.face.close()
        end = time.monotonic() + PATIENCE
        while (left := usage())[1] > threads or left[2] > files:
            if time.monotonic() > end:
                break
            await self.face.pause(0.05)
        print(
            f"attempts={self.attempts()} granted={sum(caller.granted for caller in self.callers)} "
            f"holds={stats['holds']} waiting={stats['waiting']} unreleased={len(unreleased)} "
            f"files={max(0, left[2] - files)} threads={max(0, left[1] - threads)} "
            f"memory={max(0, memory - self.middle[0])} since={self.attempts() - self.middle[1]}",
            flush=True,
        )

    async def in_threads(self) -> None:
        threads = [threading.Thread(target=finish, args=(caller.run(),)) for caller in self.callers]
        for thread in threads:
            thread.start()
        time.sleep(self.half())
        self.measure()
        for thread in threads:
            thread.join()

    async def in_tasks(self) -> None:
        tasks = [asyncio.create_task(caller.run()) for caller in self.callers]
        await asyncio.sleep(self.half())
        self.measure()
        await asyncio.gather(*tasks)


def finish(steps: Any) -> None:
    """Runs a coroutine that never waits for an event loop."""
    try:
        steps.send(None)
    except StopIteration:
        return
    raise RuntimeError("a thread's step waited for an event loop")


def main() -> None:
    worker = Worker(Plan(sys.argv[1:]))
    if worker.plan.face == "threads":
        finish(worker.run(worker.in_threads))
    else:
        asyncio.run(worker.run(worker.in_tasks))


if __name__ == "__main__":
    main()
