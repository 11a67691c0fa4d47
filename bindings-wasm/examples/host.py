"""A host of the WebAssembly module, without JavaScript: wasmtime runs the module, Python has the sockets and the clock.

    pip install wasmtime==50.0.1
    scripts/with-server python bindings-wasm/examples/host.py bindings-node/redlatch.wasm

It connects over plain TCP, or a Unix socket. It has no thread of its own: holds are renewed while the program is in `wait` or `turn`.
"""

from __future__ import annotations

import json
import math
import os
import select
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any, cast

import wasmtime

# The numbers of the interface: bindings-wasm/src/bytes.rs has the same, and a test compares them. Records of the module.
CONNECT, WRITE, CLOSE, DONE, FAILED, LOST, EVENTS, GONE, WAKE = range(1, 10)
# Values of a call that has succeeded.
NONE, FLAG, TOKEN, HOLDERS, NAMES, GRANTED, PERMITS, NUMBER, PARTS = range(9)
# The kinds of values of options.
UNSET, MILLIS, BOOL, STRING = range(4)
# For whom a lock is acquired.
ONCE, TASK, EXPLICIT = range(3)
# Questions about a lock.
OWNERS, PROCESSES, QUEUE = range(3)
# Changes of a plain semaphore or a latch.
RELEASE, SET_PERMITS, ADD_PERMITS, DRAIN, SET_COUNT, COUNT_DOWN = range(6)
SEMAPHORE, LATCH = range(2)

