"""Builds and runs the phases of scripts/tests.toml, streams what they print, and adds up what their runners have counted.

    scripts/test [--set test|rest|all] [--server NAME] [--repeat N] [--jobs N] [PHASE...]
    scripts/test --bless-times      the times of the last runs are those that later ones are compared with

A phase that lacks what it needs is listed as SKIPPED and counted; with CI=true a skip is a failure. With --repeat the phases
run N times beside a load on every core. With --server every suite runs on that server: a name that `scripts/servers` lists,
or a path. With --jobs N as many phases run beside each other: they wait more than they compute. What computes only, a build or
`lint`, runs beside them, one at a time, with the time that they leave.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import group
import servers
import tomllib

ROOT = Path(os.environ["REDLATCH_ROOT"])
PLAN = ROOT / "scripts" / "tests.toml"
TIMES = ROOT / "scripts" / "times.json"  # seconds of cores of each phase, of the run that was committed
LOGS = Path(os.environ["CARGO_TARGET_DIR"]) / "test-logs"  # the times of the last runs are there, too
NAMED = 20  # failing tests of a phase that the summary names
GROWN = 1.2  # a phase that takes so many times the cores of the committed run is named
CI = os.environ.get("CI", "").lower() in ("1", "true", "yes")
STOP = threading.Event()  # the runner was asked to end, or a phase has broken it

# The closing lines: those of our own programs; of cargo; of the programs that count checks, cells, seeds or operations.
PASSED = re.compile(r"(?:\w+: )?(\d+) passed, (\d+) failed(?:, (\d+) skipped)?$")
CARGO = re.compile(r"test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored")
OF_ALL = re.compile(
    r"(?:conformance|faults|sim|soak|counters): .*?(?:checks|cells|seeds|operations)=(\d+) .*?(?:failed|violations|wrong|leaks)=(\d+)"
)
FAILURE = re.compile(r"(?:FAILED|lint failed:) +([^|].*)|test (.+) \.\.\. FAILED")


@dataclass
class Phase:
    name: str
    run: list[str]  # commands for bash
    build: list[str] = field(default_factory=list)
    # `tool NAME` on PATH, a file of the checkout, or `says COMMAND`: a command that says what is lacking, and fails then.
    needs: list[str] = field(default_factory=list)
    set: str = (
        "rest"  # `test`: in `make test`; `rest`: in `make test-all` besides; `asked`: by its name alone
    )
    each: list[str] = field(
        default_factory=list
    )  # every command of `run` runs with $EACH being each of these
    says: str = ""  # a line that has to come, once
    shares: str = ""  # phases with the same word use the same files, and never run beside each other
    alone: bool = False  # it counts what a machine does, so nothing runs beside it
    computes: bool = False  # it never waits, so it runs as a build does: with the time that others leave
    repeated: bool = True
    minutes: float = 25  # for each command: a test that hangs is a failure, not a stop


@dataclass
class Counts:
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    skips: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    slow: list[tuple[float, str]] = field(default_factory=list)  # seconds of each test that a runner timed
    cpu: float = 0.0  # seconds of all cores, of the commands and of what they waited for

    def add(self, other: Counts) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    def line(self, text: str, says: str = "") -> None:
        """Takes one line of what a runner prints."""
        if found := PASSED.match(text) or CARGO.match(text):
            passed, failed, skipped = (int(number or 0) for number in found.groups())
            self.add(Counts(passed, failed, skipped))
        elif found := OF_ALL.match(text):
            self.add(Counts(int(found[1]) - int(found[2]), int(found[2])))
        elif found := re.match(r"SKIPPED (.+)|test (.+) \.\.\. ignored", text):
            self.skips.append(found[1] or found[2])
        elif found := FAILURE.match(text):
            self.failures.append(found[1] or found[2])
        elif says and text == says:
            self.passed += 1

    def junit(self, report: Path) -> None:
        """Takes a report of pytest, Node.js, Bun or Deno."""
        # Node.js copies escapes of terminals, which XML 1.0 does not have.
        text = re.sub(
            r"[^\t\n\r -\uD7FF\uE000-\uFFFD\U00010000-\U0010FFFF]", "?", report.read_text(errors="replace")
        )
        for case in ElementTree.fromstring(text).iter("testcase"):
            name = f"{case.get('classname', '')} {case.get('name', '')}".strip()
            if case.find("failure") is not None or case.find("error") is not None:
                self.failed += 1
                self.failures.append(name)
            elif (skip := case.find("skipped")) is not None:
                self.skipped += 1
                self.skips.append(f"{name}: {skip.get('message', '')}")
            else:
                self.passed += 1
            self.slow.append((float(case.get("time") or 0), name))

    def total(self) -> int:
        return self.passed + self.failed + self.skipped


def plan() -> list[Phase]:
    return [Phase(name, **fields) for name, fields in tomllib.loads(PLAN.read_text()).items()]


def missing(phase: Phase) -> str:
    lacking = []
    for need in phase.needs:
        if need.startswith("says "):
            asked = subprocess.run(need.split()[1:], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
            if asked.returncode:
                lacking.append(asked.stdout.strip() or f"{need[5:]} ended with code {asked.returncode}")
        elif need.startswith("tool "):
            lacking += [f"{tool} is not on PATH" for tool in need.split()[1:] if not shutil.which(tool)]
        elif not (ROOT / need).exists():
            lacking.append(f"{need} is not there")
    return ", ".join(lacking)


def ended(process: subprocess.Popen[str]) -> bool:
    """Whether it has ended. It is not reaped yet, so its group's number cannot mean anybody else's processes."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None


