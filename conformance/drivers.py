"""The drivers: how each is started, and how one talks to it."""

import itertools
import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts" / "lib"))
from server import send

# The seconds that a server has for a try that does not wait.
TRY = 1.0


@dataclass(frozen=True)
class Side:
    """One that takes locks: a face of redlatch, or somebody else. Several may live in one driver program."""

    name: str
    command: tuple[str, ...]
    # The owner of the lock's code; and the kinds of lock, for those that have only some.
    family: str = "redlatch"
    kinds: tuple[str, ...] = ()
    # Not everybody else's lock can do this.
    waits: bool = True
    renews: bool = False
    forces: bool = False
    # A semaphore gives it several permits at once.
    takes_many: bool = True

    @property
    def ours(self) -> bool:
        return self.family == "redlatch"


def begin(command: Sequence[str], stderr: int | None = None) -> subprocess.Popen[str]:
    """Starts a program of ours, to talk to it by lines."""
    # The server comes first: on a busy machine a driver may wait, the server that all share may not.
    return subprocess.Popen(
        ["nice", "-n", "5", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        encoding="utf-8",
    )


class Driver:
    """A running driver program. Requests go out by line, replies come back in any order. `told` takes what answers none."""

    def __init__(self, command: tuple[str, ...], told: Callable[[dict], object] = lambda _: None) -> None:
        self.told = told
        self.ids = itertools.count(1)
        self.futures: dict[int, Future[dict]] = {}
        self.tries: dict[int, tuple[float, str]] = {}  # when each was asked, and its line
        self.lock = threading.Lock()
        self.process = begin(command)
        self.outgoing: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self.listen, daemon=True).start()
        threading.Thread(target=self.talk, daemon=True).start()

    def listen(self) -> None:
        for line in self.process.stdout or ():
            reply = json.loads(line)
            if "id" not in reply:
                self.told(reply)
                continue
            with self.lock:
                number = int(reply["id"])
                future = self.futures.pop(number, None)
                asked, again = self.tries.pop(number, (0.0, ""))
                # The machine stood still for longer than a try has: that says nothing of the lock, so it is asked once more.
                if again and reply["status"] == "unavailable" and time.monotonic() - asked >= TRY and future:
                    self.futures[number] = future
                    self.outgoing.put(again)
                    continue
            if future is not None:
                future.set_result(reply)
        with self.lock:
            left, self.futures = list(self.futures.values()), {}
        for future in left:
            future.set_result({"status": "gone"})

    def talk(self) -> None:
        """A stopped driver does not read: only this thread may wait for it."""
        stdin = self.process.stdin
        while stdin and (line := self.outgoing.get()) is not None:
            try:
                stdin.write(line)
                stdin.flush()
            except OSError:
                return

    def ask(self, **request: object) -> tuple[int, Future[dict]]:
        number, future = next(self.ids), Future[dict]()
        line = json.dumps({"id": number, **request}, ensure_ascii=False) + "\n"
        with self.lock:
            self.futures[number] = future
            if request.get("wait_ms") == 0 and request["op"] != "turn":
                self.tries[number] = time.monotonic(), line
        self.outgoing.put(line)
        return number, future

    def signal(self, name: str) -> None:
        send(self.process, name)

    def close(self) -> None:
        self.outgoing.put(None)
        self.process.kill()
        self.process.wait()
