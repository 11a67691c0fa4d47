"""The soak of plain semaphores and latches: soak.py with the model `counters`. What callers were told adds up to the number that the
server has, exactly.

The workers are those of the other models, and so are the faults, but nothing deletes a key and no process is killed: then nobody
knows what was done. Commands, replies and connections are lost, doubled and late. All languages play it together.

- *Seats* have a few permits that callers take and give back. Between the answer of an acquisition and the call of its release
  a permit is certainly taken; never more are than there are.
- *Ledgers* are changed by what changes a number: some callers take and never give back, others give what they never took.
- *Tills* are the same, and are emptied now and then.
- *Gates* are latches. A caller of each worker waits while all count down. None is let in before enough was
  counted, and all are in the end. The gate that is still shut then has exactly the count that is left.

Callers also ask for the numbers. After some calls a new one of each comes into use.

Permits that are given back and counts are done as soon as the server answers, also when the call failed with `unavailable`. Any
other change may then have been done or not: its ledger has one of several numbers.

The second checker is Porcupine, by counted.py: there is an order of all calls about a name in which each answer is right, and
there is none after a violation was planted. Ends with
`porcupine: histories=N operations=N refusals=N excused=N undecided=N violations=N planted=N rejected=N` and
`counters: minutes=M operations=N faults=N gates=N wrong=N`.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter, defaultdict
from concurrent.futures import Future
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import counted
from counted import LATCH, PLAIN, SERVER, Counted, Use
from second import Porcupine
from soaking import OTHER, Caller, Judged, Soak, Worker, now
from world import PATIENCE, Redis, eventually

LIMIT = 4
# A ledger begins with so much, that most who take get something.
CAPITAL = 1000
# The first number of each name.
SEATS = {f"seats{number}": LIMIT for number in range(5)}
LEDGERS = {f"ledger{number}": CAPITAL for number in range(5)}
TILLS = {f"till{number}": LIMIT for number in range(3)}
# So many calls belong to a name, so that Porcupine decides soon.
CALLS = 150
WAITS_MS = [0, 20, 200, 2000]
# The first count of a gate, and how much more is counted when it is open.
COUNT, OVER = 60, 15
DONE = ("ok", "unavailable")
# In a hundred cases.
LOOKS = 10


class Books:
    """The changes of which callers were told."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.numbers: Counter[str] = Counter()
        # Changes about which nobody knows.
        self.doubtful: defaultdict[str, list[int]] = defaultdict(list)
        # Names of which nobody can tell the number.
        self.unknown: set[str] = set()
        # The first number of each counter, and all calls about it.
        self.pasts: dict[str, Counted] = {}
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

    def note(self, name: str, use: Use) -> None:
        with self.lock:
            self.ends[f"{use.op} {use.status}"] += 1
            self.pasts[name].uses.append(use)


class CounterCaller(Caller):
    worker: CounterWorker

    @property
    def books(self) -> Books:
        return self.worker.soak.books

    def told(self, op: str, name: str, allowed: tuple[str, ...], wanted: int = 1, **more: object) -> Use:
        counter = self.books.pasts[name].counter
        called = now()
        reply = self.ask(op, lock=name, counter=counter, permits=wanted, number=wanted, **more)
        status, value = str(reply["status"]), reply.get("value")
        word, tried = "look" if op in ("permits", "count") else op, more.get("wait_ms") == 0
        use = Use(self.worker.who, called, now(), word, wanted, status, tried, value)
        self.books.note(name, use)
        if status not in allowed:
            raise AssertionError(f"{op} of {name}: {reply}")
        return use

    def attempt(self) -> None:
        soak = self.worker.soak
        act, places = self.random.choice(
            [
                *2 * [(self.sit, SEATS)],
                *2 * [(self.book, LEDGERS)],
                (self.cash, TILLS),
                (self.count_down, None),
            ]
        )
        name = soak.current(self.random.choice([*places])) if places else soak.gate()
        if not self.chance(LOOKS):
            act(name)
        elif places:
            self.told("permits", name, DONE)
        else:
            self.told("count", name, DONE)

    def sit(self, name: str) -> None:
        permits = self.random.choice([1, 1, 2, 3])
        if self.acquire(name, permits) == "ok":
            self.books.take(name, permits)
            if self.chance(5):
                time.sleep(self.random.random() / 10)  # the work, for which others wait
            self.books.take(name, -permits)
            self.told("release", name, DONE, permits)

    def book(self, name: str) -> None:
        number, op = (
            self.random.choice([1, 2, 3]),
            self.random.choice(["acquire", "release", "add", "add", "set"]),
        )
        if op == "acquire":
            by = -number if self.acquire(name, number) == "ok" else 0
        elif op == "set":
            # It has a number.
            use = self.told(op, name, DONE, number)
            if use.status == "ok" and use.told:
                self.books.wrong.append(f"{name} got its first number twice")
            return
        else:
            by = self.random.choice([number, -number]) if op == "add" else number
            use = self.told(op, name, DONE, by)
            if op == "add" and use.status != "ok":
                return self.books.doubt(name, by)
        return self.books.change(name, by)

    def cash(self, name: str) -> None:
        number = self.random.choice([1, 2, 3])
        if self.chance(30):
            use = self.told("drain", name, DONE)
            if use.told is None:
                self.books.unknown.add(name)
            return self.books.change(name, -int(use.told or 0))
        if self.chance(30):
            return self.books.change(name, -number if self.acquire(name, number) == "ok" else 0)
        self.told("release", name, DONE, number)
        return self.books.change(name, number)

    def acquire(self, name: str, permits: int) -> str:
        wait, allowed = self.random.choice(WAITS_MS), (*DONE, "timeout")
        return self.told("acquire", name, allowed, permits, wait_ms=wait).status

    def count_down(self, gate: str) -> None:
        if self.chance(LOOKS):
            use = self.told("wait", gate, (*DONE, "timeout"), wait_ms=0)
            return self.books.let_in(gate, use.status)
        by = self.random.choice([1, 1, 2, 3])
        self.books.count(gate, by)
        self.told("down", gate, DONE, by)
        return self.books.change(gate, -by)


