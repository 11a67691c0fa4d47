"""Guards the cost of a lock against regressions, in counts that do not depend on how fast a machine is.

guard.py [--bless] [--only REGEX] [--scale 0.5]

Measures with the development builds that the tests use, against the bounds of bounds.toml. A count that depends on how threads
are scheduled is measured up to three times: a regression shows every time. --bless writes the bounds; --scale 0.5
halves them for this run, which every one of them has to notice.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "peers"))
import instructions  # noqa: E402
import run  # noqa: E402
from contestants import OUR_COUNTED, ROOT, TARGET, Contestant  # noqa: E402
from figures import Figures  # noqa: E402
from machine import Cores, Measured, Redis, Server  # noqa: E402

BOUNDS = HERE / "bounds.toml"
COUNTED = str(TARGET / "debug" / "redlatch-bench-counted")
TRIES = 10


@dataclass(frozen=True)
class Measure:
    name: str
    what: Callable[[], float]
    # By how much --bless sets the bound above what was measured, for what another build moves. None: the scheduler moves
    # it too much, so the bound is reasoned, and stays.
    slack: float | None = 0.0
    needs: str = ""


def measured(command: list[str], workload: str, pin: str = "none", **more: object) -> Figures:
    """One run of a program of ours, as the benchmark makes it."""
    args = run.arguments().parse_args([])
    args.cores = Cores.chosen(pin)
    vars(args).update({"seconds": 1.0, **more})
    with Measured(args.cores) as server:
        return run.once(
            server, Contestant("guard", "", "ours", tuple(command), counted=OUR_COUNTED), workload, args
        )


def rust(peer: str, kind: str = "reentrant", pairs: int = 0) -> list[str]:
    count = ["--pairs", str(pairs)] if pairs else []
    return [COUNTED, "--peer", peer, "--kind", kind, *count]


@cache
def w1(peer: str, kind: str) -> Figures:
    return measured(rust(peer, kind, 2000), "W1")


def bytes_of(kind: str) -> float:
    return float(w1("async", kind)["bytes"])


def allocations_of(peer: str) -> float:
    return float(w1(peer, "reentrant")["allocations"])


def sleeps_of(peer: str) -> float:
    """Tasks are measured with their server on one core: on several, another thread may have done its part of a pair before
    one goes to sleep, or not, so that the count is between 2 and 6 as the scheduler likes."""
    pin = "same" if peer == "async" else "none"
    return float(measured(rust(peer, pairs=2000), "W1", pin)["switches"])


def instructions_of(peer: str) -> float:
    """A caller that blocks makes its calls on its own thread. How often the engine's thread wakes up meanwhile depends on
    the time that passes, so that only the caller's is counted."""
    return instructions.of_client(rust(peer), thread="01" if peer == "blocking" else "")


def w2() -> Figures:
    return measured(rust("async", pairs=4000), "W2")


def c_program() -> str:
    program, library = TARGET / "bench" / "guard_c", TARGET / "debug"
    program.parent.mkdir(parents=True, exist_ok=True)
    flags = [f"-I{ROOT}/c-api/include", f"-L{library}", f"-Wl,-rpath,{library}"]
    source = str(HERE / "c/bench.c")
    subprocess.run(
        ["cc", "-O1", *flags, source, "-lredlatch", "-lpthread", "-lm", "-o", str(program)], check=True
    )
    return str(program)


def commands_in_every_language() -> float:
    """The most that any of them needs."""
    python = [sys.executable, str(HERE / "python/bench.py"), "--peer"]
    programs = [rust("async"), rust("blocking"), [c_program()], [*python, "threads"], [*python, "aio"]]
    programs.append(["node", str(HERE / "node/bench.mjs")])
    most = [float(measured(program, "W1", seconds=0.3)["cmds"]) for program in programs]
    return max(most)


