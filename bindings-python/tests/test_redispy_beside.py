"""redlatch.compat.redispy beside redis-py: they exclude each other, and what comes around a lock."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.lock
import redis.lock
import redlatch
from conftest import (
    LIMIT,
    RENEWED,
    Server,
    eventually,
    run,
    run_in_loop,
    script,
    soon,
    wait_for_renewal,
)
from redis.backoff import NoBackoff
from redis.retry import Retry
from redlatch import aio
from redlatch.compat import redispy
from redlatch.compat.redispy import aio as redispy_aio

FACES = ["threads", "asyncio"]


@pytest.fixture
def py(server: Server) -> Iterator[redis.Redis]:
    with redis.Redis(port=server.port) as client:
        yield client


def both(server: Server, name: str, **options: Any) -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    """Makers of a lock of redis-py and of ours, for threads and for asyncio."""
    port = server.port
    return {
        "threads": (
            lambda: redis.lock.Lock(redis.Redis(port=port), name, **options),
            lambda: redispy.Lock(redis.Redis(port=port), name, **options),
        ),
        "asyncio": (
            lambda: redis.asyncio.lock.Lock(redis.asyncio.Redis(port=port), name, **options),
            lambda: redispy_aio.Lock(redis.asyncio.Redis(port=port), name, **options),
        ),
    }


async def do(call: Callable[..., Any], *args: Any, **options: Any) -> Any:
    result = call(*args, **options)
    return await result if asyncio.iscoroutine(result) else result


async def end(lock: Any) -> None:
    await do(getattr(lock.redis, "aclose", lock.redis.close))


# ---- exclusion ----


@pytest.mark.parametrize("second", FACES)
@pytest.mark.parametrize("first", FACES)
@pytest.mark.parametrize("ours_holds", [True, False], ids=["ours holds", "theirs holds"])
def test_they_exclude_each_other(
    ours_holds: bool, first: str, second: str, server: Server, look: Any, name: str
) -> None:
    async def play() -> None:
        holder = both(server, name, timeout=60)[first][ours_holds]()
        other = both(server, name, timeout=60)[second][not ours_holds]()
        assert await do(holder.acquire) is True
        token = look.get(name)
        assert await do(other.acquire, blocking=False) is False
        assert await do(other.locked) is True
        assert await do(other.owned) is False
        # Not even with a token of its own does it touch the other's lock.
        other.local.token = b"another"
        with pytest.raises(redis.exceptions.LockNotOwnedError):
            await do(other.extend, 1000)
        with pytest.raises(redis.exceptions.LockNotOwnedError):
            await do(other.reacquire)
        with pytest.raises(redis.exceptions.LockNotOwnedError):
            await do(other.release)
        assert look.get(name) == token
        assert 50_000 < look.pttl(name) <= 60_000
        assert await do(holder.release) is None
        assert await do(other.acquire, blocking=False) is True
        await do(other.release)
        await end(holder)
        await end(other)

    run_in_loop(asyncio.new_event_loop(), play())


@pytest.mark.parametrize("face", FACES)
def test_what_is_passed_on_is_released_by_the_other_library(
    face: str, server: Server, look: Any, name: str
) -> None:
    async def play() -> None:
        for ours in (True, False):
            first, second = (both(server, name, timeout=60)[face][whose]() for whose in (ours, not ours))
            await do(first.acquire)
            second.local.token = first.local.token
            assert await do(second.extend, 60) is True
            assert 110_000 < look.pttl(name) <= 120_000
            assert await do(second.release) is None
            assert look.get(name) is None
            await end(first)
            await end(second)

    run_in_loop(asyncio.new_event_loop(), play())


def test_a_waiter_is_woken_when_theirs_is_released(server: Server, py: redis.Redis, name: str) -> None:
    # Nothing but the server's word wakes it within the limit: neither the holder's time nor a look by itself.
    with redlatch.Client(recheck=20 * LIMIT) as client:
        theirs = py.lock(name, timeout=20 * LIMIT)
        assert theirs.acquire()
        ours, took = redispy.Lock(client, name, timeout=60), []
        thread = threading.Thread(target=lambda: took.append(ours.acquire()))
        thread.start()
        eventually(lambda: client.stats()["waiting"] == 1)
        eventually(lambda: is_asleep(py, client), "the waiter has asked and waits for the server")
        theirs.release()
        thread.join(LIMIT)
        assert took == [True]
        assert py.get(name)


async def test_a_task_is_woken_when_theirs_is_released(server: Server, py: redis.Redis, name: str) -> None:
    async with (
        aio.Client(recheck=20 * LIMIT) as client,
        redis.asyncio.Redis(port=server.port) as theirs_client,
    ):
        theirs = theirs_client.lock(name, timeout=20 * LIMIT)
        assert await theirs.acquire()
        ours = redispy_aio.Lock(client, name, timeout=60)
        waiter = asyncio.ensure_future(ours.acquire())
        await soon(lambda: client.stats()["waiting"] == 1 and is_asleep(py, client))
        await theirs.release()
        assert await asyncio.wait_for(waiter, LIMIT) is True
        await ours.release()


def is_asleep(py: redis.Redis, client: redlatch._base.BaseClient) -> bool:
    """The channel is subscribed and no command is on its way: two looks at the counters show the same."""
    before = client.stats()
    subscribed = any(int(row["sub"]) + int(row.get("ssub", 0)) for row in py.client_list())
    time.sleep(0.05)
    return subscribed and client.stats() == before


async def test_a_cancelled_acquire_leaves_nothing(server: Server, look: Any, name: str) -> None:
    look.set(name, "theirs", px=60_000)
    async with aio.Client() as client:
        lock = redispy_aio.Lock(client, name, timeout=60)
        waiter = asyncio.ensure_future(lock.acquire())
        await soon(lambda: client.stats()["waiting"] == 1)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        look.delete(name)
        assert await lock.acquire(blocking=False)
        await lock.release()
        assert lock.local.token is None and look.get(name) is None


# ---- without a time-out ----


def test_without_a_timeout_it_is_renewed(look: Any, name: str) -> None:
    with redlatch.Client(watchdog_lease=RENEWED) as client:
        lock = redispy.Lock(client, name)
        assert lock.acquire()
        wait_for_renewal(look, name)
        assert lock.owned()
        lock.release()
        assert look.get(name) is None


def test_a_thread_that_ends_is_not_renewed_any_more(look: Any, name: str) -> None:
    with redlatch.Client(watchdog_lease=0.5) as client:
        lock = redispy.Lock(client, name)
        thread = threading.Thread(target=lock.acquire)
        thread.start()
        thread.join()
        eventually(lambda: look.get(name) is None, "the lease ends")


def test_a_shared_token_outlives_its_thread(look: Any, name: str) -> None:
    with redlatch.Client(watchdog_lease=RENEWED) as client:
        lock = redispy.Lock(client, name, thread_local=False)
        thread = threading.Thread(target=lock.acquire)
        thread.start()
        thread.join()
        renewals = client.stats()["renewed"]
        eventually(lambda: client.stats()["renewed"] >= renewals + 2, "two renewals")
        assert lock.owned()
        lock.release()


PROGRAM = """
    import sys, redis
    from redlatch.compat import redispy
    lock = redispy.Lock(redis.Redis(port=int(sys.argv[1])), sys.argv[2], timeout=float(sys.argv[3]) or None)
    assert lock.acquire(blocking=False)
