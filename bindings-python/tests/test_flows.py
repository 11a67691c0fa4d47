"""A lock lets one flow in, however the program schedules its work."""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import sys
import threading
import unittest
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from typing import Any

import pytest
import redis
import redlatch
from conftest import LIMIT, eventually, run, soon
from redlatch import aio

lock_tests = pytest.importorskip("test.lock_tests", reason="this Python was installed without its tests")

either = pytest.mark.parametrize("reentrant", [None, True])


def try_in(context: contextvars.Context, lock: redlatch.Lock) -> bool:
    return context.run(lock.acquire, False)


class Inside:
    """How many are inside at once, at most."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self._own = threading.Lock()

    def enter(self) -> None:
        with self._own:
            self.now += 1
            self.most = max(self.most, self.now)

    def leave(self) -> None:
        with self._own:
            self.now -= 1


# ---- the two kinds of locks of the standard library ----


def test_a_lock_is_not_re_entrant(client: redlatch.Client, name: str) -> None:
    lock, same = client.lock(name), client.lock(name)
    assert lock.acquire() and not same.acquire(False) and not same.acquire(timeout=0.01)
    with pytest.raises(redlatch.LockTimeoutError), client.lock(name, timeout=0):
        pytest.fail("the body ran")
    same.release()
    assert not lock.locked()
    with lock as grant:
        assert same.owned() and same.hold_count == 1 and not same.acquire(False)
        grant.check()


async def test_a_lock_of_asyncio_is_not_re_entrant(name: str) -> None:
    async with aio.Client() as client:
        lock, enters = client.lock(name), client.lock(name, reentrant=True)
        assert await lock.acquire() and not await lock.acquire(False)
        assert await enters.acquire(False) and lock.hold_count == 2
        await lock.release()
        await lock.release()
        async with lock:
            assert not await lock.acquire(False)


def test_a_caller_that_waits_for_itself_is_told_of_in_the_log(
    client: redlatch.Client, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with client.lock(name):
        assert not client.lock(name).acquire(timeout=0.05)
        told = lambda: [each for each in caplog.records if getattr(each, "redlatch_event", "") == "self_wait"]  # noqa: E731
        eventually(told)
        assert name in told()[0].getMessage() and "reentrant" in told()[0].getMessage()
    with client.lock(name), ThreadPoolExecutor(1) as pool:
        assert not pool.submit(client.lock(name).acquire, timeout=0.05).result(LIMIT)
    assert len(told()) == 1


@pytest.fixture(scope="module")
def make(server: Any) -> Iterator[Callable[..., Callable[[], redlatch.Lock]]]:
    """Makes what makes locks, of a name of its own each, as `threading.Lock` does."""
    numbers = itertools.count()
    with redlatch.Client(server.url) as client:
        yield lambda **options: lambda: client.lock(f"lock_tests:{next(numbers)}", **options)


def python_tests(cases: type[unittest.TestCase], but: dict[str, str]) -> list[Any]:
    """Python's own tests of a lock. `but`: those that a distributed lock cannot pass, and why."""
    names = unittest.TestLoader().getTestCaseNames(cases)
    assert set(but) - set(names) <= {
        "test_recursion_count",
        "test_locked_repr",
        "test_repr_count",
        "test_at_fork_reinit",
    }
    return [pytest.param(name, id=name) for name in names if name not in but]


LOOKS = "the text of repr() is another one"
PRIVATE = "it calls a private method that only Condition needs"
ANY_THREAD = "it releases from a thread that did not acquire; that is refused, so that nobody frees what another one holds"
LOCK = {
    "test_repr": LOOKS,
    "test_locked_repr": LOOKS,
    "test_at_fork_reinit": PRIVATE,
    "test_different_thread": ANY_THREAD,
    "test_reacquire": ANY_THREAD,
}
RLOCK = {
    "test_repr": LOOKS,
    "test_repr_count": LOOKS,
    "test_locked_repr": LOOKS,
    "test_release_save_unacquired": PRIVATE,
    "test__is_owned": PRIVATE,
    "test_recursion_count": PRIVATE,
}


@pytest.mark.parametrize("case", python_tests(lock_tests.LockTests, LOCK))
def test_python_s_own_tests_of_a_lock(case: str, make: Callable[..., Any]) -> None:
    run_case(lock_tests.LockTests, case, make())


