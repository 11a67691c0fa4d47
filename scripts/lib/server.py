"""Redis-compatible servers of one's own on free loopback ports, alone or together, stopped with the program.

    with Server() as server: ...            one process, any binary, any options
    with Sentinels() as deployment: ...     a primary, two replicas, three sentinels
    with Cluster() as deployment: ...       three primaries with a replica each
    with Quorum() as deployment: ...        three servers that know nothing of each other

Each has a `url` as redlatch takes it, the `nodes` that hold data, `primary_of(key)`, and is gone after `close`.

`python server.py [--topology single|sentinel|cluster|quorum] CMD...` runs CMD with REDLATCH_URL naming such a deployment,
and `python server.py --serve` starts them for a program of another language; scripts/with-server is this.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from io import BufferedIOBase
from pathlib import Path
from types import TracebackType
from typing import IO, Any, TypeVar

STARTING = 60.0  # seconds that a busy machine may take; a quiet one takes less than one, a cluster three
SLOTS = 16384
SERVICE = "redlatch"
PR_SET_PDEATHSIG = 1
# Looked up here: between fork and exec of a program with threads nothing should be loaded.
_prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None


def find_server() -> str:
    """The server that the project's set-up has found, or one on PATH."""
    for found in (
        os.environ.get("REDLATCH_SERVER_BIN"),
        shutil.which("redis-server"),
        shutil.which("valkey-server"),
    ):
        if found and Path(found).exists():
            return found
    raise RuntimeError("no Redis server found: run `make setup`, or set REDLATCH_SERVER_BIN")


def _die_with_parent() -> None:
    """Linux ends the server with us, even when we are killed and cannot do it: with the thread that started it."""
    assert _prctl
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Ended(Exception):
    """A server ended before it answered."""


def eventually(
    holds: Callable[[], object],
    what: str,
    limit: float = STARTING,
    *,
    seen: Callable[[], object] | None = None,
) -> None:
    """Waits until `holds()`; a server that does not answer yet does not hold it. `seen`: what the error shows."""
    end, pause = time.monotonic() + limit, 0.002
    while True:
        with suppress(OSError):
            if holds():
                return
        if time.monotonic() > end:
            raise RuntimeError(f"{what}: not within {limit:.0f} s{f', but {seen()}' if seen else ''}")
        time.sleep(pause)
        pause = min(2 * pause, 0.02)


def send(process: subprocess.Popen[Any], name: str) -> None:
    """Sends a signal, and after one that stops the process waits until it stands still: on a busy machine some of its
    threads run on for milliseconds."""
    process.send_signal(getattr(signal, f"SIG{name}"))
    if name == "STOP" and hasattr(os, "waitid"):
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)


class Redis:
    """One connection, a RESP client of a few lines: every call is one command. An error reply is returned."""

    def __init__(self, place: int | Path, timeout: float | None = None, password: str = "") -> None:
        """`place`: a port on 127.0.0.1, or a Unix socket."""
        if isinstance(place, int):
            self.socket = socket.create_connection(("127.0.0.1", place), timeout=timeout or 10.0)
        else:
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.settimeout(timeout or 10.0)
            try:
                self.socket.connect(str(place))
            except OSError:
                self.socket.close()
                raise
        self.socket.settimeout(timeout)
        self.file = self.socket.makefile("rb")
        self.lock = threading.Lock()
        if password:
            self("AUTH", password)

    def __call__(self, *words: str | int) -> Any:
        parts = [str(word).encode() for word in words]
        frames = [b"$%d\r\n%s\r\n" % (len(part), part) for part in parts]
        with self.lock:
            self.socket.sendall(b"*%d\r\n" % len(parts) + b"".join(frames))
            return self.read()

    def read(self) -> Any:
        line = self.file.readline()
        if not line:
            raise ConnectionError("the server closed the connection")
        kind, rest = line[:1], line[1:-2].decode()
        if kind == b"+":
            return rest
        if kind == b"-":
            return Exception(rest)
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return None if rest == "-1" else self.file.read(int(rest) + 2)[:-2].decode(errors="replace")
        return [self.read() for _ in range(int(rest))]

    def close(self) -> None:
        with suppress(OSError):
            self.file.close()
        self.socket.close()


