"""The fault matrix: what goes wrong x what the program is doing x language, on real servers.

matrix.py [--only WORD ...] [--drivers NAME ...] [--short] [--jobs N] [--scale full] [--release] [--report FILE]

Ends with `faults: rows=N cells=N failed=N`. A row is one thing that goes wrong; a cell is a row, an operation and a
language, and passes when the operation ends as it has to, counts are exact on both sides, nothing is left behind,
and the same client works on. `--scale full` is 10,000 waiters, 100,000 holds and a million names, for which there is
`--release`. `--short` plays one cell of every row, each row in another language or topology than the one before.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import counter_rows
import direct_rows
import multi_rows
import permit_rows
import program_rows
import programs
import quorum_rows
import side_rows
from clock_rows import CLOCK_ROWS
from crowd_rows import CROWD_ROWS
from hole_rows import HOLE_ROWS
from operations import EVERY_BYTE, OPERATIONS
from permit_rows import killed_at_random
from process_rows import PROCESS_ROWS
from program_rows import PROGRAM_ROWS
from server_rows import SERVER_ROWS, on
from suspend_rows import SUSPEND_ROWS
from topologies import KINDS as TOPOLOGIES
from topology_rows import LANGUAGES as TOPOLOGY_LANGUAGES
from topology_rows import network, performances
from world import LANGUAGES, LIMIT_MS, Failed, Kind, World, sides

# Rows that the proxy makes: the action, and its number.
NETWORK_ROWS: dict[str, tuple[str, int]] = {
    "request lost with its connection": ("cut-request", 0),
    "request cut in the middle": ("cut-request", 60),
    "reply lost with its connection": ("cut-reply", 0),
    "reply cut in the middle": ("cut-reply", 7),
    "request and connection black-holed": ("hole", 0),
    "reply and connection black-holed": ("reply-hole", 0),
    "request later than its limit": ("delay", LIMIT_MS + 300),
    "reply later than its limit": ("delay-reply", LIMIT_MS + 300),
    "request slow": ("delay", LIMIT_MS // 2),
    "late copy of an answered request": ("twice", 2 * LIMIT_MS),
    "request stalled and done after its connection broke": ("stall", LIMIT_MS // 2),
}

# The column of a cell in which the languages play together.
TOGETHER = Kind("all at once", ())

OTHER_ROWS = [
    *EVERY_BYTE,
    *SERVER_ROWS,
    *CLOCK_ROWS,
    *SUSPEND_ROWS,
    *HOLE_ROWS,
    *PROCESS_ROWS,
    *direct_rows.rows(NETWORK_ROWS),
    *side_rows.rows(NETWORK_ROWS),
    *counter_rows.rows(NETWORK_ROWS),
    *multi_rows.rows(NETWORK_ROWS),
    *quorum_rows.rows(NETWORK_ROWS),
]


@dataclass
class Task:
    """A cell to be played."""

    row: str
    operation: str
    kind: Kind
    play: Callable[[World, Kind], None]
    topology: str = ""
    failure: str = ""
    took: float = 0.0

    @property
    def title(self) -> str:
        return f"{self.row} / {self.operation} [{self.column}]"

    @property
    def column(self) -> str:
        return f"{self.kind.name}, {self.topology}" if self.topology else self.kind.name


def tasks(world: World) -> list[Task]:
    found = []
    for kind in world.kinds:
        for row, fault in NETWORK_ROWS.items():
            found += [Task(row, name, kind, on(network(name, *fault))) for name in OPERATIONS]
        for row, operation, perform in OTHER_ROWS:
            if all(there.is_playable(kind.name, row, operation) for there in (direct_rows, side_rows)):
                found.append(Task(row, operation, kind, perform))
        if kind.name in TOPOLOGY_LANGUAGES:
            found += [Task(row, operation, kind, play) for row, operation, play in CROWD_ROWS]
        for more in PROGRAM_ROWS:
            if kind.name in more.languages:
                found.append(Task(more.name, more.operation, kind, more.play))
    found.append(Task("processes killed at random", "hold permits", TOGETHER, killed_at_random))
    return found + topology_tasks(world)


def topology_tasks(world: World) -> list[Task]:
    kinds = [kind for kind in world.kinds if kind.name in TOPOLOGY_LANGUAGES]
    found = [
        Task(row, operation, kind, on(perform, topology=topology), topology)
        for row, operation, perform in performances(NETWORK_ROWS)
        for kind in kinds
        for topology in TOPOLOGIES
    ]
    others = [
        (topology, *row)
        for topology in TOPOLOGIES
        for rows in (side_rows, counter_rows)
        for row in rows.rows_there(topology, NETWORK_ROWS)
    ]
    others += [("cluster", *row) for row in multi_rows.rows_there(NETWORK_ROWS)]
    others += [("sentinel", *row) for row in direct_rows.rows_on_sentinel(NETWORK_ROWS)]
    return found + [
        Task(row, operation, kind, there, topology)
        for topology, row, operation, there in others
        for kind in kinds
    ]


def one_of_each_row(found: list[Task]) -> list[Task]:
    """For those who have little time: another column with every row, so that each has its share."""
    by_row: dict[str, list[Task]] = defaultdict(list)
    for task in found:
        by_row[task.row].append(task)
    return [group[number * 7 % len(group)] for number, group in enumerate(by_row.values())]


def run(world: World, chosen: list[Task], jobs: int) -> None:
    shown = threading.Lock()

    def one(task: Task) -> None:
        begun = time.monotonic()
        try:
            task.play(world, task.kind)
        except Failed as error:
            task.failure = str(error)
        except Exception as error:
            task.failure = f"{type(error).__name__}: {error}"
        task.took = time.monotonic() - begun
        if task.failure:
            with shown:
                print(f"FAILED {task.title}: {task.failure}", flush=True)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, chosen))


def table(chosen: list[Task]) -> list[str]:
    """Cells passed of cells played, by row and by language and topology."""
    by_row: dict[str, list[Task]] = defaultdict(list)
    for task in chosen:
        by_row[task.row].append(task)
    columns = dict.fromkeys(task.column for task in chosen)
    lines = [
        "| what goes wrong | while | " + " | ".join(columns) + " |",
        "|---|---|" + "---:|" * len(columns),
    ]
    for row, group in by_row.items():
        operations = ", ".join(dict.fromkeys(task.operation for task in group))
        cells = []
        for column in columns:
            own = [task for task in group if task.column == column]
            cells.append(f"{sum(1 for task in own if not task.failure)}/{len(own)}" if own else "")
        lines.append(f"| {row} | {operations} | {' | '.join(cells)} |")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[], help="words that a cell's title must contain")
    parser.add_argument("--drivers", nargs="*", default=[], help="names of languages; all by default")
    parser.add_argument("--short", action="store_true", help="one cell of every row")
    parser.add_argument("--jobs", type=int, default=24)
    parser.add_argument("--scale", choices=["usual", "full"], default="usual")
    parser.add_argument(
        "--release", action="store_true", help="programs of Rust and C as `build --release` made them"
    )
    parser.add_argument("--report", type=Path)
    args = parser.parse_args()
    program_rows.full_size = args.scale == "full"
    programs.profile = "release" if args.release else "debug"
    permit_rows.killed = permit_rows.FEW if args.short else permit_rows.KILLED
    world = World(sides(args.drivers or LANGUAGES))
    try:
        chosen = [task for task in tasks(world) if all(word in task.title for word in args.only)]
        chosen = one_of_each_row(chosen) if args.short else chosen
        run(world, chosen, args.jobs)
    finally:
        world.close()
    failed = sum(1 for task in chosen if task.failure)
    lines = table(chosen)
    summary = f"faults: rows={len({task.row for task in chosen})} cells={len(chosen)} failed={failed}"
    print("\n".join(lines))
    print("\n".join(world.notes))
    if args.report and not failed:
        args.report.write_text("\n".join([*lines, "", summary]) + "\n")
    print(summary)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
