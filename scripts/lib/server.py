"""A Redis-compatible server of one's own: started on a free loopback port, stopped with the program.

`python server.py CMD...` runs CMD with REDLATCH_URL set to such a server; scripts/with-server is this.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from types import TracebackType

STARTING = 10.0  # seconds
OPTIONS = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    """Linux ends the server with us, even when we are killed and cannot do it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Server:
    """`with Server() as server: ... server.url`"""

    def __init__(self) -> None:
        binary = os.environ.get("REDLATCH_SERVER_BIN")
        if not binary:
            raise RuntimeError("no Redis server found: run scripts/setup")
        self._binary = binary
        self.port = 0
        self.url = ""

    def __enter__(self) -> Server:
        self._folder = tempfile.mkdtemp(prefix="redlatch-server-")
        # Another program may take the free port before the server does: then it ends at once, and we try again.
        for _ in range(5):
            with socket.create_server(("127.0.0.1", 0)) as probe:
                self.port = probe.getsockname()[1]
            self._process = subprocess.Popen(
                [self._binary, "--port", str(self.port), *OPTIONS, "--dir", self._folder],
                stdin=subprocess.DEVNULL,
                stdout=open(os.path.join(self._folder, "log"), "w"),
                stderr=subprocess.STDOUT,
                # A Ctrl-C in the terminal is for the program that uses the server; we end the server after it.
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
            if self._answers():
                self.url = f"redis://127.0.0.1:{self.port}"
                return self
            self._stop()
        with open(os.path.join(self._folder, "log")) as log:
            raise RuntimeError(f"{self._binary} does not start:\n{log.read()}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _answers(self) -> bool:
        give_up = time.monotonic() + STARTING
        while time.monotonic() < give_up and self._process.poll() is None:
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                    connection.sendall(b"PING\r\n")
                    if connection.recv(16).startswith(b"+PONG") and self._process.poll() is None:
                        return True
            except OSError:
                pass
            time.sleep(0.02)
        return False

    def _stop(self) -> None:
        self._process.kill()
        self._process.wait()


def main(command: list[str]) -> int:
    if not command:
        print("usage: scripts/with-server COMMAND...", file=sys.stderr)
        return 2
    if os.environ.get("REDLATCH_URL"):  # the caller has a server already
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
        with Server() as server:
            child = subprocess.Popen(command, env={**os.environ, "REDLATCH_URL": server.url})
            code = child.wait()
    except (OSError, RuntimeError) as error:
        print(f"with-server: {error}", file=sys.stderr)
        return 127
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
