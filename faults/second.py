"""A second opinion on recorded histories: Porcupine, a checker of linearizability that is not ours.

second.py FOLDER      judges again what a soak has kept, by both checkers

`porcupine/` is the program around it, in Go. It is built on first use. Its model is a mutex, or a semaphore, whose losses are told;
of a read-write lock it judges the writers;
docs/reliability/simulation.md says what it can see and what it cannot.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from check import RELIED_ON, Deletion, File, Hold, Past, Verdict, is_refused, judge, summary

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "faults" / "porcupine"
# How long Porcupine may look for an order of one part of a history.
LIMIT_SECONDS = 60


class Missing(Exception):
    """There is no Go here, so that there is no second opinion."""


def build() -> Path:
    """The program, built from its sources; Go's cache makes that quick the second time."""
    if not shutil.which("go"):
        raise Missing("go is not on PATH, and scripts/setup could not install it")
    program = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "redlatch-porcupine"
    subprocess.run(["go", "build", "-o", str(program), "."], cwd=SOURCES, check=True)
    return program


@dataclass
class Opinion:
    """The verdict of Porcupine on many histories."""

    numbers: Counter[str] = field(default_factory=Counter)
    histories: int = 0
    largest: int = 0
    wrong: list[str] = field(default_factory=list)
    planted: int = 0
    missed: list[str] = field(default_factory=list)

    def summary(self) -> str:
        counted = self.numbers
        return (
            f"porcupine: histories={self.histories} operations={counted['operations']} "
            f"refusals={counted['refusals']} excused={counted['excused']} undecided={counted['undecided']} "
            f"violations={counted['violations']} planted={self.planted} "
            f"rejected={self.planted - len(self.missed)}"
        )


class Porcupine:
    """The program, which judges one name after the other. Times are nanoseconds."""

    def __init__(self, program: Path, lease: float = 0) -> None:
        words = [str(program), str(int(lease)), str(int(RELIED_ON * lease)), str(LIMIT_SECONDS)]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.opinion = Opinion()

    def __enter__(self) -> Porcupine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.communicate()

    def ask(self, past: Past) -> dict[str, Any]:
        name = past.holds[0].name if past.holds else "-"
        deletions = [f"d {int(one.called)} {int(one.answered)}\n" for one in past.deletions]
        return self.answer(
            [f"n {name} {past.limit or 1} {int(past.margin)}\n", *deletions, *map(line, past.holds)]
        )

    def answer(self, lines: list[str]) -> dict[str, Any]:
        """The verdict on one name, whose history has these lines."""
        into, out = self.process.stdin, self.process.stdout
        assert into is not None and out is not None
        into.writelines([*lines, ".\n"])
        into.flush()
        answer = out.readline()
        if not answer:
            raise RuntimeError(f"redlatch-porcupine ended with {self.process.wait()}")
        verdict: dict[str, Any] = json.loads(answer)
        return verdict

    def check(self, past: Past) -> None:
        """Adds the verdict on one name, of a read-write lock on its writers."""
        self.count(self.ask(judged(past)))

    def count(self, answer: dict[str, Any]) -> None:
        opinion = self.opinion
        opinion.histories += 1
        opinion.largest = max(opinion.largest, answer["largest"])
        opinion.wrong += [f"porcupine: {message}" for message in answer["messages"]]
        for name in ("operations", "parts", "refusals", "excused", "undecided", "violations"):
            opinion.numbers[name] += answer[name]

    def reject(self, past: Past, variants: dict[str, Past]) -> None:
        """Looks for what was planted in copies of a name's history, and is a matter of the model."""
        own = judged(past)
        usual = self.ask(own)["violations"]
        copies = {what: judged(variant) for what, variant in variants.items()}
        told = {
            what: copy
            for what, copy in copies.items()
            if (copy.holds, copy.deletions) != (own.holds, own.deletions)
        }
        opinion = self.opinion
        opinion.planted += len(told)
        opinion.missed += [what for what, copy in told.items() if self.ask(copy)["violations"] <= usual]


