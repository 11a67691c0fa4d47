"""Whatever is cancelled, whenever, leaves no key and no subscription."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import redis
import redlatch
from conftest import LIMIT, eventually, soon
from redlatch import aio

CANCELS = 10_000
TASKS = 100


async def test_ten_thousand_random_cancels(look: redis.Redis, name: str) -> None:
    chance = random.Random(1)
    names = [f"{name}:{number}" for number in range(10)]
    cancelled = finished = 0
    loop = asyncio.get_running_loop()
    async with (
        aio.Client(watchdog_lease=600, reentrant=True) as client,
        aio.Client(watchdog_lease=600, reentrant=True) as other,
    ):

        async def hold(lock: aio.Lock) -> None:
            if chance.random() < 0.5:
                async with lock, lock:
                    await asyncio.sleep(chance.random() * 0.001)
                return
            with suppress(redlatch.UnavailableError):  # an answer that is a second late, on a busy machine
                if await lock.acquire(timeout=chance.choice([0, 0.001, LIMIT])):
                    await lock.release()

        async def work() -> None:
            nonlocal cancelled, finished
            while cancelled < CANCELS:
                task = asyncio.create_task(hold(chance.choice([client, other]).lock(chance.choice(names))))
                # Early and late, and some never, on an idle machine and on a busy one.
                delay = chance.random() * chance.choice([0.001, 0.01, 0.1, 2 * LIMIT])
                later = loop.call_later(delay, task.cancel)
                try:
                    await task
                    finished += 1
                except asyncio.CancelledError:
                    cancelled += 1
                later.cancel()

        await asyncio.gather(*(work() for _ in range(TASKS)))
        for both in (client, other):
            await soon(lambda both=both: both.stats()["waiting"] == 0)  # type: ignore[misc]
        await soon(lambda: not look.exists(*names), "no key is left")
        await soon(lambda: not look.pubsub_channels(f"*{name}*"), "no subscription is left")
        for both in (client, other):
            await soon(lambda both=both: both.stats()["holds"] == 0)  # type: ignore[misc]
    assert cancelled >= CANCELS and finished > 0


def test_threads_that_give_up_at_random(look: redis.Redis, name: str) -> None:
    names = [f"{name}:{number}" for number in range(4)]
    outcomes: list[bool] = []
    with redlatch.Client() as client, redlatch.Client() as other:

        def work(seed: int) -> None:
            chance = random.Random(seed)
            for _ in range(100):
                lock = chance.choice([client, other]).lock(chance.choice(names))
                won = False
                with suppress(
                    redlatch.UnavailableError
                ):  # an answer that is a second late, on a busy machine
                    won = lock.acquire(timeout=chance.random() * 0.004)
                outcomes.append(won)
                if won:
                    time.sleep(chance.random() * 0.001)
                    lock.release()

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(4 * LIMIT)
        assert len(outcomes) == 1000 and True in outcomes
        eventually(lambda: not look.exists(*names))
        eventually(lambda: not look.pubsub_channels(f"*{name}*"))
        assert client.stats()["holds"] == client.stats()["waiting"] == 0


# ---- what a signal's handler raises ----


class Interrupted(BaseException):
    """As KeyboardInterrupt, or what a limit of time raises."""


def interrupt(call: Callable[[], object], at: int) -> str:
    """Raises at this bytecode of ours, counted from the call on; where that was, or nothing if there are not so many."""
    places, where = itertools.count(1), ""

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal where
        # Not in the dispatcher: the end of `with` is traced as well, and the lock of a thread would stay locked, which no signal does.
        if Path(frame.f_code.co_filename).name not in ("_sync.py", "_threads.py", "_base.py"):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and next(places) == at:
            where = f"{frame.f_code.co_name}:{frame.f_lineno}:{frame.f_lasti}"
            raise Interrupted
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except Interrupted:
        pass
    finally:
        sys.settrace(before)
    return where


@pytest.mark.parametrize("on_lost", [None, repr])
def test_an_exception_at_any_bytecode_leaves_nothing_held(
    look: redis.Redis, name: str, on_lost: Callable[[Any], object] | None
) -> None:
    def block() -> None:
        with lock as grant:
            if on_lost is not None:
                grant.on_lost(on_lost)

    with redlatch.Client() as client:
        for at in itertools.count(0):
            lock = client.lock(f"{name}:{at}", on_lost=on_lost)
            block()  # what is made once is there
            where = interrupt(block, at)
            eventually(lambda: not look.exists(lock.name), where)  # noqa: B023
            # Python 3.12 reports the bytecodes of a function only after a first call that asks for them.
            if at > 0 and not where:
                break
        assert at > 20 and client.stats()["holds"] == 0


def test_ctrl_c_at_any_time_leaves_nothing_held(
    client: redlatch.Client, look: redis.Redis, name: str
) -> None:
    """A signal comes as often as its handler lets it, and the handler raises."""
    lock, interrupted, done = client.lock(name), 0, 0

    def handle(number: int, frame: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, handle)
    try:
        for microseconds in itertools.islice(itertools.cycle(range(20, 400, 7)), 1500):
            try:
                signal.setitimer(signal.ITIMER_REAL, microseconds / 1e6)
                with lock:
                    done += 1
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Interrupted:
                interrupted += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    # The key goes before the client hears of it.
    eventually(lambda: not look.exists(name) and client.stats()["holds"] == 0)
    assert interrupted


# ---- from another thread ----


@pytest.mark.parametrize("on_lost", [None, repr])
def test_a_wait_is_ended_from_another_thread(
    client: redlatch.Client, look: redis.Redis, name: str, on_lost: Callable[[Any], object] | None
) -> None:
    canceller = redlatch.Canceller()
    lock = client.lock(name, on_lost=on_lost, canceller=canceller)

    def enter() -> None:
        with lock:
            pytest.fail("the body ran")

    with redlatch.Client() as other, ThreadPoolExecutor(3) as pool:
        with other.lock(name):
            waits = [pool.submit(enter), pool.submit(lock.acquire, canceller=canceller)]
            stays = pool.submit(client.lock(name).acquire)
            eventually(lambda: client.stats()["waiting"] == 3)
            assert not canceller.cancelled
            canceller.cancel()
            for wait in waits:
                with pytest.raises(redlatch.LockCancelledError) as caught:
                    wait.result(LIMIT)
                assert caught.value.lock_name == name
            assert canceller.cancelled and not stays.done()
        assert stays.result(LIMIT)
    with pytest.raises(redlatch.LockCancelledError):
        client.lock(name + "'").acquire(canceller=canceller)
    assert not look.exists(name + "'")


@pytest.mark.parametrize("by", ["a thread", "a signal handler"])
def test_a_wait_of_the_main_thread_is_ended(client: redlatch.Client, name: str, by: str) -> None:
    canceller = redlatch.Canceller()
    before = signal.signal(signal.SIGUSR1, lambda *_: canceller.cancel())

    def later() -> None:
        eventually(lambda: client.stats()["waiting"] == 1)
        if by == "a thread":
            canceller.cancel()
        else:
            os.kill(os.getpid(), signal.SIGUSR1)

    thread = threading.Thread(target=later)
    try:
        with redlatch.Client() as other, other.lock(name):
            thread.start()
            with pytest.raises(redlatch.LockCancelledError):
                client.lock(name).acquire(canceller=canceller)
            thread.join(LIMIT)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_waits_that_are_ended_at_random_leave_nothing(look: redis.Redis, name: str) -> None:
    outcomes: list[bool | None] = []
    with redlatch.Client() as client, redlatch.Client() as other:

        def work(seed: int) -> None:
            chance = random.Random(seed)
            for turn in range(50):
                lock, canceller = chance.choice([client, other]).lock(name), redlatch.Canceller()
                if turn % 5 == 0:
                    canceller.cancel()
                timer = threading.Timer(chance.random() * 0.004, canceller.cancel)
                timer.start()
                try:
                    outcomes.append(lock.acquire(canceller=canceller))
                    time.sleep(chance.random() * 0.001)
                    lock.release()
                except redlatch.LockCancelledError:
                    outcomes.append(None)
                timer.join(LIMIT)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(4 * LIMIT)
        assert len(outcomes) == 400 and None in outcomes
        for each in (client, other):
            eventually(lambda each=each: each.stats()["holds"] == each.stats()["waiting"] == 0)  # type: ignore[misc]
        eventually(lambda: not look.exists(name) and not look.pubsub_channels(f"*{name}*"))


def test_what_is_no_canceller_is_refused(client: redlatch.Client, name: str) -> None:
    with pytest.raises(TypeError, match="canceller is 5"):
        client.lock(name, canceller=5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"Canceller|canceller"):
        client.lock(name).acquire(canceller=threading.Event())  # type: ignore[arg-type]