def ask(place: int | Path, *words: str | int, password: str = "") -> Any:
    """One command on a connection of its own."""
    redis = Redis(place, 5.0, password)
    try:
        return redis(*words)
    finally:
        redis.close()


def fields(text: object) -> dict[str, str]:
    """The `name:value` lines that INFO and CLUSTER INFO answer."""
    return dict(line.split(":", 1) for line in str(text).splitlines() if ":" in line)


def slot_of(key: str) -> int:
    """Redis' CRC16 of the key, or of its hash tag."""
    data = key.encode()
    opening = data.find(b"{")
    closing = data.find(b"}", opening + 1)
    if opening >= 0 and closing > opening + 1:
        data = data[opening + 1 : closing]
    crc = 0
    for byte in data:
        crc ^= byte << 8
        for _ in range(8):
            crc = (crc << 1 ^ 0x1021 if crc & 0x8000 else crc << 1) & 0xFFFF
    return crc % SLOTS


Self = TypeVar("Self", bound="Deployment")


class Deployment:
    """Common to all of them."""

    url: str
    topology: str

    @property
    def nodes(self) -> list[Server]:
        """The servers that hold data."""
        raise NotImplementedError

    def primary_of(self, key: str) -> Server:
        """The one that takes writes of this key now."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    @property
    def binary(self) -> str:
        return self.nodes[0].binary

    def version(self) -> str:
        info = fields(self.nodes[0]("INFO", "server"))
        if "valkey_version" in info:
            return f"valkey {info['valkey_version']}"
        return f"redis {info['redis_version']}"

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Server(Deployment):
    """One process. A port that somebody else took before the server could is exchanged for another."""

    topology = "single"

    def __init__(
        self,
        binary: str = "",
        *options: str,
        port: int = 0,
        spread: int = 0,
        config: str = "",
        password: str = "",
    ) -> None:
        """`spread`: the port that far above must be free too (a cluster's bus). `config`: text of a file, for Sentinel."""
        self._binary = binary or find_server()
        self._config, self.password = config, password
        self._options = (
            (*options, "--requirepass", password, "--masterauth", password) if password else options
        )
        self.folder = Path(tempfile.mkdtemp(prefix="redlatch-server-"))
        for _ in range(5):
            self.port = port or free_port(spread)
            with suppress(Ended):
                self._start_once()
                break
        else:
            log = (self.folder / "log").read_text(errors="replace")
            self.close()
            raise RuntimeError(f"{self._binary} does not start:\n{log}")

    def start(self) -> None:
        """Starts it again on its port and waits until it answers. A connection that another program made meanwhile may
        have that port for a moment: then the server ends."""
        end = time.monotonic() + STARTING
        while True:
            try:
                return self._start_once()
            except Ended:
                if time.monotonic() > end:
                    raise
            time.sleep(0.05)

    def _start_once(self) -> None:
        """`Ended` if it ends instead of answering."""
        where = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
        if isinstance(self.place, Path):
            where += ["--unixsocket", str(self.place)]
        command = [self._binary, *where, "--save", "", "--appendonly", "no", *self._options]
        if self._config:
            file = self.folder / "sentinel.conf"
            where = [
                f"port {self.port}",
                "bind 127.0.0.1",
                f"dir {self.folder}",
                f"unixsocket {self.unix_socket}",
                *([f"requirepass {self.password}"] if self.password else []),
            ]
            file.write_text("\n".join([*where, self._config]))
            command = [self._binary, str(file), "--sentinel"]
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # A Ctrl-C in the terminal is for the program that uses the server; we end the server after it.
                start_new_session=True,
                preexec_fn=_die_with_parent if _prctl else None,
            )
        eventually(self._answers, f"{self._binary} on port {self.port}")

    def _answers(self) -> bool:
        if self.process.poll() is not None:
            raise Ended
        # Another server may have taken the port since it was found free, and answers there while ours has not yet noticed.
        # The Unix socket is ours alone, and a server opens it only after it got its port.
        answer = ask(self.place, "PING")
        return answer == "PONG" or str(answer).startswith("NOAUTH")

    def __call__(self, *words: str | int) -> Any:
        return ask(self.port, *words, password=self.password)

    @property
    def unix_socket(self) -> Path:
        return self.folder / "socket"

    @property
    def place(self) -> Path | int:
        """Where it is asked when it starts. Windows has no Unix sockets."""
        return self.unix_socket if hasattr(socket, "AF_UNIX") else self.port

    @property
    def url(self) -> str:  # type: ignore[override]
        return f"redis://127.0.0.1:{self.port}"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def binary(self) -> str:
        return self._binary

    @property
    def nodes(self) -> list[Server]:
        return [self]

    def primary_of(self, key: str) -> Server:
        return self

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def signal(self, name: str) -> None:
        send(self.process, name)

    def kill(self) -> None:
        """As a crash does: `kill -9`, and waits until it is gone."""
        self.process.kill()
        self.process.wait()

    def restart(self) -> None:
        self.kill()
        self.start()

    def close(self) -> None:
        if hasattr(self, "process"):
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def free_port(spread: int = 0) -> int:
    """A port that nobody has, and the one `spread` above it neither. Below the ones that the kernel gives away."""
    while True:
        port = random.randint(11000, 21000) if spread else 0
        with suppress(OSError), socket.create_server(("127.0.0.1", port)) as probe:
            port = int(probe.getsockname()[1])
            if not spread:
                return port
            with socket.create_server(("127.0.0.1", port + spread)):
                return port


