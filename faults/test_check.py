"""The checker accepts what may happen and rejects what must not."""

from __future__ import annotations

import tempfile
import unittest
from pathlib import Path
from typing import Any

from check import Deletion, File, Hold, Past, check, check_past, judge, reject

LEASE = 1.0


def held(who: str, begin: float, end: float, token: int | None = None, **more: Any) -> Hold:
    """Called a little before it was granted, freed a little before that was answered."""
    times = {"called": begin - 0.1, "answered": begin, "sure": end, "freed": end, "done": end + 0.1}
    rest = {"status": "ok", "release": "ok", "token": token, "counted": 1, "told": 1}
    return Hold("n", who, **(times | rest | more))


def reads(who: str, begin: float, end: float) -> Hold:
    return held(who, begin, end, reads=True)


def lost(who: str, begin: float, end: float, **more: Any) -> Hold:
    """Called held for the last time at the end, and told lost soon after."""
    told: dict[str, Any] = {"release": "lost", "lost": [end + 0.05], "kept": False}
    return held(who, begin, end, **(told | more))


def refused(who: str, at: float) -> Hold:
    return Hold("n", who, at, at + 0.01, "timeout", tried=True)


class Checking(unittest.TestCase):
    def wrong(self, *history: Hold) -> list[str]:
        return check(history, LEASE)

    def wrong_with(self, deletion: Deletion, *history: Hold) -> list[str]:
        return check_past(Past(list(history), [deletion]), LEASE)

    def test_one_after_the_other(self) -> None:
        self.assertEqual(self.wrong(held("a", 1, 2, 5), held("b", 2.05, 3, 6), refused("c", 2.5)), [])

    def test_what_is_planted_is_not_what_a_deletion_would_explain(self) -> None:
        past = Past([held("a", 1, 5), held("b", 7, 8), held("c", 9, 10)], [Deletion(6, 6.1)])
        planted, missed = reject(past, LEASE)
        self.assertEqual((missed, planted > 5), ([], True))

    def test_two_at_once(self) -> None:
        self.assertEqual(len(self.wrong(held("a", 1, 2), held("b", 1.99, 3))), 1)

    def test_inside_a_long_one(self) -> None:
        self.assertEqual(len(self.wrong(held("a", 1, 9), held("b", 2, 3), held("c", 10, 11))), 1)

    def test_a_try_for_permits_behind_a_caller_of_its_client(self) -> None:
        def wrong(waits_from: float, who: str) -> list[str]:
            holds = [held("a/1", 1, 2, permits=2), held("b/1", 2.3, 3, called=waits_from, permits=2)]
            return check_past(Past([*holds, refused(who, 2.15)], limit=3), LEASE)

        self.assertEqual(wrong(1.5, "b/2"), [])
        self.assertEqual(len(wrong(1.5, "c/2")), 1)
        # Nobody kept it out since it waits.
        self.assertEqual(len(wrong(2.12, "b/2")), 1)

    def test_readers_at_once(self) -> None:
        self.assertEqual(self.wrong(reads("a", 1, 9), reads("b", 2, 3), reads("c", 2.5, 4)), [])

    def test_a_writer_among_readers(self) -> None:
        self.assertEqual(len(self.wrong(reads("a", 1, 9), reads("b", 2, 3), held("c", 4, 5))), 1)
        self.assertEqual(len(self.wrong(held("c", 1, 5), reads("a", 2, 3))), 1)
        self.assertEqual(self.wrong(reads("a", 1, 2), held("c", 2.05, 3), reads("b", 3.05, 4)), [])

    def test_a_writer_reads_and_goes_on_reading(self) -> None:
        own = [held("a", 1, 3), reads("a", 2, 6)]
        self.assertEqual(self.wrong(*own, reads("b", 3.1, 4)), [])
        self.assertEqual(len(self.wrong(*own, reads("b", 2.5, 4))), 1)
        self.assertEqual(len(self.wrong(*own, held("b", 3.5, 4))), 1)
        self.assertEqual(len(self.wrong(reads("a", 1, 6), held("a", 2, 3))), 1)

    def test_a_reader_is_refused_by_writers_only(self) -> None:
        asks = refused("c", 2)
        asks.reads = True
        self.assertEqual(self.wrong(held("a", 1, 3), asks), [])
        self.assertEqual(len(self.wrong(reads("a", 1, 3), asks)), 1)
        self.assertEqual(self.wrong(reads("a", 1, 3), refused("c", 2)), [])

    def test_what_is_planted_among_readers_is_found(self) -> None:
        past = Past(
            [reads("a", 1, 5), reads("b", 2, 4), held("c", 6, 8, 1), reads("d", 9, 10), held("e", 11, 12, 2)]
        )
        planted, missed = reject(past, LEASE)
        self.assertEqual((missed, planted > 15), ([], True))

    def test_other_names_do_not_matter(self) -> None:
        other = held("b", 1, 2)
        other.name = "m"
        self.assertEqual(self.wrong(held("a", 1, 2), other), [])

    def test_a_hold_that_is_lost_ends_when_it_is_not_called_held_any_more(self) -> None:
        self.assertEqual(self.wrong(lost("a", 1, 2, done=5.0), held("b", 2.5, 3)), [])
        self.assertEqual(len(self.wrong(lost("a", 1, 3, done=5.0), held("b", 2.5, 4))), 1)

    def test_a_deleted_hold_may_be_overlapped(self) -> None:
        self.assertEqual(
            self.wrong_with(Deletion(1.5, 1.6), lost("a", 1, 2.1, done=3.0), held("b", 1.7, 3)), []
        )
        self.assertEqual(
            len(self.wrong_with(Deletion(1.8, 1.9), lost("a", 1, 2.1, done=3.0), held("b", 1.7, 2))), 1
        )

    def test_a_deleted_hold_is_told_within_its_lease(self) -> None:
        self.assertEqual(self.wrong_with(Deletion(1.5, 1.6), lost("a", 1, 2.5)), [])
        self.assertEqual(len(self.wrong_with(Deletion(1.5, 1.6), lost("a", 1, 2.7))), 1)

    def test_a_loss_is_told_once(self) -> None:
        self.assertEqual(len(self.wrong(lost("a", 1, 2, lost=[]))), 1)
        self.assertEqual(len(self.wrong(lost("a", 1, 2, lost=[2.1, 2.2]))), 1)
        self.assertEqual(len(self.wrong(held("a", 1, 2, lost=[1.5]))), 2)
        self.assertEqual(self.wrong(lost("a", 1, 2, lost=[], watched=False)), [])
        self.assertEqual(self.wrong(lost("a", 1, 2, lost=[], kept=True)), [])

    def test_what_was_told_lost_is_not_called_held(self) -> None:
        self.assertEqual(len(self.wrong(lost("a", 1, 2, lost=[1.9]))), 1)

    def test_a_loss_has_a_cause(self) -> None:
        early = lost("a", 1, 1.2, lost=[], kept=True)
        self.assertEqual(len(self.wrong(early)), 1)
        self.assertEqual(len(self.wrong_with(Deletion(1.4, 1.5), early)), 1)
        self.assertEqual(len(self.wrong_with(Deletion(0.7, 0.8), early)), 1)
        self.assertEqual(self.wrong_with(Deletion(0.8, 1.0), early), [])
        self.assertEqual(self.wrong_with(Deletion(1.2, 1.5), early), [])
        self.assertEqual(self.wrong(lost("a", 1, 1.9, lost=[], kept=True)), [])

    def test_what_was_renewed_has_its_time(self) -> None:
        self.assertEqual(len(self.wrong(lost("a", 1, 5, lost=[], kept=True, until=5.2))), 1)
        self.assertEqual(self.wrong(lost("a", 1, 5, lost=[], kept=True, until=5.05)), [])
        self.assertEqual(len(self.wrong(lost("a", 1, 5, kept=True, until=5.2))), 1)

    def test_refused_while_nobody_holds(self) -> None:
        self.assertEqual(len(self.wrong(held("a", 1, 2), refused("b", 2.2))), 1)

    def test_refused_while_somebody_may_hold(self) -> None:
        waits = Hold("n", "c", 2.0, 6.0, "timeout")
        self.assertEqual(self.wrong(lost("a", 1, 2), refused("b", 3.0), waits), [])

    def test_refused_while_somebody_who_was_killed_may_hold(self) -> None:
        killed = Hold("n", "a", 1.0, 2.0, "died")
        self.assertEqual(self.wrong(killed, refused("b", 3.9)), [])
        self.assertEqual(len(self.wrong(killed, refused("b", 4.1))), 1)

    def test_refused_by_itself_only(self) -> None:
        self.assertEqual(len(self.wrong(refused("a", 1.0))), 1)

    def test_tokens(self) -> None:
        self.assertEqual(self.wrong(held("a", 1, 2, 5), held("b", 3, 4, 6)), [])
        self.assertEqual(len(self.wrong(held("a", 1, 2, 6), held("b", 3, 4, 5))), 1)
        self.assertEqual(len(self.wrong(held("a", 1, 2, 6), held("b", 3, 4, 6))), 2)

    def test_tokens_of_calls_that_ran_at_once_may_come_in_any_order(self) -> None:
        early = lost("a", 3, 4, token=6, called=0.5)
        late = held("b", 1, 2, 7, called=0.4)
        self.assertEqual(self.wrong(early, late), [])

    def test_counts(self) -> None:
        self.assertEqual(len(self.wrong(held("a", 1, 2, told=2))), 1)

    def test_a_weak_deletion_ends_only_a_lost_hold(self) -> None:
        weak = Deletion(1.5, 1.6, weak=True)
        other = held("b", 1.7, 2.5)
        self.assertEqual(self.wrong_with(weak, held("a", 1, 3)), [])
        self.assertEqual(self.wrong_with(weak, lost("a", 1, 2), other), [])
        self.assertEqual(len(self.wrong_with(weak, held("a", 1, 3), other)), 1)
        # Another one may have ended it, so it has no time by which it is told.
        self.assertEqual(self.wrong_with(weak, lost("a", 1, 4)), [])

    def test_a_deletion_after_a_weak_one_is_told_within_its_lease(self) -> None:
        weak, sure = Deletion(1.2, 1.3, weak=True), Deletion(1.5, 1.6)
        self.assertEqual(check_past(Past([lost("a", 1, 2.5)], [weak, sure]), LEASE), [])
        self.assertEqual(len(check_past(Past([lost("a", 1, 2.7)], [weak, sure]), LEASE)), 1)

    def test_a_deletion_after_one_during_the_acquisition_is_told_within_its_lease(self) -> None:
        during, after = Deletion(0.9, 1.1), Deletion(1.5, 1.6)
        self.assertEqual(check_past(Past([lost("a", 1, 2.5)], [during, after]), LEASE), [])
        self.assertEqual(len(check_past(Past([lost("a", 1, 2.7)], [during, after]), LEASE)), 1)

    def test_a_server_of_a_quorum_may_keep_what_was_released(self) -> None:
        holds = [held("a", 1, 2), refused("b", 2.5)]
        self.assertEqual(check_past(Past(holds, lingers=LEASE), LEASE), [])
        self.assertEqual(len(check_past(Past(holds), LEASE)), 1)
        holds = [held("a", 1, 2), refused("b", 3.2)]
        self.assertEqual(len(check_past(Past(holds, lingers=LEASE), LEASE)), 1)

    def test_every_planted_violation_is_found(self) -> None:
        past = Past([held("ab"[turn % 2], turn, turn + 0.5, turn + 1) for turn in range(10)])
        self.assertEqual(check_past(past, LEASE), [])
        self.assertEqual(reject(past, LEASE), (15, []))


