"""Builds and runs the test phases one after the other, streams what they print, and adds up the counts of their runners.

    scripts/test [--server NAME] [--repeat N] [--jobs N] [PHASE...]

This is the one place that decides what is run. A phase whose needs are missing is listed as SKIPPED and counted;
with CI=true a skip is a failure. With --repeat the phases run N times beside a load on every core. With --server
every suite runs on that server: a name that `scripts/servers` lists, or a path. With --jobs N phases run beside
each other and beside what is still built, as they do two by two with CI=true: they wait more than they compute, and
have to stand a busy machine.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

import group
import servers

ROOT = Path(os.environ["REDLATCH_ROOT"])
LOGS = Path(os.environ["CARGO_TARGET_DIR"]) / "test-logs"
SUMMARY = LOGS / "summary.txt"  # .ci/run prints it last
NAMED = 20  # failing tests of a phase that the summary names
CI = os.environ.get("CI", "").lower() in ("1", "true", "yes")
# The tests of the core's face that depend on the server.
IN_SHORT = ["locking", "losing", "kinds", "refusals", "replicas"]
# The rows that continuous integration plays where it does not play everything: what differs there is in the core alone.
SHORT = ["--drivers", "rust", "redisson-4.7.0"]
# The system that continuous integration builds for besides its own.
FOREIGN = "aarch64-unknown-linux-gnu"
LIMIT = 25 * 60.0  # seconds for one command: a test that hangs is a failure, not a stop
BUILD_LIMIT = 45 * 60.0  # the same for a command that compiles, beside tests
STOP = threading.Event()  # the runner was asked to end, or a phase has broken it
QUIET_NPM = ["--no-audit", "--no-fund", "--loglevel=error"]
FLASH_SALE = "flash sale: languages=rust,python,asyncio,node,c sold=100 oversold=0"


# What `scripts/test portable` does not run: tests of what the fallbacks do not have. Each is said in its summary.
EXEMPT = {
    "rust": {
        f"driver::{test}": "the kernel keeps no messages back (SO_RCVLOWAT)"
        for test in (
            "receive_threshold::tests::it_wakes_for_the_message_that_is_waited_for_and_not_for_a_little_before",
            "live_tests::a_client_at_rest_hears_everything_again_as_soon_as_it_has_something",
            "live_tests::a_client_at_rest_hears_the_end_of_its_connection",
            "live_tests::a_late_answer_to_a_client_at_rest_is_heard_before_its_connection_is_given_up",
            "live_tests::messages_during_the_turn_of_others_count_afterwards",
            "live_tests::messages_that_may_wait_come_with_the_next_one",
        )
    },
    # Tests of Node.js and C ask for REDLATCH_PORTABLE themselves: their runners cannot leave out a test by its name.
    "node": {
        test: "locks end with their leases when a signal ends the program"
        for test in (
            "SIGINT, SIGTERM, SIGHUP, SIGUSR2 (4 tests): releases what is held",
            "a signal whose handler was removed releases what is held",
            "a handler that removes itself and raises the signal again releases what is held",
            "a signal ends a program whose event loop is blocked, and releases what it holds",
            "an acquisition that is under way at SIGTERM leaves nothing behind",
            "worker threads release what they hold at SIGTERM",
            "cluster workers release what they hold at SIGTERM",
        )
    },
    "c": {"a_canceller_that_cannot_be_made_says_what_is_missing, second half": "it needs no descriptor"},
}


# The interpreters of `make test-versions`, by the names of scripts/setup-versions; those of continuous integration.
PYTHONS = ["3.10", "3.12", "3.13", "3.14"]
NODES = ["20", "22", "24", "26"]
IN_CI = ["node-22", "bun", "deno", "python-3.14"]
# A soak of some seconds, with one program of each language as it was built for the other tests.
BRIEF = ["--minutes", "0.1", "--processes", "1", "--debug"]
# The servers that continuous integration plays: the oldest, and the newest of each family. The suites themselves run
# on another one. Asked for by hand, the phase plays all.
SERVERS_IN_CI = ["redis-6.2", "redis-8.2", "valkey-9.1"]
# The tests of the Node suite that Bun and Deno run: their own runners read them. In short only two of them.
RUNTIME_SUITE = [
    "lock",
    "abort",
    "contexts",
    "counters",
    "events",
    "input",
    "loss",
    "multi_lock",
    "process",
    "quorum",
    "rw_lock",
    "semaphore",
    "exit",
    "table",
    "tls",
    "web-locks",
    "workers",
]


@dataclass
class Counts:
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    skips: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)  # the names of what failed, as far as it is named
    cpu: float = 0.0  # seconds of all cores, of the commands and of what they waited for

    def add(self, other: Counts) -> None:
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        self.skips += other.skips
        self.failures += other.failures
        self.cpu += other.cpu

    def total(self) -> int:
        return self.passed + self.failed + self.skipped


# --- what each runner prints ---

Parser = Callable[[str, Counts], None]

# One pattern for all: our own programs and pytest; cargo; Deno; Node.js (both of its reporters) and Bun.
FAILURE = re.compile(
    r"(?:FAILED|ERROR) +(?P<ours>[^|].*)|test (?P<cargo>.+) \.\.\. FAILED|(?P<deno>\S.*) \.\.\. FAILED \(.*\)"
    r"|\s*(?:not ok \d+ -|\u2716|\(fail\)) (?P<node>(?!failing tests:).+?)(?: [(\[][\d.]+ ?ms[)\]])?$"
)


def failure(line: str) -> str:
    """The name of the test that this line says has failed, or nothing."""
    found = FAILURE.match(line)
    return next((name for name in found.groups() if name), "") if found else ""


def cargo(line: str, counts: Counts) -> None:
    if found := re.match(r"test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored", line):
        counts.add(Counts(int(found[1]), int(found[2]), int(found[3])))
    elif found := re.match(r"test (.+) \.\.\. ignored", line):
        counts.skips.append(found[1])


def pytest(line: str, counts: Counts) -> None:
    if found := re.match(r"=* ?(\d+ .+) in \d+\.\d+s\b.*", line):
        number = {word.rstrip("s"): int(n) for n, word in re.findall(r"(\d+) (\w+)", found[1])}
        counts.add(
            Counts(
                number.get("passed", 0),
                number.get("failed", 0) + number.get("error", 0) + number.get("xpassed", 0),
                number.get("skipped", 0) + number.get("xfailed", 0),
            )
        )
    elif found := re.match(r"(?:SKIPPED|XFAIL) (.+)", line):
        counts.skips.append(found[1])


def node(line: str, counts: Counts) -> None:
    if found := re.match(r"(?:#|\u2139) (pass|fail|cancelled|skipped|todo) (\d+)$", line):
        word, number = found[1], int(found[2])
        if word == "pass":
            counts.passed += number
        elif word in ("fail", "cancelled"):
            counts.failed += number
        else:
            counts.skipped += number
    elif found := re.match(r"\s*(?:\ufe63 (.+)|ok \d+ - (.+# (?:SKIP|TODO).*))", line):
        counts.skips.append(found[1] or found[2])


def bun(line: str, counts: Counts) -> None:
    if found := re.match(r" (\d+) (pass|fail|skip|todo)$", line):
        number = int(found[1])
        good, bad = found[2] == "pass", found[2] == "fail"
        counts.add(Counts(number * good, number * bad, number * (not good and not bad)))


def deno(line: str, counts: Counts) -> None:
    if found := re.match(r"(?:ok|FAILED) \| (\d+) passed .*\| (\d+) failed(?: \| (\d+) ignored)?", line):
        counts.add(Counts(int(found[1]), int(found[2]), int(found[3] or 0)))


def on_python(line: str, counts: Counts) -> None:
    """scripts/on-version says which package of the tests an interpreter cannot have; what needs it is skipped and counted."""
    if found := re.match(r"SKIPPED (\w+: there is no wheel.*)", line):
        counts.skips.append(found[1])
    else:
        pytest(line, counts)


def plain(line: str, counts: Counts) -> None:
    """`N passed, N failed[, N skipped]`, as our own test programs end; they say `SKIPPED what: why` before."""
    if found := re.match(r"(?:\w+: )?(\d+) passed, (\d+) failed(?:, (\d+) skipped)?$", line):
        counts.add(Counts(int(found[1]), int(found[2]), int(found[3] or 0)))
    elif found := re.match(r"SKIPPED (.+)", line):
        counts.skips.append(found[1])


def demo(line: str, counts: Counts) -> None:
    if line.startswith("flash sale:"):
        counts.add(Counts(passed=1) if line == FLASH_SALE and not counts.passed else Counts(failed=1))


def conformance(line: str, counts: Counts) -> None:
    if found := re.match(r"conformance: scenarios=\d+ checks=(\d+) failed=(\d+)", line):
        counts.add(Counts(int(found[1]) - int(found[2]), int(found[2])))
    else:
        plain(line, counts)


def matrix(line: str, counts: Counts) -> None:
    if found := re.match(r"faults: rows=\d+ cells=(\d+) failed=(\d+)", line):
        counts.add(Counts(int(found[1]) - int(found[2]), int(found[2])))


def soaked(line: str, counts: Counts) -> None:
    """The last line of a soak. The exit code tells of all else that its checkers find."""
    if found := re.match(r"(?:counters|soak): .*operations=(\d+) .*(?:wrong|leaks)=(\d+)", line):
        counts.add(Counts(int(int(found[1]) > 0), int(found[2])))
    elif found := re.match(r"SKIPPED (.+)", line):
        counts.add(Counts(skipped=1, skips=[found[1]]))


def simulation(line: str, counts: Counts) -> None:
    if found := re.match(r"sim: seeds=(\d+) .*violations=(\d+)", line):
        counts.add(Counts(int(found[1]) - int(found[2]), int(found[2])))


def lint(line: str, counts: Counts) -> None:
    if line == "lint: clean":
        counts.passed += 1
    elif found := re.match(r"lint failed: (.+)", line):
        counts.add(Counts(failed=1, failures=[found[1]]))
    elif found := re.match(r"SKIPPED (.+)", line):
        counts.add(Counts(skipped=1, skips=[found[1]]))


def on_server(parser: Parser) -> Parser:
    """scripts/on-server says itself what cannot be had, all else its command does."""

    def either(line: str, counts: Counts) -> None:
        if line.startswith("SKIPPED server "):
            counts.add(Counts(skipped=1, skips=[line.removeprefix("SKIPPED ")]))
        else:
            parser(line, counts)

    return either


# --- the phases ---


@dataclass
class Phase:
    name: str
    # `tool NAME` on PATH, a file of the checkout, or `says COMMAND`: a command that says what is lacking, and fails then.
    needs: list[str]
    build: list[list[str]]
    run: list[tuple[list[str], Parser]]
    repeated: bool = True
    # It counts what a machine does, so nothing runs beside it.
    alone: bool = False
    # Phases with the same word here use the same files, and never run beside each other.
    shares: str = ""
    limit: float = LIMIT  # seconds for each of its commands
    # Runs unasked: in `make test` and continuous integration, in the latter only, or in none.
    when: Literal["always", "ci", "asked"] = "always"


def phases() -> list[Phase]:
    # Always the whole workspace: scripts/build says why.
    cargo_test = ["cargo", "test", "--workspace", "--no-fail-fast"]
    languages = ["bindings-python/pyproject.toml", "bindings-node/package.json", "c-api/Makefile"]
    build = "scripts/build"
    faces = ["cargo", "test", "--workspace", "--test", "faces"]
    models = ["cargo", "test", "--workspace", "--lib"]
    scenarios = ["python", "conformance/run.py"]
    everything = [[build, face] for face in ("rust", "python", "node", "c")]
    portable = ["scripts/portable"]
    site = ["pip", "install", "--quiet", "--no-deps", "--no-index", "--upgrade", "--target", "../site"]
    exempt = [word for test in EXEMPT["rust"] for word in ("--skip", test)]
    npm_test = ["npm", "--prefix", "bindings-node", "--silent", "test"]
    wheel = "target/versions"
    wheels = [
        ["maturin", "build", "--quiet", "--manifest-path", "bindings-python/Cargo.toml", "--out", wheel]
    ]

    def into_python(version: str) -> list[str]:
        there = ["pip", "--python", f".tools/versions/python-{version}/bin/python", "install", "--quiet"]
        return [*there, "--no-deps", "--no-index", "--force-reinstall", "--find-links", wheel, "redlatch"]

    def on_pythons(version: str, tests: str, before: list[str] | None = None) -> tuple[list[str], Parser]:
        run = ["python", "-m", "pytest", "-rfEsx", f"bindings-python/tests{tests}"]
        return ["scripts/on-version", f"python-{version}", *(before or []), *run], on_python

    def on_wasm(names: list[str], *variables: str) -> list[tuple[list[str], Parser]]:
        files = [f"bindings-node/test/{name}.test.js" for name in names]
        return [(["env", "REDLATCH_WASM=1", *variables, "node", "--test", *files], node)]

    # The thread passes calls on: all methods, losses, aborts, and the end of the program.
    threaded = [
        "wasm/thread",
        "lock",
        "abort",
        "contexts",
        "counters",
        "events",
        "exit",
        "loss",
        "multi_lock",
        "process",
        "quorum",
        "rw_lock",
        "semaphore",
        "stacks",
        "workers",
        "wrong_uses",
    ]

    def on_runtimes(names: list[str]) -> list[tuple[list[str], Parser]]:
        files = [f"./test/{name}.test.js" for name in names]
        there = ["env", "-C", "bindings-node"]  # Deno asks the package.json there how a file is written
        return [
            (["scripts/on-version", "bun", *there, "bun", "test", "--timeout", "180000", *files], bun),
            (
                ["scripts/on-version", "deno", *there, "deno", "test", "--no-check", "--allow-all", *files],
                deno,
            ),
        ]

    return [
        Phase("rust", ["core/Cargo.toml"], [[*cargo_test, "--no-run"]], [(cargo_test, cargo)]),
        Phase(
            "python",
            ["bindings-python/pyproject.toml"],
            [[build, "python"]],
            [(["python", "-m", "pytest", "-rfEsx", "bindings-python/tests"], pytest)],
        ),
        Phase(
            "node",
            ["tool node", "tool npm", "bindings-node/package.json"],
            [[build, "node"]],
            [(["npm", "--prefix", "bindings-node", "--silent", "test"], node)],
        ),
        # The same suite as above on the WebAssembly part, with what only that has; and the module in two other runtimes.
        Phase(
            "wasm",
            ["tool node", "tool npm", "bindings-wasm/Cargo.toml", "says scripts/build-wasm --can"],
            [
                [build, "wasm"],
                [build, "node"],
                ["scripts/setup-versions", "workerd"],
            ],
            [
                (["python", "-m", "pytest", "-rfEsx", "bindings-wasm/tests"], pytest),
                *on_wasm(
                    [
                        *RUNTIME_SUITE,
                        "opentelemetry",
                        "types",
                        "readme",
                        "wasm/wasm",
                        "wasm/topologies",
                        "wasm/http",
                    ]
                ),
                *on_wasm(
                    ["lock", "abort", "events", "input", "multi_lock", "rw_lock", "semaphore"],
                    "REDLATCH_HTTP=1",
                ),
                *on_wasm(threaded, "REDLATCH_WASM=thread"),
                (
                    [
                        "scripts/on-version",
                        "workerd",
                        "node",
                        "--test",
                        "bindings-node/test/wasm/workerd.test.js",
                    ],
                    node,
                ),
            ],
            when="ci",
        ),
        # The same module in a browser, which npm has for one platform only.
        Phase(
            "browser",
            [
                "tool node",
                "tool npm",
                "bindings-wasm/Cargo.toml",
                "says scripts/build-wasm --can",
                "says scripts/setup-browser --can",
            ],
            [[build, "wasm"], [build, "node"], ["scripts/setup-browser"]],
            [
                (
                    ["env", "REDLATCH_WASM=1", "node", "--test", "bindings-node/test/wasm/browser.test.mjs"],
                    node,
                ),
            ],
            when="ci",
        ),
        Phase(
            "c",
            ["tool make", "c-api/Cargo.toml", "c-api/Makefile"],
            [[build, "c"]],
            [(["make", "-s", "-C", "c-api", "test"], plain)],
        ),
        Phase(
            "cli",
            ["cli/Cargo.toml"],
            [[build, "rust"]],
            [(["python", "-m", "pytest", "-rfEsx", "cli/tests"], pytest)],
        ),
        Phase(
            "portable",
            ["tool node", "tool npm", "tool make", *languages],
            [
                [*portable, *cargo_test, "--no-run"],
                [
                    *portable,
                    "maturin",
                    "build",
                    "--quiet",
                    "--manifest-path",
                    "bindings-python/Cargo.toml",
                    "--out",
                    "../wheels",
                ],
                [*portable, *site, "--find-links", "../wheels", "redlatch"],
                [*portable, build, "node"],
                [*portable, build, "c"],
            ],
            [
                ([*portable, *cargo_test, "--", "--exact", *exempt], cargo),
                ([*portable, "python", "-m", "pytest", "-rfEsx", "bindings-python/tests"], pytest),
                ([*portable, "npm", "--prefix", "bindings-node", "--silent", "test"], node),
                ([*portable, "make", "-s", "-C", "c-api", "test"], plain),
            ],
            repeated=False,
            when="asked",
        ),
        Phase(
            "versions",
            ["tool npm", "tool mvn", *languages],
            [["scripts/setup-versions"], *wheels, [build, "node"], *map(into_python, PYTHONS)],
            [
                *((["scripts/on-version", f"node-{major}", *npm_test], node) for major in NODES),
                *on_runtimes(RUNTIME_SUITE),
                *(on_pythons(version, "") for version in PYTHONS),
            ],
            repeated=False,
            when="asked",
        ),
        Phase(
            "runtimes",
            ["tool npm", "tool mvn", *languages],
            [["scripts/setup-versions", *IN_CI], [build, "python"], [build, "node"]],
            [
                (
                    ["scripts/on-version", "node-22", "node", "--test", "bindings-node/test/lock.test.js"],
                    node,
                ),
                *on_runtimes(["lock", "exit"]),
                on_pythons("3.14", "/test_threads.py", ["env", "PYTHONPATH=bindings-python/python"]),
            ],
            repeated=False,
            when="ci",
        ),
        Phase(
            "conformance",
            ["tool node", "tool javac", "tool mvn", "conformance/run.py", *languages],
            everything,
            [
                (["python", "conformance/run.py"], conformance),
                (["python", "-m", "pytest", "-rfEsx", "conformance"], pytest),
            ],
            shares="conformance",
        ),
        Phase(
            "topologies",
            ["tool node", "tool javac", "tool mvn", "conformance/run.py", *languages],
            everything,
            [([*scenarios, "--topology", name, *SHORT], conformance) for name in ("sentinel", "cluster")],
            shares="conformance",
            when="ci",
        ),
        # The waiters of the module for WebAssembly, in every kind of lock, on one server: another topology takes minutes more. Run it
        # by hand with --topology.
        Phase(
            "wasm-redisson",
            [
                "tool node",
                "tool npm",
                "tool javac",
                "tool mvn",
                "conformance/run.py",
                "says scripts/build-wasm --can",
            ],
            [[build, "wasm"], [build, "node"]],
            [([*scenarios, "--drivers", "wasm", "redisson-4.7.0", "--only", "wake"], conformance)],
            shares="conformance",
            when="ci",
        ),
        Phase(
            "servers",
            ["conformance/run.py", *languages],
            [["scripts/servers"], [build, "rust"], [*faces, "--no-run"]],
            [
                (["scripts/on-server", name, *command], on_server(parser))
                for name in (SERVERS_IN_CI if CI else servers.SERVERS)
                for command, parser in (
                    ([*faces, "--", *IN_SHORT], cargo),
                    ([*scenarios, "--drivers", "rust"], conformance),
                )
            ],
            shares="conformance",
            when="ci",
        ),
        # The server in memory of users' tests: the scripts do there what their models say, the faces keep their promises,
        # and the languages wake each other.
        Phase(
            "memory",
            ["tool node", "tool npm", "conformance/run.py", *languages],
            [*everything[:3], [*models, "--no-run"], [*faces, "--no-run"]],
            [
                (["scripts/on-server", "memory", *command], on_server(parser))
                for command, parser in (
                    ([*models, "--", "counters_do_as_their_model_does", "the_modelled_scripts"], cargo),
                    ([*faces, "--", "locking::", "semaphores::"], cargo),
                    ([*scenarios, "--drivers", "rust", "python", "node", "--only", "wake"], conformance),
                )
            ],
            shares="conformance",
        ),
        Phase(
            "docs",
            ["tool node", "tool go", "tool java", "tool mvn", "README.md", *languages],
            everything,
            [(["scripts/test-docs"], plain)],
        ),
        # Its compiler is larger than all the other packages together, so `scripts/setup` leaves it out.
        Phase(
            "nextjs",
            ["tool npm", "scripts/frameworks/nextjs/package-lock.json", "bindings-node/package.json"],
            [["npm", "--prefix", "scripts/frameworks/nextjs", "ci", *QUIET_NPM], [build, "node"]],
            [(["scripts/with-server", "node", "--test", "scripts/frameworks/nextjs/next.test.mjs"], node)],
            repeated=False,
            when="ci",
        ),
        # The site's every link, and its pages in a browser.
        Phase(
            "site",
            ["tool node", "tool npm", "scripts/site/build.py", "says scripts/setup-browser --can"],
            [["scripts/docs-site"]],
            [(["node", "--test", "scripts/site/browser.test.mjs"], node)],
            repeated=False,
            when="ci",
        ),
        Phase(
            "demo",
            ["tool node", "examples/flash_sale.py", *languages],
            everything,
            [(["scripts/with-server", "python", "examples/flash_sale.py"], demo)],
        ),
        Phase(
            "examples",
            ["tool node", "scripts/lib/examples.py", *languages],
            everything,
            [(["scripts/test-examples"], plain)],
        ),
        Phase(
            "guard",
            ["tool node", "benches/guard.py", *languages],
            everything,
            [
                (["python", "-m", "pytest", "-rfEsx", "benches", "scripts/lib"], pytest),
                (["python", "benches/guard.py"], plain),
            ],
            repeated=False,
            alone=True,
        ),
        Phase(
            "faults",
            ["tool node", "faults/check.py", *languages],
            everything,
            [
                (["python", "-m", "pytest", "-rfEsx", "faults"], pytest),
                # All of it is `make faults`.
                (["python", "faults/matrix.py", "--short"], matrix),
                (["python", "faults/counter_soak.py", *BRIEF], soaked),
                (["python", "faults/permit_soak.py", *BRIEF], soaked),
                (["python", "faults/multi_soak.py", *BRIEF], soaked),
                (["python", "faults/quorum_soak.py", *BRIEF], soaked),
            ],
        ),
        Phase(
            "dist",
            ["tool node", "tool cmake", "tool pkg-config", *languages],
            [["scripts/dist"]],
            [(["scripts/test-dist"], plain)],
            repeated=False,
        ),
        # One system of those that `make test-platforms` builds for and tests, so that a change cannot break all of them.
        Phase(
            "platforms",
            ["tool dpkg", "scripts/lib/targets.txt"],
            [["scripts/setup-cross", "run"], ["scripts/dist", FOREIGN, "c"]],
            [(["scripts/test-platforms", "--face", "c", FOREIGN], plain)],
            repeated=False,
            when="ci",
        ),
        # The same seeds each time, so that a change is judged by itself. `make sim` draws new ones.
        Phase(
            "sim",
            ["scripts/sim"],
            [],
            [(["env", "FIRST=0", "SEEDS=4000", "PROFILE=test", "scripts/sim"], simulation)],
            repeated=False,
            when="ci",
        ),
        Phase(
            "lint",
            ["scripts/lint"],
            [],
            [(["scripts/lint"], lint)],
            repeated=False,
            limit=BUILD_LIMIT,
            when="ci",
        ),
    ]


def missing(phase: Phase) -> str:
    lacking = []
    for need in phase.needs:
        if need.startswith("says "):
            asked = subprocess.run(need.split()[1:], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
            if asked.returncode:
                lacking.append(asked.stdout.strip() or f"{need[5:]} ended with code {asked.returncode}")
            continue
        tool = need[5:] if need.startswith("tool ") else ""
        if not (shutil.which(tool) if tool else (ROOT / need).exists()):
            lacking.append(f"{tool} is not on PATH" if tool else f"{need} is not there")
    return ", ".join(lacking)


# --- running them ---


def ended(process: subprocess.Popen[str]) -> bool:
    """Whether it has ended. It is not reaped yet, so its group's number cannot mean anybody else's processes."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None


