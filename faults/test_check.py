"""The checker accepts what may happen and rejects what must not."""

from __future__ import annotations

import unittest

from check import Hold, check, judge

LEASE = 1.0


def held(who: str, begin: float, end: float, token: int | None = None, **more: object) -> Hold:
    """Called a little before it was granted, freed a little before that was answered."""
    times = {"called": begin - 0.1, "answered": begin, "freed": end, "done": end + 0.1}
    rest = {"status": "ok", "release": "ok", "token": token, "counted": 1, "told": 1}
    return Hold("n", who, **(times | rest | more))


def refused(who: str, at: float) -> Hold:
    return Hold("n", who, at, at + 0.01, "timeout", tried=True)


class Checking(unittest.TestCase):
    def wrong(self, *history: Hold) -> list[str]:
        return check(history, LEASE)

    def test_one_after_the_other(self) -> None:
        self.assertEqual(self.wrong(held("a", 1, 2, 5), held("b", 2.05, 3, 6), refused("c", 2.5)), [])

    def test_two_at_once(self) -> None:
        self.assertEqual(len(self.wrong(held("a", 1, 2), held("b", 1.99, 3))), 1)

    def test_inside_a_long_one(self) -> None:
        self.assertEqual(len(self.wrong(held("a", 1, 9), held("b", 2, 3), held("c", 10, 11))), 1)

    def test_other_names_do_not_matter(self) -> None:
        other = held("b", 1, 2)
        other.name = "m"
        self.assertEqual(self.wrong(held("a", 1, 2), other), [])

    def test_a_lost_hold_may_be_overlapped(self) -> None:
        self.assertEqual(self.wrong(held("a", 1, 5, release="lost"), held("b", 2, 3)), [])

    def test_refused_while_nobody_holds(self) -> None:
        self.assertEqual(len(self.wrong(held("a", 1, 2), refused("b", 2.2))), 1)

    def test_refused_while_somebody_may_hold(self) -> None:
        waits = Hold("n", "c", 2.0, 6.0, "timeout")
        self.assertEqual(self.wrong(held("a", 1, 2, release="lost"), refused("b", 3.0), waits), [])

    def test_refused_by_itself_only(self) -> None:
        self.assertEqual(len(self.wrong(refused("a", 1.0))), 1)

    def test_tokens(self) -> None:
        self.assertEqual(self.wrong(held("a", 1, 2, 5), held("b", 3, 4, 6)), [])
        self.assertEqual(len(self.wrong(held("a", 1, 2, 6), held("b", 3, 4, 5))), 1)
        self.assertEqual(len(self.wrong(held("a", 1, 2, 6), held("b", 3, 4, 6))), 2)

    def test_tokens_of_calls_that_ran_at_once_may_come_in_any_order(self) -> None:
        early = held("a", 3, 4, 6, called=0.5, release="lost")
        late = held("b", 1, 2, 7, called=0.4)
        self.assertEqual(self.wrong(early, late), [])

    def test_counts(self) -> None:
        self.assertEqual(len(self.wrong(held("a", 1, 2, told=2))), 1)

    def test_every_planted_violation_is_found(self) -> None:
        history = [held("ab"[turn % 2], turn, turn + 0.5, turn + 1) for turn in range(10)]
        wrong, planted, rejected = judge(history, LEASE)
        self.assertEqual((wrong, planted, rejected), ([], 6, 6))


if __name__ == "__main__":
    unittest.main()
