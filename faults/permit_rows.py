"""Processes that are killed at random while they hold permits of a semaphore, of all languages together."""

from __future__ import annotations

import itertools
import random
import threading
import time
from concurrent.futures import Future

from world import MARGIN_MS, PATIENCE, SOON, Driver, Failed, Kind, Redis, Server, World, recorded

LEASE_MS = 3000
# So many processes live at a time, each wants one or two permits, and all of them together a few more than there are.
ALIVE = 20
LIMIT = 27
# How many are killed that hold, and how many of them where there is little time.
KILLED, FEW = 200, 10
killed = KILLED
NAME = "killed"


def look(redis: Redis) -> list[int]:
    return recorded(redis, NAME)


class Watcher:
    """Looks at the server's record whenever permits were taken, renewed or given back."""

    def __init__(self, server: Server) -> None:
        self.redis, self.feed = Redis(server.port), Redis(server.port)
        self.redis("CONFIG", "SET", "notify-keyspace-events", "Kz")
        self.channel = f"__keyspace@0__:{{{NAME}}}:timeout"
        self.feed("SUBSCRIBE", self.channel)
        self.looks = self.most = 0
        self.wrong: list[str] = []
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()

    def watch(self) -> None:
        while self.feed.read()[2] != "over":
            free, taken, kept, _ = look(self.redis)
            self.looks, self.most = self.looks + 1, max(self.most, taken)
            if taken > LIMIT or free + taken != LIMIT:
                self.wrong.append(f"{free} are free and {taken} taken, {kept} of them for now")

    def close(self) -> None:
        self.redis("PUBLISH", self.channel, "over")
        self.thread.join()
        self.feed.close()
        self.redis.close()


class Victim:
    """A process that takes permits until it is killed."""

    def __init__(self, kind: Kind, server: Server, permits: int) -> None:
        self.driver, self.permits = Driver(kind.command), permits
        self.opened = self.ask("open", url=server.url, watchdog_ms=LEASE_MS)
        self.asked: Future[dict] | None = None
        self.takes = False

    def ask(self, op: str, **more: object) -> Future[dict]:
        request = {"client": "v", "lock": NAME, "as": "main", **more}
        return self.driver.ask(op=op, **request)[1]

    def acquire(self) -> None:
        self.asked, self.takes = self.ask("acquire", limit=LIMIT, permits=self.permits), True

    def release(self) -> None:
        self.asked, self.takes = self.ask("release", limit=LIMIT), False

    @property
    def holds(self) -> bool:
        """It was told that it holds, and was asked for nothing since."""
        return (
            self.takes
            and self.asked is not None
            and self.asked.done()
            and self.asked.result()["status"] == "ok"
        )


class Massacre:
    def __init__(self, world: World) -> None:
        self.world, self.random = world, random.Random(killed)
        self.kinds = itertools.cycle(world.kinds)
        self.server = Server(world.binary)
        self.redis = Redis(self.server.port)
        self.watcher = Watcher(self.server)
        self.killed, self.held, self.slowest = 0, 0, 0.0

    def is_deserted(self) -> bool:
        return "name=redlatch" not in self.redis("CLIENT", "LIST")

    def until(self, holds: object, text: str, within: float = PATIENCE) -> None:
        assert callable(holds)
        end = time.monotonic() + within
        while not holds():
            if time.monotonic() > end:
                raise Failed(f"{text}: {look(self.redis)}")
            time.sleep(0.02)

    def play(self) -> None:
        while self.held < killed:
            self.batch()
        if self.watcher.wrong:
            raise Failed(f"of {LIMIT}: {self.watcher.wrong[0]}, and {len(self.watcher.wrong)} times in all")
        if self.watcher.most < LIMIT:
            raise Failed(f"that proves little: {self.told()}")
        self.world.notes.append(self.told())

    def told(self) -> str:
        return (
            f"processes killed: {self.killed}, {self.held} of them while they held; all {LIMIT} permits were "
            f"back {self.slowest:.1f} s after the last kill; {self.watcher.looks} looks, at most {self.watcher.most} taken"
        )

    def batch(self) -> None:
        """Processes take permits, give some back and take them again, and are killed one after the other meanwhile."""
        victims = [Victim(next(self.kinds), self.server, 1 + number % 2) for number in range(ALIVE)]
        try:
            for victim in victims:
                if victim.opened.result(PATIENCE)["status"] != "ok":
                    raise Failed(f"open: {victim.opened.result()}")
                victim.acquire()
            # One that waits wants two, and one is free at most.
            self.until(lambda: look(self.redis)[1] >= LIMIT - 1, "they take too few permits")
            self.random.shuffle(victims)
            while victims:
                if self.random.random() < 0.5:
                    self.turn(victims)
                victim = victims.pop()
                self.killed, self.held = self.killed + 1, self.held + victim.holds
                victim.driver.close()
        finally:
            for victim in victims:
                victim.driver.close()
        self.all_back()

    def turn(self, victims: list[Victim]) -> None:
        """One that holds gives its permits back, and asks for them again at once."""
        holders = [victim for victim in victims if victim.holds]
        if holders:
            victim = self.random.choice(holders)
            victim.release()
            # Some are killed between the two.
            if self.random.random() < 0.9:
                assert victim.asked
                if victim.asked.result(PATIENCE)["status"] not in ("ok", "lost"):
                    raise Failed(f"release: {victim.asked.result()}")
                victim.acquire()

    def all_back(self) -> None:
        """By the server's record all permits are free again within a lease and the margin, and all can be taken at once."""
        died = time.monotonic()
        # Requests that they had sent before they died are done when their connections are gone.
        self.until(self.is_deserted, "connections are left")
        longest = look(self.redis)[3]
        if longest > LEASE_MS + MARGIN_MS:
            raise Failed(f"the permits of a dead process are kept for {longest} ms")
        self.until(lambda: look(self.redis)[2] == 0, "dead processes have permits", longest / 1000 + SOON)
        self.slowest = max(self.slowest, time.monotonic() - died)
        survivor = Victim(self.world.kinds[0], self.server, LIMIT)
        try:
            survivor.opened.result(PATIENCE)
            for ask in (survivor.acquire, survivor.release):
                ask()
                assert survivor.asked
                if (reply := survivor.asked.result(PATIENCE))["status"] != "ok":
                    raise Failed(f"one who wants all permits: {reply}")
        finally:
            survivor.driver.close()
        found = look(self.redis)
        if found[:2] != [LIMIT, 0]:
            raise Failed(f"{found[0]} are free and {found[1]} taken when nobody holds")

    def close(self) -> None:
        self.watcher.close()
        self.redis.close()
        self.server.close()


def killed_at_random(world: World, _: Kind) -> None:
    massacre = Massacre(world)
    try:
        massacre.play()
    finally:
        massacre.close()
