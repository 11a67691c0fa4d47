"""The runner's side of a driver."""

import sys

import drivers
import pytest

# It answers each line with the next of these words.
PROGRAM = """
import json, sys
for line, status in zip(sys.stdin, sys.argv[1:]):
    print(json.dumps({"id": json.loads(line)["id"], "status": status}), flush=True)
"""


@pytest.mark.parametrize(
    ("limit", "wait", "said"),
    [(0.0, 0, "ok"), (60.0, 0, "unavailable"), (0.0, 5, "unavailable")],
    ids=["the machine stood still", "the server is not there", "a wait"],
)
def test_a_try_that_took_longer_than_it_may_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, limit: float, wait: int, said: str
) -> None:
    monkeypatch.setattr(drivers, "TRY", limit)
    driver = drivers.Driver((sys.executable, "-c", PROGRAM, "unavailable", "ok"))
    try:
        assert driver.ask(op="acquire", wait_ms=wait)[1].result(60)["status"] == said
    finally:
        driver.close()


def test_a_try_is_asked_again_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drivers, "TRY", 0.0)
    driver = drivers.Driver((sys.executable, "-c", PROGRAM, "unavailable", "unavailable", "ok"))
    try:
        assert driver.ask(op="acquire", wait_ms=0)[1].result(60)["status"] == "unavailable"
    finally:
        driver.close()


def test_a_turn_is_not_asked_again_and_a_line_without_id_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drivers, "TRY", 0.0)
    told: list[dict] = []
    program = f'print(\'{{"told": "deleted"}}\')\n{PROGRAM}'
    driver = drivers.Driver((sys.executable, "-c", program, "unavailable", "ok"), told.append)
    try:
        assert driver.ask(op="turn", wait_ms=0)[1].result(60)["status"] == "unavailable"
        assert told == [{"told": "deleted"}]
    finally:
        driver.close()