class Reading(unittest.TestCase):
    """The histories of processes, in nanoseconds."""

    def setUp(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def file(self, *lines: str, cut: str = "", died: int | None = None) -> File:
        path = Path(self.folder.name) / "a"
        path.write_text("".join(line + "\n" for line in lines) + cut)
        return File(path, "a", died)

    def test_a_hold_and_a_loss(self) -> None:
        lines = ["b 0 n 10", "b 1 m 11", "l 1 11 35 expired"]
        lines += ["e 0 n 10 20 ok 1 7 2 2 30 1 1025 31 40 ok", "e 1 m 11 20 ok 0 8 1 1 30 0 0 36 40 lost"]
        verdict = judge([self.file(*lines)], 1000, [("m", Deletion(32, 34))])
        self.assertEqual((verdict.wrong, verdict.missed), ([], []))
        self.assertEqual(
            (verdict.acquisitions, verdict.attempts, verdict.operations, verdict.told), (2, 2, 6, 1)
        )

    def wrong(self, *lines: str, deletions: list[tuple[str | None, Deletion]] | None = None) -> list[str]:
        return judge([self.file(*lines)], 1000, deletions or []).wrong

    def test_a_multi_lock_has_each_of_its_names(self) -> None:
        both = ["b 0 n,m 10", "e 0 n,m 10 20 ok 0 - 1 1 100 1 0 100 110 ok"]
        for name in ("n", "m"):
            other = [f"b 1 {name} 30", f"e 1 {name} 30 40 ok 0 - 1 1 50 1 0 50 60 ok"]
            (wrong,) = self.wrong(*both, *other)
            self.assertIn(f"two hold {name}", wrong)
        free = ["b 1 o 30", "e 1 o 30 40 ok 0 - 1 1 50 1 0 50 60 ok"]
        self.assertEqual(self.wrong(*both, *free), [])

    def test_a_try_of_a_multi_lock_is_refused_by_a_holder_of_one_name(self) -> None:
        asks = ["b 0 n,m 50", "e 0 n,m 50 51 timeout 1 - 0 0 0 0 0 0 0 -"]
        holds = ["b 1 m 30", "e 1 m 30 40 ok 0 - 1 1 60 1 0 60 70 ok"]
        self.assertEqual(self.wrong(*asks, *holds), [])
        (wrong,) = self.wrong(*asks)
        self.assertIn("refused n, m after 50", wrong)

    def test_the_loss_of_one_name_is_that_of_the_multi_lock(self) -> None:
        lines = ["b 0 n,m 10", "l 0 10 35 deleted", "e 0 n,m 10 20 ok 0 - 1 1 30 0 0 36 40 lost"]
        self.assertEqual(self.wrong(*lines, deletions=[("m", Deletion(32, 34))]), [])
        self.assertEqual(len(self.wrong(*lines, deletions=[("m", Deletion(42, 44))])), 2)
        self.assertEqual(len(self.wrong(*lines, deletions=[("o", Deletion(32, 34))])), 2)

    def test_a_call_without_an_answer(self) -> None:
        self.assertEqual(len(judge([self.file("b 0 n 10")], 1000).wrong), 1)
        verdict = judge([self.file("b 0 n 10", died=20)], 1000)
        self.assertEqual((verdict.wrong, dict(verdict.ends)), ([], {"died": 1}))

    def test_a_line_that_was_cut_is_of_one_who_died(self) -> None:
        verdict = judge([self.file("b 0 n 10", cut="e 0 n 10 20 ok", died=20)], 1000)
        self.assertEqual((verdict.wrong, dict(verdict.ends)), ([], {"died": 1}))


if __name__ == "__main__":
    unittest.main()
