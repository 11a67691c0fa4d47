"""The plain semaphore and the count-down latch, for threads, asyncio and greenlets."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from typing import Any

import pytest
import redis
import redlatch
from conftest import LIMIT, LOOPS, eventually, run, soon
from redlatch import aio
from test_flows import LOOKS, lock_tests, python_tests, run_case
from test_greenlets import both, program
from test_semaphore import Inside


@pytest.fixture
def other() -> Iterator[redlatch.Client]:
    """Its waiters are woken by messages and invalidations, or not at all."""
    with redlatch.Client(recheck=3600) as other:
        yield other


IN_VAIN = 0.5
"""Seconds of a wait in vain. When the time is over and an answer is still to come, the wait is no False but an error."""


def free(look: redis.Redis, name: str) -> int:
    """How many permits there are, by Redis' record."""
    return int(look.get(name) or 0)


def listens(look: redis.Redis, name: str) -> bool:
    channel = f"redisson_countdownlatch__channel__{{{name}}}"
    return dict(look.pubsub_numsub(channel))[channel] > 0


class Interrupted(BaseException):
    """As KeyboardInterrupt."""


@pytest.fixture
def alarm() -> Iterator[None]:
    """SIGALRM raises."""

    def handle(number: int, frame: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, handle)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


# ---- the plain semaphore, for threads ----


def test_permits_are_counted(client: redlatch.Client, name: str, look: redis.Redis) -> None:
    seats = client.plain_semaphore(name)
    assert (seats.name, seats.available(), seats.acquire(False)) == (name, 0, False)
    assert repr(seats) == f"<redlatch._sync.PlainSemaphore {name!r}>"
    assert seats.try_set_permits(5) is True and seats.try_set_permits(9) is False
    assert seats.acquire(permits=2) is True and seats.acquire(timeout=IN_VAIN, permits=4) is False
    assert seats.acquire() is True and free(look, name) == 2
    seats.release()
    seats.release(2)
    assert seats.available() == 5
    assert (seats.add_permits(-7), seats.drain(), seats.add_permits(4), seats.drain()) == (-2, -2, 4, 4)
    # Another program gives back permits that this one took.
    with redlatch.Client() as other:
        other.plain_semaphore(name).release(3)
    assert free(look, name) == 3


def test_a_block_takes_one_and_gives_it_back(client: redlatch.Client, name: str, look: redis.Redis) -> None:
    seats = client.plain_semaphore(name, timeout=0)
    seats.try_set_permits(2)
    with seats, seats:
        assert free(look, name) == 0
        with pytest.raises(redlatch.LockTimeoutError, match=name), seats:
            pytest.fail("the body ran")
    with ExitStack() as stack:
        stack.enter_context(seats)
        assert free(look, name) == 1
    with pytest.raises(KeyError), seats:
        raise KeyError
    assert free(look, name) == 2
    with pytest.raises(redlatch.NotOwnerError, match="not entered"):
        seats.__exit__()


def test_a_block_tells_that_nothing_was_given_back(name: str, look: redis.Redis) -> None:
    client = redlatch.Client()
    seats = client.plain_semaphore(name)
    seats.try_set_permits(1)
    with pytest.raises(redlatch.ClosedError), seats:
        client.close()
    with redlatch.Client() as client:
        seats = client.plain_semaphore(name)
        seats.release()
        with pytest.raises(KeyError) as caught, seats:
            look.delete(name)
            look.hset(name, "a", "1")
            raise KeyError
        if sys.version_info >= (3, 11):
            assert any("foreign_kind" in each for each in caught.value.__notes__)


def test_threads_of_two_clients_share_permits(
    client: redlatch.Client, other: redlatch.Client, name: str, look: redis.Redis
) -> None:
    inside, both = Inside(), [client.plain_semaphore(name), other.plain_semaphore(name)]
    both[0].try_set_permits(3)

    def work(seats: redlatch.PlainSemaphore) -> None:
        for _ in range(10):
            with seats, inside:
                pass

    with ThreadPoolExecutor(12) as pool:
        for done in [pool.submit(work, both[at % 2]) for at in range(12)]:
            done.result(LIMIT)
    assert 1 <= inside.most <= 3 and free(look, name) == 3


