"""TLS in front of a server that is built without it.

`python tls.py CMD...` runs CMD with REDLATCH_TLS_URL naming a way to the server of REDLATCH_URL that is encrypted,
and REDLATCH_TLS_CA naming the file of the authority that signed its certificate.
"""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

CERTIFICATES = Path(__file__).parents[2] / "core" / "tests" / "tls"


class Terminator:
    """Speaks TLS on a free port of the loopback, and clear text with the server on `port`."""

    def __init__(self, port: int, *, ask_clients: bool = False) -> None:
        """`ask_clients`: for a certificate, which has to be signed by the authority `ca`."""
        self._port = port
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(CERTIFICATES / "server.pem", CERTIFICATES / "server.key")
        if ask_clients:
            self._context.load_verify_locations(CERTIFICATES / "ca.pem")
            self._context.verify_mode = ssl.CERT_REQUIRED
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"rediss://localhost:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                outer, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(outer,), daemon=True).start()

    def _serve(self, raw: socket.socket) -> None:
        # A client that refuses our certificate ends the handshake with an error.
        with (
            suppress(OSError),
            self._context.wrap_socket(raw, server_side=True) as outer,
            socket.create_connection(("127.0.0.1", self._port)) as inner,
        ):
            back = threading.Thread(target=_pump, args=(inner, outer), daemon=True)
            back.start()
            _pump(outer, inner)
            inner.shutdown(socket.SHUT_RDWR)
            back.join()

    def close(self) -> None:
        self._listener.close()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)


def main(command: list[str]) -> int:
    terminator = Terminator(urlsplit(os.environ["REDLATCH_URL"]).port or 6379)
    given = {"REDLATCH_TLS_URL": terminator.url, "REDLATCH_TLS_CA": str(CERTIFICATES / "ca.pem")}
    try:
        return subprocess.call(command, env={**os.environ, **given})
    finally:
        terminator.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
