"""All languages at once on one server, with random faults, for MINUTES; the recorded history is checked.

soak.py [--minutes M] [--seed N] [--clients N] [--history FILE]

Ends with `history: acquisitions=N violations=N planted=N rejected=N` and
`soak: minutes=M operations=N faults=N lost_told=N overlaps=N leaks=N`.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import threading
import time
from collections import Counter
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import asdict
from pathlib import Path

from check import Hold, judge
from world import PATIENCE, Failed, Redis, World

LEASE_MS = 3000
NAMES = [f"soak{number}" for number in range(6)]
# Between two faults, on average.
PAUSE = 0.5
OTHER = ["kill", "silent", "client kill", "pause", "script flush"]


class Caller(threading.Thread):
    """A program in one language: one client behind a proxy of its own, one acquisition after the other."""

    def __init__(self, soak: Soak, kind: str, number: int) -> None:
        super().__init__(daemon=True)
        self.soak, self.driver = soak, soak.world.drivers[kind]
        self.who = f"{kind}{number}"
        self.random = random.Random(f"{soak.seed}/{self.who}")
        self.port = int(soak.world.proxies("open", soak.world.server.port)[0])
        self.history: list[Hold] = []
        self.operations = 0
        self.problem = ""

    def ask(self, op: str, name: str, **more: object) -> dict:
        self.operations += 1
        request = {"client": self.who, "lock": name, "as": "main", **more}
        return self.driver.ask(op=op, **request)[1].result(PATIENCE)

    def run(self) -> None:
        try:
            url = f"redis://127.0.0.1:{self.port}"
            opened = self.ask("open", "", url=url, watchdog_ms=LEASE_MS, fencing=True)
            if opened["status"] != "ok":
                raise Failed(f"open: {opened}")
            while time.monotonic() < self.soak.until:
                self.turn()
            self.ask("close", "")
        except (Failed, FutureTimeout, KeyError) as error:
            self.problem = f"{self.who}: {type(error).__name__} {error}"

    def turn(self) -> None:
        name = self.random.choice(NAMES)
        tried = self.random.random() < 0.2
        wait = 0 if tried else self.random.choice([200, 2000, 20000])
        hold = Hold(name, self.who, time.monotonic(), 0.0, "", tried)
        reply = self.ask("acquire", name, wait_ms=wait)
        hold.answered, hold.status, hold.token = time.monotonic(), reply["status"], reply.get("token")
        self.history.append(hold)
        if hold.granted:
            self.use(hold)

    def use(self, hold: Hold) -> None:
        levels = 1
        if self.random.random() < 0.2 and self.ask("acquire", hold.name, wait_ms=5000)["status"] == "ok":
            levels = 2
        told = self.ask("count", hold.name)["value"]
        # A hold that was lost meanwhile counts what is left to unwind.
        hold.counted, hold.told = levels, told
        if self.random.random() < 0.05:
            time.sleep(self.random.random() * LEASE_MS / 1000)
        for level in range(levels):
            if level == levels - 1:
                hold.freed = time.monotonic()
            hold.release = self.ask("release", hold.name)["status"]
        hold.done = time.monotonic()


class Soak:
    def __init__(self, minutes: float, seed: int, clients: int) -> None:
        self.seed, self.world = seed, World()
        self.until = time.monotonic() + minutes * 60
        self.random = random.Random(seed)
        self.faults: Counter[str] = Counter()
        self.redis = Redis(self.world.server.port)
        kinds = [kind.name for kind in self.world.kinds]
        self.callers = [Caller(self, kind, number) for kind in kinds for number in range(clients)]

    def run(self) -> None:
        for caller in self.callers:
            caller.start()
        while time.monotonic() < self.until:
            time.sleep(self.random.random() * 2 * PAUSE)
            self.fault()
        for caller in self.callers:
            self.world.proxies("silent", caller.port, 0)
            self.world.proxies("clear", caller.port)
        for caller in self.callers:
            caller.join(2 * PATIENCE)

    def fault(self) -> None:
        port = self.random.choice(self.callers).port
        script = self.random.choice([*self.world.scripts.values()])
        kind = self.random.choice(
            [
                "cut-request",
                "cut-reply",
                "hole",
                "reply-hole",
                "delay",
                "delay-reply",
                "twice",
                "stall",
                *OTHER,
            ]
        )
        self.faults[kind] += 1
        if kind == "kill":
            self.world.proxies("kill", port)
        elif kind == "silent":
            self.world.proxies("silent", port, 1)
            # Sometimes for longer than a lease: then holds are lost, and told so.
            time_away = self.random.choice([0.2, 0.5, 1.0, LEASE_MS / 1000 + 2])
            threading.Timer(time_away, self.world.proxies, ["silent", port, 0]).start()
        elif kind == "client kill":
            self.redis("CLIENT", "KILL", "TYPE", self.random.choice(["normal", "pubsub"]), "SKIPME", "yes")
        elif kind == "pause":
            self.redis("CLIENT", "PAUSE", self.random.randint(50, 500), "WRITE")
        elif kind == "script flush":
            self.redis("SCRIPT", "FLUSH")
        else:
            # A copy that comes within the limit of an answered request may bring back what was
            # released, for a lease: no network does that to TCP, so this one comes later.
            number = LEASE_MS // 5 if kind == "twice" else self.random.randint(0, 400)
            self.world.proxies("arm", port, script, self.random.randint(0, 3), kind, number)

    def leaks(self) -> list[str]:
        """What is left when every client is closed; the counters of the tokens stay."""
        end = time.monotonic() + PATIENCE
        while True:
            keys = [name for name in NAMES if self.redis("EXISTS", name)]
            channels = self.redis("PUBSUB", "CHANNELS")
            if not (keys or channels) or time.monotonic() > end:
                return [*keys, *channels]
            time.sleep(0.05)

    def close(self) -> None:
        self.world.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--clients", type=int, default=4, help="per language")
    parser.add_argument("--history", type=Path)
    args = parser.parse_args()
    soak = Soak(args.minutes, args.seed, args.clients)
    try:
        soak.run()
        leaks = soak.leaks()
    finally:
        soak.close()
    history = [hold for caller in soak.callers for hold in caller.history]
    if args.history:
        args.history.write_text("".join(json.dumps(asdict(hold)) + "\n" for hold in history))
    wrong, variants, rejected = judge(history, LEASE_MS / 1000)
    problems = [caller.problem for caller in soak.callers if caller.problem]
    for line in [*wrong[:20], *problems, *(f"left: {leak}" for leak in leaks)]:
        print(line)
    statuses = Counter(hold.release or hold.status for hold in history)
    print(f"seed {args.seed}; ends: {dict(statuses)}; faults: {dict(soak.faults)}")
    granted = sum(1 for hold in history if hold.granted)
    lost = sum(1 for hold in history if hold.release == "lost")
    overlaps = sum(1 for line in wrong if line.startswith("two hold"))
    operations = sum(caller.operations for caller in soak.callers)
    print(f"history: acquisitions={granted} violations={len(wrong)} planted={variants} rejected={rejected}")
    print(
        f"soak: minutes={args.minutes:g} operations={operations} faults={soak.faults.total()} "
        f"lost_told={lost} overlaps={overlaps} leaks={len(leaks)}"
    )
    return 1 if wrong or problems or leaks or rejected < variants else 0


if __name__ == "__main__":
    sys.exit(main())
