"""Faults while callers have the lock of a quorum of three servers: the loss of one server is none, and that of two is told.

Each server is behind a proxy of its own, and one or two of them are struck.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import operations
from hole_rows import COPIES
from operations import OPERATIONS, UNHEARD, UNKNOWN
from process_rows import ALONE, ENDS
from server import fields
from server_rows import (
    GOING,
    TOLD,
    TROUBLES,
    WAYS,
    Play,
    flushed_while_waiting,
    lost,
    on,
    only_pubsub_killed,
    waits,
    wake_up_lost,
)
from topologies import Separate
from world import PATIENCE, SOON, Cell, Kind, Redis, World

SERVERS = 3
MOST = 2
ONE, TWO, ALL = (0,), (0, 1), (0, 1, 2)
STRUCK = {"one of three": ONE, "two of three": TWO}
# For how long a server has no vote: longer than the short lease.
SHORT_MS, DELAY_MS = 2000, 4000


class Struck:
    """The servers that something happens to."""

    def __init__(self, cell: Voting) -> None:
        self.cell = cell

    def signal(self, name: str) -> None:
        for at in self.cell.at:
            self.cell.servers[at].signal(name)

    def __call__(self, *words: str | int) -> Any:
        """The answer of the last."""
        return [self.cell.looks[at](*words) for at in self.cell.at][-1]

    def close(self) -> None:
        """The cell closes its connections."""


class Voting(Cell):
    """A cell whose lock is on three servers. The struck ones: `at`."""

    behind: Separate
    # Nothing is struck while the cell is being made.
    at: tuple[int, ...] = ()

    def __init__(
        self, world: World, name: str, kind: Kind, *, at: tuple[int, ...], delay_ms: int = 0, **options: Any
    ) -> None:
        super().__init__(world, name, kind, **options)
        self.redis.close()
        self.at, self.options = at, {"restart_delay_ms": delay_ms}
        self.servers, self.ports = self.behind.servers, self.behind.ports
        self.looks = [Redis(server.port) for server in self.servers]
        self.server = self.redis = Struck(self)  # type: ignore[assignment]
        self.before_each = [[int(n) for n in self.ask(port, "fired")] for port in self.ports]

    def ask(self, port: int, *words: object) -> list[str]:
        word, *more = words
        return self.world.proxies(word, port, *more)

    # ---- what goes wrong ----

    def arm(self, script: str, action: str, number: int, skip: int = 0) -> None:
        for at in self.at:
            self.ask(self.ports[at], "arm", self.world.scripts["", script], skip, action, number)

    def tell(self, word: str, *more: object) -> list[str]:
        ports = [self.ports[at] for at in self.at] or [self.port]
        return [self.ask(port, word, *more) for port in ports][-1]

    def fired(self, place: int) -> int:
        """How often at each that is struck."""
        return min(
            int(self.ask(self.ports[at], "fired")[place]) - self.before_each[at][place] for at in self.at
        )

    def kill(self) -> None:
        for at in self.at:
            self.looks[at].close()
            self.servers[at].kill()

    def start(self) -> None:
        for at in self.at:
            self.servers[at].start()
            self.looks[at] = Redis(self.servers[at].port)

    def restart(self) -> None:
        self.kill()
        self.start()

    @property
    def struck(self) -> list[str]:
        return [self.lock] if len(self.at) >= MOST else []

    def wait_for_votes(self) -> None:
        """Waits until all have run for long enough."""

        def runs() -> int:
            return min(int(fields(info)["uptime_in_seconds"]) for info in self.each("INFO", "server"))

        self.eventually(lambda: runs() > DELAY_MS / 1000, "servers have no vote")

    # ---- what has to be ----

    def each(self, *words: str) -> list[Any]:
        """The answers of the servers that run; another one has nothing."""
        return [redis(*words) for redis, server in zip(self.looks, self.servers, strict=True) if server.alive]

    def having(self) -> int:
        return sum(self.each("EXISTS", self.lock))

    def counts(self) -> list[str]:
        """As most servers have it. One that was not reached may have what was there before."""
        # Another type at the key is an error.
        found = [
            fields[1::2] if isinstance(fields, list) else [] for fields in self.each("HGETALL", self.lock)
        ]
        found += [[]] * (SERVERS - len(found))
        most = max(found, key=found.count)
        return most if found.count(most) >= MOST else [f"{found} on the servers"]

    def left(self) -> int:
        return int(sorted(self.each("PTTL", self.lock))[-MOST])

    def is_free(self) -> bool:
        return self.having() == 0

    def subscribers(self) -> int:
        channel = f"redisson_lock__channel:{{{self.lock}}}"
        return sum(int(found[1]) for found in self.each("PUBSUB", "NUMSUB", channel))

    def gone(self, within: float = SOON) -> None:
        # A server that was not reached is asked again, for as long as its lease lasts.
        super().gone(max(within, self.lease_ms / 1000 + SOON))

    def whole_again(self) -> None:
        """The client uses all servers again."""

        def uses_all() -> bool:
            self.ok("acquire", wait_ms=20000)
            having = self.having()
            self.ok("release")
            return having == SERVERS

        self.eventually(uses_all, "it does not use all servers")

    def works(self) -> None:
        self.gone()
        self.whole_again()
        super().works()

    def close(self) -> None:
        super().close()
        for redis in self.looks:
            redis.close()


Perform = Callable[[Voting], None]


def voting(perform: Perform, at: tuple[int, ...], **options: Any) -> Play:
    return on(perform, Voting, "quorum", at=at, **options)


# ---- a command, or its answer, is lost ----


def try_once(cell: Voting, arm: Callable[[str], None]) -> None:
    """With most servers it is granted; otherwise nothing stays of it."""
    cell.ready("a")
    arm("acquire")
    allowed = {"ok"} if len(cell.at) < MOST else UNHEARD
    reply = cell.status(allowed, "try", cell.call("acquire", wait_ms=0))
    if reply["status"] == "ok":
        cell.held_with(1)
        cell.ok("release")


PLAYED = {**OPERATIONS, "try": try_once}


def network(operation: str, action: str, number: int) -> Perform:
    def play(cell: Voting) -> None:
        cell.ready("a")
        operations.play(cell, operation, action, number, PLAYED)

    play.__name__ = operation
    return play


# ---- keys and servers are lost ----


def flush(cell: Voting) -> None:
    cell.redis("FLUSHALL")


def delete(cell: Voting) -> None:
    cell.redis("DEL", cell.lock)


def retype(cell: Voting) -> None:
    cell.redis("SET", cell.lock, "mine now")


def stays(change: Perform) -> Perform:
    """One server forgets the lock: it stays held, is renewed on the others, and keeps everybody out."""

    def play(cell: Voting) -> None:
        cell.ok("acquire")
        change(cell)
        cell.status({"timeout"}, "another's try", cell.call("acquire", "b", wait_ms=0))
        cell.renewed()
        cell.check(cell.left() > cell.lease_ms / 2, "a renewal gives it too little time")
        cell.status({"timeout"}, "another's try", cell.call("acquire", "b", wait_ms=0))
        cell.held_with(1)
        cell.status({"timeout"}, "the loss", cell.call("lost", within_ms=0))
        cell.ok("release")
        if any(cell.each("TYPE", cell.lock)[at] == "string" for at in cell.at):
            delete(cell)
        cell.works()

    return play


def is_lost(change: Perform, *reasons: str) -> Perform:
    """Most servers forget the lock."""

    def play(cell: Voting) -> None:
        cell.ok("acquire")
        change(cell)
        lost(cell, *reasons)
        if any(kind == "string" for kind in cell.each("TYPE", cell.lock)):
            delete(cell)
        cell.works()

    return play


def held_by_the_rest(cell: Voting) -> None:
    """A server is gone for longer than the lease: the others are enough for everything."""
    cell.ok("acquire")
    cell.kill()
    longer = time.monotonic() + 1.2 * cell.lease_ms / 1000
    while time.monotonic() < longer:
        cell.renewed()
    cell.held_with(1)
    cell.status({"timeout"}, "another's try", cell.call("acquire", "b", wait_ms=0))
    waiter = cell.call("acquire", "b", wait_ms=60000)
    cell.waiting()
    cell.ok("release")
    cell.status({"ok"}, "the waiter", waiter, SOON)
    cell.ok("release", "b")
    for _ in range(2):
        cell.ok("acquire", wait_ms=20000)
    cell.held_with(2)
    cell.ok("extend", lease_ms=2 * cell.lease_ms)
    for _ in range(2):
        cell.ok("release")
    cell.start()
    cell.works()


def most_gone(cell: Voting) -> None:
    """Two of three are gone: the holder is told by the end of its lease, and nobody gets the lock until one is back."""
    cell.ok("acquire")
    cell.kill()
    within = cell.lease_ms + int(TOLD * 1000)
    reply = cell.ok("lost", within_ms=within)
    cell.check(reply["reason"] in ("unreachable", "expired"), f"lost: {reply}")
    cell.status({"lost"}, "release", cell.call("release"))
    cell.status({"unavailable", "timeout"}, "acquire", cell.call("acquire", wait_ms=300))
    waiter = cell.call("acquire", wait_ms=60000)
    cell.start()
    cell.status({"ok"}, "the waiter", waiter)
    cell.ok("release")
    cell.works()


def no_vote_at_once(cell: Voting) -> None:
    """A server that comes back empty is not used until its delay is over, while the lock stays held."""
    cell.wait_for_votes()
    cell.ok("acquire")
    cell.check(cell.having() == SERVERS, f"it is on {cell.having()} servers")
    began = time.monotonic()
    cell.restart()
    other = {"lock": f"{cell.lock}:other"}
    used = [0] * SERVERS
    while not all(used):
        cell.check(time.monotonic() - began < PATIENCE, "it never gets its vote back")
        cell.ok("acquire", wait_ms=20000, **other)
        at = time.monotonic()
        used = cell.each("EXISTS", other["lock"])
        is_early = at - began < DELAY_MS / 1000
        cell.check(not (is_early and used[cell.at[0]]), "it has a vote before its delay is over")
        cell.check(sum(used) >= MOST, f"granted by {used}")
        cell.ok("release", **other)
        cell.held_with(1)
        cell.status({"timeout"}, "another's try", cell.call("acquire", "b", wait_ms=0))
    cell.ok("release")
    cell.works()


def most_without_a_vote(cell: Voting) -> None:
    """Two come back empty: the loss is told, and nobody gets the lock before they have their votes."""
    cell.wait_for_votes()
    cell.ok("acquire")
    cell.ready("b")
    began = time.monotonic()
    cell.restart()
    reply = cell.ok("lost", within_ms=cell.lease_ms + int(TOLD * 1000))
    cell.check(reply["reason"] in ("unreachable", "expired", "deleted"), f"lost: {reply}")
    cell.status({"lost"}, "release", cell.call("release"))
    refused = cell.status({"unavailable"}, "acquire", cell.call("acquire", "b", wait_ms=300))
    cell.check("restart_delay" in refused["text"], f"refused: {refused}")
    cell.ok("acquire", "b", wait_ms=60000)
    took = time.monotonic() - began
    cell.check(took > DELAY_MS / 1000, f"granted {took:.1f} s after the restart")
    cell.ok("release", "b")
    cell.works()


def restarted_while_waiting(cell: Voting) -> None:
    cell.ok("acquire", "b")
    waiter = cell.call("acquire", wait_ms=60000)
    cell.waiting()
    cell.restart()
    if len(cell.at) < MOST:
        cell.renewed()
        cell.check(not waiter.done(), "a waiter has the lock that another holds")
        cell.ok("release", "b")
    else:
        cell.status({"lost"}, "release", cell.call("release", "b"))
    cell.status({"ok"}, "the waiter", waiter)
    cell.held_with(1)
    cell.ok("release")
    cell.works()


def flushed_while_another_waits(cell: Voting) -> None:
    """One server forgets the lock. The waiter goes on waiting until the holder releases it."""
    cell.ok("acquire", "b")
    waiter = cell.call("acquire", wait_ms=60000)
    cell.waiting()
    flush(cell)
    cell.renewed()
    cell.check(not waiter.done(), "a waiter has the lock that another holds")
    cell.ok("release", "b")
    cell.status({"ok"}, "the waiter", waiter, SOON)
    cell.held_with(1)
    cell.ok("release")
    cell.works()


# ---- rows ----

SHORT: dict[str, Any] = {"lease_ms": SHORT_MS}
DELAYED: dict[str, Any] = {"delay_ms": DELAY_MS, **SHORT}


def rows(network_rows: dict[str, tuple[str, int]]) -> list[tuple[str, str, Play]]:
    found: list[tuple[str, str, Play]] = []
    for how_many, at in STRUCK.items():
        found += [
            (f"{row}, {how_many}", operation, voting(network(operation, *network_rows[row]), at))
            for row in UNKNOWN
            for operation in PLAYED
        ]
        found += [
            (f"{row}, {how_many}", name, voting(way(trouble), at))
            for row, trouble, _ in TROUBLES
            for name, way in WAYS.items()
        ]
        found += [
            (f"{row}, {how_many}", operation, voting(perform, at)) for row, operation, perform in STRIKING
        ]
    found += [
        (row, operation, voting(perform, at, **options)) for row, operation, perform, at, options in OTHERS
    ]
    return [(f"quorum: {row}", operation, play) for row, operation, play in found]


STRIKING = [*GOING, *COPIES, ("server restarted empty", "wait", restarted_while_waiting)]
OTHERS: list[tuple[str, str, Perform, tuple[int, ...], dict[str, Any]]] = [
    ("key deleted, one of three", "hold", stays(delete), ONE, {}),
    ("key deleted, two of three", "hold", is_lost(delete, "deleted"), TWO, {}),
    ("another type at the key, one of three", "hold", stays(retype), ONE, {}),
    ("another type at the key, two of three", "hold", is_lost(retype, "stolen"), TWO, {}),
    ("FLUSHALL, one of three", "hold", stays(flush), ONE, {}),
    ("FLUSHALL, two of three", "hold", is_lost(flush, "deleted"), TWO, {}),
    ("FLUSHALL, one of three", "wait", flushed_while_another_waits, ONE, {}),
    ("FLUSHALL, two of three", "wait", flushed_while_waiting, TWO, {}),
    ("server restarted empty, one of three", "hold", stays(Voting.restart), ONE, {}),
    ("server restarted empty, one of three", "hold, with a delay", no_vote_at_once, ONE, DELAYED),
    ("server restarted empty, two of three", "hold, with a delay", most_without_a_vote, TWO, DELAYED),
    ("server gone, one of three", "hold, release, acquire, extend, wait", held_by_the_rest, ONE, SHORT),
    ("server gone, two of three", "hold, acquire", most_gone, TWO, SHORT),
    ("wake-up lost", "wait", waits(wake_up_lost), ALL, {}),
    ("pub/sub connection killed", "wait", waits(only_pubsub_killed), ALL, {}),
    *((*performance, ALL, ALONE) for performance in ENDS),
]