# It counts suspend: on macOS that of the second name does.
CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now() -> float:
    """Microseconds of one clock that never goes back."""
    return float(time.clock_gettime_ns(CLOCK) // 1000)


class Failed(Exception):
    """A call has failed. `kind` and `reason` are names of the module's tables."""

    def __init__(self, kind: str, text: str, reason: str | None) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind, self.reason = kind, reason


# ---- arguments: each function returns the bytes of one ----


def number(value: float) -> bytes:
    return struct.pack("<d", value)


def text(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack("<I", len(encoded)) + encoded


def optional(value: str | None) -> bytes:
    return b"\0" if value is None else b"\1" + text(value)


def value(given: Any) -> bytes:
    if given is None:
        return bytes([UNSET])
    if isinstance(given, bool):
        return bytes([BOOL, given])
    if isinstance(given, str):
        return bytes([STRING]) + text(given)
    return bytes([MILLIS]) + number(given)


def options(given: dict[str, Any]) -> bytes:
    return b"".join(text(name) + value(each) for name, each in given.items())


class Records:
    """Reads the records of one call."""

    def __init__(self, records: bytes) -> None:
        self.left = records

    def take(self, length: int) -> bytes:
        taken, self.left = self.left[:length], self.left[length:]
        return taken

    def byte(self) -> int:
        return self.take(1)[0]

    def number(self) -> float:
        return float(struct.unpack("<d", self.take(8))[0])

    def whole(self) -> int:
        return int(self.number())

    def bytes(self) -> bytes:
        return self.take(struct.unpack("<I", self.take(4))[0])

    def text(self) -> str:
        return self.bytes().decode()

    def holder(self) -> dict[str, Any]:
        holder: dict[str, Any] = {"owner": self.text(), "count": self.whole(), "remaining": self.whole()}
        if self.byte():
            holder |= {
                "client": self.text(),
                "language": self.text(),
                "pid": self.whole(),
                "host": self.text(),
            }
        return holder

    def value(self) -> Any:
        """The value of a call that has succeeded."""
        kind = self.byte()
        if kind in (NONE, GRANTED):
            return None
        if kind == FLAG:
            return self.byte() == 1
        if kind == TOKEN:
            return int.from_bytes(self.take(8), "little")  # a fencing token
        if kind == HOLDERS:
            return [self.holder() for _ in range(self.whole())]
        if kind == NAMES:
            return [self.text() for _ in range(self.whole())]
        if kind == PERMITS:
            return (self.whole(), self.whole())
        if kind == NUMBER:
            return self.whole()
        raise ValueError(f"a value of the unknown kind {kind}; this host is older than the module")

    def failure(self) -> tuple[int, str, int]:
        kind, message = self.whole(), self.text()
        self.byte()
        if self.byte():
            self.text()
        return kind, message, self.whole()


class Host:
    """One instance of the module with its sockets. After a trap (`wasmtime.Trap`) it is of no use any more."""

    def __init__(self, module: Path) -> None:
        engine = wasmtime.Engine()
        self.store = wasmtime.Store(engine)
        instance = wasmtime.Instance(self.store, wasmtime.Module.from_file(engine, str(module)), [])
        self.exports = cast(Any, instance.exports(self.store))
        self.last = 0
        self.sockets: dict[int, socket.socket] = {}
        self.told: list[tuple[str, int, bytes]] = []  # of connections, to be told after the records
        self.answers: dict[int, Any] = {}
        self.lost: dict[int, str] = {}  # the reasons, by hold
        self.due = math.inf  # when the module has to be woken
        self.exports["redlatch_spelling"](self.store, 0)
        tables = json.loads(self.records("redlatch_tables"))
        self.errors = {row["number"]: row["name"] for row in tables["errors"]}
        self.reasons = {row["number"]: row["name"] for row in tables["reasons"]}

    # ---- the module ----

    def get(self, name: str, *numbers: float) -> float:
        """A function that has no records."""
        returned: float = self.exports[name](self.store, *map(float, numbers))
        return returned

    def records(self, name: str, *numbers: float, given: bytes = b"") -> bytes:
        memory = self.exports["memory"]
        if given:
            # This function takes a 32-bit integer. Places have no sign, and wasmtime gives them one.
            memory.write(
                self.store, given, self.exports["redlatch_input"](self.store, len(given)) & 0xFFFFFFFF
            )
        length = int(self.get(name, *numbers))
        start = self.exports["redlatch_output"](self.store) & 0xFFFFFFFF
        return bytes(memory.read(self.store, start, start + length))

    def call(self, name: str, *numbers: float, given: bytes = b"") -> Any:
        """Calls a function, and does what its records say. Returns its own answer."""
        records = Records(self.records(name, *numbers, given=given))
        own: Any = None
        while records.left:
            kind, about = records.byte(), records.whole()
            if kind == CONNECT:
                self.connect(about, records)
            elif kind == WRITE:
                self.write(about, records.bytes())
            elif kind == CLOSE and about in self.sockets:
                self.sockets.pop(about).close()
            elif kind in (DONE, FAILED):
                answer = records.value() if kind == DONE else self.failed(*records.failure())
                if about == 0:
                    own = answer
                else:
                    self.answers[about] = answer
            elif kind == LOST:
                self.lost[about] = self.reasons[records.whole()]
            elif kind == WAKE:
                self.due = about
        if isinstance(own, Failed):
            raise own
        return own

    def failed(self, kind: int, message: str, reason: int) -> Failed:
        return Failed(self.errors[kind], message, self.reasons.get(reason))

    # ---- sockets and time ----

    def connect(self, about: int, records: Records) -> None:
        _client, _tls, host, port, _keep_alive = (
            records.whole(), records.byte(), records.text(), records.whole(), records.number(),
        )  # fmt: skip
        try:
            if port:
                # Nothing else goes on meanwhile. A host with more to do connects without waiting.
                made = socket.create_connection((host, port), timeout=10)
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            else:
                made = socket.socket(socket.AF_UNIX)
                made.settimeout(10)
                made.connect(host)
        except OSError as error:
            self.told.append(("redlatch_closed", about, b"\xff" + text(str(error))))
            return
        self.sockets[about] = made
        self.told.append(("redlatch_opened", about, os.urandom(8)))

    def write(self, about: int, sent: bytes) -> None:
        if about in self.sockets:
            try:
                self.sockets[about].sendall(sent)
            except OSError as error:
                self.gone(about, str(error))

    def gone(self, about: int, why: str) -> None:
        self.sockets.pop(about).close()
        self.told.append(("redlatch_closed", about, b"\xff" + text(why)))

    def turn(self, seconds: float = 60.0) -> None:
        """Writes what is to be written, waits until something arrives or is due, and tells the module."""
        self.call("redlatch_flush", now())
        while self.told:
            name, about, given = self.told.pop(0)
            self.call(name, about, now(), given=given)
        due = (self.due - now()) / 1e6
        found = select.select(self.sockets.values(), [], [], 0 if self.told else max(0.0, min(due, seconds)))[
            0
        ]
        # First what has arrived, then the time: an answer that came in time counts.
        for about, each in list(self.sockets.items()):
            if each not in found or about not in self.sockets:
                continue
            try:
                received = each.recv(65536)
            except OSError as error:
                self.gone(about, str(error))
                continue
            if received:
                self.call("redlatch_received", about, now(), given=received)
            else:
                self.gone(about, "the server has closed it")
        if self.due <= now():
            self.due = math.inf
            self.call("redlatch_wake", now())

    # ---- what a program asks for ----

    def draw(self) -> int:
        self.last += 1
        return self.last

    def ask(self, name: str, *numbers: float, given: bytes = b"") -> int:
        """Begins a call that is answered later. Returns its number."""
        number = self.draw()
        self.call(name, number, *numbers, now(), given=given)
        return number

    def wait(self, number: int) -> Any:
        """The answer of a call."""
        while number not in self.answers:
            self.turn()
        answer = self.answers.pop(number)
        if isinstance(answer, Failed):
            raise answer
        return answer

    def open(self, url: str, **given: Any) -> int:
        client = self.draw()
        program = text("python-wasmtime") + number(os.getpid()) + text(socket.gethostname())
        arguments = os.urandom(24) + program + optional(url) + optional(None) + options(given)
        scheme = self.call("redlatch_open", client, given=arguments)[0]
        try:
            if scheme:
                raise ValueError(f"{url}: this host has neither TLS nor HTTP")
            self.wait(self.ask("redlatch_ready", client))
        except BaseException:
            self.call("redlatch_drop_client", client, now())
            raise
        return client

    def locks(self, client: int, name: str, **given: Any) -> int:
        family = self.draw()
        self.call("redlatch_locks", family, client, given=text(name) + options(given))
        return family

    def begin(self, family: int, name: str, **given: Any) -> int:
        """Begins to acquire. The number of the call is that of the hold, once it is granted."""
        return self.ask(
            "redlatch_acquire", family, given=bytes([ONCE]) + bytes(8) + text(name) + options(given)
        )

    def acquire(self, family: int, name: str, **given: Any) -> int:
        hold = self.begin(family, name, **given)
        self.wait(hold)
        return hold

    def release(self, hold: int) -> None:
        self.wait(self.ask("redlatch_release", hold))

    def is_held(self, hold: int) -> bool:
        return self.get("redlatch_is_held", hold, now()) == 1

    def close(self, client: int) -> Any:
        closed = self.wait(self.ask("redlatch_close", client))
        self.call("redlatch_drop_client", client, now())
        return closed


def main() -> None:
    host = Host(Path(sys.argv[1]))
    url = os.environ["REDLATCH_URL"]
    first, second = host.open(url), host.open(url)
    ours, theirs = host.locks(first, "orders:42"), host.locks(second, "orders:42")

    hold = host.acquire(ours, "orders:42")
    print("the first client has orders:42")
    try:
        host.acquire(theirs, "orders:42", wait=0)
    except Failed as failure:
        print("the second is refused:", failure)
    waiting = host.begin(theirs, "orders:42")
    host.release(hold)
    host.wait(waiting)
    print("the first has released it, the second has it:", host.is_held(waiting))
    host.release(waiting)
    for client in (first, second):
        host.close(client)


if __name__ == "__main__":
    main()
