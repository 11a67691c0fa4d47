"""A holder that loses its lock is told within milliseconds."""

from __future__ import annotations

import _thread
import asyncio
import gc
import logging
import sys
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
import redis
import redlatch
from conftest import LIMIT, RENEWED, Server, eventually, soon, wait_for_renewal
from redlatch import _dispatcher, aio
from redlatch.compat import redispy as compat

LONG = 20 * LIMIT
"""A lease in seconds. It is not renewed within the limit, so nothing but the server's word tells that the lock is lost."""


def all_is_told(client: redlatch.Client, look: redis.Redis, name: str) -> None:
    """Callbacks are called in their order, by one thread: when a later loss is told, nothing is left of an earlier one."""
    told, later = threading.Event(), f"{name}:later"
    with pytest.raises(redlatch.LockLostError), client.lock(later, on_lost=lambda lost: told.set()):
        look.delete(later)
        assert told.wait(LIMIT)


def after_acquire(lock: redlatch.Lock, look: redis.Redis) -> None:
    pass


def after_renewal(lock: redlatch.Lock, look: redis.Redis) -> None:
    renewed = lock._client.stats()["renewed"]
    look.pexpire(lock.name, 25_000)  # a change by another hand has the lock renewed at once
    eventually(lambda: lock._client.stats()["renewed"] > renewed)


def after_re_entry(lock: redlatch.Lock, look: redis.Redis) -> None:
    lock.acquire()


def after_partial_release(lock: redlatch.Lock, look: redis.Redis) -> None:
    lock.acquire()
    lock.release()


def after_extension(lock: redlatch.Lock, look: redis.Redis) -> None:
    lock.extend(2 * LONG)


def after_reconnect(lock: redlatch.Lock, look: redis.Redis) -> None:
    connects, renewed = (lock._client.stats()[counter] for counter in ("connects", "renewed"))
    look.client_kill_filter(_type="normal", skipme=True)
    eventually(lambda: lock._client.stats()["connects"] > connects)
    eventually(lambda: lock._client.stats()["renewed"] > renewed)


MOMENTS = [
    after_acquire,
    after_renewal,
    after_re_entry,
    after_partial_release,
    after_extension,
    after_reconnect,
]


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_key_deleted_by_hand(moment: Callable[..., None], name: str, look: redis.Redis) -> None:
    told = threading.Event()
    with redlatch.Client(watchdog_lease=LONG) as client:
        lock = client.lock(name, on_lost=lambda lost: told.set(), reentrant=True)
        with pytest.raises(redlatch.LockLostError) as caught, lock as grant:
            moment(lock, look)
            look.delete(name)
            assert told.wait(LIMIT)
            assert (grant.held, grant.lost_reason, grant.remaining, lock.owned()) == (
                False,
                "deleted",
                0,
                False,
            )
            with pytest.raises(redlatch.LockLostError):
                grant.check()
        assert (caught.value.reason, caught.value.lock_name) == ("deleted", name)


@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_key_deleted_by_hand_in_asyncio(moment: Any, name: str, look: redis.Redis) -> None:
    told = asyncio.Event()
    async with aio.Client(watchdog_lease=LONG) as client:
        lock = client.lock(name, on_lost=lambda lost: told.set(), reentrant=True)
        with pytest.raises(redlatch.LockLostError) as caught:
            async with lock:
                if moment is after_re_entry:
                    await lock.acquire()
                elif moment is after_partial_release:
                    await lock.acquire()
                    await lock.release()
                elif moment is after_extension:
                    await lock.extend(2 * LONG)
                else:
                    moment(lock, look)
                look.delete(name)
                await asyncio.wait_for(told.wait(), LIMIT)
        assert caught.value.reason == "deleted"


def test_how_soon_is_milliseconds(client: redlatch.Client, look: redis.Redis, name: str) -> None:
    def is_told_soon() -> bool:
        told = threading.Event()
        with pytest.raises(redlatch.LockLostError), client.lock(name) as grant:
            grant.on_lost(lambda lost: told.set())
            started = time.monotonic()
            look.delete(name)
            assert told.wait(LIMIT)
            delay = time.monotonic() - started
        return delay < 0.05

    eventually(is_told_soon, "a busy machine has a quiet moment")


