"""Faults of the server, or with the whole network to it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from operations import UNHEARD
from world import LEASE_MS, PERMITS, SOON, Cell, Kind, Redis, World

Play = Callable[[World, Kind], None]
# How soon a holder is told of what the server tells at once, on a busy machine.
TOLD = 5.0
# How many seconds a server or the network is away: a renewal that comes every third of the lease fails meanwhile, and the lease
# does not end.
AWAY = LEASE_MS / 2000


def on(
    perform: Callable[[Any], None], cell_of: Callable[..., Cell] = Cell, topology: str = "", **options: Any
) -> Play:
    """Plays it with a cell of its own, on one server or on a deployment behind proxies."""

    def play(world: World, kind: Kind) -> None:
        with (
            world.pool.lent(topology) if topology else nullcontext() as behind,
            cell_of(world, perform.__name__, kind, behind=behind, **options) as cell,
        ):
            perform(cell)

    return play


def lost(cell: Cell, *reasons: str) -> None:
    reply = cell.ok("lost", within_ms=int(TOLD * 1000))
    cell.check(reply["reason"] in reasons, f"lost: {reply}")
    cell.check(not cell.told("held", False), "it still claims to hold")
    cell.status({"lost"}, "release", cell.call("release"))


# ---- losing the key ----


def flushed(cell: Cell) -> None:
    cell.ok("acquire")
    cell.redis("FLUSHALL")
    lost(cell, "deleted")
    cell.works()


def flushed_while_waiting(cell: Cell) -> None:
    cell.ok("acquire", "b")
    waiter = cell.call("acquire", wait_ms=60000)
    cell.waiting()
    begun = time.monotonic()
    cell.redis("FLUSHALL")
    cell.status({"ok"}, "the waiter", waiter)
    cell.check(time.monotonic() - begun < SOON, "the waiter looks again too late")
    cell.held_with(1)
    cell.status({"lost"}, "release of the flushed hold", cell.call("release", "b"))
    cell.held_with(1)
    cell.ok("release")
    cell.works()


def evicted(cell: Cell) -> None:
    cell.ok("acquire")
    cell.redis("CONFIG", "SET", "maxmemory-policy", "allkeys-random")
    cell.redis("CONFIG", "SET", "maxmemory", "1")
    cell.redis("SET", "other", "x")
    cell.gone()
    lost(cell, "deleted")
    cell.redis("CONFIG", "SET", "maxmemory", "0")
    cell.works()


def taken_by_another_type(cell: Cell) -> None:
    cell.ok("acquire")
    cell.redis("SET", cell.lock, "mine now")
    lost(cell, "stolen")
    cell.status({"foreign_kind"}, "acquire", cell.call("acquire", wait_ms=0))
    cell.check(cell.redis("GET", cell.lock) == "mine now", "the other's key was touched")
    cell.redis("DEL", cell.lock)
    cell.works()


def forced(cell: Cell, who: str) -> None:
    for _ in range(cell.levels):
        cell.ok("acquire")
    cell.check(cell.ok("force", who)["value"], "there was nothing to delete")
    reply = cell.ok("lost", within_ms=int(TOLD * 1000))
    # The number of a semaphore's permits stays, so they are taken from their owner.
    allowed = ("forced", "stolen" if cell.side == PERMITS else "deleted")
    cell.check(reply["reason"] in allowed, f"lost: {reply}")
    for _ in range(cell.levels):
        cell.status({"lost"}, "release", cell.call("release"))
    cell.works()


def forced_by_itself(cell: Cell) -> None:
    forced(cell, "a")


def forced_by_another(cell: Cell) -> None:
    forced(cell, "b")


# ---- the server away ----


def restarted_empty(cell: Cell) -> None:
    cell.fencing = True
    first = cell.ok("acquire")["token"]
    cell.restart()
    lost(cell, "deleted", "unreachable")
    second = cell.ok("acquire", wait_ms=30000)["token"]
    cell.check(second > first, f"token {second} after {first}")
    cell.held_with(1)
    cell.ok("release")
    cell.works()


def restarted_while_waiting(cell: Cell) -> None:
    cell.ok("acquire", "b")
    waiter = cell.call("acquire", wait_ms=60000)
    cell.waiting()
    cell.restart()
    cell.status({"ok"}, "the waiter", waiter)
    cell.held_with(1)
    cell.ok("release")
    cell.works()


def stopped(cell: Cell) -> None:
    """SIGSTOP: the kernel still takes what is sent, and nobody answers."""
    cell.server.signal("STOP")
    threading.Timer(AWAY, cell.server.signal, ["CONT"]).start()


def paused(cell: Cell) -> None:
    cell.redis("CLIENT", "PAUSE", int(AWAY * 1000), "WRITE")


def asleep(cell: Cell) -> None:
    """The server does nothing else for longer than a request may take."""
    other = Redis(cell.server.port)
    threading.Thread(target=other, args=("DEBUG", "SLEEP", str(AWAY))).start()


def scripts_flushed(cell: Cell) -> None:
    cell.redis("SCRIPT", "FLUSH")


def connections_killed(cell: Cell) -> None:
    cell.tell("kill")


def silent_for_a_while(cell: Cell) -> None:
    cell.tell("silent", 1)
    threading.Timer(AWAY, cell.tell, ["silent", 0]).start()


def refused_for_a_while(cell: Cell) -> None:
    cell.tell("refuse", 1)
    cell.tell("kill")
    threading.Timer(AWAY, cell.tell, ["refuse", 0]).start()


OWN: dict[str, Any] = {"own_server": True}
# Troubles of a server or of its network, and the options that a cell needs for each.
TROUBLES: list[tuple[str, Callable[[Cell], None], dict[str, Any]]] = [
    ("server stopped for 4 s", stopped, OWN),
    ("CLIENT PAUSE", paused, OWN),
    ("SCRIPT FLUSH", scripts_flushed, OWN),
    ("all connections killed", connections_killed, {}),
    ("network away for 4 s", silent_for_a_while, {}),
    ("connections refused for 4 s", refused_for_a_while, {}),
]


def acquires(trouble: Callable[[Cell], None]) -> Callable[[Cell], None]:
    def acquire(cell: Cell) -> None:
        cell.open("a")
        trouble(cell)
        cell.ok("acquire", wait_ms=40000)
        cell.held_with(1)
        cell.ok("release")
        cell.works()

    return acquire


def holds(trouble: Callable[[Cell], None]) -> Callable[[Cell], None]:
    """A renewal fails and is tried again before the lease ends."""

    def hold(cell: Cell) -> None:
        for _ in range(cell.levels):
            cell.ok("acquire")
        trouble(cell)
        cell.renewed()
        cell.check(cell.left() > LEASE_MS / 2, "a renewal gives it too little time")
        cell.held_with(cell.levels)
        for _ in range(cell.levels):
            cell.ok("release")
        cell.works()

    return hold


def releases(trouble: Callable[[Cell], None]) -> Callable[[Cell], None]:
    def release(cell: Cell) -> None:
        cell.ok("acquire")
        trouble(cell)
        cell.ok("release")
        cell.works()

    return release


def waits(trouble: Callable[[Cell], None]) -> Callable[[Cell], None]:
    def wait(cell: Cell) -> None:
        cell.ok("acquire", "b")
        waiter = cell.call("acquire", wait_ms=60000)
        cell.waiting()
        trouble(cell)
        cell.ok("release", "b")
        released = time.monotonic()
        cell.status({"ok"}, "the waiter", waiter)
        took = time.monotonic() - released
        cell.check(took < SOON + 1 + AWAY, f"the waiter waited {took:.1f} s for a free lock")
        cell.held_with(1)
        cell.ok("release")
        cell.works()

    return wait


WAYS = {"acquire": acquires, "hold": holds, "release": releases, "wait": waits}


def wake_up_lost(cell: Cell) -> None:
    cell.tell("mute", 1)


def only_pubsub_killed(cell: Cell) -> None:
    cell.redis("CLIENT", "KILL", "TYPE", "pubsub")


# ---- refusals ----


def no_room(cell: Cell) -> None:
    for _ in range(cell.levels):
        cell.ok("acquire")
    cell.redis("CONFIG", "SET", "maxmemory-policy", "noeviction")
    cell.redis("CONFIG", "SET", "maxmemory", "1")
    # A full server denies the lower count; later counts are absolute, so that does no harm.
    for _ in range(cell.levels):
        cell.ok("release")
    cell.gone()
    cell.status({"unavailable", "timeout", "server"}, "acquire", cell.call("acquire", wait_ms=300))
    cell.redis("CONFIG", "SET", "maxmemory", "0")
    cell.works()


def denied(command: str, then: Callable[[Cell], None]) -> Callable[[Cell], None]:
    def play(cell: Cell) -> None:
        rules = ["on", ">secret", "~*", "&*", "+@all", f"-{command}"]
        cell.redis("ACL", "SETUSER", "app", *rules)
        then(cell)
        cell.redis("ACL", "SETUSER", "app", f"+{command}")
        cell.works()

    play.__name__ = f"denied {command}"
    return play


def acquire_is_denied(cell: Cell) -> None:
    cell.status({"denied"}, "acquire", cell.call("acquire", wait_ms=20000))
    cell.gone()


def release_works(cell: Cell) -> None:
    cell.ok("acquire")
    cell.ok("release")
    cell.gone()


# ---- callers that go ----


def cancelled(action: str, number: int) -> Callable[[Cell], None]:
    def cancel(cell: Cell) -> None:
        cell.open("a")
        cell.arm("acquire", action, number)
        target, acquire = cell.begin("acquire", wait_ms=30000)
        cell.wait_fired()
        cell.call("cancel", target=target)
        reply = cell.status({"cancelled", "ok"}, "the cancelled acquire", acquire)
        if reply["status"] == "ok":
            cell.ok("release")
        cell.works()

    return cancel


def timed_out(action: str) -> Callable[[Cell], None]:
    def time_out(cell: Cell) -> None:
        cell.open("a")
        cell.arm("acquire", action, 0)
        begun = time.monotonic()
        reply = cell.status(UNHEARD, "acquire", cell.call("acquire", wait_ms=300))
        cell.check(time.monotonic() - begun < TOLD, "the wait went on after its end")
        if reply["status"] == "ok":
            cell.ok("release")
        cell.works()

    return time_out


def closed_while_silent(cell: Cell) -> None:
    cell.ok("acquire")
    cell.tell("silent", 1)
    begun = time.monotonic()
    # It says that the lock could not be released: as a list of names, in C as an error that has them.
    reply = cell.status({"ok", "unavailable"}, "close", cell.call("close"))
    cell.check(time.monotonic() - begun < 30, "closing goes on and on")
    told = reply.get("value", []) if reply["status"] == "ok" else reply["text"]
    named = all(name in str(told) for name in cell.struck)
    cell.check(named and bool(told) == bool(cell.struck), f"closed: {reply}")
    cell.opened.clear()
    cell.gone(LEASE_MS / 1000 + SOON)
    cell.tell("silent", 0)


Performance = tuple[str, str, Callable[[Cell], None]]
GOING: list[Performance] = [
    ("caller cancelled, request black-holed", "acquire", cancelled("hole", 0)),
    ("caller cancelled, reply black-holed", "acquire", cancelled("reply-hole", 0)),
    ("caller cancelled, reply on its way", "acquire", cancelled("delay-reply", 300)),
    ("caller timed out, request black-holed", "acquire", timed_out("hole")),
    ("caller timed out, reply black-holed", "acquire", timed_out("reply-hole")),
    ("closed while the network is away", "hold", closed_while_silent),
]
SERVER_ROWS: list[tuple[str, str, Play]] = [
    ("FLUSHALL", "hold", on(flushed, own_server=True)),
    ("FLUSHALL", "wait", on(flushed_while_waiting, own_server=True)),
    ("eviction", "hold", on(evicted, own_server=True)),
    ("another type at the key", "hold", on(taken_by_another_type)),
    ("force-release by the same client", "hold", on(forced_by_itself)),
    ("force-release by another client", "hold", on(forced_by_another)),
    ("server restarted empty", "hold", on(restarted_empty, own_server=True)),
    ("server restarted empty", "wait", on(restarted_while_waiting, own_server=True)),
    *(
        (row, name, on(way(trouble), **options))
        for row, trouble, options in (*TROUBLES, ("DEBUG SLEEP 4", asleep, OWN))
        for name, way in WAYS.items()
    ),
    ("wake-up lost", "wait", on(waits(wake_up_lost))),
    ("pub/sub connection killed", "wait", on(waits(only_pubsub_killed), own_server=True)),
    ("server full", "hold, release, acquire", on(no_room, own_server=True)),
    (
        "PEXPIRE denied",
        "acquire",
        on(denied("pexpire", acquire_is_denied), own_server=True, user="app:secret@"),
    ),
    ("HSET denied", "acquire", on(denied("hset", acquire_is_denied), own_server=True, user="app:secret@")),
    ("PUBLISH denied", "release", on(denied("publish", release_works), own_server=True, user="app:secret@")),
    *((row, operation, on(perform)) for row, operation, perform in GOING),
]
