"""`interrupt_on_lost`: a thread is interrupted inside a `with` block whose lock is lost, and nowhere else."""

from __future__ import annotations

import asyncio
import ctypes
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import redis
import redlatch
from conftest import LIMIT, eventually, run


def work() -> None:
    """Python code that would go on for ever."""
    until = time.monotonic() + LIMIT
    while time.monotonic() < until:
        pass
    raise AssertionError(f"not interrupted within {LIMIT} s")


def in_thread(function: Callable[[], object]) -> Any:
    """Calls the function on a thread of its own, and gives back its result."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join(4 * LIMIT)
    return results[0]


def lose(lock: Any, look: redis.Redis, body: Callable[[], object] = work) -> redlatch.LockLostError:
    """The error of a block whose lock is lost while the body runs."""
    with pytest.raises(redlatch.LockLostError) as caught, lock:
        look.delete(lock.name)
        body()
    return caught.value


def test_the_main_thread_is_interrupted(client: redlatch.Client, look: redis.Redis, name: str) -> None:
    begun = threading.Event()

    def body() -> None:
        begun.set()
        work()

    def delete() -> None:
        assert begun.wait(LIMIT)
        look.delete(name)

    deleting = threading.Thread(target=delete)
    deleting.start()
    with pytest.raises(redlatch.LockLostError) as caught, client.lock(name, interrupt_on_lost=True):
        body()
    deleting.join(LIMIT)
    lost = caught.value
    assert (lost.reason, lost.lock_name) == ("deleted", name)
    # Its traceback tells where the thread was.
    assert isinstance(lost.__cause__, redlatch.LostInterrupt)
    trace = lost.__cause__.__traceback__
    while trace is not None and trace.tb_frame.f_code is not body.__code__:
        trace = trace.tb_next
    assert trace is not None


def test_another_thread_is_interrupted_alone(client: redlatch.Client, look: redis.Redis, name: str) -> None:
    others = [client.lock(f"{name}:{number}", interrupt_on_lost=True) for number in range(3)]
    ended, inside = threading.Event(), threading.Barrier(len(others) + 1)

    def hold(lock: redlatch.Lock) -> None:
        with lock:
            inside.wait(LIMIT)
            assert ended.wait(LIMIT)

    threads = [threading.Thread(target=hold, args=(lock,)) for lock in others]
    for thread in threads:
        thread.start()
    inside.wait(LIMIT)
    lost = in_thread(lambda: lose(client.lock(name, interrupt_on_lost=True), look))
    ended.set()
    for thread in threads:
        thread.join(LIMIT)
    assert lost.reason == "deleted"
    assert not any(lock.locked() for lock in others)


def test_all_kinds_interrupt(client: redlatch.Client, look: redis.Redis, name: str) -> None:
    rw = client.rw_lock(f"{name}:rw", interrupt_on_lost=True)
    for lock in (rw.read, rw.write, client.semaphore(f"{name}:s", limit=2, interrupt_on_lost=True)):
        with pytest.raises(redlatch.LockLostError), lock:
            assert lock.force_release()
            work()


def test_a_decorated_function_is_interrupted(client: redlatch.Client, look: redis.Redis, name: str) -> None:
    @client.locked(name, interrupt_on_lost=True)
    def exclusive() -> None:
        look.delete(name)
        work()

    with pytest.raises(redlatch.LockLostError):
        exclusive()


def test_what_catches_exceptions_lets_it_pass(client: redlatch.Client, look: redis.Redis, name: str) -> None:
    def careless() -> None:
        while True:
            try:
                work()
            except Exception as error:
                assert not isinstance(error, AssertionError)

    assert lose(client.lock(name, interrupt_on_lost=True), look, careless).reason == "deleted"


def test_a_level_that_was_given_back_in_the_body_tells_all_the_same(
    client: redlatch.Client, look: redis.Redis, name: str
) -> None:
    with pytest.raises(redlatch.LockLostError), client.lock(name, interrupt_on_lost=True) as grant:
        look.delete(name)
        try:
            work()
        finally:
            with pytest.raises(redlatch.LockLostError):
                grant.release()


def test_it_does_not_depend_on_what_others_do_to_ctypes(
    client: redlatch.Client, look: redis.Redis, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = ctypes.pythonapi.PyThreadState_SetAsyncExc
    monkeypatch.setattr(shared, "argtypes", [ctypes.c_char_p, ctypes.py_object])
    monkeypatch.setattr(shared, "restype", ctypes.py_object)
    assert lose(client.lock(name, interrupt_on_lost=True), look).reason == "deleted"


def test_an_interrupt_that_cannot_be_taken_back_does_not_hide_the_loss(
    client: redlatch.Client, look: redis.Redis, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised = threading.Event()

    def take_back() -> None:
        raise MemoryError

    made = redlatch._redlatch.Interrupt(raised.set, take_back, redlatch.LostInterrupt)
    monkeypatch.setattr(redlatch._threads, "_interrupt", lambda: made)
    lost = lose(client.lock(name, interrupt_on_lost=True), look, lambda: raised.wait(LIMIT))
    assert (raised.is_set(), lost.reason) == (True, "deleted")


def test_a_block_inside_is_left_as_well(client: redlatch.Client, look: redis.Redis, name: str) -> None:
    inner = client.lock(f"{name}:inner")

    def body() -> None:
        with inner:
            work()

    lost = lose(client.lock(name, interrupt_on_lost=True), look, body)
    assert lost.lock_name == name
    assert not inner.locked()


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_loss_before_the_body_leaves_the_body_out(
    client: redlatch.Client, look: redis.Redis, name: str, monkeypatch: pytest.MonkeyPatch, by_hand: bool
) -> None:
    told, on_lost = threading.Event(), redlatch.Grant.on_lost

    def lose_at_once(grant: redlatch.Grant, callback: Callable[[redlatch.LockLostError], object]) -> None:
        on_lost(grant, callback)
        on_lost(grant, lambda lost: told.set())
        look.delete(name)
        assert told.wait(LIMIT)

    lock = client.lock(name, interrupt_on_lost=True)
    with monkeypatch.context() as patch:
        patch.setattr(redlatch.Grant, "on_lost", lose_at_once)
        with pytest.raises(redlatch.LockLostError) as caught, ExitStack() as stack:
            if by_hand:
                stack.enter_context(lock)
                work()
            else:
                with lock:
                    work()
    assert (caught.value.reason, caught.value.__cause__) == ("deleted", None)
    # Nothing of it is left behind.
    with ExitStack() as stack:
        assert stack.enter_context(lock).held
    assert not lock.locked()


# Python drops an interrupt that comes in a finalizer, and says so. The end of the block tells the loss then.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_nothing_comes_after_the_block(client: redlatch.Client, look: redis.Redis, name: str) -> None:
    """The loss is told while the block ends, again and again at another moment."""
    lock, told = client.lock(name, interrupt_on_lost=True), 0
    for pause in range(300):
        try:
            with lock:
                look.delete(name)
                for _ in range(pause * 20):
                    pass
        except redlatch.LockLostError:
            told += 1
    assert told == 300


def test_without_a_block_nothing_is_interrupted(
    client: redlatch.Client, look: redis.Redis, name: str
) -> None:
    told = threading.Event()
    lock = client.lock(name, interrupt_on_lost=True, on_lost=lambda lost: told.set())
    lock.acquire()
    look.delete(name)
    eventually(told.is_set)
    with pytest.raises(redlatch.LockLostError):
        lock.release()
    # Nor is one whose block was left in time.
    with lock:
        pass
    look.delete(name)
    with client.lock(name):
        pass


def test_an_interrupt_that_comes_after_the_block_is_taken_back(
    client: redlatch.Client, look: redis.Redis, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if garbage were collected between the decision to raise and the raise."""
    calls: list[str] = []
    raising, left, ended = threading.Event(), threading.Event(), threading.Event()

    def raise_() -> None:
        raising.set()
        assert left.wait(LIMIT)
        calls.append("raised")

    def take_back() -> None:
        calls.append("taken back")
        if len(calls) > 1:
            ended.set()

    made = redlatch._redlatch.Interrupt(raise_, take_back, redlatch.LostInterrupt)
    monkeypatch.setattr(redlatch._threads, "_interrupt", lambda: made)
    lose(client.lock(name, interrupt_on_lost=True), look, lambda: raising.wait(LIMIT))
    left.set()
    assert ended.wait(LIMIT)
    assert calls == ["taken back", "raised", "taken back"]


