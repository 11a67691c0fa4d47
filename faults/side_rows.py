"""Faults while a caller reads or writes, and another client writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from operations import OPERATIONS, play
from process_rows import killed, killed_while_waiting, stopped_past_its_lease, stopped_within_its_lease
from server_rows import (
    Play,
    connections_killed,
    flushed,
    flushed_while_waiting,
    forced_by_itself,
    holds,
    no_room,
    on,
    releases,
    restarted_while_waiting,
    silent_for_a_while,
    stopped_for,
    taken_by_another_type,
    waits,
    wake_up_lost,
)
from world import SIDES, Cell, Kind, World

# The network rows in which the client cannot know what the server has done.
UNKNOWN = [
    "request lost with its connection",
    "reply lost with its connection",
    "reply and connection black-holed",
    "late copy of an answered request",
]


def network_play(side: str, operation: str, action: str, number: int) -> Play:
    def perform(world: World, kind: Kind) -> None:
        cell = Cell(world, f"{side}: {action} / {operation}", kind, side=side)
        try:
            play(cell, operation, action, number)
        finally:
            cell.close()

    return perform


def rows_of(side: str, network: dict[str, tuple[str, int]]) -> list[tuple[str, str, Play]]:
    found = [
        (f"{side} lock: {row}", operation, network_play(side, operation, *network[row]))
        for row in UNKNOWN
        for operation in OPERATIONS
    ]
    here: dict[str, Any] = {"side": side}
    own: dict[str, Any] = {"own_server": True, **here}
    alone: dict[str, Any] = {"own_driver": True, **here}
    others: list[tuple[str, str, Callable[[Cell], None], dict[str, Any]]] = [
        ("FLUSHALL", "hold", flushed, own),
        ("FLUSHALL", "wait", flushed_while_waiting, own),
        ("another type at the key", "hold", taken_by_another_type, here),
        ("force-release by the same client", "hold", forced_by_itself, here),
        ("server restarted empty", "wait", restarted_while_waiting, own),
        ("server stopped for 2 s", "hold", holds(stopped_for(2.0)), own),
        ("server stopped for 2 s", "wait", waits(stopped_for(2.0)), own),
        ("all connections killed", "hold", holds(connections_killed), here),
        ("all connections killed", "wait", waits(connections_killed), here),
        ("network away for 2 s", "hold", holds(silent_for_a_while), here),
        ("network away for 2 s", "release", releases(silent_for_a_while), here),
        ("wake-up lost", "wait", waits(wake_up_lost), here),
        ("server full", "hold, release, acquire", no_room, own),
        ("SIGSTOP past the lease", "hold", stopped_past_its_lease, alone),
        ("SIGSTOP within the lease", "hold", stopped_within_its_lease, alone),
        ("SIGKILL", "hold", killed, alone),
        ("SIGKILL", "wait", killed_while_waiting, alone),
    ]
    found += [
        (f"{side} lock: {row}", operation, on(perform, **options))
        for row, operation, perform, options in others
    ]
    return found


def rows(network: dict[str, tuple[str, int]]) -> list[tuple[str, str, Play]]:
    return [row for side in SIDES for row in rows_of(side, network)]
