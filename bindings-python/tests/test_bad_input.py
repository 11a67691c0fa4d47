"""Bad input is refused with an error that names the value and the remedy, and nothing is sent."""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
import redlatch
from conftest import LIMIT, Server
from redlatch import aio

CLIENTS = [redlatch.Client, aio.Client]
either = pytest.mark.parametrize("Client", CLIENTS, ids=["threads", "asyncio"])


def refused(call: Any, *parts: str) -> redlatch.InvalidArgumentError:
    with pytest.raises(redlatch.InvalidArgumentError) as caught:
        call()
    text = str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert all(part in text for part in parts), text
    return caught.value


@either
@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("", "1,024"),
        ("x" * 1025, "1025"),
        ("é" * 513, "1026"),
        ("\ud800", "\\ud800"),
        ("a\udcff", "UTF-8"),
        (["a", "b"], "client.multi_lock(names)"),
        (b"bytes", "b'bytes'"),
        (None, "None"),
        (17, "17"),
    ],
)
def test_names(Client: Any, name: Any, part: str) -> None:
    client = Client()
    refused(lambda: client.lock(name), part)
    assert client.stats()["connects"] == 0


@either
def test_a_time_as_text_is_told_to_be_seconds(Client: Any) -> None:
    refused(
        lambda: Client(watchdog_lease="30s"),
        "watchdog_lease is '30s'",
        "a time from 100 ms",
        "number of seconds",
    )
    refused(lambda: Client(tracking="yes"), "tracking is 'yes'", "true or false")
    with pytest.raises(TypeError, match="timeout is '5s'; give it seconds as a number"):
        Client().lock("a").acquire(timeout="5s")


@either
def test_a_wait_is_called_timeout(Client: Any) -> None:
    refused(lambda: Client().lock("a", wait=5), "is called timeout", "acquire(timeout=...)")
    refused(lambda: Client(wait=5), "is called timeout")


@either
@pytest.mark.parametrize("option", ["lease", "watchdog_lease", "max_hold"])
@pytest.mark.parametrize(
    "value", [0, -1, 0.0999, math.nan, math.inf, -math.inf, 1e300, 10**400, "10", b"1", True, object()]
)
def test_times(Client: Any, option: str, value: Any) -> None:
    refused(lambda: Client().lock("a", **{option: value}), option)
    refused(lambda: Client(**{option: value}), option)


@either
@pytest.mark.parametrize("value", [-0.001, math.nan, math.inf, 1e300, "5", True])
def test_timeouts_of_blocks(Client: Any, value: Any) -> None:
    refused(lambda: Client().lock("a", timeout=value), "timeout", repr(value), "None")


@either
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("fencing", 1),
        ("tracking", "yes"),
        ("client_name", "two words"),
        ("client_name", 5),
        ("client_name", "\ud800"),
        ("events", -1),
        ("events", 1.5),
        ("events", 1e9),
        ("connect_timeout", 0),
    ],
)
def test_other_options(Client: Any, option: str, value: Any) -> None:
    refused(lambda: Client(**{option: value}), option)


@either
def test_unknown_options_are_named_with_what_was_meant(Client: Any) -> None:
    refused(lambda: Client(leese=1), "leese", "lease")
    refused(lambda: Client().lock("a", fencin=True), "fencin", "fencing")
    others = "cancel_on_lost" if Client is redlatch.Client else "interrupt_on_lost"
    refused(
        lambda: Client().lock("a", **{others: True}), others, "cancel_on_lost is for locks of redlatch.aio"
    )


@either
def test_none_is_the_default(Client: Any) -> None:
    Client(lease=None, events=None).lock("a", lease=None, timeout=None, on_lost=None)


@either
@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost",
        "http://localhost",
        "redis://u:geheim@h:port",
        "rediss://:geheim@h:port",
        "redis://h:99999",
        5,
        b"x",
        "redis://\ud800",
    ],
)
def test_urls(Client: Any, url: Any) -> None:
    error = refused(
        lambda: Client(url), "redis://" if isinstance(url, str) and "\ud800" not in url else "str"
    )
    assert "geheim" not in str(error)


