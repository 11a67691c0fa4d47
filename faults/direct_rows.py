"""The same things again on the direct connection, where callers do their calls themselves.

The proxy knows that connection by what is said first on it, and nothing happens to others: a cell in which no call went there
fails. The engine settles the rest of a call that went wrong, on its own connection.
"""

from __future__ import annotations

from operations import DIRECT, cut_everywhere
from server_rows import TROUBLES, Play, acquires, holds, lost, on, releases
from topology_rows import network
from world import Cell

WHERE = "direct: "


def deleted_there(cell: Cell) -> None:
    """Nobody is told on the direct connection; what is held for more than a moment is looked at on another one."""
    cell.ready("a")
    cell.until_direct(lambda: cell.ok("acquire"), lambda: cell.ok("release"))
    cell.redis("DEL", cell.lock)
    lost(cell, "deleted")
    cell.works()


def is_playable(language: str, row: str, operation: str) -> bool:
    """Event loops wait 100 us for an answer. Behind the proxy hardly one is that quick. So a call that
    needs a quick call before it never goes there."""
    following = {"node": ("extend", "release one level"), "asyncio": ("release one level",)}
    return not (row.startswith(WHERE) and operation in following.get(language, ()))


def rows(network_rows: dict[str, tuple[str, int]]) -> list[tuple[str, str, Play]]:
    found: list[tuple[str, str, Play]] = [
        (WHERE + row, operation, on(network(operation, *fault), direct=True))
        for row, fault in network_rows.items()
        for operation in DIRECT
    ]
    for what, action in (("request", "cut-request"), ("reply", "cut-reply")):
        for operation in ("acquire", "release"):
            everywhere = cut_everywhere(action, operation, direct=True)
            found.append((f"{WHERE}{what} cut at every byte", operation, everywhere))
    for row, trouble, options in TROUBLES:
        for name, way in (("acquire", acquires), ("hold", holds), ("release", releases)):
            found.append((WHERE + row, name, on(way(trouble), direct=True, **options)))
    return [*found, (f"{WHERE}key deleted", "hold", on(deleted_there, direct=True))]


def rows_on_sentinel(network_rows: dict[str, tuple[str, int]]) -> list[tuple[str, str, Play]]:
    return [
        (WHERE + row, operation, on(network(operation, *fault), topology="sentinel", direct=True))
        for row, fault in network_rows.items()
        for operation in ("acquire", "release")
    ]
