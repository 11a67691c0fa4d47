"""A server of our own, and what the tests need to look at it.

`async def` tests run by themselves, on asyncio's own event loop and on uvloop's if that is installed.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import redis
import redlatch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "lib"))
from server import Server

LIMIT = 30.0
"""Seconds that a busy machine may take for something that takes milliseconds."""

RENEWED = 6.0
"""The lease of holds that a test sees renewed: every two seconds, and a machine may stand still for nearly four."""


# ---- the server ----


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture
def own_server() -> Iterator[Server]:
    """A server that the test may stop."""
    with Server() as server:
        yield server


@pytest.fixture(autouse=True)
def url(server: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("REDLATCH_URL", server.url)
    return server.url


@pytest.fixture
def look(server: Server) -> Iterator[redis.Redis]:
    """A connection that looks at the data, and changes it by hand."""
    with redis.Redis(port=server.port, decode_responses=True) as look:
        yield look


def direct_connection(look: redis.Redis) -> dict[str, str] | None:
    """The connection on which callers do their calls themselves: the server tells it nothing unasked."""
    rows = [row for row in look.client_list() if row["name"].startswith("redlatch;") and row["flags"] == "N"]
    return rows[0] if rows else None


_names = itertools.count()


@pytest.fixture
def name() -> str:
    """A name that no other test uses."""
    return f"test:{next(_names)}"


@pytest.fixture
def client() -> Iterator[redlatch.Client]:
    with redlatch.Client() as client:
        yield client


# ---- waiting ----


def eventually(condition: Callable[[], object], what: str = "the condition holds") -> None:
    give_up = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < give_up, f"not within {LIMIT} s: {what}"
        time.sleep(0.002)


async def soon(condition: Callable[[], object], what: str = "the condition holds") -> None:
    give_up = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < give_up, f"not within {LIMIT} s: {what}"
        await asyncio.sleep(0.002)


def wait_for_renewal(look: redis.Redis, name: str) -> None:
    """Waits until the server has been seen to give the lock more time.

    The time is compared with the least one seen so far. Directly after a renewal it is the whole lease, which is never exceeded.
    """
    least = look.pttl(name)

    def has_risen() -> bool:
        nonlocal least
        left = look.pttl(name)
        assert left >= 0, f"{name!r} is not held any more"
        risen, least = left > least, min(least, left)
        return risen

    eventually(has_risen, f"{name!r} is renewed")


def script(source: str) -> list[str]:
    """The command that runs a program."""
    return [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(source)]


def run(source: str, *args: str) -> str:
    """Runs a program to its end, which has to be a good one; what it printed."""
    ended = subprocess.run([*script(source), *args], capture_output=True, text=True, timeout=4 * LIMIT)
    assert ended.returncode == 0, f"ended with {ended.returncode}:\n{ended.stdout}{ended.stderr}"
    assert "Traceback" not in ended.stderr and "Fatal" not in ended.stderr, ended.stderr
    return ended.stdout


# ---- async tests ----

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop}
if find_spec("uvloop"):
    import uvloop

    LOOPS["uvloop"] = uvloop.new_event_loop


class WithoutReaders(asyncio.SelectorEventLoop):
    """As Windows' usual loop: it takes no descriptor."""

    def add_reader(self, *_: object) -> None:
        raise NotImplementedError


if os.environ.get("REDLATCH_PORTABLE"):
    LOOPS["without readers"] = WithoutReaders


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not Path("/proc/self/task").exists():
        left_out = [item for item in items if item.get_closest_marker("reads_proc")]
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if inspect.iscoroutinefunction(metafunc.function):
        metafunc.fixturenames.append("_loop")
        metafunc.parametrize("_loop", list(LOOPS))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.function):
        return None
    wanted = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.function).parameters}
    run_in_loop(LOOPS[str(pyfuncitem.callspec.params["_loop"])](), pyfuncitem.function(**wanted))
    return True


def run_in_loop(loop: asyncio.AbstractEventLoop, main: Any) -> Any:
    """asyncio.run for this very loop."""
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(asyncio.wait_for(main, 4 * LIMIT))
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        asyncio.set_event_loop(None)
        loop.close()
