"""The effect of a fail-over on locks: faults under load, with every hold and every wait written down and checked.

failover.py [--run TOPOLOGY/FAULT ...] [--drivers NAME ...] [--holds N] [--waiters N] [--limit N] [--dead-after-ms N] [--timeline FILE]

A run keeps `--holds` watchdog locks and lets `--waiters` waiters of all languages compete for twenty others, does the
fault, and goes on until all is well again. Then it checks, with the monotonic clock of this one machine:

- no two holds of a lock overlap, unless one of the two was told `lost`. With `--limit` they are semaphores of so many permits:
  those who were not told never have more, and by the server's record each of them has its permit in the end, nobody else has
  one, and all are free when they were given back;
- each wait ended by a grant or at its own limit, by nothing else and not later;
- each lock was granted again after the fault.

Ends with `failover: runs=N ... failed=N`; the exit code is 0 only if nothing failed.
"""

import argparse
import itertools
import random
import re
import sys
import threading
import time
from collections import Counter
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from build import build
from drivers import Driver, Side
from kinds import recorded

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "scripts" / "lib"))
from server import Cluster, Deployment, Sentinels, Server, slot_of  # noqa: E402

LEASE_MS = 10_000
CONTENDED = 20
INSIDE = 0.1  # seconds that a waiter keeps what it was granted
WAIT_MS = 20_000
# A busy machine may add so much to a wait's own limit.
SLACK = 4.0
PATIENCE = 120.0
DEAD_AFTER_MS = 1000  # a primary silent for so long is taken for dead
BEFORE, AFTER = 3.0, 15.0  # seconds of load around the fault
# Permits that were lost are back after the lease and the time for which they are kept beyond it.
BACK = LEASE_MS / 1000 + 5.0
LISTENING = 40.0  # how much longer holders listen: moving slots takes its time on a busy machine


@dataclass
class Held:
    """One hold as its owner saw it: certainly its own from `since` until `until`, in seconds of this run."""

    lock: str
    owner: str
    since: float
    until: float = float("inf")
    # When it was told that it is lost, if it was.
    lost: float | None = None
    reason: str = ""


@dataclass
class Wait:
    lock: str
    owner: str
    asked: float
    answered: float = float("inf")
    status: str = "never answered"


