"""The read-write lock, for threads and for asyncio."""

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


def in_thread(function: Any, *args: Any) -> Any:
    """The value or exception of the function in a thread that ends then."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *args).result(LIMIT)


def test_readers_are_beside_each_other_and_a_writer_is_alone(
    client: redlatch.Client, other: redlatch.Client, name: str, look: redis.Redis
) -> None:
    here, there = client.rw_lock(name), other.rw_lock(name)
    with here.read as mine, there.read as yours:
        assert look.hgetall(name) == {"mode": "read", mine.owner: "1", yours.owner: "1"}
        assert look.pttl(f"{{{name}}}:{mine.owner}:rwlock_timeout:1") > 0
        holders = here.read.holders()
        assert {holder.owner for holder in holders} == {mine.owner, yours.owner}
        assert all(holder.remaining is not None and holder.remaining > 0 for holder in holders)
        assert here.read.locked() and not here.write.locked() and here.write.holders() == []
        assert in_thread(here.write.acquire, False) is False
    assert look.keys(f"*{name}*") == []
    with here.write as grant:
        assert look.hgetall(name) == {"mode": "write", grant.owner: "1"}
        holder = there.write.holder()
        assert holder is not None and holder.owner == grant.owner and here.read.holders() == []
        assert not there.read.acquire(False) and not there.write.acquire(False)
    assert look.keys(f"*{name}*") == []


def test_the_last_reader_lets_the_writer_in_and_the_writer_all_readers(
    client: redlatch.Client, other: redlatch.Client, name: str
) -> None:
    # No wait ends by a recheck: wake-ups have to come.
    with redlatch.Client(recheck=3600) as patient:
        here, there = client.rw_lock(name), patient.rw_lock(name)
        inside, everybody_is_in = threading.Semaphore(0), threading.Barrier(4)

        def write() -> None:
            with there.write:
                inside.release()

        def read() -> None:
            with there.read:
                everybody_is_in.wait(LIMIT)

        with ThreadPoolExecutor(5) as pool:
            with here.read:
                writer = pool.submit(write)
                eventually(lambda: patient.stats()["waiting"] == 1, "the writer waits")
            writer.result(LIMIT)
            assert inside.acquire(timeout=LIMIT)
            with here.write:
                readers = [pool.submit(read) for _ in range(4)]
                eventually(lambda: patient.stats()["waiting"] == 4, "the readers wait")
            for reader in readers:
                reader.result(LIMIT)


def test_readers_let_a_writer_before_them_go_first(client: redlatch.Client, name: str) -> None:
    lock, order = client.rw_lock(name), []

    def write() -> None:
        with lock.write:
            order.append("write")

    def read() -> None:
        with lock.read:
            order.append("read")

    with ThreadPoolExecutor(2) as pool:
        with lock.read:
            writer = pool.submit(write)
            eventually(lambda: client.stats()["waiting"] == 1, "the writer waits")
            reader = pool.submit(read)
            eventually(lambda: client.stats()["waiting"] == 2, "the reader waits behind it")
        writer.result(LIMIT), reader.result(LIMIT)
    assert order == ["write", "read"]


def test_a_writer_may_read_and_keep_reading(
    client: redlatch.Client, other: redlatch.Client, name: str, look: redis.Redis
) -> None:
    lock, there = client.rw_lock(name), other.rw_lock(name)
    assert lock.write.acquire()
    assert lock.read.acquire(False)
    assert lock.write.owned() and lock.read.owned()
    assert look.hget(name, "mode") == "write" and not there.read.acquire(False)
    lock.write.release()
    assert not lock.write.owned() and lock.read.owned() and look.hget(name, "mode") == "read"
    assert there.read.acquire(False)
    there.read.release()
    assert not there.write.acquire(False)
    lock.read.release()
    assert not look.exists(name)


def test_a_reader_that_asks_to_write_is_refused(client: redlatch.Client, name: str) -> None:
    lock = client.rw_lock(name)
    with lock.read as grant:
        for wait in (0, 5, -1):
            with pytest.raises(redlatch.WouldDeadlockError, match="release the read lock first") as caught:
                lock.write.acquire(timeout=wait) if wait else lock.write.acquire(False)
            assert caught.value.lock_name == name and isinstance(caught.value, RuntimeError)
        assert grant.held and lock.read.acquire(False)
        assert lock.read.hold_count == 2
        lock.read.release()
    with lock.write:
        pass


def test_every_reader_hears_of_a_loss(client: redlatch.Client, other: redlatch.Client, name: str) -> None:
    lost: list[redlatch.LockLostError] = []
    here = client.rw_lock(name, watchdog_lease=2, on_lost=lost.append)
    there = other.rw_lock(name, watchdog_lease=2, on_lost=lost.append)
    assert here.read.acquire() and in_thread(there.read.acquire) is True
    with redlatch.Client() as third:
        assert not third.rw_lock(name).write.force_release()
        assert third.rw_lock(name).read.force_release()
    eventually(lambda: len(lost) == 2, "both hear of it")
    assert {error.reason for error in lost} <= {"deleted", "expired"}
    with pytest.raises(redlatch.LockLostError):
        here.read.release()


def test_a_dead_reader_keeps_no_writer_out_for_longer_than_its_lease(
    client: redlatch.Client, other: redlatch.Client, name: str, look: redis.Redis
) -> None:
    dead = client.rw_lock(name, lease=0.5)
    assert dead.read.acquire()
    with other.rw_lock(name, watchdog_lease=1).read:
        eventually(lambda: not dead.read.owned(), "the lease of the first reader ends")
        eventually(lambda: len(look.keys(f"*{name}*rwlock_timeout*")) == 1, "only the other one is left")
    # Readers that come and go do not prolong the time of the dead one.
    done = threading.Event()

    def read() -> None:
        while not done.wait(0.05):
            with client.rw_lock(name, watchdog_lease=1).read:
                pass

    with ThreadPoolExecutor(1) as pool:
        readers = pool.submit(read)
        try:
            assert other.rw_lock(name).write.acquire(timeout=LIMIT)
        finally:
            done.set()
            other.rw_lock(name).write.release()
        readers.result()


def test_only_the_writer_draws_fencing_tokens(name: str) -> None:
    with redlatch.Client(fencing=True) as client:
        lock = client.rw_lock(name)
        with lock.read as reader:
            assert reader.fencing_token is None
        with lock.write as writer, lock.read as reader:
            assert writer.fencing_token and reader.fencing_token is None
        with pytest.raises(redlatch.InvalidArgumentError, match="draws no token"):
            client.lock(name, kind="read", fencing=True)
        with pytest.raises(redlatch.InvalidArgumentError, match="kind is 'simple'; leave it out"):
            client.rw_lock(name, kind="simple")


def test_another_kind_on_the_name_is_refused(client: redlatch.Client, name: str) -> None:
    with client.lock(name):
        for side in (client.rw_lock(name).read, client.rw_lock(name).write):
            with pytest.raises(redlatch.ForeignKindError, match="not a read-write lock"):
                side.acquire(False)
    with client.rw_lock(name).read, pytest.raises(redlatch.ForeignKindError, match="a read-write lock"):
        client.lock(name).acquire(False)


async def test_tasks_read_together(name: str, look: redis.Redis) -> None:
    async with aio.Client() as client:
        lock, together = client.rw_lock(name), asyncio.Event()
        inside = 0

        async def read() -> None:
            nonlocal inside
            async with lock.read:
                inside += 1
                if inside == 50:
                    together.set()
                await together.wait()

        await asyncio.wait_for(asyncio.gather(*(read() for _ in range(50))), LIMIT)
        assert not look.keys(f"*{name}*")


async def test_a_task_downgrades_and_is_refused_an_upgrade(name: str, look: redis.Redis) -> None:
    async with aio.Client() as client:
        lock = client.rw_lock(name)
        await lock.write.acquire()
        async with lock.read:
            await lock.write.release()
            assert look.hget(name, "mode") == "read"
            with pytest.raises(redlatch.WouldDeadlockError):
                await lock.write.acquire()
        assert not await lock.read.holders() and await lock.write.holder() is None


async def test_cancelled_readers_leave_nothing(name: str, look: redis.Redis) -> None:
    async with aio.Client() as client, aio.Client() as other:
        writer, lock = other.rw_lock(name).write, client.rw_lock(name)

        async def read() -> bool:
            return await lock.read.acquire()

        await writer.acquire()
        tasks = [asyncio.create_task(read()) for _ in range(10)]
        await soon(lambda: client.stats()["waiting"] == 10)
        for task in tasks[::2]:
            task.cancel()
        await writer.release()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert [result is True for result in done] == [False, True] * 5
        await soon(lambda: look.hlen(name) == 6)
        assert len(look.keys(f"*{name}*rwlock_timeout*")) == 5
    assert not look.keys(f"*{name}*")


def test_new_readers_stand_back_for_a_writer_of_another_client(
    client: redlatch.Client, other: redlatch.Client, name: str, look: redis.Redis
) -> None:
    here = client.rw_lock(name, writer_preference=60)
    there = other.rw_lock(name, writer_preference=60)
    mark = f"{{{name}}}:redlatch:writer"

    def read_once(lock: redlatch.RwLock) -> bool:
        got = lock.read.acquire(False)
        if got:
            lock.read.release()
        return got

    with ThreadPoolExecutor(1) as pool:
        with here.read:
            writing = pool.submit(there.write.acquire)
            eventually(lambda: look.exists(mark) == 1, "the writer waits")
            assert in_thread(here.read.acquire, False) is False
            # The same flow reads already, and programs without the option read as before.
            assert here.read.acquire(False)
            here.read.release()
            assert in_thread(read_once, client.rw_lock(name)) is True
        assert writing.result(LIMIT) is True
        assert look.exists(mark) == 0
        pool.submit(there.write.release).result(LIMIT)
    with here.read:
        pass
    with pytest.raises(
        redlatch.InvalidArgumentError, match="writer_preference is 1s, but a lock of the kind reentrant"
    ):
        client.lock(name, writer_preference=1)


async def test_a_writer_of_asyncio_that_is_cancelled_lets_readers_in(name: str, look: redis.Redis) -> None:
    mark = f"{{{name}}}:redlatch:writer"
    async with aio.Client() as client, aio.Client() as other, aio.Client() as third:
        first, there, here = (one.rw_lock(name, writer_preference=60) for one in (client, other, third))
        async with first.read:
            writing = asyncio.create_task(there.write.acquire())
            await soon(lambda: look.exists(mark) == 1, "the writer waits")
            # The server refuses a reader, not only its client.
            assert not await here.read.acquire(blocking=False)
            reading = asyncio.create_task(here.read.acquire())
            await soon(lambda: third.stats()["waiting"] == 1, "the reader waits")
            writing.cancel()
            assert await asyncio.wait_for(reading, LIMIT)
        assert look.exists(mark) == 0
