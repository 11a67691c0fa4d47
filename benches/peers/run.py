#!/usr/bin/env python3
"""Measures every contestant of a workload in one run, interleaved and repeated, and prints a table of medians.

run.py --workload W1 [--only REGEX] [--quick] [--repeat 3] [--seconds 1.5] [--pin same|split|none]

Times of one machine mean nothing on another: read the ratios. W1 has client and server on one core (work and switches,
least noise), the others give the server a core of its own. The results are added to target/bench/results.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import resource
import select
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from contestants import CONTESTANTS, CROWDS, OURS, Contestant
from figures import LIKE, RANKED, Figures, figures_of, left_out, medians, table
from machine import Cores, Measured, cores_in_use, first_in_line

RESULTS = OURS / "results.json"
PROCESSES = {"W3": 4, "F3": 4}  # the others: one; a crowd: as it says
MARGIN = 0.5  # before and after what is counted in W5
REPEATS = {
    "W1": 3,
    "W1B": 3,
    "W2": 3,
    "W3": 2,
    "W4": 2,
    "W5": 1,
    "S1": 3,
    "S4": 3,
    "S5": 1,
    "P1": 3,
    "P4": 3,
    "F3": 2,
    "R1": 3,
    **dict.fromkeys(CROWDS, 1),
    "M2": 3,
    "M8": 3,
    "M32": 3,
}
# Held and renewed, of a semaphore each.
PERMITS = 1000


class Broken(Exception):
    """A contestant that does not do what it should."""


class Process:
    """A program of a contestant, from its start to its line of JSON."""

    def __init__(self, words: list[str], contestant: Contestant, cores: Cores, log: Path) -> None:
        self.log = log
        pinned = ["taskset", "-c", ",".join(map(str, sorted(cores.clients)))] if cores.clients else []
        with open(log, "wb") as errors:
            self.popen = subprocess.Popen(
                [*pinned, *contestant.command, *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **contestant.environment},
            )

    def line(self, limit: float) -> str:
        """The line that it prints next; empty when it ended or the time is over."""
        assert self.popen.stdout is not None
        end, text, pipe = time.monotonic() + limit, b"", self.popen.stdout.fileno()
        while b"\n" not in text:
            # select() knows no more than 1,024 descriptors.
            poll = select.poll()
            poll.register(pipe, select.POLLIN)
            if not poll.poll(max(0.0, end - time.monotonic()) * 1000):
                return ""
            more = os.read(pipe, 1 << 16)
            if not more:
                break
            text += more
        return text.decode(errors="replace")

    def go(self) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write(b"GO\n")
        self.popen.stdin.flush()

    def end(self) -> None:
        self.popen.kill()
        self.popen.wait()
        for pipe in (self.popen.stdin, self.popen.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def why(self) -> str:
        """The telling line of what it complained about."""
        text = self.log.read_text(errors="replace")
        named = re.findall(r"^[\w.]*(?:Error|Exception|panicked)\b.*$", text, re.MULTILINE)
        return str(named[-1] if named else text[-200:].strip().replace("\n", " / "))[:200]


def json_of(text: str) -> Figures | None:
    for line in text.splitlines():
        if line.startswith("{"):
            with contextlib.suppress(ValueError):
                return dict(json.loads(line))
    return None


@contextmanager
def started(
    contestant: Contestant, workload: str, args: argparse.Namespace, server: Measured, folder: Path
) -> Iterator[list[Process]]:
    like = LIKE.get(workload, workload)
    lease = args.short_lease_ms if like == "W5" else 30_000
    crowd, many, inside_us = CROWDS.get(workload), PROCESSES.get(workload, 1), args.inside_us
    processes: list[Process] = []
    try:
        if crowd:
            many, inside_us = contestant.spread(crowd.clients), crowd.inside_us
            # Two pipes and a log each.
            wanted, most = 3 * many + 100, resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(wanted, 1024), most), most))
        for number in range(many):
            words = [
                "--workload",
                like,
                "--url",
                server.url,
                "--barrier",
                "--lease-ms",
                str(lease),
            ]
            words += ["--seconds", str(seconds_of(workload, args)), "--id", str(number)]
            words += [
                "--tasks",
                str(args.tasks),
                "--locks",
                str(held_in(workload, args)),
                "--cs-us",
                str(inside_us),
            ]
            if crowd and many < crowd.clients:
                words += ["--clients", str(crowd.clients // many)]
            words += ["--ts-file", str(folder / str(number))]
            processes.append(Process(words, contestant, args.cores, folder / f"log{number}"))
        yield processes
    finally:
        for process in processes:
            process.end()


def lowest_count(server: Measured, end: float) -> int:
    """The smallest number of keys seen until then: with many locks held, what is missing was lost."""
    lowest = int(server.ask("DBSIZE"))
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(0.25, left))
        lowest = min(lowest, int(server.ask("DBSIZE")))
    return lowest


def seconds_of(workload: str, args: argparse.Namespace) -> float:
    if workload in CROWDS:
        return float(CROWDS[workload].seconds * args.crowd)
    return float(args.hold if LIKE.get(workload, workload) == "W5" else args.seconds)


def held_in(workload: str, args: argparse.Namespace) -> int:
    return PERMITS if workload == "S5" else int(args.locks)


def counted_for(hold: float, lease_ms: int) -> float:
    """How long commands are counted in W5: whole thirds of a lease. Locks that were acquired one after the other are renewed
    in one part of each third; how much of that falls into a part of a third is a matter of chance."""
    all_of_it, third = hold - 2 * MARGIN, lease_ms / 3000
    return all_of_it // third * third or all_of_it


def once(server: Measured, contestant: Contestant, workload: str, args: argparse.Namespace) -> Figures:
    """One run. `na` in the result: the library cannot do this."""
    server.clean()
    folder = Path(tempfile.mkdtemp(prefix="redlatch-bench-"))
    before_connecting, busy = server.counters(), cores_in_use()
    own, like = used_by_us(), LIKE.get(workload, workload)
    holds = like == "W5"
    try:
        with started(contestant, workload, args, server, folder) as processes:
            limit = args.ready if holds else 40
            for process in processes:
                text = process.line(limit)
                if answer := json_of(text):
                    return verdict(answer)
                if "READY" not in text:
                    raise Broken(
                        f"did not get ready within {limit:g} s: {process.why() or 'it said nothing'}"
                    )
            begun = server.counters()
            for process in processes:
                process.go()
            more: Figures = {}
            middle = None
            if holds:
                # Everything that belongs to the acquisitions is over by then.
                held = lowest_count(server, begun.at + MARGIN)
                begun = server.counters()
                held = min(held, lowest_count(server, begun.at + counted_for(args.hold, args.short_lease_ms)))
                done = server.counters()
                more["lost"] = max(0, held_in(workload, args) - held)
            elif like == "W3":
                # Not all end at once, and those that are left would take turns without the others.
                end = begun.at + seconds_of(workload, args)
                if workload in CROWDS:
                    time.sleep(max(0.0, (begun.at + end) / 2 - time.monotonic()))
                    middle = server.counters()
                time.sleep(max(0.0, end - time.monotonic()))
                done = server.counters()
            reports = [json_of(process.line(seconds_of(workload, args) + 20)) for process in processes]
            if like not in ("W3", "W5"):
                done = server.counters()
            for process, report in zip(processes, reports, strict=True):
                if report is None:
                    raise Broken(f"no result: {process.why()}")
                if "na" in report or "error" in report:
                    return verdict(report)
            all_reports = [report for report in reports if report is not None]
            figures = figures_of(
                workload, contestant, all_reports, begun, done, folder, args.short_lease_ms, middle
            )
        calls, after = done.since(before_connecting), cores_in_use()
        theirs = used_by_us() - own + calls.cpu
        others = max(0.0, after[0] - busy[0] - theirs) / (after[1] - busy[1])
        return figures | more | {"conns": calls.connections, "others": others}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def verdict(answer: Figures) -> Figures:
    if "error" in answer:
        raise Broken(str(answer["error"]))
    return answer


def used_by_us() -> float:
    """CPU seconds of this process and of the children that have ended."""
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(used.ru_utime + used.ru_stime for used in both)


def not_there(contestant: Contestant) -> str:
    """The file of this contestant that nobody has installed or built here; empty if all are there."""
    program = contestant.command[0]
    files = [word.split(":")[0] for word in contestant.command[1:]]
    files = [file for file in files if file.endswith((".jar", ".py", ".js", ".mjs"))]
    if not shutil.which(program):
        files.insert(0, program)
    return next((file for file in files if not Path(file).exists()), "")


def chosen(workload: str, args: argparse.Namespace) -> list[Contestant]:
    return [
        each
        for each in CONTESTANTS
        if workload in each.on
        and (each.quick or each.role == "limit" or not args.quick)
        and re.search(args.only, each.name)
    ]


def described(contestant: Contestant) -> Figures:
    return {name: getattr(contestant, name) for name in ("role", "language", "wire", "note")}


def measure(workload: str, args: argparse.Namespace) -> dict[str, Any]:
    """All contestants of a workload, one after the other, as often as wanted: the medians of each, and how it was done."""
    args.cores = Cores.chosen(
        args.pin or ("same" if workload in ("W1", "S1", "P1", "R1", "M2", "M8", "M32") else "split")
    )
    repeat = args.repeat or REPEATS[workload]
    results: dict[str, Figures] = {}
    runs: dict[str, list[Figures]] = {}
    contestants = []
    for each in chosen(workload, args):
        if absent := not_there(each):
            results[each.name] = described(each) | {"why": f"{Path(absent).name} is not there"}
        else:
            contestants.append(each)
    with Measured(args.cores) as server:
        version = server.server.version()
        for turn in range(repeat):
            for each in contestants:
                if each.name in results:
                    continue
                figures = attempted(server, each, workload, args)
                if "why" in figures:
                    results[each.name] = described(each) | figures
                    runs.pop(each.name, None)
                else:
                    runs.setdefault(each.name, []).append(figures)
                print(
                    f"[{turn + 1}/{repeat}] {workload} {each.name:45} {told(workload, figures)}",
                    file=sys.stderr,
                    flush=True,
                )
    for each in contestants:
        if each.name in runs:
            results[each.name] = described(each) | medians(runs[each.name]) | {"runs": runs[each.name]}
    noise = [run["others"] for several in runs.values() for run in several]
    how = {
        "repeat": repeat,
        "seconds": seconds_of(workload, args),
        "server": version,
        "pin": args.cores.how,
        "others": statistics.median(noise) if noise else 0.0,
    }
    return {"how": how, "results": results}


def attempted(server: Measured, contestant: Contestant, workload: str, args: argparse.Namespace) -> Figures:
    """One run; with `why` if there are no figures."""
    try:
        figures = once(server, contestant, workload, args)
    except Broken as broken:
        return {"why": str(broken), "broken": True}
    return {"why": figures["na"]} if "na" in figures else figures


def told(workload: str, figures: Figures) -> str:
    if "why" in figures:
        return str(figures["why"])
    key = RANKED[workload][0]
    return f"{key}={figures[key]:,.4g} others={figures['others']:.2f}"


def keep(file: Path, **measured: Any) -> None:
    """Adds measurements to the file of all of them."""
    everything = json.loads(file.read_text()) if file.exists() else {}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(everything | measured, indent=1))


def ours_broken(results: dict[str, Figures]) -> list[str]:
    return [
        f"{name}: {one['why']}" for name, one in results.items() if one["role"] == "ours" and "why" in one
    ]


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeat", type=int, default=0, help=f"default: {REPEATS}")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each run")
    parser.add_argument("--hold", type=float, default=9, help="the same for W5")
    parser.add_argument("--crowd", type=float, default=1, help="crowds run so many times as long as they do")
    parser.add_argument(
        "--short-lease-ms", type=int, default=6000, help="the same: renewals fall into the time measured"
    )
    parser.add_argument("--ready", type=float, default=120, help="W5: how long the acquisitions may take")
    parser.add_argument("--tasks", type=int, default=64)
    parser.add_argument("--locks", type=int, default=10_000)
    parser.add_argument("--inside-us", type=int, default=1000, help="W3: the time inside the lock")
    parser.add_argument("--only", default="", help="a regular expression for the names of contestants")
    parser.add_argument("--quick", action="store_true", help="only the strongest peers, the bounds and ours")
    parser.add_argument("--pin", default="", choices=["", "same", "split", "none"])
    parser.add_argument("--out", type=Path, default=RESULTS)
    return parser


def main() -> int:
    parser = arguments()
    parser.add_argument("--workload", required=True, choices=list(RANKED))
    args = parser.parse_args()
    priority = first_in_line()
    measured = measure(args.workload, args)
    keep(args.out, **{args.workload: measured})
    results = measured["results"]
    print(f"\n### {args.workload}\n\n{table(args.workload, results)}\n")
    for line in left_out(results):
        print(f"not measured: {line}")
    print(f"priority {priority}, cores {args.cores.how}")
    broken = ours_broken(results)
    for line in broken:
        print(f"FAILED {line}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