@pytest.mark.parametrize("case", python_tests(lock_tests.RLockTests, RLOCK))
def test_python_s_own_tests_of_a_re_entrant_lock(case: str, make: Callable[..., Any]) -> None:
    run_case(lock_tests.RLockTests, case, make(reentrant=True))


def run_case(cases: type[unittest.TestCase], case: str, locktype: Callable[[], redlatch.Lock]) -> None:
    one = type(cases.__name__, (cases,), {"locktype": staticmethod(locktype)})
    result = unittest.TestResult()
    one(case).run(result)
    assert not result.errors + result.failures, result.errors + result.failures


# ---- what is a flow ----


@either
def test_what_a_pool_runs_in_a_context_of_its_own_is_a_flow_of_its_own(
    client: redlatch.Client, name: str, reentrant: bool | None
) -> None:
    lock = client.lock(name, reentrant=reentrant)

    async def both() -> list[bool]:
        asyncio.get_running_loop().set_default_executor(pool)
        return [await asyncio.to_thread(lock.acquire, False) for _ in range(2)]

    pool = ThreadPoolExecutor(1)
    assert asyncio.run(both()) == [True, False]
    pool.shutdown()


def test_what_a_pool_runs_one_after_the_other_does_not_enter_twice(
    client: redlatch.Client, name: str
) -> None:
    lock = client.lock(name)

    async def both() -> list[bool]:
        loop = asyncio.get_running_loop()
        return [await loop.run_in_executor(pool, lock.acquire, False) for _ in range(2)]

    with ThreadPoolExecutor(1) as pool:
        assert asyncio.run(both()) == [True, False]
        pool.submit(lock.release).result(LIMIT)


@either
async def test_a_lock_for_threads_lets_one_coroutine_in(name: str, reentrant: bool | None) -> None:
    inside = Inside()
    with redlatch.Client() as client:
        lock = client.lock(name, timeout=0, reentrant=reentrant)

        async def work() -> bool:
            with suppress(redlatch.LockTimeoutError), lock:
                inside.enter()
                await asyncio.sleep(0)
                inside.leave()
                return True
            return False

        assert sum(await asyncio.gather(*(work() for _ in range(5)))) == 1
    assert inside.most == 1


@either
def test_a_lock_for_threads_lets_one_task_of_trio_in(
    client: redlatch.Client, name: str, reentrant: bool | None
) -> None:
    trio = pytest.importorskip("trio")
    lock, won = client.lock(name, reentrant=reentrant), []

    async def work() -> None:
        won.append(lock.acquire(False))
        await trio.lowlevel.checkpoint()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(work)

    trio.run(main)
    assert sorted(won) == [False] * 4 + [True]


@either
def test_a_lock_for_threads_lets_one_greenlet_in(
    client: redlatch.Client, name: str, reentrant: bool | None
) -> None:
    greenlet = pytest.importorskip("greenlet")
    lock, won = client.lock(name, reentrant=reentrant), []

    def work() -> None:
        won.append(lock.acquire(False))
        main.switch()
        if won[0] and lock.owned():
            lock.release()

    main = greenlet.getcurrent()
    all_of_them = [greenlet.greenlet(work) for _ in range(3)]
    context = contextvars.copy_context()
    for each in all_of_them:
        each.gr_context = context.copy()  # as gevent gives its greenlets the context that they were made in
        each.switch()
    for each in all_of_them:
        each.switch()
    assert won == [True, False, False] and not lock.locked()


def test_a_thread_stays_one_flow_when_greenlet_and_asyncio_are_imported(url: str) -> None:
    pytest.importorskip("greenlet")
    print(
        run(
            """
            import sys, redlatch
            with redlatch.Client() as client:
                lock = client.lock("imports", reentrant=True)
                assert lock.acquire() and "asyncio" not in sys.modules and "greenlet" not in sys.modules
                import asyncio, greenlet
                assert lock.acquire(False) and lock.hold_count == 2
                lock.release()
                lock.release()
            """
        )
    )


