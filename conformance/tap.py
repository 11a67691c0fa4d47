"""The ground that rows are played on: a deployment, and a tap on what its primaries are sent."""

import contextlib
import re
import threading
import time

from server import TOPOLOGIES, Deployment, Redis

# Lookups inside scripts are not kept: some programs ask for a lock that they cannot get thousands of times a second.
LOOKS = re.compile(
    r'^[0-9.]+ \[[0-9]+ lua\] "(?:lindex|zscore|exists|hexists|pttl|hmget|lpos|hlen|hget|get|time|type)"',
    re.IGNORECASE,
)


class Tap:
    """Everything that clients send, from MONITOR; commands inside scripts are marked by the server."""

    def __init__(self, ports: list[int]) -> None:
        self.lines: list[str] = []
        self.asking = [Redis(port) for port in ports]
        for port in ports:
            monitor = Redis(port)
            monitor("MONITOR")
            threading.Thread(target=self.follow, args=(monitor,), daemon=True).start()

    def follow(self, monitor: Redis) -> None:
        with contextlib.suppress(OSError, ValueError):
            while True:
                line = str(monitor.read())
                if not LOOKS.match(line):
                    self.lines.append(line)

    def catch_up(self) -> None:
        """Waits until everything sent before now has been seen."""
        for redis in self.asking:
            sign = f"caught-up-{time.monotonic_ns()}"
            begun = len(self.lines)
            redis("ECHO", sign)
            end = time.monotonic() + 60
            while not any(sign in line for line in self.lines[begun:]):
                if time.monotonic() > end:
                    raise OSError("the server's MONITOR fell silent")
                time.sleep(0.01)

    def about(self, name: str, since: int = 0) -> list[str]:
        # MONITOR escapes what is not printable ASCII.
        shown = "".join(
            chr(byte)
            if 32 <= byte < 127 and byte not in b'"\\'
            else {34: '\\"', 92: "\\\\", 9: "\\t"}.get(byte, f"\\x{byte:02x}")
            for byte in name.encode()
        )
        return [line for line in self.lines[since:] if shown in line]


class Ground:
    """A deployment with connections to its nodes."""

    def __init__(self, topology: str, binary: str = "") -> None:
        self.deployment: Deployment = TOPOLOGIES[topology](binary)
        self.topology = topology
        # A replica is sent by its primary what that was sent.
        primaries = [node for node in self.deployment.nodes if node("ROLE")[0] == "master"]
        self.tap = Tap([node.port for node in primaries])
        self.connections: dict[int, Redis] = {}
        self.ports: dict[str, int] = {}

    def ask(self, key: str, *words: str) -> object:
        """A command for the primary of the key."""
        return self.connection(self.port_of(key))(*words)

    def port_of(self, key: str) -> int:
        """The port of the key's primary, as it was when this was asked first."""
        if key not in self.ports:
            self.ports[key] = self.deployment.primary_of(key).port
        return self.ports[key]

    def connection(self, port: int) -> Redis:
        if port not in self.connections:
            self.connections[port] = Redis(port)
        return self.connections[port]

    def subscribers(self, channel: str) -> int:
        """How many connections listen, to either sort of message, on whichever node."""
        count = 0
        for node in self.deployment.nodes:
            for verb in ("NUMSUB", "SHARDNUMSUB")[: 2 if self.topology == "cluster" else 1]:
                reply = self.connection(node.port)("PUBSUB", verb, channel)
                count += reply[1] if isinstance(reply, list) else 0  # Redis 6.2 knows no shards
        return count

    def channels(self, prefix: str) -> list[str]:
        """The channels whose names begin so and that somebody listens to, on whichever node."""
        found = []
        for node in self.deployment.nodes:
            for word in ("CHANNELS", "SHARDCHANNELS")[: 2 if self.topology == "cluster" else 1]:
                reply = self.connection(node.port)("PUBSUB", word)
                found += reply if isinstance(reply, list) else []  # Redis 6.2 knows no shards
        return [channel for channel in found if channel.startswith(prefix)]

    def ear(self, channel: str, patience: float) -> Redis:
        """A connection that hears what is published on the channel."""
        ear = Redis(self.deployment.primary_of(channel).port, patience)
        ear("SUBSCRIBE", channel)
        if self.topology == "cluster":
            ear("SSUBSCRIBE", channel)
        return ear

    def signal(self, key: str, name: str) -> None:
        """To the primary of the key; a stopped one can still be told to go on."""
        port = self.port_of(key)
        next(node for node in self.deployment.nodes if node.port == port).signal(name)

    def restart(self, key: str) -> None:
        node = self.deployment.primary_of(key)
        if (old := self.connections.pop(node.port, None)) is not None:
            old.close()
        node.restart()

    def close(self) -> None:
        for redis in self.connections.values():
            redis.close()
        self.deployment.close()