class CounterWorker(Worker):
    soak: CounterSoak

    def wait_at(self, gate: str) -> Future[dict]:
        # Its client is open then.
        self.callers[0].begun.wait()
        wanted, called = {"client": "s", "lock": gate, "counter": LATCH, "as": gate}, now()
        waiting = self.driver.ask(op="wait", **wanted)[1]

        def let_in(done: Future[dict]) -> None:
            status = str(done.result()["status"])
            self.soak.books.let_in(gate, status)
            self.soak.books.note(gate, Use(self.who, called, now(), "wait", status=status))

        waiting.add_done_callback(let_in)
        return waiting


class CounterSoak(Soak):
    caller = CounterCaller
    worker = CounterWorker
    # Nothing that makes what was done unknowable.
    other = tuple(kind for kind in OTHER if kind != "delete")
    seldom = ()
    judge_again = "counted.py, counters.json in"

    def __init__(self, *given: Any) -> None:
        self.books = Books()
        self.gates: dict[str, list[Future[dict]]] = {}
        self.numbers = itertools.count()
        self.opening = threading.Lock()
        super().__init__(*given)

    def prepare(self) -> None:
        self.firsts = SEATS | LEDGERS | TILLS
        self.names = {place: self.next_of(place) for place in self.firsts}

    def next_of(self, place: str) -> str:
        name = f"{place}.{next(self.numbers)}"
        self.begin(name, PLAIN, self.firsts[place])
        return name

    def begin(self, name: str, counter: str, number: int) -> None:
        # The soak kills this connection too, now and then. Nobody changes the number meanwhile.
        while True:
            with suppress(OSError), closing(Redis(self.server.port)) as redis:
                if redis("SET", name, number) == "OK":
                    break
        self.books.pasts[name] = Counted(name, counter, number, [])
        self.books.change(name, number)

    def current(self, place: str) -> str:
        """The name that this place has now."""
        with self.opening:
            if len(self.books.pasts[self.names[place]].uses) >= CALLS:
                self.names[place] = self.next_of(place)
            return self.names[place]

    def gate(self) -> str:
        """The latch to count down: a new one some time after callers were told that the last one is open."""
        with self.opening:
            name = f"gate{len(self.gates) - 1}"
            if not self.gates or self.books.numbers[name] <= -OVER:
                name = f"gate{len(self.gates)}"
                self.begin(name, LATCH, COUNT)
                self.gates[name] = [worker.wait_at(name) for worker in self.workers]  # type: ignore[attr-defined]
            return name

    def finish(self) -> None:
        for worker in self.workers:
            for caller in worker.callers:
                if not caller.failed:
                    caller.join(2 * PATIENCE)
        with suppress(RuntimeError):  # what is left then is told below
            eventually(lambda: not self.left(), "every number is as told", PATIENCE)
        self.books.wrong += self.left()
        for name, waiting in self.gates.items():
            is_shut = self.books.numbers[name] > 0
            for worker, waiter in zip(self.workers, waiting, strict=True):
                if is_shut and not waiter.done():
                    worker.waits += 1
                    continue
                status = waiter.result(PATIENCE)["status"]
                if status != "ok":
                    self.books.wrong.append(f"a waiter at {name}: {status}")
                elif is_shut:
                    self.books.wrong.append(f"{name} is open too early")
        for name, past in self.books.pasts.items():
            called, told = now(), int(self.redis("GET", name) or 0)
            past.uses.append(Use(SERVER, called, now(), "look", told=told))

    def left(self) -> list[str]:
        """The counters that have another number than callers were told."""
        wrong = []
        for name in self.books.numbers.keys() - self.books.unknown:
            # A latch stops at 0.
            wanted = {
                max(0, number) if name in self.gates else number for number in self.books.possible(name)
            }
            there = int(self.redis("GET", name) or 0)
            if there not in wanted:
                wrong.append(f"{name} has {there}, and not {' or '.join(map(str, sorted(wanted)))}")
        return wrong

    def judge(self, program: Path | None, skipped: str, leaks: int) -> Judged:
        pasts, wrong, second = [*self.books.pasts.values()], [*self.books.wrong], skipped
        counted.save(pasts, self.folder / "counters.json")
        if program:
            with Porcupine(program) as porcupine:
                opinion = counted.judge(pasts, porcupine)
            second = opinion.summary()
            wrong += counted.wrong(opinion)
        ends = self.books.ends
        wrong += [f"no {op} succeeded" for op in ("acquire", "release", "down") if not ends[f"{op} ok"]]
        wrong += [] if self.gates else ["no latch was counted down"]
        figures = [
            second,
            f"counters: minutes={self.minutes:g} operations={ends.total()} faults={self.faults.total()} "
            f"gates={len(self.gates)} wrong={len(wrong) + leaks}",
        ]
        return Judged(wrong, ends, figures)
