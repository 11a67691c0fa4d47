"""Whatever is cancelled, whenever, leaves no key and no subscription."""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
import threading
import time
from collections.abc import Callable
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
    async with aio.Client(watchdog_lease=600) as client, aio.Client(watchdog_lease=600) as other:

        async def hold(lock: aio.Lock) -> None:
            if chance.random() < 0.5:
                async with lock, lock:
                    await asyncio.sleep(chance.random() * 0.001)
            elif await lock.acquire(timeout=chance.choice([0, 0.001, LIMIT])):
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
    """Raises in this line of ours, counted from the call on; where that was, or nothing if there are not so many."""
    lines, where = itertools.count(1), ""

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal where
        # Not in the dispatcher: the end of `with` has a line as well, and the lock of a thread would stay locked, which no signal does.
        if Path(frame.f_code.co_filename).name not in ("_sync.py", "_base.py"):
            return None
        # About what comes before the `try` of a block's end nothing can be done in Python.
        begins = frame.f_code.co_name == "__exit__" and frame.f_lineno <= frame.f_code.co_firstlineno + 5
        if event == "line" and not begins and next(lines) == at:
            where = f"{frame.f_code.co_name}:{frame.f_lineno}"
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
def test_an_exception_between_two_lines_leaves_nothing_held(
    look: redis.Redis, name: str, on_lost: Callable[[Any], object] | None
) -> None:
    def block() -> None:
        with lock:
            pass

    with redlatch.Client() as client:
        for at in itertools.count(1):
            lock = client.lock(f"{name}:{at}", on_lost=on_lost)
            block()  # what is made once is there
            where = interrupt(block, at)
            eventually(lambda: not look.exists(lock.name), where)  # noqa: B023
            if not where:
                break
        assert at > 20 and client.stats()["holds"] == 0
