"""The surroundings of a cell of the fault matrix: the proxy, the drivers, servers, and the cell's own client."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "conformance"), str(ROOT / "scripts" / "lib")]

import build  # noqa: E402
from drivers import Driver, begin  # noqa: E402, F401
from drivers import Side as Kind  # noqa: E402
from kinds import recorded  # noqa: E402
from server import Quorum, Redis, Sentinels, Server, eventually, find_server  # noqa: E402, F401
from topologies import Behind, Pool  # noqa: E402

# The watchdog's lease: one copy of a request may take a tenth of it.
LEASE_MS = 8000
LIMIT_MS = LEASE_MS // 10
# A lock that nobody wants has to be gone before its lease is over.
SOON = 6.0
# How long anything may take that has no limit of its own: only a hang reaches it.
PATIENCE = 60.0
SIDES = ["read", "write"]
# A semaphore is played as a side is: it has three permits, and each acquisition takes two of them.
PERMITS, LIMIT, TAKEN = "permits", 3, 2
# The names of a multi lock share commands on one server, and have scripts of their own there.
MULTI = "multi"
# Permits are kept for so long beyond their lease, for Redisson: docs/semaphore.md.
MARGIN_MS = 2000
LANGUAGES = ["rust", "python", "asyncio", "node", "c"]


def sides(names: list[str]) -> list[Kind]:
    """The faces of these names, built."""
    return [kind for kind in build.build(names) if kind.name in names]


class Failed(Exception):
    """A cell did not come out as it has to."""


class Proxies:
    """The fault proxy: one process, a port for each cell."""

    def __init__(self, profile: str = "debug") -> None:
        program = build.cargo("redlatch-faults", profile) / "redlatch-faults"
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdin and self.process.stdout
        self.stdin, self.stdout = self.process.stdin, self.process.stdout
        self.lock = threading.Lock()

    def __call__(self, *words: object) -> list[str]:
        with self.lock:
            self.stdin.write(" ".join(str(word) for word in words) + "\n")
            self.stdin.flush()
            status, *answer = self.stdout.readline().split()
        if status != "ok":
            raise Failed(f"the proxy answers {status} {answer} to {words}")
        return answer

    def close(self) -> None:
        self.stdin.close()
        self.process.wait()


@dataclass
class World:
    """Shared by all cells."""

    kinds: list[Kind] = field(default_factory=lambda: sides(LANGUAGES))
    # The measurements of cells, for the report.
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.binary = find_server()
        self.proxies = Proxies()
        self.pool = Pool(self.binary, self.proxies)
        self.server = Server(self.binary)
        self.drivers = {kind.name: Driver(kind.command) for kind in self.kinds}
        learnt = [self.learn_scripts(kind) for kind in self.kinds]
        if any(scripts != learnt[0] for scripts in learnt):
            raise SystemExit("the languages were not built from the same sources: make build")
        self.scripts = learnt[0]

    def learn_scripts(self, kind: Kind) -> dict[tuple[str, str], str]:
        """The hashes of the scripts, by the side and what they are for: they are ours to know by their use only."""
        found: dict[tuple[str, str], str] = {}
        for side in ("", *SIDES, PERMITS, MULTI):
            # Not every driver can extend permits, but they are renewed.
            lease_ms = 1000 if side == PERMITS else LEASE_MS
            cell = Cell(self, "scripts", kind, side="" if side == MULTI else side, lease_ms=lease_ms)
            if side == MULTI:
                cell.lock, cell.about = f"{cell.lock}a,{cell.lock}b", {"multi": True}
            cell.ok("acquire")
            if side == PERMITS:
                cell.wait_renewed()
            else:
                cell.ok("extend", lease_ms=2 * LEASE_MS)
                cell.ok("acquire")
                cell.ok("release")
            cell.ok("release")
            # The command of a level is another one than that of the last. Permits have no levels.
            acquire, renew, *_, release = scripts = cell.tell("scripts")
            lower = release if side == PERMITS else scripts[-2]
            uses = {"acquire": acquire, "renew": renew, "lower": lower, "release": release}
            found |= {(side, use): script for use, script in uses.items()}
            cell.close()
        return found

    def close(self) -> None:
        for driver in self.drivers.values():
            driver.close()
        self.pool.close()
        self.proxies.close()
        self.server.close()


Self = TypeVar("Self", bound="Cell")


class Cell:
    """One client behind a proxy of its own, and one lock."""

    count = 0
    counting = threading.Lock()

    def __init__(
        self,
        world: World,
        name: str,
        kind: Kind,
        *,
        own_server: bool = False,
        own_driver: bool = False,
        lease_ms: int = LEASE_MS,
        user: str = "",
        binary: str = "",
        before: tuple[str, ...] = (),
        behind: Behind | None = None,
        direct: bool = False,
        side: str = "",
    ) -> None:
        with Cell.counting:
            Cell.count += 1
            self.number = Cell.count
        self.world, self.name, self.kind = world, name, kind
        self.lock = f"fault{self.number}"
        self.lease_ms = lease_ms
        self.fencing = False
        # Client a has this side of a read-write lock, and b writes; or both have permits of a semaphore.
        self.side = side
        # Said in every request, and when a client is opened.
        self.about: dict[str, Any] = {}
        self.options: dict[str, Any] = {}
        # How often one owner can acquire it.
        self.levels = 1 if side == PERMITS else 2
        self.own_server, self.own_driver = own_server, own_driver
        # Its configuration is changed, and it is put to sleep: not for others.
        self.server = (
            Server(binary or world.binary, "--enable-debug-command", "yes") if own_server else world.server
        )
        self.driver = Driver((*before, *kind.command)) if own_driver else world.drivers[kind.name]
        self.behind = behind
        if behind:
            self.server, self.port = behind.place_of(self.lock)
        else:
            self.port = int(world.proxies("open", self.server.port)[0])
        self.redis = Redis(self.server.port)
        # Another cell may have used this proxy before.
        self.before = [int(number) for number in self.tell("fired")]
        self.user = user
        # Client a is to make its calls on its direct connection, and only there something goes wrong.
        self.direct = direct
        self.opened: list[str] = []
        self.done = ""

    # ---- programs ----

    def open(self, who: str) -> None:
        """Opens client a, behind the proxy, or b, beside it; both behind it where the servers know of nothing else."""
        reply = self.call(
            "open",
            who,
            url=self.url_of(who),
            watchdog_ms=self.lease_ms,
            fencing=self.fencing,
            **self.options,
        ).result(PATIENCE)
        if reply["status"] != "ok":
            raise Failed(f"open: {reply}")
        self.opened.append(who)
        if who == "a" and self.direct:
            self.until_direct(self.pair)

    def url_of(self, who: str) -> str:
        if self.behind:
            return str(self.behind.url)
        return f"redis://{self.user}127.0.0.1:{self.port if who == 'a' else self.server.port}"

    def ready(self, who: str) -> None:
        if who not in self.opened:
            self.open(who)

    def pair(self) -> None:
        other = f"{self.lock}:other"
        self.ok("acquire", lock=other)
        self.ok("release", lock=other)

    def until_direct(self, act: Callable[[], object], undo: Callable[[], object] = lambda: None) -> None:
        """Until the act has used the direct connection: calls go there while nothing else is under way and, in an
        event loop, while answers come quickly, which on a busy machine they do now and then."""
        end = time.monotonic() + PATIENCE
        while True:
            before = self.direct_calls()
            act()
            if self.direct_calls() > before:
                return
            self.check(time.monotonic() < end, "no call goes over the direct connection")
            undo()

    def direct_calls(self) -> int:
        return int(self.tell("direct")[0])

    def call(self, op: str, who: str = "a", **more: Any) -> Future[dict]:
        return self.begin(op, who, **more)[1]

    def begin(self, op: str, who: str = "a", actor: str = "main", **more: Any) -> tuple[int, Future[dict]]:
        if op != "open":
            self.ready(who)
        driver = self.world.drivers[self.kind.name] if who == "b" else self.driver
        request = {"client": f"{self.number}{who}", "lock": self.lock, "as": actor, **self.about, **more}
        if self.side == PERMITS:
            request = {"permits": TAKEN, "limit": LIMIT, **request}
        elif self.side:
            request["side"] = self.side if who == "a" else "write"
        if self.direct and who == "a":
            # The direct connection is for those who wait with a thread, and for event loops.
            request["blocked"] = True
        return driver.ask(op=op, **request)

    def ok(self, op: str, who: str = "a", **more: Any) -> dict:
        return self.status({"ok"}, op, self.call(op, who, **more))

    def status(self, allowed: set[str], what: str, future: Future[dict], within: float = PATIENCE) -> dict:
        try:
            reply = future.result(within)
        except FutureTimeout:
            raise Failed(f"{what}: no answer within {within} s") from None
        if reply["status"] not in allowed:
            raise Failed(f"{what}: {reply}, and not {' or '.join(sorted(allowed))}")
        return reply

    # ---- what goes wrong ----

    def arm(self, script: str, action: str, number: int, skip: int = 0) -> None:
        word = "arm-direct" if self.direct else "arm"
        self.world.proxies(word, self.port, self.world.scripts[self.side, script], skip, action, number)

    def tell(self, word: str, *more: object) -> list[str]:
        return self.world.proxies(word, self.port, *more)

    def wait_fired(self, times: int = 1) -> None:
        self.eventually(lambda: self.fired(0) >= times, "the fault did not happen")

    def wait_renewed(self) -> None:
        self.eventually(lambda: len(self.tell("scripts")) > 1, "it is not renewed")

    def wait_delivered(self, times: int = 1) -> None:
        self.eventually(lambda: self.fired(3) >= times, "the late copy was not done")

    def fired(self, place: int) -> int:
        return int(self.tell("fired")[place]) - self.before[place]

    def restart(self) -> None:
        """The server is empty then."""
        self.redis.close()
        self.server.restart()
        self.redis = Redis(self.server.port)

    @property
    def struck(self) -> list[str]:
        """The names that cannot be released while their server is away."""
        return [self.lock]

    # ---- what has to be ----

    def eventually(self, holds: Callable[[], bool], text: str, within: float = PATIENCE) -> None:
        end = time.monotonic() + within
        while not holds():
            if time.monotonic() > end:
                raise Failed(text)
            time.sleep(0.02)

    def check(self, holds: bool, text: str) -> None:
        if not holds:
            raise Failed(text)

    def note(self, text: str) -> None:
        self.world.notes.append(f"{self.kind.name}: {text}")

    def counts(self) -> list[str]:
        if self.side == PERMITS:
            free, taken, kept, _ = recorded(self.redis, self.lock)
            self.check(free + taken == LIMIT, f"{free} permits are free and {taken} taken")
            return [str(kept // TAKEN)] if kept else []
        fields = self.redis("HGETALL", self.lock)
        return [count for name, count in zip(fields[::2], fields[1::2], strict=True) if name != "mode"]

    def held_with(self, count: int) -> None:
        """The client and the server agree on the count. The levels of a reader are known to its client only."""
        counts, wanted = self.counts(), 1 if self.side in ("read", PERMITS) else count
        self.check(counts == [str(wanted)], f"the server counts {counts}, and not {wanted}")
        told = self.told("count", count)
        self.check(told == count, f"the client counts {told}, and not {count}")
        self.check(self.told("held", True), "the client does not hold it")

    def told(self, op: str, otherwise: Any, who: str = "a") -> Any:
        """The client's word; for permits not every driver has it."""
        reply = self.status({"ok", "unsupported"} if self.side == PERMITS else {"ok"}, op, self.call(op, who))
        return reply.get("value", otherwise)

    def left(self) -> int:
        """How many ms of its lease remain, by the server."""
        if self.side == PERMITS:
            return recorded(self.redis, self.lock)[3] - MARGIN_MS
        left: int = self.redis("PTTL", self.lock)
        return left

    def is_free(self) -> bool:
        if self.side == PERMITS:
            return recorded(self.redis, self.lock)[2] == 0
        return bool(self.redis("EXISTS", self.lock) == 0)

    def gone(self, within: float = SOON) -> None:
        self.eventually(self.is_free, "it is still taken", within)

    def renewed(self, left: Callable[[], int] | None = None) -> None:
        """Waits for the next renewal: only that gives a lease more time. `left` tells how much of it remains."""
        left = left or self.left
        last = left()

        def has_more() -> bool:
            nonlocal last
            before, last = last, left()
            return last > before

        self.eventually(has_more, "it is not renewed")

    def subscribers(self) -> int:
        kind = "SHARDNUMSUB" if self.behind and self.behind.topology == "cluster" else "NUMSUB"
        channels = {"": "redisson_lock__channel", PERMITS: "redisson_sc"}
        channel = channels.get(self.side, "redisson_rwlock")
        return self.redis("PUBSUB", kind, f"{channel}:{{{self.lock}}}")[1]

    def waiting(self) -> None:
        self.eventually(lambda: self.subscribers() > 0, "nobody subscribed")

    def works(self) -> None:
        """Nothing is left, and client a goes on as if nothing had happened."""
        self.gone()
        self.ok("acquire", wait_ms=20000)
        self.held_with(1)
        self.ok("release")
        self.gone()
        self.eventually(lambda: self.subscribers() == 0, "somebody still listens")

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for who in self.opened:
            if who == "b" or not self.own_driver:
                self.call("close", who)
        if self.own_driver:
            self.driver.close()
        self.redis.close()
        if self.own_server:
            self.server.close()
