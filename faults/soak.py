"""All languages at once on one server, with random faults, for MINUTES; the recorded history is checked.

soak.py [--model M] [--minutes M] [--seed N] [--processes N] [--callers N] [--debug] [--keep FOLDER] [LANGUAGE ...]

With the model `lock`, some processes of each language (conformance/drivers) acquire as fast as they can, for many callers
each, on a few hot names and many others, and tell what happened to them. Meanwhile their connections are cut, held up
and killed, the network goes away for longer than a lease, the server is paused and forgets its scripts, keys are deleted, and
processes are stopped and killed. The other models are semaphores (`permits`), multi locks (`multi`) and the lock of a quorum
(`quorum`), all in models.py, and plain semaphores and latches (`counters`, counter_soak.py).

Two checkers judge the history: check.py and Porcupine, which is not ours (second.py). It fails if one of them finds
a violation, or misses one that was planted.

Ends with `history: acquisitions=N violations=N planted=N rejected=N`,
`porcupine: histories=N operations=N refusals=N excused=N undecided=N violations=N planted=N rejected=N` and
`soak: minutes=M operations=N faults=N lost_told=N overlaps=N leaks=N`. Without Go the second line is
`SKIPPED porcupine: WHY`, and with CI=true that is a failure.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from counter_soak import CounterSoak
from models import LockSoak, MultiSoak, PermitSoak, QuorumSoak
from second import Missing
from second import build as build_porcupine
from soaking import Soak
from world import build

MODELS: dict[str, type[Soak]] = {
    "lock": LockSoak,
    "permits": PermitSoak,
    "counters": CounterSoak,
    "multi": MultiSoak,
    "quorum": QuorumSoak,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("languages", nargs="*", help="all of ours by default")
    parser.add_argument("--model", choices=MODELS, default="lock")
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--processes", type=int, default=2, help="per language")
    parser.add_argument("--callers", type=int, default=8, help="of each process")
    parser.add_argument("--debug", action="store_true", help="programs of Rust and C without optimisations")
    parser.add_argument("--keep", type=Path, help="a new folder for what the programs write")
    args = parser.parse_args()
    if unknown := set(args.languages) - set(build.ours()):
        parser.error(f"no language is {', '.join(unknown)}")
    folder = args.keep or Path(tempfile.mkdtemp(prefix="redlatch-soak-"))
    folder.mkdir(exist_ok=True)
    program, skipped = None, ""
    try:
        program = build_porcupine()
    except Missing as missing:
        skipped = f"SKIPPED porcupine: {missing}"
        print(skipped, flush=True)
    profile = "debug" if args.debug else "release"
    soak = MODELS[args.model](
        args.minutes, args.seed, args.processes, args.callers, folder, profile, args.languages
    )
    try:
        reports = soak.run()
        left = soak.leaks()
    finally:
        soak.close()
    left += [f"{leak} of {who}" for who, report in reports.items() for leak in report.leaks()]
    begun = time.monotonic()
    judged = soak.judge(program, skipped, len(left))
    took = time.monotonic() - begun
    for line in judged.wrong:
        print(line)
    if judged.wrong:
        print(f"kept, for {soak.judge_again}: {folder}")
    elif not args.keep:
        shutil.rmtree(folder)
    for leak in left[:20]:
        print(f"left: {leak}")
    print(f"seed {args.seed}; ends: {dict(judged.ends.most_common())}; faults: {dict(soak.faults)}")
    grown = {who: f"{report.memory} kB/{report.since}" for who, report in reports.items()}
    print(f"memory grown over turns of the second half: {grown}")
    print(f"checked in {took:.0f} s")
    print(*judged.figures, sep="\n")
    if not program and os.environ.get("CI", "").lower() in ("1", "true", "yes"):
        return 1
    return 1 if judged.wrong or left else 0


if __name__ == "__main__":
    sys.exit(main())
