"""The lock of a quorum: servers that know nothing of each other, of which most are enough."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import redlatch
from conftest import LIMIT, RENEWED, eventually, soon
from redlatch import aio
from server import Quorum


@pytest.fixture
def quorum() -> Iterator[Quorum]:
    with Quorum() as quorum:
        yield quorum


def client_of(quorum: Quorum) -> redlatch.Client:
    """A client for which servers that were started now have lost nothing."""
    return redlatch.Client(quorum.url, restart_delay=0)


def test_a_block_has_it_on_all_servers_and_excludes_others(quorum: Quorum, name: str) -> None:
    with client_of(quorum) as client, client_of(quorum) as other:
        theirs = other.lock(name)
        with ThreadPoolExecutor(1) as pool:  # its thread is the owner
            with client.lock(name) as grant:
                assert grant.held and grant.remaining > 0 and quorum.having(name) == 3
                assert not theirs.acquire(False)
                waiter = pool.submit(theirs.acquire)
                eventually(lambda: other.stats()["waiting"] == 1)
            assert waiter.result(LIMIT)
            assert quorum.having(name) >= 2
            pool.submit(theirs.release).result(LIMIT)
        eventually(lambda: quorum.having(name) == 0, "nothing is left")


def test_it_stands_the_death_of_one_server_and_not_of_two(quorum: Quorum, name: str) -> None:
    lost = threading.Event()
    with client_of(quorum) as client, client_of(quorum) as other:
        lock = client.lock(name, watchdog_lease=RENEWED, on_lost=lambda _: lost.set())
        with pytest.raises(redlatch.LockLostError, match=name), lock as grant:
            before = client.stats()["renewed"]
            quorum.data[0].kill()
            # Twice each of the two that are left: longer than the time of one renewal.
            eventually(lambda: client.stats()["renewed"] >= before + 4, "it is renewed")
            assert grant.held and not lost.is_set()
            assert not other.lock(name).acquire(False)
            with other.lock(f"{name}:second", timeout=LIMIT):
                assert quorum.having(f"{name}:second") == 2
            quorum.data[1].kill()
            assert lost.wait(LIMIT)
            assert not grant.held and grant.lost_reason in ("unreachable", "expired")


async def test_tasks_stand_the_death_of_one_server_and_not_of_two(quorum: Quorum, name: str) -> None:
    async with (
        aio.Client(quorum.url, restart_delay=0) as client,
        aio.Client(quorum.url, restart_delay=0) as other,
    ):
        with pytest.raises(redlatch.LockLostError, match=name):
            async with client.lock(name, watchdog_lease=RENEWED, cancel_on_lost=True) as grant:
                assert quorum.having(name) == 3
                assert not await other.lock(name).acquire(False)
                waiter = asyncio.create_task(other.lock(name).acquire())
                await soon(lambda: other.stats()["waiting"] == 1)
                waiter.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiter
                before = client.stats()["renewed"]
                quorum.data[0].kill()
                await soon(lambda: client.stats()["renewed"] >= before + 4, "it is renewed")
                assert grant.held
                quorum.data[1].kill()
                await asyncio.sleep(LIMIT)  # ended by the loss


def test_a_release_does_not_wait_for_a_server_that_is_down(quorum: Quorum, name: str) -> None:
    with (
        redlatch.Client(quorum.url, restart_delay=0, outage=2 * LIMIT, close_limit=0) as client,
        ThreadPoolExecutor(1) as pool,  # its thread is the owner
    ):
        lock = client.lock(name, watchdog_lease=10 * LIMIT)
        assert pool.submit(lock.acquire).result(LIMIT)
        quorum.data[0].kill()
        pool.submit(lock.release).result(LIMIT)
        assert quorum.having(name) == 0


def test_clients_that_name_the_servers_in_another_order_do_not_wait_in_a_circle(
    quorum: Quorum, name: str
) -> None:
    backwards = f"redis+quorum://{','.join(node.address for node in reversed(quorum.data))}"
    with (
        client_of(quorum) as client,
        redlatch.Client(backwards, restart_delay=0) as other,
        ThreadPoolExecutor(2) as pool,
    ):
        for of in (client, other):
            of.connect()
        # Each needs both that are left. In two orders each could have one, and wait for the other one.
        quorum.data[1].kill()

        def turns(of: redlatch.Client) -> None:
            for _ in range(30):
                with of.lock(name, timeout=LIMIT) as grant:
                    assert grant.held

        for each in [pool.submit(turns, of) for of in (client, other)]:
            each.result(3 * LIMIT)


def test_a_server_that_was_just_started_has_no_vote(quorum: Quorum, name: str) -> None:
    with (
        redlatch.Client(quorum.url, restart_delay=3600) as client,
        pytest.raises(redlatch.UnavailableError, match=r"was started .* restart_delay"),
    ):
        client.lock(name).acquire()


def test_what_a_quorum_has_not_is_refused(quorum: Quorum, name: str) -> None:
    with client_of(quorum) as client:
        for make in (
            lambda: client.lock(name, fencing=True),
            lambda: client.lock(name, kind="fair"),
            lambda: client.rw_lock(name),
            lambda: client.semaphore(name, limit=2),
            lambda: client.latch(name),
            lambda: client.multi_lock(["a", "b"]),
            lambda: client.lock(name).locked(),
            lambda: client.lock(name).force_release(),
        ):
            with pytest.raises(redlatch.InvalidArgumentError, match="quorum"):
                make()
    for url in ("a,b", "a,b,c,d", "a,b,a"):
        with pytest.raises(redlatch.InvalidArgumentError, match=r"quorum|twice"):
            redlatch.Client(f"redis+quorum://{url}")
