"""The fixtures of redlatch. pytest loads them by the entry point `pytest11`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import redlatch
    from redlatch.testing import MemoryServer, Server


@pytest.fixture(scope="session")
def redlatch_server() -> Iterator[Server]:
    """A server for the tests of this session, or of this worker of pytest-xdist; they are skipped where none is installed."""
    from redlatch.testing import Server, ServerNotFoundError

    try:
        server = Server()
    except ServerNotFoundError as error:
        pytest.skip(str(error))  # for the tests of users; ours set REDLATCH_SERVER_BIN
    with server:
        yield server


@pytest.fixture
def redlatch_url(redlatch_server: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of `redlatch_server`, without data; REDLATCH_URL has it too, for clients that are opened without a URL."""
    redlatch_server.empty()
    monkeypatch.setenv("REDLATCH_URL", redlatch_server.url)
    return redlatch_server.url


@pytest.fixture
def redlatch_client(redlatch_url: str) -> Iterator[redlatch.Client]:
    """A client of `redlatch_server`, closed when the test has ended."""
    import redlatch

    with redlatch.Client(redlatch_url) as client:
        yield client


@pytest.fixture
def redlatch_memory_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryServer]:
    """A server in memory for one test: no Redis is needed. REDLATCH_URL has its URL, for clients that are opened without one."""
    from redlatch.testing import MemoryServer

    with MemoryServer() as server:
        monkeypatch.setenv("REDLATCH_URL", server.url)
        yield server


@pytest.fixture
def redlatch_memory_client(redlatch_memory_server: MemoryServer) -> Iterator[redlatch.Client]:
    """A client of `redlatch_memory_server`, closed when the test has ended."""
    import redlatch

    with redlatch.Client(redlatch_memory_server.url) as client:
        yield client
        with contextlib.suppress(redlatch.ClosedError):  # the test has stopped it
            redlatch_memory_server.resume()  # for a test that has left it paused
