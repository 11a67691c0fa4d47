"""The commands that client tracking costs a server whose table of tracked keys is too small, exactly full or large enough.

Two clients hold the same number of locks, one with tracking and one without, each at a server of its own. Beside each
of them a connection reads keys in a loop and has them tracked, as a client-side cache does. Commands of locks are
counted while the client without tracking renews each lock three times. Ends with `tracking: rows=N worst=N.NN`, the
most commands with tracking for one without.
"""

from __future__ import annotations

import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import redlatch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts" / "lib"))
from server import Redis, Server, fields

HOLDS = 200
LEASE = 3.0
ROUNDS = 3
# The size of the table, and how many keys others have tracked.
ROWS = [
    ("100", 100, 100),
    ("1,000,000", 1_000_000, 100),
    ("exactly full", 20_000, 20_000 - HOLDS),
    ("5 % too small", 20_000, 21_000 - HOLDS),
]
# The commands of locks, in scripts and outside.
COUNTED = ["eval", "evalsha", "hmget", "pexpire", "pttl", "exists", "time"]


class Side:
    """A server, those who read its keys, and a client that holds locks."""

    def __init__(self, table: int, others: int, tracking: bool, stack: ExitStack) -> None:
        self.server = stack.enter_context(Server("", "--tracking-table-max-keys", str(table)))
        self.others = others
        self.over = threading.Event()
        self.redis = Redis(self.server.port)
        self.redis("CLIENT", "TRACKING", "ON", "REDIRECT", self.redis("CLIENT", "ID"))
        self.read_keys()
        client = redlatch.Client(self.server.url, tracking=tracking, direct=False, watchdog_lease=LEASE)
        self.client = stack.enter_context(client)
        locks = [self.client.lock(f"n{number}") for number in range(HOLDS)]
        self.grants = [stack.enter_context(lock) for lock in locks]
        self.reader = threading.Thread(target=self.read_on)
        self.reader.start()
        stack.callback(self.stop)

    def read_keys(self) -> None:
        """Keys that do not exist, a hundred at a time."""
        for first in range(0, self.others, 100):
            some = range(first, min(first + 100, self.others))
            self.redis.socket.sendall(b"".join(b"*2\r\n$3\r\nGET\r\n$9\r\no%08d\r\n" % key for key in some))
            for _ in some:
                self.redis.read()

    def read_on(self) -> None:
        while not self.over.is_set():
            self.read_keys()

    def stop(self) -> None:
        self.over.set()
        self.reader.join()

    def renewed(self) -> int:
        return int(self.client.stats()["renewed"])

    def commands(self) -> int:
        stats = fields(self.server("INFO", "commandstats"))
        calls = (stats.get(f"cmdstat_{name}", "calls=0") for name in COUNTED)
        return sum(int(each.split(",")[0].removeprefix("calls=")) for each in calls)


def play(name: str, table: int, others: int) -> float:
    with ExitStack() as stack:
        sides = [Side(table, others, tracking, stack) for tracking in (False, True)]
        begun = time.monotonic()
        commands, renewed = ([count(side) for side in sides] for count in (Side.commands, Side.renewed))
        while sides[0].renewed() < renewed[0] + ROUNDS * HOLDS:
            time.sleep(0.005)
        took = time.monotonic() - begun
        commands = [side.commands() - before for side, before in zip(sides, commands, strict=True)]
        renewed = [side.renewed() - before for side, before in zip(sides, renewed, strict=True)]
        held = sum(grant.held for grant in sides[1].grants)
        rates = " | ".join(f"{count / took:.0f}" for count in (*commands, *renewed))
        print(f"| {name} | {others} | {rates} | {held} |", flush=True)
        return commands[1] / commands[0]


def main() -> None:
    print(
        "| table | tracked by others | commands/s without tracking | with | renewals/s without | with | held |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|", flush=True)
    worst = max(play(*row) for row in ROWS)
    print(f"tracking: rows={len(ROWS)} worst={worst:.2f}")


if __name__ == "__main__":
    main()
