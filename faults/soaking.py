"""The base of the soaks of all models: their servers, proxies and faults, and the callers, which are threads here.

Each worker is a program of conformance/drivers that serves requests. Callers ask it for one turn after the other as fast as they
can, and write down what it answers, in the lines of `conformance/drivers/README.md`.
"""

from __future__ import annotations

import random
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from check import Deletion, File, summary
from second import Soaked, report
from world import PATIENCE, Driver, Failed, Proxies, Redis, Server, build

LEASE_MS = 3000
# Keys that are no locks: they stay.
COUNTERS = "redisson_lock_token:"
# Between two faults, on average, in seconds.
PAUSE = 0.5
ON_THE_WIRE = ("cut-request", "cut-reply", "hole", "reply-hole", "delay", "delay-reply", "twice", "stall")
OTHER = ("kill", "silent", "client kill", "pause", "script flush", "delete", "stop")
SELDOM = ("flushall", "process kill")
WAITS_MS = [20, 200, 2000, 20_000]
REENTERING_MS = 2000
# In a hundred cases: a try, a fixed lease.
TRIES, FIXED = 20, 5
# The growth of a client's memory that is allowed while it does the same again and again: fragments, buffers, a collector's whims.
SLACK_KB = 32 * 1024
# How long threads and descriptors of a closed client may take to be gone, and calls that nobody waits for.
GONE = 20.0
now = time.monotonic_ns


@dataclass
class Report:
    """What is left of a worker at its end, and what its memory grew by over the last turns."""

    numbers: dict[str, int]
    memory: int
    since: int

    def leaks(self) -> list[str]:
        left = [f"{number} {name}" for name, number in self.numbers.items() if number]
        return [*left, *([f"{self.memory} kB"] if self.memory > SLACK_KB else [])]


@dataclass
class Judged:
    """The verdict of the checkers: all that is wrong, how often calls ended how, and figures."""

    wrong: list[str]
    ends: Counter[str]
    figures: list[str]


class Caller(threading.Thread):
    """One caller of a driver. It ends with the time of the soak, or with its driver."""

    # In a hundred cases: a level more, a longer lease, a hold of up to half a lease, one of one and a half.
    reenters, extends, lingers, oversleeps = 10.0, 0.0, 2.0, 0.2

    def __init__(self, worker: Worker, driver: Driver, number: int, write: Callable[[str], None]) -> None:
        super().__init__(daemon=True)
        self.worker, self.driver, self.number, self.write = worker, driver, number, write
        self.random = random.Random(worker.soak.random.getrandbits(32))
        self.begun = threading.Event()
        self.failed = ""
        self.turns = 0

    def ask(self, op: str, **more: Any) -> dict:
        return self.worker.ask(self.driver, op, **more | {"as": str(self.number)})

    def chance(self, percent: float) -> bool:
        return self.random.random() * 100 < percent

    def run(self) -> None:
        self.worker.soak.begun.wait()
        try:
            while now() < self.worker.soak.until:
                self.attempt()
                self.turns += 1
        except Exception as error:
            self.failed = f"{type(error).__name__}: {error}"

    def wish(self) -> tuple[str, dict[str, Any]]:
        """The name in the history, and the words of a request about it."""
        raise NotImplementedError

    def attempt(self) -> None:
        name, request = self.wish()
        tried = self.chance(TRIES)
        request["wait_ms"] = 0 if tried else self.random.choice(WAITS_MS)
        if self.chance(FIXED):
            request["lease_ms"] = LEASE_MS
        if self.chance(self.reenters) and not {"kind", "limit"} & request.keys():
            request["reenter_ms"] = REENTERING_MS
        if self.chance(self.extends):
            request["extend_ms"] = LEASE_MS
        if self.number % 2 == 0:
            request["blocked"] = True
        self.write(f"b {self.number} {name} {now()}")
        told = self.ask("turn", rest_ms=self.rest(), **request)
        if "answered" not in told:
            raise AssertionError(f"{name}: {told}")
        line = f"e {self.number} {name} {told['called']} {told['answered']} {told['status']} {tried:d}"
        if told["status"] != "ok":
            return self.write(f"{line} - 0 0 0 0 0 0 0 -")
        self.worker.granted += 1
        token = "-" if told["token"] is None or request.get("side") == "read" else told["token"]
        line += f" {token} {told['levels']} {told['count']} {told['sure']} {told['kept']:d} {told['until']}"
        return self.write(f"{line} {told['freed']} {told['done']} {told['release']}")

    def rest(self) -> int:
        if self.chance(self.lingers):
            return int(LEASE_MS / 2 * self.random.random())
        return LEASE_MS * 3 // 2 if self.chance(self.oversleeps) else 0


