"""The machine of the program is suspended: CLOCK_BOOTTIME has jumped when it goes on, CLOCK_MONOTONIC has not.

A machine cannot be suspended in a test, and a time namespace has one offset for good; so the clock is made to jump
under the running program. Two things differ from a real suspend: the server's clock does not stand still either, and the
kernel's timers do not fire at once.
"""

from __future__ import annotations

import struct
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clock_rows import shim
from server_rows import TOLD, Play
from world import LEASE_MS, SOON, Cell, Kind, World

SECOND = 1_000_000
# Longer than a lease, shorter than the wait of those who wait.
LONG = 30 * SECOND


def suspended(perform: Callable[[Cell, Callable[[int], None]], None], **options: Any) -> Play:
    def play(world: World, kind: Kind) -> None:
        with tempfile.TemporaryDirectory(prefix="redlatch-clock-") as folder:
            clock = Path(folder) / "ahead"
            clock.write_bytes(struct.pack("=q", 0))

            def jump(us: int) -> None:
                with open(clock, "r+b") as file:  # in place: the program has it mapped
                    file.write(struct.pack("=q", us))

            preload = ("env", f"LD_PRELOAD={shim()}", f"FAULTS_CLOCK={clock}", "FAULTS_CLOCK_OF=suspend")
            with Cell(world, "suspended", kind, own_driver=True, before=preload, **options) as cell:
                perform(cell, jump)

    return play


def past_its_lease(cell: Cell, jump: Callable[[int], None]) -> None:
    cell.ok("acquire")
    jump(LONG)
    # At once, before anything was heard of the server.
    cell.check(not cell.told("held", False), "a holder that slept past its lease believes that it holds")
    reply = cell.ok("lost", within_ms=int(TOLD * 1000))
    cell.check(reply["reason"] in ("expired", "unreachable"), f"lost: {reply}")
    cell.status({"lost"}, "release", cell.call("release"))
    cell.works()


def within_its_lease(cell: Cell, jump: Callable[[int], None]) -> None:
    cell.ok("acquire")
    jump(LEASE_MS * 1000 // 3)
    cell.check(cell.told("held", True), "it is not held any more")
    time.sleep(LEASE_MS / 1500)
    cell.check(cell.left() > LEASE_MS / 2, "it is not renewed")
    cell.held_with(1)
    cell.ok("release")
    cell.works()


def while_waiting(cell: Cell, jump: Callable[[int], None]) -> None:
    cell.ok("acquire", "b")
    waiter = cell.call("acquire", wait_ms=120_000)
    cell.waiting()
    jump(LONG)
    begun = time.monotonic()
    cell.ok("release", "b")
    cell.status({"ok"}, "the waiter", waiter)
    cell.check(time.monotonic() - begun < SOON, "the waiter looks again too late")
    cell.held_with(1)
    cell.ok("release")
    cell.works()


def with_the_grant_on_its_way(cell: Cell, jump: Callable[[int], None]) -> None:
    """The reply is older than the lease when it is read: it grants nothing."""
    cell.open("a")
    cell.arm("acquire", "delay-reply", 300)
    asked = cell.call("acquire", wait_ms=120_000)
    cell.wait_fired()
    jump(LONG)
    cell.status({"ok"}, "acquire", asked)
    cell.held_with(1)
    cell.ok("release")
    cell.works()


SUSPEND_ROWS: list[tuple[str, str, Play]] = [
    ("suspended past the lease", "hold", suspended(past_its_lease)),
    ("suspended within the lease", "hold", suspended(within_its_lease)),
    ("suspended past the lease", "wait", suspended(while_waiting)),
    ("suspended past the lease", "acquire", suspended(with_the_grant_on_its_way)),
]