def run(
    command: list[str], log: Path, parser: Parser | None = None, mark: str = "", limit: float = LIMIT
) -> Counts:
    """Runs one command, shows its output as it comes, and counts; a command that failed counts at least 1.

    `mark` begins each line, where several commands run at a time.
    """
    print(f"{mark}$ {' '.join(command)}", flush=True)
    counts = Counts()
    process = group.start(command, ROOT)

    def follow() -> None:
        assert process.stdout is not None
        with process.stdout, open(log, "a") as copy:
            for line in process.stdout:
                print(mark + line, end="", flush=True)
                copy.write(line)
                if parser:
                    plain_line = re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip()
                    parser(plain_line, counts)
                    if name := failure(plain_line):
                        counts.failures.append(name)

    reader = threading.Thread(target=follow, daemon=True)
    reader.start()
    problem = ""
    give_up = time.monotonic() + limit
    try:
        while not ended(process) and time.monotonic() < give_up and not STOP.is_set():
            time.sleep(0.02)
        if STOP.is_set():
            problem = "was ended"
        elif not ended(process):
            problem = f"did not end within {limit / 60:.0f} minutes"
        else:
            # A process that a test left running holds the pipe open: that must not hold us.
            reader.join(5)
            if reader.is_alive():
                problem = "left a process behind that still holds its output"
    finally:
        group.end(process)
        _, status, used = os.wait4(process.pid, 0)
        code = process.returncode = os.waitstatus_to_exitcode(status)
        counts.cpu = used.ru_utime + used.ru_stime
        reader.join(5)
    if code:
        problem = problem or f"ended with code {code}"
    if parser and not counts.total():
        problem = problem or "ran no test"
    if problem:
        print(f"{mark}FAILED {' '.join(command)}: {problem}", flush=True)
        counts.failed = counts.failed or 1
        counts.failures.append(f"{' '.join(command)}: {problem}")
    return counts


