"""The semaphore, for threads and for asyncio."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack
from typing import Any

import pytest
import redis
import redlatch
from conftest import LIMIT, eventually, soon
from redlatch import aio
from test_flows import LOOKS, lock_tests, python_tests, run_case


@pytest.fixture
def other() -> Iterator[redlatch.Client]:
    with redlatch.Client() as other:
        yield other


def counts(look: redis.Redis, name: str) -> tuple[int, int]:
    """How many permits are free and taken, by Redis' record."""
    return int(look.get(name) or 0), look.zcard(f"{{{name}}}:timeout")


class Inside:
    """How many are inside, at most."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self._own = threading.Lock()

    def __enter__(self) -> None:
        with self._own:
            self.now += 1
            self.most = max(self.most, self.now)

    def __exit__(self, *_: object) -> None:
        with self._own:
            self.now -= 1


def test_threads_of_two_clients_are_never_more_than_the_limit(
    client: redlatch.Client, other: redlatch.Client, name: str, look: redis.Redis
) -> None:
    inside = Inside()

    def work(semaphore: redlatch.Semaphore) -> None:
        for _ in range(10):
            with semaphore, inside:
                pass

    with ThreadPoolExecutor(20) as pool:
        both = [client.semaphore(name, limit=3), other.semaphore(name, limit=3)]
        for done in [pool.submit(work, both[at % 2]) for at in range(20)]:
            done.result(LIMIT)
    assert 1 <= inside.most <= 3
    assert counts(look, name) == (3, 0)


def test_a_permit_is_seen_and_given_back(
    client: redlatch.Client, other: redlatch.Client, name: str, look: redis.Redis
) -> None:
    semaphore, same = client.semaphore(name, limit=2), other.semaphore(name)
    assert same.permits() == redlatch.Permits(available=0, limit=0)
    with semaphore as grant:
        grant.check()
        assert grant.held and grant.remaining > 0 and grant.hold_count == 1
        assert same.permits() == redlatch.Permits(available=1, limit=2)
        (holder,) = same.holders()
        assert holder.owner == grant.owner and holder.count == 1
        assert holder.process is not None and holder.process.language == "python"
        with semaphore, pytest.raises(redlatch.LockTimeoutError), client.semaphore(name, timeout=0):
            pytest.fail("the body ran")
        grant.release()
        assert counts(look, name) == (2, 0)
    with ExitStack() as stack:
        stack.enter_context(semaphore)
        stack.enter_context(semaphore)
        assert not same.acquire(False)
    assert counts(look, name) == (2, 0)


def test_what_acquire_took_any_thread_gives_back(
    client: redlatch.Client, name: str, look: redis.Redis
) -> None:
    semaphore = client.semaphore(name, limit=5)
    assert semaphore.acquire() and semaphore.acquire(permits=3)
    assert counts(look, name) == (1, 4)
    with pytest.raises(redlatch.NotOwnerError, match="took more at once"):
        semaphore.release()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(semaphore.release, 3).result(LIMIT)
        pool.submit(semaphore.release).result(LIMIT)
    assert counts(look, name) == (5, 0)
    with pytest.raises(redlatch.NotOwnerError, match="took no permits"):
        semaphore.release()
    with pytest.raises(ValueError):
        semaphore.release(0)


def test_a_release_of_several_gives_all_back_also_when_one_is_lost(
    client: redlatch.Client, name: str, look: redis.Redis
) -> None:
    semaphore = client.semaphore(name, limit=3, watchdog_lease=0.9)
    lost = threading.Event()
    watched = client.semaphore(name, limit=3, watchdog_lease=0.9, on_lost=lambda _: lost.set())
    assert watched.acquire(permits=2)
    assert watched.force_release() and not watched.force_release()
    assert lost.wait(LIMIT)
    assert semaphore.acquire() and watched.acquire()
    with pytest.raises(redlatch.LockLostError):
        watched.release(3)
    assert counts(look, name) == (2, 1)
    semaphore.release()
    assert counts(look, name) == (3, 0)


def test_a_canceller_ends_a_wait(client: redlatch.Client, name: str, look: redis.Redis) -> None:
    semaphore, canceller = client.semaphore(name, limit=1), redlatch.Canceller()
    with semaphore, ThreadPoolExecutor(1) as pool:
        waits = pool.submit(semaphore.acquire, canceller=canceller)
        eventually(lambda: client.stats()["waiting"] == 1)
        canceller.cancel()
        with pytest.raises(redlatch.LockCancelledError):
            waits.result(LIMIT)
    assert counts(look, name) == (1, 0)


def test_the_limit_can_change(client: redlatch.Client, name: str) -> None:
    semaphore = client.semaphore(name, limit=1)
    with semaphore, ThreadPoolExecutor(1) as pool:
        waits = pool.submit(semaphore.acquire)
        eventually(lambda: client.stats()["waiting"] == 1)
        assert semaphore.set_permits(2) == redlatch.Permits(available=1, limit=2)
        assert waits.result(LIMIT)
        assert semaphore.set_permits(0) == redlatch.Permits(available=-2, limit=0)
    semaphore.release()
    assert not semaphore.acquire(False)


def test_the_clients_defaults_for_locks_do_not_count(name: str) -> None:
    with redlatch.Client(fencing=True, reentrant=True) as client:
        semaphore = client.semaphore(name, limit=1)
        with semaphore:
            assert not semaphore.acquire(False)
        with pytest.raises(redlatch.InvalidArgumentError, match="reentrant is true"):
            client.semaphore(name, reentrant=True)


def test_wrong_use_is_refused(client: redlatch.Client, name: str) -> None:
    semaphore = client.semaphore(name, limit=2)
    wrong: list[tuple[Callable[[], Any], str]] = [
        (lambda: client.lock(name, kind="semaphore"), r"client\.semaphore"),
        (lambda: client.semaphore(name, kind="write"), "leave it out"),
        (lambda: client.semaphore(name, fencing=True), "leave it out"),
        (lambda: client.semaphore(name, limit=-1), "limit is -1"),
        (lambda: client.lock(name, limit=2), "use a semaphore"),
        (lambda: client.lock(name, fair=True), "give a lock the kind fair"),
        (lambda: client.semaphore(name, fair=2), "fair is 2"),
        (lambda: semaphore.acquire(permits=0), "permits is 0"),
        (lambda: semaphore.acquire(permits=3), "limit of at least 3"),
        (lambda: semaphore.acquire(permits=1.5), "permits is 1.5"),  # type: ignore[arg-type]
        (lambda: semaphore.set_permits(2**31), "limit is 2147483648"),
    ]
    for use, text in wrong:
        with pytest.raises(redlatch.InvalidArgumentError, match=text):
            use()
    with pytest.raises(ValueError):
        semaphore.acquire(False, timeout=1)
    with pytest.raises(TypeError):
        client.semaphore(name, canceller=1)  # type: ignore[arg-type]


def test_in_fair_mode_threads_of_two_clients_come_in_their_order(
    client: redlatch.Client, other: redlatch.Client, name: str, look: redis.Redis
) -> None:
    both = [each.semaphore(name, limit=2, fair=True) for each in (client, other)]
    order: list[int] = []

    def take(at: int, permits: int) -> None:
        assert both[at % 2].acquire(timeout=LIMIT, permits=permits)
        order.append(at)
        both[at % 2].release(permits)

    with ThreadPoolExecutor(3) as pool:
        assert both[0].acquire()
        assert both[0].acquire()
        turns = []
        for at, permits in enumerate([2, 1, 2]):
            turns.append(pool.submit(take, at, permits))
            eventually(lambda place=at: len(both[0].waiters()) == place + 1)
        assert [waiter.count for waiter in both[1].waiters()] == [2, 1, 2]
        # One permit is free, and the first waiter wants two. A try of a client in which nobody waits overtakes nobody.
        both[0].release()
        with redlatch.Client() as third:
            assert not third.semaphore(name, limit=2, fair=True).acquire(False)
            plain = third.semaphore(name, limit=2)
            assert plain.acquire(False)  # without fair mode it is free
            plain.release()
        both[0].release()
        for turn in turns:
            turn.result(LIMIT)
    assert order == [0, 1, 2]
    assert (both[0].waiters(), counts(look, name)) == ([], (2, 0))
    with pytest.raises(redlatch.InvalidArgumentError, match="give it the option fair"):
        client.semaphore(name, limit=2).waiters()


async def places(semaphore: aio.Semaphore, number: int) -> None:
    async def look() -> None:
        while len(await semaphore.waiters()) != number:
            pass

    await asyncio.wait_for(look(), LIMIT)


async def test_in_fair_mode_tasks_come_in_their_order(name: str, look: redis.Redis) -> None:
    async with aio.Client() as client, aio.Client() as other:
        both = [each.semaphore(name, limit=2, fair=True) for each in (client, other)]
        order: list[int] = []

        async def take(at: int, permits: int) -> None:
            await both[at % 2].acquire(permits=permits)
            order.append(at)
            await both[at % 2].release(permits)

        assert await both[0].acquire(permits=2)
        turns = []
        for at, permits in enumerate([2, 2, 1]):
            turns.append(asyncio.ensure_future(take(at, permits)))
            await places(both[0], at + 1)
        # One that is cancelled leaves at once.
        turns[1].cancel()
        with pytest.raises(asyncio.CancelledError):
            await turns[1]
        await places(both[0], 2)
        await both[0].release(2)
        await asyncio.wait_for(asyncio.gather(turns[0], turns[2]), LIMIT)
        assert order == [0, 2]
    assert counts(look, name) == (2, 0)


async def test_tasks_are_never_more_than_the_limit(name: str, look: redis.Redis) -> None:
    async with aio.Client() as client:
        semaphore, inside = client.semaphore(name, limit=4), Inside()

        async def work() -> None:
            async with semaphore:
                with inside:
                    await asyncio.sleep(0)

        await asyncio.wait_for(asyncio.gather(*[work() for _ in range(50)]), LIMIT)
        assert 1 <= inside.most <= 4
        assert await semaphore.acquire(permits=4) and not await semaphore.acquire(timeout=0.5)
        assert await semaphore.permits() == redlatch.Permits(available=0, limit=4)
        (holder,) = await semaphore.holders()
        assert holder.count == 4
        await semaphore.release(4)
        with pytest.raises(redlatch.NotOwnerError):
            await semaphore.release()
        assert await semaphore.set_permits(5) == redlatch.Permits(available=5, limit=5)
        assert not await semaphore.force_release()
    assert counts(look, name) == (5, 0)


async def test_a_cancelled_task_takes_nothing(name: str, look: redis.Redis) -> None:
    async with aio.Client() as client:
        semaphore = client.semaphore(name, limit=1)
        async with semaphore as grant:
            waits = asyncio.ensure_future(semaphore.acquire())
            while client.stats()["waiting"] == 0:
                await asyncio.sleep(0)
            waits.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waits
            await grant.release()
        assert counts(look, name) == (1, 0)


async def test_a_lost_permit_cancels_its_block(name: str) -> None:
    async with aio.Client() as client:
        semaphore = client.semaphore(name, limit=1, watchdog_lease=0.9, cancel_on_lost=True)
        with pytest.raises(redlatch.LockLostError):
            async with semaphore:
                assert await semaphore.force_release()
                await asyncio.sleep(LIMIT)


# ---- the semaphores of the standard library ----


OURS = {
    "test_repr": LOOKS,
    "test_acquire_timeout": "a permit has to come within 5 ms, which a server of a busy machine may need",
    "test_release_unacquired": "a release without an acquire is a NotOwnerError, which is no ValueError",
}


@pytest.fixture(scope="module")
def make(server: Any) -> Iterator[Callable[..., redlatch.Semaphore]]:
    """Makes semaphores of a name of its own each, as `threading.BoundedSemaphore` does."""
    numbers = itertools.count()
    with redlatch.Client(server.url) as client:
        yield lambda value=1: client.semaphore(f"lock_tests:{next(numbers)}", limit=value)


@pytest.mark.parametrize("case", python_tests(lock_tests.BoundedSemaphoreTests, OURS))
def test_python_s_own_tests_of_a_semaphore(case: str, make: Callable[..., Any]) -> None:
    cases = type("Cases", (lock_tests.BoundedSemaphoreTests,), {"semtype": staticmethod(make)})
    run_case(cases, case, make)


def test_exit_stacks_of_a_semaphore_give_back_the_permits_of_their_own_thread(
    client: redlatch.Client, name: str, look: redis.Redis
) -> None:
    semaphore = client.semaphore(name, limit=2)
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as two:
        stacks = [ExitStack(), ExitStack()]
        grants = [
            pool.submit(stack.enter_context, semaphore).result(LIMIT)
            for pool, stack in zip([one, two], stacks, strict=True)
        ]
        one.submit(stacks[0].close).result(LIMIT)
        assert [grant.held for grant in grants] == [False, True]
        two.submit(stacks[1].close).result(LIMIT)
    assert counts(look, name) == (2, 0)


@pytest.mark.parametrize("kind", ["permits", "readers"])
async def test_exit_stacks_of_one_lock_leave_what_other_tasks_have(kind: str, name: str) -> None:
    async with aio.Client() as client:
        lock: Any = client.semaphore(name, limit=2) if kind == "permits" else client.rw_lock(name).read
        both_in, first_left = asyncio.Event(), asyncio.Event()

        async def first() -> None:
            async with AsyncExitStack() as stack:
                await stack.enter_async_context(lock)
                await both_in.wait()
            first_left.set()

        async def second() -> None:
            async with AsyncExitStack() as stack:
                grant = await stack.enter_async_context(lock)
                both_in.set()
                await first_left.wait()
                grant.check()

        await asyncio.gather(first(), second())


async def test_a_release_of_permits_that_is_cancelled_gives_all_of_them_back(
    name: str, look: redis.Redis
) -> None:
    async with aio.Client(direct=False) as client:
        semaphore = client.semaphore(name, limit=2)
        assert await semaphore.acquire() and await semaphore.acquire()

        async def release() -> None:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await semaphore.release(2)

        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(release())
        await soon(lambda: counts(look, name) == (2, 0))


def test_a_stack_that_ends_without_its_loop_gives_its_permit_back(name: str, look: redis.Redis) -> None:
    client = aio.Client()
    semaphore = client.semaphore(name, limit=1)

    async def hold(entered: asyncio.Event) -> None:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(semaphore)
            entered.set()
            await asyncio.Event().wait()

    async def begin() -> Any:
        entered = asyncio.Event()
        task = asyncio.get_running_loop().create_task(hold(entered))
        await entered.wait()
        return task

    loop = asyncio.new_event_loop()
    task = loop.run_until_complete(begin())
    loop.close()
    assert counts(look, name) == (0, 1)
    task.get_coro().close()
    eventually(lambda: counts(look, name) == (1, 0))
