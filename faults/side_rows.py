"""Faults while a caller reads or writes, and another client writes; and while both take permits of a semaphore."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from clock_rows import HOUR, back_while_held, by, with_clock
from hole_rows import (
    COPIES,
    denied_halfway,
    forced_before_its_own_waiters,
    full_while_held,
)
from operations import OPERATIONS
from process_rows import ENDS
from server_rows import (
    GOING,
    Play,
    acquires,
    asleep,
    connections_killed,
    flushed,
    flushed_while_waiting,
    forced_by_another,
    forced_by_itself,
    holds,
    no_room,
    on,
    only_pubsub_killed,
    paused,
    refused_for_a_while,
    releases,
    restarted_while_waiting,
    scripts_flushed,
    silent_for_a_while,
    stopped,
    taken_by_another_type,
    waits,
    wake_up_lost,
)
from suspend_rows import (
    past_its_lease,
    suspended,
    while_waiting,
    with_the_grant_on_its_way,
    within_its_lease,
)
from topology_rows import PLAYED, network
from world import PERMITS, SIDES, Cell

# The network rows in which the client cannot know what the server has done.
UNKNOWN = [
    "request lost with its connection",
    "reply lost with its connection",
    "reply and connection black-holed",
    "late copy of an answered request",
]


# A caller that has permits does not enter again, but takes others.
LEVELS = ("re-enter", "release one level")


def is_playable(language: str, row: str, operation: str) -> bool:
    """The driver of Python extends no permits."""
    return not (
        language in ("python", "asyncio") and row.startswith(name_of(PERMITS)) and operation == "extend"
    )


def name_of(side: str) -> str:
    return side if side == PERMITS else f"{side} lock"


def rows_of(side: str, faults: dict[str, tuple[str, int]]) -> list[tuple[str, str, Play]]:
    found = [
        (f"{name_of(side)}: {row}", operation, on(network(operation, *faults[row]), side=side))
        for row in UNKNOWN
        for operation in OPERATIONS
        if not (side == PERMITS and operation in LEVELS)
    ]
    here: dict[str, Any] = {"side": side}
    own: dict[str, Any] = {"own_server": True, **here}
    alone: dict[str, Any] = {"own_driver": True, **here}
    others: list[tuple[str, str, Callable[[Cell], None], dict[str, Any]]] = [
        ("FLUSHALL", "hold", flushed, own),
        ("FLUSHALL", "wait", flushed_while_waiting, own),
        ("force-release by the same client", "hold", forced_by_itself, here),
        ("server restarted empty", "wait", restarted_while_waiting, own),
        ("server stopped for 4 s", "hold", holds(stopped), own),
        ("server stopped for 4 s", "wait", waits(stopped), own),
        ("all connections killed", "hold", holds(connections_killed), here),
        ("all connections killed", "wait", waits(connections_killed), here),
        ("network away for 4 s", "hold", holds(silent_for_a_while), here),
        ("network away for 4 s", "release", releases(silent_for_a_while), here),
        ("wake-up lost", "wait", waits(wake_up_lost), here),
        ("server full", "hold, release, acquire", no_room, own),
        *((*performance, alone) for performance in ENDS),
    ]
    if side == PERMITS:
        others += more_of_permits(own, here)
    else:
        others.append(("another type at the key", "hold", taken_by_another_type, here))
    found += [
        (f"{name_of(side)}: {row}", operation, on(perform, **options))
        for row, operation, perform, options in others
    ]
    return found


def more_of_permits(
    own: dict[str, Any], here: dict[str, Any]
) -> list[tuple[str, str, Callable[[Cell], None], dict[str, Any]]]:
    """Their scripts are no lock's, and their leases are times of the server's clock."""
    limited: dict[str, Any] = {"user": "app:secret@", **own}
    return [
        ("force-release by another client", "hold", forced_by_another, here),
        ("force-release by the same client", "wait", forced_before_its_own_waiters, here),
        ("CLIENT PAUSE", "hold", holds(paused), own),
        ("CLIENT PAUSE", "acquire", acquires(paused), own),
        ("DEBUG SLEEP 4", "hold", holds(asleep), own),
        ("SCRIPT FLUSH", "hold", holds(scripts_flushed), own),
        ("SCRIPT FLUSH", "release", releases(scripts_flushed), own),
        ("connections refused for 4 s", "hold", holds(refused_for_a_while), here),
        ("pub/sub connection killed", "wait", waits(only_pubsub_killed), own),
        ("server full", "be renewed, release", full_while_held, own),
        *((*performance, here) for performance in (*COPIES, *GOING)),
        *(("one command of the scripts denied", name, denied_halfway(name), limited) for name in COMMANDS),
    ]


# The commands of the scripts that take and give back permits.
COMMANDS = [
    "time",
    "get",
    "set",
    "zscore",
    "zrangebyscore",
    "zrange",
    "zcard",
    "zadd",
    "zrem",
    "incrby",
    "persist",
    "pttl",
    "publish",
]

CLOCKS: list[tuple[str, str, Play]] = [
    # Permits are not lost then: they are kept until somebody wants them, and renewed before.
    ("server's clock 1 h forward", "acquire", by(HOUR, acquires, side=PERMITS)),
    ("server's clock 1 h forward", "hold", by(HOUR, holds, side=PERMITS)),
    ("server's clock 1 h forward", "wait", by(HOUR, waits, side=PERMITS)),
    ("server's clock 1 h back", "acquire", by(-HOUR, acquires, side=PERMITS)),
    ("server's clock 1 h back", "hold", with_clock(back_while_held, side=PERMITS)),
    ("server's clock 1 h back", "release", by(-HOUR, releases, side=PERMITS)),
    ("server's clock 1 h back", "wait", by(-HOUR, waits, side=PERMITS)),
    ("suspended past the lease", "hold", suspended(past_its_lease, side=PERMITS)),
    ("suspended within the lease", "hold", suspended(within_its_lease, side=PERMITS)),
    ("suspended past the lease", "wait", suspended(while_waiting, side=PERMITS)),
    ("suspended past the lease", "acquire", suspended(with_the_grant_on_its_way, side=PERMITS)),
]


def rows(faults: dict[str, tuple[str, int]]) -> list[tuple[str, str, Play]]:
    found = [row for side in (*SIDES, PERMITS) for row in rows_of(side, faults)]
    return found + [(f"{name_of(PERMITS)}: {row}", operation, play) for row, operation, play in CLOCKS]


def rows_there(topology: str, faults: dict[str, tuple[str, int]]) -> list[tuple[str, str, Play]]:
    """A selection for permits on a Sentinel set or a cluster."""
    found = [(row, name, network(name, *faults[row])) for row in UNKNOWN for name in PLAYED]
    found += [
        ("FLUSHALL", "hold", flushed),
        ("force-release by another client", "hold", forced_by_another),
        ("server stopped for 4 s", "hold", holds(stopped)),
        ("all connections killed", "hold", holds(connections_killed)),
        ("all connections killed", "wait", waits(connections_killed)),
        ("SCRIPT FLUSH", "release", releases(scripts_flushed)),
        ("wake-up lost", "wait", waits(wake_up_lost)),
    ]
    return [
        (f"{name_of(PERMITS)}: {row}", operation, on(perform, topology=topology, side=PERMITS))
        for row, operation, perform in found
    ]