@either
def test_one_request_of_fastapi_is_inside(name: str, reentrant: bool | None) -> None:
    """Several requests, each with a generator dependency. Threads of a pool enter and leave the blocks."""
    fastapi = pytest.importorskip("fastapi")
    inside = Inside()
    with redlatch.Client() as client:
        shared = client.lock(name, timeout=0, reentrant=reentrant)

        def exclusive() -> Iterator[redlatch.Grant]:
            with shared as grant:
                inside.enter()
                yield grant
                inside.leave()

        app = fastapi.FastAPI()

        @app.get("/")
        async def work(grant: Any = fastapi.Depends(exclusive)) -> bool:  # noqa: B008
            entered.set()
            await over.wait()
            return bool(grant.held)

        async def get() -> list[Any]:
            sent: list[Any] = []

            async def receive() -> dict[str, Any]:
                return {"type": "http.request", "body": b"", "more_body": False}

            async def send(message: Any) -> None:
                sent.append(message)

            scope = {
                "type": "http",
                "method": "GET",
                "path": "/",
                "query_string": b"",
                "headers": [],
                "asgi": {"version": "3.0"},
            }
            await app(scope, receive, send)
            return sent

        async def main() -> list[Any]:
            first = asyncio.create_task(get())
            await asyncio.wait_for(entered.wait(), LIMIT)
            # The thread that has entered the block is idle again, and takes the next request.
            with pytest.raises(redlatch.LockTimeoutError):
                over_soon = asyncio.get_running_loop().call_later(LIMIT, over.set)
                await get()
            over_soon.cancel()
            over.set()
            return await first

        entered, over = asyncio.Event(), asyncio.Event()
        sent = asyncio.run(main())
        assert (sent[0]["status"], sent[1]["body"]) == (200, b"true")
        assert inside.most == 1 and not shared.locked()


def test_a_call_in_a_context_with_a_flow_of_its_thread_is_that_flow(
    client: redlatch.Client, name: str
) -> None:
    """As docs/re-entry.md says: a thread cannot tell a context from its copy that went through a task."""
    known, new = (client.lock(each, reentrant=True) for each in (name, name + "'"))

    async def calls(lock: redlatch.Lock) -> list[bool]:
        return [await asyncio.to_thread(lock.acquire, False) for _ in range(2)]

    def begin(lock: redlatch.Lock, run_in: Callable[..., Any], loop: asyncio.AbstractEventLoop) -> Any:
        assert not lock.owned()  # with it the thread has a flow in its context
        return run_in(asyncio.run_coroutine_threadsafe, calls(lock), loop)

    async def main(lock: redlatch.Lock, run_in: Callable[..., Any]) -> list[bool]:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(pool)
        begun = await loop.run_in_executor(pool, begin, lock, run_in, loop)
        return await asyncio.wrap_future(begun)

    pool = ThreadPoolExecutor(1)
    assert asyncio.run(main(known, lambda call, *args: call(*args))) == [True, True]
    pool = ThreadPoolExecutor(1)
    assert asyncio.run(main(new, contextvars.Context().run)) == [True, False]


def test_a_copy_of_a_context_on_the_same_thread_is_the_same_flow(client: redlatch.Client, name: str) -> None:
    lock = client.lock(name, reentrant=True)
    assert lock.acquire()
    context = contextvars.copy_context()
    assert try_in(context, lock) and lock.hold_count == 2
    with ThreadPoolExecutor(1) as pool:
        assert not pool.submit(try_in, context.copy(), lock).result(LIMIT)
    lock.release()
    lock.release()


# ---- flows that share a context ----


@pytest.mark.skipif(sys.version_info < (3, 11), reason="create_task takes no context before Python 3.11")
async def test_tasks_that_share_a_context_keep_their_holds(
    client: redlatch.Client, name: str, look: redis.Redis
) -> None:
    """The later flow took the place of the earlier one, whose `release` was refused."""
    context, loop = contextvars.copy_context(), asyncio.get_running_loop()
    locks = [client.lock(f"{name}:{number}", reentrant=True) for number in range(3)]
    over = [asyncio.Event() for _ in locks]

    async def work(number: int) -> None:
        own = locks[number]
        assert own.acquire()
        await over[number].wait()
        assert [each.owned() for each in locks] == [each is own for each in locks]
        assert own.acquire(False) and own.hold_count == 2
        own.release()
        own.release()

    tasks = [loop.create_task(work(number), context=context) for number in range(3)]
    await soon(lambda: client.stats()["holds"] == 3)
    for number in (0, 2, 1):
        over[number].set()
        await asyncio.wait_for(tasks[number], LIMIT)
    assert not look.exists(*(each.name for each in locks)) and client.stats()["holds"] == 0


