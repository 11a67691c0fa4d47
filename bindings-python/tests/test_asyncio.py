"""The lock for asyncio."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import os
import sys
import threading
import time
import warnings
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import redis
import redlatch
from conftest import LIMIT, LOOPS, RENEWED, WithoutReaders, eventually, run_in_loop, soon
from redlatch import _redlatch, _tasks, aio
from redlatch._dispatcher import sleeper


async def in_task(awaitable: Any) -> Any:
    """The result of a coroutine or function that runs in a task of its own."""

    async def call() -> Any:
        result = awaitable() if callable(awaitable) else awaitable
        return await result if asyncio.iscoroutine(result) else result

    return await asyncio.create_task(call())


async def test_a_block_holds_and_releases(name: str, look: redis.Redis) -> None:
    async with aio.Client(watchdog_lease=30) as client:
        lock = client.lock(name)
        async with lock as grant:
            assert look.hgetall(name) == {grant.owner: "1"}
            assert grant.held and lock.owned() and await lock.locked()
            assert 0 < grant.remaining <= 30 and 0 < lock.remaining <= 30
            assert (grant.name, grant.hold_count, grant.lost_reason) == (name, 1, None)
            grant.check()
            await grant.extend(60)
            assert grant.remaining > 30
        assert not look.exists(name) and not lock.owned()


class Steps:
    """Counts how often what is awaited lets the event loop go on."""

    def __init__(self, awaitable: Any) -> None:
        self.awaitable, self.count = awaitable, 0

    def __await__(self) -> Any:
        inner = self.awaitable.__await__()
        while True:
            try:
                waited = next(inner)
            except StopIteration as done:
                return done.value
            self.count += 1
            yield waited


async def test_a_task_that_is_alone_is_answered_at_once(name: str) -> None:
    async with aio.Client() as client:
        lock, end = client.lock(name), time.monotonic() + LIMIT
        while True:
            acquired = Steps(lock.acquire())
            released = Steps(lock.release()) if await acquired else None
            assert released is not None
            await released
            if acquired.count == released.count == 0:
                break
            assert time.monotonic() < end, "no answer comes at once"


async def test_without_a_direct_connection_nobody_is_answered_at_once(name: str) -> None:
    async with aio.Client(direct=False) as client:
        lock = client.lock(name)
        for _ in range(50):
            acquired = Steps(lock.acquire())
            assert await acquired and acquired.count > 0
            await lock.release()


async def test_the_owner_is_the_task(name: str, look: redis.Redis) -> None:
    async with aio.Client(reentrant=True) as client:
        lock = client.lock(name)
        assert await lock.acquire() and await lock.acquire(False)
        assert lock.hold_count == 2
        assert await in_task(lock.owned) is False
        assert await in_task(lambda: lock.acquire(False)) is False
        assert await in_task(lambda: lock.acquire(timeout=0.05)) is False
        with pytest.raises(redlatch.NotOwnerError):
            await in_task(lock.release)
        await lock.release()
        await lock.release()
        assert not look.exists(name)
        with pytest.raises(RuntimeError):
            await lock.release()


async def test_what_acquire_and_release_return_is_a_coroutine(name: str) -> None:
    loop = asyncio.get_running_loop()
    async with aio.Client(reentrant=True) as client:
        lock = client.lock(name)
        for make in (lock.acquire, lock.release):
            coroutine = make()
            assert isinstance(coroutine, Coroutine) and asyncio.iscoroutine(coroutine)
            assert not asyncio.isfuture(coroutine)
            task = loop.create_task(coroutine)
            assert f"Lock.{make.__name__}()" in repr(task)
            await task
            with pytest.raises(RuntimeError, match="cannot reuse already awaited coroutine"):
                await coroutine
        assert await asyncio.gather(lock.acquire(), lock.acquire()) == [True, True]
        assert await asyncio.ensure_future(lock.release()) is None
        assert await asyncio.shield(lock.release()) is None
        with pytest.raises(ValueError, match="of the test"):
            lock.release().throw(ValueError("of the test"))
        with pytest.raises(redlatch.InvalidArgumentError):
            await lock.acquire(lease=-1)


async def test_what_acquire_and_release_return_can_be_run_by_hand(name: str) -> None:
    # Without a direct connection there is something to wait for.
    async with aio.Client(direct=False) as client:
        lock = client.lock(name)
        for make, value in ((lock.acquire, True), (lock.release, None)):
            coroutine, answered = make(), asyncio.Event()
            waited = coroutine.send(None)
            assert waited._loop is asyncio.get_running_loop() and not waited.done()
            waited.add_done_callback(
                lambda _, event=answered: event.set(), context=contextvars.copy_context()
            )
            await asyncio.wait_for(answered.wait(), LIMIT)
            with pytest.raises(StopIteration) as end:
                coroutine.send(None)
            assert end.value.value is value


async def test_what_a_task_awaits_no_other_can(name: str) -> None:
    async with aio.Client() as client, aio.Client() as other:
        async with other.lock(name):
            waiting = client.lock(name).acquire()
            first = asyncio.create_task(waiting)
            await soon(lambda: client.stats()["waiting"] == 1)

            async def second() -> None:
                await waiting

            with pytest.raises(RuntimeError, match="awaited already"):
                await asyncio.create_task(second())
            assert client.stats()["waiting"] == 1
        assert await asyncio.wait_for(first, LIMIT)


async def test_a_coroutine_that_nobody_awaits_sends_nothing_and_python_warns_of_it(name: str) -> None:
    async with aio.Client() as client:
        lock = client.lock(name)
        for make in (lock.acquire, lock.release):
            before = client.stats()
            with pytest.warns(RuntimeWarning, match=f"coroutine 'Lock.{make.__name__}' was never awaited"):
                make()
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                make().close()
            assert client.stats() == before


async def test_a_task_that_has_ended_leaves_nothing_to_the_next_one_in_its_place(name: str) -> None:
    async with aio.Client() as client:
        lock, known = client.lock(name), {}
        seen_again = 0

        async def work() -> None:
            nonlocal seen_again
            assert not lock.owned() and await lock.acquire() and lock.hold_count == 1
            task = asyncio.current_task()
            assert task is not None
            keys = _tasks.Keys.of(task)
            # Known weakly: what is kept takes the place of the next task.
            if id(task) in known:
                seen_again += 1
                assert known[id(task)]() is not keys
            known[id(task)] = weakref.ref(keys)
            await lock.release()

        gc.collect()
        before = len(_tasks.Keys._of)
        for _ in range(50):
            await asyncio.create_task(work())
        assert seen_again, "ids of tasks come again, keys do not"
        gc.collect()
        assert len(_tasks.Keys._of) <= before + 1


async def test_whoever_calls_owns_whoever_awaits(name: str) -> None:
    async with aio.Client() as client:
        lock = client.lock(name, reentrant=True)
        assert await asyncio.wait_for(lock.acquire(), LIMIT)
        assert await asyncio.create_task(lock.acquire())
        assert lock.hold_count == 2
        await asyncio.wait_for(lock.extend(60), LIMIT)
        assert lock.remaining > 30
        await asyncio.wait_for(lock.release(), LIMIT)
        await asyncio.gather(lock.release())
        assert not await lock.locked()


async def test_wait_for_a_lock_that_is_held(name: str, look: redis.Redis) -> None:
    async with aio.Client() as client, aio.Client() as other:
        async with client.lock(name):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(other.lock(name).acquire(), 0.05)
        await soon(lambda: not look.exists(name))
        assert await other.lock(name).acquire(False)


def test_a_coroutine_made_outside_of_the_loop_belongs_to_the_task_that_awaits_it(name: str) -> None:
    client = aio.Client()
    lock = client.lock(name)
    coroutine = lock.acquire()

    async def main() -> None:
        assert await coroutine and lock.owned()
        await lock.release()
        await client.close()

    asyncio.run(main())


def test_outside_of_a_task_nobody_owns(name: str) -> None:
    lock = aio.Client().lock(name)
    with pytest.raises(RuntimeError):
        lock.owned()
    with pytest.raises(RuntimeError):
        _ = lock.remaining


async def test_a_block_that_gets_no_lock_does_not_run(name: str) -> None:
    async with aio.Client() as client:

        async def enter() -> None:
            async with client.lock(name, timeout=0.05):
                pytest.fail("the body ran")

        async with client.lock(name):
            with pytest.raises(TimeoutError) as caught:
                await in_task(enter)
        assert isinstance(caught.value, redlatch.LockTimeoutError)


async def test_tasks_exclude_each_other(name: str) -> None:
    inside = most = 0
    async with aio.Client() as client:
        lock = client.lock(name)

        async def work() -> None:
            nonlocal inside, most
            for _ in range(10):
                async with lock:
                    inside += 1
                    most = max(most, inside)
                    await asyncio.sleep(0)
                    inside -= 1

        await asyncio.gather(*(work() for _ in range(20)))
        assert client.stats()["acquired"] == 200
    assert (inside, most) == (0, 1)


async def test_a_block_may_be_left_by_another_task(name: str, look: redis.Redis) -> None:
    async with aio.Client() as client:
        lock = client.lock(name)

        @asynccontextmanager
        async def block() -> AsyncIterator[aio.Grant]:
            async with lock as grant:
                yield grant

        opened = block()
        assert (await in_task(opened.__aenter__)).held
        await in_task(lambda: opened.__aexit__(None, None, None))
        assert not look.exists(name)


async def test_a_cancelled_wait_leaves_nothing(name: str, look: redis.Redis) -> None:
    async with aio.Client() as client, aio.Client() as other:
        async with client.lock(name):
            lock = other.lock(name)
            waiters = [asyncio.create_task(wait()) for wait in (lock.acquire, lock.acquire, lock.__aenter__)]
            await soon(lambda: other.stats()["waiting"] == 3)
            for waiter in waiters:
                waiter.cancel()
            assert all(
                isinstance(end, asyncio.CancelledError)
                for end in await asyncio.gather(*waiters, return_exceptions=True)
            )
            await soon(lambda: other.stats()["waiting"] == 0)
        await soon(lambda: not look.exists(name))
        await soon(lambda: not look.pubsub_channels(f"*{name}*"))


async def test_a_grant_that_arrives_as_its_task_is_cancelled_is_released(
    name: str, look: redis.Redis
) -> None:
    async with aio.Client(watchdog_lease=600, direct=False) as client:
        lock = client.lock(name)

        async def enter() -> None:
            async with lock:
                pytest.fail("the body ran")

        for acquire in (enter, lock.acquire):
            task = asyncio.create_task(acquire())
            await asyncio.sleep(0)
            # The answer is in the queue, and nobody has drained it yet ...
            eventually(lambda: client.stats()["acquired"] > client.stats()["released"])
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await soon(lambda: not look.exists(name))

            # ... or the future has it, and the task has not run yet.
            task = asyncio.create_task(acquire())
            bridge = _tasks.Bridge.of(asyncio.get_running_loop())
            await asyncio.sleep(0)
            eventually(lambda: client.stats()["acquired"] > client.stats()["released"])
            bridge._drain()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await soon(lambda: not look.exists(name))


async def answered(client: aio.Client, *acquires: Callable[[], Any]) -> list[asyncio.Task[Any]]:
    """Tasks whose answers are in the queue, and nobody has drained them yet."""
    before = client.stats()["acquired"]
    tasks = [asyncio.create_task(acquire()) for acquire in acquires]
    await asyncio.sleep(0)
    eventually(lambda: client.stats()["acquired"] == before + len(tasks))
    # The client's thread counts before it answers: what it is asked after that it answers later.
    other_loop = threading.Thread(target=lambda: asyncio.run(client.connect()))
    other_loop.start()
    other_loop.join()
    return tasks


@pytest.mark.parametrize("debug", [False, True])
async def test_who_is_answered_goes_on_without_a_turn_of_the_loop(name: str, debug: bool) -> None:
    loop, seen = asyncio.get_running_loop(), []
    async with aio.Client(direct=False) as client:
        [task] = await answered(client, client.lock(name).acquire)
        loop.set_debug(debug)
        loop.call_soon(_tasks.Bridge.of(loop)._drain)
        loop.call_soon(lambda: seen.append(task.done()))
        assert await task
        loop.set_debug(False)
    # A loop that is debugged calls every task itself.
    assert seen == [not debug]


async def test_who_goes_on_at_once_is_the_task_it_was(name: str) -> None:
    loop, variable = asyncio.get_running_loop(), contextvars.ContextVar("variable", default="nobody's")
    async with aio.Client(direct=False) as client:

        async def work() -> tuple[str, Any]:
            variable.set("its own")
            await client.lock(name).acquire()
            return variable.get(), asyncio.current_task()

        [task] = await answered(client, work)
        loop.call_soon(_tasks.Bridge.of(loop)._drain)
        assert await task == ("its own", task)
        assert variable.get() == "nobody's"


async def test_a_task_that_goes_on_may_cancel_one_that_is_next(name: str, look: redis.Redis) -> None:
    loop = asyncio.get_running_loop()
    async with aio.Client(watchdog_lease=600, direct=False) as client:

        async def cancel() -> None:
            await client.lock(name).acquire()
            assert not other.done() and other.cancel()
            await client.lock(name).release()

        first, other = await answered(client, cancel, client.lock(name + "'").acquire)
        loop.call_soon(_tasks.Bridge.of(loop)._drain)
        await first
        with pytest.raises(asyncio.CancelledError):
            await other
        await soon(lambda: not look.exists(name, name + "'"))


def test_a_callback_that_ends_the_loop_leaves_none_of_the_others_untold(name: str) -> None:
    client, told, names = aio.Client(close_limit=0), [], [name + "'" * number for number in range(3)]

    def interrupt(lost: redlatch.LockLostError) -> None:
        told.append(lost.lock_name)
        raise KeyboardInterrupt

    async def lose() -> None:
        for each in names:
            assert await client.lock(each, on_lost=interrupt).acquire()
        client._core.close(None)  # on this thread: when it returns, most losses are in the queue
        await asyncio.sleep(LIMIT)

    loop = asyncio.new_event_loop()
    task = loop.create_task(lose())
    while sorted(told) != names:
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(task)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(task)
    loop.close()


def test_a_task_that_goes_on_may_end_the_loop(name: str, look: redis.Redis) -> None:
    client, tasks = aio.Client(direct=False), []
    loop = asyncio.new_event_loop()

    async def interrupt() -> None:
        await client.lock(name).acquire()
        raise KeyboardInterrupt

    async def begin() -> None:
        tasks.extend(await answered(client, interrupt, client.lock(name + "'").acquire))

    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(begin())
        loop.run_until_complete(tasks[1])
    assert loop.run_until_complete(tasks[1]) is True, "the others go on when the loop does"
    with suppress(KeyboardInterrupt):
        tasks[0].result()
    loop.run_until_complete(client.close())
    loop.close()


async def test_what_asyncio_has_around_an_await(name: str, look: redis.Redis) -> None:
    async with aio.Client(direct=False) as client, aio.Client() as other:
        lock = client.lock(name)
        async with other.lock(name):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(lock.acquire(), 0.02)
            shielded = asyncio.create_task(lock.acquire())
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.shield(shielded), 0.02)
            task = asyncio.create_task(lock.acquire())
            await soon(lambda: client.stats()["waiting"] == 2)
            task.cancel(*(["why"] if sys.version_info >= (3, 11) else []))
            with pytest.raises(asyncio.CancelledError) as caught:
                await task
            assert caught.value.args == (("why",) if sys.version_info >= (3, 11) else ())
        assert await shielded
        done, _ = await asyncio.wait([asyncio.create_task(lock.release())])
        assert [each.result() for each in done] == [None]
        await soon(lambda: not look.exists(name))
        acquiring = lock.acquire()
        acquiring.send(None)
        acquiring.close()
        await soon(lambda: client.stats()["waiting"] == 0 and not look.exists(name))


async def test_tasks_that_pass_a_lock_on_leave_the_loop_to_others(name: str) -> None:
    turns = 0
    async with aio.Client() as client:
        lock = client.lock(name)

        async def work() -> None:
            for _ in range(200):
                await lock.acquire()
                await lock.release()

        async def count() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        counting = asyncio.create_task(count())
        await asyncio.gather(*(work() for _ in range(20)))
        counting.cancel()
    assert turns >= 20


async def test_a_cancelled_body_releases(name: str, look: redis.Redis) -> None:
    async with aio.Client() as client:
        entered = asyncio.Event()

        async def work() -> None:
            async with client.lock(name):
                entered.set()
                await asyncio.sleep(LIMIT)

        task = asyncio.create_task(work())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not look.exists(name)


async def test_a_task_that_ends_with_a_hold(
    name: str, look: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    async with aio.Client(watchdog_lease=RENEWED) as client:
        lock = client.lock(name)
        assert await in_task(lock.acquire)
        assert not await lock.acquire(False)
        await soon(lambda: not look.exists(name))
        await soon(lambda: any(name in record.getMessage() for record in caplog.records), "the log tells")


@pytest.mark.parametrize("on_lost", [None, repr])
@pytest.mark.parametrize("known", [False, True])
async def test_a_task_that_ended_before_its_acquire_did(
    name: str, look: redis.Redis, known: bool, on_lost: Callable[[Any], object] | None
) -> None:
    async with aio.Client() as client:
        lock = client.lock(name, on_lost=on_lost, watchdog_lease=2)

        async def call() -> asyncio.Task[bool]:
            if known:
                async with client.lock(f"{name}:known"):
                    pass
            return asyncio.create_task(lock.acquire())

        assert await (await asyncio.create_task(call()))
        await soon(lambda: not look.exists(name), "nobody renews")


async def test_functions_are_locked(name: str, look: redis.Redis) -> None:
    async with aio.Client() as client:
        inside, over = set[str](), asyncio.Event()

        @client.locked(lambda key: f"{name}:{key}", timeout=0)
        async def function(key: str) -> bool:
            inside.add(key)
            await over.wait()
            return bool(look.exists(f"{name}:{key}"))

        both = [asyncio.create_task(function(key)) for key in ("a", "b")]
        await soon(lambda: inside == {"a", "b"})
        with pytest.raises(redlatch.LockTimeoutError):
            await function("a")
        over.set()
        assert await asyncio.gather(*both) == [True, True]

        @client.locked(name)
        def plain() -> bool:
            return bool(look.exists(name))

        assert await asyncio.to_thread(plain)

        with pytest.raises(TypeError, match="generator"):

            @client.locked(name)
            async def numbers() -> AsyncIterator[int]:
                yield 1


async def test_a_client_for_threads_locks_coroutine_functions_too(name: str, look: redis.Redis) -> None:
    client = redlatch.Client()

    @client.locked(name)
    async def function() -> bool:
        return bool(look.exists(name))

    assert await function() and not look.exists(name)
    client.close()


async def test_an_object_that_is_called_as_a_coroutine_function_is_locked(
    name: str, look: redis.Redis
) -> None:
    class Work:
        async def __call__(self) -> bool:
            await asyncio.sleep(0)
            return bool(look.exists(name))

    async with aio.Client() as client:
        assert await client.locked(name)(Work())() and not look.exists(name)


# ---- a task that ends with its acquire ----


@pytest.mark.parametrize("on_lost", [None, repr])
async def test_a_task_that_does_nothing_but_acquire_is_refused(
    name: str, look: redis.Redis, on_lost: Callable[[Any], object] | None
) -> None:
    async with aio.Client() as client:
        lock, loop = client.lock(name, on_lost=on_lost), asyncio.get_running_loop()

        def call() -> bool:
            return asyncio.run_coroutine_threadsafe(lock.acquire(), loop).result(LIMIT)

        with pytest.raises(redlatch.NotOwnerError, match="run_coroutine_threadsafe") as caught:
            await asyncio.to_thread(call)
        assert caught.value.lock_name == name and not look.exists(name)

        async def both() -> None:
            assert await lock.acquire()
            await lock.release()

        await asyncio.to_thread(lambda: asyncio.run_coroutine_threadsafe(both(), loop).result(LIMIT))


async def test_a_release_after_the_task_that_acquired_has_ended_says_what_is_wrong(name: str) -> None:
    async with aio.Client() as client:
        lock = client.lock(name)
        assert await in_task(lock.acquire)
        with pytest.raises(redlatch.NotOwnerError, match="before that thread or task ends"):
            await lock.release()


async def test_fencing_force_release_and_holder(name: str) -> None:
    async with aio.Client() as client:
        lock = client.lock(name, fencing=True)
        assert await lock.force_release() is False and await lock.holder() is None
        with pytest.raises(redlatch.LockLostError) as caught:
            async with lock as grant:
                holder = await lock.holder()
                assert holder is not None and holder.process is not None and holder.process.pid == os.getpid()
                assert holder == aio.Holder(grant.owner, 1, holder.remaining, holder.process)
                assert grant.fencing_token
                assert await lock.force_release() is True
        assert caught.value.reason == "forced"


async def test_the_queue_of_a_fair_lock_can_be_asked(name: str) -> None:
    async with aio.Client() as client:
        lock = client.lock(name, kind="fair")
        waits = []
        async with lock:
            for position in range(3):
                waits.append(asyncio.create_task(in_task(lock.acquire)))
                while len(await lock.waiters()) == position:
                    pass
            assert all(waiter.process for waiter in await lock.waiters())
            # A waiter that is cancelled leaves the queue at once.
            waits[0].cancel()
            while len(await lock.waiters()) == 3:
                pass
            waits[1].cancel(), waits[2].cancel()
            await asyncio.wait(waits)
        while await lock.waiters():
            pass
        with pytest.raises(ValueError, match="of the kind reentrant; give it the kind fair"):
            await client.lock(name).waiters()


async def test_a_blocked_loop_loses_nothing(name: str) -> None:
    async with aio.Client(watchdog_lease=RENEWED) as client, client.lock(name) as grant:
        eventually(lambda: client.stats()["renewed"] >= 3, "a whole lease has passed")  # blocks the loop
        grant.check()
        assert client.stats()["lost"] == 0


# ---- loops that come and go ----

loops = pytest.mark.parametrize("factory", LOOPS.values(), ids=list(LOOPS))
Factory = Callable[[], asyncio.AbstractEventLoop]


@loops
def test_one_client_for_several_loops(factory: Factory, name: str) -> None:
    client = aio.Client()
    lock = client.lock(name)

    async def work() -> None:
        async with lock:
            assert await lock.locked()

    for _ in range(3):
        run_in_loop(factory(), work())
    run_in_loop(factory(), client.close())


@loops
def test_a_loop_closed_with_work_pending_is_harmless(factory: Factory, name: str, look: redis.Redis) -> None:
    holder, client = redlatch.Client(), aio.Client(watchdog_lease=2)
    lock = client.lock(name)
    grant = holder.lock(name).__enter__()

    async def begin() -> None:
        for acquire in (lock.acquire, lock.__aenter__):
            tasks.append(asyncio.get_running_loop().create_task(acquire()))
        await soon(lambda: client.stats()["waiting"] == 2)

    tasks: list[Any] = []
    loop = factory()
    loop.run_until_complete(begin())
    loop.close()
    grant.release()
    # Python complains of tasks that were pending; that is the point here.
    for task in tasks:
        task._log_destroy_pending = False
    tasks.clear()
    del loop, task
    gc.collect()
    eventually(lambda: not look.exists(name), "what the dead loop had waited for is free")
    assert holder.lock(name).acquire(timeout=LIMIT)
    holder.close()

    run_in_loop(factory(), client.close())


@loops
def test_what_waits_in_a_loop_is_given_up_when_that_is_closed(factory: Factory, name: str) -> None:
    """It stayed in the queue of its lock until the garbage collector found its task."""
    client, loop = aio.Client(), factory()

    async def begin() -> asyncio.Task[bool]:
        task = asyncio.get_running_loop().create_task(client.lock(name).acquire())
        await soon(lambda: client.stats()["waiting"] == 1)
        return task

    with redlatch.Client() as holder, holder.lock(name):
        # Somebody keeps the loop and the task, so nothing is collected.
        task = loop.run_until_complete(begin())
        loop.close()
        eventually(lambda: client.stats()["waiting"] == 0)
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    run_in_loop(factory(), client.close())


@loops
def test_a_closed_loop_that_is_kept_gives_up_when_the_next_one_starts(
    factory: Factory, name: str, look: redis.Redis
) -> None:
    client = aio.Client()
    loop = factory()
    holder = redlatch.Client()
    grant = holder.lock(name).__enter__()

    async def begin() -> None:
        asyncio.get_running_loop().create_task(client.lock(name).acquire())
        await soon(lambda: client.stats()["waiting"] == 1)

    kept = [_tasks.Bridge.of(loop)]
    loop.run_until_complete(begin())
    task = asyncio.all_tasks(loop).pop()
    loop.close()
    grant.release()
    eventually(lambda: client.stats()["acquired"] == 1)
    run_in_loop(factory(), client.lock(name + "'").locked())
    eventually(lambda: not look.exists(name))
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    del task, kept
    holder.close()
    run_in_loop(factory(), client.close())


@loops
def test_a_waiter_of_a_closed_loop_that_is_kept_stayed_in_the_queue_of_its_lock(
    factory: Factory, name: str, look: redis.Redis
) -> None:
    client = aio.Client()
    loop = factory()

    async def begin() -> None:
        asyncio.get_running_loop().create_task(client.lock(name).acquire())
        await soon(lambda: client.stats()["waiting"] == 1)

    kept = [_tasks.Bridge.of(loop)]
    with redlatch.Client() as holder, holder.lock(name):
        loop.run_until_complete(begin())
        task = asyncio.all_tasks(loop).pop()
        loop.close()
        run_in_loop(factory(), client.lock(name + "'").locked())
        eventually(lambda: client.stats()["waiting"] == 0 and not look.pubsub_channels(f"*{name}*"))
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        del task, kept
    run_in_loop(factory(), client.close())


@loops
def test_a_closed_loop_that_is_kept_leaves_nothing_to_its_tasks(
    factory: Factory, name: str, look: redis.Redis
) -> None:
    client = aio.Client(watchdog_lease=2)
    loop, held = factory(), f"{name}:held"

    async def call() -> None:
        assert await client.lock(held).acquire()
        await client.lock(name).acquire()

    async def begin() -> None:
        asyncio.get_running_loop().create_task(call())
        await soon(lambda: client.stats()["waiting"] == 1)

    with redlatch.Client() as holder:
        with holder.lock(name):
            loop.run_until_complete(begin())
            task = asyncio.all_tasks(loop).pop()
            loop.close()
            eventually(lambda: client.stats()["waiting"] == 0, "nobody waits for the lock")
        eventually(lambda: not look.exists(name, held), "nothing is held or renewed")
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    run_in_loop(factory(), client.close())


@loops
def test_a_closed_loop_that_is_kept_leaves_nothing_to_tasks_inside_a_block(
    factory: Factory, name: str, look: redis.Redis
) -> None:
    client = aio.Client(watchdog_lease=2)
    loop = factory()

    async def work() -> None:
        async with client.lock(name):
            entered.set()
            await asyncio.Event().wait()

    async def begin() -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work())
        await entered.wait()
        return task

    entered = asyncio.Event()
    task = loop.run_until_complete(begin())
    loop.close()
    eventually(lambda: not look.exists(name), "nothing is held or renewed")
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    run_in_loop(factory(), client.close())


@loops
def test_a_grant_of_a_task_that_has_ended_outlives_its_loop(
    factory: Factory, name: str, look: redis.Redis
) -> None:
    client, loop = aio.Client(watchdog_lease=RENEWED), factory()
    grant = loop.run_until_complete(client.lock(name).__aenter__())
    loop.close()
    renewed = client.stats()["renewed"]
    eventually(lambda: client.stats()["renewed"] > renewed + 1)
    run_in_loop(factory(), grant.release())
    assert not look.exists(name)
    run_in_loop(factory(), client.close())


# ---- cancelled by a loss ----


async def all_is_told(client: aio.Client, look: redis.Redis, name: str) -> None:
    """A loop is told of losses in their order: when a later one is told, nothing is left of an earlier one."""
    told, later = asyncio.Event(), f"{name}:later"
    with pytest.raises(redlatch.LockLostError):
        async with client.lock(later, on_lost=lambda lost: told.set()):
            look.delete(later)
            await asyncio.wait_for(told.wait(), LIMIT)


async def test_a_loss_cancels_the_body(name: str, look: redis.Redis) -> None:
    async with aio.Client() as client:
        lock = client.lock(name, cancel_on_lost=True)
        with pytest.raises(redlatch.LockLostError) as caught:
            async with lock:
                look.delete(name)
                await asyncio.sleep(LIMIT)
                pytest.fail("not cancelled")
        assert caught.value.reason == "deleted"
        assert isinstance(caught.value.__cause__, asyncio.CancelledError)
        uncancelled()
        await asyncio.sleep(0)


async def test_a_loss_that_comes_as_the_body_ends(name: str, look: redis.Redis) -> None:
    async with aio.Client() as client:
        with pytest.raises(redlatch.LockLostError):
            async with client.lock(name, cancel_on_lost=True) as grant:
                look.delete(name)
                eventually(lambda: grant.lost_reason)
                _tasks.Bridge.of(
                    asyncio.get_running_loop()
                )._drain()  # cancels; the body does not wait any more
        uncancelled()
        await asyncio.sleep(0)


async def test_a_loss_and_a_cancellation_by_somebody_else(name: str, look: redis.Redis) -> None:
    async with aio.Client() as client:

        async def work() -> None:
            async with client.lock(name, cancel_on_lost=True) as grant:
                look.delete(name)
                eventually(lambda: grant.lost_reason)
                _tasks.Bridge.of(asyncio.get_running_loop())._drain()
                task.cancel()
                await asyncio.sleep(LIMIT)

        task = asyncio.create_task(work())
        with pytest.raises((asyncio.CancelledError, redlatch.LockLostError)) as caught:
            await task
        if sys.version_info >= (3, 11):  # 3.10 cannot tell the two apart
            assert caught.type is asyncio.CancelledError


async def test_an_exception_of_the_body_is_not_hidden_by_the_loss(name: str, look: redis.Redis) -> None:
    async with aio.Client() as client:
        with pytest.raises(KeyError) as caught:
            async with client.lock(name, cancel_on_lost=True):
                look.delete(name)
                try:
                    await asyncio.sleep(LIMIT)
                except asyncio.CancelledError:
                    raise KeyError("body") from None
        if sys.version_info >= (3, 11):
            assert any("lost (deleted)" in note for note in caught.value.__notes__)
        uncancelled()


async def test_a_loss_after_an_inner_block_cancels_for_the_outer_one_only(
    name: str, look: redis.Redis
) -> None:
    async with aio.Client(reentrant=True) as client:
        lock = client.lock(name, cancel_on_lost=True)
        with pytest.raises(redlatch.LockLostError):
            async with client.lock(name) as outer:
                async with lock as inner:
                    pass
                look.delete(name)
                await soon(lambda: not outer.held)
                await all_is_told(client, look, name)
        assert inner.lost_reason == "deleted"
        with pytest.raises(redlatch.LockLostError):
            async with lock, lock:
                look.delete(name)
                await asyncio.sleep(LIMIT)
        uncancelled()


async def test_a_body_that_hides_its_cancellation(name: str, look: redis.Redis) -> None:
    async with aio.Client() as client:
        with pytest.raises(redlatch.LockLostError):
            async with client.lock(name, cancel_on_lost=True) as grant:
                look.delete(name)
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(LIMIT)
                with pytest.raises(redlatch.LockLostError):
                    await grant.release()
        uncancelled()


async def test_without_the_option_nothing_is_cancelled(name: str, look: redis.Redis) -> None:
    async with aio.Client() as client:
        with pytest.raises(redlatch.LockLostError):
            async with client.lock(name) as grant:
                look.delete(name)
                await soon(lambda: not grant.held)
                with pytest.raises(redlatch.LockLostError):
                    grant.check()
        uncancelled()


def uncancelled() -> None:
    task = asyncio.current_task()
    assert task is not None and (sys.version_info < (3, 11) or task.cancelling() == 0)


def test_a_loop_that_takes_no_descriptor_is_told_by_a_thread_that_ends_with_it(name: str) -> None:
    def told() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name == "redlatch-loop"]

    async def pass_on(client: aio.Client) -> None:
        async with client.lock(name):
            await asyncio.sleep(0)

    async def main() -> None:
        async with aio.Client() as client:
            await asyncio.gather(*(pass_on(client) for _ in range(20)))
        assert len(told()) == before + 1

    before = len(told())
    run_in_loop(WithoutReaders(), main())
    eventually(lambda: len(told()) == before, "the thread has ended")


def test_a_queue_is_waited_for_where_there_is_no_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = _redlatch.Queue()
    with monkeypatch.context() as windows:
        windows.setattr(sys, "platform", "win32")
        sleep = sleeper(queue)
    sleeping = threading.Thread(target=sleep, daemon=True)
    sleeping.start()
    queue.wake()
    sleeping.join(LIMIT)
    assert not sleeping.is_alive()


# ---- what asyncio has ----


async def test_a_condition_of_asyncio_is_refused_with_what_to_do(name: str) -> None:
    """It would call `release` without `await`: nothing would be released."""
    async with aio.Client() as client:
        lock, side = client.lock(name), client.rw_lock(name).write
        for refused in (lock, side):
            with pytest.raises(
                TypeError, match=r"release\(\) without await.* make an asyncio.Condition\(\) without"
            ):
                asyncio.Condition(refused)  # type: ignore[arg-type]
        async with lock, asyncio.Condition():
            assert await lock.locked()


# ---- a loop that a task runs again ----


def test_a_task_that_runs_its_loop_again_inside_a_lock(name: str) -> None:
    """As nest_asyncio lets it. The task ran inside the callback of the reader, which the loop could not call again."""
    loop, errors = asyncio.SelectorEventLoop(), []
    loop._nest_patched = True  # type: ignore[attr-defined]
    loop.set_exception_handler(lambda _, context: errors.append(context["message"]))

    def run_again(coroutine: Coroutine[Any, Any, None]) -> None:
        outer, inner = asyncio.current_task(), loop.create_task(coroutine)
        asyncio.tasks._leave_task(loop, outer)  # type: ignore[attr-defined]
        while not inner.done() and not errors:
            loop._run_once()  # type: ignore[attr-defined]
        asyncio.tasks._enter_task(loop, outer)  # type: ignore[attr-defined]
        for _ in range(100):  # the outer run has counted what it will find
            loop.call_soon(int)
        assert not errors
        inner.result()

    async def inside(client: aio.Client) -> None:
        async with client.lock(name + "'"):
            pass

    async def main() -> None:
        async with aio.Client() as client:
            async with client.lock(name):
                run_again(inside(client))
            async with client.lock(name):
                run_again(inside(client))

    try:
        loop.run_until_complete(main())
    finally:
        loop.close()


async def test_a_limit_of_the_lock_is_that_of_acquire(client: redlatch.Client, name: str) -> None:
    """`client.lock(name, timeout=0.5).acquire()` waited for ever."""
    async with aio.Client() as own:
        seats = {"limit": 1, "timeout": 0.5}
        assert client.lock(name).acquire() and client.semaphore(name + "'", limit=1).acquire()
        assert not await asyncio.to_thread(client.lock(name, timeout=0.5).acquire)
        assert not await asyncio.to_thread(client.semaphore(name + "'", **seats).acquire)
        assert not await asyncio.wait_for(own.lock(name, timeout=0.5).acquire(), LIMIT)
        assert not await asyncio.wait_for(own.semaphore(name + "'", **seats).acquire(), LIMIT)
        client.lock(name).release()