def test_a_waiter_is_woken_by_another_client(
    client: redlatch.Client, other: redlatch.Client, name: str, look: redis.Redis
) -> None:
    seats = client.plain_semaphore(name)
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(other.plain_semaphore(name).acquire, permits=2)
        eventually(lambda: other.stats()["waiting"] == 1)
        seats.release()
        assert not waits.done()
        seats.release()
        assert waits.result(LIMIT)
    assert free(look, name) == 0


def test_a_canceller_ends_a_wait(client: redlatch.Client, name: str, look: redis.Redis) -> None:
    canceller = redlatch.Canceller()
    seats, block = client.plain_semaphore(name), client.plain_semaphore(name, canceller=canceller)
    latch = client.latch(name + ":latch")
    latch.try_set_count(1)

    def enter() -> None:
        with block:
            pytest.fail("the body ran")

    with ThreadPoolExecutor(3) as pool:
        waits: list[Future[Any]] = [
            pool.submit(enter),
            pool.submit(seats.acquire, canceller=canceller),
            pool.submit(latch.wait, canceller=canceller),
        ]
        eventually(lambda: client.stats()["waiting"] == 3)
        canceller.cancel()
        for each in waits:
            with pytest.raises(redlatch.LockCancelledError):
                each.result(LIMIT)
    seats.release()
    assert free(look, name) == 1
    with pytest.raises(TypeError, match="canceller is 5"):
        client.plain_semaphore(name, canceller=5)  # type: ignore[arg-type]


def test_ctrl_c_ends_a_wait(client: redlatch.Client, name: str, look: redis.Redis, alarm: None) -> None:
    seats, latch = client.plain_semaphore(name), client.latch(name + ":latch")
    latch.try_set_count(1)
    for wait in (seats.acquire, seats.__enter__, latch.wait):

        def later() -> None:
            eventually(lambda: client.stats()["waiting"] == 1)
            os.kill(os.getpid(), signal.SIGALRM)

        thread = threading.Thread(target=later)
        thread.start()
        with pytest.raises(Interrupted):
            wait()
        thread.join(LIMIT)
        eventually(lambda: client.stats()["waiting"] == 0)
    seats.release()
    assert free(look, name) == 1


def test_ctrl_c_at_any_time_leaves_no_permit_taken(
    client: redlatch.Client, name: str, look: redis.Redis, alarm: None
) -> None:
    seats, interrupted, done = client.plain_semaphore(name), 0, 0
    seats.try_set_permits(3)
    for microseconds in itertools.islice(itertools.cycle(range(20, 400, 7)), 1500):
        try:
            signal.setitimer(signal.ITIMER_REAL, microseconds / 1e6)
            with seats:
                done += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
        except Interrupted:
            interrupted += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert interrupted
    eventually(lambda: free(look, name) == 3, f"{done} blocks, {interrupted} interrupted")


def test_a_child_gives_back_nothing_of_its_parent(name: str) -> None:
    program = """
        import os, sys, redlatch
        seats = redlatch.Client().plain_semaphore(sys.argv[1])
        seats.try_set_permits(1)
        with seats:
            child = os.fork()
            if not child:
                try:
                    seats.available()
                except redlatch.ForkedError:
                    print("forked", flush=True)
        if child:
            assert os.waitpid(child, 0)[1] == 0
            print(seats.available())
    """
    assert run(program, name) == "forked\n1\n"