class Worker:
    """A place for a process in one language, behind a proxy of its own. Killed, it is started again."""

    def __init__(self, soak: Soak, language: str, number: int) -> None:
        self.soak, self.language, self.who = soak, language, f"{language}{number}"
        self.ports = soak.open_ways()
        self.files: list[File] = []
        self.awake = threading.Event()
        self.granted = 0
        # The callers that wait in the end, and have to.
        self.waits = 0
        self.start()

    def start(self) -> None:
        name = f"{self.who}.{len(self.files)}"
        self.file = File(self.soak.folder / name, name)
        self.files.append(self.file)
        out = self.file.path.open("w", buffering=1)

        def write(line: str) -> None:
            # In one piece, beside other callers.
            out.write(f"{line}\n")

        def told(loss: dict) -> None:
            write(f"l {loss['as']} {loss['called']} {loss['at']} {loss['told']}")

        self.driver = Driver(self.soak.commands[self.language], told)
        self.process = self.driver.process
        self.soak.pids.add(self.process.pid)
        self.callers = [
            self.soak.caller(self, self.driver, number, write) for number in range(self.soak.many)
        ]
        self.working = threading.Thread(target=self.work, args=(self.driver, self.callers), daemon=True)
        self.working.start()
        self.awake.set()

    def ask(self, driver: Driver, op: str, client: str = "s", **more: Any) -> dict:
        reply: dict = driver.ask(op=op, client=client, **more)[1].result()
        if reply["status"] == "gone":
            raise SystemExit
        return reply

    def work(self, driver: Driver, callers: list[Caller]) -> None:
        ask = partial(self.ask, driver)

        def open_client(client: str) -> None:
            # The network may be away just then.
            while (opened := ask("open", client, **self.soak.plan(self.ports)))["status"] == "unavailable":
                pass
            if opened["status"] != "ok":
                raise AssertionError(f"open: {opened}")

        try:
            # What belongs to the process, and is made when it is first needed.
            open_client("warm")
            warm: dict[str, Any] = {"lock": f"warm{self.who}", "as": "0", "wait_ms": 2000, "rest_ms": 0}
            while ask("turn", "warm", **warm)["status"] != "ok":
                pass
            for op in ("close", "forget"):
                ask(op, "warm")
            self.before = ask("usage")
            open_client("s")
        except AssertionError as error:
            for caller in callers:
                caller.failed = str(error)
                caller.begun.set()
            return
        for caller in callers:
            caller.start()
            caller.begun.set()
        self.soak.begun.wait()
        time.sleep(max(0, self.soak.until - now()) / 2e9)
        self.middle, self.since = ask("usage")["memory"], self.turns

    @property
    def turns(self) -> int:
        return sum(caller.turns for caller in self.callers)

    def stop(self, seconds: float) -> None:
        """As a debugger does it, or a busy machine."""
        if not self.awake.is_set():
            return
        self.awake.clear()
        self.process.send_signal(signal.SIGSTOP)
        self.soak.later(seconds, self.go_on)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.awake.set()

    def kill(self) -> None:
        if not self.awake.is_set():
            return
        self.driver.close()
        self.file.died = now()
        self.start()

    def end(self) -> Report:
        self.awake.wait(PATIENCE)
        end = time.monotonic() + 2 * PATIENCE
        for caller in self.callers:
            caller.begun.wait(max(0, end - time.monotonic()))
            if not caller.failed:
                caller.join(max(0, end - time.monotonic()))
        wrong = [caller.failed or "hangs" for caller in self.callers if caller.failed or caller.is_alive()]
        if wrong:
            print(f"{self.who}: {wrong[0]}")
            return Report({"failed callers": len(wrong)}, 0, 0)
        self.working.join(PATIENCE)
        ask = partial(self.ask, self.driver)
        try:
            # A release may still be on its way to the slowest server of a quorum.
            has = self.at_rest(lambda has: has["holds"] == 0 and has["waiting"] == self.waits)
            closed = ask("close")
            ask("forget")
            left = self.at_rest(lambda left: not any(self.more(left).values()))
        except SystemExit:
            raise Failed(f"{self.who} ended with {self.process.wait(PATIENCE)}") from None
        self.driver.close()
        unreleased = closed.get("value") or [] if closed["status"] == "ok" else [closed]
        more = self.more(left) | {"holds": has["holds"], "waiting": has["waiting"] - self.waits}
        return Report(
            more | {"unreleased": len(unreleased)},
            max(0, has["memory"] - self.middle),
            self.turns - self.since,
        )

    def more(self, left: dict) -> dict[str, int]:
        """Than before the client was opened."""
        return {name: max(0, left[name] - self.before[name]) for name in ("files", "threads")}

    def at_rest(self, rests: Callable[[dict], bool]) -> dict:
        """What the program has when it rests, or after a while."""
        end = time.monotonic() + GONE
        while not rests(has := self.ask(self.driver, "usage")) and time.monotonic() < end:
            time.sleep(0.05)
        return has


