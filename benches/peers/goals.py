"""The goals, in ratios of one run, and whether a run has reached it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from contestants import CROWDS
from figures import RANKED, Figures

# The least that interoperates, written by hand: what our re-entrant lock is held against; and the same for SET NX.
MINIMUM, PLAIN = "hiredis, Redisson minimum", "hiredis SET and script, poll 1 ms"
PIPELINED, TOKEN = "limit: pipelined C, Redisson minimum", "limit: BLPOP token"
# The faces whose server is counted.
COUNTED = ("Rust blocking", "Rust")


@dataclass(frozen=True)
class Verdict:
    workload: str
    goal: str
    wanted: str
    measured: float
    reached: bool
    note: str = ""


class Run:
    """The results of all workloads, with what goals ask of them. NaN is what was not measured: that is not reached."""

    def __init__(self, everything: dict[str, Any]) -> None:
        self.everything = everything

    def results(self, workload: str) -> dict[str, Figures]:
        return dict(self.everything.get(workload, {}).get("results", {}))

    def of(self, workload: str, name: str, figure: str = "") -> float:
        value = self.results(workload).get(name, {}).get(figure or RANKED[workload][0])
        return float("nan") if value is None else float(value)

    def ours(self, workload: str, figure: str) -> dict[str, float]:
        """One for each of our faces."""
        return {
            name.removeprefix("redlatch "): float(one[figure])
            for name, one in self.results(workload).items()
            if one["role"] == "ours" and figure in one
        }

    def best_peer(self, workload: str, names: str = "", language: str = "") -> tuple[str, float]:
        """The strongest library: of those with such a name, of a language, or of all."""
        figure, less = RANKED[workload]
        found = {
            name: float(one[figure])
            for name, one in self.results(workload).items()
            if one["role"] == "peer" and figure in one and names in name and language in one["language"]
        }
        if not found:
            return "nobody", float("nan")
        name = (min if less else max)(found, key=lambda each: found[each])
        return name, found[name]


def at_least(workload: str, goal: str, measured: float, wanted: float, note: str = "") -> Verdict:
    return Verdict(workload, goal, f"≥ {wanted:g}", measured, measured >= wanted, note)


def at_most(workload: str, goal: str, measured: float, wanted: float, note: str = "") -> Verdict:
    return Verdict(workload, goal, f"≤ {wanted:g}", measured, measured <= wanted, note)


def worst(values: dict[str, float], pick: Callable[..., str]) -> tuple[float, str]:
    if not values:
        return float("nan"), ""
    name = pick(values, key=lambda each: values[each])
    return values[name], name


def ours_at_most(run: Run, workload: str, goal: str, figure: str, wanted: float) -> Verdict:
    """A goal that every face has to keep; the worst of them is shown."""
    value, name = worst(run.ours(workload, figure), max)
    # A command on the edge of the time measured is not one too many.
    return at_most(workload, goal, round(value, 2) if figure == "cmds" else value, wanted, name)


def ours_at_least(run: Run, workload: str, goal: str, figure: str, wanted: float) -> Verdict:
    value, name = worst(run.ours(workload, figure), min)
    return at_least(workload, goal, value, wanted, name)


def to_peer(
    run: Run, workload: str, face: str, wanted: float, names: str = "", language: str = ""
) -> Verdict:
    peer, value = run.best_peer(workload, names, language)
    ratio = run.of(workload, f"redlatch {face}") / value
    return at_least(workload, f"{face} × the best of {names or language or 'all peers'}", ratio, wanted, peer)


def in_wasm(run: Run, workload: str, wanted: float) -> Iterable[Verdict]:
    for face in ("Node WebAssembly", "Node WebAssembly thread"):
        ratio = run.of(workload, f"redlatch {face}, reentrant") / run.of(workload, "redlatch Node, reentrant")
        yield at_least(workload, f"{face}, reentrant × Node, reentrant", ratio, wanted)
        yield to_peer(run, workload, f"{face}, reentrant", 1.0, language="Node")


def one_caller(run: Run) -> Iterable[Verdict]:
    for face, wanted in (("Rust blocking", 1.0), ("C", 1.0), ("Rust", 0.9)):
        for kind, floor in (("reentrant", MINIMUM), ("simple", PLAIN)):
            ratio = run.of("W1", f"redlatch {face}, {kind}") / run.of("W1", floor)
            yield at_least("W1", f"{face}, {kind} × {floor}", ratio, wanted)
    yield to_peer(run, "W1", "Python, simple", 3.5, "redis-py with hiredis")
    yield to_peer(run, "W1", "asyncio, simple", 3.0, "redis-py asyncio")
    yield to_peer(run, "W1", "Node, simple", 1.2, language="Node")
    yield from in_wasm(run, "W1", 0.7)
    for kind in ("simple", "reentrant"):
        busy, idle = (run.of("W1B", f"redlatch Python, {kind}{suffix}") for suffix in (", busy", ""))
        yield at_most("W1", f"Python, {kind}: median beside a busy thread × idle", busy / idle, 2.0)
    yield ours_at_most(run, "W1", "commands per pair, every face", "cmds", 2.0)
    counts = run.everything.get("counts", {})
    yield at_most("W1", "keys written per pair", counts.get("keys", math.nan), 1.0)
    for face in COUNTED:
        ratio = counts.get(f"{face}, reentrant", math.nan) / counts.get("minimum", math.nan)
        what = f"server instructions per pair, {face}, reentrant × Redisson's minimal scripts (callgrind)"
        yield at_most("W1", what, ratio, 1.0)


def many_names(run: Run) -> Iterable[Verdict]:
    limit = run.of("W2", PIPELINED)
    yield at_least(
        "W2", f"Rust, reentrant × {PIPELINED}", run.of("W2", "redlatch Rust, reentrant") / limit, 0.9
    )
    yield to_peer(run, "W2", "Rust, simple", 1.2, language="Rust")
    yield at_least(
        "W2", f"C threads, reentrant × {PIPELINED}", run.of("W2", "redlatch C, reentrant") / limit, 0.8
    )
    yield to_peer(run, "W2", "Node, simple", 2.0, language="Node")
    yield from in_wasm(run, "W2", 0.5)
    yield to_peer(run, "W2", "asyncio, simple", 10.0, "redis-py asyncio")
    yield to_peer(run, "W2", "Python, simple", 8.0, "redis-py with hiredis")
    yield ours_at_most(run, "W2", "connections, every face", "conns", 2.0)


def processes(run: Run) -> Iterable[Verdict]:
    limit = run.of("W3", TOKEN)
    peer, best = run.best_peer("W3")
    for face in ("Rust, reentrant", "Rust, simple", "C, reentrant", "Python, reentrant", "Node, reentrant"):
        ours = run.of("W3", f"redlatch {face}")
        yield at_least("W3", f"hand-offs/s, {face} × {TOKEN}", ours / limit, 0.85)
        yield at_least("W3", f"hand-offs/s, {face} × the best peer", ours / best, 1.3, peer)
    gap = run.of("W3", "redlatch Rust, reentrant", "gap_p50") / run.of("W3", TOKEN, "gap_p50")
    yield at_most("W3", "median gap, Rust, reentrant × that limit's", gap, 1.5)
    yield ours_at_least(run, "W3", "Jain over the processes, every face", "jain", 0.99)
    yield ours_at_most(run, "W3", "commands per acquisition, every face", "cmds", 4.0)
    yield ours_at_most(run, "W3", "overlaps, every face", "overlaps", 0.0)


def callers(run: Run) -> Iterable[Verdict]:
    peer, best = run.best_peer("W4")
    for face in (
        "Rust, reentrant",
        "Rust, simple",
        "C, reentrant",
        "Python, reentrant",
        "asyncio, reentrant",
        "Node, reentrant",
    ):
        ours = run.of("W4", f"redlatch {face}")
        yield at_least("W4", f"hand-offs/s, {face} × the best peer", ours / best, 10.0, peer)
        yield at_least("W4", f"hand-offs/s, {face} × {TOKEN}", ours / run.of("W4", TOKEN), 1.0)
    yield from in_wasm(run, "W4", 0.5)
    yield ours_at_least(run, "W4", "Jain over the callers, every face", "jain", 0.95)
    means = run.ours("W4", "handoffs_s")
    waits = {name: wait / 1000 * means[name] / 64 for name, wait in run.ours("W4", "max_wait_ms").items()}
    value, name = worst(waits, max)
    yield at_most("W4", "longest wait × (callers × mean hand-off), every face", value, 3.0, name)
    yield ours_at_most(run, "W4", "commands per acquisition, every face", "cmds", 1.1)


def held(run: Run) -> Iterable[Verdict]:
    peer, best = run.best_peer("W5")
    value, name = worst(run.ours("W5", "cpu_ss"), max)
    yield at_most(
        "W5",
        "client CPU, Rust, reentrant × the best renewing peer",
        run.of("W5", "redlatch Rust, reentrant") / best,
        0.1,
        peer,
    )
    yield at_most("W5", "client CPU, every face × the best renewing peer", value / best, 0.1, name)
    yield at_most(
        "W5", "bytes per lock, Rust, reentrant", run.of("W5", "redlatch Rust, reentrant", "rss_lock"), 512.0
    )
    yield ours_at_most(run, "W5", "bytes per lock, every face", "rss_lock", 512.0)
    yield ours_at_most(run, "W5", "commands per 100 locks and third of a lease, every face", "cmds_100", 1.0)
    yield ours_at_most(run, "W5", "locks lost, every face", "lost", 0.0)
    many = run.everything.get("held", {}).get("100000", {}).get("redlatch Rust, reentrant", {})
    few = run.everything.get("held", {}).get("10000", {}).get("redlatch Rust, reentrant", {})
    per_lock = many.get("cpu_ss", math.nan) / 10 / few.get("cpu_ss", math.nan)
    yield at_most("W5", "100,000 held: CPU per lock × 10,000 held", per_lock, 1.2)
    yield at_most("W5", "100,000 held: bytes per lock", many.get("rss_lock", math.nan), 512.0)
    yield at_most(
        "W5", "100,000 held: commands per 100 locks and third of a lease", many.get("cmds_100", math.nan), 1.0
    )
    yield at_most("W5", "100,000 held: lost", many.get("lost", math.nan), 0.0)


def permits(run: Run) -> Iterable[Verdict]:
    """Semaphores, beside the others' that have leases."""
    for face, language in (("Rust blocking", ""), ("Rust", ""), ("Node", "Node")):
        yield to_peer(run, "S1", f"{face}, semaphore", 1.0, language=language)
    yield ours_at_most(run, "S1", "commands per pair, every face", "cmds", 2.0)
    for face in ("Rust", "Rust blocking", "Node"):
        yield to_peer(run, "S4", f"{face}, semaphore", 1.0)
    peer, _ = run.best_peer("S4")
    value, name = worst(run.ours("S4", "p99_wait_ms"), max)
    yield at_most(
        "S4", f"p99 wait, every face × {peer}", value / run.of("S4", peer, "p99_wait_ms"), 0.5, name
    )
    yield ours_at_least(run, "S4", "Jain over the callers, every face", "jain", 0.95)
    peer, best = run.best_peer("S5")
    value, name = worst(run.ours("S5", "cpu_ss"), max)
    yield at_most("S5", "client CPU, every face × the best renewing peer", value / best, 0.2, name or peer)
    yield ours_at_most(
        run, "S5", "commands per 100 permits and third of a lease, every face", "cmds_100", 1.0
    )
    yield ours_at_most(run, "S5", "permits lost, every face", "lost", 0.0)


