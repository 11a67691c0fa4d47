"""The lock for threads."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import redis
import redlatch
from conftest import LIMIT, RENEWED, Server, direct_connection, eventually, wait_for_renewal


def in_thread(function: Any, *args: Any) -> Any:
    """The value or exception of the function in a thread that ends then."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *args).result(LIMIT)


def test_a_block_holds_and_releases(client: redlatch.Client, name: str, look: redis.Redis) -> None:
    lock = client.lock(name)
    with lock as grant:
        assert look.hgetall(name) == {grant.owner: "1"}
        assert grant.held and lock.owned() and lock.locked()
        assert 0 < grant.remaining <= 30 and 0 < lock.remaining <= 30
        assert (grant.name, grant.hold_count, grant.lost_reason, grant.fencing_token) == (name, 1, None, None)
        grant.check()
    assert not look.exists(name)
    assert not (grant.held or lock.owned() or lock.locked())
    assert (grant.remaining, lock.remaining, lock.hold_count) == (0, 0, 0)
    with pytest.raises(redlatch.NotOwnerError):
        grant.check()


def test_a_thread_makes_its_calls_on_the_direct_connection(own_server: Server, name: str) -> None:
    with redlatch.Client(own_server.url) as client, redis.Redis(port=own_server.port) as look:

        def served() -> bool:
            with client.lock(name):
                pass
            row = direct_connection(look)
            return row is not None and row["cmd"] == "evalsha"

        eventually(served, "calls go there")


def test_re_entry_counts(client: redlatch.Client, name: str, look: redis.Redis) -> None:
    lock, same = client.lock(name, reentrant=True), client.lock(name, reentrant=True)
    with lock as outer:
        with same as inner:
            assert lock.acquire(False)
            assert look.hgetall(name) == {outer.owner: "3"} and inner.owner == outer.owner
            assert lock.hold_count == 3
            lock.release()
        assert lock.hold_count == 1 and outer.held
        assert look.hget(name, outer.owner) == "1"
    assert not look.exists(name)


def test_a_wait_for_ones_own_lock_says_so(client: redlatch.Client, name: str) -> None:
    own = "the thread, task or key that waits holds it"
    with (
        client.lock(name),
        pytest.raises(redlatch.LockTimeoutError, match=own),
        client.lock(name, timeout=0.05),
    ):
        pass


def test_acquire_and_release_are_those_of_threading(client: redlatch.Client, name: str) -> None:
    lock = client.lock(name)
    assert lock.acquire() is True
    started = time.monotonic()
    assert in_thread(lock.acquire, False) is False
    assert in_thread(lock.acquire, True, 0.2) is False
    assert 0.2 <= time.monotonic() - started < LIMIT
    assert in_thread(lock.owned) is False and in_thread(lambda: lock.hold_count) == 0
    with pytest.raises(redlatch.NotOwnerError) as caught:
        in_thread(lock.release)
    assert isinstance(caught.value, RuntimeError) and caught.value.lock_name == name
    lock.release()
    with pytest.raises(RuntimeError):
        lock.release()


def test_a_block_that_gets_no_lock_does_not_run(client: redlatch.Client, name: str) -> None:
    def enter() -> None:
        with client.lock(name, timeout=0.05):
            pytest.fail("the body ran")

    with client.lock(name), pytest.raises(redlatch.LockTimeoutError) as caught:
        in_thread(enter)
    assert isinstance(caught.value, TimeoutError) and caught.value.retryable
    assert caught.value.lock_name == name and name in str(caught.value)


def test_threads_exclude_each_other(client: redlatch.Client, name: str) -> None:
    lock = client.lock(name)  # one object for all
    inside, most, entries = 0, 0, []

    def work(number: int) -> None:
        nonlocal inside, most
        for _ in range(20):
            with lock as grant:
                inside += 1
                most = max(most, inside)
                time.sleep(0.0005)
                entries.append((number, grant.owner))
                inside -= 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert (most, len(entries)) == (1, 160)


def test_two_clients_exclude_each_other(client: redlatch.Client, name: str) -> None:
    with redlatch.Client() as other, client.lock(name):
        assert not other.lock(name).acquire(False)
        holder = other.lock(name).holder()
        assert holder is not None and holder.count == 1
        assert holder.remaining is not None and 0 < holder.remaining <= 30
        assert holder.process == redlatch.Process(
            "redlatch", "python", os.getpid(), holder.process.host if holder.process else ""
        )
        assert holder.process.host
    assert client.lock(name).holder() is None


def test_the_queue_of_a_fair_lock_can_be_asked(client: redlatch.Client, name: str) -> None:
    lock = client.lock(name, kind="fair")
    with redlatch.Client() as other, ThreadPoolExecutor(2) as pool:
        theirs = other.lock(name, kind="fair")

        def turn(lock: redlatch.Lock) -> None:
            with lock:
                pass

        with lock as grant:
            assert lock.waiters() == []
            first = pool.submit(turn, theirs)
            eventually(lambda: len(lock.waiters()) == 1)
            second = pool.submit(turn, lock)
            eventually(lambda: len(theirs.waiters()) == 2)
            one, two = lock.waiters()
            ours = grant.owner.split(":")[0]
            assert not one.owner.startswith(ours) and two.owner.startswith(ours)
            assert one.count == 0 and one.remaining and one.process and one.process.pid == os.getpid()
        first.result(LIMIT)
        second.result(LIMIT)
        assert lock.waiters() == []
    with pytest.raises(ValueError, match="of the kind reentrant; give it the kind fair"):
        client.lock(name).waiters()


