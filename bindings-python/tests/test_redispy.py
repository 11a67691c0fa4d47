"""redlatch.compat.redispy is what redis-py is: one table of behaviours, played by both.

A row plays on a stage, once with redis-py's lock and once with ours, for threads and for asyncio, and returns what
can be seen. The rows of SAME must show the same twice; those of DIFFERENT say what each shows. docs/redis-py.md
names every one of DIFFERENT, with the reason.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.lock
import redis.lock
import redlatch
from conftest import LIMIT, Server, eventually, run_in_loop
from redlatch.compat import redispy
from redlatch.compat.redispy import aio as redispy_aio

# The rows of both faces are coroutines: those for threads wait on the thread of a loop, which is told.
pytestmark = pytest.mark.filterwarnings("ignore:a call of redlatch.Client waits:RuntimeWarning")

MESSAGES_ARE_TODAYS = int(redis.__version__.split(".")[0]) >= 8
PAGE = Path(__file__).parents[2] / "docs" / "redis-py.md"

LOCKS: dict[tuple[str, str], Callable[..., Any]] = {
    ("redis-py", "threads"): redis.lock.Lock,
    ("redis-py", "asyncio"): redis.asyncio.lock.Lock,
    ("redlatch", "threads"): redispy.Lock,
    ("redlatch", "asyncio"): redispy_aio.Lock,
}
CLIENTS: dict[str, Callable[..., Any]] = {"threads": redis.Redis, "asyncio": redis.asyncio.Redis}


class Stage:
    """Where a row plays: one implementation, one key, and a connection that looks at it."""

    def __init__(self, whose: str, face: str, server: Server, look: Any, name: str) -> None:
        self.whose, self.face, self.look, self.name = whose, face, look, name
        self._port = server.port
        self._connected: list[Any] = []
        self.redis = self.connect()

    def connect(self, **options: Any) -> Any:
        self._connected.append(CLIENTS[self.face](port=self._port, **options))
        return self._connected[-1]

    def lock(self, redis: Any = None, **options: Any) -> Any:
        return LOCKS[self.whose, self.face](redis or self.redis, options.pop("name", self.name), **options)

    async def do(self, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """The value that a call returns, or the exception that it raises."""
        try:
            result = call(*args, **options)
            return await result if inspect.isawaitable(result) else result
        except Exception as error:
            return seen(error)

    async def inside(self, lock: Any, body: Callable[[], object] = lambda: None) -> Any:
        """The result of a `with` block."""
        try:
            if self.face == "threads":
                with lock as entered:
                    body()
            else:
                async with lock as entered:
                    body()
        except Exception as error:
            return seen(error), [
                seen(context) for context in contexts(error) if isinstance(context, KeyError)
            ]
        return entered is lock

    def in_thread(self, call: Callable[[], Any]) -> Any:
        """The result of a call in a thread of its own."""
        results: list[Any] = []
        thread = threading.Thread(target=lambda: results.append(asyncio.run(self.do(call))))
        thread.start()
        thread.join()
        return results[0]

    def value(self) -> bytes | None:
        value: str | None = self.look.get(self.name)
        return None if value is None else value.encode()

    def ttl(self, least: float, most: float) -> Any:
        """That the key lives so many seconds more; the number itself if not."""
        ttl = self.look.pttl(self.name) / 1000
        return "as expected" if least <= ttl <= most else ttl

    def others(self, seconds: float | None = 60, token: str = "theirs") -> None:
        """Somebody else holds the lock."""
        self.look.set(self.name, token, px=None if seconds is None else int(seconds * 1000))

    async def close(self) -> None:
        for client in self._connected:
            await self.do(getattr(client, "aclose", client.close))


def seen(error: BaseException) -> tuple[str, str]:
    """An exception as it is compared: those of locks with their text."""
    kind = type(error)
    text = str(error) if MESSAGES_ARE_TODAYS and isinstance(error, redis.exceptions.LockError) else ""
    return f"{kind.__module__}.{kind.__name__}", text


def contexts(error: BaseException) -> Iterator[BaseException]:
    """The errors that were on their way when it came."""
    while error.__context__ is not None:
        error = error.__context__
        yield error


LOCK_ERROR = "redis.exceptions.LockError"
Row = Callable[[Stage], Awaitable[Any]]
SAME: list[Row] = []
DIFFERENT: list[tuple[Row, Any, Any]] = []


def same(row: Row) -> Row:
    SAME.append(row)
    return row


def different(theirs: Any, ours: Any) -> Callable[[Row], Row]:
    """The behaviour of redis-py, and that of redlatch."""

    def note(row: Row) -> Row:
        DIFFERENT.append((row, theirs, ours))
        return row

    return note


# ---- acquiring ----


@same
async def a_free_lock_is_taken(stage: Stage) -> Any:
    lock = stage.lock(timeout=100)
    took = await stage.do(lock.acquire)
    return took, type(lock.local.token), stage.value() == lock.local.token, stage.ttl(70, 100)


@same
async def a_token_can_be_given(stage: Stage) -> Any:
    seen = []
    for token in ("text", b"bytes", "\N{GREEK SMALL LETTER ALPHA}"):
        lock = stage.lock(timeout=10)
        seen.append((await stage.do(lock.acquire, token=token), lock.local.token, stage.value()))
        await stage.do(lock.release)
    return seen


@same
async def a_token_that_holds_already_is_refused(stage: Stage) -> Any:
    stage.others(60, "host-1")
    return await stage.do(stage.lock(timeout=10).acquire, blocking=False, token="host-1"), stage.ttl(50, 60)


@same
async def what_is_held_is_not_taken(stage: Stage) -> Any:
    stage.others()
    lock = stage.lock(timeout=10)
    took = await stage.do(lock.acquire, blocking=False)
    return took, lock.local.token, stage.value(), stage.ttl(50, 60)


@same
async def waiting_ends_with_its_time(stage: Stage) -> Any:
    stage.others()
    lock, began = stage.lock(timeout=10, sleep=0.02), time.monotonic()
    took = await stage.do(lock.acquire, blocking_timeout=0.3)
    return took, time.monotonic() - began >= 0.25


@same
async def a_time_of_nothing_or_less_tries_once(stage: Stage) -> Any:
    stage.others()
    lock = stage.lock(timeout=10)
    return [await stage.do(lock.acquire, blocking_timeout=left) for left in (0, -1, 0.0)]


@same
async def waiting_ends_when_the_holder_s_time_does(stage: Stage) -> Any:
    stage.others(0.3)
    lock = stage.lock(timeout=10, sleep=0.02)
    return await stage.do(lock.acquire), stage.value() == lock.local.token


@same
async def the_constructor_says_whether_to_wait(stage: Stage) -> Any:
    stage.others()
    tried = [
        await stage.do(stage.lock(blocking=False, timeout=10).acquire),
        await stage.do(stage.lock(blocking_timeout=0, timeout=10).acquire),
    ]
    stage.others(0.3)
    return tried, await stage.do(stage.lock(blocking=False, timeout=10, sleep=0.02).acquire, blocking=True)


@same
async def it_is_not_re_entrant(stage: Stage) -> Any:
    lock = stage.lock(timeout=10)
    first = await stage.do(lock.acquire)
    token = lock.local.token
    second = await stage.do(lock.acquire, blocking=False)
    return first, second, lock.local.token == token, await stage.do(lock.release), stage.value()


@same
async def a_timeout_is_read_when_it_is_used(stage: Stage) -> Any:
    lock = stage.lock(timeout=10)
    lock.timeout = 100.5
    return await stage.do(lock.acquire), stage.ttl(70, 100.5)


@same
async def a_name_may_be_bytes(stage: Stage) -> Any:
    lock = stage.lock(name=stage.name.encode(), timeout=10)
    return await stage.do(lock.acquire), stage.value() == lock.local.token, type(lock.name)


@same
async def answers_that_are_decoded_make_no_difference(stage: Stage) -> Any:
    lock = stage.lock(stage.connect(decode_responses=True), timeout=10)
    return await stage.do(lock.acquire), type(lock.local.token), await stage.do(lock.owned)


# ---- releasing ----


@same
async def a_release_frees(stage: Stage) -> Any:
    lock = stage.lock(timeout=10)
    await stage.do(lock.acquire)
    return await stage.do(lock.release), stage.value(), lock.local.token


@same
async def a_lock_without_a_token_cannot_be_released(stage: Stage) -> Any:
    lock = stage.lock(timeout=10)
    before = await stage.do(lock.release)
    await stage.do(lock.acquire)
    await stage.do(lock.release)
    return before, await stage.do(lock.release)


@same
async def a_lock_that_was_deleted_cannot_be_released(stage: Stage) -> Any:
    lock = stage.lock(timeout=10)
    await stage.do(lock.acquire)
    stage.look.delete(stage.name)
    return await stage.do(lock.release), lock.local.token


@same
async def a_lock_that_expired_cannot_be_released(stage: Stage) -> Any:
    lock = stage.lock(timeout=0.2)
    await stage.do(lock.acquire)
    eventually(lambda: stage.value() is None)
    return await stage.do(lock.release), lock.local.token


@same
async def another_s_lock_is_not_released(stage: Stage) -> Any:
    lock = stage.lock(timeout=10)
    await stage.do(lock.acquire)
    stage.others()
    return await stage.do(lock.release), stage.value(), stage.ttl(50, 60)


@same
async def what_was_released_can_be_taken_again(stage: Stage) -> Any:
    lock = stage.lock(timeout=10)
    return [await stage.do(call) for call in (lock.acquire, lock.release) * 3]


@same
async def what_was_lost_can_be_taken_again(stage: Stage) -> Any:
    lock = stage.lock(timeout=10)
    await stage.do(lock.acquire)
    stage.look.delete(stage.name)
    again = await stage.do(lock.acquire)
    return again, stage.value() == lock.local.token, await stage.do(lock.release), stage.value()


# ---- the token of another process ----


@same
async def a_token_that_was_passed_on_releases(stage: Stage) -> Any:
    stage.others()
    lock = stage.lock(timeout=10)
    lock.local.token = b"theirs"
    return await stage.do(lock.owned), await stage.do(lock.release), stage.value(), lock.local.token


@same
async def a_token_that_was_passed_on_releases_what_has_no_expiry(stage: Stage) -> Any:
    stage.others(None)
    lock = stage.lock()
    lock.local.token = b"theirs"
    return await stage.do(lock.release), stage.value()


@same
async def a_wrong_token_releases_nothing(stage: Stage) -> Any:
    stage.others()
    lock = stage.lock(timeout=10)
    lock.local.token = b"mine"
    return await stage.do(lock.owned), await stage.do(lock.release), stage.value(), stage.ttl(50, 60)


@same
async def a_token_without_a_lock_releases_nothing(stage: Stage) -> Any:
    lock = stage.lock(timeout=10)
    lock.local.token = b"mine"
    return await stage.do(lock.release), stage.value(), lock.local.token


@same
async def a_token_that_was_passed_on_extends(stage: Stage) -> Any:
    stage.others()
    lock = stage.lock(timeout=10)
    lock.local.token = b"theirs"
    extended = await stage.do(lock.extend, 40), stage.ttl(90, 100)
    replaced = await stage.do(lock.extend, 200, True), stage.ttl(190, 200)
    return extended, replaced, stage.value(), await stage.do(lock.release), stage.value()


@same
async def a_token_that_was_passed_on_reacquires(stage: Stage) -> Any:
    stage.others(20)
    lock = stage.lock(timeout=100)
    lock.local.token = b"theirs"
    return await stage.do(lock.reacquire), stage.ttl(90, 100), stage.value()


@same
async def a_token_of_this_process_releases_from_another_lock(stage: Stage) -> Any:
    lock, other = stage.lock(timeout=10), stage.lock(timeout=10)
    await stage.do(lock.acquire)
    other.local.token = lock.local.token
    return await stage.do(other.owned), await stage.do(other.release), stage.value()


# ---- extending ----


@same
async def an_extension_adds(stage: Stage) -> Any:
    lock = stage.lock(timeout=100)
    await stage.do(lock.acquire)
    return (
        await stage.do(lock.extend, 200),
        stage.ttl(270, 300),
        await stage.do(lock.extend, 0.5),
        stage.ttl(270, 300.5),
    )


@same
async def an_extension_can_replace(stage: Stage) -> Any:
    lock = stage.lock(timeout=10)
    await stage.do(lock.acquire)
    return await stage.do(lock.extend, 100, replace_ttl=True), stage.ttl(70, 100)


@same
async def reacquiring_starts_the_time_anew(stage: Stage) -> Any:
    lock = stage.lock(timeout=100)
    await stage.do(lock.acquire)
    stage.look.pexpire(stage.name, 50_000)
    return await stage.do(lock.reacquire), stage.ttl(70, 100)


@same
async def what_is_not_held_cannot_be_extended(stage: Stage) -> Any:
    lock = stage.lock(timeout=10)
    return await stage.do(lock.extend, 5), await stage.do(lock.reacquire)


@same
async def what_has_no_timeout_cannot_be_extended(stage: Stage) -> Any:
    lock = stage.lock()
    await stage.do(lock.acquire)
    seen = await stage.do(lock.extend, 5), await stage.do(lock.reacquire)
    await stage.do(lock.release)
    return seen


@same
async def what_was_lost_cannot_be_extended(stage: Stage) -> Any:
    lock = stage.lock(timeout=10)
    await stage.do(lock.acquire)
    stage.look.delete(stage.name)
    seen = await stage.do(lock.extend, 5), await stage.do(lock.reacquire), stage.value()
    stage.others()
    return (
        seen,
        await stage.do(lock.extend, 5),
        await stage.do(lock.reacquire),
        stage.ttl(50, 60),
        stage.value(),
    )


# ---- looking ----


@same
async def who_holds_it_can_be_asked(stage: Stage) -> Any:
    lock = stage.lock(timeout=10)
    seen = [await stage.do(lock.locked), await stage.do(lock.owned)]
    await stage.do(lock.acquire)
    seen += [await stage.do(lock.locked), await stage.do(lock.owned)]
    stage.others()
    return [*seen, await stage.do(lock.locked), await stage.do(lock.owned)]


@same
async def other_data_at_the_name_is_an_error_of_the_server(stage: Stage) -> Any:
    stage.look.hset(stage.name, "a", "b")
    lock = stage.lock(timeout=10)
    return await stage.do(lock.locked), await stage.do(lock.owned)


@same
async def the_attributes_are_there(stage: Stage) -> Any:
    names = [
        "name",
        "timeout",
        "sleep",
        "blocking",
        "blocking_timeout",
        "thread_local",
        "raise_on_release_error",
    ]
    plain, every = (
        stage.lock(),
        stage.lock(timeout=1, sleep=2, blocking=0, blocking_timeout=3, thread_local=0),
    )
    values = [
        [getattr(lock, name, "none") for name in names[: None if MESSAGES_ARE_TODAYS else -1]]
        for lock in (plain, every)
    ]
    return values, plain.redis is stage.redis, plain.local.token, every.local.token


# ---- blocks ----


@same
async def a_block_holds_the_lock(stage: Stage) -> Any:
    lock, inside = stage.lock(timeout=10), []
    return (
        await stage.inside(lock, lambda: inside.append(stage.value() == lock.local.token)),
        inside,
        stage.value(),
    )


@same
async def a_block_is_not_entered_without_the_lock(stage: Stage) -> Any:
    stage.others()
    ran: list[int] = []
    seen = await stage.inside(stage.lock(timeout=10, blocking_timeout=0), lambda: ran.append(1))
    return seen, ran, stage.value()


@same
async def a_block_ends_with_an_error_if_the_lock_was_lost(stage: Stage) -> Any:
    return await stage.inside(stage.lock(timeout=10), lambda: stage.look.delete(stage.name))


@same
async def the_body_s_error_is_the_context_of_that_one(stage: Stage) -> Any:
    def body() -> None:
        stage.look.delete(stage.name)
        raise KeyError("the body's")

    return await stage.inside(stage.lock(timeout=10), body), stage.value()


@same
async def the_body_s_error_comes_through(stage: Stage) -> Any:
    def body() -> None:
        raise KeyError("the body's")

    return await stage.inside(stage.lock(timeout=10), body), stage.value()


async def a_lost_lock_is_no_error_if_none_is_wanted(stage: Stage) -> Any:
    return await stage.inside(
        stage.lock(timeout=10, raise_on_release_error=False), lambda: stage.look.delete(stage.name)
    )


if "raise_on_release_error" in inspect.signature(redis.lock.Lock).parameters:
    same(a_lost_lock_is_no_error_if_none_is_wanted)


# ---- threads, and objects that are gone ----


@same
async def another_thread_has_no_token(stage: Stage) -> Any:
    lock = stage.lock(timeout=10)
    await stage.do(lock.acquire)
    return stage.in_thread(lambda: getattr(lock.local, "token", None)), await stage.do(lock.release)


@same
async def a_token_can_be_shared_by_threads(stage: Stage) -> Any:
    lock = stage.lock(timeout=10, thread_local=False)
    await stage.do(lock.acquire)
    if stage.face == "threads":
        return stage.in_thread(lock.release), stage.value(), lock.local.token

    async def release() -> Any:
        # An asyncio client of redis-py works in the loop that used it first.
        lock.redis = stage.connect()
        released = await stage.do(lock.release)
        await stage.do(getattr(lock.redis, "aclose", lock.redis.close))
        return released

    return stage.in_thread(release), stage.value(), lock.local.token


@same
async def what_has_a_timeout_outlives_its_object(stage: Stage) -> Any:
    lock = stage.lock(timeout=60)
    took = await stage.do(lock.acquire)
    del lock
    gc.collect()
    again = stage.lock(timeout=60)
    return took, await stage.do(again.acquire, blocking=False), stage.value() is not None, stage.ttl(50, 60)


@same
async def what_has_no_timeout_outlives_its_object(stage: Stage) -> Any:
    lock = stage.lock(thread_local=False)
    took, token = await stage.do(lock.acquire), lock.local.token
    del lock
    gc.collect()
    seen = took, stage.value() == token
    after = stage.lock()
    after.local.token = token
    return seen, await stage.do(after.release), stage.value()


# ---- what differs ----


@different(theirs="for ever", ours="as long as it is renewed")
async def without_a_timeout(stage: Stage) -> Any:
    lock = stage.lock()
    await stage.do(lock.acquire)
    ttl = stage.look.pttl(stage.name)
    await stage.do(lock.release)
    return "for ever" if ttl == -1 else "as long as it is renewed" if ttl > 1000 else ttl


@different(theirs=(True, "shorter"), ours=(True, "kept"))
async def a_shorter_time(stage: Stage) -> Any:
    lock = stage.lock(timeout=100)
    await stage.do(lock.acquire)
    done = await stage.do(lock.extend, 40, replace_ttl=True)
    left = stage.look.pttl(stage.name)
    return done, "shorter" if 0 < left <= 40_000 else "kept" if 60_000 < left <= 100_000 else left


@different(theirs=False, ours=True)
async def a_sleep_longer_than_the_wait(stage: Stage) -> Any:
    stage.others(3)
    return await stage.do(stage.lock(timeout=10, sleep=2 * LIMIT, blocking_timeout=LIMIT).acquire)


@different(theirs=False, ours=("redis.exceptions.ResponseError", ""))
async def other_data_at_the_name(stage: Stage) -> Any:
    stage.look.hset(stage.name, "a", "b")
    return await stage.do(stage.lock(timeout=10).acquire, blocking=False)


@different(theirs="builtins.AttributeError", ours=LOCK_ERROR)
async def a_release_by_another_thread(stage: Stage) -> Any:
    lock = stage.lock(timeout=10)
    await stage.do(lock.acquire)
    return stage.in_thread(lock.release)[0]


@different(theirs=True, ours=("redis.exceptions.DataError", ""))
async def a_token_that_is_no_text(stage: Stage) -> Any:
    took = await stage.do(stage.lock(timeout=10).acquire, token=b"\xff\xfe")
    stage.look.delete(stage.name)
    return took


@different(theirs=[True, True], ours=[("redis.exceptions.DataError", "")] * 2)
async def a_timeout_below_a_tenth_of_a_second_or_above_a_day(stage: Stage) -> Any:
    seen = []
    for timeout in (0.05, 7 * 24 * 3600):
        seen.append(await stage.do(stage.lock(timeout=timeout).acquire))
        stage.look.delete(stage.name)
    return seen


@different(theirs=True, ours=LOCK_ERROR)
async def a_timeout_of_zero(stage: Stage) -> Any:
    lock = stage.lock(timeout=0)
    await stage.do(lock.acquire)
    seen = await stage.do(lock.reacquire)
    await stage.do(lock.release)
    return seen if seen is True else seen[0]


@different(theirs=None, ours="still held")
async def a_release_by_a_child_process(stage: Stage) -> Any:
    if stage.face == "asyncio":  # there is no event loop to await in, in a child
        return "still held" if stage.whose == "redlatch" else None
    lock = stage.lock(timeout=60)
    await stage.do(lock.acquire)
    child = os.fork()
    if child == 0:
        try:
            lock.release()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    return None if stage.value() is None else "still held"


@pytest.mark.parametrize("face", CLIENTS)
@pytest.mark.parametrize("row", SAME, ids=lambda row: row.__name__)
def test_both_show_the_same(row: Row, face: str, server: Server, look: Any, name: str) -> None:
    assert play(row, "redlatch", face, server, look, name) == play(row, "redis-py", face, server, look, name)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("face", CLIENTS)
@pytest.mark.parametrize(("row", "theirs", "ours"), DIFFERENT, ids=[row.__name__ for row, _, _ in DIFFERENT])
def test_they_differ(
    row: Row, theirs: Any, ours: Any, face: str, server: Server, look: Any, name: str
) -> None:
    assert play(row, "redis-py", face, server, look, name) == theirs
    assert play(row, "redlatch", face, server, look, name) == ours


@pytest.mark.parametrize(("row", "theirs", "ours"), DIFFERENT, ids=[row.__name__ for row, _, _ in DIFFERENT])
def test_the_page_says_what_differs(row: Row, theirs: Any, ours: Any) -> None:
    words = row.__name__.replace("_", " ").capitalize()
    assert f"| {words} |" in PAGE.read_text()


@pytest.mark.parametrize("face", CLIENTS)
@pytest.mark.parametrize(
    "method", ["__init__", "acquire", "release", "extend", "reacquire", "locked", "owned"]
)
def test_the_parameters_are_the_same(face: str, method: str) -> None:
    theirs = parameters(LOCKS["redis-py", face], method)
    ours = parameters(LOCKS["redlatch", face], method)
    if method == "__init__":
        assert ours.pop("on_lost") == (inspect.Parameter.KEYWORD_ONLY, None)
        if "raise_on_release_error" not in theirs:
            ours.pop("raise_on_release_error")
    assert list(ours.items()) == list(theirs.items())


def parameters(lock: Any, method: str) -> dict[str, tuple[Any, Any]]:
    found = inspect.signature(getattr(lock, method)).parameters.values()
    return {parameter.name: (parameter.kind, parameter.default) for parameter in found}


def play(row: Row, whose: str, face: str, server: Server, look: Any, name: str) -> Any:
    look.delete(name)
    stage = Stage(whose, face, server, look, name)

    async def whole() -> Any:
        try:
            return await row(stage)
        finally:
            await stage.close()

    return run_in_loop(asyncio.new_event_loop(), whole())


@pytest.mark.parametrize("module", [redispy, redispy_aio], ids=["threads", "asyncio"])
def test_what_is_wrong_is_named_as_redis_py_names_it(module: Any, server: Server, name: str) -> None:
    aio = module is redispy_aio
    client = (redis.asyncio.Redis if aio else redis.Redis)(port=server.port)
    taking = lambda: module.Lock(client, name, timeout=0.01).acquire()  # noqa: E731
    with pytest.raises(redis.exceptions.DataError, match="timeout is"):
        asyncio.run(taking()) if aio else taking()


def test_a_client_that_cannot_be_taken_over_is_told_in_a_line() -> None:
    with pytest.raises(
        redlatch.InvalidArgumentError, match=r"this redis\.client\.Redis has ssl_ca_path"
    ) as caught:
        redispy.Lock(redis.Redis(ssl=True, ssl_ca_path="/etc", password="secret"), "n")
    assert len(str(caught.value)) < 240 and "secret" not in str(caught.value)