def test_a_fixed_lease_that_was_left_to_run_out_is_acquired_anew(client: redlatch.Client, name: str) -> None:
    lock = client.lock(name, reentrant=True)
    assert lock.acquire(lease=1) and lock.acquire(lease=1)
    eventually(lambda: not lock.owned())
    # It raised LockLostError until the thread had released what it had left to its lease.
    assert lock.acquire(timeout=LIMIT)
    assert lock.owned() and lock.hold_count == 1
    lock.release()
    with pytest.raises(redlatch.NotOwnerError):
        lock.release()


async def test_a_fixed_lease_that_was_left_to_run_out_is_acquired_anew_in_asyncio(name: str) -> None:
    async with aio.Client() as client:
        lock = client.lock(name)
        assert await lock.acquire(lease=1)
        await soon(lambda: not lock.owned())
        assert await lock.acquire(timeout=LIMIT)
        await lock.release()
        with pytest.raises(redlatch.NotOwnerError):
            await lock.release()


def test_in_the_block_of_a_lease_that_ran_out_the_error_says_what_helps(
    client: redlatch.Client, name: str
) -> None:
    lock = client.lock(name, lease=1)
    with pytest.raises(redlatch.LockLostError), lock as grant:
        eventually(lambda: not grant.held)
        with pytest.raises(redlatch.LockLostError, match="has to be released first"):
            lock.acquire()
    with client.lock(name):
        pass


def test_a_stolen_key(client: redlatch.Client, look: redis.Redis, name: str) -> None:
    with pytest.raises(redlatch.LockLostError) as caught, client.lock(name) as grant:
        with look.pipeline() as both:
            both.delete(name)
            both.hset(name, "somebody:1", 1)
            both.execute()
        eventually(lambda: not grant.held)
    assert caught.value.reason == "stolen"
    assert look.hgetall(name) == {"somebody:1": "1"}


def test_without_a_server_the_deadline_tells(own_server: Server) -> None:
    told: list[redlatch.LockLostError] = []
    client = redlatch.Client(own_server.url, watchdog_lease=RENEWED, close_limit=0.1)
    with pytest.raises(redlatch.LockLostError) as caught, client.lock("a", on_lost=told.append) as grant:
        own_server.kill()
        eventually(lambda: told)
        assert not grant.held
    assert caught.value.reason == told[0].reason == "unreachable"
    started = time.monotonic()
    client.close()
    assert time.monotonic() - started < LIMIT


def test_a_lost_hold_has_to_be_unwound(client: redlatch.Client, look: redis.Redis, name: str) -> None:
    lock = client.lock(name, reentrant=True)
    assert lock.acquire() and lock.acquire()
    look.delete(name)
    eventually(lambda: not lock.owned())
    for _ in range(2):
        with pytest.raises(redlatch.LockLostError):
            lock.acquire()
        with pytest.raises(redlatch.LockLostError):
            lock.release()
    assert lock.acquire()
    lock.release()


def test_the_exception_of_the_body_goes_first(client: redlatch.Client, look: redis.Redis, name: str) -> None:
    with pytest.raises(KeyError) as caught, client.lock(name) as grant:
        look.delete(name)
        eventually(lambda: not grant.held)
        raise KeyError("body")
    if sys.version_info >= (3, 11):
        assert ["lost (deleted)" in note for note in caught.value.__notes__] == [True]


def test_a_check_that_fails_is_not_noted_twice(client: redlatch.Client, look: redis.Redis, name: str) -> None:
    with pytest.raises(redlatch.LockLostError) as caught, client.lock(name) as grant:
        look.delete(name)
        eventually(lambda: not grant.held)
        grant.check()
    assert not getattr(caught.value, "__notes__", [])


def test_told_once_for_each_hold(client: redlatch.Client, look: redis.Redis, name: str) -> None:
    told: list[Any] = []
    lock = client.lock(name, on_lost=told.append, reentrant=True)
    same = client.lock(name, on_lost=lambda lost: told.append("same"), reentrant=True)
    with pytest.raises(redlatch.LockLostError), lock as grant, lock, same, same:
        assert lock.acquire()
        grant.on_lost(lambda lost: told.append("own"))
        look.delete(name)
        eventually(lambda: len(told) == 3)
        all_is_told(client, look, name)
    assert len(told) == 3 and {"own", "same"} < {str(item) for item in told}


