"""The summary of the runner names what failed, whatever language's runner said so."""

from __future__ import annotations

import os
import subprocess
import sys
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


def test_ci_prints_the_summary_that_the_runner_writes() -> None:
    told = (runner.ROOT / ".ci/run").read_text()
    assert f"/{runner.LOGS.name}/{runner.SUMMARY.name}" in told
    assert (
        subprocess.run(["bash", "-n", ".ci/run"], cwd=runner.ROOT, env=os.environ, check=False).returncode
        == 0
    )
