"""From what a run has reported to the figures of its workload, and the tables made of them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

from contestants import CROWDS, Contestant
from machine import Counters

Figures = dict[str, Any]
# The figure that ranks a workload, and whether less is better.
RANKED = {
    "W1": ("pairs_s", False),
    "W1B": ("p50_us", True),
    "W2": ("pairs_s", False),
    "W3": ("handoffs_s", False),
    "W4": ("handoffs_s", False),
    "W5": ("cpu_ss", True),
    "S1": ("pairs_s", False),
    "S4": ("acq_s", False),
    "S5": ("cpu_ss", True),
    "P1": ("pairs_s", False),
    "P4": ("handoffs_s", False),
    "F3": ("handoffs_s", False),
    "R1": ("pairs_s", False),
    **dict.fromkeys(CROWDS, ("handoffs_s", False)),
    **dict.fromkeys(("M2", "M8", "M32"), ("p50_us", True)),
}
# The workloads with semaphores, fair locks, readers, crowds and multi locks run as these do, and report the same.
LIKE = {"W1B": "W1", "S1": "W1", "S4": "W4", "S5": "W5", "P1": "W1", "P4": "W4", "F3": "W3", "R1": "W1"}
LIKE |= dict.fromkeys(("M2", "M8", "M32"), "W1") | dict.fromkeys(CROWDS, "W3")
CPU = [("client CPU µs", "cpu_us", "{:,.1f}"), ("server CPU µs", "srv_us", "{:,.1f}")]
# Per workload the columns: heading, figure, format.
COLUMNS = {
    "W1": [
        ("pairs/s", "pairs_s", "{:,.0f}"),
        ("p50 µs", "p50_us", "{:.0f}"),
        ("p99 µs", "p99_us", "{:.0f}"),
        ("commands", "cmds", "{:.2f}"),
        ("in scripts too", "allcmds", "{:.2f}"),
        ("bytes", "bytes", "{:.0f}"),
        *CPU,
    ],
    "W1B": [
        ("pairs/s", "pairs_s", "{:,.0f}"),
        ("p50 µs", "p50_us", "{:,.0f}"),
        ("p99 µs", "p99_us", "{:,.0f}"),
        *CPU,
    ],
    "W2": [
        ("pairs/s", "pairs_s", "{:,.0f}"),
        ("commands", "cmds", "{:.2f}"),
        *CPU,
        ("connections", "conns", "{:,.0f}"),
        ("threads", "threads", "{:.0f}"),
    ],
    "W3": [
        ("hand-offs/s", "handoffs_s", "{:,.0f}"),
        ("acquisitions/s", "acq_s", "{:,.0f}"),
        ("held", "util", "{:.0%}"),
        ("gap p50 µs", "gap_p50", "{:,.0f}"),
        ("gap p99 µs", "gap_p99", "{:,.0f}"),
        ("between processes p50 µs", "xgap_p50", "{:,.0f}"),
        ("longest without, ms", "starve_ms", "{:,.0f}"),
        ("commands", "cmds", "{:.2f}"),
        ("scripts", "scripts", "{:.2f}"),
        ("Jain", "jain", "{:.3f}"),
        ("overlaps", "overlaps", "{:.0f}"),
        *CPU,
        ("given up", "failed", "{:.0f}"),
    ],
    "W4": [
        ("hand-offs/s", "handoffs_s", "{:,.0f}"),
        ("acquisitions/s", "acq_s", "{:,.0f}"),
        ("commands", "cmds", "{:.2f}"),
        ("longest wait ms", "max_wait_ms", "{:,.1f}"),
        ("p99 wait ms", "p99_wait_ms", "{:,.1f}"),
        ("Jain", "jain", "{:.3f}"),
        *CPU,
        ("connections", "conns", "{:,.0f}"),
        ("given up", "failed", "{:.0f}"),
    ],
    "W5": [
        ("client CPU s/s", "cpu_ss", "{:.4f}"),
        ("bytes per lock", "rss_lock", "{:,.0f}"),
        ("commands/s", "cmds_s", "{:,.1f}"),
        ("per 100 locks and third of a lease", "cmds_100", "{:.2f}"),
        ("server CPU s/s", "srv_ss", "{:.4f}"),
        ("lost", "lost", "{:.0f}"),
        ("threads", "threads", "{:,.0f}"),
        ("connections", "conns", "{:,.0f}"),
        ("acquired in s", "acquire_s", "{:.2f}"),
    ],
}
# What a hand-off costs when all have arrived.
LATE = [
    ("scripts, second half", "late_scripts", "{:.2f}"),
    ("server CPU µs, second half", "late_srv_us", "{:,.1f}"),
]
CROWD = [*COLUMNS["W3"], *LATE]
COLUMNS |= {"S1": COLUMNS["W1"], "S4": COLUMNS["W4"][1:], "S5": COLUMNS["W5"]}
COLUMNS |= {"P1": COLUMNS["W1"], "P4": COLUMNS["W4"]}
COLUMNS |= {"F3": COLUMNS["W3"], "R1": COLUMNS["W1"]} | dict.fromkeys(CROWDS, CROWD)
COLUMNS |= dict.fromkeys(("M2", "M8", "M32"), COLUMNS["W1"])
# For the gaps of W3, as for all times that programs report.
SHARES = (0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1)


def part(values: Iterable[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[round((len(ordered) - 1) * share)] if ordered else float("nan")


def scripts_of(did: Counters) -> int:
    return did.calls.get("evalsha", 0) + did.calls.get("eval", 0)


def of_pairs(report: Figures, did: Counters, sent: float) -> Figures:
    pairs = max(1, report["pairs"])
    figures = {
        "pairs_s": report["pairs"] / report["seconds"],
        "cmds": sent / pairs,
        "allcmds": sum(did.calls.values()) / pairs,
        "cpu_us": report["cpu_s"] / pairs * 1e6,
        "srv_us": did.cpu / pairs * 1e6,
        "bytes": did.bytes / pairs,
    }
    own = ("p50_us", "p99_us", "max_us", "threads", "quantiles_us")
    return figures | {name: report[name] for name in own if name in report} | of_itself(report, pairs)


def of_itself(report: Figures, pairs: int) -> Figures:
    """Counted by our own programs only."""
    counted = ("switches", "allocations")
    return {name: report[name] / pairs for name in counted if name in report}


def of_processes(
    reports: list[Figures],
    did: Counters,
    sent: float,
    folder: Path,
    until: float,
    later: Counters | None = None,
) -> Figures:
    """W3: each process has left a line per acquisition: acquired, release called, release returned, in ns, and with several
    clients the number of the client. It counts those until the server's counters were read. `later`: what the server did in the
    second half, when a crowd has arrived."""
    rows: list[tuple[int, int, tuple[int, int]]] = []
    times: dict[tuple[int, int], list[int]] = {}
    for number, report in enumerate(reports):
        times |= {(number, client): [] for client in range(report.get("clients", 1))}
        for line in (folder / str(number)).read_text().splitlines():
            acquired, called, _, *client = map(int, line.split())
            if acquired < until * 1e9:
                rows.append((acquired, called, (number, client[0] if client else 0)))
    rows.sort()
    for acquired, _, who in rows:
        times[who].append(acquired)
    gaps, between, overlaps, latest = [], [], 0, 0
    for before, row in pairwise(rows):
        latest = max(latest, before[1])
        overlaps += row[0] < latest
        gaps.append((row[0] - before[1]) / 1e3)
        if row[2] != before[2]:
            between.append(gaps[-1])
    counts = [len(own) for own in times.values()]
    without = [0.0]
    for own in times.values() if rows else ():
        seen = [rows[0][0], *own, rows[-1][1]]
        without += [(later - earlier) / 1e6 for earlier, later in pairwise(seen)]
    acquired = max(1, len(rows))
    held = sum(row[1] - row[0] for row in rows) / 1e9
    steady: Figures = {}
    if later:
        after = max(1, sum(row[0] >= (until - later.at) * 1e9 for row in rows))
        steady = {"late_scripts": scripts_of(later) / after, "late_srv_us": later.cpu / after * 1e6}
    return steady | {
        "acq_s": len(rows) / did.at,
        "handoffs_s": len(between) / did.at,
        "gap_p50": part(gaps, 0.5),
        "gap_p99": part(gaps, 0.99),
        "gap_quantiles": [part(gaps, share) for share in SHARES],
        "xgap_p50": part(between, 0.5),
        "starve_ms": max(without),
        "cmds": sent / acquired,
        "scripts": scripts_of(did) / acquired,
        "jain": sum(counts) ** 2 / (len(counts) * sum(count * count for count in counts)) if rows else 0,
        "overlaps": overlaps,
        "util": held / did.at,
        "cpu_us": sum(report["cpu_s"] for report in reports) / acquired * 1e6,
        "srv_us": did.cpu / acquired * 1e6,
        "failed": sum(report.get("failed", 0) for report in reports),
    }


def of_callers(report: Figures, did: Counters, sent: float) -> Figures:
    acquired = max(1, report["acq"])
    return {
        "acq_s": report["acq"] / report["seconds"],
        "handoffs_s": report["handoffs"] / report["seconds"],
        "cmds": sent / acquired,
        "max_wait_ms": report["max_wait_ms"],
        "p99_wait_ms": report["p99_wait_ms"],
        "jain": report["jain"],
        "cpu_us": report["cpu_s"] / acquired * 1e6,
        "srv_us": did.cpu / acquired * 1e6,
        "failed": report.get("failed", 0),
        **of_itself(report, acquired),
    }


def of_held(report: Figures, did: Counters, lease_ms: int) -> Figures:
    # Only renewals happen here, and everybody renews with scripts.
    sent = scripts_of(did)
    thirds = did.at / (lease_ms / 3000)
    return {
        "cpu_ss": report["cpu_s"] / report["seconds"],
        "rss_lock": (report["rss_after_kb"] - report["rss_before_kb"]) * 1024 / max(1, report["locks"]),
        "cmds_s": sent / did.at,
        "cmds_100": sent / (report["locks"] / 100) / thirds,
        "srv_ss": did.cpu / did.at,
        "threads": report["threads"],
        "acquire_s": report["acquire_s"],
        "locks": report["locks"],
        "live_bytes": report.get("live_bytes", 0) / max(1, report["locks"]),
    }


def figures_of(
    workload: str,
    contestant: Contestant,
    reports: list[Figures],
    begun: Counters,
    done: Counters,
    folder: Path,
    lease_ms: int,
    middle: Counters | None = None,
) -> Figures:
    did = done.since(begun)
    sent = sum(did.calls.get(name, 0) * weight for name, weight in contestant.counted.items())
    like = LIKE.get(workload, workload)
    if like == "W3":
        later = done.since(middle) if middle else None
        return of_processes(reports, did, sent, folder, done.at, later)
    if like == "W4":
        return of_callers(reports[0], did, sent)
    if like == "W5":
        return of_held(reports[0], did, lease_ms)
    return of_pairs(reports[0], did, sent)


def medians(runs: list[Figures]) -> Figures:
    """The median of each figure over the repeats; of lists, of each entry."""
    result: Figures = {}
    for name in {name for run in runs for name in run}:
        values = [run[name] for run in runs if run.get(name) is not None]
        if values and isinstance(values[0], list):
            result[name] = [statistics.median(each) for each in zip(*values, strict=True)]
        elif values and isinstance(values[0], int | float):
            result[name] = statistics.median(values)
    return result


def shown(form: str, value: float | None) -> str:
    return "–" if value is None or value != value else form.format(value)


def best(workload: str, results: dict[str, Figures], *roles: str) -> tuple[str, float] | None:
    """The strongest contestant of these roles, and what it reached."""
    key, less = RANKED[workload]
    measured = [(name, one[key]) for name, one in results.items() if one["role"] in roles and one.get(key)]
    return (min if less else max)(measured, key=lambda each: each[1], default=None)


def table(workload: str, results: dict[str, Figures]) -> str:
    """The contestants of a workload in their order, each with its ratio to the best peer and to the best bound."""
    key, less = RANKED[workload]
    columns = COLUMNS[workload]
    peer, bound = best(workload, results, "peer"), best(workload, results, "limit", "floor")

    def ratio(value: float, other: tuple[str, float] | None) -> str:
        return "–" if not other else f"{other[1] / value if less else value / other[1]:.2f}"

    headings = [heading for heading, _, _ in columns]
    lines = ["| | " + " | ".join([*headings, "to best peer", "to best bound"]) + " |"]
    lines.append("|---|" + "---:|" * (len(headings) + 2))
    order = {"limit": 0, "floor": 1, "ours": 2, "peer": 3}
    marks = {"limit": "*{}*", "floor": "*{}*", "ours": "**{}**", "peer": "{}"}
    measured = [(name, one) for name, one in results.items() if one.get(key)]
    ranked = sorted(measured, key=lambda item: (order[item[1]["role"]], item[1][key] * (1 if less else -1)))
    for name, one in ranked:
        cells = [shown(form, one.get(figure)) for _, figure, form in columns]
        cells += [ratio(one[key], peer), ratio(one[key], bound)]
        lines.append(f"| {marks[one['role']].format(name)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


FACES = ("Rust", "Rust blocking", "C", "Python", "asyncio", "Node")


def summary(headings: dict[str, str], everything: dict[str, Any]) -> str:
    """A row for each workload: our faces with the default kind, the best of the others, and the best bound."""
    lines = ["| | " + " | ".join([*FACES, "best other library", "best bound"]) + " |"]
    lines.append("|---|" + "---:|" * len(FACES) + "---|---|")
    for workload, heading in headings.items():
        if workload not in everything:
            continue
        results, key = everything[workload]["results"], RANKED[workload][0]
        ((unit, _, form),) = (column for column in COLUMNS[workload] if column[1] == key)
        ours = {
            name.removeprefix("redlatch ").split(", ")[0]: one[key]
            for name, one in results.items()
            if one["role"] == "ours" and one.get(key) and not name.endswith(", simple")
        }
        cells = [shown(form, ours.get(face)) for face in FACES]
        for other in (best(workload, results, "peer"), best(workload, results, "limit", "floor")):
            cells.append(f"{form.format(other[1])}, {other[0]}" if other else "–")
        lines.append(f"| {heading}: {unit} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def left_out(results: dict[str, Figures]) -> list[str]:
    """The contestants that could not be measured, and why."""
    return [f"{name}: {one['why']}" for name, one in results.items() if "why" in one]
