"""A soak of plain semaphores and latches: what callers were told adds up to the number that the server has, exactly.

counter_soak.py [--minutes 2] [--seed N] [--processes N] [--callers N] [--debug]

The workers are those of permit_soak.py, and so are the faults, but nothing deletes a key and no process is killed: then nobody
knows what was done. Commands, replies and connections are lost, doubled and late. The driver of Rust plays it.

- *Seats* have a few permits that callers take and give back. Between the answer of an acquisition and the call of its release
  a permit is certainly taken; never more are than there are.
- *Ledgers* are changed by all that changes a number: some callers take and never give back, others give what they never took.
- *Gates* are latches, one after the other. A caller of each worker waits while all count down. None is let in before enough was
  counted, and all are in the end. The gate that is still shut then has exactly the count that is left.

Permits that are given back and counts are done as soon as the server answers, also when the call failed with `unavailable`. Any
other change may then have been done or not: its ledger has one of several numbers. Ends with
`counters: minutes=M operations=N faults=N gates=N wrong=N`, and with 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from concurrent.futures import Future
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from permit_soak import Caller, PermitWorker
from server import eventually
from soak import OTHER, Soak
from world import PATIENCE, Redis

PLAIN, LATCH = "plain-semaphore", "latch"
SEATS = [f"seats{number}" for number in range(4)]
LEDGERS = [f"ledger{number}" for number in range(4)]
LIMIT = 4
# A ledger begins with so much, that most who take get something.
CAPITAL = 1000
WAITS_MS = [0, 20, 200, 2000]
# The first count of a gate.
COUNT = 60
DONE = ("ok", "unavailable")
now = time.monotonic_ns


class Books:
    """The changes of which callers were told."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.numbers: Counter[str] = Counter()
        # Changes about which nobody knows.
        self.doubtful: defaultdict[str, list[int]] = defaultdict(list)
        self.taken: Counter[str] = Counter()
        self.counted: Counter[str] = Counter()
        self.ends: Counter[str] = Counter()
        self.wrong: list[str] = []

    def change(self, name: str, by: int) -> None:
        with self.lock:
            self.numbers[name] += by

    def doubt(self, name: str, by: int) -> None:
        with self.lock:
            self.doubtful[name].append(by)

    def possible(self, name: str) -> set[int]:
        """The numbers that it can have."""
        found = {self.numbers[name]}
        for by in self.doubtful[name]:
            found |= {number + by for number in found}
        return found

    def take(self, name: str, permits: int) -> None:
        with self.lock:
            self.taken[name] += permits
            if self.taken[name] > LIMIT:
                self.wrong.append(f"{name}: {self.taken[name]} of {LIMIT} permits are taken")

    def count(self, name: str, by: int) -> None:
        """Somebody is about to count down."""
        with self.lock:
            self.counted[name] += by

    def let_in(self, name: str, status: str) -> None:
        with self.lock:
            if status == "ok" and self.counted[name] < COUNT:
                self.wrong.append(f"{name} is open after {self.counted[name]} of {COUNT}")

    def note(self, op: str, status: str) -> None:
        with self.lock:
            self.ends[f"{op} {status}"] += 1


class CounterCaller(Caller):
    worker: CounterWorker

    @property
    def books(self) -> Books:
        return self.worker.soak.books

    def told(self, op: str, counter: str, name: str, allowed: tuple[str, ...], **more: object) -> str:
        where = {"client": "s", "lock": name, "counter": counter, "as": str(self.number)}
        status = str(self.driver.ask(op=op, **where, **more)[1].result()["status"])
        if status == "gone":
            raise SystemExit
        self.books.note(op, status)
        if status not in allowed:
            raise AssertionError(f"{op} of {name}: {status}")
        return status

    def run(self) -> None:
        self.worker.soak.begun.wait()
        super().run()

    def attempt(self) -> None:
        self.random.choice([self.sit, self.sit, self.book, self.book, self.count_down])()

    def sit(self) -> None:
        name, permits = self.random.choice(SEATS), self.random.choice([1, 1, 2, 3])
        if self.acquire(name, permits) == "ok":
            self.books.take(name, permits)
            if self.chance(5):
                time.sleep(self.random.random() / 10)  # the work, for which others wait
            self.books.take(name, -permits)
            self.told("release", PLAIN, name, DONE, permits=permits)

    def book(self) -> None:
        name, number = self.random.choice(LEDGERS), self.random.choice([1, 2, 3])
        op = self.random.choice(["acquire", "release", "add", "add"])
        if op == "acquire":
            by = -number if self.acquire(name, number) == "ok" else 0
        else:
            by = self.random.choice([number, -number]) if op == "add" else number
            status = self.told(op, PLAIN, name, DONE, permits=by)
            if op == "add" and status != "ok":
                return self.books.doubt(name, by)
        return self.books.change(name, by)

    def acquire(self, name: str, permits: int) -> str:
        wait, allowed = self.random.choice(WAITS_MS), (*DONE, "timeout")
        return self.told("acquire", PLAIN, name, allowed, permits=permits, wait_ms=wait)

    def count_down(self) -> None:
        gate, by = self.worker.soak.gate(), self.random.choice([1, 1, 2, 3])
        self.books.count(gate, by)
        self.told("down", LATCH, gate, DONE, number=by)
        self.books.change(gate, -by)