def keys_written(program: Sequence[str]) -> float:
    """How many keys the pairs of a program change; the server tells."""
    names: set[str] = set()
    with Server() as server:
        server("CONFIG", "SET", "notify-keyspace-events", "KA")
        changes = Redis(server.port, 10)
        changes("PSUBSCRIBE", "__keyspace@*")

        def listen() -> None:
            while (message := changes.read())[3] != "end":
                names.add(message[2].split(":", 1)[1])

        listener = threading.Thread(target=listen)
        listener.start()
        subprocess.run(
            [*program, "--pairs", "20", "--workload", "W1", "--warmup", "0", "--url", server.url],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        server("PUBLISH", "__keyspace@end", "end")
        listener.join(10)
        changes.close()
    return float(len(names))


def of_server(kind: str, peer: str = "async") -> float:
    mine = instructions.of_server(instructions.by(rust(peer, kind)))
    return mine / redisson_minimum()


@cache
def redisson_minimum() -> float:
    return instructions.of_server(instructions.by_redisson_minimum)


@cache
def w5(peer: str) -> Figures:
    return measured(rust(peer), "W5", locks=10000, hold=4.0, short_lease_ms=3000)


def commands_of_held(peer: str) -> float:
    return float(w5(peer)["cmds_100"])


def bytes_of_held(peer: str) -> float:
    return float(w5(peer)["live_bytes"])


def allocations_beside_a_subscriber() -> float:
    """A subscriber of `tracing` that follows all but redlatch."""
    command = [*rust("blocking", pairs=2000), "--subscriber"]
    return float(measured(command, "W1")["allocations"])


def counted_by(*program: str) -> float:
    """Runs a program that counts by itself; its number."""
    with Server() as server:
        command = [*program, "--url", server.url]
        ran = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return float(ran.stdout)


def calls_of_python() -> float:
    return counted_by(sys.executable, str(HERE / "python/calls.py"))


def calls_of_node() -> float:
    return counted_by("node", str(HERE / "node/calls.mjs"))


BUILD, PEERS = 0.15, ("async", "blocking")
MEASURES = [
    Measure("w1_commands", commands_in_every_language, None),
    Measure("w1_keys", lambda: keys_written(rust("async"))),
    *(Measure(f"w1_bytes_{kind}", partial(bytes_of, kind), 0.03) for kind in ("reentrant", "simple")),
    *(Measure(f"w1_allocations_{peer}", partial(allocations_of, peer), 0.02) for peer in PEERS),
    *(Measure(f"w1_sleeps_{peer}", partial(sleeps_of, peer), None) for peer in PEERS),
    *(
        Measure(f"w1_instructions_{peer}", partial(instructions_of, peer), BUILD, "valgrind")
        for peer in PEERS
    ),
    *(
        Measure(f"w1_server_{kind}", partial(of_server, kind), 0.05, "valgrind")
        for kind in ("reentrant", "simple")
    ),
    Measure("w1_server_blocking", lambda: of_server("reentrant", "blocking"), 0.05, "valgrind"),
    Measure("off_allocations_rust", allocations_beside_a_subscriber, 0.15),
    Measure("off_calls_python", calls_of_python),
    Measure("off_calls_node", calls_of_node),
    Measure("w2_commands", lambda: w2()["cmds"], None),
    Measure("w2_sleeps_async", lambda: w2()["switches"], None),
    Measure("w2_allocations_async", lambda: w2()["allocations"], 0.05),
    Measure("w3_commands", lambda: measured(rust("async"), "W3")["cmds"], 0.2),
    Measure("w4_commands", lambda: measured(rust("async"), "W4")["cmds"], 0.1),
    Measure("w4_sleeps_blocking", lambda: measured(rust("blocking"), "W4")["switches"], None),
    *(Measure(f"w5_commands_{peer}", partial(commands_of_held, peer), None) for peer in PEERS),
    *(Measure(f"w5_bytes_{peer}", partial(bytes_of_held, peer), 0.05) for peer in PEERS),
]


def bounds() -> dict[str, float]:
    found = re.findall(r"^(\w+) = ([\d.]+)  # .", BOUNDS.read_text(), re.MULTILINE)
    return {name: float(number) for name, number in found}


def bless(values: dict[str, float]) -> None:
    text = BOUNDS.read_text()
    slack = {measure.name: measure.slack for measure in MEASURES}
    for name, value in values.items():
        share = slack[name]
        if share is None:
            continue
        bound = value * (1 + share)
        number = f"{bound:.0f}.0" if bound > 1000 else f"{bound:.2f}"
        text = re.sub(rf"^{name} = [\d.]+", f"{name} = {number}", text, flags=re.MULTILINE)
    BOUNDS.write_text(text)


def check(measure: Measure, bound: float) -> float:
    """The least of some tries; one within the bound is enough, since other programs can only add to it."""
    values: list[float] = []
    while len(values) < TRIES and (not values or min(values) > bound):
        try:
            values.append(measure.what())
        except (run.Broken, subprocess.CalledProcessError) as broken:
            print(f"{measure.name} could not be measured: {broken}", flush=True)
            values.append(float("inf"))
        if values[-1] > bound:
            # The next try measures anew; a run serves several measures.
            w1.cache_clear()
            w5.cache_clear()
    return min(values)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bless", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--scale", type=float, default=1.0)
    args = parser.parse_args()
    limits, values, failed, skipped = bounds(), {}, 0, 0
    if set(limits) != {measure.name for measure in MEASURES}:
        raise SystemExit(
            f"bounds.toml and the measures differ: {set(limits) ^ {each.name for each in MEASURES}}"
        )
    for measure in MEASURES:
        if not re.search(args.only, measure.name):
            continue
        if measure.needs and not shutil.which(measure.needs):
            print(f"SKIPPED {measure.name}: {measure.needs} is not on PATH")
            skipped += 1
            continue
        bound = limits[measure.name] * args.scale
        value = values[measure.name] = check(measure, float("inf") if args.bless else bound)
        verdict = "ok" if value <= bound else "FAILED"
        failed += value > bound
        loose = ", loose: guard.py --bless" if value * 2 < bound and measure.slack is not None else ""
        print(f"{verdict:6} {measure.name:26} {value:12,.2f}  bound {bound:12,.2f}{loose}", flush=True)
    if args.bless:
        bless({name: value for name, value in values.items() if value < float("inf")})
        failed = sum(value == float("inf") for value in values.values())
    print(f"{len(values) - failed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
