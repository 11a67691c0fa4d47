"""The operations during which something goes wrong with a command."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from world import LEASE_MS, PATIENCE, SOON, Cell, Failed, Kind, World

# The network rows in which the client cannot know what the server has done.
UNKNOWN = [
    "request lost with its connection",
    "reply lost with its connection",
    "reply cut in the middle",
    "request and connection black-holed",
    "reply and connection black-holed",
    "late copy of an answered request",
    "request stalled and done after its connection broke",
]
# The answers of a try when the server was not heard.
UNHEARD = {"ok", "timeout", "unavailable"}


def acquire(cell: Cell, arm: Callable[[str], None]) -> None:
    arm("acquire")
    cell.ok("acquire", wait_ms=30000)
    cell.held_with(1)
    cell.ok("release")


def try_once(cell: Cell, arm: Callable[[str], None]) -> None:
    cell.ready("a")
    arm("acquire")
    reply = cell.status(UNHEARD, "try", cell.call("acquire", wait_ms=0))
    if reply["status"] == "ok":
        cell.held_with(1)
        cell.ok("release")


def re_enter(cell: Cell, arm: Callable[[str], None]) -> None:
    cell.ok("acquire")
    arm("acquire")
    cell.ok("acquire", wait_ms=30000)
    cell.held_with(2)
    cell.ok("release")
    cell.held_with(1)
    cell.ok("release")


def extend(cell: Cell, arm: Callable[[str], None]) -> None:
    cell.ok("acquire")
    arm("renew")
    cell.ok("extend", lease_ms=3 * LEASE_MS)
    extended(cell)


def extended(cell: Cell) -> None:
    left = cell.left()
    cell.check(left > 2 * LEASE_MS, f"{left} ms remain after an extension to {3 * LEASE_MS}")
    cell.held_with(1)
    cell.ok("release")


def release(cell: Cell, arm: Callable[[str], None]) -> None:
    cell.ok("acquire")
    arm("release")
    cell.ok("release")


def release_one_level(cell: Cell, arm: Callable[[str], None]) -> None:
    cell.ok("acquire")
    cell.ok("acquire")
    arm("lower")
    cell.ok("release")
    cell.held_with(1)
    cell.ok("release")


def be_renewed(cell: Cell, arm: Callable[[str], None]) -> None:
    cell.ok("acquire")
    arm("renew")
    cell.wait_fired()
    # The next renewal that gets through brings the time back to nearly the whole lease.
    cell.eventually(lambda: cell.left() > LEASE_MS * 0.8, "it is not renewed any more")
    cell.held_with(1)
    cell.ok("release")


def wait(cell: Cell, arm: Callable[[str], None]) -> None:
    cell.ok("acquire", "b")
    waiter = cell.call("acquire", wait_ms=60000)
    cell.waiting()
    arm("acquire")
    begun = time.monotonic()
    cell.ok("release", "b")
    cell.status({"ok"}, "the waiter", waiter)
    took = time.monotonic() - begun
    cell.check(took < SOON, f"the waiter waited {took:.1f} s for a free lock")
    cell.held_with(1)
    cell.ok("release")


OPERATIONS: dict[str, Callable[[Cell, Callable[[str], None]], None]] = {
    "acquire": acquire,
    "try": try_once,
    "re-enter": re_enter,
    "extend": extend,
    "release": release,
    "release one level": release_one_level,
    "be renewed": be_renewed,
    "wait": wait,
}


def extend_at_once(cell: Cell, arm: Callable[[str], None]) -> None:
    """A hold of more than a few milliseconds is watched by the server, and then extended the other way."""
    cell.ready("a")
    arm("renew")
    cell.ok("acquire", extend_ms=3 * LEASE_MS)
    extended(cell)


def busy(cell: Cell, arm: Callable[[str], None]) -> None:
    cell.ok("acquire", "b")
    cell.ready("a")
    # If a channel is still subscribed from the last time, the first try goes the other way.
    cell.eventually(lambda: cell.subscribers() == 0, "somebody still listens")
    arm("acquire")
    waiter = cell.call("acquire", wait_ms=60000)
    cell.waiting()
    cell.ok("release", "b")
    cell.status({"ok"}, "the waiter", waiter)
    cell.held_with(1)
    cell.ok("release")


# The calls that a caller can make on the inline connection.
DIRECT: dict[str, Callable[[Cell, Callable[[str], None]], None]] = {
    **{name: act for name, act in OPERATIONS.items() if name not in ("be renewed", "wait")},
    "extend": extend_at_once,
    "wait": busy,
}


Played = Mapping[str, Callable[[Any, Callable[[str], None]], None]]


def play(cell: Cell, operation: str, action: str, number: int, played: Played = OPERATIONS) -> None:
    strike(cell, operation, action, number, played)
    if action in ("twice", "stall"):
        cell.wait_delivered()
    cell.works()


def strike(cell: Cell, operation: str, action: str, number: int, played: Played = OPERATIONS) -> None:
    """Plays the operation with the fault; on the direct connection as often as it takes for its call to go there."""
    # An event loop's calls go there while answers come quickly: on a busy machine now and then.
    before, armed, end = cell.fired(0), False, time.monotonic() + 5 * PATIENCE

    def arm(script: str) -> None:
        nonlocal armed
        if not armed:
            cell.arm(script, action, number)
        armed = True

    act = (DIRECT if cell.direct else played)[operation]
    act(cell, arm)
    while cell.direct and cell.fired(0) == before:
        cell.check(time.monotonic() < end, "the call never goes over the direct connection")
        act(cell, arm)
    cell.wait_fired(before + 1)


# ---- every byte ----

# All of them in Rust, and as many as this elsewhere.
OFFSETS = 16
# How many clients share the offsets.
CLIENTS = 8


def cut_everywhere(action: str, operation: str, direct: bool = False) -> Callable[[World, Kind], None]:
    def perform(world: World, kind: Kind) -> None:
        size = frame_size(world, kind, action, operation, direct)
        step = 1 if kind.name == "rust" else max(1, size // OFFSETS)
        offsets = [*range(0, size + 1, step)]
        clients = CLIENTS if kind.name == "rust" else 2

        def share(first: int) -> None:
            # A short lease, so that a copy without an answer is soon over.
            with Cell(world, f"{action} everywhere", kind, lease_ms=4000, direct=direct) as cell:
                for offset in offsets[first::clients]:
                    cut_at(cell, action, operation, offset)
                cell.works()

        with ThreadPoolExecutor(clients) as pool:
            list(pool.map(share, range(clients)))

    return perform


def frame_size(world: World, kind: Kind, action: str, operation: str, direct: bool) -> int:
    """How long the command is, or its reply."""
    with Cell(world, "size", kind, direct=direct) as cell:
        cut_at(cell, "cut-reply", operation, 0)
        _, request, reply, _ = cell.tell("fired")
    return int(request if action == "cut-request" else reply)


def cut_at(cell: Cell, action: str, operation: str, offset: int) -> None:
    try:
        strike(cell, operation, action, offset)
        cell.gone()
    except Failed as error:
        raise Failed(f"cut at byte {offset}: {error}") from error


EVERY_BYTE = [
    ("request cut at every byte", "acquire", cut_everywhere("cut-request", "acquire")),
    ("request cut at every byte", "release", cut_everywhere("cut-request", "release")),
    ("reply cut at every byte", "acquire", cut_everywhere("cut-reply", "acquire")),
    ("reply cut at every byte", "release", cut_everywhere("cut-reply", "release")),
]
