"""A callback that was given to a grant is called although nobody has the grant any more."""

from __future__ import annotations

import asyncio
import gc

import redlatch
from conftest import LIMIT, eventually
from redlatch import aio


def test_a_callback_is_told_when_its_grant_was_collected(name: str) -> None:
    told: list[redlatch.LockLostError] = []

    def lead(client: redlatch.Client, lock_name: str) -> None:
        client.lock(lock_name).__enter__().on_lost(told.append)

    def lead_by_option(client: redlatch.Client, lock_name: str) -> None:
        client.lock(lock_name, on_lost=told.append).__enter__()

    with redlatch.Client(watchdog_lease=1) as client:
        lead(client, name)
        lead_by_option(client, name + ":2")
        gc.collect()
        eventually(lambda: len(told) == 2)
        assert {loss.reason for loss in told} == {"expired"}


async def test_a_callback_in_a_loop_is_told_when_its_grant_was_collected(name: str) -> None:
    told: asyncio.Queue[redlatch.LockLostError] = asyncio.Queue()

    async def lead(client: aio.Client, lock_name: str) -> None:
        (await client.lock(lock_name).__aenter__()).on_lost(told.put_nowait)

    async def lead_by_option(client: aio.Client, lock_name: str) -> None:
        await client.lock(lock_name, on_lost=told.put_nowait).__aenter__()

    async with aio.Client(watchdog_lease=1) as client:
        await lead(client, name)
        await lead_by_option(client, name + ":2")
        gc.collect()
        for _ in range(2):
            assert (await asyncio.wait_for(told.get(), LIMIT)).reason == "expired"
