"""A client of an earlier version holds and waits for the same names as one of today: docs/operate.md says so of upgrades.

What each version sends is in recorded/, made by record.py at its release. It is sent again here, at another time: its moments move along, and
its lease is a long one, so that only a message wakes.
"""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis
import redlatch
from record import LEASE, LIMIT, lock_of
from server import Server, eventually

RECORDED = sorted((Path(__file__).parent / "recorded").glob("*.json"))
PLAYED = [(file, kind) for file in RECORDED for kind in json.loads(file.read_text())["kinds"]]
LONG = 600_000  # the lease, in milliseconds
DAY = 86_400_000

pytestmark = pytest.mark.parametrize(
    ("file", "kind"), PLAYED, ids=[f"{file.stem}-{kind}" for file, kind in PLAYED]
)


class Recorded:
    """A client that sends what was recorded."""

    def __init__(self, url: str, file: Path, kind: str) -> None:
        told = json.loads(file.read_text())
        self.scripts, self.calls = told["scripts"], told["kinds"][kind]
        self.server = redis.Redis.from_url(url)

    def __call__(self, step: str) -> Any:
        call = self.calls[step]
        seconds, micros = self.server.time()
        later = seconds * 1000 + micros // 1000 - call["at"] + LONG

        def today(word: str) -> bytes:
            if word == str(round(LEASE * 1000)):
                return b"%d" % LONG
            if word.isdecimal() and abs(int(word) - call["at"]) < DAY:
                return b"%d" % (int(word) + later)
            return word.encode("latin-1")

        keys, words = ([today(word) for word in call[part]] for part in ("keys", "args"))
        return self.server.eval(self.scripts[call["script"]], len(keys), *keys, *words)

    def channel(self) -> str:
        (found,) = {word for word in self.calls["release"]["args"] if word.startswith("redisson_")}
        return found


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture
def old(server: Server, file: Path, kind: str) -> Recorded:
    return Recorded(server.url, file, kind)


@pytest.fixture
def client(server: Server) -> Iterator[redlatch.Client]:
    # Nothing but a message wakes a waiter of this one.
    with redlatch.Client(server.url, recheck=3600, tracking=False, watchdog_lease=LONG / 1000) as client:
        yield client


def test_it_keeps_todays_out_and_wakes_it(client: redlatch.Client, old: Recorded, kind: str) -> None:
    lock = lock_of(client, "write" if kind == "read" else kind)

    def turn() -> None:
        assert lock.acquire(timeout=LIMIT)
        lock.release()

    old("acquire")
    assert not lock.acquire(blocking=False)
    old("renew")
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(turn)
        eventually(
            lambda: client.stats()["waiting"] == 1 and old.server.pubsub_channels(), "it listens", LIMIT
        )
        old("release")
        waiting.result(LIMIT)
    assert lock.acquire(blocking=False)


def test_todays_keeps_it_out_and_wakes_it(client: redlatch.Client, old: Recorded, kind: str) -> None:
    lock = lock_of(client, "write" if kind == "read" else kind)
    assert lock.acquire()
    old("acquire")
    heard = old.server.pubsub(ignore_subscribe_messages=True)
    heard.subscribe(old.channel())
    heard.get_message(timeout=LIMIT)
    lock.release()
    if kind != "fair":  # which tells only those in its queue
        assert heard.get_message(timeout=LIMIT)["channel"] == old.channel().encode()
    old("acquire")
    assert not lock.acquire(blocking=False)
    old("release")
    assert lock.acquire(blocking=False)
