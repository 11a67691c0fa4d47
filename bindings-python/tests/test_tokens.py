"""Locks that outlive whoever acquired them: tokens that are passed on, and holds that linger."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import redlatch
from conftest import LIMIT, eventually
from redlatch import aio


def test_whoever_knows_the_token_extends_and_releases(look: Any, name: str) -> None:
    with redlatch.Client(kind="simple") as first, redlatch.Client(kind="simple") as second:
        lock, there = first.lock(name, lease=60), second.lock(name)
        assert lock.acquire(token="job 7")
        for refused in (lambda: there.release_token("job 8"), lambda: there.extend_token("job 8", 120)):
            with pytest.raises(redlatch.NotOwnerError):
                refused()
        there.extend_token("job 7", 120)
        assert look.pttl(name) > 60_000
        there.release_token("job 7")
        assert not look.exists(name)
        with pytest.raises(redlatch.LockLostError):
            lock.release()


def test_a_caller_that_passes_its_locks_on_need_not_release_them(
    client: redlatch.Client, look: Any, name: str
) -> None:
    lock = client.lock(name, kind="simple")
    for lost, job in enumerate(("job 1", "job 2"), 1):
        assert lock.acquire(timeout=LIMIT, token=job)
        look.delete(name)
        eventually(lambda lost=lost: client.stats()["lost"] == lost)  # type: ignore[misc]
    assert lock.acquire(timeout=LIMIT, token="job 3")
    lock.release()
    assert not look.exists(name)


async def test_a_task_passes_it_on(look: Any, name: str) -> None:
    async with aio.Client(kind="simple") as first, aio.Client(kind="simple") as second:
        lock, there = first.lock(name, lease=60), second.lock(name)
        assert await lock.acquire(token="job 7")
        await there.extend_token("job 7", 120)
        assert look.pttl(name) > 60_000
        await there.release_token("job 7")
        assert not look.exists(name)
        with pytest.raises(redlatch.NotOwnerError):
            await there.release_token("job 7")


def test_an_adopted_lock_outlives_the_hold_that_handed_it_on(look: Any, name: str) -> None:
    with redlatch.Client(kind="simple") as first, redlatch.Client(kind="simple") as second:
        lock, there = first.lock(name), second.lock(name)
        assert lock.acquire(token="job 7", lease=1)
        with pytest.raises(redlatch.NotOwnerError):
            there.adopt("job 8")
        there.adopt("job 7")
        # The first hold is lost, and its release leaves the lock alone.
        eventually(lambda: first.stats()["lost"] == 1)
        with pytest.raises(redlatch.LockLostError):
            lock.release()
        with pytest.raises(redlatch.NotOwnerError):
            first.lock(name).adopt("job 7")
        assert there.owned()
        assert look.pttl(name) > 20_000
        there.release()
        assert not look.exists(name)


def test_an_extended_token_outlives_the_first_hold(look: Any, name: str) -> None:
    """The first hold runs out while another process works under the token."""
    with redlatch.Client(kind="simple") as first, redlatch.Client(kind="simple") as second:
        lock = first.lock(name)
        assert lock.acquire(token="job 7", lease=0.5)
        second.lock(name).extend_token("job 7", 60)
        eventually(lambda: first.stats()["lost"] == 1)
        with pytest.raises(redlatch.LockLostError):
            lock.release()
        first.close()
        assert look.pttl(name) > 20_000


async def test_a_task_adopts_it(look: Any, name: str) -> None:
    async with aio.Client(kind="simple") as first, aio.Client(kind="simple") as second:
        lock, there = first.lock(name), second.lock(name)
        assert await lock.acquire(token="job 7", lease=60)
        with pytest.raises(redlatch.NotOwnerError):
            await there.adopt("job 8")
        await there.adopt("job 7")
        with pytest.raises(redlatch.LockLostError):
            await lock.release()
        assert there.owned()
        await there.release()
        assert not look.exists(name)


def test_one_token_is_not_granted_twice(name: str) -> None:
    with redlatch.Client(kind="simple") as first, redlatch.Client(kind="simple") as second:
        assert first.lock(name).acquire(token="host")
        assert not second.lock(name).acquire(blocking=False, token="host")


@pytest.mark.parametrize("token", [None, 7, b"bytes", "\ud800"])
def test_a_token_is_text(token: Any, name: str) -> None:
    with redlatch.Client(kind="simple") as client:
        with pytest.raises(redlatch.InvalidArgumentError):
            client.lock(name).release_token(token)
        with pytest.raises(redlatch.InvalidArgumentError):
            client.lock(name).extend_token(token, 1)


def test_what_lingers_outlives_its_client(look: Any, name: str) -> None:
    with redlatch.Client(kind="simple", lease=60, linger=True) as client:
        assert client.lock(name).acquire()
    assert look.pttl(name) > 50_000


def test_what_lingers_outlives_its_grant(look: Any, name: str, caplog: pytest.LogCaptureFixture) -> None:
    with redlatch.Client(kind="simple", lease=5, linger=True) as client:
        client.lock(name).__enter__()
        gc.collect()
        assert not client.lock(name).acquire(blocking=False)
        assert client.lock(name).acquire(timeout=LIMIT)
        eventually(lambda: client.stats()["holds"] == 1)
        client.lock(name).release()
    assert not [message for message in caplog.messages if name in message]
