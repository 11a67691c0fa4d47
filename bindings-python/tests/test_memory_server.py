"""The server in memory: a test decides when a lock is lost and when the server is out of reach."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import textwrap
import threading
from pathlib import Path

import pytest
import redis
import redlatch
import redlatch.aio
from conftest import LIMIT, eventually, script
from redlatch.testing import MemoryServer
from test_readme import BLOCKS
from test_testing import outcome


def test_one_client_waits_for_the_other() -> None:
    with (
        MemoryServer() as server,
        redlatch.Client(server.url) as mine,
        redlatch.Client(server.url) as other,
    ):
        lock, theirs = mine.lock("n"), other.lock("n")
        assert lock.acquire()
        assert not theirs.acquire(blocking=False)
        got = threading.Event()
        waiter = threading.Thread(target=lambda: theirs.acquire() and got.set())
        waiter.start()
        eventually(lambda: other.stats()["waiting"] == 1, "the other waits")
        assert not got.is_set()
        lock.release()
        waiter.join(LIMIT)
        assert got.is_set()


def test_another_process_waits_too() -> None:
    with MemoryServer() as server, redlatch.Client(server.url) as client:
        lock = client.lock("n")
        assert lock.acquire()
        program = """
            import redlatch
            with redlatch.Client() as client:
                assert not client.lock("n").acquire(blocking=False)
                print("busy", flush=True)
                with client.lock("n"):
                    print("mine", flush=True)
        """
        environment = {**os.environ, "REDLATCH_URL": server.url}
        with subprocess.Popen(script(program), env=environment, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "busy\n"
            lock.release()
            assert process.stdout.readline() == "mine\n"


def test_a_holder_is_told_that_its_lock_was_taken_away() -> None:
    with MemoryServer() as server, redlatch.Client(server.url) as client:
        told = threading.Event()
        with pytest.raises(redlatch.LockLostError), client.lock("n", on_lost=lambda _: told.set()):
            assert server.take_away("n")
            assert told.wait(LIMIT)
        assert not server.take_away("n")


def test_a_lease_runs_out_when_the_clock_is_moved() -> None:
    with (
        MemoryServer() as server,
        redlatch.Client(server.url) as mine,
        redlatch.Client(server.url) as other,
    ):
        lock = mine.lock("n")
        assert lock.acquire(lease=600)
        server.advance(599)
        assert not other.lock("n").acquire(blocking=False)
        server.advance(2)
        assert other.lock("n").acquire(timeout=LIMIT)
        eventually(lambda: not lock.owned(), "the loss is told")


def test_asyncio_is_told_of_a_loss() -> None:
    async def main(server: MemoryServer) -> None:
        async with redlatch.aio.Client(server.url) as client:
            told = asyncio.Event()
            with pytest.raises(redlatch.LockLostError):
                async with client.lock("n", on_lost=lambda _: told.set()):
                    server.advance(31)
                    await asyncio.wait_for(told.wait(), LIMIT)

    with MemoryServer() as server:
        asyncio.run(main(server))


def test_a_paused_server_is_unavailable() -> None:
    with (
        MemoryServer() as server,
        redlatch.Client(server.url, connect_timeout=0.2, outage=0.3) as client,
    ):
        client.connect()
        server.pause()
        with pytest.raises(redlatch.UnavailableError):
            client.lock("n").acquire()
        server.resume()
        assert client.lock("n").acquire(timeout=LIMIT)


def test_a_hold_outlives_its_connection() -> None:
    with MemoryServer() as server, redlatch.Client(server.url) as client, client.lock("n") as grant:
        connects = client.stats()["connects"]
        server.disconnect()
        eventually(lambda: client.stats()["connects"] > connects, "a new connection")
        assert grant.held


def test_it_can_be_looked_into_and_emptied() -> None:
    with MemoryServer() as server, redlatch.Client(server.url) as client:
        look = redis.Redis.from_url(server.url, decode_responses=True)
        assert client.lock("n").acquire()
        assert look.keys("*") == ["n"] and look.type("n") == "hash" and look.pttl("n") > 0
        server.empty()
        assert look.dbsize() == 0
        with pytest.raises(redis.ResponseError, match="'BITCOUNT'"):
            look.bitcount("n")
        look.close()


def test_a_stopped_server_is_gone_and_says_so() -> None:
    server = MemoryServer()
    port = int(server.url.rpartition(":")[2])
    socket.create_connection(("127.0.0.1", port)).close()
    server.stop()
    server.stop()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    with pytest.raises(redlatch.ClosedError, match="start another"):
        server.pause()


@pytest.mark.parametrize("wrong", [-1, "1", float("nan")])
def test_a_time_that_is_none_is_refused(wrong: object) -> None:
    with MemoryServer() as server, pytest.raises(redlatch.InvalidArgumentError, match="seconds is"):
        server.advance(wrong)  # type: ignore[arg-type]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows has no fork")
def test_a_forked_child_leaves_it_alone() -> None:
    with MemoryServer() as server:
        child = os.fork()
        if child == 0:
            server.take_away("n")
            server.stop()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        with redlatch.Client(server.url) as client, client.lock("n"):
            pass


def test_fixtures_give_each_test_a_server_of_its_own(tmp_path: Path) -> None:
    tests = """
        import pytest
        import redlatch

        def test_lost(redlatch_memory_client, redlatch_memory_server):
            with pytest.raises(redlatch.LockLostError), redlatch_memory_client.lock("n") as grant:
                assert redlatch_memory_server.take_away("n")
                grant.check()

        def test_paused(redlatch_memory_client, redlatch_memory_server):
            assert redlatch_memory_client.lock("n").acquire()
            redlatch_memory_server.pause()

        def test_stopped(redlatch_memory_client, redlatch_memory_server):
            assert redlatch_memory_client.lock("n").acquire()
            redlatch_memory_server.stop()

        def test_nothing_is_left_of_another_test(redlatch_memory_server):
            assert not redlatch.Client().lock("n").locked()
    """
    text = outcome(tmp_path, textwrap.dedent(tests), REDLATCH_SERVER_BIN="", PATH="")
    assert "4 passed" in text and "error" not in text, text


def test_the_example_of_the_readme_passes(tmp_path: Path) -> None:
    text = outcome(tmp_path, next(block for block in BLOCKS if "redlatch_memory_client" in block))
    assert "1 passed" in text, text