class Soak:
    caller: type[Caller]
    worker: type[Worker] = Worker
    # It judges again what was kept.
    judge_again = "second.py"
    other: tuple[str, ...] = OTHER
    seldom: tuple[str, ...] = SELDOM
    # For how long permits are kept beyond their lease, and a lock by a server of a quorum beyond its release.
    margin_ms = 0
    lingers_ms = 0
    # Further words with which a client is opened.
    options: ClassVar[dict[str, Any]] = {}

    def __init__(
        self,
        minutes: float,
        seed: int,
        processes: int,
        callers: int,
        folder: Path,
        profile: str,
        languages: list[str],
    ) -> None:
        self.minutes, self.seed, self.many, self.folder = minutes, seed, callers, folder
        self.random = random.Random(seed)
        # Built in that profile, those of Rust and C. Python and Node.js find the packages that are there.
        every = build.ours(profile)
        self.commands = {language: every[language]().command for language in languages or every}
        self.proxies = Proxies(profile)
        self.start_servers()
        self.faults: Counter[str] = Counter()
        self.deletions: list[tuple[str | None, Deletion]] = []
        self.timers: list[threading.Timer] = []
        self.pids: set[int] = set()
        # The time begins when all clients are open: on a busy machine programs take a while for that.
        self.begun = threading.Event()
        self.until = now()
        self.workers = [
            self.worker(self, language, number) for language in self.commands for number in range(processes)
        ]
        self.prepare()
        for worker in self.workers:
            for caller in worker.callers:
                caller.begun.wait(PATIENCE)
        self.until = now() + int(minutes * 60e9)
        self.begun.set()

    def start_servers(self) -> None:
        self.server = Server()
        self.redis = Redis(self.server.port)

    def prepare(self) -> None:
        """Makes ready for the first call."""

    def open_ways(self) -> list[int]:
        """A worker's proxies."""
        return [int(self.proxies("open", self.server.port)[0])]

    def plan(self, ports: list[int]) -> dict[str, Any]:
        """How a client is opened that goes through these proxies."""
        return {"url": f"redis://127.0.0.1:{ports[0]}", "watchdog_ms": LEASE_MS, **self.options}

    def run(self) -> dict[str, Report]:
        while now() < self.until:
            time.sleep(self.random.random() * 2 * PAUSE)
            self.fault()
        for timer in self.timers:
            timer.join()
        for worker in self.workers:
            for port in worker.ports:
                self.proxies("clear", port)
        self.finish()
        return {worker.who: worker.end() for worker in self.workers}

    def finish(self) -> None:
        """Nothing goes wrong any more, and the clients are still there."""

    def fault(self) -> None:
        seldom = self.random.random() < 0.03 and self.seldom
        kind = self.random.choice(seldom or [*ON_THE_WIRE, *self.other])
        worker = self.random.choice(self.workers)
        self.faults[kind] += 1
        self.make(kind, worker, self.random.choice(worker.ports))

    def make(self, kind: str, worker: Worker, port: int) -> None:
        if kind == "kill":
            self.proxies("kill", port)
        elif kind == "silent":
            self.away(port)
        elif kind == "stop":
            worker.stop(self.while_away())
        elif kind == "process kill":
            worker.kill()
        elif kind in ON_THE_WIRE:
            self.on_the_wire(kind, port)
        elif kind == "delete":
            name, keys = self.a_key()
            self.delete(name, "DEL", *keys)
        elif kind == "flushall":
            self.delete(None, "FLUSHALL")
        else:
            self.redis(*self.of_server(kind))

    def of_server(self, kind: str) -> list[str | int]:
        """The command that makes this trouble."""
        if kind == "client kill":
            return ["CLIENT", "KILL", "TYPE", self.random.choice(["normal", "pubsub"]), "SKIPME", "yes"]
        if kind == "pause":
            return ["CLIENT", "PAUSE", self.random.randint(50, 500), "WRITE"]
        return ["SCRIPT", "FLUSH"]

    def a_key(self) -> tuple[str, list[str]]:
        """A name that many want, and its keys."""
        raise NotImplementedError

    def on_the_wire(self, kind: str, port: int) -> None:
        scripts = self.proxies("scripts", port)
        if scripts:
            # A copy that comes within the limit of an answered request may bring back what was
            # released, for a lease: no network does that to TCP, so this one comes later.
            number = LEASE_MS // 5 if kind == "twice" else self.random.randint(0, 400)
            skip = self.random.randint(0, 3)
            self.proxies("arm", port, self.random.choice(scripts), skip, kind, number)

    def while_away(self) -> float:
        """Sometimes for longer than a lease: then holds are lost, and told so."""
        return self.random.choice([0.2, 0.5, 1.0, LEASE_MS / 1000 + 2])

    def away(self, port: int) -> None:
        self.proxies("silent", port, 1)
        self.later(self.while_away(), lambda: self.proxies("silent", port, 0))

    def later(self, seconds: float, what: Callable[[], object]) -> None:
        timer = threading.Timer(seconds, what)
        self.timers = [*(other for other in self.timers if other.is_alive()), timer]
        timer.start()

    def delete(self, name: str | None, *command: str) -> None:
        called = now()
        self.redis(*command)
        self.deletions.append((name, Deletion(called, now())))

    def leaks(self) -> list[str]:
        """All that is left on the server when every client is closed."""
        end = time.monotonic() + PATIENCE
        while True:
            left = self.left()
            for redis in self.connections():
                if own := [line for line in redis("CLIENT", "LIST").splitlines() if self.is_own(line)]:
                    left += [*redis("PUBSUB", "CHANNELS"), *(f"a connection: {line}" for line in own)]
            if not left or time.monotonic() > end:
                return left
            time.sleep(0.05)

    def is_own(self, line: str) -> bool:
        """Whether a connection is of one of our programs. Ports are used again, and another program may look for its server here."""
        found = re.search(r"name=redlatch;\S*pid=(\d+)", line)
        return found is not None and int(found[1]) in self.pids

    def left(self) -> list[str]:
        """The keys that should be gone; the counters of the tokens stay."""
        keys = [key for redis in self.connections() for key in redis("KEYS", "*")]
        return [key for key in keys if not key.startswith(COUNTERS)]

    def connections(self) -> list[Redis]:
        """One to each server."""
        return [self.redis]

    def judge(self, program: Path | None, skipped: str, leaks: int) -> Judged:
        """By the checkers, of which Porcupine may be missing. The folder has then what they need to judge it again."""
        files = [file for worker in self.workers for file in worker.files]
        soaked = Soaked(LEASE_MS * 1e6, files, self.deletions, self.margin_ms * 1e6, self.lingers_ms * 1e6)
        soaked.save(self.folder)
        verdict, opinion = soaked.judge(program)
        delays = [percentile(verdict.delays, share) for share in (0.5, 0.99)]
        wrong = [*report(verdict, opinion)]
        wrong += [f"{worker.who} acquired nothing" for worker in self.workers if not worker.granted]
        figures = [
            f"told after a deletion: holds={len(verdict.delays)} p50={delays[0]:.1f} ms p99={delays[1]:.1f} ms",
            f"{verdict.acquisitions / self.minutes / 60:.0f} acquisitions a second",
            summary(verdict),
            opinion.summary() if opinion else skipped,
            f"soak: minutes={self.minutes:g} operations={verdict.operations} faults={self.faults.total()} "
            f"lost_told={verdict.told} overlaps={verdict.overlaps} leaks={leaks}",
        ]
        return Judged(wrong, verdict.ends, figures)

    def close(self) -> None:
        for worker in self.workers:
            if worker.process.poll() is None:
                worker.process.kill()
                worker.process.wait()
        self.proxies.close()
        self.stop_servers()

    def stop_servers(self) -> None:
        self.redis.close()
        self.server.close()


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[round((len(values) - 1) * share)] / 1e6 if values else 0.0