def test_wrong_use_is_refused(client: redlatch.Client, name: str) -> None:
    seats, latch = client.plain_semaphore(name), client.latch(name)
    wrong: list[tuple[Callable[[], Any], str]] = [
        (lambda: seats.acquire(permits=0), "permits is 0; give it a whole number from 1 to 2147483647"),
        (lambda: seats.acquire(permits=2**31), "permits is 2147483648"),
        (lambda: seats.acquire(permits=1.5), "permits is 1.5; give it a whole number"),  # type: ignore[arg-type]
        (lambda: seats.acquire(permits=True), "permits is True; give it a whole number"),
        (lambda: seats.release(-1), "permits is -1; give it a whole number that is not negative"),
        (lambda: seats.try_set_permits("5"), "permits is '5'"),  # type: ignore[arg-type]
        (lambda: seats.add_permits(2**31), "permits is 2147483648"),
        (lambda: latch.try_set_count(0), "count is 0"),
        (lambda: latch.count_down(0), "by is 0"),
        (lambda: latch.wait(-1), "timeout is -1; give it seconds, 0 to .*, or None to wait for ever"),
        (lambda: client.plain_semaphore(""), "1 to 1,?024"),
        (lambda: client.latch("\ud800"), "name of the latch"),
        (lambda: client.plain_semaphore(name, timeout=-1), "timeout is -1"),
    ]
    for use, text in wrong:
        with pytest.raises(redlatch.InvalidArgumentError, match=text):
            use()
    with pytest.raises(TypeError, match=r"blocking is 3; .*permits="):
        seats.acquire(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"blocking is 3; .*permits="):
        client.semaphore(name + ":leased", limit=3).acquire(3)  # type: ignore[arg-type]
    assert seats.acquire(0) is False, "as threading.Semaphore takes it"  # type: ignore[arg-type]
    with pytest.raises(ValueError):
        seats.acquire(False, timeout=1)


def test_other_data_is_refused(client: redlatch.Client, name: str) -> None:
    seats, latch = client.plain_semaphore(name), client.latch(name)
    with client.lock(name) as grant:
        uses: list[Callable[[], Any]] = [
            seats.acquire, seats.release, seats.drain, seats.available, seats.__enter__,
            latch.wait, latch.count_down, latch.count, lambda: latch.try_set_count(1),
        ]  # fmt: skip
        for use in uses:
            with pytest.raises(redlatch.ForeignKindError, match="use another name") as caught:
                use()
            assert caught.value.lock_name == name
        grant.check()


# ---- the latch, for threads ----


def test_a_latch_opens_for_all_at_zero(client: redlatch.Client, other: redlatch.Client, name: str) -> None:
    ready, far = client.latch(name), other.latch(name)
    assert (ready.name, ready.count(), ready.wait(0)) == (name, 0, True)
    assert ready.try_set_count(3) is True and ready.try_set_count(5) is False
    assert far.count() == 3 and far.wait(timeout=IN_VAIN) is False and far.wait(0) is False
    with ThreadPoolExecutor(4) as pool:
        waits = [pool.submit(each.wait) for each in (ready, ready, far, far)]
        eventually(lambda: client.stats()["waiting"] == other.stats()["waiting"] == 2)
        assert ready.count_down() == 2
        assert not any(each.done() for each in waits)
        assert ready.count_down(5) == 0
        assert all(each.result(LIMIT) for each in waits)
    assert far.wait() is True, "a late waiter goes on at once"
    assert ready.count_down() == 0 and ready.try_set_count(1)


@pytest.mark.parametrize("end", ["DEL", "PEXPIRE"])
def test_a_latch_opens_when_its_key_goes_away(
    client: redlatch.Client, other: redlatch.Client, name: str, look: redis.Redis, end: str
) -> None:
    client.latch(name).try_set_count(1)
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(other.latch(name).wait, LIMIT)
        eventually(lambda: other.stats()["waiting"] == 1 and listens(look, name))
        look.execute_command(end, name, *([1] if end == "PEXPIRE" else []))
        assert waits.result(2 * LIMIT) is True


# ---- for asyncio ----


