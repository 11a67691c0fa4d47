"""The record of a fair lock's turns finds what is out of order."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts" / "lib"))
from tap import Tap
from turns import Turns


class Replayed(Tap):
    """A tap that shows these commands of scripts."""

    def __init__(self) -> None:
        self.lines = []

    def show(self, text: str) -> None:
        for command in text.splitlines():
            words = " ".join(f'"{word}"' for word in command.split())
            self.lines.append(f"1764074069.123456 [0 lua] {words}")


@pytest.fixture
def tap() -> Replayed:
    return Replayed()


def turns_of(tap: Replayed, text: str) -> Turns:
    turns = Turns(tap, "row1", "queue:{row1}")
    tap.show(text)
    turns.follow()
    return turns


# As redlatch grants, and as Redisson does.
OURS = "HSET row1 A-0:2 1\nLREM queue:{row1} 1 A-0:2\n"
THEIRS = "lpop queue:{row1}\nhset row1 B-0:7 1\ndel row1\n"


def test_turns_in_order_are_counted(tap: Replayed) -> None:
    queue = "hset row1 A-0:1 1\nRPUSH queue:{row1} A-0:2\nrpush queue:{row1} B-0:7\nHDEL row1 A-0:1\n"
    turns = turns_of(tap, queue + OURS + "HDEL row1 A-0:2\n" + THEIRS)
    assert (turns.grants, turns.violations, turns.line) == (3, [], [])


def test_an_owner_with_a_new_name_keeps_its_place(tap: Replayed) -> None:
    queue = "RPUSH queue:{row1} A-9:1\nRPUSH queue:{row1} C-0:1\nLSET queue:{row1} 0 A-0:2\n"
    turns = turns_of(tap, queue + OURS)
    assert (turns.grants, turns.violations, turns.line) == (1, [], ["C-0:1"])


def test_a_grant_out_of_order_is_found(tap: Replayed) -> None:
    queue = "RPUSH queue:{row1} C-0:1\nRPUSH queue:{row1} A-0:2\n"
    assert turns_of(tap, queue + OURS).violations == ["A-0:2 came before ['C-0:1']"]


def test_a_grant_without_a_place_is_found(tap: Replayed) -> None:
    turns = turns_of(tap, "RPUSH queue:{row1} C-0:1\nHSET row1 A-0:9 1\n")
    assert turns.violations == ["A-0:9 came before ['C-0:1']"]


def test_a_place_that_a_live_client_loses_is_found(tap: Replayed) -> None:
    queue = "RPUSH queue:{row1} A-0:1\nRPUSH queue:{row1} A-0:2\nLPOP queue:{row1}\n"
    assert turns_of(tap, queue + OURS).violations == ["A-0:1 lives, and lost its place"]


def test_a_place_that_a_dead_client_loses_is_not(tap: Replayed) -> None:
    queue = "RPUSH queue:{row1} C-0:1\nRPUSH queue:{row1} A-0:2\nLPOP queue:{row1}\n"
    assert turns_of(tap, queue + OURS).violations == []


def test_other_locks_and_commands_of_clients_do_not_count(tap: Replayed) -> None:
    turns = turns_of(tap, "hset row11 A-0:1 1\nrpush queue:{row11} A-0:1\n")
    tap.lines.append('1764074069.123456 [0 127.0.0.1:50000] "hset" "row1" "A-0:1" "1"')
    turns.follow()
    assert (turns.grants, turns.line) == (0, [])
