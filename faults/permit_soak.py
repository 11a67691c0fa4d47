"""The soak of semaphores: soak.py with the model `permits`.

Each worker is a driver that serves requests. Callers, which are threads here, ask it for permits of a few semaphores as fast as they
can, and write down what it answers, in the lines of `conformance/drivers/README.md`; the times are those of their calls. A name in
these lines ends with the permits wanted and all there are: `gpu0/2of4`.
"""

from __future__ import annotations

import random
import threading
import time
from typing import Any

from soaking import LEASE_MS, Report, Soak, Worker
from world import MARGIN_MS, PATIENCE, Driver, recorded

NAMES = [f"gpu{number}" for number in range(8)]
LIMIT = 4
WAITS_MS = [20, 200, 2000, 20_000]
# In a hundred cases: a try, a fixed lease, a hold of up to half a lease, one of one and a half.
TRIES, FIXED, LINGERS, OVERSLEEPS = 20, 5, 2, 0.2
LOOK = 0.05
now = time.monotonic_ns


class DrivenSoak(Soak):
    """A soak whose time begins when all clients are open: on a busy machine programs take a while for that."""

    def __init__(self, *given: Any) -> None:
        self.begun = threading.Event()
        super().__init__(*given)
        self.prepare()
        for worker in self.workers:
            for caller in worker.callers:  # type: ignore[attr-defined]
                caller.begun.wait(PATIENCE)
        self.until = now() + int(self.minutes * 60e9)
        self.begun.set()

    def prepare(self) -> None:
        """Makes ready for the first call."""


class PermitWorker(Worker):
    soak: DrivenSoak
    driver: Driver

    @property
    def caller(self) -> type[Caller]:
        return Caller

    def start(self) -> None:
        self.file = self.new_file()
        self.driver = Driver(self.soak.commands[self.language])
        self.process = self.driver.process
        out = self.file.path.open("w")
        self.callers = [self.caller(self, self.driver, number, out) for number in range(self.soak.callers)]
        threading.Thread(target=self.work, args=(self.driver, self.callers), daemon=True).start()
        self.awake.set()

    @property
    def plan(self) -> dict[str, Any]:
        """How its client is opened."""
        return {"url": f"redis://127.0.0.1:{self.port}", "watchdog_ms": LEASE_MS}

    def work(self, driver: Driver, callers: list[Caller]) -> None:
        # The network may be away just then.
        while (opened := driver.ask(op="open", client="s", **self.plan)[1].result())[
            "status"
        ] == "unavailable":
            pass
        for caller in callers:
            if opened["status"] == "ok":
                caller.start()
            else:
                caller.failed = f"open: {opened}"
            caller.begun.set()

    def kill(self) -> None:
        before, was_awake = self.driver, self.awake.is_set()
        super().kill()
        if was_awake:
            before.close()

    def end(self) -> Report:
        self.awake.wait(PATIENCE)
        for caller in self.callers:
            caller.begun.wait(PATIENCE)
            if not caller.failed:
                caller.join(2 * PATIENCE)
        closed = self.driver.ask(op="close", client="s")[1].result(PATIENCE)
        self.driver.close()
        wrong = [caller.failed for caller in self.callers if caller.failed]
        names = dict.fromkeys(("holds", "waiting", "unreleased", "files", "threads", "memory", "since"), 0)
        unreleased = closed.get("value") or []
        names |= {"holds": len(wrong), "unreleased": len(unreleased) if closed["status"] == "ok" else 1}
        if wrong:
            print(f"{self.who}: {wrong[0]}")
        return Report(names)


