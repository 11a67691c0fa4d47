"""The soak of multi locks: soak.py with the model `multi`.

Each worker is a driver that serves requests. Callers ask it for one, two or three of a few names at once, in any order, and write
down what it answers, in the lines of `conformance/drivers/README.md`. Commas separate the names in such a line: the checkers
judge each name by itself, and the tries of all of them.
"""

from __future__ import annotations

from typing import Any

from permit_soak import FIXED, TRIES, WAITS_MS, Caller, DrivenSoak, PermitWorker, now
from soaking import LEASE_MS

NAMES = [f"part{number}" for number in range(8)]
# In a hundred cases: the holder enters again.
REENTERS = 10


class LockCaller(Caller):
    """One caller that takes locks."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.says_held = True

    def pick(self) -> str:
        return ",".join(self.random.sample(NAMES, self.random.choice([1, 2, 2, 3])))

    def about(self, name: str) -> dict[str, object]:
        return {"multi": True} if "," in name else {}

    def attempt(self) -> None:
        name, tried = self.pick(), self.chance(TRIES)
        more: dict[str, object] = {"wait_ms": 0 if tried else self.random.choice(WAITS_MS)}
        if self.chance(FIXED):
            more["lease_ms"] = LEASE_MS
        called = now()
        self.write(f"b {self.number} {name} {called}")
        status = self.ask("acquire", name, **more)["status"]
        begun = f"e {self.number} {name} {called} {now()} {status} {tried:d}"
        if status != "ok":
            return self.write(f"{begun} - 0 0 0 0 0 0 0 -")
        levels = 1
        if self.chance(REENTERS):
            levels += self.ask("acquire", name, wait_ms=LEASE_MS)["status"] == "ok"
        told = self.ask("count", name)["value"]
        sure, kept = self.hold(name, called)
        for _ in range(levels - 1):
            self.ask("release", name)
        freed = now()
        release = self.ask("release", name)["status"]
        self.write(f"{begun} - {levels} {told} {sure} {kept:d} 0 {freed} {now()} {release}")
        if release != "ok":
            self.owner += 1
        return None


class MultiWorker(PermitWorker):
    @property
    def caller(self) -> type[Caller]:
        return LockCaller


class MultiSoak(DrivenSoak):
    worker = MultiWorker

    def a_key(self) -> tuple[str, list[str]]:
        name = self.random.choice(NAMES)
        return name, [name]
