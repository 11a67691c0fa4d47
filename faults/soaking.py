"""The base of the soaks of all models, and the model of locks, whose callers run in the programs of conformance/drivers."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from check import Deletion, File, summary
from second import Soaked, report
from world import PATIENCE, Failed, Proxies, Redis, Server, build

LEASE_MS = 3000
# Keys that are no locks: they stay.
COUNTERS = "redisson_lock_token:"
# Between two faults, on average, in seconds.
PAUSE = 0.5
ON_THE_WIRE = ("cut-request", "cut-reply", "hole", "reply-hole", "delay", "delay-reply", "twice", "stall")
OTHER = ("kill", "silent", "client kill", "pause", "script flush", "delete", "stop")
SELDOM = ("flushall", "process kill")
# Chances are per thousand. Most callers find their name free, some crowd at a few, some read and write at others.
PLAN = {
    "lease": LEASE_MS,
    "hot": 150,
    "hot_names": 4,
    "cold_names": 500,
    "shared": 150,
    "shared_names": 4,
    "reads": 700,
    "tries": 200,
    "fixed": 50,
    "reenter": 100,
    "extend": 30,
    "linger": 5,
    "oversleep": 1,
}
# The growth of a client's memory that is allowed while it does the same again and again: fragments, buffers, a collector's whims.
SLACK_KB = 32 * 1024


@dataclass
class Report:
    """The line that a worker ends with."""

    numbers: dict[str, int]

    def leaks(self) -> list[str]:
        names = ("holds", "waiting", "unreleased", "files", "threads")
        left = [f"{self.numbers[name]} {name}" for name in names if self.numbers[name]]
        return [*left, *([f"{self.numbers['memory']} kB"] if self.numbers["memory"] > SLACK_KB else [])]


@dataclass
class Judged:
    """The verdict of the checkers: all that is wrong, how often calls ended how, and figures."""

    wrong: list[str]
    ends: Counter[str]
    figures: list[str]


class Worker:
    """A place for a process in one language, behind a proxy of its own. Killed, it is started again."""

    def __init__(self, soak: Soak, language: str, number: int) -> None:
        self.soak, self.language, self.who = soak, language, f"{language}{number}"
        self.ports = soak.open_ways()
        self.port = self.ports[0]
        self.files: list[File] = []
        self.awake = threading.Event()
        self.start()

    def new_file(self) -> File:
        name = f"{self.who}.{len(self.files)}"
        self.files.append(File(self.soak.folder / name, name))
        return self.files[-1]

    def start(self) -> None:
        self.file = self.new_file()
        plan = PLAN | {
            "url": f"redis://127.0.0.1:{self.port}",
            "file": str(self.file.path),
            "until": self.soak.until,
            "callers": self.soak.callers,
            "seed": self.soak.random.getrandbits(32),
        }
        self.process = subprocess.Popen(
            [*self.soak.commands[self.language], "soak", json.dumps(plan)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.awake.set()

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
        self.process.kill()
        self.process.wait()
        self.file.died = time.monotonic_ns()
        self.start()

    def end(self) -> Report:
        self.awake.wait(PATIENCE)
        output, _ = self.process.communicate(timeout=2 * PATIENCE)
        if self.process.returncode != 0:
            raise Failed(f"{self.who} ended with {self.process.returncode}")
        return Report(json.loads(output))


class Soak:
    worker: type[Worker] = Worker
    # It judges again what was kept.
    judge_again = "second.py"
    other: tuple[str, ...] = OTHER
    seldom: tuple[str, ...] = SELDOM
    # For how long permits are kept beyond their lease, and a lock by a server of a quorum beyond its release.
    margin_ms = 0
    lingers_ms = 0

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
        self.minutes, self.seed, self.callers, self.folder = minutes, seed, callers, folder
        self.random = random.Random(seed)
        # Built in that profile, those of Rust and C. Python and Node.js find the packages that are there.
        every = build.ours(profile)
        self.commands = {language: every[language]().command for language in languages or every}
        self.proxies = Proxies(profile)
        self.start_servers()
        self.until = time.monotonic_ns() + int(minutes * 60e9)
        self.workers = [
            self.worker(self, language, number) for language in self.commands for number in range(processes)
        ]
        self.faults: Counter[str] = Counter()
        self.deletions: list[tuple[str | None, Deletion]] = []
        self.timers: list[threading.Timer] = []

    def start_servers(self) -> None:
        self.server = Server()
        self.redis = Redis(self.server.port)

    def open_ways(self) -> list[int]:
        """A worker's proxies."""
        return [int(self.proxies("open", self.server.port)[0])]

    def run(self) -> dict[str, Report]:
        while time.monotonic_ns() < self.until:
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
        sort = self.random.choice(["hot", "shared"])
        name = f"{sort}{self.random.randrange(PLAN[f'{sort}_names'])}"
        return name, [name]

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
        called = time.monotonic_ns()
        self.redis(*command)
        self.deletions.append((name, Deletion(called, time.monotonic_ns())))

    def leaks(self) -> list[str]:
        """All that is left on the server when every client is closed."""
        end = time.monotonic() + PATIENCE
        while True:
            left = self.left()
            for redis in self.connections():
                lines = redis("CLIENT", "LIST").splitlines()
                left += redis("PUBSUB", "CHANNELS")
                left += [f"a connection: {line}" for line in lines if "name=redlatch" in line]
            if not left or time.monotonic() > end:
                return left
            time.sleep(0.05)

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
        figures = [
            f"told after a deletion: holds={len(verdict.delays)} p50={delays[0]:.1f} ms p99={delays[1]:.1f} ms",
            f"{verdict.acquisitions / self.minutes / 60:.0f} acquisitions a second",
            summary(verdict),
            opinion.summary() if opinion else skipped,
            f"soak: minutes={self.minutes:g} operations={verdict.operations} faults={self.faults.total()} "
            f"lost_told={verdict.told} overlaps={verdict.overlaps} leaks={leaks}",
        ]
        return Judged([*report(verdict, opinion)], verdict.ends, figures)

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