async def test_tasks_of_two_clients_share_permits(name: str, look: redis.Redis) -> None:
    async with aio.Client() as client, aio.Client(recheck=3600) as other:
        both, inside = [client.plain_semaphore(name), other.plain_semaphore(name)], Inside()
        assert await both[0].try_set_permits(4) is True and await both[1].try_set_permits(5) is False

        async def work(seats: aio.PlainSemaphore) -> None:
            async with seats:
                with inside:
                    await asyncio.sleep(0)  # others run inside the block

        await asyncio.wait_for(asyncio.gather(*[work(both[at % 2]) for at in range(50)]), LIMIT)
        assert 1 <= inside.most <= 4
        seats = both[0]
        assert await seats.acquire(permits=4) is True and await seats.acquire(False) is False
        assert await seats.acquire(timeout=IN_VAIN) is False and await seats.available() == 0
        with pytest.raises(redlatch.LockTimeoutError):
            async with client.plain_semaphore(name, timeout=0):
                pytest.fail("the body ran")
        waits = asyncio.ensure_future(both[1].acquire())
        await soon(lambda: other.stats()["waiting"] == 1)
        await seats.release(4)
        assert await asyncio.wait_for(waits, LIMIT) is True
        assert (await seats.add_permits(2), await seats.drain()) == (5, 5)
        with pytest.raises(redlatch.InvalidArgumentError, match="permits is 0"):
            await seats.release(0)
        with pytest.raises(redlatch.NotOwnerError, match="not entered"):
            await seats.__aexit__(None, None, None)
    assert free(look, name) == 0


async def test_a_cancelled_task_takes_nothing(name: str, look: redis.Redis) -> None:
    async with aio.Client() as client:
        seats, latch = client.plain_semaphore(name), client.latch(name + ":latch")
        await latch.try_set_count(1)

        async def enter() -> None:
            async with seats:
                pytest.fail("the body ran")

        waits = [asyncio.ensure_future(each) for each in (seats.acquire(), enter(), latch.wait())]
        await soon(lambda: client.stats()["waiting"] == 3)
        for each in waits:
            each.cancel()
            with pytest.raises(asyncio.CancelledError):
                await each
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(latch.wait(), 0.01)
        await soon(lambda: client.stats()["waiting"] == 0)
        await seats.release()
        assert free(look, name) == 1


async def test_random_cancels_lose_no_permit(name: str, look: redis.Redis) -> None:
    chance, cancelled, finished = random.Random(1), 0, 0
    loop = asyncio.get_running_loop()
    async with aio.Client() as client, aio.Client() as other:
        both = [client.plain_semaphore(name), other.plain_semaphore(name)]
        await both[0].try_set_permits(3)

        async def hold(seats: aio.PlainSemaphore) -> None:
            if chance.random() < 0.5:
                async with seats:
                    await asyncio.sleep(chance.random() * 0.001)  # some are cancelled inside the block
                return
            permits = chance.choice([1, 2])
            with suppress(redlatch.UnavailableError):  # the time was over before the answer came
                if await seats.acquire(timeout=chance.choice([0, 0.001, LIMIT]), permits=permits):
                    await seats.release(permits)

        async def work() -> None:
            nonlocal cancelled, finished
            while cancelled < 1000:
                task = asyncio.create_task(hold(chance.choice(both)))
                later = loop.call_later(chance.random() * chance.choice([0.001, 0.01, LIMIT]), task.cancel)
                try:
                    await task
                    finished += 1
                except asyncio.CancelledError:
                    cancelled += 1
                later.cancel()

        await asyncio.gather(*(work() for _ in range(20)))
        await soon(lambda: free(look, name) == 3, "all permits are back")
    assert finished


@pytest.mark.parametrize("end", ["closed", "stopped", "replaced"])
@pytest.mark.parametrize("loop", LOOPS)
def test_what_a_task_holds_goes_back_with_its_loop(name: str, look: redis.Redis, loop: str, end: str) -> None:
    client = aio.Client()
    lock, seats = name + ":lock", client.plain_semaphore(name)

    async def hold(inside: asyncio.Event) -> None:
        async with client.lock(lock), seats:
            inside.set()
            await asyncio.Event().wait()

    async def begin() -> None:
        await seats.try_set_permits(2)
        inside = asyncio.Event()
        begun.append(asyncio.ensure_future(hold(inside)))
        await inside.wait()

    async def replace() -> None:
        # A block of this loop is entered last, and stays entered.
        async with seats:
            begun.clear()
            gc.collect()
            await soon(lambda: free(look, name) == 1 and not look.exists(lock))

    begun: list[asyncio.Future[None]] = []
    each_loop = LOOPS[loop]()
    each_loop.run_until_complete(begin())
    if end == "closed":
        each_loop.close()
    if end == "replaced":
        another = LOOPS[loop]()
        another.run_until_complete(replace())
        another.close()
    else:
        begun.clear()
        gc.collect()
    eventually(lambda: free(look, name) == 2 and not look.exists(lock))
    each_loop.close()


