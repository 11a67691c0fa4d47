"""The holes that a review of the design found, one by one."""

from __future__ import annotations

import time
from collections.abc import Callable

from server_rows import TOLD, Performance, Play, on
from world import LEASE_MS, LIMIT_MS, PERMITS, SOON, Cell

# When a copy comes that nobody waits for any more: its time is over by then.
LATE = 2 * LIMIT_MS
# Long after everything that is done about a message at once.
LATE_MESSAGE = 1000


# ---- copies of a request that come after the next one ----


def acquired_late_again(cell: Cell) -> None:
    cell.arm("acquire", "twice", LATE)
    cell.ok("acquire")
    cell.ok("release")


def copy_finds_nobody(cell: Cell) -> None:
    acquired_late_again(cell)
    cell.wait_delivered()
    cell.check(cell.is_free(), "a late copy brought the lock back")
    cell.works()


def copy_finds_another(cell: Cell) -> None:
    acquired_late_again(cell)
    cell.ok("acquire", "b")
    cell.wait_delivered()
    cell.check(cell.counts() == ["1"] and cell.told("held", True, "b"), "a late copy touched another's hold")
    cell.ok("release", "b")
    cell.works()


def copy_finds_the_next_hold(cell: Cell) -> None:
    acquired_late_again(cell)
    cell.ok("acquire")
    cell.wait_delivered()
    cell.held_with(1)
    cell.ok("release")
    cell.works()


def release_finds_the_next_hold(cell: Cell) -> None:
    cell.arm("release", "twice", LATE)
    cell.ok("acquire")
    cell.ok("release")
    for _ in range(cell.levels):
        cell.ok("acquire")
    cell.wait_delivered()
    cell.held_with(cell.levels)
    for _ in range(cell.levels):
        cell.ok("release")
    cell.works()


def release_finds_another(cell: Cell) -> None:
    cell.arm("release", "twice", LATE)
    cell.ok("acquire")
    cell.ok("release")
    cell.ok("acquire", "b")
    cell.wait_delivered()
    cell.check(cell.counts() == ["1"] and cell.told("held", True, "b"), "a late copy released another's hold")
    cell.ok("release", "b")
    cell.works()


# ---- word of an older hold ----


def older(change: Callable[[Cell], None], status: str) -> Callable[[Cell], None]:
    """The word that a key has changed comes when its hold is over, and the next one has begun."""

    def play(cell: Cell) -> None:
        cell.ok("acquire")
        cell.tell("late", LATE_MESSAGE)
        change(cell)
        cell.status({status}, "release", cell.call("release"))
        cell.ok("acquire")
        cell.wait_delivered()
        # Its consequences are over when the next renewal is.
        cell.renewed()
        cell.held_with(1)
        cell.tell("late", 0)
        cell.ok("release")
        cell.works()

    return play


def deleted(cell: Cell) -> None:
    cell.redis("DEL", cell.lock)


def touched(cell: Cell) -> None:
    cell.redis("PEXPIRE", cell.lock, str(LEASE_MS))


# ---- forced ----


def forced_before_its_own_waiters(cell: Cell) -> None:
    """A client forces what it holds itself, while it waits for it too."""
    cell.ok("acquire")
    waiter = cell.call("acquire", wait_ms=60000, actor="waiter")
    # It waits in the client, in the order in which it was asked for.
    cell.ok("permits" if cell.side == PERMITS else "locked", actor="third")
    begun = time.monotonic()
    cell.check(cell.ok("force", actor="third")["value"], "there was nothing to delete")
    cell.status({"ok"}, "the waiter", waiter)
    cell.check(time.monotonic() - begun < SOON, "the waiter looks again too late")
    cell.eventually(lambda: not cell.told("held", False), "the forced hold is not told", TOLD)
    cell.status({"lost"}, "release", cell.call("release"))
    cell.check(cell.counts() == ["1"], f"the late release has left {cell.counts()}")
    cell.ok("release", actor="waiter")
    cell.works()


# ---- scripts denied halfway ----


def full_while_held(cell: Cell) -> None:
    """A full server refuses what is new; what is held is renewed, and comes free."""
    cell.ok("acquire")
    cell.redis("CONFIG", "SET", "maxmemory-policy", "noeviction")
    cell.redis("CONFIG", "SET", "maxmemory", "1")
    count = 1
    if cell.levels > 1:
        allowed = {"ok", "unavailable", "timeout", "server"}
        again = cell.status(allowed, "re-entry", cell.call("acquire", wait_ms=300))
        count = 2 if again["status"] == "ok" else 1
    time.sleep(1.5 * LEASE_MS / 1000)
    told = cell.told("count", count)
    cell.check(told == count and cell.told("held", True), f"the client counts {told}, and not {count}")
    cell.check(cell.left() > LEASE_MS / 3, "it is not renewed")
    for _ in range(count):
        cell.ok("release")
    cell.gone()
    cell.redis("CONFIG", "SET", "maxmemory", "0")
    cell.works()


def denied_halfway(command: str) -> Callable[[Cell], None]:
    """Whatever an acquisition and a release then are told, they leave nothing for longer than a lease."""

    def play(cell: Cell) -> None:
        cell.fencing = True
        cell.redis("ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all")
        cell.open("a")
        cell.redis("ACL", "SETUSER", "app", f"-{command}")
        reply = cell.status({"ok", "denied"}, "acquire", cell.call("acquire", wait_ms=20000))
        if reply["status"] == "ok":
            cell.held_with(1)
            cell.status({"ok", "denied", "unavailable"}, "release", cell.call("release"))
        else:
            cell.check(not cell.told("held", False), "denied, and it claims to hold")
        cell.gone(LEASE_MS / 1000 + SOON)
        cell.redis("ACL", "SETUSER", "app", f"+{command}")
        cell.works()

    play.__name__ = f"denied {command}"
    return play


# The commands of the scripts, and those of fencing.
COMMANDS = [
    "type",
    "time",
    "pttl",
    "hmget",
    "hset",
    "hlen",
    "pexpire",
    "get",
    "set",
    "hdel",
    "del",
    "publish",
]


COPIES: list[Performance] = [
    ("late copy of an acquire after its release", "nobody holds", copy_finds_nobody),
    ("late copy of an acquire after its release", "another holds", copy_finds_another),
    ("late copy of an acquire after its release", "held again", copy_finds_the_next_hold),
    ("late copy of a release", "another holds", release_finds_another),
    ("late copy of a release", "held again", release_finds_the_next_hold),
]
HOLE_ROWS: list[tuple[str, str, Play]] = [
    *((row, operation, on(perform)) for row, operation, perform in COPIES),
    ("invalidation of an older hold", "key deleted", on(older(deleted, "lost"))),
    ("invalidation of an older hold", "key touched", on(older(touched, "ok"))),
    ("force-release by the same client", "wait", on(forced_before_its_own_waiters)),
    ("server full", "re-enter, be renewed, release", on(full_while_held, own_server=True)),
    *(
        (
            "one command of the scripts denied",
            command,
            on(denied_halfway(command), own_server=True, user="app:secret@"),
        )
        for command in COMMANDS
    ),
]
