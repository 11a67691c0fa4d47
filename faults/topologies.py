"""Sentinel sets and clusters whose nodes are reached through the fault proxy only: they announce its ports as theirs. And
servers that know nothing of each other, each behind a proxy."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts" / "lib"))
from server import SERVICE, SLOTS, Many, Server, eventually, fields, slot_of  # noqa: E402

# Nobody is to be taken for dead here: fail-overs are conformance/failover.py's.
PATIENT_MS = 600_000
DEBUG = ("--enable-debug-command", "yes")
BUS = 10_000


class Behind(Many):
    """Servers, each with a proxy before it."""

    def __init__(self, program: str, proxies: Callable[..., list[str]]) -> None:
        super().__init__()
        self.program, self.proxies = program, proxies
        self.all_ports: list[int] = []
        self.build(self.begin)

    def begin(self) -> None:
        raise NotImplementedError

    def place_of(self, lock: str) -> tuple[Server, int]:
        """The server that has this lock, and its proxy."""
        raise NotImplementedError

    def start(self, *options: str, **more: Any) -> Server:
        return self.add(Server(self.program, *options, **more))

    def proxy(self, *servers: Server) -> list[int]:
        """A port for each, in the order in which clients of a quorum wait for servers: that of their texts."""
        ports = [int(port) for port in self.proxies("open", *(server.port for server in servers))]
        self.all_ports += ports
        return ports

    def clear(self) -> None:
        """Ends all that the proxies do to connections."""
        for port in self.all_ports:
            self.proxies("clear", port)


class Watched(Behind):
    """A primary and a sentinel that knows it by the address of its proxy."""

    topology = "sentinel"

    def begin(self) -> None:
        self.primary = self.start(*DEBUG)
        [self.port] = self.proxy(self.primary)
        config = (
            f"sentinel monitor {SERVICE} 127.0.0.1 {self.port} 1\n"
            f"sentinel down-after-milliseconds {SERVICE} {PATIENT_MS}\n"
        )
        sentinel = self.start(config=config)
        eventually(
            lambda: "master0:" in str(sentinel("INFO", "sentinel")), "a sentinel that knows its primary"
        )
        self.url = f"redis+sentinel://{sentinel.address}/{SERVICE}"

    def place_of(self, lock: str) -> tuple[Server, int]:
        return self.primary, self.port


class Sharded(Behind):
    """Three primaries that tell clients, and each other, the addresses of their proxies."""

    topology = "cluster"

    def begin(self) -> None:
        mode = ("--cluster-enabled", "yes", "--cluster-node-timeout", str(PATIENT_MS))
        announced = ("--cluster-announce-ip", "127.0.0.1", "--cluster-require-full-coverage", "no")
        nodes = [self.start(*mode, *announced, *DEBUG, spread=BUS) for _ in range(3)]
        self.places = list(zip(nodes, self.proxy(*nodes), strict=True))
        for number, (node, port) in enumerate(self.places):
            node("CONFIG", "SET", "cluster-announce-bus-port", node.port + BUS)
            node("CONFIG", "SET", "cluster-announce-port", port)
            node("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            node("CLUSTER", "ADDSLOTS", *range(SLOTS * number // 3, SLOTS * (number + 1) // 3))
        for node, _ in self.places:
            for other, port in self.places:
                if other is not node:
                    node("CLUSTER", "MEET", "127.0.0.1", port, other.port + BUS)
        eventually(lambda: all(map(self.agrees, nodes)), "a cluster that agrees")
        self.url = f"redis+cluster://{','.join(f'127.0.0.1:{port}' for _, port in self.places)}"

    def agrees(self, node: Server) -> bool:
        told = {int(primary[1]) for _, _, primary, *_ in node("CLUSTER", "SLOTS")}
        state = fields(node("CLUSTER", "INFO"))["cluster_state"]
        return state == "ok" and told == {port for _, port in self.places}

    def place_of(self, lock: str) -> tuple[Server, int]:
        return self.places[slot_of(lock) * 3 // SLOTS]


class Separate(Behind):
    """Three servers of a quorum, in the order in which clients wait for them: that of their addresses."""

    topology = "quorum"

    def begin(self) -> None:
        self.servers = [self.start(*DEBUG) for _ in range(3)]
        self.ports = self.proxy(*self.servers)
        self.url = quorum_url(self.ports)

    def place_of(self, lock: str) -> tuple[Server, int]:
        """All of them have it; this is the first."""
        return self.servers[0], self.ports[0]


def quorum_url(ports: list[int]) -> str:
    return f"redis+quorum://{','.join(f'127.0.0.1:{port}' for port in ports)}"


# The topologies that rows of locks are played on as well.
KINDS: dict[str, type[Behind]] = {"sentinel": Watched, "cluster": Sharded}
EVERY = KINDS | {"quorum": Separate}
# How many of each are used at once.
AT_ONCE = {"sentinel": 3, "cluster": 3, "quorum": 6}


class Pool:
    """Lends a deployment to one cell after the other; one that a cell failed on is not lent again."""

    def __init__(self, binary: str, proxies: Callable[..., list[str]]) -> None:
        self.binary, self.proxies = binary, proxies
        self.idle: dict[str, queue.LifoQueue[Behind | None]] = {}
        self.all: list[Behind] = []
        self.lock = threading.Lock()
        for topology in EVERY:
            self.idle[topology] = queue.LifoQueue()
            for _ in range(AT_ONCE[topology]):
                self.idle[topology].put(None)

    @contextmanager
    def lent(self, topology: str) -> Iterator[Behind]:
        found = self.idle[topology].get()
        back: Behind | None = None
        try:
            if found is None:
                found = EVERY[topology](self.binary, self.proxies)
                with self.lock:
                    self.all.append(found)
            yield found
            found.clear()
            back = found
        finally:
            if back is None and found is not None:
                found.close()
            self.idle[topology].put(back)

    def close(self) -> None:
        for deployment in self.all:
            with suppress(OSError):
                deployment.close()
