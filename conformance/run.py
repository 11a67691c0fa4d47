"""Runs the scenarios of scenarios.toml in every driver and every pair of drivers.

run.py [--topology single|sentinel|cluster] [--only WORD ...] [--drivers NAME ...] [--jobs N] [--brief | --long] [--report FILE]

Ends with `conformance: scenarios=N checks=N failed=N`; the exit code is 0 only if nothing failed.
"""

import argparse
import itertools
import re
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import tomllib
from adaptive import Lesson
from build import REDISSONS, build, ours
from drivers import Driver, Side
from kinds import KINDS, LockKind, recorded, taken

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "scripts" / "lib"))
from report import matrix, report  # noqa: E402
from rows import Row, in_brief, left_out, rows, version_of  # noqa: E402
from tap import Ground  # noqa: E402
from turns import Turns, client_of  # noqa: E402

# The default of the library. Rows about renewal ask for less, which a busy machine finds harder to keep.
WATCHDOG_MS = 30_000
# How long anything may take that has no limit of its own: only a hang reaches it.
PATIENCE = 60.0
# How long a lock that was acquired on the direct connection may be held, and is not looked at on the other one.
A_MOMENT = 0.005
# A busy machine may add so much to a time that a scenario demands. It is less than the 10 s after which a renewal of the
# usual lease would find a loss that the server has to tell.
SLACK_MS = 8000


# How data of each type get to a key.
OTHERS = {
    "string": ["SET", "{lock}", "somebody's"],
    "hash": ["HSET", "{lock}", "some", "body's"],
    "list": ["RPUSH", "{lock}", "somebody's"],
    "set": ["SADD", "{lock}", "somebody's"],
    "zset": ["ZADD", "{lock}", "1", "somebody's"],
    "stream": ["XADD", "{lock}", "*", "some", "body's"],
}


class Failed(Exception):
    """A check that did not come out as the scenario says."""


