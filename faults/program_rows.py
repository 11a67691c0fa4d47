"""Faults inside the program: parts of it end, it stands still, it changes its mind, it is very large."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from programs import Program
from server_rows import Play
from world import PATIENCE, SOON, Cell, Kind, World

# Long enough for a busy machine, short enough to be outlived.
LEASE_MS = 3000
EVERYWHERE = ("rust", "python", "asyncio", "node", "c")


@dataclass(frozen=True)
class Size:
    """How much of something: by default, and with SCALE=full."""

    usual: int
    full: int
    # The limit in seconds for each thousand.
    patience: float = 0.0


CANCELLED = Size(100, 2000, 60)
WAITERS = Size(200, 10_000, 60)
HOLDS = Size(1000, 100_000, 10)
NAMES = Size(2000, 1_000_000, 5)
ONCE = Size(1, 1)
full_size = False


@dataclass
class Stage:
    """A cell, and the program that plays in it."""

    cell: Cell
    act: str
    size: int
    patience: float
    lease_ms: int = LEASE_MS

    def __post_init__(self) -> None:
        self.lock, self.busy = self.cell.lock, f"{self.cell.lock}:busy"
        self.program: Program | None = None

    def begin(self) -> Program:
        url = f"redis://127.0.0.1:{self.cell.server.port}"
        place = (url, self.lock, self.lease_ms, self.size)
        self.program = Program(self.cell.kind.name, self.act, *place)
        self.program.said("ready", PATIENCE)
        return self.program

    def hold_busy(self) -> None:
        """Somebody else holds what the program is to wait for."""
        self.cell.ok("acquire", "b", lock=self.busy)

    def free_busy(self) -> None:
        self.cell.ok("release", "b", lock=self.busy)

    def rival(self) -> Callable[[float], None]:
        """Somebody else waits for what the program holds; gives what awaits that."""
        waiting = self.cell.call("acquire", "b", wait_ms=int(PATIENCE * 1000), actor="rival")

        def served(within: float) -> None:
            begun = time.monotonic()
            self.cell.status({"ok"}, "the rival", waiting)
            took = time.monotonic() - begun
            self.cell.check(took < within, f"it was {took:.1f} s until somebody else had the lock")
            self.cell.ok("release", "b", actor="rival")

        return served

    def nothing_left(self) -> None:
        self.cell.eventually(lambda: not self.cell.redis("KEYS", f"{self.lock}*"), "keys are left", SOON)
        self.cell.eventually(lambda: not self.channels(), "somebody still listens", SOON)

    def channels(self) -> list[str]:
        names = self.cell.redis("PUBSUB", "CHANNELS")
        # Not fault12 for fault1.
        return [name for name in names if re.search(rf"\b{self.lock}(?!\d)", name)]


Perform = Callable[[Stage], None]


def forks(stage: Stage) -> None:
    stage.hold_busy()
    program = stage.begin()
    keys = stage.cell.redis("KEYS", f"{stage.lock}*")
    stage.cell.check(stage.lock in keys, f"the child released what its parent holds: {keys}")
    stage.cell.check(f"{stage.lock}:child" not in keys, "the child left what it held")
    program.go_on()
    time.sleep(LEASE_MS / 1000)
    stage.free_busy()
    program.ended()
    stage.nothing_left()


def exits(code: int) -> Perform:
    def perform(stage: Stage) -> None:
        stage.hold_busy()
        program = stage.begin()
        served = stage.rival()
        program.go_on()
        program.ended(code)
        served(LEASE_MS / 1000 + SOON)
        stage.free_busy()
        stage.nothing_left()

    return perform


def owner_ends(stage: Stage) -> None:
    program = stage.begin()
    served = stage.rival()
    program.go_on()
    served(LEASE_MS / 1000 + SOON)
    ends_well(stage)


def runtime_ends(stage: Stage) -> None:
    stage.hold_busy()
    program = stage.begin()
    program.go_on()
    program.said("done", stage.patience)
    program.ended()
    stage.free_busy()
    stage.nothing_left()


def stands_still(stage: Stage) -> None:
    program = stage.begin()
    served = stage.rival()
    owners = stage.cell.redis("HKEYS", stage.lock)
    program.go_on()
    program.said("ready", stage.patience)
    now = stage.cell.redis("HKEYS", stage.lock)
    stage.cell.check(now == owners, f"{now} hold it, and not {owners}")
    program.go_on()
    served(SOON)
    ends_well(stage)


def goes_on(stage: Stage) -> None:
    stage.begin().go_on()
    ends_well(stage)


def ends_well(stage: Stage) -> None:
    assert stage.program
    stage.program.said("done", stage.patience)
    stage.program.ended()
    stage.nothing_left()


# The direct connection may be made meanwhile, by a thread that ends a second later.
DIRECT = 1


def does_not_grow(kib_each: float) -> Perform:
    """Between the two reports nothing grows by more than the noise of an allocator and so much for each."""

    def perform(stage: Stage) -> None:
        program = stage.begin()
        program.go_on()
        before = figures(program.said("before", stage.patience))
        program.said("done", stage.patience)
        after = figures([line for line in program.lines if line.startswith("after")][-1])
        program.ended()
        stage.nothing_left()
        told = f"{after} after {before}"
        allowed = NOISE_KIB + kib_each * stage.size
        stage.cell.check(after["memory"] - before["memory"] < allowed, f"memory: {told}")
        for what in ("threads", "descriptors"):
            stage.cell.check(after[what] <= before[what] + DIRECT, f"{what}: {told}")
        stage.cell.note(f"{stage.act} {stage.size}: {told}")

    return perform


NOISE_KIB = 8192


def figures(line: str) -> dict[str, int]:
    return {name: int(number) for name, number in re.findall(r"(\w+)=(\d+)", line)}


def holds(stage: Stage) -> None:
    program = stage.begin()
    program.go_on()
    program.said("held", stage.patience)
    program.said("ready", stage.patience)
    keys = sum(stage.cell.redis("EXISTS", f"{stage.lock}:{number}") for number in range(0, stage.size, 97))
    stage.cell.check(keys == len(range(0, stage.size, 97)), f"of every 97th only {keys} are there")
    program.go_on()
    ends_well(stage)
    stage.cell.note(f"holds {stage.size}: lease {stage.lease_ms} ms, three renewals")


def act(name: str, perform: Perform, size: Size = ONCE, own_server: bool = False) -> Play:
    def play(world: World, kind: Kind) -> None:
        cell = Cell(world, name, kind, own_server=own_server)
        number = size.full if full_size else size.usual
        patience = 2 * PATIENCE + size.patience * number / 1000
        # A lease that one renewal of all of them fits into many times, on a busy machine too.
        lease_ms = (
            max(4 * LEASE_MS, min(number, HOLDS.full) // 4) if size in (HOLDS, WAITERS, NAMES) else LEASE_MS
        )
        stage = Stage(cell, name, number, patience, lease_ms)
        try:
            perform(stage)
        finally:
            if stage.program:
                stage.program.close()
            cell.close()

    return play


@dataclass(frozen=True)
class Row:
    """A row, the operation, and the languages that it makes sense in."""

    name: str
    operation: str
    play: Play
    languages: tuple[str, ...] = EVERYWHERE


PYTHONS = ("python", "asyncio")

PROGRAM_ROWS: list[Row] = [
    # Node.js cannot fork.
    Row("fork", "hold, wait", act("fork", forks), ("rust", "python", "asyncio", "c")),
    # Waiting keeps a Node.js program alive: it cannot return then.
    Row("program returns", "hold, wait", act("exit-return", exits(0)), ("rust", "python", "asyncio", "c")),
    Row("program exits", "hold, wait", act("exit-exit", exits(3))),
    Row("program panics", "hold, wait", act("exit-panic", exits(101)), ("rust",)),
    Row("program raises", "hold, wait", act("exit-exception", exits(1)), (*PYTHONS, "node")),
    Row("thread or task ends", "hold", act("owner-ends", owner_ends), ("rust", "python", "asyncio", "c")),
    Row(
        "runtime, loop or worker ends",
        "hold, wait",
        act("runtime-ends", runtime_ends),
        ("rust", "asyncio", "node"),
    ),
    Row("guard dropped outside a runtime", "hold", act("dropped-anywhere", goes_on), ("rust",)),
    Row(
        "grant collected, lock freed",
        "hold",
        act("collected", owner_ends),
        (*PYTHONS, "node", "c"),
    ),
    Row("GIL held for three leases", "hold", act("gil", stands_still), PYTHONS),
    Row(
        "event loop blocked for three leases",
        "hold",
        act("blocked", stands_still),
        ("rust", "asyncio", "node"),
    ),
    Row("cancelled at every step", "all", act("cancel-steps", goes_on), ("rust", "asyncio", "node")),
    Row("cancelled at many instants", "acquire", act("cancel-instants", goes_on, CANCELLED)),
    Row(
        "cancelled when granted",
        "acquire",
        act("cancel-granted", goes_on, CANCELLED),
        ("rust", "asyncio", "node", "c"),
    ),
    Row("re-entry and release at once", "hold", act("race", goes_on, CANCELLED)),
    Row("many waiters on one name", "wait", act("waiters", does_not_grow(0.25), WAITERS, own_server=True)),
    Row("many holds", "hold", act("holds", holds, HOLDS, own_server=True)),
    Row("names used once", "acquire, release", act("names", does_not_grow(0.01), NAMES, own_server=True)),
]
