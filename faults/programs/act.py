"""What the acts of both Python faces need: their arguments, talking to the matrix, looking at the process itself."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redlatch import LockError

# How long anything may take that has no limit of its own: only a hang reaches it.
PATIENCE = 60.0


class Failed(Exception):
    """Something is not as it has to be."""


@dataclass
class Act:
    name: str
    url: str
    lock: str
    lease: float
    size: int

    @property
    def busy(self) -> str:
        """The name that somebody else holds all the time."""
        return f"{self.lock}:busy"


def arguments() -> Act:
    name, url, lock, lease_ms, size = sys.argv[1:]
    return Act(name, url, lock, int(lease_ms) / 1000, int(size))


def say(word: str) -> None:
    print(word, flush=True)


def ready() -> None:
    """Says `ready`, and goes on when the matrix says so."""
    say("ready")
    sys.stdin.readline()


def ensure(holds: object, text: str) -> None:
    if not holds:
        raise Failed(text)


def eventually(text: str, holds: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not holds():
        ensure(time.monotonic() < end, text)
        time.sleep(0.002)


def counted(client: Any, what: str, count: int) -> None:
    """Waits until a counter of the client is there."""
    eventually(f"{what} does not reach {count}", lambda: client.stats()[what] >= count)


def renewed(client: Any, times: int) -> None:
    """Waits until the client has renewed so many times more, so that a hold is known to live on."""
    counted(client, "renewed", client.stats()["renewed"] + times)


def at_rest(client: Any) -> None:
    def rests() -> bool:
        stats = client.stats()
        return bool(stats["holds"] == 0 and stats["waiting"] == 0)

    eventually("something is still held or waited for", rests)


def say_resources(when: str) -> None:
    """Says what the process has, memory in KiB; the matrix compares."""
    lines = Path("/proc/self/status").read_text().splitlines()
    memory = next(line.split()[1] for line in lines if line.startswith("VmRSS:"))
    threads, descriptors = (len(os.listdir(f"/proc/self/{what}")) for what in ("task", "fd"))
    say(f"{when} memory={memory} threads={threads} descriptors={descriptors}")


def in_child(child: Callable[[], None]) -> None:
    """Runs it in a forked process, which leaves without running anybody's exit handlers."""
    number = os.fork()
    if not number:
        code = 1
        try:
            child()
            code = 0
        except BaseException as error:
            say(f"child {type(error).__name__}: {error}")
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])
    ensure(code == 0, f"the child ended with {code}")


def hold_the_gil(seconds: float) -> None:
    """Unlike CDLL, PyDLL keeps the GIL."""
    import ctypes

    begun = time.monotonic()
    while (left := begun + seconds - time.monotonic()) > 0:
        # usleep takes less than a second everywhere.
        ctypes.PyDLL(None).usleep(min(900_000, int(left * 1_000_000) + 1))


def main(play: Callable[[Act], None]) -> int:
    try:
        play(arguments())
    except (Failed, LockError) as error:
        say(f"failed {type(error).__name__}: {error}")
        return 1
    return 0


def shares(size: int, parts: int) -> Sequence[range]:
    """The numbers below `size` in parts of this size."""
    return [range(first, min(first + parts, size)) for first in range(0, size, parts)]