class World:
    """The servers, the running drivers and what they said of themselves."""

    def __init__(self, sides: list[Side], topology: str, long: bool) -> None:
        self.sides, self.long = sides, long
        self.ground = Ground(topology)
        self.drivers = {command: Driver(command) for command in {side.command for side in sides}}
        self.hello = {
            side.name: self.drivers[side.command].ask(op="hello", side=side.name)[1].result(PATIENCE)
            for side in sides
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
        self.key = f"{row.prefix}row{number}" + (f":{row.name}" if row.name else "")
        self.drivers: dict[str, Driver] = {}
        self.background: dict[str, tuple[str, dict, int, Future[dict]]] = {}
        self.tokens: list[int] = []
        self.mark = 0
        self.remembered: object = None
        # When the last of each word was asked and answered; asked also by its actor, as "a acquire".
        self.sent: dict[str, float] = {}
        self.answered: dict[str, float] = {}
        self.lesson = Lesson()

    def run(self) -> None:
        try:
            for actor, side in self.row.sides.items():
                try:
                    self.open(actor, side)
                except FutureTimeout as error:
                    raise Failed(f"{side.name} does not answer to open") from error
            for step in self.scenario["steps"]:
                try:
                    self.step(step)
                except (Failed, FutureTimeout, OSError) as error:
                    raise Failed(f"{step}: {error or type(error).__name__}") from error
            self.quiet()
        except Failed as error:
            self.row.failure = str(error)
            self.row.trace = [line for line in self.tap.about(self.key) if '"PUBSUB"' not in line][-40:]
            if self.fair:
                self.row.trace.append(f"places, and ms until they run out: {self.places()}")
        finally:
            self.end()

    def open(self, actor: str, side: Side) -> None:
        private = self.scenario.get(f"private_{actor}") or self.own
        driver = Driver(side.command) if private else self.world.drivers[side.command]
        self.drivers[actor] = driver
        self.opened(driver, actor, bool(private))

    def opened(self, driver: Driver, actor: str, private: bool = True) -> None:
        side = self.row.sides[actor]
        request = {
            "url": self.ground.deployment.url,
            "side": side.name,
            "watchdog_ms": self.scenario.get("watchdog_ms", WATCHDOG_MS),
            "fencing": self.scenario.get("fencing", False),
            "role": min(actor, "b"),
            "cluster_pubsub": "both" if self.mixed else "auto",
        }
        request |= self.row.kinds[actor].options
        times = ("recheck_ms", "preference_ms")
        request |= {field: self.scenario[field] for field in times if field in self.scenario}
        if private:
            request["private"] = True
        reply = driver.ask(op="open", client=self.client(actor), **request)[1].result(PATIENCE)
        self.check(reply["status"] == "ok", f"open: {reply}")

    @property
    def mixed(self) -> bool:
        """Whether somebody publishes to all nodes of a cluster, as Redisson did before it knew of shards."""
        redissons = [side for side in self.row.sides.values() if side.family == "redisson"]
        # 3.27 asks one node only whether there are shards, and that one may not know.
        old = [
            side
            for side in redissons
            if version_of(side.name) < [3, 22] or version_of(side.name)[:2] == [3, 27]
        ]
        return self.ground.topology == "cluster" and bool(old)

    @property
    def ours_alone(self) -> bool:
        return all(side.ours for side in self.row.sides.values())

    def client(self, actor: str) -> str:
        return f"{self.number}{actor}"

    def end(self) -> None:
        for actor, driver in self.drivers.items():
            if driver not in self.world.drivers.values():
                driver.close()
            else:
                driver.ask(op="close", client=self.client(actor))
        self.redis("DEL", f"{self.key}_renew")
        if self.own:
            self.ground.close()

    def check(self, holds: bool, text: str) -> None:
        self.row.checks += 1
        if not holds:
            raise Failed(text)

    def redis(self, *words: str) -> Any:
        """A command for the primary of the key it names; one without a key, for the primary of the lock."""
        named = words[1] if len(words) > 1 and self.key in words[1] else self.key
        return self.ground.ask(named, *words)

    # ---- the words ----

    def step(self, step: dict) -> None:
        """The words that have a method here are the runner's; all others are a driver's."""
        own = next(filter(None, (getattr(self, f"do_{word}", None) for word in step)), None)
        if own:
            own(step)
        else:
            self.ask(next(name for name in self.drivers if name in step), step)

    def ask(self, actor: str, step: dict) -> None:
        driver = self.drivers[actor]
        if self.expected(actor, step) == "skip":
            return
        request = self.request(actor, step[actor], step.get("as", "main"))
        request |= {key: step[key] for key in ("wait_ms", "lease_ms") if key in step} | self.about(step)
        request |= {"lock": "x" * 1025 if step["lock"] == "long" else step["lock"]} if "lock" in step else {}
        request |= {key: step[key] for key in ("limit", "permits", "number", "async") if key in step}
        request |= {"token": self.key + step["with_token"]} if "with_token" in step else {}
        if step[actor] == "lost":
            request["within_ms"] = step["within_ms"] + SLACK_MS
        if step[actor] == "cancel":
            request["target"] = self.background[step["target"]][2]
        begun = self.sent[step[actor]] = self.sent[f"{actor} {step[actor]}"] = time.monotonic()
        if "background" in step:
            self.mark = len(self.tap.lines)
            for number in range(step.get("count", 1)):
                suffix = str(number) if "count" in step else ""
                own = request | {"as": request["as"] + suffix}
                self.background[step["background"] + suffix] = (actor, own, *driver.ask(**own))
            return
        if "times" in step:
            names = [f"{request['lock']}:{number}" for number in range(step["times"])]
            replies = [driver.ask(**(request | {"lock": name}))[1] for name in names]
            for answer in replies:
                self.judge(actor, step, answer.result(PATIENCE), begun)
            return
        reply = driver.ask(**request)[1].result(PATIENCE)
        self.answered[step[actor]] = time.monotonic()
        self.judge(actor, step, reply, begun)

    def request(self, actor: str, op: str, thread: str) -> dict:
        """A request to this actor about the row's key, by the name that its kind has for it."""
        prefix = self.row.kinds[actor].prefix
        lock = self.key.removeprefix(prefix)
        request: dict = {"op": op, "client": self.client(actor), "lock": lock, "prefix": prefix, "as": thread}
        if self.row.kinds[actor].name == "semaphore":
            request["limit"] = self.scenario.get("limit", 0)
            if self.fair_permits:
                request["fair"] = True
        if self.row.kinds[actor].counter:
            request["counter"] = self.row.kinds[actor].name
        return request

    def about(self, step: dict) -> dict:
        """The lock that a step is about, if not the row's: a side of it (`{name}`: the row's name says it), a single lock
        beside it, or the multi lock of several."""
        if "side" in step:
            return {"side": step["side"].replace("{name}", str(self.row.name))}
        if "of" not in step:
            return {}
        multi = {"multi": True} if isinstance(step["of"], list) else {}
        return {"lock": ",".join(self.keys(step))} | multi

    def keys(self, *steps: dict) -> list[str]:
        """The keys that steps are `of`; if none, the row's."""
        found = [
            step["of"] if isinstance(step["of"], list) else [step["of"]] for step in steps if "of" in step
        ]
        return [f"{self.key}:{part}" for part in dict.fromkeys(itertools.chain(*found))] or [self.key]

    def expected(self, actor: str, step: dict) -> str:
        """The status; where others answer otherwise than redlatch, the step says so by their name, with the version or
        without, or as `theirs`."""
        side, kind = self.row.sides[actor], self.row.kinds[actor]
        if "own" in step and self.row.name == ("hash" if kind.hash else "string"):
            return step["own"]
        if side.ours:
            return step.get("expect", "ok")
        return theirs(side, step, step.get("expect", "ok"))

    def judge(self, actor: str, step: dict, reply: dict, begun: float) -> None:
        # A lease counts from when it was asked for, so a slow machine cannot make the rest of it shorter. The server's clock
        # may be a little quicker than ours.
        took = (time.monotonic() - self.sent.get(step.get("since", ""), begun)) * 1000
        side = self.row.sides[actor]
        expected = self.expected(actor, step)
        if "tell" in step:
            who = f"{side.name}, {self.row.kinds[actor].name}" if side.ours else side.name
            self.row.told.append((who, self.lies_there(), step["tell"], in_words(side, reply)))
        if expected != "any":
            self.check(reply["status"] == expected, f"expected {expected}, got {reply}")
        if "value" in step:
            wanted = step["value"]
            if wanted == "nobody":
                wanted = None
            elif wanted == "as in Redis":
                wanted = self.holder()
            self.check(reply.get("value") == wanted, f"expected {wanted}, got {reply}")
        if "shows" in step:
            found = [reply["free"], reply["limit"]]
            self.check(found == step["shows"], f"expected {step['shows']}, got {found}")
        if "reason" in step and side.ours:
            self.check(reply.get("reason") == step["reason"], f"expected {step['reason']}, got {reply}")
        if "after_ms" in step:
            self.check(took >= step["after_ms"], f"answered after {took:.0f} ms already")
        if "within_ms" in step:
            self.check(took <= step["within_ms"] + SLACK_MS, f"answered after {took:.0f} ms only")
        if "token" in step:
            self.judge_token(step["token"], reply["token"])
        for name in step.get("same", ()):
            first = self.world.hello[next(side.name for side in self.world.sides if side.ours)]
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

    def do_pending(self, step: dict) -> None:
        """A background acquire has not been answered."""
        self.check(not self.background[step["pending"]][3].done(), f"{step['pending']} is answered already")

    def do_serve(self, step: dict) -> None:
        """Each background acquire is released as soon as it is granted, in whatever order; `w*` stands for all
        whose name begins so."""
        begun = time.monotonic()
        names = [name for word in step["serve"] for name in self.waiters(word)]
        waiting = {name: self.background.pop(name) for name in names}
        served, owners = [], []
        while waiting:
            done = [name for name, entry in waiting.items() if entry[3].done()]
            self.check(
                (time.monotonic() - begun) * 1000 < step["within_ms"] + SLACK_MS,
                f"not served: {list(waiting)}",
            )
            for name in done:
                actor, request, _, future = waiting.pop(name)
                reply = future.result()
                self.check(reply["status"] == "ok", f"{name}: {reply}")
                if "token" in step:
                    self.judge_token(step["token"], reply["token"])
                together = request.get("side") == "read" or self.counts_permits
                if not together and "multi" not in request:
                    owners.append(self.holder()["owner"])
                same = {key: request[key] for key in ("lock", "side", "multi") if key in request}
                reply = self.call(actor, "release", request["as"], **same)
                self.check(reply["status"] == "ok", f"release of {name}: {reply}")
            served += done
            time.sleep(0.01)
        # Callers of one client who pass the lock on to each other are behind the same owner, which never comes back.
        in_turn = [owner for owner, _ in itertools.groupby(owners)]
        self.check(len(set(in_turn)) == len(in_turn), f"an owner came back: {owners}")
        if "in_between" in step:
            self.check(served[-1] != step["in_between"], f"{step['in_between']} had to wait for all others")

    def waiters(self, word: str) -> list[str]:
        if not word.endswith("*"):
            return [word]
        return [name for name in self.background if name.startswith(word[:-1])]

    def do_redis(self, step: dict) -> None:
        # One pair of braces is the lock's name, two stand for themselves around it.
        name = self.key
        words = [word.replace("{{lock}}", f"{{{name}}}").replace("{lock}", name) for word in step["redis"]]
        value = self.redis(*words)
        if "equals" in step:
            wanted = (
                step["equals"].replace("{lock}", name) if isinstance(step["equals"], str) else step["equals"]
            )
            self.check(value == wanted, f"Redis answers {value!r}")
        if "value_of" in step:
            pattern = self.row.kinds[step["value_of"]].value_of(self.row.sides[step["value_of"]].family)
            self.check(
                re.fullmatch(pattern, str(value)) is not None, f"Redis answers {value!r}, not {pattern}"
            )
        redisson = self.row.sides["a"].family == "redisson"
        most = step.get("redisson_at_most") if redisson else step.get("at_most")
        if "at_least" in step and not (redisson and most is not None):
            self.check(value >= step["at_least"], f"Redis answers {value!r}")
        if most is not None:
            self.check(value <= most, f"Redis answers {value!r}")

    def holder(self) -> Any:
        """The holder of the lock, as it lies in Redis."""
        if self.row.kinds["a"].hash:
            for owner, count in self.counts(self.key).items():
                return {"owner": owner, "count": int(count)}
            return "a holder"
        value = self.redis("GET", self.key)
        return {"owner": value, "count": 1} if value else "a holder"

    def counts(self, key: str) -> dict[str, str]:
        """The owners in a hash and their counts; beside them a read-write lock has a field for its mode."""
        fields = self.redis("HGETALL", key)
        return {name: count for name, count in zip(fields[::2], fields[1::2], strict=True) if name != "mode"}

    def do_levels(self, step: dict) -> None:
        """One owner has the lock so many times, as far as Redis shows it: a string does not."""
        if self.row.kinds["a"].hash:
            for key in self.keys(step):
                value = list(self.counts(key).values())
                self.check(value == [str(step["levels"])], f"Redis answers {value!r}")
        else:
            value = self.redis("TYPE", self.key)
            self.check(value == "string", f"Redis answers {value!r}")

    def do_plant(self, step: dict) -> None:
        """Somebody unknown takes the lock, for so many ms or (-1) without an expiry."""
        unknown = "00000000-0000-4000-8000-000000000000:1"
        self.sent["plant"] = time.monotonic()
        self.redis("DEL", self.key)
        if self.row.kinds["a"].hash:
            self.redis("HSET", self.key, unknown, "1")
        else:
            self.redis("SET", self.key, unknown)
        if step["plant"] > 0:
            self.redis("PEXPIRE", self.key, str(step["plant"]))
        self.check(self.redis("EXISTS", self.key) == 1, "the key was refused")

    def lies_there(self) -> str:
        return self.row.name or f"held {self.row.kinds['a'].name} lock"

    def do_other(self, step: dict) -> None:
        """Data of the type that the row is named after lie at the key, and still do."""
        name = str(self.row.name)
        if step["other"] == "lie":
            self.redis(*(word.replace("{lock}", self.key) for word in OTHERS[name]))
        found = self.redis("TYPE", self.key), self.redis("PTTL", self.key)
        self.check(found == (name, -1), f"Redis answers {found}")
        if step["other"] == "same":
            self.redis("DEL", self.key)

    def do_gone_ms(self, step: dict) -> None:
        """The key is gone in so long, by itself."""
        for key in self.keys(step):
            gone = lambda key=key: self.redis("EXISTS", key) == 0  # noqa: E731
            self.eventually(gone, f"{key} is still there", (step["gone_ms"] + SLACK_MS) / 1000)

    def do_lease_for(self, step: dict) -> None:
        """The lock has the lease that an adaptive lock gives when so many seconds are asked for."""
        ttl, since = self.redis("PTTL", self.key), time.monotonic() - self.sent["acquire"]
        lease = self.lesson.lease(step["lease_for"]) * 1000
        self.check(lease - since * 1000 - 1 <= ttl <= lease, f"PTTL {ttl}, wanted {lease}")

    def do_learnt(self, step: dict) -> None:
        """The memory of an adaptive lock is what the last hold must have left when so many seconds were asked for."""
        value = self.redis("GET", f"{self.key}_renew")
        shortest = self.sent["release"] - self.answered["acquire"]
        longest = self.answered["release"] - self.sent["acquire"]
        before, found = self.lesson.renew, value and float(value)
        fits = self.lesson.learn(found, shortest, longest, step["learnt"])
        self.check(fits, f"after {before} and {shortest:.2f} to {longest:.2f} s it remembers {found}")
        if found is not None:
            ttl = self.redis("TTL", f"{self.key}_renew")
            self.check(86_000 < ttl <= 86_400, f"remembered for {ttl} s")

    def do_remember(self, step: dict) -> None:
        """Keeps what lies at the key, or compares it to what was kept."""
        value = self.redis("GET", self.key)
        if step["remember"] == "same":
            self.check(value == self.remembered, f"{value!r} lies there, no longer {self.remembered!r}")
        else:
            self.check(isinstance(value, str), f"{value!r} lies there")
            self.remembered = value

    def do_storm(self, step: dict) -> None:
        """So many threads of every actor take turns, each so many `holds`; two are never inside at once, unless both
        read. With `writes` every so-manieth hold of a read-write lock writes. In a `crowd`, which has so many threads of each
        other side, all go on until the last one has had its holds, and places are given there."""
        stays: list[tuple[float, float, str, bool]] = []
        crowd, begun = step.get("crowd"), time.monotonic()
        # Threads of one client of Redisson keep each other waiting.
        threads = {
            a: crowd if crowd and not side.ours else step["storm"] for a, side in self.row.sides.items()
        }
        workers = [(actor, f"w{number}") for actor, count in threads.items() for number in range(count)]
        behind = set(workers)
        mark = len(self.tap.lines)

        def work(actor: str, thread: str) -> None:
            turn = 0
            while turn < step["holds"] or (crowd and behind and time.monotonic() < begun + PATIENCE):
                reads = "writes" in step and (turn + int(thread[1:])) % step["writes"] > 0
                side = {"side": "read" if reads else "write"} if "writes" in step else {}
                self.enter(actor, thread, side)
                since = time.monotonic()
                time.sleep(0.005)
                stays.append((since, time.monotonic(), f"{actor} {thread} {side.get('side', '')}", reads))
                reply = self.call(actor, "release", thread, **side)
                if reply["status"] != "ok":
                    raise Failed(f"release: {reply}")
                turn += 1
                if turn == step["holds"]:
                    behind.remove((actor, thread))

        with ThreadPoolExecutor(len(workers)) as pool:
            for done in [pool.submit(work, *worker) for worker in workers]:
                try:
                    done.result()
                except FutureTimeout:
                    raise Failed(f"{sorted(behind)} had no turns, {len(stays)} were given") from None
        self.check(not behind, f"{sorted(behind)} had no turns, {len(stays)} were given")
        self.check(len(stays) >= len(workers) * step["holds"], f"{len(stays)} times inside")
        stays.sort()
        meetings = [pair for pair in itertools.combinations(stays, 2) if pair[1][0] < pair[0][1]]
        overlaps = [(one, other) for one, other in meetings if not (one[3] and other[3])]
        self.check(not overlaps, f"inside at once: {overlaps[:3]}")
        if step.get("writes", 0) > 1:
            self.check(len(meetings) > 0, "readers were never inside together")
        if crowd:
            self.tap.catch_up()
            places = self.tap.about(f"{{{self.key}}}:redlatch:crowd", mark)
            self.check(any('"ZADD"' in line for line in places), "nobody took a place")

    @property
    def counts_permits(self) -> bool:
        return any(kind.name in ("semaphore", "plain-semaphore") for kind in self.row.kinds.values())

    def permits(self) -> list[int]:
        """How many permits of a semaphore are free and how many are taken, read together."""
        return recorded(self.redis, self.key)[:2]

    def do_in_redis(self, step: dict) -> None:
        """Now, or, where somebody has yet to act, within a time."""
        end = time.monotonic() + (step["within_ms"] + SLACK_MS) / 1000 if "within_ms" in step else 0
        while (found := self.permits()) != step["in_redis"] and time.monotonic() < end:
            time.sleep(0.02)
        self.check(found == step["in_redis"], f"free and taken are {found}")

    def do_mix(self, step: dict) -> None:
        """The actors, each with three threads, take permits of a semaphore and give them back, so many times together. There
        are never more out than the limit, and what is free and what is taken always add up to it."""
        limit, turns = self.scenario["limit"], step["mix"]
        workers = [(actor, f"w{number}") for actor in self.drivers for number in range(3)]
        counting, out, most, granted = threading.Lock(), 0, 0, 0

        def work(actor: str, thread: str) -> None:
            nonlocal out, most, granted
            random = Random(f"{step['seed']} {actor} {thread}")
            many = self.row.sides[actor].takes_many
            for _ in range(turns // len(workers)):
                wish: dict[str, Any] = {"permits": random.choice([1, 1, 1, 2, 3]) if many else 1}
                wish["wait_ms"] = random.choice([0, 0, 20, 200])
                if random.random() < 0.3:
                    wish["lease_ms"] = 2 * WATCHDOG_MS
                reply = self.call(actor, "acquire", thread, **wish)
                # A busy machine may leave a short wait without any answer.
                if reply["status"] in ("timeout", "unavailable"):
                    continue
                if reply["status"] != "ok":
                    raise Failed(f"acquire: {reply}")
                with counting:
                    out += wish["permits"]
                    most = max(most, out)
                    granted += 1
                if random.random() < 0.3:
                    self.check(sum(found := self.permits()) == limit, f"free and taken are {found}")
                time.sleep(random.choice([0, 0.001, 0.01]))
                with counting:
                    out -= wish["permits"]
                reply = self.call(actor, "release", thread)
                if reply["status"] != "ok":
                    raise Failed(f"release: {reply}")

        with ThreadPoolExecutor(len(workers)) as pool:
            for done in [pool.submit(work, *worker) for worker in workers]:
                done.result()
        self.check(most <= limit, f"{most} permits were out")
        self.check(most == limit, f"only {most} permits were out at once")
        self.check(granted > turns // 4, f"permits were taken {granted} times only")
        found = self.permits()
        self.check(found == [limit, 0], f"free and taken are {found}")

    def enter(self, actor: str, thread: str, side: dict) -> None:
        """Acquires, with a try again and again where the other side knows no waiting."""
        end = time.monotonic() + PATIENCE
        waits = self.row.sides[actor].waits
        while time.monotonic() < end:
            reply = self.call(actor, "acquire", thread, **side, **({} if waits else {"wait_ms": 0}))
            if reply["status"] == "ok":
                return
            if waits or reply["status"] != "timeout":
                raise Failed(f"acquire: {reply}")
            time.sleep(0.02)
        raise Failed(f"{actor} {thread} never got in")

    def call(self, actor: str, op: str, thread: str, **more: object) -> dict:
        return self.drivers[actor].ask(**(self.request(actor, op, thread) | more))[1].result(PATIENCE)

    def do_pause_ms(self, step: dict) -> None:
        time.sleep(step["pause_ms"] / 1000)

    def do_settled_ms(self, step: dict) -> None:
        """Waits until nothing was sent about this lock for so long, and sets the mark there."""
        end = time.monotonic() + PATIENCE
        while True:
            self.do_mark(step)
            time.sleep(step["settled_ms"] / 1000)
            self.tap.catch_up()
            if not self.tap.about(self.key, self.mark):
                return
            if time.monotonic() > end:
                raise Failed("something is sent all the time")

    def do_renewed(self, step: dict) -> None:
        """Waits for a renewal: the lease in Redis gets longer."""
        before, end = self.redis("PTTL", self.key), time.monotonic() + PATIENCE
        while (now := self.redis("PTTL", self.key)) <= before:
            before = now
            if now <= 0 or time.monotonic() > end:
                raise Failed(f"PTTL is {now}, and nothing renews")
            time.sleep(0.02)

    def subscribers(self, *steps: dict) -> int:
        """How many connections listen for the release of what steps are `of`."""
        channels = {self.channel(kind, key) for kind in self.row.kinds.values() for key in self.keys(*steps)}
        if self.fair:
            channels.update(self.ground.channels(f"{self.channel(KINDS['fair'])}:"))
        return sum(self.ground.subscribers(channel) for channel in channels)

    @property
    def fair(self) -> bool:
        return any(kind.name == "fair" for kind in self.row.kinds.values())

    @property
    def fair_permits(self) -> bool:
        return self.scenario.get("fair", False)

    def queue_key(self, what: str = "queue") -> str:
        """The key of the `queue` of a fair lock or semaphore, or of the `timeout` of each place there."""
        if self.fair_permits:
            return (
                f"{taken(self.key).removesuffix('timeout')}redlatch:{'places' if what == 'timeout' else what}"
            )
        return f"redisson_lock_{what}:{self.key if '{' in self.key else '{' + self.key + '}'}"

    def queue(self) -> list[str]:
        """The owners that wait for a fair lock or semaphore, in their order."""
        return self.redis("LRANGE", self.queue_key(), "0", "-1")

    def server_ms(self) -> int:
        seconds, micros = self.redis("TIME")
        return int(seconds) * 1000 + int(micros) // 1000

    def places(self) -> list[tuple[str, int]]:
        """The owners in the queue, and in how many ms the place of each runs out."""
        times = self.redis("ZRANGE", self.queue_key("timeout"), "0", "-1", "WITHSCORES")
        ends, now = dict(zip(times[::2], times[1::2], strict=True)), self.server_ms()
        return [(owner, int(float(ends.get(owner, now))) - now) for owner in self.queue()]

    def do_dead_place(self, step: dict) -> None:
        """The place of somebody dead is put at the end of the queue; it runs out in so many ms."""
        dead = "00000000-0000-4000-8000-000000000000:1"
        self.sent["dead_place"] = time.monotonic()
        end = self.server_ms() + step["dead_place"]
        self.redis("RPUSH", self.queue_key(), dead)
        self.redis("ZADD", self.queue_key("timeout"), str(end), dead)

    def do_in_turn(self, step: dict) -> None:
        """The actor `from` releases. Then the lock goes to these background acquires in the order in which Redis has
        their owners now; each is released as soon as it is granted."""
        names, places = step["in_turn"], self.queue()
        self.check(len(places) == len(names), f"{places} wait, not {names}")
        if "from" in step:
            reply = self.call(step["from"], "release", step.get("as", "main"))
            self.check(reply["status"] == "ok", f"release: {reply}")
        for number, name in enumerate(names):
            actor, request, _, _ = self.background[name]
            self.do_finish({"finish": name, "within_ms": step["within_ms"]})
            # An owner may have got another name in its place.
            owner, waiting = next(iter(self.counts(self.key)), ""), self.queue()
            found = [client_of(each) for each in (owner, *waiting)]
            wanted = [client_of(each) for each in places[number:]]
            self.check(found == wanted, f"{owner} has the lock, {waiting} wait; {places} waited")
            reply = self.call(actor, "release", request["as"])
            self.check(reply["status"] == "ok", f"release of {name}: {reply}")

    def do_hand_over(self, step: dict) -> None:
        """`callers` threads of every actor, one of Redisson's, take a fair lock and give it back until it was granted so
        many times. With `kills`, as many others at least line up, one a second, and are killed; in the long form until the
        lock was granted so many times again. The lock goes to all in the order of their arrival."""
        long, kills = self.world.long, step.get("kills", 0)
        amount = step.get("long", step["hand_over"]) if long else step["hand_over"]
        callers = step.get("long_callers", step["callers"]) if long else step["callers"]
        if not any(side.ours for side in self.row.sides.values()):
            kills = 0
        begun, turns, ended = time.monotonic(), Turns(self.tap, self.key, self.queue_key()), threading.Event()

        def work(actor: str, thread: str) -> None:
            while not ended.is_set():
                for op in ("acquire", "release"):
                    reply = self.call(actor, op, thread)
                    if reply["status"] != "ok":
                        ended.set()
                        raise Failed(f"{op} of {actor} {thread}: {reply}")

        def granted(wanted: int) -> None:
            """Waits until the lock was granted so many times; it never stands still for longer than `still_ms`."""
            while turns.grants < wanted and not ended.is_set():
                before, limit = turns.grants, (step.get("still_ms", 0) + SLACK_MS) / 1000
                moves = lambda before=before: turns.follow() > before or ended.is_set()  # noqa: E731
                self.eventually(moves, f"it stands still after {before}", limit)

        threads = {actor: callers if side.ours else 1 for actor, side in self.row.sides.items()}
        workers = [(actor, f"w{number}") for actor, count in threads.items() for number in range(count)]
        killed = 0
        with ThreadPoolExecutor(len(workers)) as pool:
            working = [pool.submit(work, *worker) for worker in workers]
            try:
                # Then all clients are known, and the killed are told from them.
                granted(max(amount, 3 * len(workers)))
                before = turns.grants
                while killed < kills or (kills and long and turns.follow() < before + amount):
                    self.kill_in_queue(killed, turns)
                    killed += 1
                # The lock goes on behind the dead.
                granted(turns.grants + len(workers))
            finally:
                ended.set()
        for each in working:
            each.result()
        self.tap.catch_up()
        turns.follow()
        self.check(not turns.violations, f"{len(turns.violations)} out of order: {turns.violations[:3]}")
        took = time.monotonic() - begun
        if "within_ms" in step:
            self.check(took <= (step["within_ms"] + SLACK_MS) / 1000, f"it took {took:.1f} s")
        print(f"{self.row.title}: {turns.grants} hand-overs, {killed} killed, {took:.0f} s", flush=True)

    def kill_in_queue(self, number: int, turns: Turns) -> None:
        """Another program of ours lines up, and is killed; it takes a second."""
        begun = time.monotonic()
        # Redisson keeps the place of a dead one for minutes.
        ours = [actor for actor, side in self.row.sides.items() if side.ours]
        actor = ours[number % len(ours)]
        driver = Driver(self.row.sides[actor].command)
        try:
            self.opened(driver, actor)
            turns.follow()
            known = set(turns.clients)
            driver.ask(**self.request(actor, "acquire", "main"))
            self.eventually(lambda: turns.follow() and turns.clients > known, "it does not line up")
        finally:
            driver.close()
        time.sleep(max(0, begun + 1 - time.monotonic()))

    def eventually(self, holds: Callable[[], object], text: str, patience: float = PATIENCE / 4) -> None:
        end = time.monotonic() + patience
        while not holds():
            if time.monotonic() > end:
                self.check(False, text)
            time.sleep(0.02)
        self.check(True, text)

    def do_waiting(self, step: dict) -> None:
        """At least so many connections listen for the release; 0: none. Others do not listen: they have asked."""
        wanted = step["waiting"]
        # Redisson does not queue up for permits.
        if self.fair or (self.fair_permits and self.ours_wait()):
            self.eventually(lambda: len(self.queue()) == wanted, f"{self.queue()} wait")
            if wanted:
                return None
        if wanted and (self.counts_permits or self.row.kinds["a"].name == "latch"):
            # Redisson listens as well. Its callers of one process share that, and the last of them may not be there yet.
            self.eventually(lambda: self.subscribers() >= wanted, f"{self.subscribers()} connections wait")
            self.do_settled_ms({"settled_ms": 300})
            return None
        if wanted and any(not self.row.sides[actor].ours for actor, *_ in self.background.values()):
            asked = lambda: any(self.tap.about(key, self.mark) for key in self.keys(step))  # noqa: E731
            self.eventually(asked, "nobody asks for the lock")
            if self.row.kinds["a"].name == "read-write":
                # A writer's message wakes only those threads of Redisson that sleep already; one that comes to it between
                # its last try and its sleep is lost to it.
                self.do_settled_ms({"settled_ms": 400})
            return None
        listen = lambda: self.subscribers(step)  # noqa: E731
        enough = (lambda: listen() >= wanted) if wanted else (lambda: listen() == 0)
        self.eventually(enough, f"{listen()} connections wait")

    def ours_wait(self) -> bool:
        return all(self.row.sides[actor].ours for actor, *_ in self.background.values())

    def do_mark(self, step: dict) -> None:
        self.tap.catch_up()
        self.mark = len(self.tap.lines)

    def do_commands(self, step: dict) -> None:
        """Commands that clients have sent about this lock since the mark."""
        self.tap.catch_up()
        sent = [line for line in self.tap.about(self.key, self.mark) if " lua]" not in line.split('"')[0]]
        # A lock that was held for longer than a moment is looked at once, by a script that the server may not know yet.
        held = self.answered.get("release", 0) - self.sent.get("acquire", 0)
        looks = 2 if step.get("pair") and held > A_MOMENT else 0
        self.check(len(sent) <= step["at_most"] + looks, f"{len(sent)} commands: {sent}")
        self.check(len(sent) >= step.get("at_least", 0), f"{len(sent)} commands: {sent}")

    def channel(self, kind: LockKind, key: str = "") -> str:
        key = key or self.key
        # The channel of a latch has braces around any name.
        bare = "{" in key and kind.name != "latch"
        return f"{kind.channel}{key if bare else '{' + key + '}'}"

    def do_listen(self, step: dict) -> None:
        """The runner itself subscribes to the channel of `a`."""
        self.ear = self.ground.ear(self.channel(self.row.kinds["a"]), PATIENCE / 4)

    def do_heard(self, step: dict) -> None:
        """Exactly these messages came since `listen`; the last word is the runner's own, to know where to stop."""
        side = self.row.sides["a"]
        wanted = step["heard"] if side.ours else theirs(side, step, step["heard"])
        self.redis("PUBLISH", self.channel(self.row.kinds["a"]), "2")
        messages: list[str] = []
        while "2" not in messages:
            messages.append(self.ear.read()[2])
        self.ear.close()
        self.check(messages == [*wanted, "2"], f"heard {messages}")

    def do_signal(self, step: dict) -> None:
        self.drivers[step["to"]].signal(step["signal"])

    def do_server(self, step: dict) -> None:
        if step["server"] == "restart":
            self.ground.restart(self.key)
        else:
            self.ground.signal(self.key, {"stop": "STOP", "continue": "CONT"}[step["server"]])

    def is_gone(self, key: str) -> bool:
        return self.redis("EXISTS", key) == 0

    def quiet(self) -> None:
        """Nothing is left: no key, no subscription. Only the number of a semaphore's permits stays."""
        if self.counts_permits:
            self.eventually(lambda: self.redis("EXISTS", taken(self.key)) == 0, "a permit is still taken")
            self.redis("DEL", self.key)
        steps = self.scenario["steps"]
        # In a cluster they may be in several slots.
        for key in self.keys(*steps):
            self.eventually(partial(self.is_gone, key), f"{key} is still there")
        # Redisson goes on listening where a short wait ends while it subscribes.
        if self.ours_alone or not self.scenario.get("short_waits"):
            self.eventually(lambda: self.subscribers(*steps) == 0, "somebody still listens")
        if self.fair or self.fair_permits:
            queue = [self.queue_key(what) for what in ("queue", "timeout")]
            self.eventually(
                lambda: not any(self.redis("EXISTS", key) for key in queue), "the queue is still there"
            )
        if any(kind.name == "read-write" for kind in self.row.kinds.values()):
            # The keys of dead readers, and of a lock that was deleted, end with their lease.
            self.eventually(lambda: not self.time_outs(), "the time-out key of a reader is still there")

    def time_outs(self) -> list[str]:
        # The mark of a dead reader (0) ends by itself.
        found = [key for key in self.redis("KEYS", "*:rwlock_timeout:*") if self.key in key]
        return [key for key in found if not key.endswith(":0")]


def theirs(side: Side, step: dict, otherwise: Any) -> Any:
    """The part of a step that is about this other side."""
    return step.get(side.name, step.get(side.family, step.get("theirs", otherwise)))


def in_words(side: Side, reply: dict) -> str:
    """A reply as the report tells it."""
    if reply["status"] == "foreign_kind":
        return "refuses: foreign_kind" if side.ours else "error: WRONGTYPE"
    return {"timeout": "busy", "not_owner": "not its own", "ok": "says nothing"}.get(
        reply["status"], reply["status"]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topology", choices=("single", "sentinel", "cluster"), default="single")
    parser.add_argument("--only", nargs="*", default=[], help="words that a row's title must contain")
    parser.add_argument("--drivers", nargs="*", default=[], help="names of drivers; all by default")
    parser.add_argument("--jobs", type=int, default=16, help="rows at a time, beside those that stand still")
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--brief", action="store_true", help="a few rows of each scenario, ours and the newest Redisson"
    )
    form.add_argument(
        "--long", action="store_true", help="every pair of drivers, and the long form of scenarios"
    )
    parser.add_argument("--report", type=Path)
    args = parser.parse_args()

    if args.brief and not args.drivers:
        args.drivers = [*ours(), f"redisson-{REDISSONS[-1]}"]
    sides = build(args.drivers, args.topology, long=args.long)
    table = tomllib.loads((HERE / "scenarios.toml").read_text())["scenario"]
    chosen = [
        row
        for row in rows(table, sides, args.topology, args.long or args.brief)
        if all(word in row.title for word in args.only)
    ]
    if args.brief:
        chosen = in_brief(chosen)
    if not chosen:
        sys.exit(f"no scenario of these drivers has a title with {' and '.join(args.only)}")
    world = World(sides, args.topology, args.long)
    try:
        shown = threading.Lock()

        def play(numbered: tuple[int, Row]) -> None:
            number, row = numbered
            Play(world, row, number).run()
            if row.failure:
                with shown:
                    print(f"FAILED {row.title}: {row.failure}", *row.trace, sep="\n  ", flush=True)

        # Rows that stand still for seconds are played beside the others, which keep the machine busy.
        with ThreadPoolExecutor(args.jobs) as busy, ThreadPoolExecutor(2 * args.jobs) as still:
            pools = [still if row.stands_still() else busy for row in chosen]
            for played in [
                pool.submit(play, each) for pool, each in zip(pools, enumerate(chosen), strict=True)
            ]:
                played.result()
        failed = sum(1 for row in chosen if row.failure)
        checks = sum(row.checks for row in chosen)
        scenarios = len({row.scenario["name"] for row in chosen})
        summary = f"conformance: scenarios={scenarios} checks={checks} failed={failed}"
        print("\n".join(matrix(chosen)))
        for line in left_out(table, args.topology):
            print(f"not on {args.topology} {line}")
        if args.report and not failed:
            versions = {side: str(world.hello[side.name].get("version")) for side in sides}
            args.report.write_text(report(world.ground.deployment, versions, table, chosen, summary))
        print(summary)
        return 1 if failed else 0
    finally:
        world.close()


if __name__ == "__main__":
    sys.exit(main())
