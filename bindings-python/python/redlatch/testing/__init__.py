"""Servers for tests, by themselves or as fixtures of pytest: one in memory, which needs no Redis, and a real one.

    def test_orders(redlatch_memory_client, redlatch_memory_server):  # pytest finds the fixtures when redlatch is installed
        with redlatch_memory_client.lock("orders:42") as lock:
            redlatch_memory_server.take_away("orders:42")
            ...

    with redlatch.testing.MemoryServer() as server:  # for other runners
        client = redlatch.Client(server.url)

`Server`, and the fixture `redlatch_client`, are for a real server: the program that REDLATCH_SERVER_BIN names, else `redis-server` or `valkey-server` on PATH.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType

from redlatch._redlatch import MemoryServer
from redlatch._typing import Self

__all__ = ["MemoryServer", "Server", "ServerNotFoundError"]

STARTING = 30.0  # seconds that a busy machine may take
STOPPING = 10.0
VARIABLE = "REDLATCH_SERVER_BIN"
PROGRAMS = ("redis-server", "valkey-server")

# Ends the server at the end of the standard input, or at a line of it: it ends with us, however we end.
GUARDED = """
exec 3<&0
"$@" 3<&- & server=$!
{ read -r _; kill $server; } <&3 & guard=$!
wait $server; code=$?
kill $guard 2>/dev/null
exit $code
"""


class ServerNotFoundError(RuntimeError):
    """No server is installed here."""


class Server:
    """A server of one's own on a free port of 127.0.0.1; it keeps nothing on disk, and ends with its block or with the program."""

    def __init__(self, program: str | os.PathLike[str] | None = None) -> None:
        self.program: str = os.fspath(program) if program is not None else _find()
        """The file of the server."""
        self.port: int = 0
        """The port, once it runs."""
        self._stack = ExitStack()

    @property
    def url(self) -> str:
        """The URL for clients."""
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> Self:
        """Returns when the server answers."""
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="redlatch-")))
            until = time.monotonic() + STARTING
            while not self._try_start(stack, folder, until):
                pass
            self._stack = stack.pop_all()
        return self

    def empty(self) -> None:
        """Deletes all data: every lock is free, and holders are told that theirs is lost."""
        self._call("FLUSHALL")

    def stop(self) -> None:
        """Ends the server; stopping twice is no error."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _try_start(self, stack: ExitStack, folder: Path, until: float) -> bool:
        """False if somebody took the port before the server did."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        log = folder / "log"
        options = {"port": self.port, "bind": "127.0.0.1", "save": "", "appendonly": "no", "dir": folder}
        command = [
            self.program,
            *(str(word) for name, value in options.items() for word in (f"--{name}", value)),
        ]
        with log.open("wb") as output:
            process = _start(command, output.fileno())
        stack.callback(_end, process)
        while not self._answers():
            text = log.read_text(errors="replace")
            if process.poll() is not None:
                if "in use" in text:
                    return False
                raise RuntimeError(f"{self.program} ended with {process.returncode} as it started:\n{text}")
            if time.monotonic() > until:
                raise RuntimeError(f"{self.program} did not answer within {STARTING:.0f} s:\n{text}")
            time.sleep(0.01)  # a server tells nobody that it listens
        return True

    def _answers(self) -> bool:
        with suppress(OSError):
            return self._call("PING") == "+PONG"
        return False

    def _call(self, command: str) -> str:
        with socket.create_connection(("127.0.0.1", self.port), timeout=STARTING) as connection:
            connection.sendall(f"{command}\r\n".encode())
            return connection.makefile().readline().strip()


def _find() -> str:
    if named := os.environ.get(VARIABLE):
        if found := shutil.which(named):
            return found
        raise RuntimeError(
            f"{VARIABLE} is {named!r}, which is no program; give it the path of redis-server or valkey-server"
        )
    for name in PROGRAMS:
        if found := shutil.which(name):
            return found
    raise ServerNotFoundError(
        f"no server for tests: neither {' nor '.join(PROGRAMS)} is on PATH; install one, or name its file in {VARIABLE}"
    )


def _start(command: list[str], output: int) -> subprocess.Popen[bytes]:
    if sys.platform == "win32":
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    # A group of its own: Ctrl-C is for the tests, which stop the server when they have ended.
    guarded = ["/bin/sh", "-c", GUARDED, "sh", *command]
    return subprocess.Popen(
        guarded, stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is None:
        process.kill()
    else:
        with suppress(BrokenPipeError), process.stdin as guard:
            # A line, because children of ours may have the pipe open as well.
            guard.write(b"\n")
    try:
        process.wait(STOPPING)
    except subprocess.TimeoutExpired:  # it is stopped, or busy
        if sys.platform != "win32":
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
