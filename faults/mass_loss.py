"""Stops the server under many holds, and compares what is lost with what nobody could have saved.

mass_loss.py [--holds N ...] [--topologies NAME ...] [--leases PART ...] [--program FILE]

Each row of the table is one program in Rust that holds N locks with the watchdog, spread evenly over the time between two
renewals. The server, or every node of the cluster, gets SIGSTOP, and SIGCONT after so many leases. Before that all
connections are closed once: `one renewal of all` is the time from the first new connection until every hold is renewed.
`ended in the stop` counts the holds whose `remaining()` at the stop was less than the stop's length, and `unavoidable` those
where it was less than that and one renewal of all. `beyond it` is what was lost beyond the unavoidable, as a share of all
holds. `recovered` is the time from SIGCONT until each hold was renewed or lost. The exit code is 1 if a row exceeds the
bound: 5 % of all holds beyond the unavoidable.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass

import programs
from world import ROOT

sys.path.insert(0, str(ROOT / "scripts" / "lib"))
from server import Cluster, Deployment, Server

LEASE_MS = 6000
# So many of all holds may be lost beyond the unavoidable.
BOUND = 0.05
# A node that stands still is not to be taken for dead.
NODE_TIMEOUT_MS = 600_000


@dataclass
class Row:
    topology: str
    holds: int
    leases: float
    lost: int
    # Holds whose time ended while the server stood still.
    ended: int
    # Those, and holds that would have ended within one renewal of everything after it.
    unavoidable: int
    pass_ms: int
    recovered_ms: int

    @property
    def late(self) -> float:
        return (self.lost - self.unavoidable) / self.holds

    def __str__(self) -> str:
        return (
            f"| {self.topology} | {self.holds:,} | {self.leases:.2f} | {self.lost:,} | {self.ended:,} | {self.unavoidable:,} "
            f"| {100 * self.late:.1f} % | {self.pass_ms:,} ms | {self.recovered_ms:,} ms |"
        )


# The output of the program, in the order of a row.
WORDS = ["lost", "ended", "unavoidable", "pass", "millis"]

HEAD = """| servers | holds | stop in leases | lost | ended in the stop | unavoidable | beyond it | one renewal of all | recovered |
|---|---:|---:|---:|---:|---:|---:|---:|---:|"""


def play(topology: str, holds: int, leases: float) -> Row:
    deployment: Deployment = Server() if topology == "single" else Cluster(node_timeout_ms=NODE_TIMEOUT_MS)
    with deployment:
        nodes: list[Server] = deployment.nodes
        program = programs.Program("rust", "outage", deployment.url, "mass", LEASE_MS, holds)
        try:
            program.said("held")
            for node in nodes:
                node("CLIENT", "KILL", "TYPE", "normal")
            program.go_on()
            program.said("ready")
            begun = time.monotonic()
            for node in nodes:
                node.signal("STOP")
            program.go_on()
            program.said("noted")
            time.sleep(max(0.0, begun + leases * LEASE_MS / 1000 - time.monotonic()))
            for node in nodes:
                node.signal("CONT")
            program.go_on(str(int((time.monotonic() - begun) * 1e6)))
            said = dict(word.split("=") for word in program.said("lost=").split())
        finally:
            program.close()
    return Row(topology, holds, leases, *(int(said[word]) for word in WORDS))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--holds", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument(
        "--topologies", nargs="+", default=["single", "cluster"], choices=["single", "cluster"]
    )
    parser.add_argument("--leases", type=float, nargs="+", default=[0.5, 0.7, 0.75, 0.85, 1.0, 1.5])
    parser.add_argument("--program", help="a redlatch-conformance built before; without it, one is built")
    args = parser.parse_args()
    programs.profile = "release"
    if args.program:
        programs.built["rust"] = (args.program,)
    print(HEAD, flush=True)
    rows = []
    for topology in args.topologies:
        for holds in args.holds:
            for leases in args.leases:
                rows.append(play(topology, holds, leases))
                print(rows[-1], flush=True)
    worst = max(row.late for row in rows)
    print(f"mass loss: rows={len(rows)} worst={100 * worst:.1f}% bound={100 * BOUND:.0f}%")
    return int(worst > BOUND)


if __name__ == "__main__":
    sys.exit(main())