@contextmanager
def load(wanted: bool) -> Iterator[None]:
    """Keeps every core busy, so that tests that only pass on an idle machine are found."""
    spinners = []
    if wanted:
        spin = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(100000))\n"
        spinners = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()


def in_parallel(
    wanted: list[Phase], jobs: int, build: Callable[[Phase], bool], play: Callable[[Phase], None]
) -> list[Phase]:
    """Builds the phases and plays them, `jobs` at a time, and gives those that could be built.

    One builds at a time: cargo would let the next wait. While there is something to build it has one of the jobs, so that
    with one job everything is built first. Phases that share files are chosen first, because only one of them can run.
    """
    to_build, ready, playing = list(wanted), list[Phase](), list[Phase]()
    built: list[Phase] = []
    is_building = False
    changed = threading.Condition()

    def next_step() -> tuple[Phase, bool] | None:
        """The next step of a worker, and whether it builds; nothing once nothing can follow."""
        nonlocal is_building
        with changed:
            while True:
                if STOP.is_set():
                    return None
                if to_build and not is_building:
                    is_building = True
                    return to_build.pop(0), True
                busy = {phase.shares for phase in playing if phase.shares}
                free = [phase for phase in ready if phase.shares not in busy and not phase.alone]
                if free:
                    phase = min(free, key=lambda phase: not phase.shares)
                    ready.remove(phase)
                    playing.append(phase)
                    return phase, False
                if not is_building and all(phase.alone for phase in ready):
                    return None
                changed.wait()

    def work() -> None:
        nonlocal is_building
        while step := next_step():
            phase, builds = step
            good = False
            try:
                if builds:
                    good = build(phase)
                else:
                    play(phase)
            finally:
                with changed:
                    if not builds:
                        playing.remove(phase)
                    else:
                        is_building = False
                        if good:
                            ready.append(phase)
                            built.append(phase)
                    changed.notify_all()

    STOP.clear()
    pool = ThreadPoolExecutor(jobs)
    try:
        for worker in [pool.submit(work) for _ in range(jobs)]:
            worker.result()  # an exception that is not asked for would be lost
    except BaseException:
        # Only this thread hears of an interrupt. The others end what they run.
        STOP.set()
        with changed:
            changed.notify_all()
        raise
    finally:
        pool.shutdown()
    for phase in [phase for phase in wanted if phase in ready]:
        play(phase)
    return built