class Many(Deployment):
    """Several processes: those started are stopped even if the next one does not start."""

    def __init__(self) -> None:
        self.processes: list[Server] = []

    def add(self, server: Server) -> Server:
        self.processes.append(server)
        return server

    def build(self, steps: Callable[[], None]) -> None:
        try:
            steps()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        # Sentinels first: they would make a replica of whatever other server starts at a port that has just become free.
        for server in reversed(self.processes):
            server.close()


REPLICATING = [
    "--repl-diskless-sync",
    "yes",
    "--repl-diskless-sync-delay",
    "0",
    "--repl-ping-replica-period",
    "1",
]


class Replicated(Many):
    """A primary with replicas, `url` naming the primary; nobody fails over."""

    topology = "single"

    def __init__(self, binary: str = "", *options: str, replicas: int = 2, password: str = "") -> None:
        super().__init__()
        self.options, self.replicas, self.password = (*REPLICATING, *options), replicas, password
        self.build(lambda: self._replicate(binary))

    def _replicate(self, binary: str) -> None:
        primary = self.add(Server(binary, *self.options, password=self.password))
        self.data = [primary]
        for _ in range(self.replicas):
            following = ("--replicaof", "127.0.0.1", str(primary.port))
            self.data.append(self.add(Server(binary, *self.options, *following, password=self.password)))

        def seen() -> list[str]:
            return [str(server("INFO", "replication")) for server in self.data]

        eventually(lambda: seen()[0].count("state=online") == self.replicas, "replicas in step", seen=seen)
        self.url = primary.url

    @property
    def nodes(self) -> list[Server]:
        return self.data

    def primary_of(self, key: str) -> Server:
        return self.data[0]


