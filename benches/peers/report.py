"""Writes what `make bench` has measured: tables and charts."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

from contestants import CROWDS, HERE, PEERS, ROOT
from figures import RANKED, SHARES, Figures, left_out, summary, table
from goals import COUNTED, MINIMUM, PIPELINED, TOKEN, goals_table, verdicts
from plot import Axis, Line, chart

HEADINGS = {
    "W1": "W1: one caller, acquire and release",
    "W1B": "W1 in Python, alone and beside a thread that computes",
    "W2": "W2: 64 callers of one process, each its own name",
    "W3": "W3: four processes, one name, 1 ms inside",
    "W4": "W4: 64 callers of one process, one name",
    "W5": "W5: 10,000 locks held and renewed",
    "S1": "S1: one caller, a permit of a semaphore",
    "S4": "S4: 64 callers of one process, a semaphore of eight permits",
    "S5": "S5: 1,000 permits held and renewed, of a semaphore each",
    "P1": "P1: one caller, a permit of a plain semaphore",
    "P4": "P4: 64 callers of one process, a plain semaphore of eight permits",
    "F3": "F3: four processes, one name, 1 ms inside, first come, first served",
    "R1": "R1: one caller, the read side of a read-write lock",
    **{
        name: f"{name}: {crowd.clients} clients, one name, {crowd.inside_us // 1000} ms inside"
        for name, crowd in CROWDS.items()
    },
    "M2": "M2: one caller, a multi lock of 2 names",
    "M8": "M8: one caller, a multi lock of 8 names",
    "M32": "M32: one caller, a multi lock of 32 names",
}
OUR_LINES = [
    f"redlatch {face}, reentrant" for face in ("Rust blocking", "Rust", "C", "Python", "asyncio", "Node")
]
PEER_LINES = ["rslock", "redis-semaphore", "redis-py with hiredis", "Redisson RLock"]


def dashed(name: str) -> bool:
    return not name.startswith("redlatch")


def quantiles(name: str, results: dict[str, Figures], figure: str, unit: float) -> Line:
    """How the times of a contestant are distributed. The longest of all is chance, and would set the scale."""
    times = results[name][figure]
    points = [(max(time, 1) / unit, share) for time, share in zip(times, SHARES, strict=True) if share < 1]
    return Line(name, points, dashed(name))


def latency(everything: dict[str, Any]) -> str:
    results = everything["W1"]["results"]
    unit = results[MINIMUM]["p50_us"]
    names = [name for name in (*OUR_LINES, MINIMUM, *PEER_LINES) if "quantiles_us" in results.get(name, {})]
    lines = [quantiles(name, results, "quantiles_us", unit) for name in names]
    x = Axis(f"time of a pair; 1 is the median of {MINIMUM}", logarithmic=True)
    return chart(
        "W1: how many pairs take at most this long", x, Axis("share of the pairs", percent=True), lines
    )


def gap(everything: dict[str, Any]) -> str:
    results = everything["W3"]["results"]
    unit = results[TOKEN]["gap_p50"]
    measured = {name: one for name, one in results.items() if one.get("handoffs_s")}
    peers = sorted(
        (name for name, one in measured.items() if one["role"] == "peer"),
        key=lambda name: -float(measured[name]["handoffs_s"]),
    )
    names = [name for name in (*OUR_LINES, TOKEN, *peers[:3]) if name in measured]
    lines = [quantiles(name, results, "gap_quantiles", unit) for name in names]
    x = Axis(f"from release to the next acquisition; 1 is the median of {TOKEN}", logarithmic=True)
    return chart("W3: how many gaps are at most this long", x, Axis("share of the gaps", percent=True), lines)


def series(sweep: dict[str, dict[str, Figures]], figure: str, unit: float) -> list[Line]:
    """A line per contestant over the numbers of a sweep."""
    names = list(dict.fromkeys(name for results in sweep.values() for name in results))
    lines = []
    for name in names:
        points = [
            (float(number), results[name][figure] / unit)
            for number, results in sweep.items()
            if figure in results.get(name, {})
        ]
        if points:
            lines.append(Line(name, sorted(points), dashed(name)))
    return lines


def throughput(everything: dict[str, Any]) -> str:
    sweep = everything["callers"]
    unit = sweep["64"][PIPELINED]["pairs_s"]
    y = Axis("pairs per second; 1 is that limit with 64", logarithmic=True)
    return chart(
        "W2: throughput by number of callers",
        Axis("callers of one process", logarithmic=True),
        y,
        series(sweep, "pairs_s", unit),
    )


def cost_of_held(everything: dict[str, Any]) -> str:
    y = Axis("CPU of the client, share of a core", logarithmic=True, percent=True)
    return chart(
        "W5: what held locks cost",
        Axis("locks held, lease 6 s", logarithmic=True),
        y,
        series(everything["held"], "cpu_ss", 1.0),
    )


def by_clients(everything: dict[str, Any], title: str, y: str, figure: str, unit: float) -> str:
    sizes = {name: one.clients for name, one in CROWDS.items() if one.inside_us == 1000}
    sweep = {str(clients): everything[name]["results"] for name, clients in sizes.items()}
    x = Axis("clients at one name, 1 ms inside", logarithmic=True)
    return chart(title, x, Axis(y, logarithmic=figure == "late_scripts"), series(sweep, figure, unit))


def crowd(everything: dict[str, Any]) -> str:
    unit = everything["C2"]["results"][TOKEN]["handoffs_s"]
    title, y = "A crowd: hand-offs by clients", f"hand-offs per second; 1 is {TOKEN} with 2"
    return by_clients(everything, title, y, "handoffs_s", unit)


def crowd_scripts(everything: dict[str, Any]) -> str:
    title = "A crowd: what a hand-off costs by clients"
    return by_clients(everything, title, "scripts per hand-off", "late_scripts", 1.0)


CHARTS = {
    "latency": latency,
    "throughput": throughput,
    "gap": gap,
    "held": cost_of_held,
    "crowd": crowd,
    "crowd-scripts": crowd_scripts,
}


def said(command: list[str]) -> str:
    """The first line of what a program says about its version."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except OSError:
        return ""
    return (done.stdout or done.stderr).splitlines()[0].strip() if done.stdout or done.stderr else ""