def test_a_block_may_be_left_by_another_thread(client: redlatch.Client, name: str, look: redis.Redis) -> None:
    lock = client.lock(name)

    @contextmanager
    def block() -> Iterator[redlatch.Grant]:
        with lock as grant:
            yield grant

    opened = block()
    assert opened.__enter__().held
    in_thread(opened.__exit__, None, None, None)
    assert not look.exists(name)
    lock.__enter__()
    in_thread(lock.__exit__, None, None, None)
    assert not look.exists(name)
    with pytest.raises(redlatch.NotOwnerError):
        lock.__exit__(None, None, None)


def test_leaving_elsewhere_never_releases_the_hold_of_a_third(client: redlatch.Client, name: str) -> None:
    lock, other = client.lock(name), client.lock(name + "'")
    lock.__enter__()
    lock.force_release()
    with ThreadPoolExecutor(1) as pool:
        alive = pool.submit(lock.__enter__).result(LIMIT)
        with pytest.raises(redlatch.LockLostError):  # the lost one, not the one that is alive
            in_thread(lock.__exit__, None, None, None)
        assert alive.held and not other.locked()
        pool.submit(lock.__exit__, None, None, None).result(LIMIT)


def test_a_grant_can_be_released_before_its_block_ends(client: redlatch.Client, name: str) -> None:
    lock = client.lock(name)
    with lock as grant:
        grant.release()
        assert not lock.locked()
        with pytest.raises(redlatch.NotOwnerError):
            grant.release()
        with pytest.raises(redlatch.NotOwnerError):
            grant.extend(1)


def test_an_exception_in_the_body_releases_and_goes_on(client: redlatch.Client, name: str) -> None:
    with pytest.raises(KeyError, match="body"), client.lock(name):
        raise KeyError("body")
    assert not client.lock(name).locked()


def test_extend(client: redlatch.Client, name: str, look: redis.Redis) -> None:
    lock = client.lock(name, lease=60)
    with lock as grant:
        lock.extend(120)
        assert 60 < grant.remaining <= 120 and 60_000 < look.pttl(name) <= 120_000
        grant.extend(10)  # never shortens
        assert grant.remaining > 60
    with pytest.raises(redlatch.NotOwnerError):
        lock.extend(1)


def test_a_lease_of_its_own_is_not_renewed(client: redlatch.Client, name: str, look: redis.Redis) -> None:
    lock = client.lock(name)
    assert lock.acquire(lease=60)
    assert 30_000 < look.pttl(name) <= 60_000
    lock.release()
    assert lock.acquire(lease=1)
    eventually(lambda: not look.exists(name))
    assert not lock.owned()
    with pytest.raises(redlatch.LockLostError) as caught:
        lock.release()
    assert caught.value.reason == "expired"


def test_the_watchdog_renews(name: str, look: redis.Redis) -> None:
    with redlatch.Client(watchdog_lease=RENEWED) as client, client.lock(name) as grant:
        eventually(lambda: client.stats()["renewed"] >= 2, "it is renewed twice")
        grant.check()
        assert 0 < look.pttl(name) <= RENEWED * 1000


def test_fencing_tokens_grow(client: redlatch.Client, name: str) -> None:
    lock, tokens = client.lock(name, fencing=True, reentrant=True), []
    for _ in range(3):
        with lock as grant, lock as again:
            assert grant.fencing_token == again.fencing_token
            tokens.append(grant.fencing_token or 0)
    assert tokens == sorted(set(tokens)) and tokens[0] > 0


def test_force_release(client: redlatch.Client, name: str, look: redis.Redis) -> None:
    lock = client.lock(name)
    assert lock.force_release() is False
    with pytest.raises(redlatch.LockLostError) as caught, lock as grant:
        assert in_thread(lock.force_release) is True
        assert not look.exists(name) and not grant.held
    assert caught.value.reason == "forced"


def test_a_waiter_is_woken_by_the_release(client: redlatch.Client, name: str) -> None:
    # A lost wake-up would take a look by itself, or the end of the lease: both come after the limit.
    lock = client.lock(name, watchdog_lease=20 * LIMIT)
    with ThreadPoolExecutor(1) as pool, redlatch.Client(recheck=20 * LIMIT) as other:
        with lock:
            waiter = pool.submit(other.lock(name).acquire, True, 10 * LIMIT)
            eventually(lambda: other.stats()["waiting"] == 1)
            assert not waiter.done()
        assert waiter.result(LIMIT)
        pool.submit(other.lock(name).release).result(LIMIT)