class Sentinels(Replicated):
    """A primary, its replicas and three sentinels that watch them under the name `redlatch`."""

    topology = "sentinel"

    def __init__(
        self,
        binary: str = "",
        *options: str,
        replicas: int = 2,
        down_after_ms: int = 5000,
        password: str = "",
        sentinel_password: str = "",
    ) -> None:
        """`down_after_ms`: how long a primary must be silent to be taken for dead."""
        super().__init__(binary, *options, replicas=replicas, password=password)
        self.build(lambda: self._watch(binary, down_after_ms, sentinel_password))

    def _watch(self, binary: str, down_after_ms: int, password: str) -> None:
        config = (
            f"sentinel monitor {SERVICE} 127.0.0.1 {self.data[0].port} 2\n"
            f"sentinel down-after-milliseconds {SERVICE} {down_after_ms}\n"
            # Also how long a graceful fail-over may not follow another.
            f"sentinel failover-timeout {SERVICE} 5000\n"
            f"sentinel parallel-syncs {SERVICE} 2\n"
        )
        if self.password:
            config += f"sentinel auth-pass {SERVICE} {self.password}\n"
        self.sentinels = [self.add(Server(binary, config=config, password=password)) for _ in range(3)]
        eventually(lambda: all(map(self._sees_all, self.sentinels)), "sentinels that know each other")
        login = f":{self.password}@" if self.password else ""
        query = f"?sentinel_password={password}" if password else ""
        hosts = ",".join(each.address for each in self.sentinels)
        self.url = f"redis+sentinel://{login}{hosts}/{SERVICE}{query}"

    def _sees_all(self, sentinel: Server) -> bool:
        reply = sentinel("SENTINEL", "MASTER", SERVICE)
        seen = dict(zip(reply[::2], reply[1::2], strict=True))
        others = (int(seen["num-slaves"]), int(seen["num-other-sentinels"]))
        return others == (self.replicas, 2) and "down" not in seen["flags"]

    def primary_of(self, key: str) -> Server:
        """The one that most sentinels name."""
        named = [str(each("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)[1]) for each in self.sentinels]
        port = max(named, key=named.count)
        return next(node for node in self.data if str(node.port) == port)

    def failover(self) -> None:
        """Graceful where the servers can: the primary lives, a replica takes over. Waits until it is ordered."""
        eventually(
            lambda: self.sentinels[0]("SENTINEL", "FAILOVER", SERVICE) == "OK", "a fail-over that is accepted"
        )

    def settle(self) -> None:
        """Waits until the sentinels are at peace again: everybody up, all replicas known."""
        eventually(lambda: all(map(self._sees_all, self.sentinels)), "sentinels at peace")
        primary = self.primary_of("")
        eventually(
            lambda: str(primary("INFO", "replication")).count("state=online") == self.replicas,
            "replicas in step",
        )


class Cluster(Many):
    """Three primaries with a replica each, made over the wire. With fewer replicas the first primaries have them."""

    topology = "cluster"

    def __init__(
        self,
        binary: str = "",
        *options: str,
        primaries: int = 3,
        replicas: int = 3,
        node_timeout_ms: int = 5000,
    ) -> None:
        """`node_timeout_ms`: how long a node must be silent to be taken for dead."""
        super().__init__()
        mode = ("--cluster-enabled", "yes", "--cluster-node-timeout", str(node_timeout_ms))
        announced = ("--cluster-announce-ip", "127.0.0.1", "--cluster-replica-validity-factor", "0")
        self.options = (*mode, *announced, *REPLICATING, *options)
        self.replicas = replicas
        self.build(lambda: self._make(binary, primaries))

    def _make(self, binary: str, count: int) -> None:
        self.data = [
            self.add(Server(binary, *self.options, spread=10000)) for _ in range(count + self.replicas)
        ]
        primaries, replicas = self.data[:count], self.data[count:]
        for epoch, node in enumerate(self.data, 1):
            node("CLUSTER", "SET-CONFIG-EPOCH", epoch)
        for number, node in enumerate(primaries):
            # One by one, as Redis 6.2 knows no ranges.
            node("CLUSTER", "ADDSLOTS", *range(SLOTS * number // count, SLOTS * (number + 1) // count))
        for number, node in enumerate(self.data):
            for other in self.data[number + 1 :]:
                node("CLUSTER", "MEET", "127.0.0.1", other.port)
        ids = [str(node("CLUSTER", "MYID")) for node in primaries]
        for replica, primary in zip(replicas, ids, strict=False):
            eventually(
                lambda replica=replica, primary=primary: replica("CLUSTER", "REPLICATE", primary) == "OK",  # type: ignore[misc]
                "a replica that knows its primary",
            )
        self.settle()
        self.url = f"redis+cluster://{','.join(node.address for node in self.data)}"

    def settle(self) -> None:
        """Waits until every node is connected with all, knows the replicas, and these are in step."""
        eventually(lambda: all(map(self._agrees, self.data)), "a cluster that agrees")

    def _agrees(self, node: Server) -> bool:
        others = [line.split() for line in str(node("CLUSTER", "NODES")).splitlines()]
        bad = ("fail", "handshake")
        well = [
            line for line in others if line[7] == "connected" and not any(flag in line[2] for flag in bad)
        ]
        replicas = [line for line in well if "slave" in line[2]]
        info = fields(node("INFO", "replication"))
        return (
            len(well) == len(others) == len(self.data)
            and len(replicas) == len({line[3] for line in replicas}) == self.replicas
            and fields(node("CLUSTER", "INFO"))["cluster_state"] == "ok"
            and info.get("master_link_status", "up") == "up"
        )

    @property
    def nodes(self) -> list[Server]:
        return self.data

    @property
    def primaries(self) -> list[Server]:
        """The servers that call themselves primaries."""
        return [node for node in self.data if node.alive and node("ROLE")[0] == "master"]

    def primary_of(self, key: str) -> Server:
        return self.owner_of(slot_of(key))

    def owner_of(self, slot: int) -> Server:
        """The node that most others name: one that has just come back may still believe that it is the primary."""
        named = [port for node in self.data if node.alive for port in _named(node, slot)]
        if not named:
            raise RuntimeError(f"nobody has slot {slot}")
        most = max(named, key=named.count)
        return next(node for node in self.data if node.port == most)

    def replica_of(self, primary: Server) -> Server:
        myself = str(primary("CLUSTER", "MYID"))
        for line in str(primary("CLUSTER", "REPLICAS", myself)[0]).splitlines():
            port = int(line.split()[1].split("@")[0].rsplit(":", 1)[1])
            return next(node for node in self.data if node.port == port)
        raise RuntimeError(f"{primary.address} has no replica")

    def failover(self, primary: Server) -> None:
        """Graceful: its replica takes over, with all that the primary has."""
        replica = self.replica_of(primary)
        eventually(lambda: replica("CLUSTER", "FAILOVER") == "OK", "a fail-over that is accepted")
        eventually(lambda: replica("ROLE")[0] == "master", "the replica that takes over")

    def begin_move(self, slot: int, source: Server, to: Server) -> None:
        """One node takes the slot in, the other gives it away."""
        to("CLUSTER", "SETSLOT", slot, "IMPORTING", str(source("CLUSTER", "MYID")))
        source("CLUSTER", "SETSLOT", slot, "MIGRATING", str(to("CLUSTER", "MYID")))

    def move_keys(self, slot: int, source: Server, to: Server, at_most: int | None = None) -> None:
        """Moves the keys of a slot, or some of them."""
        while keys := source("CLUSTER", "GETKEYSINSLOT", slot, at_most or 100):
            moved = source("MIGRATE", "127.0.0.1", to.port, "", 0, 5000, "KEYS", *keys)
            if moved not in ("OK", "NOKEY"):
                raise RuntimeError(f"MIGRATE: {moved}")
            if at_most:
                return

    def end_move(self, slot: int, source: Server, to: Server) -> None:
        """The slot belongs to the new node from now on."""
        there = str(to("CLUSTER", "MYID"))
        for node in (to, source, *(node for node in self.primaries if node not in (to, source))):
            node("CLUSTER", "SETSLOT", slot, "NODE", there)

    def migrate(self, slot: int, to: Server) -> None:
        """Moves a slot as `redis-cli --cluster reshard` does."""
        source = self.owner_of(slot)
        self.begin_move(slot, source, to)
        self.move_keys(slot, source, to)
        self.end_move(slot, source, to)


class Quorum(Many):
    """Servers that know nothing of each other."""

    topology = "quorum"

    def __init__(self, binary: str = "", *options: str, servers: int = 3) -> None:
        super().__init__()
        self.build(lambda: self._make(binary, options, servers))

    def _make(self, binary: str, options: tuple[str, ...], servers: int) -> None:
        self.data = [self.add(Server(binary, *options)) for _ in range(servers)]
        self.url = f"redis+quorum://{','.join(node.address for node in self.data)}"

    @property
    def nodes(self) -> list[Server]:
        return self.data

    def having(self, key: str) -> int:
        """How many of those that run have the key."""
        return sum(node("EXISTS", key) for node in self.data if node.alive)

    def wait_for_votes(self, delay: float) -> None:
        """Waits until all have a vote: a server that counts whole seconds has run for longer than `delay` when it says one more."""

        def runs(node: Server) -> bool:
            return int(fields(node("INFO", "server"))["uptime_in_seconds"]) > delay

        eventually(
            lambda: all(map(runs, self.data)), "servers that have run for long enough", delay + STARTING
        )


def _named(node: Server, slot: int) -> list[int]:
    """The port that this node has for the slot's primary, if it answers and knows one."""
    with suppress(OSError):
        return [
            int(primary[1]) for first, last, primary, *_ in node("CLUSTER", "SLOTS") if first <= slot <= last
        ]
    return []


TOPOLOGIES: dict[str, Callable[..., Deployment]] = {
    "single": Server,
    "sentinel": Sentinels,
    "cluster": Cluster,
    "quorum": Quorum,
}


def serve(lines: Iterable[bytes], answers: IO[bytes] | BufferedIOBase) -> None:
    """Does what the lines of a program ask, several at a time. When they end it ends all that it has started.

    `{"id": 1, "do": "cluster", "args": ["--maxmemory", "1mb"], "with": {"primaries": 2}}` starts one of TOPOLOGIES with
    options. `{"id": 2, "of": 4, "do": "signal", "args": ["STOP"]}` calls a method. The answer has the id, and what the
    method returns as `is` or a text as `error`. There and among the arguments a server is an object with its number, `of`.
    """
    known: list[Deployment] = []
    writing = threading.Lock()

    def shown(value: object) -> object:
        if isinstance(value, Exception):  # of the server
            raise value
        if not isinstance(value, Deployment):
            return value
        if value not in known:
            known.append(value)
        shows = {"of": known.index(value), "url": value.url}
        if isinstance(value, Server):
            process = {"port": value.port, "pid": value.process.pid, "socket": str(value.unix_socket)}
            return {**shows, **process}
        members = {name: getattr(value, name, []) for name in ("nodes", "sentinels")}
        return {**shows, **{name: list(map(shown, servers)) for name, servers in members.items()}}

    def answer(line: bytes) -> None:
        asked = json.loads(line)
        said = {"id": asked["id"]}
        try:
            do = asked["do"]
            args = [known[arg["of"]] if isinstance(arg, dict) else arg for arg in asked.get("args", [])]
            call = getattr(known[asked["of"]], do) if "of" in asked else partial(TOPOLOGIES[do], "")
            text = json.dumps(said | {"is": shown(call(*args, **asked.get("with", {})))})
        except Exception as error:
            text = json.dumps(said | {"error": str(error) or repr(error)})
        with writing:
            answers.write(text.encode() + b"\n")
            answers.flush()

    # Its threads last until the end: a server ends with the thread that started it.
    with ThreadPoolExecutor(64) as pool:
        for line in lines:
            pool.submit(answer, line)
    for deployment in known:
        deployment.close()


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/with-server", usage="%(prog)s [--topology T] COMMAND... | --serve"
    )
    parser.add_argument("--topology", choices=TOPOLOGIES, default="single")
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    asked = parser.parse_args(words)
    if asked.serve:
        # A Ctrl-C in the terminal is for the program that we serve; we end with it.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        serve(sys.stdin.buffer, sys.stdout.buffer)
        return 0
    command: list[str] = asked.command
    if not command:
        parser.error("which command?")
    if os.environ.get("REDLATCH_URL"):
        print("with-server: REDLATCH_URL is set already, so no server is started", file=sys.stderr)
        os.execvp(command[0], command)
    # Ended politely or by Ctrl-C, we still wait for the command and stop the server.
    child: subprocess.Popen[bytes] | None = None

    def forward(number: int, _frame: object) -> None:
        # The terminal sends an interrupt to the child itself.
        if child is not None and number != signal.SIGINT:
            child.send_signal(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, forward)
    try:
        with TOPOLOGIES[asked.topology]() as deployment:
            child = subprocess.Popen(command, env={**os.environ, "REDLATCH_URL": deployment.url})
            code = child.wait()
    except (OSError, RuntimeError) as error:
        print(f"with-server: {error}", file=sys.stderr)
        return 127
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
