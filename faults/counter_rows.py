"""Faults while callers use a plain semaphore or a count-down latch: afterwards the server has exactly the number that callers made.

Nobody has a counter, so these rows look at the number alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from operations import UNHEARD, UNKNOWN
from server_rows import (
    AWAY,
    OWN,
    TOLD,
    TROUBLES,
    Play,
    connections_killed,
    on,
    stopped,
    wake_up_lost,
)
from world import LIMIT_MS, SOON, Cell, Kind, World

PLAIN, LATCH = "plain semaphore", "latch"
CHANNELS = {PLAIN: "redisson_sc:", LATCH: "redisson_countdownlatch__channel__"}
# The permits of a semaphore, or how far a latch has to count down.
NUMBER = 5
# Each change names its client's marker beside the number; nothing else that a client sends does.
CHANGE = "}:redlatch:"


class Counter(Cell):
    """A cell whose name is a counter."""

    def __init__(self, world: World, name: str, kind: Kind, *, counter: str, **options: Any) -> None:
        super().__init__(world, name, kind, **options)
        self.counter = counter
        self.about = {"counter": counter.replace(" ", "-")}

    def fill(self) -> None:
        """Gives the counter its number, and the server the scripts that change it."""
        self.begin_anew()
        self.ok("acquire" if self.counter == PLAIN else "down")
        if self.counter == PLAIN:
            self.ok("release")
        else:
            self.redis("DEL", self.lock)
            self.ok("set", number=NUMBER)
        self.exactly(NUMBER)

    def begin_anew(self, who: str = "a") -> None:
        more = {"permits": NUMBER} if self.counter == PLAIN else {"number": NUMBER}
        self.check(self.ok("set", who, **more)["value"] is True, "it has a number already")

    def number_there(self) -> int:
        return int(self.redis("GET", self.lock) or 0)

    def exactly(self, number: int) -> None:
        """The server has this number, and tells both clients so."""
        self.check(self.number_there() == number, f"the server has {self.number_there()}, and not {number}")
        self.check_told(number, "a")
        self.check_told(number, "b")

    def check_told(self, number: int, who: str) -> None:
        told = self.ok("permits" if self.counter == PLAIN else "count", who)["value"]
        self.check(told == number, f"client {who} is told {told}, and not {number}")

    def becomes(self, number: int) -> None:
        text = f"the server never has {number}"
        self.eventually(lambda: self.number_there() == number, text, SOON)
        self.exactly(number)

    def arm_change(self, action: str, number: int) -> None:
        self.world.proxies("arm", self.port, CHANGE, 0, action, number)

    def subscribers(self) -> int:
        channel = f"{CHANNELS[self.counter]}{{{self.lock}}}"
        kind = "SHARDNUMSUB" if self.behind and self.behind.topology == "cluster" else "NUMSUB"
        return int(self.redis("PUBSUB", kind, channel)[1])

    def works(self) -> None:
        """The client goes on as if nothing had happened, and nobody listens any more."""
        before = self.number_there()
        if self.counter == PLAIN:
            self.ok("release")
            self.ok("acquire", wait_ms=20000)
        elif before > 0:
            self.ok("down")
            before -= 1
        self.exactly(before)
        self.eventually(lambda: self.subscribers() == 0, "somebody still listens")


Perform = Callable[[Counter], None]
# The fault, the operation meanwhile, and the options of its cell.
Row = tuple[str, str, Perform, dict[str, Any]]


def counting(counter: str, perform: Perform, **options: Any) -> Play:
    return on(perform, partial(Counter, counter=counter), **options)


# ---- one command, or its reply, is lost ----


def acquire(cell: Counter, arm: Callable[[], None]) -> int:
    arm()
    cell.ok("acquire", permits=2, wait_ms=30000)
    return NUMBER - 2


def release(cell: Counter, arm: Callable[[], None]) -> int:
    cell.ok("acquire", permits=2)
    arm()
    cell.ok("release", permits=2)
    return NUMBER


def add(cell: Counter, arm: Callable[[], None]) -> int:
    arm()
    cell.ok("add", permits=3)
    return NUMBER + 3


def drain(cell: Counter, arm: Callable[[], None]) -> int:
    arm()
    drained = cell.ok("drain")["value"]
    cell.check(drained == NUMBER, f"{drained} were drained, and not {NUMBER}")
    cell.exactly(0)
    cell.ok("release")
    return 1


def set_number(cell: Counter, arm: Callable[[], None]) -> int:
    cell.redis("DEL", cell.lock)
    arm()
    # A copy of the command finds the number there, and the caller is told of the first one.
    cell.begin_anew()
    return NUMBER


def wait(cell: Counter, arm: Callable[[], None]) -> int:
    cell.ok("acquire", "b", permits=NUMBER)
    waiter = cell.call("acquire", permits=2, wait_ms=60000)
    cell.waiting()
    arm()
    cell.ok("release", "b", permits=NUMBER)
    cell.status({"ok"}, "the waiter", waiter, SOON)
    return NUMBER - 2


def count_down(cell: Counter, arm: Callable[[], None]) -> int:
    arm()
    cell.ok("down", number=2)
    return NUMBER - 2


def open_latch(cell: Counter, arm: Callable[[], None]) -> int:
    waiter = cell.call("wait", "b", wait_ms=60000)
    cell.waiting()
    arm()
    cell.ok("down", number=NUMBER)
    cell.status({"ok"}, "the waiter", waiter, SOON)
    cell.check(cell.redis("EXISTS", cell.lock) == 0, "an open latch has a key")
    return 0


OPERATIONS: dict[str, dict[str, Callable[[Counter, Callable[[], None]], int]]] = {
    PLAIN: {
        "acquire": acquire,
        "release": release,
        "add": add,
        "drain": drain,
        "set": set_number,
        "wait": wait,
    },
    LATCH: {"count down": count_down, "count down to 0": open_latch, "set": set_number},
}


def lost(counter: str, operation: str, action: str, number: int) -> Perform:
    def play(cell: Counter) -> None:
        cell.fill()
        left = OPERATIONS[counter][operation](cell, lambda: cell.arm_change(action, number))
        cell.wait_fired()
        if action in ("twice", "stall"):
            cell.wait_delivered()
        cell.exactly(left)
        cell.works()

    return play


def tried(action: str) -> Perform:
    """A try without an answer may have taken permits: they are given back, or its caller has them."""

    def play(cell: Counter) -> None:
        cell.fill()
        cell.arm_change(action, 0)
        reply = cell.status(UNHEARD, "try", cell.call("acquire", permits=2, wait_ms=0))
        cell.wait_fired()
        if reply["status"] == "ok":
            cell.exactly(NUMBER - 2)
            cell.ok("release", permits=2)
        cell.becomes(NUMBER)
        cell.works()

    return play


def cancelled(action: str, number: int) -> Perform:
    def play(cell: Counter) -> None:
        cell.fill()
        cell.arm_change(action, number)
        target, acquiring = cell.begin("acquire", permits=2, wait_ms=30000)
        cell.wait_fired()
        cell.call("cancel", target=target)
        reply = cell.status({"cancelled", "ok"}, "the cancelled acquire", acquiring)
        if reply["status"] == "ok":
            cell.ok("release", permits=2)
        cell.becomes(NUMBER)
        cell.works()

    return play


def timed_out(cell: Counter) -> None:
    cell.fill()
    cell.arm_change("reply-hole", 0)
    begun = time.monotonic()
    reply = cell.status(UNHEARD, "acquire", cell.call("acquire", permits=2, wait_ms=300))
    cell.check(time.monotonic() - begun < TOLD, "the wait went on after its end")
    if reply["status"] == "ok":
        cell.ok("release", permits=2)
    cell.becomes(NUMBER)
    cell.works()


# ---- the server, or the way to it, is away ----


def acquires(trouble: Callable[[Cell], None]) -> Perform:
    def play(cell: Counter) -> None:
        cell.fill()
        trouble(cell)
        cell.ok("acquire", permits=2, wait_ms=40000)
        cell.exactly(NUMBER - 2)
        cell.works()

    return play


def releases(trouble: Callable[[Cell], None]) -> Perform:
    def play(cell: Counter) -> None:
        cell.fill()
        cell.ok("acquire", permits=2)
        trouble(cell)
        cell.ok("release", permits=2)
        cell.exactly(NUMBER)
        cell.works()

    return play


def waits(trouble: Callable[[Cell], None]) -> Perform:
    def play(cell: Counter) -> None:
        cell.fill()
        if cell.counter == PLAIN:
            cell.ok("acquire", "b", permits=NUMBER)
        waiter = cell.call("acquire" if cell.counter == PLAIN else "wait", wait_ms=60000)
        cell.waiting()
        trouble(cell)
        if cell.counter == PLAIN:
            cell.ok("release", "b", permits=NUMBER)
        else:
            cell.ok("down", "b", number=NUMBER)
        released = time.monotonic()
        cell.status({"ok"}, "the waiter", waiter)
        took = time.monotonic() - released
        cell.check(took < SOON + 1 + AWAY, f"the waiter waited {took:.1f} s too long")
        cell.exactly(NUMBER - 1 if cell.counter == PLAIN else 0)
        cell.works()

    return play


def counts_down(trouble: Callable[[Cell], None]) -> Perform:
    def play(cell: Counter) -> None:
        cell.fill()
        trouble(cell)
        cell.ok("down", number=2)
        cell.exactly(NUMBER - 2)
        cell.works()

    return play


def restarted_while_waiting(cell: Counter) -> None:
    """An empty server has no number: the waiter for permits gets some of the next one."""
    cell.fill()
    cell.ok("acquire", "b", permits=NUMBER)
    waiter = cell.call("acquire", permits=2, wait_ms=60000)
    cell.waiting()
    cell.restart()
    cell.begin_anew("b")
    cell.status({"ok"}, "the waiter", waiter)
    cell.exactly(NUMBER - 2)
    cell.works()


def flushed_while_waiting(cell: Counter) -> None:
    cell.fill()
    cell.ok("acquire", "b", permits=NUMBER)
    waiter = cell.call("acquire", permits=2, wait_ms=60000)
    cell.waiting()
    cell.redis("FLUSHALL")
    cell.begin_anew("b")
    cell.status({"ok"}, "the waiter", waiter)
    cell.exactly(NUMBER - 2)
    cell.works()


# ---- a latch loses its key ----


def loses_its_key(how: Callable[[Counter], object]) -> Perform:
    """A latch without a count is open. The server tells its waiters, or they see it as they connect again."""

    def play(cell: Counter) -> None:
        # They do not look again by themselves.
        cell.about["recheck_ms"] = int(10 * SOON * 1000)
        cell.fill()
        waiters = [cell.call("wait", who, wait_ms=60000) for who in ("a", "b")]
        cell.eventually(lambda: cell.subscribers() == 2, "they do not wait")
        how(cell)
        for waiter in waiters:
            cell.status({"ok"}, "the waiter", waiter, SOON)
        cell.exactly(0)
        cell.begin_anew()
        cell.exactly(NUMBER)
        cell.works()

    return play


def evicted(cell: Counter) -> None:
    cell.redis("CONFIG", "SET", "maxmemory-policy", "allkeys-random")
    cell.redis("CONFIG", "SET", "maxmemory", "1")
    # The server evicts before it looks whether this has room.
    cell.redis("SET", "other", "x")
    cell.eventually(lambda: bool(cell.redis("EXISTS", cell.lock) == 0), "it is not evicted")
    cell.redis("CONFIG", "SET", "maxmemory", "0")


# ---- a program dies ----


def killed_with_permits(cell: Counter) -> None:
    """Permits of a dead program stay taken, until somebody adds them anew."""
    cell.begin_anew()
    own = connections(cell)
    cell.ok("acquire", permits=2)
    # Requests of one actor are served in their order.
    waiter = cell.call("acquire", "b", actor="waiter", permits=NUMBER, wait_ms=60000)
    cell.waiting()
    kill(cell, own)
    cell.check_told(NUMBER - 2, "b")
    cell.check(not waiter.done(), "a waiter has permits that nobody gave back")
    cell.ok("add", "b", permits=2)
    cell.status({"ok"}, "the waiter", waiter)
    cell.ok("release", "b", permits=NUMBER)
    cell.check_told(NUMBER, "b")


def killed_while_waiting(cell: Counter) -> None:
    """A dead waiter takes nothing, and leaves nothing."""
    cell.begin_anew()
    own = connections(cell)
    if cell.counter == PLAIN:
        cell.ok("acquire", "b", permits=NUMBER)
    cell.call("acquire" if cell.counter == PLAIN else "wait", wait_ms=60000)
    cell.waiting()
    kill(cell, own)
    cell.eventually(lambda: cell.subscribers() == 0, "a dead process still listens")
    if cell.counter == PLAIN:
        cell.ok("release", "b", permits=NUMBER)
    cell.check_told(NUMBER, "b")


def killed_while_counting_down(cell: Counter) -> None:
    """A worker that dies before it counts down is missing: its latch stays closed."""
    cell.begin_anew()
    own = connections(cell)
    cell.ok("down", number=2)
    waiter = cell.call("wait", "b", actor="waiter", wait_ms=60000)
    cell.waiting()
    kill(cell, own)
    cell.check_told(NUMBER - 2, "b")
    cell.check(not waiter.done(), "the latch is open for a worker that did not count down")
    cell.ok("down", "b", number=NUMBER - 2)
    cell.status({"ok"}, "the waiter", waiter)


def connections(cell: Counter) -> set[str]:
    """The ids of the connections of our clients."""
    lines = cell.redis("CLIENT", "LIST").splitlines()
    return {line.split()[0] for line in lines if "name=redlatch" in line}


def kill(cell: Counter, own: set[str]) -> None:
    """The commands that a dead client has sent are done when its connections are gone."""
    cell.check(bool(own), "it has no connection")
    cell.driver.signal("KILL")
    cell.eventually(lambda: not own & connections(cell), "the connections of a dead process are left")


ALONE: dict[str, Any] = {"own_driver": True, "own_server": True}
WAYS: dict[str, dict[str, Callable[[Callable[[Cell], None]], Perform]]] = {
    PLAIN: {"acquire": acquires, "release": releases, "wait": waits},
    LATCH: {"count down": counts_down, "wait": waits},
}
PLAIN_ROWS: list[Row] = [
    ("request lost with its connection", "try", tried("cut-request"), {}),
    ("reply lost with its connection", "try", tried("cut-reply"), {}),
    ("reply and connection black-holed", "try", tried("reply-hole"), {}),
    ("caller cancelled, request black-holed", "acquire", cancelled("hole", 0), {}),
    ("caller cancelled, reply black-holed", "acquire", cancelled("reply-hole", 0), {}),
    ("caller cancelled, reply on its way", "acquire", cancelled("delay-reply", 300), {}),
    ("caller timed out, reply black-holed", "acquire", timed_out, {}),
    ("wake-up lost", "wait", waits(wake_up_lost), {}),
    ("server restarted empty", "wait", restarted_while_waiting, OWN),
    ("FLUSHALL", "wait", flushed_while_waiting, OWN),
    ("SIGKILL", "hold", killed_with_permits, ALONE),
    ("SIGKILL", "wait", killed_while_waiting, ALONE),
]
LATCH_ROWS: list[Row] = [
    ("wake-up lost", "wait", waits(wake_up_lost), {}),
    ("key deleted", "wait", loses_its_key(lambda cell: cell.redis("DEL", cell.lock)), {}),
    ("key expired", "wait", loses_its_key(lambda cell: cell.redis("PEXPIRE", cell.lock, 50)), {}),
    ("key evicted", "wait", loses_its_key(evicted), OWN),
    ("FLUSHALL", "wait", loses_its_key(lambda cell: cell.redis("FLUSHALL")), OWN),
    ("server restarted empty", "wait", loses_its_key(Counter.restart), OWN),
    ("SIGKILL", "count down", killed_while_counting_down, ALONE),
    ("SIGKILL", "wait", killed_while_waiting, ALONE),
]


def rows(network: dict[str, tuple[str, int]]) -> list[tuple[str, str, Play]]:
    return [
        (f"{counter}: {row}", operation, counting(counter, perform, **options))
        for counter in (PLAIN, LATCH)
        for row, operation, perform, options in rows_of(counter, network)
    ]


def rows_there(topology: str, network: dict[str, tuple[str, int]]) -> list[tuple[str, str, Play]]:
    """A selection on a Sentinel set or a cluster."""

    found: list[tuple[str, str, str, Perform]] = [
        (counter, row, operation, lost(counter, operation, *network[row]))
        for counter, operations in (
            (PLAIN, ("acquire", "release", "wait")),
            (LATCH, ("count down", "count down to 0")),
        )
        for row in ("reply lost with its connection", "reply and connection black-holed")
        for operation in operations
    ]
    for counter in (PLAIN, LATCH):
        found += [
            (counter, "server stopped for 4 s", "wait", waits(stopped)),
            (counter, "all connections killed", "wait", waits(connections_killed)),
            (counter, "wake-up lost", "wait", waits(wake_up_lost)),
        ]
    deleted = loses_its_key(lambda cell: cell.redis("DEL", cell.lock))
    found.append((LATCH, "key deleted", "wait", deleted))
    return [
        (f"{counter}: {row}", operation, counting(counter, perform, topology=topology))
        for counter, row, operation, perform in found
    ]


def rows_of(counter: str, network: dict[str, tuple[str, int]]) -> list[Row]:
    changes: list[Row] = [
        (row, operation, lost(counter, operation, *network[row]), {})
        for row in UNKNOWN
        for operation in OPERATIONS[counter]
    ]
    # A lock may come back by such a copy. A counter does not: the marker knows the change.
    copies: list[Row] = [
        (
            "copy of a request within its limit",
            operation,
            lost(counter, operation, "twice", LIMIT_MS // 2),
            {},
        )
        for operation in OPERATIONS[counter]
    ]
    troubles: list[Row] = [
        (row, operation, way(trouble), options)
        for row, trouble, options in TROUBLES
        for operation, way in WAYS[counter].items()
    ]
    return [*changes, *copies, *troubles, *(PLAIN_ROWS if counter == PLAIN else LATCH_ROWS)]