def libraries() -> str:
    """The versions of the peers, from the files that install them."""
    crates = (HERE / "rust/Cargo.toml").read_text()
    found = {
        "Python": re.findall(r"([\w\[\]-]+)==([\d.]+)", (HERE / "setup").read_text()),
        "Node.js": list(json.loads((HERE / "node/package.json").read_text())["dependencies"].items()),
        "Rust": re.findall(r'^([\w-]+) = (?:\{ version = )?"=([\d.]+)"', crates, re.MULTILINE),
        "Java": re.findall(r"<(redisson).version>([\d.]+)<", (HERE / "java/pom.xml").read_text()),
    }
    return "; ".join(
        f"{language}: " + ", ".join(f"{name} {version}" for name, version in dict(each).items())
        for language, each in found.items()
    )


def processor() -> str:
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    named = re.search(r"^model name\s*: (.+)$", text, re.MULTILINE)
    return named[1] if named else platform.machine()


def versions(everything: dict[str, Any]) -> str:
    first = next(everything[workload] for workload in RANKED if workload in everything)
    commit = said(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"])
    java = said(["java", "-version"]) if (PEERS / "java").exists() else ""
    tools = [said([tool, "--version"]) for tool in ("rustc", "cc", str(ROOT / ".tools/venv/bin/python"))]
    tools.append("Node.js " + said(["node", "--version"]))
    return "\n".join(
        [
            f"- redlatch at {commit}; server: {first['how']['server']}.",
            f"- {'; '.join(filter(None, [*tools, java]))}.",
            f"- {libraries()}.",
            f"- {os.cpu_count()} cores, {processor()}, Linux {platform.release()}.",
        ]
    )


def method(everything: dict[str, Any]) -> str:
    lines = ["| | repeats | seconds each | cores | used by others |", "|---|---:|---:|---|---:|"]
    for workload in RANKED:
        if workload in everything:
            how = everything[workload]["how"]
            cores = {
                "same": "one for server and client",
                "split": "one for the server, the rest for clients",
            }.get(how["pin"], "any")
            lines.append(
                f"| {workload} | {how['repeat']} | {how['seconds']:g} | {cores} | {how['others']:.2f} |"
            )
    return "\n".join(lines)


def counted(everything: dict[str, Any]) -> str:
    counts = everything.get("counts", {})
    if "minimum" not in counts:
        return ""
    ours = [f"{face}, {kind}" for face in COUNTED for kind in ("reentrant", "simple")]
    rows = [
        ("Redisson's minimal scripts", counts["minimum"]),
        *((f"redlatch {key}", counts[key]) for key in ours if key in counts),
    ]
    lines = [
        "",
        "Instructions of the server per pair, counted by valgrind:",
        "",
        "| | instructions | |",
        "|---|---:|---:|",
    ]
    lines += [f"| {name} | {count:,.0f} | {count / counts['minimum']:.2f} |" for name, count in rows]
    return "\n".join([*lines, ""])


def overview(everything: dict[str, Any], charts: list[str], quick: bool) -> str:
    """The page for a user: our faces beside the strongest of the others, and what is not reached."""
    found = verdicts(everything)
    reached = sum(each.reached for each in found)
    command = "make bench QUICK=1" if quick else "make bench"
    headings = {workload: heading for workload, heading in HEADINGS.items() if workload != "W1B"}
    parts = [
        "# Performance",
        f"`{command}` writes this page. It measures redlatch beside the lock libraries that people use, and beside bounds: locks written by hand in C, and"
        " programs that are no usable locks (*limits*). All run interleaved. Ours are the re-entrant lock, the default, or a semaphore. Times of one machine"
        " mean nothing on another: compare within a row. Of CPU less is better.",
        summary(headings, everything),
        f"{reached} of {len(found)} [goals](../benches/RESULTS.md#goals) are reached. All contestants with all figures, the method and the versions:"
        " [benches/RESULTS.md](../benches/RESULTS.md). The programs: [benches/README.md](../benches/README.md).",
        *(f"![{name}](performance/{name}.svg)" for name in charts),
    ]
    return "\n\n".join(parts) + "\n"


def everybody(everything: dict[str, Any]) -> str:
    """All contestants, all goals, and how it was measured."""
    found = verdicts(everything)
    reached = sum(each.reached for each in found)
    parts = [
        "# Performance: all contestants",
        "Written by `make bench`. Read [docs/performance.md](../docs/performance.md) first.",
        "## Goals",
        f"{reached} of {len(found)} are reached. Like for like: simple locks against locks that are `SET NX PX`, the re-entrant lock against hand-written C"
        " that runs the least that shares locks with Redisson. Where a goal is one of every face, the worst is shown.",
        goals_table(found),
    ]
    for workload, heading in HEADINGS.items():
        if workload not in everything:
            continue
        results = everything[workload]["results"]
        parts += [f"## {heading}", table(workload, results)]
        if workload == "W1" and (text := counted(everything)):
            parts.append(text.strip())
        if absent := left_out(results):
            parts.append("Not measured: " + "; ".join(absent) + ".")
    parts += [
        (HERE / "notes.md").read_text().strip(),
        "## Method",
        METHOD,
        method(everything),
        "## Versions",
        versions(everything),
    ]
    return "\n\n".join(parts) + "\n"


METHOD = """- Each program connects, warms up as it is measured, says that it is ready, and begins on a word. The server's counters are read then and at the end
  (of W5 from half a second later, for whole thirds of a lease).
- A row is the median of its repeats. Between two repeats of one all others run, so that a slow moment hits all.
- The runner, the programs and the server go ahead of other programs on the machine where that is allowed.
- "Commands" are those that the client sent per pair or acquisition; "in scripts too" adds what its scripts ran.
- Rows with an interval ("retry 2 ms") are tuned to the workload; the others have a library's defaults.
- Hand-offs are acquisitions after another process or caller. The gap is from the call that releases to the next acquisition.
- Bytes per lock are resident memory of the client, its own objects for a lock included.
- "To best peer" and "to best bound" are ratios to the best of the other libraries, and to the best floor or limit."""


def write(everything: dict[str, Any], folder: Path, record: Path, quick: bool) -> Path:
    """The page and its charts into the folder, and the record of all; where the page was written to."""
    (folder / "performance").mkdir(parents=True, exist_ok=True)
    charts = []
    for name, draw in CHARTS.items():
        # Without what it is drawn in units of, or without its workload, a chart is left out.
        with contextlib.suppress(KeyError):
            (folder / "performance" / f"{name}.svg").write_text(draw(everything))
            charts.append(name)
    file = folder / "performance.md"
    file.write_text(overview(everything, charts, quick))
    record.write_text(everybody(everything))
    return file
