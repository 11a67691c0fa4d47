"""The figures that the benchmark computes from reports: tried with reports whose answer is known."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent / "peers"))
import goals
import guard
import report
from contestants import CONTESTANTS, HERE, Contestant
from figures import RANKED, medians, of_processes, summary, table
from machine import Counters
from plot import Axis, Line, chart

SERVER = Counters(at=1.0, calls={"evalsha": 8}, cpu=0.004, connections=4, bytes=0)


def processes(folder: Path, *lines: str) -> dict[str, Any]:
    """The figures of W3 for processes that left these acquisitions, in microseconds."""
    for number, line in enumerate(lines):
        rows = [row.split("-") for row in line.split()]
        text = "".join(
            f"{int(since) * 1000} {int(called) * 1000} {int(called) * 1000}\n" for since, called in rows
        )
        (folder / str(number)).write_text(text)
    reports = [{"seconds": 1.0, "cpu_s": 0.001}] * len(lines)
    return of_processes(reports, SERVER, 8.0, folder, SERVER.at)


def test_gaps_are_from_a_release_to_the_next_acquisition_and_hand_offs_go_to_another_process(
    tmp_path: Path,
) -> None:
    figures = processes(tmp_path, "100-200 500-600", "300-400 700-800")
    assert figures["handoffs_s"] == 3
    assert figures["gap_p50"] == figures["xgap_p50"] == 100
    assert figures["cmds"] == figures["scripts"] == 2
    assert figures["jain"] == 1
    assert figures["overlaps"] == 0


def test_an_acquisition_before_the_release_of_another_process_is_an_overlap(tmp_path: Path) -> None:
    # The third begins after the second has ended, and still within the first.
    assert processes(tmp_path, "100-900", "200-300 400-500")["overlaps"] == 2


def test_who_takes_the_lock_again_itself_hands_nothing_over(tmp_path: Path) -> None:
    figures = processes(tmp_path, "100-200 300-400 500-600", "")
    assert figures["handoffs_s"] == 0
    assert figures["jain"] == 0.5


def test_clients_of_one_process_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "0").write_text("100 200 200 0\n300 400 400 1\n500 600 600 1\n")
    report = {"seconds": 1.0, "cpu_s": 0.001, "clients": 4}
    figures = of_processes([report], SERVER, 8.0, tmp_path, SERVER.at)
    assert figures["handoffs_s"] == 1
    assert figures["jain"] == 9 / (4 * 5)


def test_the_second_half_is_counted_by_itself(tmp_path: Path) -> None:
    (tmp_path / "0").write_text("100 200 200\n600000000 600000100 600000100\n")
    later = Counters(at=0.5, calls={"evalsha": 3}, cpu=0.0002, connections=0, bytes=0)
    report = {"seconds": 1.0, "cpu_s": 0.001}
    figures = of_processes([report], SERVER, 8.0, tmp_path, SERVER.at, later)
    assert (figures["scripts"], figures["late_scripts"], figures["late_srv_us"]) == (4, 3, 200)


@pytest.mark.parametrize("processes, clients", [(1000, 1000), (4, 4), (2, 2)])
def test_a_crowd_is_spread_evenly(processes: int, clients: int) -> None:
    contestant = Contestant("c", "C", "peer", (), processes=processes)
    assert contestant.spread(1000) == clients
    assert contestant.spread(10) == (10 if processes == 1000 else 2)


def test_who_ends_last_and_is_alone_is_not_counted(tmp_path: Path) -> None:
    figures = processes(tmp_path, "100-200 500-600 1000100-1000200 1000300-1000400", "300-400 700-800")
    assert (figures["acq_s"], figures["jain"]) == (4, 1)


def test_medians_are_taken_figure_by_figure_and_entry_by_entry() -> None:
    runs = [{"a": 1.0, "b": [1.0, 9.0]}, {"a": 5.0, "b": [2.0, 8.0]}, {"a": 2.0, "b": [3.0, 1.0]}]
    assert medians(runs) == {"a": 2.0, "b": [2.0, 8.0]}


def one(role: str, pairs: float, language: str = "Rust", **more: object) -> dict[str, Any]:
    return {"role": role, "language": language, "pairs_s": pairs, "cmds": 2.0, "conns": 1, **more}


def test_a_goal_is_reached_missed_or_not_measured() -> None:
    results = {
        goals.MINIMUM: one("floor", 100),
        "redlatch Rust blocking, reentrant": one("ours", 101),
        "redlatch C, reentrant": one("ours", 99),
    }
    found = {each.goal: each for each in goals.verdicts({"W1": {"results": results}})}
    assert found[f"Rust blocking, reentrant × {goals.MINIMUM}"].reached
    assert not found[f"C, reentrant × {goals.MINIMUM}"].reached
    assert not found[f"Rust, reentrant × {goals.MINIMUM}"].reached
    assert "not measured" in goals.goals_table(list(found.values()))


def test_a_crowd_of_300_is_held_against_one_of_60() -> None:
    def crowd(handoffs: float, scripts: float) -> dict[str, Any]:
        figures = {
            "role": "ours",
            "handoffs_s": handoffs,
            "late_scripts": scripts,
            "jain": 1.0,
            "overlaps": 0,
        }
        return {"results": {"redlatch C, fair": figures}}

    found = goals.verdicts({"C60": crowd(400, 4.0), "C300": crowd(300, 5.0)})
    missed = [(each.workload, each.measured) for each in found if each.measured > 0 and not each.reached]
    assert missed == [("C300", 5.0), ("C300", 0.75)]


def test_the_best_peer_is_never_one_of_ours_nor_a_bound() -> None:
    results = {
        "limit": one("limit", 900),
        "redlatch Rust, simple": one("ours", 800),
        "rslock": one("peer", 400),
        "other": one("peer", 300),
        "redis-semaphore": one("peer", 500, "Node"),
    }
    run = goals.Run({"W2": {"results": results}})
    assert run.best_peer("W2", language="Rust") == ("rslock", 400)
    assert run.best_peer("W2") == ("redis-semaphore", 500)
    assert "| **redlatch Rust, simple** |" in table("W2", results)
    assert table("W2", results).splitlines()[3].endswith("| 1.60 | 0.89 |")


def test_charts_keep_their_points_within_their_axes() -> None:
    svg = chart("t", Axis("x", logarithmic=True), Axis("y"), [Line("<a>", [(1, 0), (10, 5), (1000, 10)])])
    assert 'points="64.0,372.0 246.0,206.0 610.0,40.0"' in svg
    assert "&lt;a&gt;" in svg


def test_every_measure_has_a_bound_and_every_bound_a_measure() -> None:
    assert set(guard.bounds()) == {measure.name for measure in guard.MEASURES}


@pytest.mark.parametrize("value, bound, tries", [(1.0, 2.0, 1), (3.0, 2.0, guard.TRIES)])
def test_what_is_within_its_bound_once_is_within_it(value: float, bound: float, tries: int) -> None:
    asked: list[float] = []

    def ask() -> float:
        asked.append(value)
        return value

    assert guard.check(guard.Measure("m", ask), bound) == value
    assert len(asked) == tries


def test_names_of_contestants_are_told_apart_in_each_workload() -> None:
    for workload in RANKED:
        names = [each.name for each in CONTESTANTS if workload in each.on]
        assert len(names) == len(set(names))


def test_the_record_has_the_texts_that_the_report_writes() -> None:
    everybody = (Path(__file__).parent / "RESULTS.md").read_text()
    assert (HERE / "notes.md").read_text().strip() in everybody
    assert report.METHOD in everybody


def test_the_short_table_shows_ours_and_the_best_of_the_others() -> None:
    roles = {"a limit": "limit", "a floor": "floor", "redlatch Rust, reentrant": "ours"}
    roles |= {"redlatch C, simple": "ours", "one": "peer", "another": "peer"}
    results = {
        name: {"role": role, "pairs_s": 1000 + place, "p99_us": 1.0}
        for place, (name, role) in enumerate(roles.items())
    }
    *_, row = summary({"W1": "W1: one caller"}, {"W1": {"results": results}}).splitlines()
    faces = "1,002 | – | – | – | – | –"
    assert row == f"| W1: one caller: pairs/s | {faces} | 1,005, another | 1,001, a floor |"