@dataclass
class History:
    """The events of a run; times are seconds since it began."""

    start: float = field(default_factory=time.monotonic)
    held: list[Held] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    events: list[tuple[float, str]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    affected: set[str] = field(default_factory=set)
    fault: float = 0.0

    def now(self) -> float:
        return time.monotonic() - self.start

    def note(self, text: str) -> None:
        self.events.append((self.now(), text))


class Party:
    """A driver with one client: asks, and tells when the answer was read."""

    def __init__(self, side: Side, history: History, url: str) -> None:
        self.side, self.history = side, history
        self.driver = Driver(side.command)
        options = {"watchdog_ms": LEASE_MS, "fencing": False, "cluster_pubsub": "auto", "role": "a"}
        reply = self.ask(op="open", url=url, **options).result(PATIENCE)
        if reply["status"] != "ok":
            raise SystemExit(f"{side.name} cannot open {url}: {reply}")

    def ask(self, **request: object) -> Future[dict]:
        future = self.driver.ask(client="c", **request)[1]
        answered: Future[dict] = Future()
        # The thread that reads the answers writes down when.
        future.add_done_callback(lambda done: answered.set_result(done.result() | {"at": self.history.now()}))
        return answered

    def close(self) -> None:
        self.driver.close()


class Run:
    """One fault under load."""

    def __init__(self, deployment: Deployment, sides: list[Side], args: argparse.Namespace) -> None:
        self.deployment, self.args = deployment, args
        # With these a request is about a semaphore.
        self.about: dict[str, int] = {"limit": args.limit} if args.limit else {}
        self.history = History()
        self.parties: list[Party] = []
        for side in sides:
            self.parties.append(Party(side, self.history, deployment.url))
        self.over = threading.Event()
        self.end = float("inf")
        self.contended = [f"contended:{number}" for number in range(CONTENDED)]

    def close(self) -> None:
        for party in self.parties:
            party.close()

    def play(self, fault: str) -> None:
        self.history.note(f"{self.args.holds} holds are being taken")
        holds = self.take_holds()
        self.history.note(f"{len(holds)} holds, {self.args.waiters} waiters begin")
        threads = [
            threading.Thread(target=self.compete, args=(number,)) for number in range(self.args.waiters)
        ]
        threads += [threading.Thread(target=self.probe), threading.Thread(target=self.watch)]
        for thread in threads:
            thread.start()
        listening = self.listen(holds)
        try:
            time.sleep(BEFORE)
            FAULTS[fault](self)
            time.sleep(AFTER / 2)
            self.bring_back()
            time.sleep(AFTER / 2)
        finally:
            self.history.note("the load ends")
            self.over.set()
        for thread in threads:
            thread.join(PATIENCE)
        self.give_back(holds, listening)
        note_logs(self.deployment, self.history)

    # ---- the load ----

    def take_holds(self) -> list[tuple[Party, Held]]:
        asked = []
        for number, party in zip(range(self.args.holds), itertools.cycle(self.parties), strict=False):
            held = Held(self.kept(number), f"{party.side.name}/h{number}", 0)
            request = {"lock": held.lock, "as": f"h{number}", "wait_ms": WAIT_MS}
            asked.append((party, held, party.ask(op="acquire", **request, **self.about)))
        taken = []
        for party, held, future in asked:
            reply = future.result(PATIENCE)
            if reply["status"] != "ok":
                raise SystemExit(f"{held.owner} could not take {held.lock}: {reply}")
            held.since = reply["at"]
            self.history.held.append(held)
            taken.append((party, held))
        return taken

    def kept(self, number: int) -> str:
        """The lock of this holder. All permits of a semaphore are taken."""
        return f"kept:{number // max(1, self.args.limit)}"

    def listen(self, holds: list[tuple[Party, Held]]) -> list[Future[dict]]:
        """Everyone who holds waits to be told of a loss, until some time after the load has ended."""
        within = int((BEFORE + AFTER + LISTENING) * 1000)
        told = []
        for party, held in holds:
            future = party.ask(
                op="lost", lock=held.lock, within_ms=within, **{"as": held.owner.split("/")[1]}, **self.about
            )

            def note(done: Future[dict], held: Held = held) -> None:
                if done.result()["status"] == "ok":
                    held.lost, held.reason = done.result()["at"], str(done.result().get("reason"))

            future.add_done_callback(note)
            told.append(future)
        return told

    def give_back(self, holds: list[tuple[Party, Held]], listening: list[Future[dict]]) -> None:
        for future in listening:
            future.result(PATIENCE)
        if self.args.limit:
            kept = Counter(held.lock for _, held in holds if held.lost is None)
            semaphores = {held.lock for _, held in holds}
            self.recorded({lock: kept[lock] for lock in semaphores} | dict.fromkeys(self.contended, 0))
        asked = []
        for party, held in holds:
            held.until = self.history.now()
            owner = {"as": held.owner.split("/")[1]}
            asked.append(party.ask(op="release", lock=held.lock, **owner, **self.about))
        for (_, held), future in zip(holds, asked, strict=True):
            self.ended(held, future.result(PATIENCE))
        if self.args.limit:
            self.recorded(dict.fromkeys(semaphores | {*self.contended}, 0))

    def recorded(self, wanted: dict[str, int]) -> None:
        """By the server's record so many permits of these semaphores are taken, once those that were lost are back."""
        end = time.monotonic() + BACK
        for lock, number in wanted.items():
            while True:
                free, taken, kept, _ = recorded(self.deployment.primary_of(lock), lock)
                # A server that lost its data, and nobody who asked since: there is no semaphore.
                is_gone = number == free == taken == 0
                if (kept == number and free + taken == self.args.limit) or is_gone:
                    break
                if time.monotonic() > end:
                    self.history.wrong.append(
                        f"record: {lock}: {kept} of {self.args.limit} permits are taken and {free} free; {number} hold"
                    )
                    break
                time.sleep(INSIDE)  # the record and the answers of callers agree in a moment, or never

    def ended(self, held: Held, reply: dict) -> None:
        """A release that says `lost` tells it too."""
        if reply["status"] == "lost":
            held.lost = held.lost or reply["at"]
            held.reason = held.reason or str(reply.get("reason"))
        elif reply["status"] != "ok":
            self.history.note(f"{held.owner} could not release {held.lock}: {reply}")
            held.reason = f"release: {reply['status']}"

    def compete(self, number: int) -> None:
        """Acquires, keeps for a moment, releases, again and again."""
        party = self.parties[number % len(self.parties)]
        lock = self.contended[number // len(self.parties) % CONTENDED]
        while not self.over.is_set():
            self.once(party, lock, f"w{number}", WAIT_MS, INSIDE)

    def once(self, party: Party, lock: str, seat: str, wait_ms: int, inside: float) -> None:
        owner = f"{party.side.name}/{seat}"
        wait = Wait(lock, owner, self.history.now())
        self.history.waits.append(wait)
        about = {"lock": lock, "as": seat, **self.about}
        reply = party.ask(op="acquire", wait_ms=wait_ms, **about).result(PATIENCE)
        wait.answered, wait.status = reply["at"], reply["status"]
        if wait.status != "ok":
            # The error is known now; a pause before the next try keeps the load what it is.
            self.over.wait(INSIDE)
            return
        held = Held(lock, owner, reply["at"])
        self.history.held.append(held)
        time.sleep(inside)
        held.until = self.history.now()
        self.ended(held, party.ask(op="release", **about).result(PATIENCE))

    def probe(self) -> None:
        """Somebody else tries what is held: who is granted one of those proves a loss."""
        for turn in itertools.count():
            if self.over.wait(0.02):
                return
            number = random.randrange(self.args.holds)
            rival = self.parties[(number + 1 + turn % max(1, len(self.parties) - 1)) % len(self.parties)]
            self.once(rival, self.kept(number), "rival", 0, 0)

    # ---- the faults ----

    def watch(self) -> None:
        """Writes down who is primary, whenever that changes."""
        seen: dict[str, int] = {}
        # One lock of each primary is enough.
        samples = {self.deployment.primary_of(lock).port: lock for lock in self.contended}
        while not self.over.wait(0.1):
            for lock in samples.values():
                try:
                    port = self.deployment.primary_of(lock).port
                except (OSError, RuntimeError, TypeError, StopIteration):
                    continue  # no node to be asked just now
                if seen.setdefault(lock, port) != port:
                    self.history.note("the deployment names another primary")
                    seen[lock] = port

    def victim(self) -> Server:
        """The primary of the first contended lock; what lies on it is affected."""
        primary = self.deployment.primary_of(self.contended[0])
        locks = {held.lock for held in self.history.held} | set(self.contended)
        self.history.affected = {
            lock for lock in locks if self.deployment.primary_of(lock).port == primary.port
        }
        return primary

    def begin(self, text: str) -> None:
        self.history.fault = self.history.now()
        self.history.note(text)

    def graceful(self) -> None:
        primary = self.victim()
        self.begin("FAULT: a fail-over is ordered")
        if isinstance(self.deployment, Cluster):
            self.deployment.failover(primary)
        else:
            assert isinstance(self.deployment, Sentinels)
            self.deployment.failover()

    def kill(self) -> None:
        primary = self.victim()
        self.begin("FAULT: kill -9 of the primary")
        primary.kill()

    def bring_back(self) -> None:
        """A killed server comes back, empty, when everybody goes by the new one; it must do no harm."""
        for server in self.deployment.nodes:
            if not server.alive:
                self.history.note("the killed server is started again, empty")
                server.start()

    def migrate(self) -> None:
        """The contended locks of one primary, and forty of those kept, move with their slots to another."""
        assert isinstance(self.deployment, Cluster)
        source = self.victim()
        target = next(node for node in self.deployment.primaries if node.port != source.port)
        slots = sorted({slot_of(lock) for lock in self.history.affected & set(self.contended)})
        slots += sorted({slot_of(lock) for lock in self.history.affected} - set(slots))[:40]
        self.begin(f"FAULT: {len(slots)} slots with locks move to another primary")
        for slot in slots:
            self.deployment.migrate(slot, target)
        self.history.note("the slots have moved")


FAULTS = {"graceful": Run.graceful, "kill": Run.kill, "migrate": Run.migrate}


# ---- what is checked ----


def overlaps(held: list[Held], limit: int) -> tuple[list[str], float]:
    """Holds of one lock at one time, more than the limit, of which nobody was told; and the longest time that a told one
    knew nothing."""
    found, unaware = [], 0.0
    by_lock: dict[str, list[Held]] = {}
    for hold in sorted(held, key=lambda hold: hold.since):
        by_lock.setdefault(hold.lock, []).append(hold)
    for lock, holds in by_lock.items():
        inside: list[Held] = []
        for hold in holds:
            inside = [other for other in inside if min(other.until, other.lost or other.until) > hold.since]
            inside.append(hold)
            if len(inside) <= limit:
                continue
            certain = [other for other in inside if other.lost is None]
            if len(certain) > limit:
                others = ", ".join(
                    f"{one.owner} held {one.since:.3f} to {one.until:.3f}" for one in certain[:-1]
                )
                found.append(f"{lock}: {others}, {certain[-1].owner} from {certain[-1].since:.3f}")
            told = [other.lost for other in inside if other.lost is not None]
            unaware = max([unaware, *(lost - hold.since for lost in told)])
    return found, unaware


def unserved(waits: list[Wait]) -> list[str]:
    """Waits that ended by anything but a grant or their own limit, or too late."""
    found = []
    for wait in waits:
        took = wait.answered - wait.asked
        limit = (0 if "rival" in wait.owner else WAIT_MS / 1000) + SLACK
        # A single try does not wait for a server that is out of reach.
        proper = ("ok", "timeout", "unavailable") if "rival" in wait.owner else ("ok", "timeout")
        if wait.status not in proper or took > limit:
            found.append(f"{wait.owner} on {wait.lock}: {wait.status} after {took:.1f} s")
    return found


def recovery(history: History, contended: list[str]) -> tuple[float | None, float]:
    """The longest time in seconds that an affected lock was granted to nobody since the fault, and any other lock."""
    longest = {True: 0.0, False: 0.0}
    for lock in contended:
        times = [hold.since for hold in history.held if hold.lock == lock and hold.since > history.fault]
        affected = lock in history.affected
        # An acquisition from before the fault may still be answered just after it.
        if affected and not any(at > history.fault + INSIDE for at in times):
            return None, longest[False]
        pauses = [b - a for a, b in itertools.pairwise([history.fault, *sorted(times)])]
        longest[affected] = max(longest[affected], *pauses)
    return longest[True], longest[False]


def timeline(history: History, name: str, server: str) -> str:
    """Second by second, as a table."""
    lines = [f"### {name}, {server}", ""]
    lines += ["| second | grants | waits timed out | holds told lost | events |", "|---:|---:|---:|---:|---|"]

    def second(at: float) -> int:
        return int((at - history.fault) // 1)

    def contended(lock: str) -> bool:
        return lock.startswith("contended")

    grants = Counter(second(hold.since) for hold in history.held if contended(hold.lock))
    timeouts = Counter(
        second(wait.answered) for wait in history.waits if wait.status == "timeout" and contended(wait.lock)
    )
    lost = Counter(second(hold.lost) for hold in history.held if hold.lost is not None)
    events: dict[int, list[str]] = {}
    for at, text in history.events:
        events.setdefault(second(at), []).append(f"{at - history.fault:+.2f} s {text}")
    for at in range(-int(BEFORE), second(history.events[-1][0]) + 1):
        lines.append(
            f"| {at:+d} | {grants[at]} | {timeouts[at]} | {lost[at]} | {'; '.join(events.get(at, []))} |"
        )
    return "\n".join(lines)


@dataclass
class Outcome:
    text: str
    failures: list[str]
    table: str
    holds: int
    lost: int
    recovered: float | None


# Lines in the logs of servers when something changes between them, in the words of Redis and of Valkey.
NOTEWORTHY = (
    "Failover election won",
    "+switch-master",
    "Cluster state changed",
    "as failing (quorum reached)",
)
TIME = re.compile(r"(\d+ \w{3} \d{4} \d\d:\d\d:\d\d\.\d{3}) \S (.*)")


def note_logs(deployment: Deployment, history: History) -> None:
    """On a busy machine one that lives may be taken for dead: whether it was is known to the servers only."""
    now, at = time.time(), history.now()
    for server in getattr(deployment, "processes", []):
        for line in (server.folder / "log").read_text(errors="replace").splitlines():
            found = TIME.search(line)
            if found and any(word in line for word in NOTEWORTHY):
                said = datetime.strptime(found[1], "%d %b %Y %H:%M:%S.%f").timestamp()
                if said > now - at:
                    history.events.append((said - now + at, f"{server.port}: {found[2]}"))
    history.events.sort()


def judge(run: Run, name: str, server: str) -> Outcome:
    history = run.history
    twice, unaware = overlaps(history.held, max(1, run.args.limit))
    late = unserved(history.waits)
    recovered, pause = recovery(history, run.contended)
    lost = Counter(hold.reason for hold in history.held if hold.lost is not None)
    failures = [f"overlap: {text}" for text in twice] + [f"wait: {text}" for text in late] + history.wrong
    failures += [
        f"release: {hold.owner} on {hold.lock}: {hold.reason}"
        for hold in history.held
        if hold.reason.startswith("release:")
    ]
    if recovered is None:
        failures.append("an affected lock was never granted again")
    again = "never" if recovered is None else f"{recovered:.2f} s"
    text = (
        f"{name} on {server}: recovered in {again}; {len(history.held)} holds, {sum(lost.values())} told lost {dict(lost)}, "
        f"overlaps of those not told {len(twice)}, a lost holder knew nothing for at most {unaware:.2f} s; "
        f"{len(history.waits)} waits, {len(late)} ended wrongly; other primaries paused at most {pause:.2f} s"
    )
    table = timeline(history, name, server)
    return Outcome(text, failures, table, len(history.held), sum(lost.values()), recovered)


def deploy(topology: str, fault: str, given_ms: int) -> Deployment:
    # Where nobody dies nobody is to be taken for dead either, as slow as the machine may be.
    dead_after_ms = given_ms or (DEAD_AFTER_MS if fault == "kill" else 30 * DEAD_AFTER_MS)
    if topology == "sentinel":
        return Sentinels(down_after_ms=dead_after_ms)
    # As the docs advise: the locks of the other primaries are to stay usable.
    return Cluster("", "--cluster-require-full-coverage", "no", node_timeout_ms=dead_after_ms)


RUNS = ["sentinel/graceful", "sentinel/kill", "cluster/graceful", "cluster/kill", "cluster/migrate"]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", nargs="*", choices=RUNS, default=RUNS)
    parser.add_argument("--drivers", nargs="*", default=["rust", "python", "asyncio", "node", "c"])
    parser.add_argument("--holds", type=int, default=1000)
    parser.add_argument("--waiters", type=int, default=200)
    parser.add_argument(
        "--limit", type=int, default=0, help="semaphores of so many permits, in place of locks"
    )
    parser.add_argument(
        "--dead-after-ms", type=int, default=0, help="a primary silent for so long is taken for dead"
    )
    parser.add_argument("--timeline", type=Path)
    args = parser.parse_args()
    sides = build(args.drivers)
    outcomes = []
    for name in args.run:
        topology, fault = name.split("/")
        with deploy(topology, fault, args.dead_after_ms) as deployment:
            version = deployment.version()
            run = Run(deployment, sides, args)
            try:
                run.play(fault)
            finally:
                run.close()
            outcome = judge(run, f"{name}, {args.limit} permits each" if args.limit else name, version)
        outcomes.append(outcome)
        print(outcome.text, *outcome.failures[:20], sep="\n  ", flush=True)
        print(outcome.table, flush=True)
    if args.timeline:
        args.timeline.write_text("\n\n".join(outcome.table for outcome in outcomes) + "\n")
    failed = sum(len(outcome.failures) for outcome in outcomes)
    recovered = max((outcome.recovered or float("inf") for outcome in outcomes), default=0)
    print(
        f"failover: runs={len(outcomes)} holds={sum(outcome.holds for outcome in outcomes)} "
        f"lost={sum(outcome.lost for outcome in outcomes)} recovered_within={recovered:.2f}s failed={failed}"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