@either
def test_no_url(Client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REDLATCH_URL")
    refused(Client, "REDLATCH_URL")


@pytest.mark.parametrize("value", [0, -1, math.nan, 1e300, "5", None])
def test_leases_of_an_acquisition(client: redlatch.Client, name: str, value: Any, look: redis.Redis) -> None:
    lock = client.lock(name)
    if value is not None:
        refused(lambda: lock.acquire(lease=value), "lease")
    with lock as grant:
        refused(lambda: grant.extend(value), "lease")
        refused(lambda: lock.extend(value), "lease")
    assert not look.exists(name)


ARGUMENTS: list[tuple[Any, ...]] = [
    (False, 1),
    (False, 0),
    (True, -2),
    (True, -0.5),
    (True, math.nan),
    (True, math.inf),
    (True, threading.TIMEOUT_MAX * 2),
    (True, "1"),
    (True, None),
]


@either
@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_acquire_has_the_rules_of_threading(Client: Any, arguments: tuple[Any, ...]) -> None:
    with pytest.raises((ValueError, OverflowError, TypeError)) as expected:
        threading.Lock().acquire(*arguments)
    lock = Client().lock("a")
    with pytest.raises(expected.type) as caught:
        lock.acquire(*arguments)
    # That something is no number is said there without the name of the argument.
    told = f"timeout is {arguments[1]!r}; " if expected.type is TypeError else str(expected.value)
    assert str(caught.value).startswith(told)


def test_the_longest_timeouts_of_threading_are_for_ever(client: redlatch.Client, name: str) -> None:
    lock = client.lock(name, reentrant=True)
    assert lock.acquire(timeout=threading.TIMEOUT_MAX)
    assert lock.acquire(True, threading.TIMEOUT_MAX / 2)
    assert lock.hold_count == 2


def test_a_server_that_cannot_be_reached() -> None:
    with socket.socket() as bound:  # bound, and not listening
        bound.bind(("127.0.0.1", 0))
        url = f"redis://u:geheim@127.0.0.1:{bound.getsockname()[1]}"
        client = redlatch.Client(url, connect_timeout=1)
        started = time.monotonic()
        for call in (client.connect, client.lock("a").acquire, client.lock("a").locked):
            with pytest.raises(redlatch.UnavailableError) as caught:
                call()
            assert isinstance(caught.value, ConnectionError) and caught.value.retryable
            assert "geheim" not in str(caught.value) and "127.0.0.1" in str(caught.value)
        with pytest.raises(redlatch.UnavailableError), client.lock("a"):
            pytest.fail("the body ran")
        assert time.monotonic() - started < 4 * LIMIT
        client.close()


@pytest.fixture
def guarded() -> Iterator[Server]:
    with Server("", "--requirepass", "geheim") as server:
        yield server


def test_a_wrong_password(guarded: Server) -> None:
    for password in ("falsch", ""):
        url = guarded.url.replace("://", f"://:{password}@" if password else "://")
        client = redlatch.Client(url)
        with pytest.raises(redlatch.AuthError) as caught:
            client.connect()
        assert not password or password not in str(caught.value)
        client.close()
    with redlatch.Client(guarded.url.replace("://", "://:geheim@")) as client, client.lock("a") as grant:
        assert grant.held


@pytest.mark.parametrize("kind", ["string", "list", "read-write lock"])
def test_a_key_of_another_type(client: redlatch.Client, look: redis.Redis, name: str, kind: str) -> None:
    if kind == "string":
        look.set(name, "value")
    elif kind == "list":
        look.rpush(name, "value")
    else:
        look.hset(name, "mode", "read")
    before = look.dump(name)
    lock = client.lock(name)
    for call in (lock.acquire, lock.locked, lock.force_release):
        with pytest.raises(redlatch.ForeignKindError) as caught:
            call()
        assert caught.value.lock_name == name and not caught.value.retryable
    assert look.dump(name) == before


def test_a_closed_client(name: str) -> None:
    client = redlatch.Client()
    lock = client.lock(name)
    assert lock.acquire()
    assert client.close() == []
    for call in (lock.acquire, lock.locked, client.connect):
        with pytest.raises(redlatch.ClosedError, match="open a new one") as closed:
            call()
        assert closed.value.lock_name == (None if call == client.connect else name)
    assert client.close() == []
    unused = redlatch.Client()
    unused.close()
    with pytest.raises(redlatch.ClosedError), unused.lock(name):
        pytest.fail("the body ran")


async def test_a_closed_client_of_asyncio(name: str) -> None:
    client = aio.Client()
    lock = client.lock(name)
    assert await lock.acquire()
    assert await client.close() == []
    for call in (lock.acquire, lock.locked, client.connect):
        with pytest.raises(redlatch.ClosedError, match="open a new one") as closed:
            await call()
        assert closed.value.lock_name == (None if call == client.connect else name)
    assert await client.close() == []
