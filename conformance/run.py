"""Runs the scenarios of scenarios.toml in every driver and every pair of drivers.

run.py [--topology single|sentinel|cluster] [--only WORD ...] [--drivers NAME ...] [--jobs N] [--report FILE]

Ends with `conformance: scenarios=N checks=N failed=N`; the exit code is 0 only if nothing failed.
"""

import argparse
import itertools
import platform
import sys
import threading
import time
from collections import defaultdict
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from pathlib import Path

import tomllib
from build import build
from drivers import Driver, Kind

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "scripts" / "lib"))
from server import TOPOLOGIES  # noqa: E402
from tap import Ground  # noqa: E402

WATCHDOG_MS = 1000
# How long anything may take that has no limit of its own: only a hang reaches it.
PATIENCE = 60.0
# What a busy machine may add to a time that a scenario demands.
SLACK_MS = 4000


# The words that the runner does itself; all others are a driver's.
OWN_WORDS = [
    "redis",
    "pause_ms",
    "waiting",
    "finish",
    "serve",
    "signal",
    "server",
    "mark",
    "commands",
    "listen",
    "heard",
]


class Failed(Exception):
    """A check that did not come out as the scenario says."""


@dataclass
class Row:
    """One scenario with the drivers that play its actors."""

    scenario: dict
    kinds: dict[str, Kind]
    name: str | None = None
    checks: int = 0
    failure: str = ""
    trace: list[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        who = " × ".join(kind.name for kind in self.kinds.values())
        return f"{self.scenario['name']}{f' {self.name!r}' if self.name else ''} [{who}]"


class World:
    """The servers, the running drivers and what they said of themselves."""

    def __init__(self, kinds: list[Kind], topology: str) -> None:
        self.kinds = kinds
        self.ground = Ground(topology)
        self.drivers = {kind.name: Driver(kind) for kind in kinds}
        self.hello = {
            name: driver.ask(op="hello")[1].result(PATIENCE) for name, driver in self.drivers.items()
        }

    def close(self) -> None:
        for driver in self.drivers.values():
            driver.close()
        self.ground.close()


class Play:
    """Plays one row."""

    def __init__(self, world: World, row: Row, number: int) -> None:
        self.world, self.row, self.number = world, row, number
        self.scenario = row.scenario
        self.own = self.scenario.get("own_server", False)
        self.ground = Ground(world.ground.topology) if self.own else world.ground
        self.tap = self.ground.tap
        self.lock = f"row{number}:{row.name}" if row.name else f"row{number}"
        self.drivers: dict[str, Driver] = {}
        self.background: dict[str, tuple[str, str, int, Future[dict]]] = {}
        self.tokens: list[int] = []
        self.mark = 0

    def run(self) -> None:
        try:
            for actor, kind in self.row.kinds.items():
                self.open(actor, kind)
            for step in self.scenario["steps"]:
                try:
                    self.step(step)
                except (Failed, FutureTimeout, OSError) as error:
                    raise Failed(f"{step}: {error or type(error).__name__}") from error
            self.quiet()
        except Failed as error:
            self.row.failure = str(error)
            self.row.trace = [line for line in self.tap.about(self.lock) if '"PUBSUB"' not in line][-40:]
        finally:
            self.end()

    def open(self, actor: str, kind: Kind) -> None:
        private = self.scenario.get(f"private_{actor}") or self.own
        driver = Driver(kind) if private else self.world.drivers[kind.name]
        self.drivers[actor] = driver
        request = {
            "url": self.ground.deployment.url,
            "watchdog_ms": self.scenario.get("watchdog_ms", WATCHDOG_MS),
            "fencing": self.scenario.get("fencing", False),
            "role": actor,
            "cluster_pubsub": "both" if self.mixed else "auto",
        }
        if private:
            request["private"] = True
        reply = driver.ask(op="open", client=self.client(actor), **request)[1].result(PATIENCE)
        self.check(reply["status"] == "ok", f"open: {reply}")

    @property
    def mixed(self) -> bool:
        """Whether somebody publishes to all nodes of a cluster, as Redisson did before it knew of shards."""
        old = [kind for kind in self.row.kinds.values() if kind.redisson and version_of(kind.name) < [3, 22]]
        return self.ground.topology == "cluster" and bool(old)

    def client(self, actor: str) -> str:
        return f"{self.number}{actor}"

    def end(self) -> None:
        for actor, driver in self.drivers.items():
            if driver is not self.world.drivers.get(driver.kind.name):
                driver.close()
            else:
                driver.ask(op="close", client=self.client(actor))
        if self.own:
            self.ground.close()

    def check(self, holds: bool, text: str) -> None:
        self.row.checks += 1
        if not holds:
            raise Failed(text)

    def redis(self, *words: str) -> object:
        """A command for the primary of the key it names; one without a key, for the primary of the lock."""
        named = words[1] if len(words) > 1 and self.lock in words[1] else self.lock
        return self.ground.ask(named, *words)

    # ---- the words ----

    def step(self, step: dict) -> None:
        step = dict(step)
        word = next((word for word in OWN_WORDS if word in step), None)
        if word:
            return getattr(self, f"do_{word}")(step)
        actor = next(name for name in ("a", "b") if name in step)
        return self.do_call(actor, step)

    def do_call(self, actor: str, step: dict) -> None:
        driver = self.drivers[actor]
        if driver.kind.redisson and step.get("redisson") == "skip":
            return
        request = {
            "op": step[actor],
            "client": self.client(actor),
            "lock": self.lock,
            "as": step.get("as", "main"),
        }
        request |= {key: step[key] for key in ("wait_ms", "lease_ms") if key in step}
        request |= {"lock": "x" * 1025 if step["lock"] == "long" else step["lock"]} if "lock" in step else {}
        if step[actor] == "lost":
            request["within_ms"] = step["within_ms"] + SLACK_MS
        if step[actor] == "cancel":
            request["target"] = self.background[step["target"]][2]
        begun = time.monotonic()
        if "background" in step:
            for number in range(step.get("count", 1)):
                suffix = str(number) if "count" in step else ""
                asked = driver.ask(**(request | {"as": request["as"] + suffix}))
                self.background[step["background"] + suffix] = (actor, request["as"] + suffix, *asked)
            return
        if "times" in step:
            names = [f"{self.lock}:{number}" for number in range(step["times"])]
            replies = [driver.ask(**(request | {"lock": name}))[1] for name in names]
            for reply in replies:
                self.judge(actor, step, reply.result(PATIENCE), begun)
            return
        self.judge(actor, step, driver.ask(**request)[1].result(PATIENCE), begun)

    def judge(self, actor: str, step: dict, reply: dict, begun: float) -> None:
        took = (time.monotonic() - begun) * 1000
        redisson = self.drivers[actor].kind.redisson
        expected = step.get("redisson") if redisson and "redisson" in step else step.get("expect", "ok")
        if expected != "any":
            self.check(reply["status"] == expected, f"expected {expected}, got {reply}")
        if "value" in step:
            wanted = step["value"]
            if wanted == "nobody":
                wanted = None
            elif wanted == "as in Redis":
                fields = self.redis("HGETALL", self.lock)
                wanted = {"owner": fields[0], "count": int(fields[1])} if fields else "a holder"
            self.check(reply.get("value") == wanted, f"expected {wanted}, got {reply}")
        if "reason" in step and not redisson:
            self.check(reply.get("reason") == step["reason"], f"expected {step['reason']}, got {reply}")
        if "after_ms" in step:
            self.check(took >= step["after_ms"], f"answered after {took:.0f} ms already")
        if "within_ms" in step:
            self.check(took <= step["within_ms"] + SLACK_MS, f"answered after {took:.0f} ms only")
        if "token" in step:
            self.judge_token(step["token"], reply["token"])
        for name in step.get("same", ()):
            first = next(iter(self.world.hello.values()))
            self.check(reply[name] == first[name], f"{name} differ: {reply[name]} and {first[name]}")

    def judge_token(self, wanted: str, token: int) -> None:
        before = self.tokens[-1] if self.tokens else 0
        self.check(
            token == before if wanted == "same" else token > before, f"token {token} after {self.tokens}"
        )
        self.tokens.append(token)

    def do_finish(self, step: dict) -> None:
        actor, _, _, future = self.background.pop(step["finish"])
        begun = time.monotonic()
        self.judge(actor, step, future.result(PATIENCE), begun)

    def do_serve(self, step: dict) -> None:
        """Each background acquire is released as soon as it is granted, in whatever order."""
        begun = time.monotonic()
        waiting = {name: self.background.pop(name) for name in step["serve"]}
        while waiting:
            done = [name for name, entry in waiting.items() if entry[3].done()]
            self.check(
                (time.monotonic() - begun) * 1000 < step["within_ms"] + SLACK_MS,
                f"not served: {list(waiting)}",
            )
            for name in done:
                actor, thread, _, future = waiting.pop(name)
                self.check(future.result()["status"] == "ok", f"{name}: {future.result()}")
                request = {"op": "release", "client": self.client(actor), "lock": self.lock, "as": thread}
                reply = self.drivers[actor].ask(**request)[1].result(PATIENCE)
                self.check(reply["status"] == "ok", f"release of {name}: {reply}")
            time.sleep(0.01)

    def do_redis(self, step: dict) -> None:
        # One pair of braces is the lock's name, two stand for themselves around it.
        name = self.lock
        words = [word.replace("{{lock}}", f"{{{name}}}").replace("{lock}", name) for word in step["redis"]]
        value = self.redis(*words)
        if "equals" in step:
            self.check(value == step["equals"], f"Redis answers {value!r}")
        redisson = self.row.kinds["a"].redisson
        most = step.get("redisson_at_most") if redisson else step.get("at_most")
        if "at_least" in step and not (redisson and most is not None):
            self.check(value >= step["at_least"], f"Redis answers {value!r}")
        if most is not None:
            self.check(value <= most, f"Redis answers {value!r}")

    def do_pause_ms(self, step: dict) -> None:
        time.sleep(step["pause_ms"] / 1000)

    def subscribers(self) -> int:
        return self.ground.subscribers(self.channel())

    def eventually(self, holds: object, text: str) -> None:
        end = time.monotonic() + PATIENCE / 4
        while not holds():
            if time.monotonic() > end:
                self.check(False, text)
            time.sleep(0.02)
        self.check(True, text)

    def do_waiting(self, step: dict) -> None:
        """At least so many connections listen for the release; 0: none."""
        wanted = step["waiting"]
        enough = (lambda: self.subscribers() >= wanted) if wanted else (lambda: self.subscribers() == 0)
        self.eventually(enough, f"{self.subscribers()} connections wait")

    def do_mark(self, step: dict) -> None:
        self.tap.catch_up()
        self.mark = len(self.tap.lines)

    def do_commands(self, step: dict) -> None:
        """Commands that clients have sent about this lock since the mark."""
        self.tap.catch_up()
        sent = [line for line in self.tap.about(self.lock, self.mark) if " lua]" not in line.split('"')[0]]
        self.check(len(sent) <= step["at_most"], f"{len(sent)} commands: {sent}")
        self.check(len(sent) >= step.get("at_least", 0), f"{len(sent)} commands: {sent}")

    def channel(self) -> str:
        return (
            f"redisson_lock__channel:{self.lock}"
            if "{" in self.lock
            else f"redisson_lock__channel:{{{self.lock}}}"
        )

    def do_listen(self, step: dict) -> None:
        """The runner itself subscribes to the lock's channel."""
        self.ear = self.ground.ear(self.channel(), PATIENCE / 4)

    def do_heard(self, step: dict) -> None:
        """Exactly these messages came since `listen`; the last word is the runner's own, to know where to stop."""
        self.redis("PUBLISH", self.channel(), "1")
        messages = [self.ear.read()[2] for _ in range(len(step["heard"]) + 1)]
        self.ear.close()
        self.check(messages == [*step["heard"], "1"], f"heard {messages}")

    def do_signal(self, step: dict) -> None:
        self.drivers[step["to"]].signal(step["signal"])

    def do_server(self, step: dict) -> None:
        if step["server"] == "restart":
            self.ground.restart(self.lock)
        else:
            server = self.ground.deployment.primary_of(self.lock)
            server.signal({"stop": "STOP", "continue": "CONT"}[step["server"]])

    def quiet(self) -> None:
        """Nothing is left: no key, no subscription."""
        self.eventually(lambda: self.redis("EXISTS", self.lock) == 0, "the key is still there")
        self.eventually(lambda: self.subscribers() == 0, "somebody still listens")


# ---- which rows there are ----


def rows(table: list[dict], kinds: list[Kind], topology: str) -> list[Row]:
    found = []
    for scenario in table:
        if topology in scenario.get("not_on", ()):
            continue
        for name in scenario.get("names", [None]):
            if topology in scenario.get("names_not_on", {}).get(name, ()):
                continue
            found += [Row(scenario, actors, name) for actors in casts(scenario, kinds)]
    return found


def left_out(table: list[dict], topology: str) -> list[str]:
    """What makes no sense on this topology, and why."""
    found = []
    for scenario in table:
        if topology in scenario.get("not_on", ()):
            found.append(f"- {scenario['name']}: {scenario['not_because']}.")
        names = [name for name, where in scenario.get("names_not_on", {}).items() if topology in where]
        if names:
            found.append(f"- {scenario['name']}, of them {names}: {scenario['not_because']}.")
    return found


def casts(scenario: dict, kinds: list[Kind]) -> list[dict[str, Kind]]:
    newest = max((kind.name for kind in kinds if kind.redisson), default="", key=version_of)

    def plays(actor: str, kind: Kind) -> bool:
        if "only" in scenario and kind.name not in scenario["only"]:
            return False
        if not kind.redisson:
            return True
        wanted = scenario.get("redisson", True)
        wanted = kind.name == newest if wanted == "newest" else wanted
        return bool(wanted and scenario.get(f"redisson_{actor}", True))

    if scenario["who"] == "each":
        return [{"a": kind} for kind in kinds if plays("a", kind)]
    pairs = itertools.product(kinds, kinds)
    # Two Redissons are not ours to test; where nobody else plays they test the table.
    theirs = all(kind.redisson for kind in kinds)
    pairs = [(a, b) for a, b in pairs if plays("a", a) and plays("b", b)]
    pairs = [(a, b) for a, b in pairs if theirs or not (a.redisson and b.redisson)]
    if scenario["who"] == "mixed":
        partners = {"rust", newest}
        pairs = [(a, b) for a, b in pairs if a.name in partners or b.name in partners]
    return [{"a": a, "b": b} for a, b in pairs]


def version_of(name: str) -> list[int]:
    return [int(part) for part in name.split("-")[1].split(".")]


# ---- what is shown ----


def matrix(rows: list[Row]) -> list[str]:
    """A line per scenario: who took part, checks, failures."""
    by_scenario: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_scenario[row.scenario["name"]].append(row)
    lines = ["| scenario | rows | checks | failed |", "|---|---:|---:|---:|"]
    for name, group in by_scenario.items():
        failed = sum(1 for row in group if row.failure)
        lines.append(f"| {name} | {len(group)} | {sum(row.checks for row in group)} | {failed} |")
    return lines


def pair_table(rows: list[Row], kinds: list[Kind]) -> list[str]:
    """Who held against whom waited, over all scenarios: rows passed of rows played."""
    lines = [
        "| holds \\ waits | " + " | ".join(kind.name for kind in kinds) + " |",
        "|---|" + "---:|" * len(kinds),
    ]
    for a in kinds:
        cells = []
        for b in kinds:
            group = [row for row in rows if row.kinds.get("a") == a and row.kinds.get("b") == b]
            cells.append(f"{sum(1 for row in group if not row.failure)}/{len(group)}" if group else "")
        lines.append(f"| {a.name} | " + " | ".join(cells) + " |")
    return lines


def differences(table: list[dict]) -> list[str]:
    """Where Redisson answers otherwise, and why."""
    seen = {}
    for scenario in table:
        for step in scenario["steps"]:
            if "why" in step:
                seen[scenario["name"]] = step["why"]
    return [f"- {name}: {why}." for name, why in seen.items()]


def report(world: World, table: list[dict], rows: list[Row], summary: str) -> str:
    topology = world.ground.topology
    versions = [f"- {name}: {hello.get('version')}" for name, hello in world.hello.items()]
    parts = [
        "# Conformance report",
        "Made by `make conformance`; the scenarios are in `scenarios.toml`.",
        "\n".join(
            [
                f"- server: {world.ground.deployment.version()}, {topology}",
                *versions,
                f"- system: {platform.system()} {platform.machine()}",
            ]
        ),
        "\n".join(matrix(rows)),
        "## Pairs",
        "\n".join(pair_table(rows, world.kinds)),
        "## Where Redisson answers otherwise",
        "\n".join(differences(table)),
        *(
            ["## Not played on this topology", "\n".join(missing)]
            if (missing := left_out(table, topology))
            else []
        ),
        summary,
    ]
    return "\n\n".join(parts) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topology", choices=TOPOLOGIES, default="single")
    parser.add_argument("--only", nargs="*", default=[], help="words that a row's title must contain")
    parser.add_argument("--drivers", nargs="*", default=[], help="names of drivers; all by default")
    parser.add_argument("--jobs", type=int, default=16)
    parser.add_argument("--report", type=Path)
    args = parser.parse_args()

    kinds = build(args.drivers)
    table = tomllib.loads((HERE / "scenarios.toml").read_text())["scenario"]
    world = World(kinds, args.topology)
    try:
        chosen = [
            row for row in rows(table, kinds, args.topology) if all(word in row.title for word in args.only)
        ]
        shown = threading.Lock()

        def play(numbered: tuple[int, Row]) -> None:
            number, row = numbered
            Play(world, row, number).run()
            if row.failure:
                with shown:
                    print(f"FAILED {row.title}\n  {row.failure}", *row.trace, sep="\n  ", flush=True)

        with ThreadPoolExecutor(args.jobs) as pool:
            list(pool.map(play, enumerate(chosen)))
        failed = sum(1 for row in chosen if row.failure)
        checks = sum(row.checks for row in chosen)
        scenarios = len({row.scenario["name"] for row in chosen})
        summary = f"conformance: scenarios={scenarios} checks={checks} failed={failed}"
        print("\n".join(matrix(chosen)))
        for line in left_out(table, args.topology):
            print(f"not on {args.topology} {line}")
        if args.report and not failed:
            args.report.write_text(report(world, table, chosen, summary))
        print(summary)
        return 1 if failed else 0
    finally:
        world.close()


if __name__ == "__main__":
    sys.exit(main())