async def test_a_latch_wakes_tasks(name: str, look: redis.Redis) -> None:
    async with aio.Client() as client, aio.Client(recheck=3600) as other:
        ready, far = client.latch(name), other.latch(name)
        assert await ready.wait() is True
        assert await ready.try_set_count(2) is True and await ready.try_set_count(5) is False
        assert await far.wait(IN_VAIN) is False and await far.count() == 2
        waits = [asyncio.ensure_future(each.wait()) for each in (ready, far)]
        await soon(lambda: client.stats()["waiting"] == other.stats()["waiting"] == 1)
        assert (await ready.count_down(), await ready.count_down(3)) == (1, 0)
        assert await asyncio.wait_for(asyncio.gather(*waits), LIMIT) == [True, True]
        await ready.try_set_count(1)
        waits = [asyncio.ensure_future(far.wait())]
        await soon(lambda: other.stats()["waiting"] == 1 and listens(look, name))
        look.delete(name)
        assert await asyncio.wait_for(waits[0], LIMIT) is True
        await client.lock(name).acquire()
        with pytest.raises(redlatch.ForeignKindError):
            await ready.wait()


# ---- for greenlets ----


@both
def test_greenlets_wait_in_their_hub(library: str, name: str, look: redis.Redis) -> None:
    # Imported here it would change this process: eventlet warns of every fork from then on.
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    source = """
        client = redlatch.Client()
        seats, ready = client.plain_semaphore(name), client.latch(name + ":latch")
        ready.try_set_count(1)

        def enter():
            with seats:
                return "inside"

        waits = [spawn(seats.acquire), spawn(enter), spawn(ready.wait)]
        eventually(lambda: client.stats()["waiting"] == 3)
        killed = spawn(seats.acquire, permits=5)
        eventually(lambda: client.stats()["waiting"] == 4)
        kill(killed)
        eventually(lambda: client.stats()["waiting"] == 3)
        seats.release(2)
        ready.count_down()
        print([wait_for(each) for each in waits], seats.available(), seats.acquire(False), seats.acquire(False), ready.wait(0))
        for refused in (seats.acquire, ready.wait, client.plain_semaphore(name, canceller=redlatch.Canceller()).__enter__):
            try:
                refused(**({} if "enter" in refused.__name__ else {"canceller": redlatch.Canceller()}))
            except redlatch.InvalidArgumentError as error:
                print("a greenlet waits in its hub" in str(error))
    """
    printed = run(program(library, source), name)
    assert printed == "[True, 'inside', True] 1 True False True\nTrue\nTrue\nTrue\n"
    assert free(look, name) == 0


# ---- the semaphores of the standard library ----


OURS = {
    "test_repr": LOOKS,
    "test_acquire_timeout": "a permit has to come within 5 ms, which a server of a busy machine may need",
}


@pytest.fixture(scope="module")
def make(server: Any) -> Iterator[Callable[..., redlatch.PlainSemaphore]]:
    """Makes semaphores of a name of its own each, as `threading.Semaphore` does."""
    numbers = itertools.count()

    def semaphore(value: int = 1) -> redlatch.PlainSemaphore:
        made = client.plain_semaphore(f"plain_lock_tests:{next(numbers)}")
        with suppress(redlatch.InvalidArgumentError):
            made.try_set_permits(value)
            return made
        raise ValueError("semaphore initial value must be >= 0")

    with redlatch.Client(server.url) as client:
        yield semaphore


@pytest.mark.parametrize("case", python_tests(lock_tests.SemaphoreTests, OURS))
def test_python_s_own_tests_of_a_semaphore(case: str, make: Callable[..., Any]) -> None:
    cases = type("Cases", (lock_tests.SemaphoreTests,), {"semtype": staticmethod(make)})
    run_case(cases, case, make)