def test_the_gil_is_free_while_waiting(client: redlatch.Client, name: str) -> None:
    lock = client.lock(name)
    with ThreadPoolExecutor(1) as pool:
        with lock:
            waiter = pool.submit(lock.acquire, True, LIMIT)
            # With the GIL this thread could not even look.
            eventually(lambda: client.stats()["waiting"] == 1)
            assert not waiter.done()
        assert waiter.result(LIMIT)
        pool.submit(lock.release).result(LIMIT)


def test_a_thread_that_ends_with_a_hold(
    name: str, look: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    with redlatch.Client(watchdog_lease=RENEWED) as client:
        lock = client.lock(name)
        owner = in_thread(lambda: lock.acquire() and lock._hold().owner)
        assert owner
        # Another thread, even with the same number, does not inherit the hold.
        assert not any(in_thread(lock.owned) for _ in range(5))
        assert not lock.acquire(False)
        # It is not renewed any more, and somebody is told.
        eventually(lambda: not look.exists(name))
        assert lock.acquire(timeout=LIMIT)
        lock.release()
    eventually(lambda: any(name in record.getMessage() for record in caplog.records), "the log tells")


def test_a_grant_that_is_forgotten_is_not_renewed(
    name: str, look: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    with redlatch.Client(watchdog_lease=RENEWED) as client:
        client.lock(name).__enter__()
        assert look.exists(name)  # not released: somebody may rely on it
        eventually(lambda: not look.exists(name))
        eventually(lambda: any(name in record.getMessage() for record in caplog.records), "the log tells")


def test_a_grant_outlives_its_lock_and_client_objects(name: str, look: redis.Redis) -> None:
    def enter() -> redlatch.Grant:
        lock = redlatch.Client(watchdog_lease=RENEWED).lock(name)
        grant = lock.__enter__()
        lock._by_hand = None
        return grant

    grant = enter()
    gc.collect()
    wait_for_renewal(look, name)
    assert grant.held and look.exists(name)
    grant.release()
    assert not look.exists(name)


def test_functions_are_locked(client: redlatch.Client, name: str, look: redis.Redis) -> None:
    @client.locked(name, timeout=0)
    def first(value: int) -> int:
        """Documented."""
        assert look.exists(name)
        return value + 1

    assert first(1) == 2 and not look.exists(name)
    assert (first.__name__, first.__doc__) == ("first", "Documented.")

    @client.locked(lambda user, **_: f"{name}:{user}")
    def second(user: str, *, fail: bool = False) -> bool:
        if fail:
            raise KeyError(user)
        return bool(look.exists(f"{name}:{user}"))

    assert second("u") and not look.exists(f"{name}:u")
    with pytest.raises(KeyError):
        second("u", fail=True)
    assert not look.exists(f"{name}:u")
    with client.lock(name), pytest.raises(redlatch.LockTimeoutError):
        in_thread(first, 1)


def test_a_name_that_is_known_is_checked_when_the_function_is_decorated(client: redlatch.Client) -> None:
    with pytest.raises(redlatch.InvalidArgumentError):
        client.locked("")(len)
    with pytest.raises(redlatch.InvalidArgumentError):
        client.locked("a", lease=-1)(len)
    with pytest.raises(redlatch.InvalidArgumentError):
        client.locked(lambda name: name)(len)("")


def test_a_generator_function_cannot_be_locked(client: redlatch.Client) -> None:
    with pytest.raises(TypeError, match="generator"):

        @client.locked("a")
        def numbers() -> Iterator[int]:
            yield 1


def test_a_function_whose_work_begins_after_the_release_cannot_be_locked(
    client: redlatch.Client, name: str
) -> None:
    ran: list[int] = []

    async def work() -> None:
        ran.append(1)

    def numbers() -> Iterator[int]:
        yield 1

    for function in (work, numbers):

        @client.locked(name)
        def logged(function: Any = function) -> Any:
            return function()

        with pytest.raises(TypeError, match="directly above the `async def`"):
            logged()
    assert not ran and not client.lock(name).locked()
    with pytest.raises(TypeError, match="locked\\(name\\)"):
        client.locked(name)(name)  # type: ignore[arg-type]


def test_closing_releases_and_tells(name: str, look: redis.Redis) -> None:
    told: list[str | None] = []
    with redlatch.Client() as client:
        lock = client.lock(name, on_lost=lambda lost: told.append(lost.reason))
        grant = lock.__enter__()
        other = client.lock(name + "'")
        other.acquire()
    assert not look.exists(name, name + "'")
    assert (grant.held, grant.lost_reason) == (False, "closed")
    eventually(lambda: told == ["closed"])


def test_closing_ends_waits(client: redlatch.Client, name: str) -> None:
    with redlatch.Client() as other, ThreadPoolExecutor(1) as pool:
        assert client.lock(name).acquire()
        waiter = pool.submit(other.lock(name).acquire)
        eventually(lambda: other.stats()["waiting"] == 1)
        other.close()
        with pytest.raises(redlatch.ClosedError):
            waiter.result(LIMIT)


def test_what_objects_say_of_themselves(client: redlatch.Client, name: str) -> None:
    lock = client.lock(name)
    with lock as grant:
        assert name in repr(lock) and name in repr(grant) and "held" in repr(grant)
    assert "released" in repr(grant) and "Client" in repr(client)
