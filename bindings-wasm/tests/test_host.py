"""The module in a runtime without JavaScript, with the host of bindings-wasm/examples/host.py, on a real server."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "scripts" / "lib"), str(HERE.parent / "examples")]
import host as numbers  # noqa: E402
from host import Failed, Host, Records, now, number, text, value  # noqa: E402
from server import Server  # noqa: E402

MODULE = ROOT / "bindings-node" / "redlatch.wasm"
NAME = "orders:42"
LIMIT = 60.0
"""Seconds that a busy machine may take for something that takes milliseconds."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture
def eye(server: Server) -> Iterator[redis.Redis]:
    """Looks at the server, which is empty at first."""
    with redis.Redis.from_url(server.url, decode_responses=True) as eye:
        eye.flushall()
        yield eye


@pytest.fixture(scope="module")
def host() -> Host:
    return Host(MODULE)


def until(host: Host, holds: Callable[[], object], seconds: float = LIMIT) -> None:
    """Lets the host work until something is so."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it does not come about"
        host.turn(0.05)


def test_release_wakes_the_refused_client(host: Host, server: Server, eye: redis.Redis) -> None:
    first, second = host.open(server.url), host.open(server.url)
    ours, theirs = host.locks(first, NAME), host.locks(second, NAME)
    hold = host.acquire(ours, NAME)
    assert host.is_held(hold)
    owner, count = next(iter(eye.hgetall(NAME).items()))
    assert count == "1"

    with pytest.raises(Failed) as refused:
        host.acquire(theirs, NAME, wait=0)
    assert refused.value.kind == "timeout"

    waiting = host.begin(theirs, NAME)
    until(host, lambda: eye.pubsub_numsub(f"redisson_lock__channel:{{{NAME}}}")[0][1] == 1)
    assert waiting not in host.answers
    host.release(hold)
    host.wait(waiting)
    assert (host.is_held(hold), host.is_held(waiting)) == (False, True)
    assert next(iter(eye.hgetall(NAME))) != owner
    found = host.wait(host.ask("redlatch_inspect", ours, given=text(NAME) + bytes([numbers.PROCESSES])))
    assert [(each["language"], each["pid"]) for each in found] == [("python-wasmtime", os.getpid())]

    assert host.close(second) == []
    assert eye.exists(NAME) == 0
    host.close(first)
    assert not host.sockets


def test_wake_renews_the_watchdog_lease(host: Host, server: Server, eye: redis.Redis) -> None:
    client = host.open(server.url)
    hold = host.acquire(host.locks(client, NAME, watchdog_lease=6000), NAME)
    before = eye.pttl(NAME)

    def renewed() -> bool:
        nonlocal before
        last, before = before, eye.pttl(NAME)
        return before > last

    until(host, renewed)
    assert host.is_held(hold)
    assert hold not in host.lost
    host.close(client)


def test_fixed_lease_ends_and_is_told(host: Host, server: Server, eye: redis.Redis) -> None:
    client = host.open(server.url)
    hold = host.acquire(host.locks(client, NAME), NAME, lease=500)
    until(host, lambda: hold in host.lost)
    assert host.lost[hold] == "expired"
    assert not host.is_held(hold)
    until(host, lambda: not eye.exists(NAME))
    host.close(client)


def test_deleted_key_is_told_as_loss(host: Host, server: Server, eye: redis.Redis) -> None:
    client = host.open(server.url)
    hold = host.acquire(host.locks(client, NAME), NAME)
    eye.delete(NAME)
    until(host, lambda: hold in host.lost)
    assert host.lost[hold] == "deleted"
    with pytest.raises(Failed) as failed:
        host.release(hold)
    assert (failed.value.kind, failed.value.reason) == ("lost", "deleted")
    host.close(client)


def test_hold_survives_its_connections(host: Host, server: Server, eye: redis.Redis) -> None:
    client = host.open(server.url)
    hold = host.acquire(host.locks(client, NAME), NAME)
    before = set(host.sockets)
    assert eye.client_kill_filter(_type="normal", skipme=True) >= 1
    until(host, lambda: not before & set(host.sockets) and host.sockets)
    assert host.is_held(hold)
    host.release(hold)
    assert eye.exists(NAME) == 0
    host.close(client)


def test_answers_have_the_values_of_the_table(host: Host, server: Server, eye: redis.Redis) -> None:
    client = host.open(server.url)
    fenced = host.locks(client, NAME, fencing=True)
    tokens = []
    for _ in range(2):
        hold = host.begin(fenced, NAME, lease=20_000)
        tokens.append(host.wait(hold))
        host.wait(host.ask("redlatch_extend", hold, given=value(60_000)))
        assert 20_000 < host.get("redlatch_remaining", hold, now()) <= 60_000
        again = host.ask("redlatch_reenter", fenced, hold)
        host.wait(again)
        assert host.get("redlatch_count", again) == 2
        host.release(again)
        host.release(hold)
    assert tokens[0] < tokens[1]

    permits = host.locks(client, "permits", kind="semaphore", limit=3)
    hold = host.acquire(permits, "permits", permits=2)
    assert host.wait(host.ask("redlatch_permits", permits, given=text("permits"))) == (1, 3)
    assert host.wait(host.ask("redlatch_force", permits, given=text("permits"))) is True
    until(host, lambda: host.lost.get(hold) == "forced")
    with pytest.raises(Failed) as failed:
        host.call("redlatch_check", hold, now())
    assert (failed.value.kind, failed.value.reason) == ("lost", "forced")

    def counter(call: str, *given: bytes, name: str = "seats") -> int:
        return host.ask(f"redlatch_{call}", client, given=text(name) + b"".join(given))

    seats, latch = bytes([numbers.SEMAPHORE]), bytes([numbers.LATCH])
    give, set_seats = bytes([numbers.RELEASE]), bytes([numbers.SET_PERMITS])
    add, drain = bytes([numbers.ADD_PERMITS]), bytes([numbers.DRAIN])
    set_count, count_down = bytes([numbers.SET_COUNT]), bytes([numbers.COUNT_DOWN])
    assert host.call("redlatch_counter_name", client, given=seats + text("seats")) is None
    with pytest.raises(Failed, match="name"):
        host.call("redlatch_counter_name", client, given=seats + text(""))
    with pytest.raises(Failed) as failed:
        host.call("redlatch_counter_name", client, given=b"\2" + text("seats"))
    assert failed.value.kind == "internal"
    assert host.wait(counter("change", set_seats, number(3))) is True
    assert host.wait(counter("change", set_seats, number(9))) is False
    assert host.wait(counter("take", number(2))) is None
    assert host.wait(counter("read", seats)) == 1
    with pytest.raises(Failed) as failed:
        host.wait(counter("take", number(2), value(0)))
    assert failed.value.kind == "timeout"
    assert host.wait(counter("change", give, number(2))) is None
    assert host.wait(counter("change", add, number(-4))) == -1
    assert host.wait(counter("change", drain, number(0))) == -1
    assert eye.get("seats") == "0"

    assert host.wait(counter("change", set_count, number(2), name="ready")) is True
    opens = counter("await", name="ready")
    assert host.wait(counter("change", count_down, number(1), name="ready")) == 1
    assert host.wait(counter("read", latch, name="ready")) == 1
    assert opens not in host.answers
    assert host.wait(counter("change", count_down, number(1), name="ready")) == 0
    assert host.wait(opens) is None
    for call, given in (("read", b"\2"), ("change", b"\6" + number(1))):
        with pytest.raises(Failed, match="a number that it has not given"):
            host.wait(counter(call, given))

    assert host.call("redlatch_name", fenced, given=text(NAME)) == [NAME]
    stats = host.call("redlatch_stats", client)
    assert int(dict(zip(stats[::2], stats[1::2], strict=True))["acquired"]) == 5
    host.close(client)


def test_value_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown kind 8"):
        Records(b"\x08").value()


def test_call_refused_at_once_has_no_other_answer(host: Host, server: Server) -> None:
    client = host.open(server.url)
    locks = host.locks(client, NAME)
    for begin in (
        lambda: host.begin(locks, NAME, lease=1),
        lambda: host.ask("redlatch_release", 10**6),
        lambda: host.ask("redlatch_inspect", 10**6, given=text(NAME) + b"\0"),
    ):
        with pytest.raises(Failed):
            begin()
    host.turn(0.0)
    assert not host.answers
    host.close(client)


def test_failures_have_the_names_of_the_tables(host: Host, server: Server) -> None:
    with pytest.raises(Failed, match="did you mean lease") as failed:
        host.open(server.url, leese=1)
    assert failed.value.kind == "invalid_argument"
    with Server() as gone:
        url = gone.url
    with pytest.raises(Failed) as failed:
        host.open(url, connect_timeout=100)
    assert failed.value.kind == "unavailable"


def test_example_prints_its_story(server: Server) -> None:
    program = [sys.executable, str(HERE.parent / "examples" / "host.py"), str(MODULE)]
    environment = {**os.environ, "REDLATCH_URL": server.url}
    ended = subprocess.run(program, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    lines = ended.stdout.splitlines()
    assert lines[0] == "the first client has orders:42"
    assert lines[1].startswith("the second is refused: timeout: ")
    assert lines[2:] == ["the first has released it, the second has it: True"]
