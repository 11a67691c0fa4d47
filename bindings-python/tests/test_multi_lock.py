"""The multi lock, for threads and for asyncio."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
import redlatch
from conftest import LIMIT, eventually, soon
from redlatch import aio


@pytest.fixture
def other() -> Iterator[redlatch.Client]:
    with redlatch.Client() as other:
        yield other


def test_it_has_all_of_its_names_or_none(
    client: redlatch.Client, other: redlatch.Client, name: str, look: redis.Redis
) -> None:
    a, b, c = (f"{name}:{letter}" for letter in "abc")
    both = client.multi_lock([c, a, b])
    assert (both.names, both.name) == ((a, b, c), f"{a}, {b}, {c}")
    with both as grant:
        assert grant.held and both.owned() and both.hold_count == 1
        assert [part.name for part in grant.parts] == [a, b, c]
        assert [look.hgetall(part.name) for part in grant.parts] == [
            {part.owner: "1"} for part in grant.parts
        ]
        assert not other.lock(b).acquire(False)
        assert not other.multi_lock([b]).acquire(False)
    assert look.keys(f"{name}*") == []
    with other.lock(b):
        assert not both.acquire(False) and not both.owned()
        eventually(lambda: look.keys(f"{name}*") == [b], "what it got is given back")
    assert both.acquire() and both.remaining > 0
    both.extend(1000)
    assert min(look.pttl(each) for each in (a, b, c)) > 500_000
    both.release()
    assert look.keys(f"{name}*") == []
    with pytest.raises(redlatch.NotOwnerError):
        both.release()


def test_names_in_any_order_never_wait_for_each_other(
    client: redlatch.Client, other: redlatch.Client, name: str, look: redis.Redis
) -> None:
    accounts = {f"{name}:{number}": 100 for number in range(3)}

    def transfer(of: redlatch.Client, source: str, target: str) -> None:
        for _ in range(20):
            with of.multi_lock([source, target], timeout=LIMIT):
                taken, given = accounts[source] - 1, accounts[target] + 1
                accounts[source], accounts[target] = taken, given

    one, two, three = accounts
    pairs = [(one, two), (two, one), (two, three), (three, one), (one, three), (three, two)]
    with ThreadPoolExecutor(2 * len(pairs)) as pool:
        jobs = [pool.submit(transfer, of, *pair) for of in (client, other) for pair in pairs]
        for job in jobs:
            job.result(LIMIT)
    assert set(accounts.values()) == {100}
    eventually(lambda: look.keys(f"{name}*") == [], "nothing is left")


def test_the_loss_of_one_is_the_loss_of_the_whole(
    client: redlatch.Client, name: str, look: redis.Redis
) -> None:
    a, b = f"{name}:a", f"{name}:b"
    told: list[redlatch.LockLostError] = []
    lost = threading.Event()

    def on_lost(error: redlatch.LockLostError) -> None:
        told.append(error)
        lost.set()

    text = f'multi lock "{a}, {b}": "{b}": '
    both = client.multi_lock([a, b], on_lost=on_lost)
    with pytest.raises(redlatch.LockLostError, match=text), both as grant:
        look.delete(b)
        assert lost.wait(LIMIT)
        assert not grant.held and grant.lost_reason == "deleted"
        assert look.exists(a), "its body may still be at work"
    assert len(told) == 1
    eventually(lambda: look.keys(f"{name}*") == [], "nothing is left")


def test_a_key_that_has_lost_it_releases_it_first(
    client: redlatch.Client, name: str, look: redis.Redis
) -> None:
    both = client.multi_lock([f"{name}:a", f"{name}:b"])
    assert both.acquire()
    look.delete(f"{name}:b")
    eventually(lambda: not both.owned(), "the loss is told")
    with pytest.raises(redlatch.LockLostError, match="released first"):
        both.acquire()
    with pytest.raises(redlatch.LockLostError):
        both.release()
    with both:
        pass
    # A lease that was left to run out need not be released.
    for _ in range(2):
        assert both.acquire(lease=0.2)
        eventually(lambda: not both.owned(), "the lease ends")


def test_a_server_that_cannot_be_reached_is_told(name: str) -> None:
    with redlatch.Client("redis://127.0.0.1:1") as client, pytest.raises(redlatch.UnavailableError):
        client.multi_lock([f"{name}:a", f"{name}:b"]).acquire()


def test_its_locks_may_be_of_any_kind(
    client: redlatch.Client, other: redlatch.Client, name: str, look: redis.Redis
) -> None:
    prices = client.rw_lock(f"{name}:prices")
    order = client.lock(f"{name}:order", fencing=True)
    seats = client.semaphore(f"{name}:seats", limit=2)
    with client.multi_lock([prices.read, order, seats, f"{name}:simple"], kind="simple") as grant:
        there = other.rw_lock(prices.name)
        assert not there.write.acquire(False)
        assert there.read.acquire(False)
        there.read.release()
        assert look.type(f"{name}:simple") == "string"
        assert seats.permits().available == 1
        tokens = {part.name: part.fencing_token for part in grant.parts}
        assert [key for key, token in tokens.items() if token] == [order.name]
    assert seats.permits().available == 2


@pytest.mark.parametrize("reentrant", [False, True])
def test_its_thread_enters_it_again_if_it_may(
    client: redlatch.Client, name: str, look: redis.Redis, reentrant: bool
) -> None:
    both = client.multi_lock([f"{name}:a", f"{name}:b"], reentrant=reentrant)
    with both:
        assert both.acquire(False) is reentrant
        if reentrant:
            assert both.hold_count == 2
            both.release()
        assert both.owned()
    assert look.keys(f"{name}*") == []


def test_a_function_is_decorated_with_several_names(
    client: redlatch.Client, name: str, look: redis.Redis
) -> None:
    @client.locked(name + ":{source}", name + ":{target}", watchdog_lease=60, timeout=LIMIT)
    def transfer(source: int, target: int) -> list[Any]:
        return sorted(look.keys(f"{name}*"))

    assert transfer(7, 3) == [f"{name}:3", f"{name}:7"]
    assert look.keys(f"{name}*") == []
    with pytest.raises(redlatch.InvalidArgumentError, match="twice"):
        transfer(3, 3)
    with pytest.raises(redlatch.InvalidArgumentError, match="twice"):
        client.locked("a", name, "a")(transfer)
    with pytest.raises(redlatch.InvalidArgumentError, match="timeot"):
        client.locked("a", "b", timeot=1)(transfer)  # type: ignore[call-arg]


async def test_tasks_take_several_names(name: str, look: redis.Redis) -> None:
    a, b = f"{name}:a", f"{name}:b"
    async with aio.Client() as client, aio.Client() as other:
        inside: list[str] = []

        async def work(of: aio.Client, *names: str) -> None:
            for _ in range(10):
                async with of.multi_lock(names, timeout=LIMIT) as grant:
                    assert grant.held and inside == []
                    inside.append(of.multi_lock(names).name)
                    await asyncio.sleep(0)
                    inside.clear()

        await asyncio.gather(*(work(of, *names) for of in (client, other) for names in ((a, b), (b, a))))
        both = client.multi_lock([a, b])
        async with other.lock(b):
            assert not await both.acquire(False)
            waiter = asyncio.create_task(both.acquire())
            await soon(lambda: client.stats()["waiting"] == 1)
            waiter.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiter
            await soon(lambda: look.keys(f"{name}*") == [b])

        @client.locked(name + ":{one}", name + ":{two}")
        async def keys(one: str, two: str) -> list[Any]:
            return sorted(look.keys(f"{name}*"))

        assert await keys("b", "a") == [a, b]
        with pytest.raises(redlatch.LockLostError):
            async with client.multi_lock([a, b], cancel_on_lost=True):
                look.delete(a)
                await asyncio.sleep(LIMIT)
        await soon(lambda: look.keys(f"{name}*") == [])


@pytest.mark.parametrize(
    ("locks", "error", "remedy"),
    [
        ([], ValueError, "at least one"),
        (["a", "b", "a"], ValueError, "twice; give it each name once"),
        ("ab", ValueError, "one name; give a list"),
        (None, TypeError, "locks is None; give a list"),
        ([7], TypeError, "7 is no lock; give names"),
        ([""], ValueError, "1 to 1,024 bytes"),
    ],
)
def test_what_it_cannot_be_is_refused(
    client: redlatch.Client, locks: Any, error: type[Exception], remedy: str
) -> None:
    with pytest.raises(error, match=remedy):
        client.multi_lock(locks)


def test_what_its_locks_cannot_be_is_refused(client: redlatch.Client, other: redlatch.Client) -> None:
    with pytest.raises(redlatch.InvalidArgumentError, match="another client"):
        client.multi_lock([other.lock("a")])
    prices = client.rw_lock("a")
    with pytest.raises(redlatch.InvalidArgumentError, match="twice"):
        client.multi_lock([prices.read, prices.write])
    with pytest.raises(TypeError, match=r"\.read or \.write"):
        client.multi_lock([prices])  # type: ignore[list-item]
    with pytest.raises(redlatch.InvalidArgumentError, match="lease is given, but no name"):
        client.multi_lock([client.lock("a")], lease=5)
    both = client.multi_lock(["a", "b"])
    for ask in (both.locked, both.holder, both.holders, both.waiters, both.force_release):
        with pytest.raises(redlatch.InvalidArgumentError, match="ask each of its locks"):
            ask()
