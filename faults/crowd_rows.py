"""Faults of a crowd: of the set that has its places, and of the process that is first there.

Some clients wait for one name, the first of them in a process of its own, behind a holder that came out of the crowd itself. Then
something goes wrong, and the holder releases. From then on the name stands free no longer than docs/cost.md says, no two have it,
and the set has no more places than there are clients.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait

from server_rows import Play
from world import PATIENCE, SOON, Driver, Failed, Kind, Sentinels, Server, World

NAME = "crowd"
KEY = f"{{{NAME}}}:redlatch:crowd"
LEASE_MS = 3000
# So long nobody looks by itself: only a message wakes in time.
NEVER_MS = 60_000
RECHECK_MS = 2000
# The first client, in a process of its own, and the others.
HEAD, OTHERS = 0, range(1, 9)
# Until they know that they are a crowd.
TURNS = 4


class Crowd:
    """The clients, on servers of their own."""

    def __init__(
        self, world: World, kind: Kind, *, permits: bool, recheck_ms: int, sentinels: bool = False
    ) -> None:
        self.permits, self.recheck_ms = permits, recheck_ms
        self.place = Sentinels(world.binary, replicas=1) if sentinels else Server(world.binary)
        self.about = {"lock": NAME, "as": "main"} | ({"permits": 1, "limit": 1} if permits else {})
        self.head, self.rest = Driver(kind.command), Driver(kind.command)
        # The acquisitions that are not answered, or whose answer has not been seen.
        self.asked: dict[int, Future[dict]] = {}
        self.away: set[int] = set()
        # What a waiter may be told instead of being granted it.
        self.refused = ""
        for number in (HEAD, *OTHERS):
            self.ok(number, "open", url=self.place.url, watchdog_ms=LEASE_MS, recheck_ms=recheck_ms)

    def close(self) -> None:
        self.head.close()
        self.rest.close()
        self.place.close()

    def redis(self, *words: str | int) -> object:
        return self.place.primary_of(NAME)(*words)

    def ask(self, number: int, op: str, **more: object) -> Future[dict]:
        driver = self.head if number == HEAD else self.rest
        return driver.ask(op=op, client=f"w{number}", **self.about, **more)[1]

    def ok(self, number: int, op: str, *allowed: str, **more: object) -> None:
        reply = self.ask(number, op, **more).result(PATIENCE)
        if reply["status"] not in ("ok", *allowed):
            raise Failed(f"{op}: {reply}")

    def places(self) -> list[str]:
        found = self.redis("ZRANGE", KEY, 0, -1)
        assert isinstance(found, list)
        return [str(place) for place in found]

    def connections(self) -> int:
        return str(self.redis("CLIENT", "LIST")).count("\n")

    def eventually(self, holds: Callable[[], object], text: str) -> None:
        end = time.monotonic() + PATIENCE
        while not holds():
            if time.monotonic() > end:
                raise Failed(f"{text}; {len(self.places())} have a place")
            time.sleep(0.01)

    # ---- turns ----

    def acquire(self, number: int) -> None:
        self.asked[number] = self.ask(number, "acquire")

    def granted(self, within: float) -> int:
        """The next of those that wait. Nobody else has it."""
        while True:
            done, _ = wait(self.asked.values(), within, FIRST_COMPLETED)
            if not done:
                raise Failed(f"it stands free for {within} s, and {len(self.asked)} wait")
            number = next(number for number, future in self.asked.items() if future in done)
            reply = self.asked.pop(number).result()
            if reply["status"] == "ok":
                break
            if reply["status"] != self.refused:
                raise Failed(f"a waiter: {reply}")
            self.acquire(number)
        others = {other: future.result() for other, future in self.asked.items() if future.done()}
        if two := [other for other, told in others.items() if told["status"] == "ok"]:
            raise Failed(f"{number} and {two} have it at once")
        return number

    def turns(self, times: int, within: float) -> None:
        """Each of them gets it so often."""
        left = dict.fromkeys({HEAD, *OTHERS} - self.away, times)
        for number in left.keys() - self.asked.keys():
            self.acquire(number)
        while left:
            number = self.granted(within)
            time.sleep(0.005)
            self.ok(number, "release")
            left[number] -= 1
            if left[number] > 0:
                self.acquire(number)
            else:
                del left[number]
            if len(places := self.places() if self.is_set() else []) > 1 + len(OTHERS):
                raise Failed(f"{len(places)} places for {1 + len(OTHERS)} clients")

    def is_set(self) -> bool:
        return self.redis("TYPE", KEY) in ("zset", "none")

    def gather(self) -> int:
        """They take turns until one has it, the head is the first place, and all others have one. Returns the one that has it."""
        uuid = self.uuid()
        for number in (HEAD, *OTHERS):
            self.acquire(number)
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            number = self.granted(PATIENCE)
            # The one before it asks again.
            time.sleep(0.02)
            places = self.places()
            is_first = bool(places) and places[0].startswith(uuid)
            if is_first and len(places) == len(OTHERS):
                return number
            self.ok(number, "release")
            self.acquire(number)
        raise Failed(f"they become no crowd, {len(self.places())} have a place")

    def uuid(self) -> str:
        """What the places of the head begin with."""
        about = {"client": f"w{HEAD}", "lock": "own", "as": "main"}
        self.head.ask(op="acquire", **about)[1].result(PATIENCE)
        [owner] = self.place.primary_of("own")("HKEYS", "own")
        self.head.ask(op="release", **about)[1].result(PATIENCE)
        # The last group is that of its connection.
        return str(owner).rpartition("-")[0]


# ---- what goes wrong, before the holder releases ----


def deleted(crowd: Crowd, holder: int) -> None:
    crowd.redis("DEL", KEY)
    crowd.ok(holder, "release")


def of_another_type(crowd: Crowd, holder: int) -> None:
    crowd.redis("DEL", KEY)
    crowd.redis("SET", KEY, "mine now")
    crowd.ok(holder, "release")


def evicted(crowd: Crowd, holder: int) -> None:
    """With all else: the holder is told. Then there is room for nothing, for a moment."""
    crowd.refused = "server"
    crowd.redis("CONFIG", "SET", "maxmemory-policy", "allkeys-random")
    crowd.redis("CONFIG", "SET", "maxmemory", "1")
    crowd.redis("SET", "other", "x")
    crowd.eventually(lambda: not crowd.redis("EXISTS", KEY), "it is not evicted")
    crowd.redis("CONFIG", "SET", "maxmemory", "0")
    crowd.ok(holder, "release", "lost")


def full(crowd: Crowd, holder: int) -> None:
    """The one that is woken is told so, and asks again."""
    crowd.redis("CONFIG", "SET", "maxmemory", "1")
    crowd.refused = "server"
    crowd.ok(holder, "release")
    crowd.eventually(lambda: any(future.done() for future in crowd.asked.values()), "nobody is refused")
    crowd.redis("CONFIG", "SET", "maxmemory", "0")


def failed_over(crowd: Crowd, holder: int) -> None:
    """To a replica that has the hold, and not the set."""
    assert isinstance(crowd.place, Sentinels)
    before, replica = crowd.place.data
    replica("CONFIG", "SET", "replica-read-only", "no")
    replica("DEL", KEY)
    replica("CONFIG", "SET", "replica-read-only", "yes")
    crowd.place.failover()
    crowd.eventually(lambda: crowd.place.primary_of(NAME) is not before, "no fail-over")
    crowd.ok(holder, "release")


def killed(crowd: Crowd, holder: int) -> None:
    before = crowd.connections()
    crowd.head.signal("KILL")
    crowd.away.add(HEAD)
    crowd.asked.pop(HEAD)
    crowd.eventually(lambda: crowd.connections() < before, "its connections do not end")
    crowd.ok(holder, "release")


def stopped(crowd: Crowd, holder: int) -> None:
    """It stands still for two leases, and then wants its turn as before."""
    crowd.head.signal("STOP")
    crowd.away.add(HEAD)
    waiting = crowd.asked.pop(HEAD)
    crowd.ok(holder, "release")
    end = time.monotonic() + 2 * LEASE_MS / 1000
    while time.monotonic() < end:
        crowd.turns(1, crowd.recheck_ms / 1000 + SOON)
    crowd.head.signal("CONT")
    crowd.away.remove(HEAD)
    crowd.asked[HEAD] = waiting


Fault = Callable[[Crowd, int], None]
# A fault of the set costs a recheck. Where the next one is woken nevertheless, nobody has to look.
FAULTS: list[tuple[str, Fault, bool]] = [
    ("places deleted", deleted, False),
    ("places evicted", evicted, False),
    ("another type at the places", of_another_type, False),
    ("server full", full, False),
    ("fail-over to a replica without places", failed_over, False),
    ("SIGKILL of the first", killed, True),
    ("SIGSTOP of the first for two leases", stopped, False),
]


def on(fault: Fault, wakes: bool, permits: bool) -> Play:
    def play(world: World, kind: Kind) -> None:
        # The holder of a permit knows of no crowd: others find a dead first one when they look.
        recheck_ms = NEVER_MS if wakes and not permits else RECHECK_MS
        within = SOON + (0 if recheck_ms == NEVER_MS else RECHECK_MS / 1000)
        crowd = Crowd(world, kind, permits=permits, recheck_ms=recheck_ms, sentinels=fault is failed_over)
        try:
            fault(crowd, crowd.gather())
            crowd.turns(TURNS, within)
            crowd.eventually(lambda: not crowd.is_set() or not crowd.places(), "a place is left behind")
        finally:
            crowd.close()

    return play


CROWD_ROWS: list[tuple[str, str, Play]] = [
    (f"crowd: {row}", "wait for a permit" if permits else "wait", on(fault, wakes, permits))
    for row, fault, wakes in FAULTS
    for permits in (False, True)
]