def main() -> int:
    table = phases()
    parser = argparse.ArgumentParser(prog="scripts/test")
    parser.add_argument("--repeat", type=int, default=1, metavar="N")
    parser.add_argument("--jobs", type=int, default=2 if CI else 1, metavar="N")
    parser.add_argument("--server", default="", metavar="NAME")
    parser.add_argument("phase", nargs="*", help="of: " + " ".join(phase.name for phase in table))
    asked = parser.parse_args()
    unknown = set(asked.phase) - {phase.name for phase in table}
    if unknown or asked.repeat < 1 or asked.jobs < 1:
        wrong = "--repeat and --jobs are at least 1"
        parser.error(f"no such phase: {', '.join(sorted(unknown))}" if unknown else wrong)
    if asked.server:
        try:
            os.environ["REDLATCH_SERVER_BIN"] = str(servers.find(asked.server))
        except servers.Unobtainable as error:
            parser.error(str(error))
    print(f"server: {servers.version(Path(os.environ['REDLATCH_SERVER_BIN'])) or 'none'}", flush=True)

    started = time.monotonic()
    total = Counts()
    rows: list[str] = []
    failures: list[str] = []
    LOGS.mkdir(parents=True, exist_ok=True)
    SUMMARY.unlink(missing_ok=True)
    wanted: list[Phase] = []
    unasked = {"always", "ci"} if CI else {"always"}
    for phase in table:
        if phase.name not in asked.phase if asked.phase else phase.when not in unasked:
            continue
        if lacking := missing(phase):
            total.add(Counts(skipped=1, skips=[f"the whole phase {phase.name}: {lacking}"]))
            continue
        for old in LOGS.glob(f"{phase.name}-*.log"):
            old.unlink()
        wanted.append(phase)

    building: dict[str, tuple[float, float]] = {}  # seconds of a build, and of the cores in it
    done: list[list[str]] = []  # several phases need the same things built

    def build(phase: Phase) -> bool:
        print(f"\n== build {phase.name}", flush=True)
        began = time.monotonic()
        built = Counts()
        for command in phase.build:
            if not built.failed and command not in done:
                mark = f"build {phase.name}: " if asked.jobs > 1 else ""
                built.add(run(command, LOGS / f"{phase.name}-build.log", mark=mark, limit=BUILD_LIMIT))
                done.append(command)
        total.add(built)
        building[phase.name] = (time.monotonic() - began, built.cpu)
        if built.failed:
            rows.append(f"{phase.name:<18}build {building[phase.name][0]:>7.1f} s   FAILED")
            failures.extend(named(f"build {phase.name}", built))
        return not built.failed

    def play(turn: int, phase: Phase) -> None:
        name = phase.name if asked.repeat == 1 else f"{phase.name} {turn}/{asked.repeat}"
        mark = f"{phase.name}: " if asked.jobs > 1 and not phase.alone else ""
        counts = Counts()
        with load(asked.repeat > 1 and phase.repeated):
            print(f"\n== test {name}", flush=True)
            began = time.monotonic()
            for command, counting in phase.run:
                counts.add(run(command, LOGS / f"{phase.name}-{turn}.log", counting, mark, phase.limit))
        total.add(counts)
        built_in, built_by = building.pop(phase.name, (0.0, 0.0))  # in the first turn
        rows.append(
            f"{name:<18}build {built_in:>7.1f} s ({built_by:>5.0f} s of cores)"
            f"   test {time.monotonic() - began:>7.1f} s ({counts.cpu:>5.0f})"
            f"   {counts.passed} passed, {counts.failed} failed, {counts.skipped} skipped"
        )
        failures.extend(named(name, counts))

    played = in_parallel(wanted, asked.jobs, build, partial(play, 1))
    again = [phase for phase in played if phase.repeated]
    for turn in range(2, asked.repeat + 1):
        in_parallel(again, asked.jobs, lambda _: True, partial(play, turn))

    print("\n== summary")
    if any(phase.name == "portable" for phase in played):
        for suite, tests in EXEMPT.items():
            for test, why in tests.items():
                print(f"EXEMPT portable {suite} {test}: {why}")
    if any(phase.name == "versions" for phase in played):
        say_exempt(["bun", "deno"])
    if any(phase.name == "wasm" for phase in played):
        say_exempt(["wasm", "loop", "http"])
    for skip in dict.fromkeys(total.skips):
        print(f"SKIPPED {skip}")
    rows.append(
        f"{'all':<18}{time.monotonic() - started:>15.1f} s, {total.cpu:.0f} s of cores   logs in {LOGS}"
    )
    rows += failures
    if total.skipped and CI:
        rows.append(f"CI: {total.skipped} skipped, and here nothing may be")
        rows += [f"    {skip}" for skip in list(dict.fromkeys(total.skips))[:NAMED]]
    rows.append(f"{total.passed} passed, {total.failed} failed, {total.skipped} skipped")
    SUMMARY.write_text("\n".join(rows) + "\n")
    print(SUMMARY.read_text(), end="", flush=True)
    return 1 if total.failed or not total.passed or (total.skipped and CI) else 0


def named(phase: str, counts: Counts) -> list[str]:
    """The lines of the summary about what failed in a phase."""
    names = list(dict.fromkeys(counts.failures))
    if not counts.failed:
        return []
    lines = [f"FAILED {phase}: {counts.failed}", *(f"    {name}" for name in names[:NAMED])]
    return lines + [f"    and {len(names) - NAMED} more"] * (len(names) > NAMED)


def say_exempt(runtimes: list[str]) -> None:
    listed = json.loads((ROOT / "bindings-node/test/support/exempt.json").read_text())
    for runtime in runtimes:
        for test, why in listed[runtime].items():
            print(f"EXEMPT {runtime} {test}: {why}")


def interrupted(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    # Asked to end, we first end what we started.
    signal.signal(signal.SIGTERM, interrupted)
    signal.signal(signal.SIGHUP, interrupted)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
