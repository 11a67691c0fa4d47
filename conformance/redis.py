"""A RESP client of a few lines, a server of one's own, and a tap on what the server is sent."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path


class Redis:
    """One connection; every call is one command."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.file = self.socket.makefile("rb")
        self.lock = threading.Lock()

    def __call__(self, *words: str) -> object:
        with self.lock:
            parts = [word.encode() for word in words]
            frames = [b"$%d\r\n%s\r\n" % (len(part), part) for part in parts]
            self.socket.sendall(b"*%d\r\n" % len(parts) + b"".join(frames))
            return self.read()

    def read(self) -> object:
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
        self.file.close()
        self.socket.close()


class Server:
    """A server on a free loopback port, in a folder of its own, stopped with `close`."""

    def __init__(self, binary: str) -> None:
        self.binary = binary
        self.folder = tempfile.mkdtemp(prefix="redlatch-conformance-")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> None:
        words = [
            self.binary,
            "--port",
            str(self.port),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
        ]
        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen(
            [*words, "--dir", self.folder], stdin=quiet, stdout=quiet, stderr=quiet
        )
        end = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError):
                redis = Redis(self.port)
                if redis("PING") == "PONG":
                    self.redis = redis
                    return
            if time.monotonic() > end or self.process.poll() is not None:
                raise SystemExit(f"{self.binary} did not start")
            time.sleep(0.02)

    def signal(self, name: str) -> None:
        os.kill(self.process.pid, getattr(signal, f"SIG{name}"))

    def restart(self) -> None:
        self.process.kill()
        self.process.wait()
        self.start()

    def version(self) -> str:
        info = str(self.redis("INFO", "server"))
        fields = dict(line.split(":", 1) for line in info.splitlines() if ":" in line)
        if "valkey_version" in fields:
            return f"valkey {fields['valkey_version']}"
        return f"redis {fields['redis_version']}"

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


class Tap:
    """Everything that clients send, from MONITOR; commands inside scripts are marked by the server."""

    def __init__(self, port: int) -> None:
        self.lines: list[str] = []
        self.redis = Redis(port)
        self.redis("MONITOR")
        threading.Thread(target=self.follow, daemon=True).start()

    def follow(self) -> None:
        with contextlib.suppress(OSError, ValueError, ConnectionError):
            while True:
                self.lines.append(str(self.redis.read()))

    def catch_up(self, redis: Redis) -> None:
        """Waits until everything sent before now has been seen."""
        sign = f"caught-up-{time.monotonic_ns()}"
        redis("ECHO", sign)
        end = time.monotonic() + 60
        while not any(sign in line for line in self.lines[-1000:]):
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


def find_server() -> str:
    """The server that the project's set-up has found, or one on PATH."""
    for candidate in (
        os.environ.get("REDLATCH_SERVER_BIN"),
        shutil.which("redis-server"),
        shutil.which("valkey-server"),
    ):
        if candidate and Path(candidate).exists():
            return candidate
    raise SystemExit("no server: run `make setup`, or set REDLATCH_SERVER_BIN")