def run(
    command: str,
    log: Path,
    *,
    tests: bool = True,
    computes: bool = False,
    mark: str = "",
    minutes: float = 25,
    each: str = "",
    says: str = "",
) -> Counts:
    """Runs one command, shows its output as it comes, and counts; one that failed, or ran no test, counts at least 1.

    `mark` begins each line, where several commands run at a time.
    """
    print(f"{mark}$ {command.replace('$EACH', each)}", flush=True)
    counts = Counts()
    report = log.with_suffix(".xml")
    report.unlink(missing_ok=True)
    nice = ["nice", "-n", "10"] * computes
    process = group.start(
        [*nice, "bash", "-c", command], ROOT, os.environ | {"JUNIT": str(report), "EACH": each}
    )

    def follow() -> None:
        assert process.stdout is not None
        with process.stdout, open(log, "a") as copy:
            for line in process.stdout:
                print(mark + line, end="", flush=True)
                copy.write(line)
                if tests:
                    counts.line(re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip(), says)

    reader = threading.Thread(target=follow, daemon=True)
    reader.start()
    problem = ""
    give_up = time.monotonic() + minutes * 60
    try:
        while not ended(process) and time.monotonic() < give_up and not STOP.is_set():
            time.sleep(0.02)
        if STOP.is_set():
            problem = "was ended"
        elif not ended(process):
            problem = f"did not end within {minutes:.0f} minutes"
        else:
            # A process that a test left running holds the pipe open: that must not hold us.
            reader.join(5)
            if reader.is_alive():
                problem = "left a process behind that still holds its output"
    finally:
        group.end(process)
        _, status, used = os.wait4(process.pid, 0)
        code = process.returncode = os.waitstatus_to_exitcode(status)
        counts.cpu = used.ru_utime + used.ru_stime
        reader.join(5)
    if report.exists():
        try:
            counts.junit(report)
        except ElementTree.ParseError as error:
            problem = problem or f"wrote a report that cannot be read: {error}"
    counts.skipped = max(counts.skipped, len(counts.skips))
    if code:
        problem = problem or f"ended with code {code}"
    if tests and not counts.total():
        problem = problem or "ran no test"
    if says and counts.passed != 1:
        problem = problem or f"did not say {says!r} once"
    if problem:
        print(f"{mark}FAILED {command}: {problem}", flush=True)
        counts.failed = counts.failed or 1
        counts.failures.append(f"{command}: {problem}")
    return counts


@contextmanager
def load(wanted: bool) -> Iterator[None]:
    """Keeps every core busy, so that tests that only pass on an idle machine are found."""
    spin = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(100000))\n"
    spinners = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range((os.cpu_count() or 1) * wanted)]
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()


def read(times: Path) -> dict[str, int]:
    return json.loads(times.read_text()) if times.exists() else {}


def write(times: Path, found: dict[str, int]) -> None:
    times.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


def bless() -> int:
    """Takes over what the last runs took, of phases that there are still."""
    names = {phase.name for phase in plan()} | {f"builds of {each}" for each in ("test", "rest", "all")}
    times = {name: cpu for name, cpu in (read(TIMES) | read(LOGS / "times.json")).items() if name in names}
    write(TIMES, times)
    print(f"{TIMES}: {len(times)} times")
    return 0