def plain_permits(run: Run) -> Iterable[Verdict]:
    """Plain semaphores, beside our re-entrant lock and the others' semaphores."""
    for face in ("Rust blocking", "Rust", "Node"):
        ours, lock = (run.of("P1", f"redlatch {face}, {kind}") for kind in ("plain-semaphore", "reentrant"))
        yield at_least("P1", f"{face}, plain-semaphore × reentrant", ours / lock, 0.85)
    yield ours_at_most(run, "P1", "commands per pair, every face", "cmds", 2.0)
    for face in ("Rust", "Rust blocking", "Node"):
        # Node.js has only one with leases, whose callers try again and again; Redisson's is the same semaphore.
        for names in ("", "RSemaphore"):
            yield to_peer(run, "P4", f"{face}, plain-semaphore", 5.0, names)
    yield ours_at_least(run, "P4", "Jain over the callers, every face", "jain", 0.95)


def family(run: Run) -> Iterable[Verdict]:
    """Fair locks and readers, beside our re-entrant lock and Redisson's of the same kind."""
    for workload, kind, least in (("F3", "fair", 0.8), ("R1", "read", 0.9)):
        for face in ("Rust", "C", "Node"):
            ratio = run.of(workload, f"redlatch {face}, {kind}") / run.of(
                workload, f"redlatch {face}, reentrant"
            )
            yield at_least(workload, f"{face}, {kind} × reentrant", ratio, least)
            yield to_peer(run, workload, f"{face}, {kind}", 5.0)


