"""Porcupine and our own checker agree: on what is right, on every planted violation, and on hand-written histories."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import unittest
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from check import Deletion, File, Hold, Past, Verdict, check_past, judge, planted
from second import SOURCES, Missing, Porcupine, Soaked, build, failed, report

LEASE = 1_000_000_000
RECORDED = SOURCES / "testdata" / "recorded"
# The lease of that soak, and the deletions of its key.
RECORDED_LEASE = 3_000_000_000
DELETED = [(3_000_000_000, 3_000_367_012), (6_630_878_761, 6_631_116_306), (8_089_225_358, 8_089_427_552)]


def held(who: str, begin: float, end: float, token: int | None = None, **more: Any) -> Hold:
    """A hold that was released; times in leases."""
    times = {"called": begin - 0.1, "answered": begin, "sure": end, "freed": end, "done": end + 0.1}
    rest = {"status": "ok", "release": "ok", "token": token, "counted": 1, "told": 1}
    hold = Hold("n", who, **(times | rest | more))
    for name in ("called", "answered", "sure", "until", "freed", "done"):
        setattr(hold, name, round(getattr(hold, name) * LEASE))
    hold.lost = [round(at * LEASE) for at in hold.lost]
    return hold


def lost(who: str, begin: float, end: float, **more: Any) -> Hold:
    told: dict[str, Any] = {"release": "lost", "lost": [end + 0.05], "kept": False}
    return held(who, begin, end, **(told | more))


def refused(who: str, at: float) -> Hold:
    return Hold("n", who, round(at * LEASE), round((at + 0.01) * LEASE), "timeout", tried=True)


def deletion(called: float, answered: float) -> Deletion:
    return Deletion(round(called * LEASE), round(answered * LEASE))


class WithGo(unittest.TestCase):
    program: Path

    @classmethod
    def setUpClass(cls) -> None:
        try:
            cls.program = build()
        except Missing as missing:
            raise unittest.SkipTest(f"porcupine: {missing}") from None


class Agreeing(WithGo):
    """Both checkers say the same."""

    def opinions(self, past: Past, lease: int = LEASE) -> tuple[bool, bool]:
        with Porcupine(self.program, lease) as porcupine:
            porcupine.check(past)
        return bool(check_past(past, lease)), bool(porcupine.opinion.wrong)

    def test_on_histories_that_are_right(self) -> None:
        killed = Hold("n", "k", LEASE, 2 * LEASE, "died")
        for past in (
            Past([held("a", 1, 2, 5), held("b", 2.05, 3, 6), refused("c", 2.5)]),
            Past([lost("a", 1, 2, done=5.0), held("b", 2.5, 3)]),
            Past([lost("a", 1, 2.1, done=3.0), held("b", 1.7, 3)], [deletion(1.5, 1.6)]),
            Past([held("a", 1, 2.1), held("b", 1.7, 3)], [deletion(1.5, 1.6)]),
            Past([lost("a", 1, 2, lost=[], kept=True)]),
            Past([killed, refused("a", 3.9)]),
            Past([lost("a", 1, 2), refused("b", 3.0)]),
        ):
            with self.subTest(past=past):
                self.assertEqual(self.opinions(past), (False, False))

    def test_on_histories_that_are_wrong(self) -> None:
        killed = Hold("n", "k", LEASE, 2 * LEASE, "died")
        for past in (
            Past([held("a", 1, 2), held("b", 1.99, 3)]),
            Past([lost("a", 1, 3, done=5.0), held("b", 2.5, 4)]),
            Past([lost("a", 1, 2.7)], [deletion(1.5, 1.6)]),
            Past([lost("a", 1, 2, lost=[])]),
            Past([lost("a", 1, 2, lost=[2.1, 2.2])]),
            Past([lost("a", 1, 2, lost=[1.9])]),
            Past([held("a", 1, 2, lost=[1.5])]),
            Past([lost("a", 1, 1.2, lost=[], kept=True)]),
            Past([held("a", 1, 2), refused("b", 2.2)]),
            Past([killed, refused("a", 4.1)]),
            Past([held("a", 1, 2, 6), held("b", 3, 4, 6)]),
            Past([held("a", 1, 2, 6), held("b", 3, 4, 5)]),
            Past([held("a", 1, 2, told=2)]),
        ):
            with self.subTest(past=past):
                self.assertEqual(self.opinions(past), (True, True))

    def test_but_for_two_violations_that_only_porcupine_sees(self) -> None:
        late = {"done": 2.15, "freed": 2.1, "lost": [2.05]}
        for past in (
            # The next one acquires before the lease of the lost hold can be over.
            Past([lost("a", 1, 1.5, **late), held("b", 1.7, 1.8)]),
            # Their calls overlapped, their holds did not.
            Past([held("a", 3, 4, 6, called=0.5), held("b", 1, 2, 7, called=0.4)]),
        ):
            with self.subTest(past=past):
                self.assertEqual(self.opinions(past), (False, True))

    def test_on_a_recorded_history_and_everything_planted_in_it(self) -> None:
        deletions = [("hot0", Deletion(*times)) for times in DELETED]
        with Porcupine(self.program, RECORDED_LEASE) as porcupine:
            verdict = judge([File(RECORDED, "recorded")], RECORDED_LEASE, deletions, porcupine)
        opinion = porcupine.opinion
        self.assertEqual((verdict.wrong, verdict.missed), ([], []))
        self.assertEqual((opinion.wrong, opinion.missed), ([], []))
        self.assertEqual((verdict.planted, opinion.planted), (15, 15))
        self.assertRegex(
            opinion.summary(),
            r"^porcupine: histories=1 operations=[1-9]\d\d refusals=\d+ excused=\d+ undecided=0 "
            r"violations=0 planted=15 rejected=15$",
        )

    def test_each_planted_violation_is_found_where_nothing_else_is_wrong(self) -> None:
        past = Past([held("ab"[turn % 2], turn, turn + 0.5, turn + 1) for turn in range(10)])
        for what, variant in planted(past, LEASE).items():
            with self.subTest(what):
                self.assertEqual(self.opinions(variant), (True, True))

    def test_both_agree_about_a_quorum(self) -> None:
        def past(*holds: Hold) -> Past:
            return Past(list(holds), [replace(deletion(1.5, 1.6), weak=True)], lingers=LEASE)

        # Two callers with a vote each refuse one another, so Porcupine is not asked about refusals.
        for right in (
            past(held("a", 1, 3), held("b", 3.05, 4), refused("c", 3.5)),
            past(lost("a", 1, 2), held("b", 1.7, 2.5)),
            past(lost("a", 1, 4), held("b", 4.1, 5)),
        ):
            with self.subTest(past=right):
                self.assertEqual(self.opinions(right), (False, False))
        for wrong in (
            past(held("a", 1, 3), held("b", 1.7, 2.5)),
            past(lost("a", 1, 1.3, lost=[1.4]), held("b", 4, 5)),
        ):
            with self.subTest(past=wrong):
                self.assertEqual(self.opinions(wrong), (True, True))

    def test_both_agree_about_a_multi_lock(self) -> None:
        def past(*holds: Hold, **more: Any) -> Past:
            return Past([replace(hold, whole=("n", "m"), **more) for hold in holds])

        ended = {"elsewhere": [deletion(1.5, 1.6)]}
        self.assertEqual(self.opinions(past(lost("a", 1, 1.7), **ended)), (False, False))
        self.assertEqual(self.opinions(past(lost("a", 1, 1.7))), (True, True))
        self.assertEqual(self.opinions(past(held("a", 1, 2), held("b", 1.5, 3))), (True, True))
        # Somebody else may have had the other name.
        self.assertEqual(self.opinions(past(refused("a", 1))), (False, False))

    def of_permits(self, holds: list[Hold], deletions: list[Deletion] | None = None) -> Past:
        return Past(holds, deletions or [], 3, LEASE / 2)

    def test_on_permits(self) -> None:
        def two(hold: Hold) -> Hold:
            return replace(hold, permits=2)

        killed = Hold("n", "k", LEASE, 2 * LEASE, "died")
        right = (
            [held("a", 1, 3), two(held("b", 1.2, 2)), two(held("c", 2.15, 2.5))],
            [held("a", 1, 9), two(held("b", 2.2, 3, called=1.2)), two(refused("c", 1.5))],
            [two(held("a", 1, 2)), two(refused("b", 1.5))],
            [two(held("a", 1, 9)), killed, refused("b", 4.9)],
            [two(lost("a", 1, 2)), two(held("b", 2.15, 3))],
            # A caller of the same client still waits, for whom there was no room before.
            [two(held("a", 1, 2)), two(held("b/1", 2.3, 3, called=1.5)), refused("b/2", 2.15)],
        )
        wrong = (
            [held("a", 1, 2), held("b", 1, 2), held("c", 1, 2), held("d", 1.5, 3)],
            [two(held("a", 1, 2)), two(held("b", 1.5, 3))],
            [two(lost("a", 1, 2)), two(held("b", 1.5, 3))],
            [held("a", 1, 2), two(refused("b", 1.5))],
            [two(held("a", 1, 9)), killed, refused("b", 5.1)],
            [held("a", 1, 2), two(lost("a", 1, 2, lost=[]))],
        )
        for holds, expected in [(holds, False) for holds in right] + [(holds, True) for holds in wrong]:
            with self.subTest(holds=holds):
                self.assertEqual(self.opinions(self.of_permits(list(holds))), (expected, expected))

    def test_each_violation_planted_among_permits_is_found(self) -> None:
        turns = [
            replace(held("ab"[turn % 2], turn, turn + 1.5, None), permits=1 + turn % 2) for turn in range(10)
        ]
        past = self.of_permits(turns)
        self.assertEqual(self.opinions(past), (False, False))
        variants = planted(past, LEASE)
        self.assertEqual(len(variants), 12)
        for what, variant in variants.items():
            with self.subTest(what):
                self.assertEqual(self.opinions(variant), (True, True))

    def test_a_violation_and_a_missed_one_are_failures_that_are_named(self) -> None:
        past = Past([held("a", 1, 2)])
        with Porcupine(self.program, LEASE) as porcupine:
            porcupine.reject(past, {"nothing": Past([held("a", 1, 2.5)])})
            self.assertTrue(failed(Verdict(), porcupine.opinion))
            porcupine.check(Past([held("a", 1, 2), held("b", 1.5, 3)]))
        first, second = report(Verdict(), porcupine.opinion)
        self.assertRegex(first, "^porcupine: n: no order of a mutex .* cannot follow while a .* owns it")
        self.assertEqual(second, "porcupine: planted and not found: nothing")
        self.assertIn("violations=1 planted=1 rejected=0", porcupine.opinion.summary())

    def test_nothing_planted_is_a_failure(self) -> None:
        with Porcupine(self.program, LEASE) as porcupine:
            self.assertEqual(list(report(Verdict(), porcupine.opinion)), [])
            self.assertEqual(
                list(report(Verdict(planted=1), porcupine.opinion)), ["porcupine: nothing was planted"]
            )

    def test_a_soak_that_was_kept_is_judged_again(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            shutil.copy(RECORDED, folder / "rust0.0")
            files = [File(folder / "rust0.0", "rust0.0", None), File(folder / "gone", "c0.0", 7)]
            deletions = [(None if at == 1 else "hot0", Deletion(*times)) for at, times in enumerate(DELETED)]
            Soaked(RECORDED_LEASE, files, deletions).save(folder)
            again = Soaked.load(folder)
            self.assertEqual((again.files, again.deletions), (files, deletions))
            again.files.pop()
            verdict, opinion = again.judge(self.program)
            assert opinion is not None
            self.assertEqual((list(report(verdict, opinion)), failed(verdict, opinion)), ([], False))
            self.assertIsNone(again.judge(None)[1])


class TheModel(WithGo):
    def test_its_own_tests_pass(self) -> None:
        run = subprocess.run(["go", "test", "./..."], cwd=SOURCES, capture_output=True, text=True)
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)


class WithoutGo(unittest.TestCase):
    def test_it_says_that_go_is_missing(self) -> None:
        with mock.patch.dict(os.environ, {"PATH": ""}), self.assertRaisesRegex(Missing, "go is not on PATH"):
            build()


if __name__ == "__main__":
    unittest.main()