def test_a_block_that_may_be_suspended_is_refused(client: redlatch.Client, name: str) -> None:
    lock = client.lock(name, interrupt_on_lost=True)

    def generator() -> Iterator[None]:
        with lock:
            yield

    def stack_of_generator() -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(lock)
            yield

    def condition_of_generator() -> Iterator[None]:
        with threading.Condition(lock):  # type: ignore[arg-type]
            yield

    async def coroutine() -> None:
        with lock:
            pass

    async def asynchronous_generator() -> AsyncIterator[None]:
        with lock:
            yield

    enters: list[Callable[[], object]] = [
        lambda: next(generator()),
        lambda: next(stack_of_generator()),
        lambda: next(condition_of_generator()),
        lambda: coroutine().send(None),
        lambda: asynchronous_generator().__anext__().__await__().send(None),
        contextmanager(generator)().__enter__,
    ]
    for enter in enters:
        with pytest.raises(
            redlatch.InvalidArgumentError, match=r"suspended .*; leave it out, and call grant\.check"
        ):
            enter()
        # Nothing is left held.
        with client.lock(name, timeout=LIMIT):
            pass


def test_a_function_that_a_coroutine_calls_is_interrupted(
    client: redlatch.Client, look: redis.Redis, name: str
) -> None:
    async def coroutine() -> None:
        lose(client.lock(name, interrupt_on_lost=True), look)

    asyncio.run(coroutine())


def test_greenlets_are_refused(name: str) -> None:
    shown = run(
        """
        import sys
        from gevent import monkey
        monkey.patch_all()
        import redlatch
        client = redlatch.Client()
        try:
            with client.lock(sys.argv[1], interrupt_on_lost=True):
                raise SystemExit("it was entered")
        except redlatch.InvalidArgumentError as error:
            print(error)
        print(client.lock(sys.argv[1]).acquire(timeout=30))
        client.close()
        """,
        name,
    )
    assert "give an on_lost that kills it\nTrue" in shown