def test_threads_that_share_a_context_in_turn_keep_their_holds(
    client: redlatch.Client, name: str, look: redis.Redis
) -> None:
    context, lock, other = contextvars.Context(), client.lock(name), client.lock(name + "'")
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as two:
        assert one.submit(context.run, lock.acquire).result(LIMIT)
        assert not two.submit(context.run, lock.owned).result(LIMIT)
        assert two.submit(context.run, other.acquire).result(LIMIT)
        one.submit(context.run, lock.release).result(LIMIT)
        two.submit(context.run, other.release).result(LIMIT)
    assert not look.exists(name, name + "'")


# ---- whose level is given back ----


def test_a_release_in_another_flow_is_refused(client: redlatch.Client, name: str) -> None:
    lock = client.lock(name)
    assert lock.acquire()
    with ThreadPoolExecutor(1) as pool:
        for call in (lock.release, lambda: lock.extend(5)):
            with pytest.raises(redlatch.NotOwnerError, match="thread, task or key that acquired it"):
                pool.submit(call).result(LIMIT)
        assert not pool.submit(lock.owned).result(LIMIT)
    with pytest.raises(redlatch.NotOwnerError):
        contextvars.Context().run(lock.release)
    assert lock.owned()
    lock.release()


def test_a_late_release_does_not_free_what_another_caller_holds_by_now(
    client: redlatch.Client, look: redis.Redis, name: str
) -> None:
    lock, other = client.lock(name), redlatch.Client()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lock.acquire).result(LIMIT)
        look.delete(name)
        eventually(lambda: client.stats()["lost"] == 1)
        # The next one on the same thread cannot be told from the first. It is refused before it can rely on the lock.
        with pytest.raises(redlatch.LockLostError, match="has to be released first"):
            pool.submit(lock.acquire).result(LIMIT)
        with other.lock(name) as grant:
            with pytest.raises(redlatch.LockLostError):
                pool.submit(lock.release).result(LIMIT)
            grant.check()
        assert pool.submit(lock.acquire, timeout=LIMIT).result(2 * LIMIT)
        pool.submit(lock.release).result(LIMIT)
    other.close()


def test_blocks_of_one_lock_that_other_threads_leave_give_back_their_own_levels(
    client: redlatch.Client, look: redis.Redis, name: str
) -> None:
    lock = client.lock(name)

    @contextmanager
    def block() -> Iterator[redlatch.Grant]:
        with lock as grant:
            yield grant

    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as two:
        lost, living = block(), block()
        one.submit(lost.__enter__).result(LIMIT)
        look.delete(name)
        eventually(lambda: client.stats()["lost"] == 1)
        grant = two.submit(living.__enter__).result(LIMIT)
        # Each is left on the thread of the other one.
        with pytest.raises(redlatch.LockLostError):
            two.submit(lost.__exit__, None, None, None).result(LIMIT)
        assert grant.held
        one.submit(living.__exit__, None, None, None).result(LIMIT)
        assert not grant.held and not look.exists(name)


def test_a_lock_in_an_exit_stack_is_given_back_by_the_thread_that_closes_it(
    client: redlatch.Client, look: redis.Redis, name: str
) -> None:
    lock, stacks = client.lock(name), [ExitStack(), ExitStack()]
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as two:
        one.submit(stacks[0].enter_context, lock).result(LIMIT)
        look.delete(name)
        eventually(lambda: client.stats()["lost"] == 1)
        grant = two.submit(stacks[1].enter_context, lock).result(LIMIT)
        with pytest.raises(redlatch.LockLostError):
            two.submit(stacks[0].close).result(LIMIT)
        assert grant.held
        one.submit(stacks[1].close).result(LIMIT)
    assert not look.exists(name)


def test_looking_at_a_lock_changes_no_block(client: redlatch.Client, name: str) -> None:
    lock = client.lock(name, reentrant=True)
    assert hasattr(lock, "__exit__") and hasattr(lock, "__enter__")
    outer = lock.__enter__()
    with lock as inner:
        assert hasattr(lock, "__exit__") and lock.hold_count == 2
    assert not hasattr(lock, "nothing") and outer.held and inner.hold_count == 1
    lock.__exit__(None, None, None)
    assert not lock.locked()
    with pytest.raises(redlatch.NotOwnerError):
        lock.__exit__(None, None, None)


def test_a_kept_exit_takes_nothing_from_an_exit_stack(client: redlatch.Client, name: str) -> None:
    """The end of the stack raised NotOwnerError, and the lock stayed locked."""
    lock = client.lock(name)
    leave = lock.__exit__
    with ExitStack() as stack:
        assert stack.enter_context(lock).held
    assert not lock.locked()
    with pytest.raises(redlatch.NotOwnerError):
        leave(None, None, None)


