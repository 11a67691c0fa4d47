"""The summary of the runner names what failed, whatever language's runner said so."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import runner


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("test locking::a_lock_excludes ... FAILED", "locking::a_lock_excludes"),
        (
            "FAILED bindings-python/tests/test_tls.py::test_it - assert 1 == 2",
            "bindings-python/tests/test_tls.py::test_it - assert 1 == 2",
        ),
        ("ERROR bindings-python/tests/test_tls.py", "bindings-python/tests/test_tls.py"),
        ("FAILED locks: a_lock_excludes", "locks: a_lock_excludes"),
        ("    not ok 3 - a lock excludes", "a lock excludes"),
        ("  \u2716 a lock excludes (12.5ms)", "a lock excludes"),
        ("(fail) a lock excludes [12.50ms]", "a lock excludes"),
        ("a lock excludes ... FAILED (12ms)", "a lock excludes"),
        ("\u2716 failing tests:", ""),
        ("test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out", ""),
        ("FAILED | 3 passed (4 steps) | 1 failed (12ms)", ""),
        ("ok locks: a_lock_excludes", ""),
        ("test locking::a_lock_excludes ... ok", ""),
    ],
)
def test_each_runner_s_failing_test_has_a_name(line: str, name: str) -> None:
    assert runner.failure(line) == name


def test_the_summary_names_twenty_failures_and_counts_the_rest() -> None:
    names = [f"test {number}" for number in range(25)]
    assert runner.named("node", runner.Counts(passed=1, failed=25, failures=[*names, names[0]])) == [
        "FAILED node: 25",
        *(f"    test {number}" for number in range(20)),
        "    and 5 more",
    ]
    assert runner.named("node", runner.Counts(passed=1)) == []


def test_a_command_s_failing_tests_are_collected(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "print('FAILED here'); print('0 passed, 1 failed'); raise SystemExit(1)"]
    counts = runner.run(command, tmp_path / "log", runner.plain)
    assert (counts.failed, counts.failures[0]) == (1, "here")
    assert counts.failures[1].endswith(": ended with code 1")


def test_ci_ends_with_the_summary_of_all_phases() -> None:
    assert (runner.ROOT / ".ci/run").read_text().endswith("\nmake test\n")
    assert [phase.name for phase in runner.phases() if phase.when == "ci"][-2:] == ["sim", "lint"]


def test_the_checks_of_lint_are_named_where_they_fail() -> None:
    counts = runner.Counts()
    for line in ("== lint clippy", "SKIPPED Go: no go on PATH", "lint failed: clippy", "lint failed: gates"):
        runner.lint(line, counts)
    assert (counts.passed, counts.failed, counts.skips) == (0, 2, ["Go: no go on PATH"])
    assert counts.failures == ["clippy", "gates"]
    runner.lint("lint: clean", counts)
    assert counts.passed == 1


def test_a_seed_that_violates_a_rule_is_a_failure() -> None:
    counts = runner.Counts()
    runner.simulation("sim: seeds=4000 steps=8184515 calls=821965 shared=71112 violations=1", counts)
    assert (counts.passed, counts.failed) == (3999, 1)


def phase(name: str, *, shares: str = "", alone: bool = False) -> runner.Phase:
    return runner.Phase(name, [], [], [], shares=shares, alone=alone)


@dataclass
class Played:
    """The steps that run now, and those that have begun, in order."""

    now: list[str] = field(default_factory=list)
    begun: list[str] = field(default_factory=list)
    beside: list[set[str]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        with self.lock:
            self.now.append(name)
            self.begun.append(name)
            self.beside.append(set(self.now))
        yield
        with self.lock:
            self.now.remove(name)


def in_parallel(phases: list[runner.Phase], jobs: int, broken: str = "") -> tuple[Played, list[str]]:
    played = Played()

    def build(phase: runner.Phase) -> bool:
        with played.step(f"build {phase.name}"):
            return phase.name != broken

    def play(phase: runner.Phase) -> None:
        with played.step(phase.name):
            pass

    return played, [phase.name for phase in runner.in_parallel(phases, jobs, build, play)]


def test_with_one_job_everything_is_built_first() -> None:
    played, built = in_parallel([phase("a"), phase("alone", alone=True), phase("b")], 1)
    assert played.begun == ["build a", "build alone", "build b", "a", "b", "alone"]
    assert built == ["a", "alone", "b"]


def test_what_cannot_be_built_is_not_played_and_the_rest_is() -> None:
    played, built = in_parallel([phase("a"), phase("b"), phase("c")], 2, broken="b")
    assert sorted(played.begun) == ["a", "build a", "build b", "build c", "c"]
    assert built == ["a", "c"]


def test_phases_that_share_files_never_run_beside_each_other() -> None:
    shared = {"a", "b", "c"}
    begun = threading.Event()
    played = Played()

    def play(phase: runner.Phase) -> None:
        with played.step(phase.name):
            # The first of those that share waits for a phase that is built behind them all.
            assert phase.name == "d" or begun.wait(60)
            if phase.name == "d":
                begun.set()

    phases = [*(phase(name, shares="files") for name in sorted(shared)), phase("d")]
    runner.in_parallel(phases, 4, lambda _: True, play)
    assert sorted(played.begun) == ["a", "b", "c", "d"]
    assert all(len(beside & shared) <= 1 for beside in played.beside)


def test_one_phase_is_built_at_a_time() -> None:
    begun = threading.Event()
    played = Played()

    def build(phase: runner.Phase) -> bool:
        with played.step(phase.name):
            # Long enough for a worker that is free to see it.
            return phase.name == "a" or begun.wait(60)

    def play(phase: runner.Phase) -> None:
        if phase.name == "a":
            begun.set()

    runner.in_parallel([phase(name) for name in "abcd"], 3, build, play)
    assert played.beside == [{"a"}, {"b"}, {"c"}, {"d"}]


def test_a_phase_that_counts_runs_last_and_alone() -> None:
    played, _ = in_parallel([phase("counts", alone=True), phase("a"), phase("b")], 3)
    assert (played.begun[-1], played.beside[-1]) == ("counts", {"counts"})


def test_a_phase_runs_while_the_next_is_built() -> None:
    begun = threading.Event()

    def build(phase: runner.Phase) -> bool:
        return phase.name == "a" or begun.wait(60)

    built = runner.in_parallel([phase("a"), phase("b")], 2, build, lambda _: begun.set())
    assert [phase.name for phase in built] == ["a", "b"]


def test_the_error_of_a_phase_is_not_lost() -> None:
    def play(_: runner.Phase) -> None:
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        runner.in_parallel([phase("a"), phase("b")], 2, lambda _: True, play)


def test_asked_to_end_the_runner_ends_what_it_started(tmp_path: Path) -> None:
    program = f"""
import signal
from pathlib import Path
import runner
signal.signal(signal.SIGTERM, runner.interrupted)
def build(_):
    return not runner.run(["bash", "-c", "echo here $$; exec sleep 600"], Path({str(tmp_path / "log")!r})).failed
runner.in_parallel([runner.Phase("a", [], [], [])], 2, build, print)
"""
    asked = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=runner.ROOT / "scripts/lib",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert asked.stdout is not None
    started = next(line for line in asked.stdout if line.startswith("here "))
    asked.terminate()
    said, _ = asked.communicate(timeout=60)
    assert "KeyboardInterrupt" in said
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.split()[1]), 0)
