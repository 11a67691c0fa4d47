"""Instructions per pair, counted by valgrind: what does not depend on how fast or how busy a machine is."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from machine import Redis, Server, find_server

# The least that shares locks with Redisson: its hash and its channel, without its latch.
REDISSON_ACQUIRE = """
if redis.call('exists', KEYS[1]) == 0 or redis.call('hexists', KEYS[1], ARGV[2]) == 1 then
  redis.call('hincrby', KEYS[1], ARGV[2], 1) redis.call('pexpire', KEYS[1], ARGV[1]) return nil
end
return redis.call('pttl', KEYS[1])"""
REDISSON_RELEASE = """
if redis.call('hexists', KEYS[1], ARGV[2]) == 0 then return nil end
local c = redis.call('hincrby', KEYS[1], ARGV[2], -1)
if c > 0 then redis.call('pexpire', KEYS[1], ARGV[1]) return 0 end
redis.call('del', KEYS[1]) redis.call('publish', KEYS[2], '0') return 1"""


def totals(folder: Path, thread: str = "") -> int:
    """The instructions of all processes that have left a file there, or of their threads with this number."""
    return sum(
        int(line.split()[1])
        for file in folder.glob(f"callgrind.*-{thread}" if thread else "callgrind.*")
        for line in file.read_text().splitlines()
        if line.startswith("totals:")
    )


def per_pair(counted: Callable[[int, Path], None], few: int, many: int, thread: str = "") -> float:
    """The cost of one more pair, so that start and end do not count."""
    counts = []
    for pairs in (few, many):
        with tempfile.TemporaryDirectory(prefix="redlatch-instructions-") as folder:
            counted(pairs, Path(folder))
            counts.append(totals(Path(folder), thread))
    return (counts[1] - counts[0]) / (many - few)


def valgrind(folder: Path) -> list[str]:
    return ["valgrind", "-q", "--tool=callgrind", f"--callgrind-out-file={folder}/callgrind.%p"]


def of_client(command: Sequence[str], few: int = 100, many: int = 300, thread: str = "") -> float:
    """Counts a program that runs W1 for `--pairs`, or one of its threads: valgrind numbers them from `01` on."""
    separate = ["--separate-threads=yes"] if thread else []

    def counted(pairs: int, folder: Path) -> None:
        with Server() as server:
            words = ["--workload", "W1", "--warmup", "0", "--url", server.url, "--pairs", str(pairs)]
            subprocess.run(
                [*valgrind(folder), *separate, *command, *words], check=True, stdout=subprocess.DEVNULL
            )

    return per_pair(counted, few, many, thread)


def of_server(pairs_on: Callable[[Server, int], None], few: int = 100, many: int = 300) -> float:
    """Instructions of the server while somebody does that many pairs."""

    def counted(pairs: int, folder: Path) -> None:
        program = folder / "server"
        program.write_text(f'#!/bin/sh\nexec {" ".join(valgrind(folder))} {find_server()} "$@"\n')
        program.chmod(0o755)
        with Server(str(program), "--hz", "1") as server:
            pairs_on(server, pairs)
            # It writes its file when it ends by itself.
            server.process.terminate()
            server.process.wait(60)

    return per_pair(counted, few, many)


def by(command: Sequence[str], slow_clock: str = "") -> Callable[[Server, int], None]:
    """The pairs of a program that runs W1 for `--pairs`, with the library of that clock loaded."""

    def pairs_on(server: Server, pairs: int) -> None:
        words = ["--workload", "W1", "--warmup", "0", "--url", server.url, "--pairs", str(pairs)]
        environment = os.environ | ({"LD_PRELOAD": slow_clock} if slow_clock else {})
        subprocess.run([*command, *words], check=True, stdout=subprocess.DEVNULL, env=environment)

    return pairs_on


def of_server_as_quick_as_ever(command: Sequence[str]) -> float:
    """The same of the server, for a client that must not notice that valgrind makes it slow."""
    with tempfile.TemporaryDirectory(prefix="redlatch-instructions-") as folder:
        library = f"{folder}/slow_clock.so"
        source = str(Path(__file__).parent / "c" / "slow_clock.c")
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", source, "-o", library], check=True)
        return of_server(by(command, library))


def by_redisson_minimum(server: Server, pairs: int) -> None:
    redis = Redis(server.port, 60)
    acquire, release = (
        hashlib.sha1(script.encode()).hexdigest()
        for script in (REDISSON_ACQUIRE, REDISSON_RELEASE)
        if redis("SCRIPT", "LOAD", script)
    )
    owner = "0a1b2c3d-4e5f-4a6b-8c7d-0123456789ab:1"
    for _ in range(pairs):
        redis("EVALSHA", acquire, 1, "bench:1", 30000, owner)
        redis("EVALSHA", release, 2, "bench:1", "redisson_lock__channel:{bench:1}", 30000, owner)
    redis.close()