def crowd(run: Run) -> Iterable[Verdict]:
    """Many clients at one name: what a hand-off costs does not grow with them."""
    limits = {
        "reentrant": 3.5,
        "simple": 3.5,
        "write": 3.5,
        "fair": 4.5,
        "semaphore": 5.5,
        "fair-semaphore": 5.5,
        "plain-semaphore": 5.5,
    }
    for kind, scripts in limits.items():
        name = f"redlatch C, {kind}"

        def of(figure: str, *sizes: str, name: str = name) -> dict[str, float]:
            found = {size: run.of(size, name, figure) for size in sizes}
            return {size: value for size, value in found.items() if not math.isnan(value)}

        value, size = worst(of("late_scripts", *CROWDS), max)
        yield at_most(size or "C300", f"scripts per hand-off, C, {kind}", value, scripts)
        value, size = worst(of("late_srv_us", "C10", "C60", "C100", "C300", "C1000"), max)
        ratio = value / run.of("C2", name, "late_srv_us")
        yield at_most(size or "C300", f"server CPU per hand-off, C, {kind} × that with 2 clients", ratio, 2.0)
        value, size = worst(of("handoffs_s", "C100", "C300", "C1000"), min)
        ratio = value / run.of("C60", name)
        yield at_least(size or "C300", f"hand-offs/s, C, {kind} × those of 60 clients", ratio, 0.8)
    for size, one in CROWDS.items():
        yield ours_at_least(run, size, "Jain over the clients, every kind", "jain", 0.95)
        yield ours_at_most(run, size, "overlaps, every kind", "overlaps", 0.0)
        rates = run.ours(size, "handoffs_s")
        waits = {
            name: wait / 1000 * rates[name] / one.clients
            for name, wait in run.ours(size, "starve_ms").items()
        }
        value, name = worst(waits, max)
        yield at_most(size, "longest wait × (clients × mean hand-off), every kind", value, 3.0, name)


