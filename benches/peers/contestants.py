"""The contestants: one entry each, and its program. ../README.md has the rules for programs.

An entry says how to count the commands that its CLIENT sends from the server's command counters, which also count what
runs inside scripts: a weight per command, 0 for those not named. Where a script runs a command that the client sends
too, the weight corrects for it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
# Where ./setup has put other people's libraries, and where scripts/build-benches has put ours.
PEERS = Path(os.environ.get("REDLATCH_PEERS") or ROOT / ".tools" / "peers")
TARGET = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target")
OURS = TARGET / "bench"

ALL = ("W1", "W2", "W3", "W4", "W5")
LOCKING = ("W1", "W2", "W3", "W4")


@dataclass(frozen=True)
class Crowd:
    """So many clients of one name, how long each is inside, and how long it is measured: for each to come several times."""

    clients: int
    inside_us: int
    seconds: float


CROWDS = {
    "C2": Crowd(2, 1000, 2),
    "C10": Crowd(10, 1000, 2),
    "C60": Crowd(60, 1000, 4),
    "C100": Crowd(100, 1000, 3),
    "C300": Crowd(300, 1000, 5),
    "C1000": Crowd(1000, 1000, 8),
    "C10L": Crowd(10, 20_000, 3),
    "C60L": Crowd(60, 20_000, 6),
}
SET_AND_SCRIPT = {"set": 1.0, "evalsha": 1.0, "eval": 1.0}
SCRIPTS = {"evalsha": 1.0, "eval": 1.0}
WAITING = {"subscribe": 1.0, "unsubscribe": 1.0}
# Redisson deletes its latch outside of the script, and the lock inside.
REDISSON = {**SCRIPTS, **WAITING, "del": 0.5}
PLAIN_PYTHON_REDIS_LOCK = {"set": 1.0, "get": 1.0, "eval": 1.0, "blpop": 1.0}


@dataclass(frozen=True)
class Contestant:
    name: str
    language: str
    # ours; peer: a library people use; floor: a lock written by hand in C; limit: a bound that is no usable lock
    role: str
    command: tuple[str, ...]
    on: tuple[str, ...] = ALL
    counted: Mapping[str, float] = field(default_factory=lambda: SET_AND_SCRIPT)
    note: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    # The data in Redis: `simple` a plain key, `redisson` Redisson's hash, `other` neither.
    wire: str = "simple"
    # Among those that a short run measures.
    quick: bool = False
    # Over so many processes at most the clients of a crowd are spread. The programs of C have one client each.
    processes: int = 1000

    def spread(self, clients: int) -> int:
        """How many processes a crowd of so many clients has: each has as many as the others."""
        return max(each for each in range(1, min(clients, self.processes) + 1) if clients % each == 0)


def floor(name: str, peer: str, on: tuple[str, ...], role: str = "floor", **more: object) -> Contestant:
    return Contestant(name, "C", role, (str(PEERS / "bin/floor"), "--peer", peer), on, **more)  # type: ignore[arg-type]


FLOORS = [
    floor("limit: BLPOP token", "blpop", (*LOCKING, *CROWDS), "limit", wire="other", quick=True,
          counted={"blpop": 1.0, "lpush": 1.0}, note="LPUSH and BLPOP, no lease: a bound"),
    floor("limit: pipelined C", "pipe", ("W2", "W5"), "limit", quick=True,
          note="one connection, commands formatted before; W5: one script per 500 locks"),
    floor("limit: pipelined C, Redisson wire", "rpipe", ("W2",), "limit", wire="redisson", counted=REDISSON,
          note="the same with the commands of Redisson 4.7"),
    floor("limit: pipelined C, Redisson minimum", "rminpipe", ("W2",), "limit", wire="redisson", quick=True,
          counted=SCRIPTS, note="the least that interoperates, without the latch"),
    floor("hiredis SET and script, poll 1 ms", "poll", LOCKING, quick=True, note="written by hand"),
    floor("hiredis with PUBLISH", "pubsub", LOCKING, counted={**SET_AND_SCRIPT, **WAITING}, note="the same, waiters subscribe"),
    floor("hiredis, Redisson 4.7 wire", "rwire", LOCKING, wire="redisson", counted=REDISSON,
          note="what compatibility on the wire costs by itself"),
    floor("hiredis, Redisson minimum", "rmin", LOCKING, wire="redisson", quick=True, counted={**SCRIPTS, **WAITING},
          note="the least that interoperates, without the latch"),
    floor("hiredis behind a local queue", "local", ("W4",), quick=True, note="one contender per process, one connection"),
]  # fmt: skip

PYTHON_PEERS = str(HERE / "python/peers.py")


def python(name: str, peer: str, venv: str = "", **more: object) -> Contestant:
    folder = f"venv-{venv}" if venv else "venv"
    command: tuple[str, ...] = (str(PEERS / folder / "bin/python"), PYTHON_PEERS, "--peer", peer)
    if venv == "aioredlock":
        command = (command[0], "-W", "ignore", *command[1:])
    return Contestant(name, "Python", "peer", command, **more)  # type: ignore[arg-type]


def node(name: str, peer: str, pipelining: bool = False, **more: object) -> Contestant:
    command = ("node", "--expose-gc", str(HERE / "node/peers.js"), "--peer", peer)
    environment = {"PEERS_NODE": str(PEERS / "node")} | ({"PEERS_AUTOPIPELINE": "1"} if pipelining else {})
    return Contestant(name, "Node", "peer", command, environment=environment, **more)  # type: ignore[arg-type]


def rust(name: str, peer: str, **more: object) -> Contestant:
    return Contestant(name, "Rust", "peer", (str(PEERS / "target/release/peers"), "--peer", peer), **more)  # type: ignore[arg-type]


def java(name: str, peer: str, on: tuple[str, ...] = ALL, **more: object) -> Contestant:
    path = f"{PEERS / 'java/bench.jar'}:{PEERS / 'java/lib/*'}"
    command = ("java", "-Xms256m", "-Xmx1g", "-cp", path, "bench.Bench", "--peer", peer)
    return Contestant(name, "Java", "peer", command, on, REDISSON, wire="redisson", **more)  # type: ignore[arg-type]


def tuned(peer: Contestant, w4_ms: int, what: str) -> list[Contestant]:
    """Two more rows with the interval between tries that suits W3 and W4 best: 1 ms, the smallest reasonable one, and
    what a sweep of 1 to 60 ms found (`run.py --poll-ms`): with shorter ones 64 waiters drown in their own tries."""
    return [
        Contestant(
            f"{peer.name}, {what} {interval} ms",
            peer.language,
            "peer",
            (*peer.command, "--poll-ms", str(interval)),
            (workload,),
            peer.counted,
            "tuned",
            peer.environment,
            peer.wire,
            True,
        )
        for workload, interval in (("W3", 1), ("W4", w4_ms))
    ]


BARE = ("W1", "W2")
PEER_LIBRARIES = [
    python("redis-py", "redispy", note="default sleep=0.1 s, parser in Python"),
    python("redis-py with hiredis", "redispy", "hiredis", on=BARE, quick=True, note="parser in C"),
    *tuned(python("redis-py", "redispy", "hiredis"), 20, "sleep"),
    python("redis-py asyncio", "redispy-aio", on=LOCKING, quick=True, note="default sleep=0.1 s"),
    python("redis-py asyncio with hiredis", "redispy-aio", "hiredis", on=BARE, quick=True, note="parser in C"),
    *tuned(python("redis-py asyncio", "redispy-aio", "hiredis"), 10, "sleep"),
    python("python-redis-lock", "prl", on=LOCKING, counted=PLAIN_PYTHON_REDIS_LOCK, note="woken by BLPOP; auto_renewal=False"),
    python("python-redis-lock with hiredis", "prl", "hiredis", on=LOCKING, quick=True, counted=PLAIN_PYTHON_REDIS_LOCK,
           note="parser in C; has no interval"),
    python("python-redis-lock, auto_renewal", "prl-renew", counted=PLAIN_PYTHON_REDIS_LOCK, note="a thread per held lock"),
    python("pottery Redlock", "pottery", on=LOCKING, note="tries again after 0 to 200 ms"),
    *tuned(python("pottery Redlock", "pottery", "hiredis"), 60, "mean retry"),
    python("pottery AIORedlock", "pottery-aio", on=LOCKING, note="tries again after 0 to 200 ms"),
    *tuned(python("pottery AIORedlock", "pottery-aio", "hiredis"), 50, "mean retry"),
    python("redlock-py", "redlock-py", on=LOCKING, note="retry_delay=0.2 s, 3 tries; EVAL with the whole script"),
    *tuned(python("redlock-py", "redlock-py"), 50, "retry"),
    python("aioredlock (Python 3.9)", "aioredlock", "aioredlock", counted=SCRIPTS, note="on aioredis 1.3.1; a watchdog per lock"),
    *tuned(python("aioredlock (Python 3.9)", "aioredlock", "aioredlock", counted=SCRIPTS), 60, "mean retry"),
    node("redlock 4.2", "redlock4", on=LOCKING, quick=True, counted=SCRIPTS, note="npm's latest; retryDelay 200 ±100 ms, 10 tries"),
    node("redlock 4.2, autopipelining", "redlock4", True, on=BARE, quick=True, counted=SCRIPTS, note="ioredis enableAutoPipelining"),
    *tuned(node("redlock 4.2", "redlock4", counted=SCRIPTS), 2, "retry"),
    node("@sesamecare-oss/redlock 1.4", "redlock5", counted=SCRIPTS, note="retryDelay 200 ±100 ms, 10 tries"),
    *tuned(node("@sesamecare-oss/redlock 1.4", "redlock5", counted=SCRIPTS), 2, "retry"),
    node("redis-semaphore", "redis-semaphore", quick=True, note="retryInterval 10 ms"),
    node("redis-semaphore, autopipelining", "redis-semaphore", True, on=BARE, quick=True, note="ioredis enableAutoPipelining"),
    *tuned(node("redis-semaphore", "redis-semaphore"), 2, "retry"),
    node("simple-redis-mutex", "simple-redis-mutex", on=LOCKING, quick=True, counted={**SET_AND_SCRIPT, "incr": 1.0, "subscribe": 1.0},
         note="woken by PUBLISH, tries every 10 s besides"),
    *tuned(node("simple-redis-mutex", "simple-redis-mutex", counted={**SET_AND_SCRIPT, "incr": 1.0, "subscribe": 1.0}), 1, "poll"),
    node("node-redis-warlock", "warlock", on=LOCKING, note="optimistic(4 tries, 1000 ms), as its README has it"),
    *tuned(node("node-redis-warlock", "warlock"), 5, "wait"),
    rust("rslock", "rslock", quick=True, note="tries again after 0 to 200 ms; a failed try costs two commands"),
    *tuned(rust("rslock", "rslock"), 10, "mean retry"),
    rust("redlock (Rust) 2.0", "redlock-rs", on=LOCKING, note="a connection per command"),
    *tuned(rust("redlock (Rust) 2.0", "redlock-rs"), 30, "mean retry"),
    rust("distributed-lock-redis", "dlr", quick=True, note="acquire() never waits: the harness tries every 100 ms"),
    *tuned(rust("distributed-lock-redis", "dlr"), 1, "harness retry"),
    rust("redis-lock lock_across", "redis-lock", on=LOCKING, note="its defaults: lease 10 ms, retry 100 ms"),
    *tuned(rust("redis-lock lock_across, lease 30 s", "redis-lock"), 10, "retry"),
    java("Redisson RLock", "rlock", quick=True, note="woken by pub/sub, watchdog"),
    java("Redisson FairLock", "fair", ("W1", "W3", "W4"), note="getFairLock"),
    java("Redisson SpinLock", "spin", ("W1", "W3", "W4"), note="getSpinLock: tries less and less often"),
]  # fmt: skip

OUR_COUNTED = {**SCRIPTS, **WAITING}
OUR_PYTHON = (str(ROOT / ".tools/venv/bin/python"), str(ROOT / "benches/python/bench.py"), "--peer")
OUR_PROGRAMS = {
    "Rust": ("Rust", (str(TARGET / "release/redlatch-bench"), "--peer", "async")),
    "Rust blocking": ("Rust", (str(TARGET / "release/redlatch-bench"), "--peer", "blocking")),
    "C": ("C", (str(OURS / "bench_c"),)),
    "Python": ("Python", (*OUR_PYTHON, "threads")),
    "asyncio": ("Python", (*OUR_PYTHON, "aio")),
    "Node": ("Node", ("node", "--expose-gc", str(OURS / "node/bench.mjs"))),
}


def ours(face: str, kind: str) -> Contestant:
    language, command = OUR_PROGRAMS[face]
    return Contestant(
        f"redlatch {face}, {kind}",
        language,
        "ours",
        (*command, "--kind", kind),
        counted=OUR_COUNTED,
        environment={"PYTHONPATH": str(OURS / "python")},
        wire="simple" if kind == "simple" else "redisson",
        quick=True,
    )


OUR_FACES = [
    # W5 measures the same for both kinds: once is enough.
    replace(each, on=LOCKING) if each.wire == "simple" else each
    for each in (ours(face, kind) for kind in ("simple", "reentrant") for face in OUR_PROGRAMS)
]
# W1 while another thread of the program computes: what the interpreter's lock costs.
BUSY = [
    *(
        replace(each, name=f"{each.name}{suffix}", command=(*each.command, *more), on=("W1B",), quick=True)
        for each in (
            ours("Python", "simple"),
            ours("Python", "reentrant"),
            python("redis-py with hiredis", "redispy", "hiredis"),
        )
        for suffix, more in (("", ()), (", busy", ("--busy",)))
    )
]

# Semaphores of eight permits, of which each caller takes one.
PERMITS = ("--limit", "8")
# It releases by a command that its script for acquiring does not use.
SCRIPT_AND_ZREM = {**SCRIPTS, "zrem": 1.0}
SEMAPHORES = [
    *(
        replace(each, command=(*each.command, *PERMITS), on=("S1", "S4", "S5"))
        for each in (ours(face, "semaphore") for face in ("Rust", "Rust blocking", "Node"))
    ),
    node(
        "redis-semaphore Semaphore",
        "semaphore",
        on=("S1", "S4", "S5"),
        quick=True,
        counted=SCRIPT_AND_ZREM,
        note="retryInterval 10 ms",
    ),
    Contestant(
        "redis-semaphore Semaphore, retry 2 ms",
        "Node",
        "peer",
        (*node("", "semaphore").command, "--poll-ms", "2"),
        ("S4",),
        SCRIPT_AND_ZREM,
        note="tuned",
        environment={"PEERS_NODE": str(PEERS / "node")},
        quick=True,
    ),
    replace(
        java("Redisson RPermitExpirableSemaphore", "permits", ("S1", "S4", "S5"), quick=True),
        counted={**SCRIPTS, **WAITING},
        note="woken by pub/sub; a fixed lease, no renewal",
    ),
]

# Plain semaphores of eight permits, beside our re-entrant lock: a floor, Redisson's, and the semaphore with leases that
# Node.js has.
PLAIN = [
    *(
        replace(each, command=(*each.command, *PERMITS), on=("P1", "P4"))
        for each in (ours(face, "plain-semaphore") for face in ("Rust", "Rust blocking", "Node"))
    ),
    *(replace(ours(face, "reentrant"), on=("P1",)) for face in ("Rust", "Rust blocking", "Node")),
    floor(
        "hiredis, RSemaphore minimum",
        "plain",
        ("P1", "P4"),
        wire="redisson",
        quick=True,
        counted={**SCRIPTS, **WAITING},
        note="a lost reply loses a permit",
    ),
    replace(
        java("Redisson RSemaphore", "plain", ("P1", "P4"), quick=True),
        counted={**SCRIPTS, **WAITING},
        note="woken by pub/sub; a lost reply loses a permit",
    ),
    *(replace(each, on=("P1", "P4")) for each in SEMAPHORES if each.name == "redis-semaphore Semaphore"),
    *(
        replace(each, on=("P4",))
        for each in SEMAPHORES
        if each.name == "redis-semaphore Semaphore, retry 2 ms"
    ),
]

# Locks of the family, beside our re-entrant one and Redisson's of the same kind.
FAMILY = [
    *(
        replace(ours(face, kind), on=(workload,))
        for workload, kinds in (("F3", ("fair", "reentrant")), ("R1", ("read", "reentrant")))
        for kind in kinds
        for face in ("Rust", "C", "Node")
    ),
    # A lock of one name is measured beside each number of names.
    *(replace(ours(face, "reentrant"), on=("M2", "M8", "M32")) for face in ("Rust", "Rust blocking", "Node")),
    *(
        replace(each, command=(*each.command, "--names", names), on=(f"M{names}",))
        for names in ("2", "8", "32")
        for each in (
            *(ours(face, "multi") for face in ("Rust", "Rust blocking", "Node")),
            java("Redisson RedissonMultiLock", "multi", quick=True),
        )
    ),
    java("Redisson RFairLock", "fair", ("F3",), quick=True),
    java("Redisson RReadWriteLock, read", "read", ("R1",), quick=True),
]

# A crowd at one name. An interpreter for each client is too much for a small machine, and so is a JVM.
CROWD = [
    replace(each, on=tuple(CROWDS))
    for each in (
        *(
            replace(ours("C", kind), command=(*OUR_PROGRAMS["C"][1], "--kind", kind, "--limit", "1"))
            for kind in ("semaphore", "fair-semaphore", "plain-semaphore")
        ),
        *(ours("C", kind) for kind in ("fair", "simple", "reentrant", "write")),
        python("redis-py", "redispy", note="default sleep=0.1 s", processes=4),
        node(
            "redlock 4.2", "redlock4", counted=SCRIPTS, note="retryDelay 200 ±100 ms, 10 tries", processes=4
        ),
        java("Redisson RLock", "rlock", note="clients share the threads of two JVMs", processes=2),
    )
]

# The same npm package without its binary, on the event loop and on a thread.
WASM = [
    replace(
        each, name=f"redlatch Node {how}, reentrant", environment={**each.environment, "REDLATCH_WASM": value}
    )
    for each in (ours("Node", "reentrant"),)
    for how, value in (("WebAssembly", "1"), ("WebAssembly thread", "thread"))
]

CONTESTANTS = FLOORS + PEER_LIBRARIES + OUR_FACES + WASM + BUSY + SEMAPHORES + PLAIN + FAMILY + CROWD
