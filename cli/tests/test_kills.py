"""Many runs of one lock while tool, command and server are killed at random.

REDLATCH_RUNS=500 makes the campaign longer, a quarter of an hour; REDLATCH_SEED repeats its choices.
"""

from __future__ import annotations

import fcntl
import os
import queue
import random
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from conftest import LIMIT, PROGRAM
from server import Server, eventually

RUNS = int(os.environ.get("REDLATCH_RUNS", "24"))
LEASE = 10.0
"""Seconds. A killed server is back much earlier, so no hold ends with its lease while its command runs."""
AT_ONCE = 4

# The command takes a lock of the kernel, which ends with the process however that ends: so it
# finds an overlap by itself. Then it says that it is inside, and waits for its end or its turn.
COMMAND = """
import fcntl, os, sys
inside = open("inside", "r+")
try:
    fcntl.flock(inside, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    open("overlap", "a").write(f"{os.getpid()}\\n")
print("inside", os.getpid(), flush=True)
sys.stdin.read()
"""


class Campaign:
    def __init__(self, server: Server, folder: Path, seed: int) -> None:
        self.server = server
        self.folder = folder
        self.random = random.Random(seed)
        self.done = {"tool": 0, "command": 0, "server": 0, "nothing": 0}
        self.turn = threading.Lock()
        self.wanted: queue.Queue[None] = queue.Queue()

    def play(self) -> None:
        """The thread that starts a server has to live as long as it, so this one restarts it."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            runs = [pool.submit(self.run, number) for number in range(RUNS)]
            while not all(run.done() for run in runs):
                with suppress(queue.Empty):
                    self.wanted.get(timeout=0.05)
                    try:
                        self.server.restart()
                    finally:
                        self.wanted.task_done()
        for run in runs:
            run.result()

    def run(self, number: int) -> None:
        words = ["run", "-o", f"watchdog_lease={LEASE:.0f}s", "-o", "outage=1min", "campaign", sys.executable]
        process = subprocess.Popen(
            [PROGRAM, *words, "-c", COMMAND],
            cwd=self.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            said = process.stdout.readline().split()
            # A server that is killed while it is asked may refuse this run: then it is over.
            command = int(said[1]) if said else None
            self.strike(process, command, number)
            _, errors = process.communicate(timeout=LIMIT)
            expected = {0, 69, -signal.SIGKILL, 128 + signal.SIGKILL}
            assert process.returncode in expected, (process.returncode, errors)
        finally:
            process.kill()
            process.communicate()

    def strike(self, process: subprocess.Popen[str], command: int | None, number: int) -> None:
        with self.turn:
            # A killed tool leaves the lock for a lease, so that is rare.
            rest = ["command"] * 4 + ["server"] * 3 + ["nothing"] * 4
            victim = "tool" if number % 12 == 5 else self.random.choice(rest)
            if command is None:
                victim = "nothing"
            self.done[victim] += 1
            if victim == "tool":
                process.kill()
            elif victim == "command":
                with suppress(ProcessLookupError):
                    os.kill(command or 0, signal.SIGKILL)
            elif victim == "server":
                self.wanted.put(None)
                self.wanted.join()


# Each killed tool leaves the lock for a lease.
@pytest.mark.timeout(300 + 3 * RUNS)
@pytest.mark.parametrize("seed", [int(os.environ.get("REDLATCH_SEED", "1"))])
def test_no_kill_lets_two_commands_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    # Every write is on disk before it is answered, so a killed server forgets no lock.
    with Server("", "--appendonly", "yes", "--appendfsync", "always") as server:
        monkeypatch.setenv("REDLATCH_URL", server.url)
        inside = tmp_path / "inside"
        inside.touch()
        campaign = Campaign(server, tmp_path, seed)
        campaign.play()
        print(f"kills: runs={RUNS}", *(f"{who}={times}" for who, times in campaign.done.items()))
        assert not (tmp_path / "overlap").exists()
        assert all(campaign.done.values())
        with inside.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # no command is left
        eventually(lambda: not server("EXISTS", "campaign"), "the last lease ends", LIMIT)
