"""The lock of a quorum beside other libraries that take most of the same servers: each excludes the other."""

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import build
import pytest
import redlatch
from drivers import Driver, Side
from redlatch._options import Kind

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts" / "lib"))
from server import Quorum, eventually, fields

PATIENCE = 60.0
LEASE = 60_000  # ms; redlock renews nothing

# The sides, and the kind of ours that writes what they write.
SIDES: dict[str, tuple[Callable[[], Side], Kind]] = {
    "redlock": (build.others()["redlock"], "redlock"),
    "redlock-5": (build.others()["redlock-5"], "redlock"),
    "redisson-4.7.0": (build.redissons()["redisson-4.7.0"], "reentrant"),
}


@pytest.fixture(scope="module")
def quorum() -> Iterator[Quorum]:
    with Quorum() as quorum:
        yield quorum


class Their:
    """Their lock of one name, on all servers. Each side has its own name, so that what one leaves stops no other."""

    def __init__(self, driver: Driver, side: str, url: str) -> None:
        self.driver, self.side, self.url, self.name = driver, side, url, f"q:{side}"
        self.ask("open", watchdog_ms="30000", role="a").result(PATIENCE)

    def ask(self, op: str, **words: object) -> Future[dict]:
        common = {
            "client": "q",
            "side": self.side,
            "lock": self.name,
            "url": self.url,
            "prefix": "",
            "as": "main",
        }
        return self.driver.ask(op=op, **common, **words)[1]

    def acquire(self, wait_ms: int) -> Future[dict]:
        return self.ask("acquire", wait_ms=wait_ms, lease_ms=LEASE)

    def release(self) -> str:
        return self.ask("release").result(PATIENCE)["status"]


@pytest.fixture(params=SIDES)
def their(request: pytest.FixtureRequest, quorum: Quorum) -> Iterator[Their]:
    driver = Driver(SIDES[request.param][0]().command)
    try:
        yield Their(driver, request.param, quorum.url)
    finally:
        driver.close()


@pytest.fixture
def our(their: Their) -> Iterator[redlatch.Lock]:
    # The servers were just started, and nothing was held before.
    with redlatch.Client(their.url, restart_delay=0) as client:
        yield client.lock(their.name, kind=SIDES[their.side][1])


def test_each_keeps_the_other_out(their: Their, our: redlatch.Lock, quorum: Quorum) -> None:
    with our:
        assert quorum.having(their.name) == 3
        assert their.acquire(0).result(PATIENCE)["status"] == "timeout"
        # They have given back all that they had for a moment, and ours is whole.
        assert our.owned() and quorum.having(their.name) == 3
    # Ours is released when most servers have said so, and the last may have it for a moment.
    eventually(lambda: quorum.having(their.name) == 0, "no server has ours")
    assert their.acquire(0).result(PATIENCE)["status"] == "ok"
    # They have it when most servers have granted it. The command to the last may still be in flight.
    eventually(lambda: quorum.having(their.name) == 3, "every server has granted it")
    assert not our.acquire(False)
    assert their.release() == "ok"
    eventually(lambda: quorum.having(their.name) == 0, "nothing is left")


def test_each_waits_for_the_other(their: Their, our: redlatch.Lock, quorum: Quorum) -> None:
    with our:
        before = scripts_of(quorum)
        waiter = their.acquire(int(PATIENCE * 1000))
        eventually(lambda: scripts_of(quorum) > before + 1, "they have asked")
        assert not waiter.done()
    assert waiter.result(PATIENCE)["status"] == "ok"
    with ThreadPoolExecutor(1) as pool:  # its thread is the owner
        before = scripts_of(quorum)
        ours = pool.submit(our.acquire, True, PATIENCE)
        eventually(lambda: scripts_of(quorum) > before + 1, "ours has asked")
        assert not ours.done()
        assert their.release() == "ok"
        assert ours.result(PATIENCE)
        pool.submit(our.release).result(PATIENCE)
    eventually(lambda: quorum.having(their.name) == 0, "nothing is left")


def scripts_of(quorum: Quorum) -> int:
    """How many scripts the servers have run."""
    stats = [fields(node("INFO", "commandstats")) for node in quorum.data]
    rows = [row for each in stats for name, row in each.items() if name.startswith("cmdstat_eval")]
    return sum(int(row.split(",")[0].removeprefix("calls=")) for row in rows)