def judged(past: Past) -> Past:
    """The part of a past that the model explains. It judges no refusal of these: a reader may refuse a writer, another name
    a multi lock, and two callers with one vote each a quorum."""
    holds = [ended(past, hold) for hold in past.holds]
    if past.shared or past.lingers:
        holds = [hold for hold in holds if not hold.reads and not is_refused(hold)]
    return past.like(
        [replace(hold, tried=hold.tried and not hold.whole) for hold in holds],
        [one for one in past.deletions if not one.weak],
    )


def ended(past: Past, hold: Hold) -> Hold:
    """A hold that something has ended of which the model knows nothing: it says no more of it than that it was let go by then."""
    told = hold.lost_at()
    deletion = past.deletion(hold)
    weak = [deletion] if deletion and deletion.weak else []
    causes = [one.called for one in (*weak, *hold.elsewhere) if told is not None and one.called <= told]
    if not causes:
        return hold
    # The other names of a multi lock stay held until its release.
    let_go = max(hold.answered, min(causes)) if weak else hold.freed
    rest: dict[str, Any] = {"freed": let_go, "done": let_go, "until": 0} if weak else {}
    sure = min(hold.sure, let_go or hold.sure)
    return replace(hold, lost=[], release="unavailable", sure=sure, **rest)


def line(hold: Hold) -> str:
    token = "-" if hold.token is None else hold.token
    lost = ",".join(str(int(at)) for at in hold.lost) or "-"
    return (
        f"h {hold.who} {int(hold.called)} {int(hold.answered)} {hold.status} {hold.tried:d} {token} "
        f"{hold.counted} {hold.told} {int(hold.sure)} {hold.kept:d} {int(hold.until)} "
        f"{int(hold.freed or 0)} {int(hold.done or 0)} {hold.release or '-'} {hold.watched:d} {lost} {hold.permits}\n"
    )


@dataclass
class Soaked:
    """The record of a soak beside the files of its programs. A deletion without a name was one of all keys."""

    lease: float
    files: list[File]
    deletions: list[tuple[str | None, Deletion]]
    # For how long permits are kept beyond their lease.
    margin: float = 0
    # How long after a release a server of a quorum may keep a lock.
    lingers: float = 0

    def save(self, folder: Path) -> None:
        kept = {
            "lease": self.lease,
            "margin": self.margin,
            "lingers": self.lingers,
            "files": [[file.path.name, file.who, file.died] for file in self.files],
            "deletions": [[name, one.called, one.answered, one.weak] for name, one in self.deletions],
        }
        (folder / "soak.json").write_text(json.dumps(kept))

    @staticmethod
    def load(folder: Path) -> Soaked:
        kept = json.loads((folder / "soak.json").read_text())
        files = [File(folder / name, who, died) for name, who, died in kept["files"]]
        deletions = [(name, Deletion(*times)) for name, *times in kept["deletions"]]
        return Soaked(kept["lease"], files, deletions, kept["margin"], kept["lingers"])

    def judge(self, program: Path | None) -> tuple[Verdict, Opinion | None]:
        """By our own checker, and by Porcupine where it could be built."""
        with Porcupine(program, self.lease) if program else nullcontext() as porcupine:
            verdict = judge(self.files, self.lease, self.deletions, porcupine, self.margin, self.lingers)
        return verdict, porcupine.opinion if porcupine else None


def report(verdict: Verdict, opinion: Opinion | None) -> Iterable[str]:
    """All that is wrong, in lines."""
    yield from verdict.wrong[:20]
    yield from (f"planted and not found: {what}" for what in verdict.missed)
    if opinion:
        yield from opinion.wrong[:20]
        yield from (f"porcupine: planted and not found: {what}" for what in opinion.missed)
        if verdict.planted and not opinion.planted:
            yield "porcupine: nothing was planted"


def failed(verdict: Verdict, opinion: Opinion | None) -> bool:
    return any(True for _ in report(verdict, opinion))


def main() -> int:
    verdict, opinion = Soaked.load(Path(sys.argv[1])).judge(build())
    assert opinion is not None
    print(*report(verdict, opinion), summary(verdict), opinion.summary(), sep="\n")
    return 1 if failed(verdict, opinion) else 0


if __name__ == "__main__":
    sys.exit(main())