async def test_a_kept_exit_takes_nothing_from_an_exit_stack_of_asyncio(name: str) -> None:
    async with aio.Client() as client:
        lock = client.lock(name)
        leave = lock.__aexit__
        async with AsyncExitStack() as stack:
            assert (await stack.enter_async_context(lock)).held
        assert not await lock.locked()
        with pytest.raises(redlatch.NotOwnerError):
            await leave(None, None, None)


async def test_a_block_of_asyncio_that_another_task_leaves_gives_back_its_own_level(
    name: str, look: redis.Redis
) -> None:
    async with aio.Client() as client:
        lock = client.lock(name)

        async def block() -> Any:
            async with lock as grant:
                yield grant

        lost, living = block(), block()
        await asyncio.create_task(lost.__anext__())
        look.delete(name)
        await soon(lambda: client.stats()["lost"] == 1)
        grant = await asyncio.create_task(living.__anext__())
        with pytest.raises(redlatch.LockLostError):
            await asyncio.create_task(lost.__anext__())
        assert grant.held
        with pytest.raises(StopAsyncIteration):
            await asyncio.create_task(living.__anext__())
        assert not look.exists(name)


def test_a_recursion_that_goes_too_deep_leaves_nothing(client: redlatch.Client, name: str) -> None:
    lock = client.lock(name, reentrant=True)

    def deeper() -> None:
        with lock:
            deeper()

    limit = sys.getrecursionlimit()
    for more in range(20):  # so that each place in a block's two ends is once the deepest
        sys.setrecursionlimit(150 + more)
        try:
            with pytest.raises(RecursionError):
                deeper()
        finally:
            sys.setrecursionlimit(limit)
        eventually(lambda: lock.hold_count == 0)
    eventually(lambda: not lock.locked())
    assert client.stats()["holds"] == 0


# ---- a flow that has ended ----


def by_its_context(lock: redlatch.Lock) -> None:
    contextvars.Context().run(lock.acquire)


def by_to_thread(lock: redlatch.Lock) -> None:
    async def main() -> None:
        # As `asyncio.to_thread` does it; the pool of the loop would end with the loop.
        copy = contextvars.copy_context()
        await asyncio.get_running_loop().run_in_executor(pool, copy.run, lock.acquire)

    asyncio.run(main())


def by_a_task_that_is_kept(lock: redlatch.Lock) -> None:
    async def main() -> None:
        async def work() -> None:
            lock.acquire()

        kept.append(asyncio.create_task(work()))
        await kept[0]

    asyncio.run(main())


# Its thread does not end while the tests run.
pool = ThreadPoolExecutor(1)
kept: list[Any] = []


@either
@pytest.mark.parametrize("acquire", [by_its_context, by_to_thread, by_a_task_that_is_kept])
def test_a_lock_ends_with_the_flow_that_acquired_it(
    client: redlatch.Client,
    name: str,
    acquire: Callable[[redlatch.Lock], None],
    reentrant: bool | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The key ended with its thread alone: the lock was renewed for ever, and nobody could release it."""
    acquire(client.lock(name, reentrant=reentrant, watchdog_lease=0.3))
    assert client.lock(name).acquire(timeout=LIMIT)
    client.lock(name).release()
    eventually(
        lambda: [each for each in caplog.records if getattr(each, "redlatch_event", "") == "abandoned"]
    )
    kept.clear()


def test_a_wait_that_stops_an_event_loop_says_so(client: redlatch.Client, name: str) -> None:
    lock = client.lock(name)

    async def hold(entered: asyncio.Event, end: asyncio.Event) -> None:
        with lock:
            entered.set()
            await end.wait()

    async def wait_for_a_task_of_the_same_loop() -> None:
        entered, end = asyncio.Event(), asyncio.Event()
        holder = asyncio.create_task(hold(entered, end))
        await entered.wait()
        with warnings.catch_warnings():
            # As an error it ends the wait, which would be as long as its limit.
            warnings.simplefilter("error")
            with pytest.raises(RuntimeWarning, match=r"use redlatch\.aio\.Client"):
                lock.acquire(timeout=LIMIT)
        end.set()
        await holder

    asyncio.run(wait_for_a_task_of_the_same_loop())
    assert lock.acquire(False)
    lock.release()
