"""The server under measurement and the machine: counters, cores, priority."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from contestants import ROOT

sys.path.insert(0, str(ROOT / "scripts" / "lib"))
from server import Redis, Server, fields, find_server

__all__ = ["Cores", "Counters", "Measured", "Redis", "Server", "cores_in_use", "find_server", "first_in_line"]

# Commands that no contestant is charged for: greetings, set-up, and our own questions.
NOT_COUNTED = {
    *(
        "info",
        "ping",
        "hello",
        "select",
        "auth",
        "command",
        "monitor",
        "quit",
        "client",
        "flushall",
        "dbsize",
    ),
    *(
        "config|resetstat",
        "config|set",
        "config|get",
        "command|docs",
        "script|load",
        "script|flush",
        "script|exists",
    ),
    *("client|setinfo", "client|setname", "client|id", "client|list", "client|maint_notifications"),
    *("client|tracking", "client|no-evict", "client|getredir", "time", "cluster|info", "function|load"),
}


def first_in_line() -> str:
    """Puts this process and its children ahead of everybody else's, where that is allowed: on a shared machine others
    leave gaps of milliseconds in every figure. `nice` alone does not reach across sessions where the kernel groups them."""
    with contextlib.suppress(OSError):
        os.setsid()
    return "ahead of other sessions" if put_ahead("self") else "like everybody's"


def put_ahead(process: str) -> bool:
    """Does so for the session of a process."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{process}/autogroup").write_text("-19")
        return True
    return False


@dataclass(frozen=True)
class Cores:
    """On which cores the server and the clients run; none: on any."""

    server: set[int]
    clients: set[int]
    how: str

    @staticmethod
    def chosen(pin: str) -> Cores:
        """`same`: one core for both, which shows work and switches and has the least noise; `split`: the server its own."""
        count = os.cpu_count() or 1
        if count < 2 or pin == "none":
            return Cores(set(), set(), "none")
        last = count - 1
        return Cores({last}, {last} if pin == "same" else set(range(last)), pin)


@dataclass(frozen=True)
class Counters:
    """The work of the server so far."""

    at: float
    calls: dict[str, int]
    cpu: float
    connections: int
    bytes: int

    def since(self, before: Counters) -> Counters:
        calls = {name: count - before.calls.get(name, 0) for name, count in self.calls.items()}
        return Counters(
            self.at - before.at,
            {name: count for name, count in calls.items() if count > 0 and name not in NOT_COUNTED},
            self.cpu - before.cpu,
            self.connections - before.connections,
            self.bytes - before.bytes,
        )


class Measured:
    """A server of our own, on its core, with a connection for our questions."""

    def __init__(self, cores: Cores) -> None:
        self.server = Server("", "--loglevel", "warning", "--maxclients", "15000", "--tcp-backlog", "511")
        for thread in os.listdir(f"/proc/{self.server.process.pid}/task") if cores.server else []:
            os.sched_setaffinity(int(thread), cores.server)
        # It is the head of a session of its own.
        put_ahead(str(self.server.process.pid))
        self.ask = Redis(self.server.port, 30.0)
        self.url = self.server.url
        # Our questions are not to be counted either.
        self.asked = 0
        self.bytes_asked = 0
        before = self.counters().bytes
        self.bytes_asked = self.counters().bytes - before

    def __enter__(self) -> Measured:
        return self

    def __exit__(self, *_: object) -> None:
        self.ask.close()
        self.server.close()

    def counters(self) -> Counters:
        self.asked += 1
        info = fields(self.ask("INFO", "all"))
        calls = {
            name.removeprefix("cmdstat_"): int(text.split(",")[0].removeprefix("calls="))
            for name, text in info.items()
            if name.startswith("cmdstat_")
        }
        return Counters(
            time.monotonic(),
            calls,
            float(info["used_cpu_sys"]) + float(info["used_cpu_user"]),
            int(info["total_connections_received"]),
            int(info["total_net_input_bytes"])
            + int(info["total_net_output_bytes"])
            - self.asked * self.bytes_asked,
        )

    def clean(self) -> None:
        self.ask("FLUSHALL", "SYNC")
        self.ask("SCRIPT", "FLUSH", "SYNC")


def cores_in_use() -> tuple[float, float]:
    """The seconds that all cores together have worked, and now."""
    with open("/proc/stat") as file:
        ticks = [int(word) for word in file.readline().split()[1:]]
    return (sum(ticks[:3]) + sum(ticks[5:8])) / os.sysconf("SC_CLK_TCK"), time.monotonic()
