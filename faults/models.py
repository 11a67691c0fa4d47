"""The models of soak.py whose callers hold something: locks, permits of semaphores, multi locks, and locks of a quorum."""

from __future__ import annotations

from typing import Any, ClassVar

from soaking import LEASE_MS, OTHER, SELDOM, Caller, Deletion, Soak, Worker, now
from topologies import quorum_url
from world import MARGIN_MS, Quorum, Redis, Server, recorded

# ---- locks ----

HOT, SHARED, COLD = 4, 4, 500


class LockCaller(Caller):
    """Most callers find their name free, some crowd at a few, some read and write at others."""

    extends, lingers, oversleeps = 3.0, 0.5, 0.1

    def wish(self) -> tuple[str, dict[str, Any]]:
        if self.chance(15):
            name = f"hot{self.random.randrange(HOT)}"
        elif self.chance(15):
            name, side = f"shared{self.random.randrange(SHARED)}", "read" if self.chance(70) else "write"
            return name + "/read" * (side == "read"), {"lock": name, "side": side}
        else:
            number = self.random.randrange(COLD)
            name = f"cold{number}"
            if number % 5 == 0:
                return name, {"lock": name, "kind": "simple"}
        return name, {"lock": name}


class LockSoak(Soak):
    caller = LockCaller
    options: ClassVar = {"fencing": True}

    def a_key(self) -> tuple[str, list[str]]:
        sort, names = self.random.choice([("hot", HOT), ("shared", SHARED)])
        name = f"{sort}{self.random.randrange(names)}"
        return name, [name]


# ---- permits ----

GPUS = [f"gpu{number}" for number in range(8)]
LIMIT = 4


class PermitCaller(Caller):
    """A name in the history ends with the permits wanted and all there are: `gpu0/2of4`."""

    def wish(self) -> tuple[str, dict[str, Any]]:
        name, permits = self.random.choice(GPUS), self.random.choice([1, 1, 2, 3])
        return f"{name}/{permits}of{LIMIT}", {"lock": name, "permits": permits, "limit": LIMIT}


class PermitSoak(Soak):
    caller = PermitCaller
    margin_ms = MARGIN_MS

    def a_key(self) -> tuple[str, list[str]]:
        name = self.random.choice(GPUS)
        return name, [name, f"{{{name}}}:timeout"]

    def left(self) -> list[str]:
        wrong = []
        for name in GPUS:
            free, taken, kept, _ = recorded(self.redis, name)
            if kept or free + taken not in (0, LIMIT):
                wrong.append(f"{name}: {free} are free and {taken} taken")
        return wrong


# ---- multi locks ----

PARTS = [f"part{number}" for number in range(8)]


class MultiCaller(Caller):
    """One, two or three of a few names at once, in any order. Commas separate them in the history: the checkers judge each
    name by itself, and the tries of all of them."""

    def wish(self) -> tuple[str, dict[str, Any]]:
        names = ",".join(self.random.sample(PARTS, self.random.choice([1, 2, 2, 3])))
        return names, {"lock": names} | ({"multi": True} if "," in names else {})


class MultiSoak(Soak):
    caller = MultiCaller

    def a_key(self) -> tuple[str, list[str]]:
        name = self.random.choice(PARTS)
        return name, [name]


# ---- the lock of a quorum ----

VOTES = [f"vote{number}" for number in range(4)]
# For how long a server that came back empty has no vote: a lock that it has forgotten is over by then.
DELAY_MS = LEASE_MS
STOP, RESTART = "server stop", "server restart"


class QuorumCaller(Caller):
    def wish(self) -> tuple[str, dict[str, Any]]:
        name = self.random.choice(VOTES)
        return name, {"lock": name}


class QuorumSoak(Soak):
    """Each worker has a proxy before each server. Besides the faults of the network, servers stand still, come back empty, and
    forget keys, one, two or all of them."""

    caller = QuorumCaller
    lingers_ms = LEASE_MS
    other = (*OTHER, STOP)
    seldom = (*SELDOM, RESTART, RESTART)
    options: ClassVar = {"restart_delay_ms": DELAY_MS}

    def start_servers(self) -> None:
        self.quorum = Quorum()
        self.servers = self.quorum.data
        self.quorum.wait_for_votes(DELAY_MS / 1000)
        self.stopped: list[Server] = []

    def open_ways(self) -> list[int]:
        """Clients wait for servers in the order of their addresses, and the proxy gives that of the servers to its ports."""
        return [int(port) for port in self.proxies("open", *(server.port for server in self.servers))]

    def plan(self, ports: list[int]) -> dict[str, Any]:
        return super().plan(ports) | {"url": quorum_url(ports)}

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
        name = self.random.choice(VOTES) if kind == "delete" else None
        called = now()
        for server in servers:
            server(*(["DEL", name] if name else ["FLUSHALL"]))
        weak = len(servers) < len(self.servers)
        self.deletions.append((name, Deletion(called, now(), weak)))

    def connections(self) -> list[Redis]:
        return self.servers  # type: ignore[return-value]

    def stop_servers(self) -> None:
        self.quorum.close()
