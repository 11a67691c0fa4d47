"""The soak of the lock of a quorum: soak.py with the model `quorum`.

The callers are those of multi_soak.py, and take one name each. Each worker has a proxy before each server. Besides the faults of
the network, servers stand still, come back empty, and forget keys, one, two or all of them.
"""

from __future__ import annotations

import time
from typing import Any

from multi_soak import LockCaller
from permit_soak import Caller, DrivenSoak, PermitWorker
from server import Quorum
from soaking import LEASE_MS, OTHER, SELDOM, Deletion, Worker
from topologies import quorum_url
from world import Redis, Server

NAMES = [f"vote{number}" for number in range(4)]
# For how long a server that came back empty has no vote: a lock that it has forgotten is over by then.
DELAY_MS = LEASE_MS
STOP, RESTART = "server stop", "server restart"


class QuorumCaller(LockCaller):
    def pick(self) -> str:
        return self.random.choice(NAMES)


class QuorumWorker(PermitWorker):
    @property
    def caller(self) -> type[Caller]:
        return QuorumCaller

    @property
    def plan(self) -> dict[str, Any]:
        url = quorum_url(self.ports)
        return {"url": url, "watchdog_ms": LEASE_MS, "restart_delay_ms": DELAY_MS}


class QuorumSoak(DrivenSoak):
    worker = QuorumWorker
    lingers_ms = LEASE_MS
    other = (*OTHER, STOP)
    seldom = (*SELDOM, RESTART, RESTART)

    def start_servers(self) -> None:
        self.quorum = Quorum()
        self.servers = self.quorum.data
        self.quorum.wait_for_votes(DELAY_MS / 1000)
        self.stopped: list[Server] = []

    def open_ways(self) -> list[int]:
        """Clients wait for servers in the order of their addresses, and the proxy gives that of the servers to its ports."""
        return [int(port) for port in self.proxies("open", *(server.port for server in self.servers))]

    def make(self, kind: str, worker: Worker, port: int) -> None:
        awake = [server for server in self.servers if server not in self.stopped]
        self.random.shuffle(awake)
        if kind in ("delete", "flushall"):
            self.forget(kind, awake[: self.random.choice([1, 1, 2, 3])])
        elif kind == STOP and awake:
            self.stop(awake[0])
        elif kind == RESTART and awake:
            awake[0].restart()
        elif kind in ("client kill", "pause", "script flush"):
            for server in awake[:1]:
                server(*self.of_server(kind))
        else:
            super().make(kind, worker, port)

    def stop(self, server: Server) -> None:
        self.stopped.append(server)
        server.signal("STOP")

        def go_on() -> None:
            server.signal("CONT")
            self.stopped.remove(server)

        self.later(self.while_away(), go_on)

    def forget(self, kind: str, servers: list[Server]) -> None:
        """Only a lock that all servers forget is lost for sure."""
        name = self.random.choice(NAMES) if kind == "delete" else None
        called = time.monotonic_ns()
        for server in servers:
            server(*(["DEL", name] if name else ["FLUSHALL"]))
        weak = len(servers) < len(self.servers)
        self.deletions.append((name, Deletion(called, time.monotonic_ns(), weak)))

    def connections(self) -> list[Redis]:
        return self.servers  # type: ignore[return-value]

    def stop_servers(self) -> None:
        self.quorum.close()