class Runner:
    """One run: what was built, what came of it, and how long it took."""

    def __init__(self, jobs: int, repeat: int, builds: str = "") -> None:
        self.jobs, self.repeat = jobs, repeat
        self.builds = builds  # the name of the time that all builds took together
        self.total = Counts()
        self.rows: list[str] = []
        self.lines: list[str] = []  # of failures
        self.slow: list[str] = []
        self.times: dict[str, float] = {}
        self.done: dict[str, bool] = {}  # several phases need the same things built

    def build(self, phase: Phase) -> bool:
        began = time.monotonic()
        built = Counts()
        for command in phase.build:
            if command not in self.done:
                one = run(
                    command,
                    LOGS / f"{phase.name}-build.log",
                    tests=False,
                    computes=self.jobs > 1,
                    mark=f"build {phase.name}: ",
                    minutes=45,
                )
                self.done[command] = not one.failed
                built.add(one)
            if not self.done[command]:
                built.failed = built.failed or 1
                break
        # One phase builds what others need as well, and not the same one in each run.
        self.end(f"{phase.name} build", self.builds, built, time.monotonic() - began, bool(phase.build))
        return not built.failed

    def play(self, turn: int, phase: Phase) -> None:
        name = phase.name if self.repeat == 1 else f"{phase.name} {turn}/{self.repeat}"
        mark = f"{phase.name}: " if self.jobs > 1 and not phase.alone else ""
        counts = Counts()
        began = time.monotonic()
        with load(self.repeat > 1 and phase.repeated):
            for number, (each, command) in enumerate(
                (each, command) for each in phase.each or [""] for command in phase.run
            ):
                log = LOGS / f"{phase.name}-{turn}-{number}.log"
                one = run(
                    command,
                    log,
                    computes=phase.computes and self.jobs > 1,
                    mark=mark,
                    minutes=phase.minutes,
                    each=each,
                    says=phase.says,
                )
                counts.add(one)
        self.end(name, phase.name, counts, time.monotonic() - began)
        self.slow += [
            f"{name}: {seconds:.1f} s {test}" for seconds, test in sorted(counts.slow, reverse=True)[:10]
        ]

    def end(self, name: str, sort: str, counts: Counts, seconds: float, shown: bool = True) -> None:
        """A step has ended: its row, and its time with those of its sort."""
        self.total.add(counts)
        self.times[sort] = self.times.get(sort, 0) + counts.cpu
        if shown:
            came = f"{counts.passed} passed, {counts.failed} failed, {counts.skipped} skipped"
            row = f"{name:<24}{seconds:>7.0f} s, {counts.cpu:>5.0f} s of cores   {came if counts.total() else ''}".rstrip()
            print(f"== {row}", flush=True)
            self.rows.append(row)
        if counts.failed:
            names = list(dict.fromkeys(counts.failures))
            self.lines += [f"FAILED {name}: {counts.failed}", *(f"    {each}" for each in names[:NAMED])]
            self.lines += [f"    and {len(names) - NAMED} more"] * (len(names) > NAMED)

    def all(self, wanted: list[Phase]) -> None:
        """Builds the phases one after the other and plays each once it is built."""
        self.steps(1, list(wanted), [])
        again = [phase for phase in wanted if phase.repeated]
        for turn in range(2, self.repeat + 1):
            self.steps(turn, [], list(again))

    def steps(self, turn: int, to_build: list[Phase], ready: list[Phase]) -> None:
        running: dict[Future[object], tuple[Phase, bool]] = {}
        with ThreadPoolExecutor(self.jobs + 1) as pool:

            def start(phase: Phase, builds: bool) -> None:
                running[pool.submit(self.build if builds else partial(self.play, turn), phase)] = (
                    phase,
                    builds,
                )
                (to_build if builds else ready).remove(phase)

            try:
                while True:
                    computes = any(builds or phase.computes for phase, builds in running.values())
                    plays = [phase for phase, builds in running.values() if not builds and not phase.computes]
                    busy = {phase.shares for phase in plays if phase.shares}
                    free = [phase for phase in ready if phase.shares not in busy and not phase.alone]
                    if not to_build and not running and not free:
                        free = ready  # what counts runs last
                    waiting = [phase for phase in free if not phase.computes]
                    computing = [phase for phase in free if phase.computes]
                    may = (self.jobs > 1 or not running) and not any(phase.alone for phase in plays)
                    if may and to_build and not computes:
                        start(to_build[0], True)
                    elif may and waiting and len(plays) < self.jobs:
                        # Only one of those that share can run.
                        start(min(waiting, key=lambda phase: not phase.shares), False)
                    elif may and computing and not computes:
                        start(computing[0], False)
                    elif running:
                        for step in wait(running, return_when=FIRST_COMPLETED).done:
                            phase, was_build = running.pop(step)
                            if step.result() and was_build:
                                ready.append(phase)
                    else:
                        return
            except BaseException:
                STOP.set()  # only this thread hears of an interrupt; the others end what they run
                raise

    def summary(self, seconds: float) -> int:
        total = self.total
        lines: list[str] = []
        (LOGS / "slowest.txt").write_text("\n".join(self.slow) + "\n")
        times = {name: round(cpu) for name, cpu in self.times.items() if name}
        before = read(TIMES)
        for name, cpu in times.items():
            if self.repeat == 1 and cpu > before.get(name, cpu) * GROWN and cpu - before[name] > 5:
                lines.append(f"GROWN {name}: {cpu} s of cores, {before[name]} in scripts/times.json")
        if self.repeat == 1:
            write(LOGS / "times.json", read(LOGS / "times.json") | times)
        lines += [f"SKIPPED {skip}" for skip in dict.fromkeys(total.skips)]
        logs = f"logs and the slowest tests in {LOGS}"
        lines += [
            *self.rows,
            f"{'all':<24}{seconds:>7.0f} s, {total.cpu:>5.0f} s of cores   {logs}",
            *self.lines,
        ]
        if total.skipped and CI:
            lines.append(f"CI: {total.skipped} skipped, and here nothing may be")
        lines.append(f"{total.passed} passed, {total.failed} failed, {total.skipped} skipped")
        print("\n== summary", *lines, sep="\n", flush=True)
        return int(total.failed or not total.passed or (total.skipped and CI))


