"""Faults while callers have a multi lock of two names: they have both or none, and the loss of one is that of the whole.

On a cluster the names lie on different nodes, and only one of these is struck.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import operations
from hole_rows import COPIES
from operations import OPERATIONS, UNKNOWN
from process_rows import ALONE, ENDS
from server_rows import (
    GOING,
    OWN,
    TOLD,
    TROUBLES,
    WAYS,
    Play,
    asleep,
    cancelled,
    closed_while_silent,
    flushed,
    flushed_while_waiting,
    holds,
    lost,
    no_room,
    on,
    only_pubsub_killed,
    restarted_while_waiting,
    timed_out,
    waits,
    wake_up_lost,
)
from world import LEASE_MS, MULTI, SOON, Cell, Kind, Redis, World

FIRST, SECOND = 0, 1
PLACES = ("first", "second")


class Several(Cell):
    """A cell whose lock has two names. The one of them that is struck: `at`."""

    def __init__(self, world: World, name: str, kind: Kind, *, at: int = SECOND, **options: Any) -> None:
        super().__init__(world, name, kind, **options)
        self.at = at
        self.about = {"multi": True}
        # Whether each command of the operation is for one name, and how many there are.
        self.alone, self.commands = self.behind is not None, 2
        self.names = self.two_names()
        self.lock = ",".join(self.names)
        self.redis.close()
        self.servers = [self.behind.place_of(each)[0] if self.behind else self.server for each in self.names]
        self.looks = [Redis(server.port) for server in self.servers]
        self.strike(at)

    @property
    def struck(self) -> list[str]:
        return [self.names[self.at]] if self.behind else self.names

    def two_names(self) -> list[str]:
        """In their order, and on two nodes if there are several."""
        first = f"{self.lock}a"
        others = (f"{self.lock}b{number}" for number in itertools.count())
        if self.behind:
            own = self.behind.place_of(first)
            return [first, next(name for name in others if self.behind.place_of(name) != own)]
        return [first, next(others)]

    def strike(self, at: int) -> None:
        """Sets what is struck: the server of this name, and the way to it."""
        self.server, self.redis = self.servers[at], self.looks[at]
        if self.behind:
            self.port = self.behind.place_of(self.names[at])[1]
        self.before = [int(number) for number in self.tell("fired")]

    def open(self, who: str) -> None:
        """The servers have all scripts then, and a rule is for a command that does something."""
        super().open(who)
        if who == "a":
            other = {"lock": ",".join(f"{name}:other" for name in self.names)}
            for op in ("acquire", "acquire", "extend", "release", "release"):
                self.ok(op, **other, lease_ms=LEASE_MS)

    def restart(self) -> None:
        for redis in self.looks:
            redis.close()
        self.server.restart()
        self.looks = [Redis(server.port) for server in self.servers]
        self.redis = self.looks[self.at]

    def arm(self, script: str, action: str, number: int, skip: int = 0) -> None:
        if not self.alone:
            hash_ = self.world.scripts[MULTI, script]
        else:
            hash_ = self.world.scripts["", script]
            # Commands for both names go there, one after the other.
            skip += self.at if self.commands == 2 and not self.behind else 0
        self.world.proxies("arm", self.port, hash_, skip, action, number)

    def each(self, *command: str) -> list[Any]:
        """The answers for the names."""
        verb, *words = command
        return [redis(verb, name, *words) for redis, name in zip(self.looks, self.names, strict=True)]

    def counts(self) -> list[str]:
        found = []
        for fields in self.each("HGETALL"):
            found.append([n for name, n in zip(fields[::2], fields[1::2], strict=True) if name != "mode"])
        first, second = found
        return first if first == second else [f"{first} of the first name", f"{second} of the second"]

    def left(self) -> int:
        return min(int(left) for left in self.each("PTTL"))

    def is_free(self) -> bool:
        return self.each("EXISTS") == [0, 0]

    def subscribers(self) -> int:
        word = "SHARDNUMSUB" if self.behind and self.behind.topology == "cluster" else "NUMSUB"
        places = zip(self.looks, self.names, strict=True)
        return sum(
            int(redis("PUBSUB", word, f"redisson_lock__channel:{{{name}}}")[1]) for redis, name in places
        )

    def has(self, at: int) -> bool:
        return bool(self.looks[at]("EXISTS", self.names[at]))

    def close(self) -> None:
        super().close()
        for redis in self.looks:
            redis.close()


Perform = Callable[[Several], None]


def several(perform: Perform, **options: Any) -> Play:
    return on(perform, Several, **options)


# ---- a command, or its answer, is lost ----

Arm = Callable[[str], None]


def wait_for_the_second(cell: Several, arm: Arm) -> None:
    """The waiter has the first name meanwhile."""
    theirs = {"lock": cell.names[SECOND]}
    cell.ok("acquire", "b", **theirs)
    waiter = cell.call("acquire", wait_ms=60000)
    cell.waiting()
    cell.eventually(lambda: cell.has(FIRST), "it does not keep the first name")
    arm("acquire")
    begun = time.monotonic()
    cell.ok("release", "b", **theirs)
    cell.status({"ok"}, "the waiter", waiter)
    took = time.monotonic() - begun
    cell.check(took < SOON, f"the waiter waited {took:.1f} s for a free lock")
    cell.held_with(1)
    cell.ok("release")


def give_back(cell: Several, arm: Arm) -> None:
    """A try that gets the first name, and not the second, keeps nothing."""
    cell.ready("a")
    theirs = {"lock": cell.names[SECOND]}
    cell.ok("acquire", "b", **theirs)
    arm("release")
    cell.status({"timeout", "unavailable"}, "try", cell.call("acquire", wait_ms=0))
    cell.eventually(lambda: not cell.has(FIRST), "a try keeps a name", SOON)
    cell.ok("release", "b", **theirs)


# The operations whose commands are for one name each.
SINGLE = ("re-enter", "release one level", "wait")
# The operations with one such command.
OF_ONE = ("wait for the second name", "give back")
PLAYED: dict[str, Callable[[Any, Arm], None]] = {
    **OPERATIONS,
    "wait for the second name": wait_for_the_second,
    "give back": give_back,
}


def network(operation: str, action: str, number: int) -> Perform:
    def play(cell: Several) -> None:
        cell.ready("a")
        cell.alone = cell.alone or operation in (*SINGLE, *OF_ONE)
        cell.commands = 1 if operation in OF_ONE else 2
        operations.play(cell, operation, action, number, PLAYED)

    play.__name__ = operation
    return play


# ---- one name is lost ----


def member_lost(change: Callable[[Several], object], *reasons: str) -> Perform:
    """The whole is lost. The other name stays, and is renewed, until its holder gives it back."""

    def play(cell: Several) -> None:
        other = 1 - cell.at
        cell.ok("acquire")
        change(cell)
        reply = cell.ok("lost", within_ms=int(TOLD * 1000))
        cell.check(reply["reason"] in reasons, f"lost: {reply}")
        cell.check(not cell.told("held", False), "it still claims to hold")
        cell.renewed(lambda: other_left(cell))
        cell.check(cell.has(other), "the other name is not kept")
        cell.status({"lost"}, "release", cell.call("release"))
        cell.eventually(lambda: not cell.has(other), "the release leaves the other name", SOON)
        if cell.redis("TYPE", cell.names[cell.at]) == "string":
            cell.redis("DEL", cell.names[cell.at])
        cell.works()

    return play


def other_left(cell: Several) -> int:
    other = 1 - cell.at
    return int(cell.looks[other]("PTTL", cell.names[other]))


def deleted(cell: Several) -> None:
    cell.redis("DEL", cell.names[cell.at])


def retyped(cell: Several) -> None:
    cell.redis("SET", cell.names[cell.at], "mine now")


def forced(cell: Several) -> None:
    request = {"client": f"{cell.number}b", "lock": cell.names[cell.at], "as": "main"}
    cell.ready("b")
    reply = cell.world.drivers[cell.kind.name].ask(op="force", **request)[1]
    cell.check(cell.status({"ok"}, "force", reply)["value"], "there was nothing to delete")


def taken_by_another_meanwhile(cell: Several) -> None:
    """The release of a multi lock that was lost leaves alone what another has by now."""
    cell.ok("acquire")
    deleted(cell)
    theirs = {"lock": cell.names[cell.at]}
    cell.ok("acquire", "b", wait_ms=20000, **theirs)
    cell.eventually(lambda: not cell.told("held", False), "the loss is not told", TOLD)
    cell.status({"lost"}, "release", cell.call("release"))
    cell.check(cell.has(cell.at) and cell.ok("held", "b", **theirs)["value"], "another's name was released")
    cell.ok("release", "b", **theirs)
    cell.works()


def restarted_empty(cell: Several) -> None:
    cell.ok("acquire")
    cell.restart()
    lost(cell, "deleted", "unreachable")
    cell.works()


# ---- callers that go ----


def gone_while_waiting(go: Callable[[Several, int], str]) -> Perform:
    """The caller has the first name, and waits for the second: nothing stays of it."""

    def play(cell: Several) -> None:
        theirs = {"lock": cell.names[SECOND]}
        cell.ok("acquire", "b", **theirs)
        target, waiter = cell.begin("acquire", wait_ms=3000)
        cell.waiting()
        cell.eventually(lambda: cell.has(FIRST), "it does not keep the first name")
        cell.status({go(cell, target)}, "the waiter", waiter)
        cell.eventually(lambda: not cell.has(FIRST), "the first name is not given back", SOON)
        cell.ok("release", "b", **theirs)
        cell.works()

    return play


def cancel(cell: Several, target: int) -> str:
    """A thread of Python cannot be cancelled: its time comes to an end."""
    cell.call("cancel", target=target)
    return "timeout" if cell.kind.name == "python" else "cancelled"


def time_out(cell: Several, target: int) -> str:
    return "timeout"


def rows(network_rows: dict[str, tuple[str, int]]) -> list[tuple[str, str, Play]]:
    found = [
        (row, operation, several(network(operation, *network_rows[row])))
        for row in UNKNOWN
        for operation in PLAYED
    ]
    for row, trouble, options in TROUBLES:
        found += [(row, name, several(way(trouble), **options)) for name, way in WAYS.items()]
    others: list[tuple[str, str, Perform, dict[str, Any]]] = [
        ("DEBUG SLEEP 4", "hold", holds(asleep), OWN),
        ("FLUSHALL", "hold", flushed, OWN),
        ("FLUSHALL", "wait", flushed_while_waiting, OWN),
        ("server restarted empty", "hold", restarted_empty, OWN),
        ("server restarted empty", "wait", restarted_while_waiting, OWN),
        ("server full", "hold, release, acquire", no_room, OWN),
        ("wake-up lost", "wait", waits(wake_up_lost), {}),
        ("pub/sub connection killed", "wait", waits(only_pubsub_killed), OWN),
        *((*performance, {}) for performance in (*COPIES, *GOING)),
        ("caller cancelled", "wait for the second name", gone_while_waiting(cancel), {}),
        ("caller timed out", "wait for the second name", gone_while_waiting(time_out), {}),
        *((*performance, ALONE) for performance in ENDS),
    ]
    found += [(row, operation, several(perform, **options)) for row, operation, perform, options in others]
    for at, place in enumerate(PLACES):
        found += [(row, f"hold, {place} name", several(perform, at=at)) for row, perform in LOSSES]
    return [(f"multi lock: {row}", operation, play) for row, operation, play in found]


LOSSES: list[tuple[str, Perform]] = [
    ("one name deleted", member_lost(deleted, "deleted")),
    ("one name deleted, and taken by another", taken_by_another_meanwhile),
    ("another type at one name", member_lost(retyped, "stolen")),
    ("one name forced by another client", member_lost(forced, "deleted", "forced")),
]


def rows_there(network_rows: dict[str, tuple[str, int]]) -> list[tuple[str, str, Play]]:
    """On a cluster, where only the node of one name is struck."""
    performances: list[tuple[str, str, Perform]] = [
        (row, operation, network(operation, *network_rows[row]))
        for row in UNKNOWN
        for operation in ("acquire", "release", "be renewed", "wait")
    ]
    for row, trouble, _ in TROUBLES:
        performances += [(row, name, way(trouble)) for name, way in WAYS.items()]
    performances += [(row, "hold", perform) for row, perform in LOSSES]
    performances += [
        ("FLUSHALL", "hold", flushed),
        ("wake-up lost", "wait", waits(wake_up_lost)),
        ("pub/sub connection killed", "wait", waits(only_pubsub_killed)),
        ("caller cancelled, request black-holed", "acquire", cancelled("hole", 0)),
        ("caller timed out, request black-holed", "acquire", timed_out("hole")),
        ("closed while the network is away", "hold", closed_while_silent),
    ]
    found = [
        (f"multi lock: {row}", f"{operation}, {place} name", several(perform, topology="cluster", at=at))
        for row, operation, perform in performances
        for at, place in enumerate(PLACES)
    ]
    waiting: list[tuple[str, str, Perform]] = [
        (row, operation, network(operation, *network_rows[row]))
        for row in UNKNOWN
        for operation, at in (("wait for the second name", SECOND), ("give back", FIRST))
    ]
    places = {"wait for the second name": SECOND, "give back": FIRST}
    return found + [
        (f"multi lock: {row}", operation, several(perform, topology="cluster", at=places[operation]))
        for row, operation, perform in waiting
    ]
