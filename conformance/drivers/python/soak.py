"""The soak's program in Python; see conformance/drivers/README.md."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable
from typing import Any

import redlatch
from face import ASYNCIO, done, enter, join, pause, run, start, usage
from redlatch import aio

PATIENCE = 20.0  # seconds until threads and descriptors of a closed client have to be gone
REENTERING = 2.0
LOOK = 0.05  # how often one that holds looks whether it does
WAITS = [0.02, 0.2, 2.0, 20.0]
now = time.monotonic_ns


class Caller:
    """A thread or a task."""

    def __init__(self, worker: Worker, number: int) -> None:
        self.worker, self.plan, self.number = worker, worker.plan, number
        self.lease: float = worker.plan["lease"] / 1000
        self.random = random.Random(f"{self.plan['seed']}/{number}")
        self.attempts = self.granted = 0

    def chance(self, name: str) -> bool:
        return self.random.randrange(1000) < int(self.plan[name])

    def name(self) -> tuple[str, str]:
        if self.chance("hot"):
            return f"hot{self.random.randrange(self.plan['hot_names'])}", "reentrant"
        if self.chance("shared"):
            return f"shared{self.random.randrange(self.plan['shared_names'])}", "read" if self.chance(
                "reads"
            ) else "write"
        number = self.random.randrange(self.plan["cold_names"])
        return f"cold{number}", "reentrant" if number % 5 else "simple"

    async def run(self) -> None:
        while now() < self.plan["until"]:
            await self.attempt()

    async def attempt(self) -> None:
        name, kind = self.name()
        tried = self.chance("tries")
        wait = 0.0 if tried else self.random.choice(WAITS)
        lease = {"lease": self.lease} if self.chance("fixed") else {}
        called = now()
        write, number = self.worker.write, self.number

        def told(error: redlatch.LockLostError) -> None:
            write(f"l {number} {called} {now()} {error.reason}\n")

        lock = self.lock(name, kind, timeout=wait, on_lost=told, **lease)
        name += "/read" * (kind == "read")
        write(f"b {number} {name} {called}\n")
        self.attempts += 1
        try:
            grant, status = await done(enter(lock)), "ok"
        except redlatch.LockError as error:
            grant, status = None, error.kind
        begun = f"e {number} {name} {called} {now()} {status} {tried:d}"
        if grant is None:
            return write(f"{begun} - 0 0 0 0 0 0 0 -\n")
        self.granted += 1
        levels, told_levels, sure, kept = await self.hold(lock, grant, kind)
        until, freed, status = await self.release(lock, grant, levels)
        token = "-" if kind == "read" else grant.fencing_token
        write(f"{begun} {token} {levels} {told_levels} {sure} {kept:d} {until} {freed} {now()} {status}\n")

    def lock(self, name: str, kind: str, **options: Any) -> Any:
        if kind in ("read", "write"):
            return getattr(self.worker.client.rw_lock(name, reentrant=True, **options), kind)
        return self.worker.client.lock(name, kind=kind, reentrant=kind == "reentrant", **options)

    async def hold(self, lock: Any, grant: Any, kind: str) -> tuple[int, int, int, bool]:
        """Does what holders do: the levels made and told, when it was last called held, and if it was in the end."""
        levels, sure = 1, 0
        if kind != "simple" and self.chance("reenter"):
            levels += await outcome(lock.acquire, timeout=REENTERING) is True
        if self.chance("extend"):
            # A refusal is the loss that the release will tell.
            await outcome(grant.extend, self.lease)
        told, rest = lock.hold_count, self.pause()
        while True:
            at = now()
            if kept := grant.held:
                sure = at
            if rest <= 0:
                return levels, told, sure, kept
            await pause(min(rest, LOOK))
            rest -= LOOK

    def pause(self) -> float:
        if self.chance("oversleep"):
            return self.lease * 1.5
        return self.lease * self.random.randrange(50) / 100 if self.chance("linger") else 0.0

    async def release(self, lock: Any, grant: Any, levels: int) -> tuple[int, int, str]:
        for _ in range(levels - 1):
            await outcome(lock.release)
        freed, remaining = now(), grant.remaining
        until = freed + int(remaining * 1e9) if remaining else 0
        result = await outcome(grant.release)
        return until, freed, "ok" if result is None else str(result)


async def outcome(call: Callable[..., Any], *given: Any, **more: Any) -> Any:
    """The result of a call, or the kind of its error."""
    try:
        return await done(call(*given, **more))
    except redlatch.LockError as error:
        return error.kind


class Worker:
    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.file = os.open(plan["file"], os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        self.client = self.new_client()
        self.callers = [Caller(self, number) for number in range(plan["callers"])]

    def new_client(self) -> Any:
        face: Any = aio if ASYNCIO else redlatch
        return face.Client(self.plan["url"], watchdog_lease=self.plan["lease"] / 1000, fencing=True)

    def write(self, line: str) -> None:
        """In the file at once, whole: what a killed program did is known."""
        os.write(self.file, line.encode())

    def attempts(self) -> int:
        return sum(caller.attempts for caller in self.callers)

    async def warm_up(self) -> None:
        """The thread that calls on_lost, and what brings answers into an event loop, belong to the process."""
        client = self.new_client()
        grant = await done(enter(client.lock("warm", on_lost=lambda _: None)))
        await done(grant.release())
        await done(client.close())

    async def run(self) -> None:
        await outcome(self.warm_up)
        _, threads, files = usage()
        await done(self.client.connect())
        started = [start(caller.run) for caller in self.callers]
        await pause(max(0, self.plan["until"] - now()) / 2e9)
        middle = (usage()[0], self.attempts())
        for caller in started:
            await join(caller)
        memory, stats = usage()[0], self.client.stats()
        unreleased = await done(self.client.close())
        end = time.monotonic() + PATIENCE
        while (left := usage())[1] > threads or left[2] > files:
            if time.monotonic() > end:
                break
            await pause(0.05)
        report = {
            "attempts": self.attempts(),
            "granted": sum(caller.granted for caller in self.callers),
            "holds": stats["holds"],
            "waiting": stats["waiting"],
            "unreleased": len(unreleased),
            "files": max(0, left[2] - files),
            "threads": max(0, left[1] - threads),
            "memory": max(0, memory - middle[0]),
            "since": self.attempts() - middle[1],
        }
        print(json.dumps(report), flush=True)


def work(plan: dict[str, Any]) -> None:
    run(Worker(plan).run())