def main() -> int:
    table = plan()
    names = [phase.name for phase in table]
    parser = argparse.ArgumentParser(prog="scripts/test")
    parser.add_argument("--set", choices=("test", "rest", "all"), default="test")
    parser.add_argument("--repeat", type=int, default=1, metavar="N")
    parser.add_argument("--jobs", type=int, default=2, metavar="N")
    parser.add_argument("--server", default="", metavar="NAME")
    parser.add_argument("--bless-times", action="store_true")
    parser.add_argument("phase", nargs="*", help="of: " + " ".join(names))
    asked = parser.parse_args()
    if unknown := set(asked.phase) - set(names):
        parser.error(f"no such phase: {', '.join(sorted(unknown))}")
    if asked.bless_times:
        return bless()
    if asked.repeat < 1 or asked.jobs < 1:
        parser.error("--repeat and --jobs are at least 1")
    if asked.server:
        try:
            os.environ["REDLATCH_SERVER_BIN"] = str(servers.find(asked.server))
        except servers.Unobtainable as error:
            parser.error(str(error))
    print(f"server: {servers.version(Path(os.environ['REDLATCH_SERVER_BIN'])) or 'none'}", flush=True)
    LOGS.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    # As its tests wait more than they compute, four times as many run at a time as cargo would have it.
    os.environ.setdefault("RUST_TEST_THREADS", str(4 * (os.cpu_count() or 1)))
    runner = Runner(asked.jobs, asked.repeat, "" if asked.phase else f"builds of {asked.set}")
    wanted = []
    for phase in table:
        if (
            phase.name not in asked.phase
            if asked.phase
            else phase.set not in ("test", "rest") or asked.set not in (phase.set, "all")
        ):
            continue
        if lacking := missing(phase):
            runner.total.add(Counts(skipped=1, skips=[f"the whole phase {phase.name}: {lacking}"]))
            continue
        for old in LOGS.glob(f"{phase.name}-*"):
            old.unlink()
        wanted.append(phase)
    runner.all(wanted)
    return runner.summary(time.monotonic() - began)


def interrupted(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    # Asked to end, we first end what we started.
    signal.signal(signal.SIGTERM, interrupted)
    signal.signal(signal.SIGHUP, interrupted)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
