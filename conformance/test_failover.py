"""Holds that overlap are found: of a lock, and of the permits of a semaphore."""

import unittest

from failover import Held, overlaps


def held(lock: str, *spans: tuple[float, float] | tuple[float, float, float]) -> list[Held]:
    """Since when and until when it was held, and when it was told lost, if it was."""
    return [Held(lock, f"{lock}{at}", *span) for at, span in enumerate(spans)]


class Overlapping(unittest.TestCase):
    def test_one_after_the_other(self) -> None:
        self.assertEqual(overlaps([*held("a", (1, 2), (2, 3)), *held("b", (1, 3))], 1), ([], 0.0))

    def test_two_at_once(self) -> None:
        found, _ = overlaps(held("a", (1, 5), (2, 3), (4, 6)), 1)
        self.assertEqual(len(found), 2)
        self.assertIn("a0 held 1.000 to 5.000, a1 from 2.000", found[0])

    def test_two_of_whom_one_was_told(self) -> None:
        self.assertEqual(overlaps(held("a", (1, 9, 3), (2.5, 4)), 1), ([], 0.5))

    def test_two_of_whom_one_was_told_before(self) -> None:
        self.assertEqual(overlaps(held("a", (1, 9, 2), (2.5, 4)), 1), ([], 0.0))

    def test_as_many_as_there_are_permits(self) -> None:
        self.assertEqual(overlaps(held("a", (1, 5), (2, 6), (5, 7)), 2), ([], 0.0))

    def test_one_permit_too_many(self) -> None:
        found, _ = overlaps(held("a", (1, 5), (2, 6), (4, 7)), 2)
        self.assertEqual(len(found), 1)

    def test_one_permit_too_many_of_which_one_was_lost(self) -> None:
        self.assertEqual(overlaps(held("a", (1, 5), (2, 6, 4.25), (4, 7)), 2), ([], 0.25))

    def test_a_lost_permit_excuses_one_only(self) -> None:
        found, _ = overlaps(held("a", (1, 5), (2, 6, 4.25), (3, 6), (4, 7)), 2)
        self.assertEqual(len(found), 1)


if __name__ == "__main__":
    unittest.main()
