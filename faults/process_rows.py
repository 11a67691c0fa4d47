"""Faults of the process that holds."""

from __future__ import annotations

import time
from typing import Any

from server_rows import Performance, Play, on
from world import LEASE_MS, SOON, Cell


def stopped_past_its_lease(cell: Cell) -> None:
    cell.ok("acquire")
    waiter = cell.call("acquire", "b", wait_ms=60000)
    cell.waiting()
    cell.driver.signal("STOP")
    stopped = time.monotonic()
    cell.status({"ok"}, "the waiter", waiter)
    took = time.monotonic() - stopped
    cell.check(took < LEASE_MS / 1000 + SOON, f"a dead holder kept the lock for {took:.1f} s")
    cell.driver.signal("CONT")
    # Whatever it asks first, it is told the truth.
    cell.check(not cell.told("held", False), "a holder that slept past its lease believes that it holds")
    cell.status({"lost"}, "release", cell.call("release"))
    counts = cell.counts()
    cell.check(counts == ["1"], f"the late release has left {counts}")
    cell.ok("release", "b")
    cell.works()


def stopped_within_its_lease(cell: Cell) -> None:
    cell.ok("acquire")
    cell.driver.signal("STOP")
    # A renewal may have been due just then, and a busy machine needs the rest of the lease.
    time.sleep(LEASE_MS / 8000)
    cell.driver.signal("CONT")
    cell.held_with(1)
    cell.ok("release")
    cell.works()


def killed(cell: Cell) -> None:
    cell.ok("acquire")
    waiter = cell.call("acquire", "b", wait_ms=60000)
    cell.waiting()
    cell.driver.signal("KILL")
    died = time.monotonic()
    cell.status({"ok"}, "the waiter", waiter)
    took = time.monotonic() - died
    cell.check(took < LEASE_MS / 1000 + SOON, f"a dead holder kept the lock for {took:.1f} s")
    cell.ok("release", "b")
    cell.gone()


def killed_while_waiting(cell: Cell) -> None:
    cell.ok("acquire", "b")
    cell.call("acquire", wait_ms=60000)
    cell.waiting()
    cell.driver.signal("KILL")
    cell.eventually(lambda: cell.subscribers() == 0, "a dead process still listens")
    cell.ok("release", "b")
    cell.gone()


ENDS: list[Performance] = [
    ("SIGSTOP past the lease", "hold", stopped_past_its_lease),
    ("SIGSTOP within the lease", "hold", stopped_within_its_lease),
    ("SIGKILL", "hold", killed),
    ("SIGKILL", "wait", killed_while_waiting),
]
ALONE: dict[str, Any] = {"own_driver": True}
PROCESS_ROWS: list[tuple[str, str, Play]] = [
    (row, operation, on(perform, **ALONE)) for row, operation, perform in ENDS
]
