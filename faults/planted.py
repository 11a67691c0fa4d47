"""Plants the bugs of planted.toml, one after the other, in a copy of the sources and tells who finds each, and how fast.

planted.py [--only WORD ...] [--from N] [--layer WORD] [--seeds N] [--both] [--report FILE]

The layers, in their order: unit tests of the engine, of the wire and of the connections; the simulation of both; the scripts on a real server
(their tests, and the model against them); the driver and the public face on real servers; the conformance scenarios in Rust;
the suite of the command line.
Each that a bug names (all, if it names none) is asked while nobody has found it; with --both the first two in any case.
A layer ends with its first test that fails. Ends with `planted: bugs=N caught=N`.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts" / "lib"))

import group  # noqa: E402
from copies import copy_sources  # noqa: E402

# A bug may hang what it breaks: a layer has so many times what it takes without one, and so many seconds.
TIMES = 4
SECONDS = 30.0
# A build, or a layer about which nothing is known yet.
LONG = 900.0
ALWAYS = 2


@dataclass
class Layer:
    name: str
    command: list[str]
    # The tests of the layer. A bug that names its own has those in their place.
    tests: list[str] = field(default_factory=list)
    limit: float = LONG

    def running(self, words: list[str]) -> list[str]:
        return [*self.command, *(words or self.tests)]


@dataclass
class Bug:
    name: str
    edits: list[tuple[str, str, str]]
    # The first words of the layers that are asked; other layers have nothing to do with what it breaks.
    layers: list[str] = field(default_factory=list)
    # They run only tests with this word in their path: on a busy machine others may fail by themselves.
    tests: str = ""
    caught: dict[str, float] = field(default_factory=dict)
    by: str = ""

    def asks(self, layer: Layer) -> bool:
        return not self.layers or layer.name.startswith(tuple(self.layers))

    def words(self) -> list[str]:
        return [self.tests] if self.tests else []


def layers(cargo_test: list[str]) -> list[Layer]:
    one = ["--test-threads=2"]
    others = ["simulation", "net::tests", "live_tests", "model_tests", "many_tests", "permit_tests"]
    skipped = [word for other in others for word in ("--skip", other)]
    unit = ["engine::", "wire::", "net::", "driver::"]
    simulated = ["engine::tests::simulation::promises", "net::tests::promises"]
    scripts = ["wire::live_tests", "wire::many_tests", "wire::model_tests", "wire::permit_tests"]
    faces = ["cargo", "test", "--workspace", "--test", "faces", "--", *one]
    # A word chooses among the names of its tests.
    command_line = (
        'cargo build --quiet --workspace --bin redlatch && python -m pytest -q -x cli/tests ${1:+-k "$1"}'
    )
    conformance = [sys.executable, "conformance/run.py", "--drivers", "rust", "--jobs", "4"]
    return [
        Layer("unit tests", [*cargo_test, *skipped, *one], unit),
        Layer("simulation", [*cargo_test, *one], simulated),
        Layer("scripts", [*cargo_test, *one], scripts),
        Layer("driver", [*cargo_test, *one], ["driver::live_tests"]),
        Layer("faces", faces),
        Layer("conformance", conformance),
        Layer("command line", ["bash", "-c", command_line, "bash"]),
    ]


def edited(text: str, old: str, new: str, where: str) -> str:
    if text.count(old) != 1:
        raise SystemExit(f"{where}: {old!r} occurs {text.count(old)} times; mend planted.toml")
    return text.replace(old, new)


def failed(line: str) -> str | None:
    """The test that this line says has failed, or the scenario."""
    words = line.split()
    if line.startswith("test ") and line.endswith("FAILED"):
        return words[1].rsplit("::", 1)[-1]
    return line.removeprefix("FAILED ") if line.startswith("FAILED ") else None


def run(
    command: list[str], folder: Path, env: dict[str, str], limit: float = LONG
) -> tuple[str | None, float, str]:
    """The test that failed, if one did, after how long, and the output. The first failure ends it."""
    begun = time.monotonic()
    # A process that is killed cannot clear up: the servers' folders are in one that goes with us.
    folders = tempfile.TemporaryDirectory(prefix="redlatch-planted-", ignore_cleanup_errors=True)
    with folders as temporary, group.start(command, folder, env | {"TMPDIR": temporary}) as process:
        hung = threading.Event()

        def give_up() -> None:
            hung.set()
            group.end(process)

        watch = threading.Timer(limit, give_up)
        watch.start()
        lines, by = [], None
        for line in process.stdout or ():
            lines.append(line.rstrip("\n"))
            if by := failed(lines[-1]):
                group.end(process)
                break
        took = time.monotonic() - begun
        process.wait()
        watch.cancel()
    if by is None and process.returncode != 0:
        by = "a test that hangs" if hung.is_set() else next(reversed(lines), "ended")
    return by, took, "\n".join(lines)


def has_run(output: str) -> bool:
    """Whether any test has run: a layer that looks for its tests in the wrong place finds no bug."""
    return any(line.startswith("test ") and line.endswith(" ok") for line in output.splitlines())


def plant(
    bug: Bug, scratch: Path, env: dict[str, str], build: list[str], chosen: list[Layer], always: int
) -> None:
    originals: dict[Path, str] = {}
    try:
        for file, old, new in bug.edits:
            path = scratch / file
            originals.setdefault(path, path.read_text())
            path.write_text(edited(path.read_text(), old, new, file))
        refused, _, output = run(build, scratch, env)
        if refused:
            raise SystemExit(f"{bug.name}: does not compile\n{output[-3000:]}")
        for number, layer in enumerate(chosen):
            if bug.caught and number >= always:
                return
            if not bug.asks(layer):
                continue
            by, took, _ = run(layer.running(bug.words()), scratch, env, layer.limit)
            if by:
                bug.caught[layer.name] = took
                bug.by = bug.by or by
    finally:
        for path, text in originals.items():
            path.write_text(text)


def table(bugs: list[Bug], names: list[str]) -> list[str]:
    """Seconds from the start of a layer to its first failure, where it found the bug."""
    lines = [
        f"| planted bug | {' | '.join(names)} | found first by |",
        "|---|" + "---:|" * len(names) + "---|",
    ]
    for bug in bugs:
        cells = [f"{bug.caught[name]:.1f} s" if name in bug.caught else "" for name in names]
        lines.append(f"| {bug.name} | {' | '.join(cells)} | {bug.by or 'nobody'} |")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[], help="words of a bug's name")
    parser.add_argument("--from", type=int, default=1, dest="first", help="begin with this bug of the list")
    parser.add_argument("--layer", nargs="*", default=[], help="ask only these, by their first words")
    parser.add_argument(
        "--seeds", default="150", help="how many seeds the simulation has for each kind of faults"
    )
    parser.add_argument(
        "--both", action="store_true", help="ask the simulation too when a unit test has found it"
    )
    parser.add_argument("--report", type=Path)
    args = parser.parse_args()
    listed = tomllib.loads((Path(__file__).parent / "planted.toml").read_text())["bug"]
    bugs = [
        Bug(
            entry["name"],
            [tuple(edit) for edit in entry["edits"]],
            args.layer or entry.get("layers", []),
            entry.get("tests", ""),
        )
        for entry in listed[args.first - 1 :]
    ]
    bugs = [bug for bug in bugs if all(word in bug.name for word in args.only)]

    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    cargo_test = ["cargo", "test", "--workspace", "--lib"]
    chosen = layers([*cargo_test, "--"])
    env = os.environ | {
        # A target folder of its own: it must not leave a planted bug in what others build on. Dependencies are built once.
        "CARGO_TARGET_DIR": str(target / "planted"),
        "CARGO_PROFILE_DEV_DEBUG": "false",
        "CARGO_INCREMENTAL": "1",
        "REDLATCH_SEEDS": args.seeds,
        "RUST_BACKTRACE": "0",
    }
    # Always the same folder, so that a second run compiles only what has changed.
    scratch = target / "planted" / "sources"
    copy_sources(scratch)
    build = [*cargo_test, "--no-run"]
    run(build, scratch, env)
    # Without a bug nobody may find one.
    for layer in chosen:
        asked = [bug for bug in bugs if bug.asks(layer)]
        if bugs and not asked:
            continue
        same = asked and all(bug.tests == asked[0].tests for bug in asked)
        by, took, output = run(layer.running(asked[0].words() if same else []), scratch, env)
        if by:
            print(output[-3000:])
            raise SystemExit(f"{layer.name}: {by} fails without a planted bug")
        if layer.command[0] == "cargo" and not has_run(output):
            raise SystemExit(f"{layer.name}: runs no test")
        layer.limit = TIMES * took + SECONDS
        print(f"no bug: {layer.name} passes in {took:.1f} s", flush=True)
    for bug in bugs:
        plant(bug, scratch, env, build, chosen, ALWAYS if args.both else 0)
        found = ", ".join(f"{name} in {took:.1f} s" for name, took in bug.caught.items())
        print(f"{bug.name}: {found or 'NOT CAUGHT'} {bug.by}", flush=True)
    lines = table(bugs, [layer.name for layer in chosen])
    caught = sum(1 for bug in bugs if bug.caught)
    summary = f"planted: bugs={len(bugs)} caught={caught}"
    print("\n".join(lines))
    if args.report:
        args.report.write_text("\n".join([*lines, "", summary]) + "\n")
    print(summary)
    return 0 if caught == len(bugs) else 1


if __name__ == "__main__":
    sys.exit(main())