def test_who_got_the_lock_passed_on_is_told_too(
    client: redlatch.Client, look: redis.Redis, name: str
) -> None:
    told: list[Any] = []

    def one(lock: redlatch.Lock, owners: list[str]) -> None:
        with suppress(redlatch.LockLostError), lock as grant:
            owners.append(grant.owner)
            if len(owners) == 5:
                look.delete(lock.name)
                eventually(lambda: told)

    def passed_on() -> bool:
        told.clear()
        lock, owners = client.lock(name, on_lost=told.append), list[str]()
        threads = [threading.Thread(target=one, args=(lock, owners)) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(told) == 1
        return owners[3] == owners[4]

    eventually(passed_on, "the last two are one owner")


async def test_who_got_the_lock_passed_on_is_told_too_in_asyncio(name: str, look: redis.Redis) -> None:
    told: list[Any] = []

    async def one(lock: aio.Lock, owners: list[str]) -> None:
        with suppress(redlatch.LockLostError):
            async with lock as grant:
                owners.append(grant.owner)
                if len(owners) == 5:
                    look.delete(lock.name)
                    await soon(lambda: told)

    async with aio.Client() as client:
        for _ in range(1000):
            told.clear()
            lock, owners = client.lock(name, on_lost=told.append), list[str]()
            await asyncio.gather(*(one(lock, owners) for _ in range(5)))
            assert len(told) == 1
            if owners[3] == owners[4]:
                return
    pytest.fail("it was never passed on")


def test_a_hold_that_ended_well_tells_nobody(client: redlatch.Client, look: redis.Redis, name: str) -> None:
    from redlatch._dispatcher import dispatcher

    lock = client.lock(name, on_lost=lambda lost: pytest.fail("told"))
    for _ in range(300):
        with lock:
            pass
        assert lock.acquire()
        lock.release()
    assert len(dispatcher.watchers._callbacks) < 200


def test_a_grant_that_was_released_tells_nobody(
    client: redlatch.Client, look: redis.Redis, name: str
) -> None:
    told: list[Any] = []
    lock = client.lock(name, reentrant=True)
    with pytest.raises(redlatch.LockLostError), lock as outer:
        with lock as inner:
            inner.on_lost(told.append)
        look.delete(name)
        eventually(lambda: not outer.held)
        all_is_told(client, look, name)
    assert told == []


def test_a_callback_added_after_the_loss_is_called(
    client: redlatch.Client, look: redis.Redis, name: str
) -> None:
    told = threading.Event()
    with pytest.raises(redlatch.LockLostError), client.lock(name) as grant:
        look.delete(name)
        eventually(lambda: not grant.held)
        grant.on_lost(lambda lost: told.set())
        assert told.wait(LIMIT)


def test_a_callback_that_fails_is_logged_and_others_go_on(
    client: redlatch.Client, look: redis.Redis, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    told = threading.Event()

    def fail(lost: redlatch.LockLostError) -> None:
        raise ZeroDivisionError

    with pytest.raises(redlatch.LockLostError), client.lock(name, on_lost=fail) as grant:
        grant.on_lost(lambda lost: told.set())
        look.delete(name)
        assert told.wait(LIMIT)
    eventually(lambda: any(record.exc_info for record in caplog.records))


def test_a_thread_that_could_not_be_started_is_started_by_the_next_call(
    client: redlatch.Client, look: redis.Redis, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = threading.Event()
    with pytest.raises(redlatch.LockLostError), client.lock(name) as grant:
        monkeypatch.setattr(_dispatcher, "dispatcher", _dispatcher.Dispatcher())
        with monkeypatch.context() as full:

            def start(*_: object) -> None:
                raise RuntimeError("can't start new thread")

            full.setattr(_thread, "start_new_thread", start)
            with pytest.raises(redlatch.UnavailableError, match="can't start"):
                grant.on_lost(print)
        grant.on_lost(lambda lost: told.set())
        look.delete(name)
        assert told.wait(LIMIT)


class Failing(logging.Handler):
    """A handler that raises, which those of the standard library never do."""

    def emit(self, record: logging.LogRecord) -> None:
        raise ZeroDivisionError


def test_nothing_that_is_raised_keeps_later_losses_from_being_told(
    client: redlatch.Client, look: redis.Redis, name: str
) -> None:
    told = threading.Event()

    def leave(lost: redlatch.LockLostError) -> None:
        told.set()
        sys.exit(1)

    failing = Failing()
    for _ in range(2):
        told.clear()
        with pytest.raises(redlatch.LockLostError), client.lock(name, on_lost=leave):
            look.delete(name)
            assert told.wait(LIMIT)
        logging.getLogger("redlatch").addHandler(failing)
    logging.getLogger("redlatch").removeHandler(failing)


def test_while_a_callback_blocks_locks_are_renewed_and_calls_answered(
    client: redlatch.Client, look: redis.Redis, name: str
) -> None:
    called, end = threading.Event(), threading.Event()

    def block(lost: redlatch.LockLostError) -> None:
        called.set()
        assert end.wait(2 * LIMIT)

    other = client.lock(f"{name}:other", watchdog_lease=RENEWED)
    with pytest.raises(redlatch.LockLostError), other as held, client.lock(name, on_lost=block):
        look.delete(name)
        assert called.wait(LIMIT)
        try:
            renewed = client.stats()["renewed"]
            eventually(lambda: client.stats()["renewed"] > renewed + 1)
            assert client.lock(f"{name}:third").acquire(timeout=LIMIT)
            client.lock(f"{name}:third").release()
            held.check()
        finally:
            end.set()


def test_a_callback_may_use_the_client(client: redlatch.Client, look: redis.Redis, name: str) -> None:
    answers: list[bool] = []
    lock = client.lock(name, on_lost=lambda lost: answers.append(client.lock(name).locked()))
    with pytest.raises(redlatch.LockLostError), lock:
        look.delete(name)
        eventually(lambda: answers == [False])


# ---- callbacks that would never run ----


def test_a_callback_that_is_a_coroutine_function_is_refused_where_no_loop_runs_it(
    client: redlatch.Client, name: str
) -> None:
    async def stop(lost: redlatch.LockLostError) -> None:
        pass

    class Stop:
        async def __call__(self, lost: redlatch.LockLostError) -> None:
            pass

    for callback in (stop, Stop()):
        with pytest.raises(TypeError, match="use redlatch"):
            client.lock(name, on_lost=callback)
        with client.lock(name) as grant, pytest.raises(TypeError, match="use redlatch"):
            grant.on_lost(callback)
        with pytest.raises(TypeError, match="use redlatch"):
            compat.Lock(client, name, on_lost=callback)


def test_a_callback_that_cannot_be_called_is_refused(client: redlatch.Client, name: str) -> None:
    for make in (client.lock, aio.Client().lock):
        with pytest.raises(TypeError, match="on_lost is 5; give it a function"):
            make(name, on_lost=5)  # type: ignore[operator]
    with client.lock(name) as grant, pytest.raises(TypeError, match="on_lost is None"):
        grant.on_lost(None)  # type: ignore[arg-type]


def test_a_callback_that_returns_a_coroutine_after_all_is_told_in_the_log(
    client: redlatch.Client, look: redis.Redis, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def stop() -> None:
        pass

    coroutine = stop()
    with pytest.raises(redlatch.LockLostError), client.lock(name, on_lost=lambda lost: coroutine):
        look.delete(name)
        eventually(
            lambda: any(each.exc_info and "redlatch.aio" in str(each.exc_info[1]) for each in caplog.records)
        )
    coroutine.close()


async def test_a_callback_of_asyncio_may_be_a_coroutine_function(name: str, look: redis.Redis) -> None:
    told = asyncio.Event()

    async def stop(lost: redlatch.LockLostError) -> None:
        await asyncio.sleep(0)
        if lost.reason == "deleted":
            told.set()

    async with aio.Client() as client:
        for callback in ("lock", "grant"):
            told.clear()
            with pytest.raises(redlatch.LockLostError):
                async with client.lock(name, on_lost=stop if callback == "lock" else None) as grant:
                    if callback == "grant":
                        grant.on_lost(stop)
                    look.delete(name)
                    await asyncio.wait_for(told.wait(), LIMIT)


async def test_what_a_coroutine_of_a_callback_raises_is_logged(
    name: str, look: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(lost: redlatch.LockLostError) -> None:
        await asyncio.sleep(0)
        raise ZeroDivisionError

    async with aio.Client() as client:
        with pytest.raises(redlatch.LockLostError):
            async with client.lock(name, on_lost=fail):
                look.delete(name)
                await soon(lambda: any(record.exc_info for record in caplog.records))


# ---- a client that nobody has any more ----


@pytest.mark.parametrize("collected_in", ["a count of references", "a cycle"])
def test_a_lock_whose_client_was_collected_is_kept_and_its_loss_is_told(
    collected_in: str, name: str, look: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    def acquire() -> bool:
        client = redlatch.Client(watchdog_lease=RENEWED)
        if collected_in == "a cycle":
            client.itself = client  # type: ignore[attr-defined]
        return client.lock(name).acquire(False)

    assert acquire()
    gc.collect()
    for _ in range(2):
        wait_for_renewal(look, name)
    look.delete(name)
    eventually(
        lambda: any(getattr(each, "redlatch_event", "") == "lost" for each in caplog.records), "it is told"
    )
    assert name in caplog.text


def test_a_client_that_holds_nothing_is_collected(name: str) -> None:
    client = redlatch.Client()
    with client.lock(name):
        pass
    gone = weakref.ref(client)
    del client
    gc.collect()
    eventually(lambda: gone() is None)


# ---- the log ----


def test_what_happens_is_logged(name: str, look: redis.Redis, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "redlatch")
    with (
        redlatch.Client(debug_events=True) as client,
        pytest.raises(redlatch.LockLostError),
        client.lock(name) as grant,
    ):
        look.delete(name)
        eventually(lambda: not grant.held)
    kinds: dict[Any, logging.LogRecord] = {}

    def all_are_told() -> bool:  # by a thread of the client, in its own time
        kinds.update((getattr(record, "redlatch_event", None), record) for record in caplog.records)
        return {"connected", "acquired", "lost"} <= set(kinds)

    eventually(all_are_told)
    assert kinds["connected"].levelno == logging.INFO and kinds["acquired"].levelno == logging.DEBUG
    lost = kinds["lost"]
    assert lost.levelno == logging.WARNING and name in lost.getMessage()
    assert lost.redlatch_lock == name  # type: ignore[attr-defined]


async def test_a_loss_in_asyncio_is_told_in_the_loop(name: str, look: redis.Redis) -> None:
    threads: list[threading.Thread] = []
    async with aio.Client() as client:
        with pytest.raises(redlatch.LockLostError):
            async with client.lock(name) as grant:
                grant.on_lost(lambda lost: threads.append(threading.current_thread()))
                look.delete(name)
                await soon(lambda: threads)
    assert threads == [threading.current_thread()]


def test_the_loss_of_another_lock_hides_no_loss(
    client: redlatch.Client, name: str, look: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    outer, inner = client.lock(name), client.lock(name + "'")
    with pytest.raises(redlatch.LockLostError) as caught, outer, inner:
        look.delete(name, name + "'")
        eventually(lambda: client.stats()["lost"] == 2)
    assert caught.value.lock_name == inner.name
    told = getattr(caught.value, "__notes__", None) or caplog.messages
    assert any("lost (deleted)" in text and f'"{outer.name}"' in text for text in told)


def test_callers_that_take_turns_at_a_read_lock_are_told_once(
    client: redlatch.Client, name: str, look: redis.Redis
) -> None:
    told: list[redlatch.LockLostError] = []
    read = client.rw_lock(name, reentrant=True, on_lost=told.append).read
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as two:
        for pool in (one, two, one):
            assert pool.submit(read.acquire).result(LIMIT)
        look.delete(name)
        eventually(lambda: len(told) >= 2)
    client.close()  # whatever is to be told has been told
    assert len(told) == 2
