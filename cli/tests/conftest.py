"""A server, the program, and what the tests need to look at both."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import redis

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "lib"))
from server import Server, eventually  # noqa: E402

LIMIT = 60.0
"""Seconds that a busy machine may take for something that takes milliseconds."""

PROGRAM = str(Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "debug" / "redlatch")

# A shell ignores Ctrl-C for what it starts in the background, nohup(1) a hang-up, and programs inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGQUIT, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)

Started = subprocess.Popen[str]
Start = Callable[..., Started]


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture(autouse=True)
def url(server: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("REDLATCH_URL", server.url)
    return server.url


@pytest.fixture
def look(server: Server) -> Iterator[redis.Redis]:
    with redis.Redis(port=server.port, decode_responses=True) as look:
        yield look


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses."""
    return f"cli:{request.node.name}"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts the program in a folder and a session of its own; both are gone after the test."""
    started: list[Started] = []

    def start(*words: str, **options: object) -> Started:
        process = subprocess.Popen(  # type: ignore[call-overload]
            [PROGRAM, *words],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            **{"stdin": subprocess.DEVNULL, **options},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def run(*words: str, **options: object) -> subprocess.CompletedProcess[str]:
    """Runs the program to its end."""
    return subprocess.run(  # type: ignore[call-overload]
        [PROGRAM, *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        **options,
    )


def ended(process: Started) -> tuple[int, str, str]:
    """The exit code and what the program wrote, once it has ended."""
    out, err = process.communicate(timeout=LIMIT)
    return process.returncode, out, err


def line(process: Started) -> str:
    """The next line of its output: an event, so no test has to guess when something has begun."""
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


def is_alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(") ")[2][0] not in "ZX"


def gone(*pids: int) -> None:
    eventually(lambda: not any(map(is_alive, pids)), f"processes {pids} end", LIMIT)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