def several(run: Run) -> Iterable[Verdict]:
    """Multi locks, beside a lock of one name and Redisson's."""
    for workload in ("M2", "M8", "M32"):
        redisson = run.of(workload, "Redisson RedissonMultiLock")
        for face in ("Rust blocking", "Rust", "Node"):
            multi, one = (run.of(workload, f"redlatch {face}, {kind}") for kind in ("multi", "reentrant"))
            if workload != "M32":
                yield at_most(workload, f"{face}, median of a pair, multi × reentrant", multi / one, 1.5)
            yield at_most(workload, f"{face}, the same × Redisson's multi lock", multi / redisson, 0.2)


def verdicts(everything: dict[str, Any]) -> list[Verdict]:
    run = Run(everything)
    workloads = {
        "W1": one_caller,
        "W2": many_names,
        "W3": processes,
        "W4": callers,
        "W5": held,
        "S1": permits,
        "P1": plain_permits,
        "F3": family,
        "M8": several,
        "C300": crowd,
    }
    return [verdict for name, goals in workloads.items() if name in everything for verdict in goals(run)]


def goals_table(found: list[Verdict]) -> str:
    lines = ["| | goal | wanted | measured | reached | |", "|---|---|---:|---:|---|---|"]
    for each in found:
        value = (
            "–"
            if math.isnan(each.measured)
            else f"{each.measured:,.3g}"
            if each.measured < 1000
            else f"{each.measured:,.0f}"
        )
        reached = "not measured" if math.isnan(each.measured) else "yes" if each.reached else "**no**"
        lines.append(f"| {each.workload} | {each.goal} | {each.wanted} | {value} | {reached} | {each.note} |")
    return "\n".join(lines)
