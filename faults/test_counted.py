"""Porcupine judges histories of plain semaphores and latches, and finds each violation that is planted into them."""

from __future__ import annotations

import tempfile
import unittest
from pathlib import Path

from counted import LATCH, PLAIN, PLANTED, SERVER, Counted, Use, judge, load, save, wrong
from second import Missing, Opinion, Porcupine, build


def uses(*calls: tuple[str, str, int, int | None]) -> list[Use]:
    """One after the other: the op, the status, the number, and what was told. The server is looked at in the end."""
    found = [
        Use(f"c{at % 3}", 10 * at, 10 * at + 5, op.removesuffix("?"), wanted, status, op.endswith("?"), told)
        for at, (op, status, wanted, told) in enumerate(calls, 1)
    ]
    last = found[-1]
    found[-1] = Use(SERVER, last.called, last.answered, last.op, told=last.told)
    return found


SEATS = uses(
    ("acquire?", "ok", 3, None),
    ("acquire?", "timeout", 2, None),
    ("acquire", "ok", 1, None),
    ("look", "ok", 1, 0),
    ("release", "ok", 3, None),
    ("add", "ok", -1, None),
    ("set", "ok", 9, 0),
    ("drain", "ok", 1, 2),
    ("release", "ok", 1, None),
    ("look", "ok", 1, 1),
)
SHUT = uses(
    ("wait?", "timeout", 1, None), ("down", "ok", 3, None), ("look", "ok", 1, 1), ("look", "ok", 1, 1)
)
OPEN = uses(
    ("down", "ok", 3, None),
    ("down", "ok", 2, None),
    ("wait", "ok", 1, None),
    ("look", "ok", 1, 0),
    ("look", "ok", 1, 0),
)
RIGHT = [Counted("seats", PLAIN, 4, SEATS), Counted("shut", LATCH, 4, SHUT), Counted("open", LATCH, 4, OPEN)]


class Counters(unittest.TestCase):
    def opinion(self, *pasts: Counted) -> Opinion:
        try:
            program = build()
        except Missing as missing:
            raise unittest.SkipTest(f"porcupine: {missing}") from None
        with Porcupine(program) as porcupine:
            return judge([*pasts], porcupine)

    def test_each_planted_violation_is_found(self) -> None:
        opinion = self.opinion(*RIGHT)
        self.assertEqual(wrong(opinion), [])
        # Each kind finds a place in one of these.
        self.assertEqual({what for what, plant in PLANTED.items() if any(map(plant, RIGHT))}, {*PLANTED})
        self.assertGreaterEqual(opinion.planted, len(PLANTED))

    def test_a_wrong_history_is_told_with_its_call(self) -> None:
        twice = Counted("twice", PLAIN, 4, uses(("release", "ok", 1, None), ("look", "ok", 1, 6)))
        (told,) = wrong(self.opinion(twice))
        self.assertIn("look 1 of server (ok, told 6) from 20 to 25 cannot follow at 5", told)

    def test_nothing_is_planted_where_an_outcome_is_unknown(self) -> None:
        unknown = Counted("u", PLAIN, 4, uses(("add", "unavailable", 1, None), ("look", "ok", 1, 5)))
        opinion = self.opinion(unknown)
        self.assertEqual((wrong(opinion), opinion.planted), ([], 0))

    def test_what_was_kept_is_read_again(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "kept"
            save(RIGHT, file)
            self.assertEqual(load(file), RIGHT)


if __name__ == "__main__":
    unittest.main()