"""


def test_what_has_a_timeout_outlives_its_program(server: Server, look: Any, name: str) -> None:
    run(PROGRAM, str(server.port), name, "60")
    assert 50_000 < look.pttl(name) <= 60_000


def test_what_has_none_ends_with_its_program(server: Server, look: Any, name: str) -> None:
    run(PROGRAM, str(server.port), name, "0")
    assert look.get(name) is None


# ---- being told ----


def test_on_lost_is_called(look: Any, name: str) -> None:
    with redlatch.Client() as client:
        told: list[redlatch.LockLostError] = []
        lock = redispy.Lock(client, name, timeout=60, on_lost=told.append)
        lock.acquire()
        look.delete(name)
        eventually(lambda: told, "the loss is told")
        assert told[0].reason == "deleted"
        with pytest.raises(redis.exceptions.LockNotOwnedError) as caught:
            lock.release()
        assert isinstance(caught.value.__cause__, redlatch.LockLostError)


async def test_on_lost_is_called_in_the_event_loop(look: Any, name: str) -> None:
    async with aio.Client() as client:
        told: list[tuple[str | None, bool]] = []
        here = threading.get_ident()
        lock = redispy_aio.Lock(
            client, name, on_lost=lambda lost: told.append((lost.reason, threading.get_ident() == here))
        )
        await lock.acquire()
        look.delete(name)
        await soon(lambda: told, "the loss is told")
        assert told == [("deleted", True)]


def test_what_was_lost_can_be_silenced(look: Any, name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    with redlatch.Client() as client, redispy.Lock(client, name, timeout=60, raise_on_release_error=False):
        look.delete(name)
    assert "Lock was unlocked or no longer owned when exiting context manager." in caplog.messages


# ---- connecting ----


def test_locks_share_a_client(server: Server) -> None:
    first = redispy.Lock(redis.Redis(port=server.port), "a")
    same = redispy.Lock(redis.Redis(host="localhost", port=server.port, db=0, decode_responses=True), "b")
    elsewhere = redispy.Lock(redis.Redis(port=server.port, db=1), "a")
    assert first._client is same._client
    assert first._client is not elsewhere._client


def test_a_client_for_asyncio_is_refused_by_the_lock_for_threads() -> None:
    with pytest.raises(TypeError):
        redispy.Lock(aio.Client("redis://localhost"), "a")  # type: ignore[arg-type]


def test_a_client_of_fakeredis_is_refused_with_what_to_use() -> None:
    # As fakeredis has it: a connection of its own, and for a host a word that nobody resolves.
    fake = type("FakeRedisConnection", (redis.Connection,), {"__module__": "fakeredis._clients._sync"})
    client = redis.Redis(connection_pool=redis.ConnectionPool(connection_class=fake, host="51d3622f469f4a9b"))
    with pytest.raises(
        redlatch.InvalidArgumentError,
        match=r"this redis\.client\.Redis has no server.*redlatch\.testing\.Server",
    ):
        redispy.Lock(client, "a")


def test_a_password_and_a_socket() -> None:
    with Server("", "--requirepass", "p@ss word") as server:
        for options in ({"port": server.port}, {"unix_socket_path": str(server.unix_socket)}):
            with redis.Redis(**options, password="p@ss word", db=1) as client:
                with redispy.Lock(client, "a", timeout=60):
                    assert client.exists("a")
                assert not client.exists("a")
            lock = redispy.Lock(redis.Redis(**options, password="wrong"), "a")
            with pytest.raises(redis.exceptions.AuthenticationError):
                lock.acquire()


def test_a_server_that_is_gone(own_server: Server) -> None:
    client = redis.Redis(port=own_server.port, retry=Retry(NoBackoff(), 0))
    theirs, ours = (make(client, "a", timeout=60) for make in (redis.lock.Lock, redispy.Lock))
    assert ours.acquire()
    own_server.kill()
    with pytest.raises(redis.exceptions.ConnectionError):
        theirs.acquire()
    with pytest.raises(redis.exceptions.ConnectionError):
        ours.owned()
    with pytest.raises(redis.exceptions.ConnectionError):
        ours.release()
    assert ours.local.token is not None
    own_server.start()
    # The server came back empty, and says so to whoever tries again.
    with pytest.raises(redis.exceptions.LockNotOwnedError):
        ours.release()
    assert ours.local.token is None
    client.close()


def test_a_lock_made_before_a_fork_works_in_the_child(server: Server, look: Any, name: str) -> None:
    run(
        """
        import os, sys, redis
        from redlatch.compat import redispy
        lock = redispy.Lock(redis.Redis(port=int(sys.argv[1])), sys.argv[2], timeout=60)
        with lock:
            pass
        child = os.fork()
        with lock:
            assert lock.owned()
        if child:
            assert os.waitpid(child, 0)[1] == 0
        """,
        str(server.port),
        name,
    )
    assert look.get(name) is None


def test_a_child_can_release_what_it_is_given(server: Server, look: Any, name: str) -> None:
    run(
        """
        import os, sys, redis
        from redlatch.compat import redispy
        make = lambda: redispy.Lock(redis.Redis(port=int(sys.argv[1])), sys.argv[2], timeout=60)
        lock = make()
        assert lock.acquire()
        child = os.fork()
        if child == 0:
            its = make()
            its.local.token = lock.local.token
            its.release()
        else:
            assert os.waitpid(child, 0)[1] == 0
        """,
        str(server.port),
        name,
    )
    assert look.get(name) is None


# ---- one import ----


def test_a_client_makes_these_locks(server: Server, look: Any, name: str) -> None:
    with redispy.Redis(port=server.port) as client:
        assert isinstance(client, redis.Redis)
        with client.lock(name, timeout=60, thread_local=False) as lock:
            assert isinstance(lock, redispy.Lock) and lock.thread_local is False
            assert lock.owned()
        assert isinstance(client.lock(name, lock_class=redis.lock.Lock), redis.lock.Lock)
    with redis.Redis(port=server.port) as client:
        assert isinstance(client.lock(name, lock_class=redispy.Lock), redispy.Lock)


async def test_an_asyncio_client_makes_these_locks(server: Server, look: Any, name: str) -> None:
    async with redispy_aio.Redis.from_url(server.url) as client:
        assert isinstance(client, redis.asyncio.Redis)
        async with client.lock(name, timeout=60) as lock:
            assert isinstance(lock, redispy_aio.Lock)
            assert await lock.owned()
    async with redis.asyncio.Redis(port=server.port) as client:
        assert isinstance(client.lock(name, lock_class=redispy_aio.Lock), redispy_aio.Lock)


def test_redispy_is_not_needed(server: Server) -> None:
    run(
        """
        import sys
        sys.modules["redis"] = None
        import redlatch, redlatch.compat.redispy.aio
        from redlatch.compat import redispy
        with redlatch.Client() as client:
            lock = redispy.Lock(client, "alone", timeout=60)
            with lock:
                assert lock.owned()
            try:
                lock.release()
            except redispy.LockError as error:
                assert isinstance(error, redlatch.LockError) and isinstance(error, ValueError)
                assert error.lock_name == "alone"
            lock.local.token = b"another"
            try:
                lock.release()
            except redispy.LockNotOwnedError:
                print("fine")
        """
    )


def test_redlatch_does_not_import_redispy() -> None:
    command = script("import sys, redlatch, redlatch.aio; sys.exit('redis' in sys.modules)")
    assert subprocess.run(command).returncode == 0


@pytest.mark.timeout(600)  # it runs two suites
def test_an_older_redispy_shows_the_same() -> None:
    """Once more with the oldest version that still matters, if scripts/setup could install it."""
    older = Path(__file__).parents[2] / ".tools" / "redis-py-oldest"
    if not older.is_dir():
        pytest.skip("the oldest redis-py is not installed")
    path = os.pathsep.join([str(older), *filter(None, [os.environ.get("PYTHONPATH")])])
    tests = [str(Path(__file__).with_name("test_redispy.py")), __file__]
    only = ["-k", "not older and not page", "-p", "no:cacheprovider", "-q"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *only, *tests],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
