"""The drivers: how each is started, and how one talks to it."""

import itertools
import json
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass


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
    """A running driver program. Requests go out by line, replies come back in any order."""

    def __init__(self, command: tuple[str, ...]) -> None:
        self.ids = itertools.count(1)
        self.futures: dict[int, Future[dict]] = {}
        self.lock = threading.Lock()
        self.process = begin(command)
        self.outgoing: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self.listen, daemon=True).start()
        threading.Thread(target=self.talk, daemon=True).start()

    def listen(self) -> None:
        for line in self.process.stdout or ():
            reply = json.loads(line)
            with self.lock:
                future = self.futures.pop(int(reply["id"]), None)
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
        with self.lock:
            self.futures[number] = future
        self.outgoing.put(json.dumps({"id": number, **request}, ensure_ascii=False) + "\n")
        return number, future

    def signal(self, name: str) -> None:
        os.kill(self.process.pid, getattr(signal, f"SIG{name}"))

    def close(self) -> None:
        self.outgoing.put(None)
        self.process.kill()
        self.process.wait()