class CounterWorker(PermitWorker):
    soak: CounterSoak

    @property
    def caller(self) -> type[Caller]:
        return CounterCaller

    def wait_at(self, gate: str) -> Future[dict]:
        # Its client is open then.
        self.callers[0].begun.wait()
        wanted = {"client": "s", "lock": gate, "counter": LATCH, "as": gate}
        waiting = self.driver.ask(op="wait", **wanted)[1]
        waiting.add_done_callback(lambda done: self.soak.books.let_in(gate, done.result()["status"]))
        return waiting


class CounterSoak(Soak):
    worker = CounterWorker
    languages = ("rust",)
    # Nothing that makes what was done unknowable.
    other = tuple(kind for kind in OTHER if kind != "delete")
    seldom = ()

    def __init__(self, *given: Any) -> None:
        self.books = Books()
        self.gates: dict[str, list[Future[dict]]] = {}
        self.opening = threading.Lock()
        self.begun = threading.Event()
        super().__init__(*given)
        for name in SEATS:
            self.begin(name, LIMIT)
        for name in LEDGERS:
            self.begin(name, CAPITAL)
        self.begun.set()

    def begin(self, name: str, number: int) -> None:
        # The soak kills this connection too, now and then. Nobody changes the number meanwhile.
        while True:
            with suppress(OSError), closing(Redis(self.server.port)) as redis:
                if redis("SET", name, number) == "OK":
                    break
        self.books.change(name, number)

    def gate(self) -> str:
        """The latch to count down: a new one when callers were told that the last one is open."""
        with self.opening:
            name = f"gate{len(self.gates) - 1}"
            if not self.gates or self.books.numbers[name] <= 0:
                name = f"gate{len(self.gates)}"
                self.begin(name, COUNT)
                self.gates[name] = [worker.wait_at(name) for worker in self.workers]  # type: ignore[attr-defined]
            return name

    def finish(self) -> None:
        for worker in self.workers:
            for caller in worker.callers:  # type: ignore[attr-defined]
                caller.join(2 * PATIENCE)
        with suppress(RuntimeError):  # what is left then is told below
            eventually(lambda: not self.left(), "every number is as told", PATIENCE)
        self.books.wrong += self.left()
        for name, waiting in self.gates.items():
            is_shut = self.books.numbers[name] > 0
            for waiter in waiting:
                if is_shut and not waiter.done():
                    continue
                status = waiter.result(PATIENCE)["status"]
                if status != "ok":
                    self.books.wrong.append(f"a waiter at {name}: {status}")
                elif is_shut:
                    self.books.wrong.append(f"{name} is open too early")

    def left(self) -> list[str]:
        """The counters that have another number than callers were told."""
        wrong = []
        for name in self.books.numbers:
            # A latch stops at 0.
            wanted = {
                max(0, number) if name in self.gates else number for number in self.books.possible(name)
            }
            there = int(self.redis("GET", name) or 0)
            if there not in wanted:
                wrong.append(f"{name} has {there}, and not {' or '.join(map(str, sorted(wanted)))}")
        return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--callers", type=int, default=8, help="of each process")
    parser.add_argument("--debug", action="store_true", help="the program without optimisations")
    args = parser.parse_args()
    profile = "debug" if args.debug else "release"
    with tempfile.TemporaryDirectory(prefix="redlatch-soak-") as folder:
        soak = CounterSoak(args.minutes, args.seed, args.processes, args.callers, Path(folder), profile)
        try:
            reports = soak.run()
            wrong = [*soak.books.wrong, *soak.leaks()]
        finally:
            soak.close()
    wrong += [
        f"no {op} succeeded" for op in ("acquire", "release", "down") if not soak.books.ends[f"{op} ok"]
    ]
    wrong += [] if soak.gates else ["no latch was counted down"]
    wrong += [f"{leak} of {who}" for who, report in reports.items() for leak in report.leaks()]
    for line in wrong[:20]:
        print(f"wrong: {line}")
    print(f"seed {args.seed}; ends: {dict(soak.books.ends.most_common())}; faults: {dict(soak.faults)}")
    print(
        f"counters: minutes={args.minutes:g} operations={soak.books.ends.total()} faults={soak.faults.total()} "
        f"gates={len(soak.gates)} wrong={len(wrong)}"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
