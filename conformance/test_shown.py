"""The command line shows the holders of every language and of Redisson, on every kind of deployment.

With REDLATCH_BLESS=1 the picture of `redlatch watch` in docs/cli.md is taken anew.
"""

import fcntl
import html
import itertools
import json
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pyte
import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts" / "lib"))
import build  # noqa: E402
from drivers import Driver  # noqa: E402
from server import Cluster, Deployment, Sentinels, Server  # noqa: E402

LIMIT = 120.0  # seconds that a JVM may need to start on a busy machine
PICTURE = ROOT / "docs" / "watch.svg"
HOST = "web-1"  # in the picture, which is the same on every machine
# A machine with a longer name needs a wider terminal for the same picture.
COLUMNS, ROWS = 80 + max(0, len(socket.gethostname()) - len(HOST)), 10
LANGUAGES = {"rust": "rust", "python": "python", "asyncio": "python", "node": "node", "c": "c"}
OPTIONS: dict[str, Any] = {"watchdog_ms": 30000, "fencing": False, "cluster_pubsub": "auto", "private": True}
# Kinds of locks: the options of a client, the words of an acquisition, and what the command line calls it.
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "reentrant": ({}, {}, "reentrant"),
    # Nobody waits, so it lies there as a re-entrant lock does.
    "fair": ({"kind": "fair"}, {}, "reentrant"),
    "write": ({}, {"side": "write"}, "write"),
    "read": ({}, {"side": "read"}, "read"),
    "permit": ({"kind": "semaphore"}, {"limit": 16}, "semaphore"),
}
CLIENTS = itertools.count()
# All programs hold one and the same of these.
SHARED = ("read", "permit")


@pytest.fixture(scope="module")
def programs() -> Iterator[dict[str, Driver]]:
    """A running program of each language, and of Redisson."""
    sides = [*(make() for make in build.ours().values()), build.redisson(build.REDISSONS[-1])]
    with ExitStack() as stack:
        yield {side.name: stack.enter_context(closing(Driver(side.command))) for side in sides}


@pytest.fixture(params=[Server, Sentinels, Cluster], ids=["server", "sentinel", "cluster"])
def deployment(request: pytest.FixtureRequest) -> Iterator[Deployment]:
    with request.param() as deployment:
        yield deployment


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture
def ask(programs: dict[str, Driver]) -> Iterator[Callable[..., None]]:
    """Asks a program about its client, which ends with the test."""
    client = f"c{next(CLIENTS)}"

    def asked(name: str, answer: str = "ok", **request: Any) -> None:
        future = programs[name].ask(client=client, **request)[1]
        if answer:
            assert (reply := future.result(LIMIT))["status"] == answer, reply

    yield asked
    for name in programs:
        asked(name, op="close")


def program(deployment: Deployment, *words: str) -> list[str]:
    return [str(build.cargo("redlatch-cli", "debug") / "redlatch"), "--url", deployment.url, *words]


def shown(deployment: Deployment, *words: str) -> str:
    command = program(deployment, *words)
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=LIMIT).stdout


@pytest.mark.parametrize("kind", KINDS)
def test_holders_of_all_languages_are_shown(
    deployment: Deployment, programs: dict[str, Driver], ask: Callable[..., None], kind: str
) -> None:
    options, words, called = KINDS[kind]
    names = {name: "shown:all" if kind in SHARED else f"shown:{name}" for name in programs}
    for name in programs:
        ask(name, op="open", url=deployment.url, **OPTIONS, **options)
        ask(name, op="acquire", lock=names[name], wait_ms=0, **{"as": "one"}, **words)
    listed = {lock["name"]: lock for lock in json.loads(shown(deployment, "ls", "--json"))}
    assert listed.keys() == set(names.values())
    assert {lock["kind"] for lock in listed.values()} == {called}
    holders = [holder for lock in listed.values() for holder in lock["holders"]]
    assert [holder["levels"] for holder in holders] == [1] * len(programs)
    # Redisson names no process.
    assert [holder["client"] for holder in holders].count(None) == len(programs.keys() - LANGUAGES.keys())
    for name, driver in programs.items():
        lock = listed[names[name]]
        text = shown(deployment, "who", lock["name"])
        assert lock["holders"][0]["owner"] in text
        if name not in LANGUAGES:
            continue
        pid, host = driver.process.pid, socket.gethostname()
        client = {"language": LANGUAGES[name], "pid": pid, "host": host}
        told = [holder["client"] or {} for holder in lock["holders"]]
        assert any(client.items() <= each.items() for each in told), lock
        assert f", {LANGUAGES[name]}, process {pid} on {host} (owner " in text


def screen(command: list[str], *patterns: str) -> list[str]:
    """The lines of a terminal in which the command runs, once all these patterns are there at the same time."""
    pid, terminal = pty.fork()
    if pid == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        os.execv(command[0], command)
    emulated = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(emulated)
    end = time.monotonic() + LIMIT
    try:
        while not all(re.search(pattern, "\n".join(emulated.display)) for pattern in patterns):
            ready, _, _ = select.select([terminal], [], [], max(0, end - time.monotonic()))
            assert ready, "\n".join(emulated.display)
            stream.feed(os.read(terminal, 4096))
        return [line.rstrip() for line in emulated.display]
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)


def svg(lines: list[str]) -> str:
    """A picture of these lines in a terminal."""
    width, height = 24 + 7.8 * 80, 24 + 18 * len(lines)
    texts = [
        f'<text x="12" y="{26 + 18 * row}">{html.escape(line)}</text>'
        for row, line in enumerate(lines)
        if line
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}">',
            "<style>text { font: 13px monospace; fill: #d8dee9; white-space: pre }</style>",
            f'<rect width="{width:.0f}" height="{height}" rx="8" fill="#242933"/>',
            *texts,
            "</svg>\n",
        ]
    )


def alike(line: str) -> str:
    """The line without what differs each time: ids, numbers, and with them the width of the columns."""
    return re.sub(r"\d+", "0", re.sub(r" +", " ", re.sub(r"[0-9a-f]{8}…", "ID", line)))


def test_the_picture_shows_what_watch_shows(
    server: Server, programs: dict[str, Driver], ask: Callable[..., None]
) -> None:
    held = {
        "python": "orders:42",
        "node": "orders:43",
        "rust": "reports:daily",
        "c": "stock:7",
        "redisson-4.7.0": "invoices",
    }
    for name in programs:
        ask(name, op="open", url=server.url, **OPTIONS)
        if name in held:
            ask(name, op="acquire", lock=held[name], wait_ms=0, **{"as": "one"})
    ask("asyncio", "", op="acquire", lock="orders:42", wait_ms=60000, **{"as": "two"})
    lines = screen(
        program(server, "watch"), *held.values(), "5 held", r" s  +1  ", r"seen in ([3-9]|\d\d+) s"
    )
    lines = [line.replace(f" on {socket.gethostname()},", f" on {HOST},") for line in lines]
    if os.environ.get("REDLATCH_BLESS"):
        PICTURE.write_text(svg(lines))
    there = [html.unescape(text) for text in re.findall(r"<text[^>]*>(.*)</text>", PICTURE.read_text())]
    assert max(map(len, there)) <= 80
    assert [alike(line) for line in there] == [alike(line) for line in lines if line]