class Caller(threading.Thread):
    """One caller of a driver. It ends with the time of the soak, or with its driver."""

    def __init__(self, worker: PermitWorker, driver: Driver, number: int, out: Any) -> None:
        super().__init__(daemon=True)
        self.worker, self.driver, self.number, self.out = worker, driver, number, out
        self.random = random.Random(worker.soak.random.getrandbits(32))
        self.begun = threading.Event()
        # Permits of Python tell a loss, and nothing else: one that has not been told yet is not called held.
        self.says_held = worker.language not in ("python", "asyncio")
        self.failed = ""
        # An owner that was told of a loss is not used again: Python's driver listens for one.
        self.owner = 0

    def ask(self, op: str, name: str, **more: object) -> dict:
        where = {"client": "s", "lock": name, "as": f"{self.number}.{self.owner}"}
        reply: dict = self.driver.ask(op=op, **where, **self.about(name), **more)[1].result()
        if reply["status"] == "gone":
            raise SystemExit
        return reply

    def about(self, name: str) -> dict[str, object]:
        """The words of a request about this name."""
        return {"limit": LIMIT}

    def write(self, line: str) -> None:
        # In one piece, beside other callers.
        self.out.write(f"{line}\n")
        self.out.flush()

    def chance(self, percent: float) -> bool:
        return self.random.random() * 100 < percent

    def run(self) -> None:
        self.worker.soak.begun.wait()
        try:
            while now() < self.worker.soak.until:
                self.attempt()
        except SystemExit:
            pass
        except Exception as error:
            self.failed = f"{type(error).__name__}: {error}"

    def attempt(self) -> None:
        name, permits = self.random.choice(NAMES), self.random.choice([1, 1, 2, 3])
        tried = self.chance(TRIES)
        more: dict[str, object] = {"wait_ms": 0 if tried else self.random.choice(WAITS_MS)}
        if self.chance(FIXED):
            more["lease_ms"] = LEASE_MS
        called = now()
        self.write(f"b {self.number} {name}/{permits}of{LIMIT} {called}")
        status = self.ask("acquire", name, permits=permits, **more)["status"]
        begun = f"e {self.number} {name}/{permits}of{LIMIT} {called} {now()} {status} {tried:d}"
        if status != "ok":
            return self.write(f"{begun} - 0 0 0 0 0 0 0 -")
        sure, kept = self.hold(name, called)
        freed = now()
        release = self.ask("release", name)["status"]
        self.write(f"{begun} - 1 1 {sure} {kept:d} 0 {freed} {now()} {release}")
        if release != "ok":
            self.owner += 1
        return None

    def hold(self, name: str, called: int) -> tuple[int, bool]:
        """When it was last called held, and whether it was in the end."""
        rest, sure = self.pause(), 0
        while True:
            at = now()
            if not self.is_held(name):
                self.write(f"l {self.number} {called} {now()} told")
                return sure, False
            sure = at if self.says_held else 0
            if rest <= 0:
                return sure, True
            time.sleep(min(rest, LOOK))
            rest -= LOOK

    def pause(self) -> float:
        if self.chance(LINGERS):
            return LEASE_MS / 2000 * self.random.random()
        return LEASE_MS / 1000 * 1.5 if self.chance(OVERSLEEPS) else 0.0

    def is_held(self, name: str) -> bool:
        if not self.says_held:
            return self.ask("lost", name, within_ms=0)["status"] == "timeout"
        if self.ask("held", name)["value"]:
            return True
        told = self.ask("lost", name, within_ms=LEASE_MS)
        if told["status"] != "ok":
            raise AssertionError(f"{name} is not held, and nobody was told: {told}")
        return False


class PermitSoak(DrivenSoak):
    worker = PermitWorker
    margin_ms = MARGIN_MS

    def a_key(self) -> tuple[str, list[str]]:
        name = self.random.choice(NAMES)
        return name, [name, f"{{{name}}}:timeout"]

    def left(self) -> list[str]:
        wrong = []
        for name in NAMES:
            free, taken, kept, _ = recorded(self.redis, name)
            if kept or free + taken not in (0, LIMIT):
                wrong.append(f"{name}: {free} are free and {taken} taken")
        return wrong
