"""The server's wall clock jumps, by an hour. Nothing is promised for what is held then; all goes on after it."""

from __future__ import annotations

import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from server_rows import Play, acquires, lost, releases, waits
from world import LEASE_MS, SOON, Cell, Kind, World

HOUR = 3600 * 1_000_000
building = threading.Lock()
# Goes with the process.
place = tempfile.TemporaryDirectory(prefix="redlatch-clock-")
shims: list[Path] = []


def shim() -> Path:
    with building:
        if not shims:
            shims.append(Path(place.name) / "shim.so")
            source = str(Path(__file__).parent / "clock_shim.c")
            subprocess.run(["cc", "-O1", "-shared", "-fPIC", source, "-o", str(shims[0])], check=True)
    return shims[0]


def with_clock(perform: Callable[[Cell, Callable[[int], None]], None], **options: Any) -> Play:
    """A server whose clock can be set ahead, or behind for a negative number, by microseconds."""

    def play(world: World, kind: Kind) -> None:
        with tempfile.TemporaryDirectory(prefix="redlatch-clock-") as folder:
            clock, start = Path(folder) / "ahead", Path(folder) / "server"

            def ahead(us: int) -> None:
                # In place: the server has the file mapped.
                with open(clock, "r+b" if clock.exists() else "wb") as file:
                    file.write(struct.pack("=q", us))

            ahead(0)
            start.write_text(
                f'#!/bin/sh\nLD_PRELOAD={shim()} FAULTS_CLOCK={clock} exec {world.binary} "$@"\n'
            )
            start.chmod(0o755)
            with Cell(world, "clock", kind, own_server=True, binary=str(start), **options) as cell:
                before = int(cell.redis("TIME")[0])
                ahead(2 * HOUR)
                # The server reads its clock now and then, not for every command.
                cell.eventually(lambda: int(cell.redis("TIME")[0]) > before + 7000, "the clock cannot be set")
                ahead(0)
                cell.eventually(lambda: int(cell.redis("TIME")[0]) < before + 3600, "the clock cannot be set")
                perform(cell, ahead)

    return play


def by(us: int, way: Callable[[Callable[[Cell], None]], Callable[[Cell], None]], **options: Any) -> Play:
    return with_clock(lambda cell, ahead: way(lambda _: ahead(us))(cell), **options)


def forward_while_held(cell: Cell, ahead: Callable[[int], None]) -> None:
    cell.ok("acquire")
    ahead(HOUR)
    lost(cell, "deleted", "expired")
    cell.works()


def forward_while_waiting(cell: Cell, ahead: Callable[[int], None]) -> None:
    cell.ok("acquire", "b")
    waiter = cell.call("acquire", wait_ms=60000)
    cell.waiting()
    ahead(HOUR)
    begun = time.monotonic()
    cell.status({"ok"}, "the waiter", waiter)
    cell.check(time.monotonic() - begun < SOON + 3, "the waiter looks again too late")
    cell.held_with(1)
    cell.status({"lost"}, "release of what the clock has ended", cell.call("release", "b"))
    cell.held_with(1)
    cell.ok("release")
    cell.works()


def scripts(cell: Cell) -> int:
    """How many scripts the server has run."""
    stats = cell.redis("INFO", "commandstats")
    lines = (stats.decode() if isinstance(stats, bytes) else stats).splitlines()
    return sum(
        int(line.split("calls=")[1].split(",")[0]) for line in lines if line.startswith("cmdstat_eval")
    )


def back_while_held(cell: Cell, ahead: Callable[[int], None]) -> None:
    """The lease is an hour longer then. A renewal shortens no lease, so that only its script is seen."""
    for _ in range(cell.levels):
        cell.ok("acquire")
    ahead(-HOUR)
    before = scripts(cell)
    cell.eventually(lambda: scripts(cell) > before, "it is not renewed")
    cell.check(cell.left() > LEASE_MS, "a renewal has shortened the lease")
    cell.held_with(cell.levels)
    for _ in range(cell.levels):
        cell.ok("release")
    cell.works()


CLOCK_ROWS: list[tuple[str, str, Play]] = [
    ("server's clock 1 h forward", "acquire", by(HOUR, acquires)),
    ("server's clock 1 h forward", "hold", with_clock(forward_while_held)),
    ("server's clock 1 h forward", "wait", with_clock(forward_while_waiting)),
    ("server's clock 1 h back", "acquire", by(-HOUR, acquires)),
    ("server's clock 1 h back", "hold", with_clock(back_while_held)),
    ("server's clock 1 h back", "release", by(-HOUR, releases)),
    ("server's clock 1 h back", "wait", by(-HOUR, waits)),
]
