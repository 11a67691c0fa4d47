"""The runner counts what each language's runner says, names what failed, and plays phases beside each other where they may be."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import runner
from runner import Counts, Phase, Runner


@pytest.fixture(autouse=True)
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "LOGS", tmp_path)
    monkeypatch.setattr(runner, "TIMES", tmp_path / "committed.json")


@pytest.mark.parametrize(
    ("line", "counts"),
    [
        ("3 passed, 1 failed, 2 skipped", (3, 1, 2)),
        ("exit: 3 passed, 1 failed", (3, 1, 0)),
        ("test result: FAILED. 2 passed; 1 failed; 4 ignored; 0 measured; 0 filtered out", (2, 1, 4)),
        ("conformance: scenarios=204 checks=50 failed=2", (48, 2, 0)),
        ("faults: rows=3 cells=12 failed=0", (12, 0, 0)),
        ("sim: seeds=4000 steps=8184515 calls=821965 shared=71112 violations=1", (3999, 1, 0)),
        ("soak: minutes=1 operations=40 wrong=0", (40, 0, 0)),
        ("1310 passed in 424.49s (0:07:04)", (0, 0, 0)),
        ("", (0, 0, 0)),
    ],
)
def test_a_closing_line_is_counted(line: str, counts: tuple[int, int, int]) -> None:
    found = Counts()
    found.line(line)
    assert (found.passed, found.failed, found.skipped) == counts


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("test locking::a_lock_excludes ... FAILED", "locking::a_lock_excludes"),
        ("FAILED locks: a_lock_excludes", "locks: a_lock_excludes"),
        ("lint failed: clippy", "clippy"),
        ("ok locks: a_lock_excludes", ""),
        ("FAILED | 3 passed (4 steps) | 1 failed (12ms)", ""),
    ],
)
def test_a_failing_test_has_a_name(line: str, name: str) -> None:
    found = Counts()
    found.line(line)
    assert found.failures == ([name] if name else [])


def test_a_report_is_counted_named_and_timed() -> None:
    report = runner.LOGS / "one.xml"
    report.write_text(
        "<testsuites><testsuite><testcase name='a' classname='x' time='2.5'/><testcase name='b'><failure>\x1b[31m</failure>"
        "</testcase><testcase name='c'><skipped message='no server'/></testcase></testsuite></testsuites>"
    )
    found = Counts()
    found.junit(report)
    assert (found.passed, found.failed, found.skipped) == (1, 1, 1)
    assert (found.failures, found.skips, found.slow[0]) == (["b"], ["c: no server"], (2.5, "x a"))


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("exit 0", "ran no test"),
        ("echo 1 passed, 0 failed; exit 3", "ended with code 3"),
        ("echo '<' >$JUNIT", "wrote a report that cannot be read"),
    ],
)
def test_a_command_that_proves_nothing_fails(command: str, problem: str) -> None:
    counts = runner.run(command, runner.LOGS / "log")
    assert counts.failed == 1
    assert problem in counts.failures[-1]


def test_a_line_that_has_to_come_comes_once() -> None:
    said = runner.run("echo sold=100", runner.LOGS / "log", says="sold=100")
    assert (said.passed, said.failed) == (1, 0)
    assert runner.run("echo sold=101", runner.LOGS / "log", says="sold=100").failed == 1
    assert runner.run("echo sold=100; echo sold=100", runner.LOGS / "log", says="sold=100").failed == 1


def test_the_summary_names_twenty_failures_and_counts_the_rest() -> None:
    run = Runner(1, 1)
    names = [f"test {number}" for number in range(25)]
    run.end("node", "node", Counts(failed=25, failures=[*names, names[0]]), 1)
    assert run.lines == ["FAILED node: 25", *(f"    test {number}" for number in range(20)), "    and 5 more"]


def ended(cpu: float, builds: str = "") -> Runner:
    run = Runner(1, 1, builds)
    run.end("rust", "rust", Counts(passed=1, cpu=cpu), 1)
    run.end("new", "new", Counts(passed=1, cpu=cpu), 1)
    run.end("rust build", run.builds, Counts(cpu=cpu), 1)
    return run


def told(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line.split(":")[0] for line in capsys.readouterr().out.splitlines() if line.startswith("GROWN")]


def test_a_phase_that_has_grown_is_told_and_fails_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    runner.TIMES.write_text('{"rust": 100, "builds of test": 100}')
    assert ended(119, "builds of test").summary(1) == 0
    assert told(capsys) == []
    assert ended(121).summary(1) == 0
    assert told(capsys) == ["GROWN rust"]
    assert ended(121, "builds of test").summary(1) == 0
    assert told(capsys) == ["GROWN rust", "GROWN builds of test"]


def test_the_times_of_the_last_runs_can_be_kept(capsys: pytest.CaptureFixture[str]) -> None:
    ended(100, "builds of test").summary(1)
    runner.bless()  # there is no file before, and no phase named `new`
    assert runner.read(runner.TIMES) == {"rust": 100, "builds of test": 100}
    ended(130, "builds of rest").summary(1)
    assert told(capsys) == ["GROWN rust"]
    runner.bless()
    assert runner.read(runner.TIMES) == {"rust": 130, "builds of test": 100, "builds of rest": 130}


def test_continuous_integration_runs_the_tests_and_then_the_rest() -> None:
    said = (runner.ROOT / ".ci/run").read_text()
    assert said.index("\nmake test\n") < said.index("\nmake test-rest")
    assert {phase.set for phase in runner.plan()} == {"test", "rest", "asked"}


class Played(Runner):
    """It notes which steps run, and which others ran when each began."""

    def __init__(self, jobs: int, broken: str = "") -> None:
        super().__init__(jobs, 1)
        self.broken = broken
        self.now: set[str] = set()
        self.begun: list[str] = []
        self.beside: list[set[str]] = []
        self.lock = threading.Lock()
        self.may_end: dict[str, threading.Event] = {}  # a step that waits for this
        self.ends: dict[str, threading.Event] = {}  # a step that sets this

    def step(self, name: str) -> None:
        with self.lock:
            self.now.add(name)
            self.begun.append(name)
            self.beside.append(set(self.now))
        if name in self.ends:
            self.ends[name].set()
        if name in self.may_end:
            assert self.may_end[name].wait(60)
        with self.lock:
            self.now.remove(name)

    def build(self, phase: Phase) -> bool:
        self.step(f"build {phase.name}")
        return phase.name != self.broken

    def play(self, turn: int, phase: Phase) -> None:
        self.step(phase.name)


def phase(name: str, *, shares: str = "", alone: bool = False, computes: bool = False) -> Phase:
    return Phase(name, [], shares=shares, alone=alone, computes=computes)


def test_what_cannot_be_built_is_not_played_and_the_rest_is() -> None:
    played = Played(2, broken="b")
    played.all([phase("a"), phase("b"), phase("c")])
    assert sorted(played.begun) == ["a", "build a", "build b", "build c", "c"]


def test_phases_that_share_files_never_run_beside_each_other() -> None:
    played = Played(4)
    shared = {"a", "b", "c"}
    played.all([*(phase(name, shares="files") for name in sorted(shared)), phase("d")])
    assert shared | {"d"} < set(played.begun)
    assert all(len(beside & shared) <= 1 for beside in played.beside)


def test_of_what_computes_one_runs_at_a_time_beside_the_phases_that_wait() -> None:
    played = Played(2)
    played.may_end["build d"] = threading.Event()
    played.ends["b"] = played.may_end["build d"]
    computing = {"c", "e", *(f"build {name}" for name in "abcde")}
    played.all([phase("a"), phase("b"), phase("c", computes=True), phase("d"), phase("e", computes=True)])
    assert sorted(played.begun) == sorted({"a", "b", "d"} | computing)
    assert all(len(beside & computing) <= 1 and len(beside - computing) <= 2 for beside in played.beside)


def test_one_job_is_one_step_at_a_time() -> None:
    played = Played(1)
    played.all([phase("a"), phase("b", computes=True), phase("c")])
    assert all(len(beside) == 1 for beside in played.beside)


def test_a_phase_that_counts_runs_last_and_alone() -> None:
    played = Played(3)
    played.all([phase("counts", alone=True), phase("a"), phase("b")])
    assert (played.begun[-1], played.beside[-1]) == ("counts", {"counts"})


def test_a_phase_runs_while_the_next_is_built() -> None:
    played = Played(2)
    played.may_end["build b"] = threading.Event()
    played.ends["a"] = played.may_end["build b"]
    played.all([phase("a"), phase("b")])
    assert played.begun.index("a") < played.begun.index("b")


def test_the_error_of_a_phase_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def play(turn: int, phase: Phase) -> None:
        raise OSError("no space")

    played = Played(2)
    monkeypatch.setattr(played, "play", play)
    try:
        with pytest.raises(OSError, match="no space"):
            played.all([phase("a"), phase("b")])
    finally:
        runner.STOP.clear()


def test_asked_to_end_the_runner_ends_what_it_started(tmp_path: Path) -> None:
    program = f"""
import signal
from pathlib import Path
import runner
signal.signal(signal.SIGTERM, runner.interrupted)
runner.LOGS = Path({str(tmp_path)!r})
runner.Runner(2, 1).all([runner.Phase("a", ["echo here $$; exec sleep 600"])])
"""
    asked = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=runner.ROOT / "scripts/lib",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert asked.stdout is not None
    started = next(line for line in asked.stdout if line.startswith("a: here "))
    asked.terminate()
    said, _ = asked.communicate(timeout=60)
    assert "KeyboardInterrupt" in said
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.split()[2]), 0)
