"""A selection of the rows of networks and servers, played on a Sentinel set and on a cluster."""

from __future__ import annotations

from collections.abc import Callable

from operations import OPERATIONS, play
from server_rows import (
    GOING,
    TROUBLES,
    WAYS,
    flushed,
    flushed_while_waiting,
    forced_by_another,
    forced_by_itself,
    only_pubsub_killed,
    taken_by_another_type,
    waits,
    wake_up_lost,
)
from world import Cell

Perform = Callable[[Cell], None]
# The faces that have most of the driver's paths between them.
LANGUAGES = ("rust", "asyncio")
PLAYED = ("acquire", "release", "be renewed", "wait")


def network(operation: str, action: str, number: int) -> Perform:
    """The operation, with this fault of the network."""
    return lambda cell: play(cell, operation, action, number)


def performances(network_rows: dict[str, tuple[str, int]]) -> list[tuple[str, str, Perform]]:
    found: list[tuple[str, str, Perform]] = [
        (row, operation, network(operation, *fault))
        for row, fault in network_rows.items()
        for operation in OPERATIONS
        if operation in PLAYED
    ]
    for row, trouble, _ in TROUBLES:
        found += [(row, name, way(trouble)) for name, way in WAYS.items()]
    return found + OTHERS


OTHERS: list[tuple[str, str, Perform]] = [
    ("FLUSHALL", "hold", flushed),
    ("FLUSHALL", "wait", flushed_while_waiting),
    ("another type at the key", "hold", taken_by_another_type),
    ("force-release by the same client", "hold", forced_by_itself),
    ("force-release by another client", "hold", forced_by_another),
    ("wake-up lost", "wait", waits(wake_up_lost)),
    ("pub/sub connection killed", "wait", waits(only_pubsub_killed)),
    *GOING,
]
