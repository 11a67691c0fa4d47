"""The server and the fixtures that users have for tests of their own."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
from contextlib import suppress
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import redis
import redlatch
from conftest import LIMIT, eventually, run, script
from redlatch.testing import Server, ServerNotFoundError
from test_readme import BLOCKS

SERVER = os.environ["REDLATCH_SERVER_BIN"]


def answers(port: int) -> bool:
    with suppress(ConnectionError), socket.create_connection(("127.0.0.1", port)) as probe:
        probe.sendall(b"PING\r\n")
        return probe.recv(16).startswith(b"+PONG")
    return False


def outcome(folder: Path, tests: str, **environment: str) -> str:
    """The output of pytest for a file of tests, in a folder of its own."""
    (folder / "test_it.py").write_text(textwrap.dedent(tests))
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "test_it.py"]
    if not entry_points(group="pytest11", name="redlatch.testing.fixtures"):
        command += ["-p", "redlatch.testing.fixtures"]
    variables = {**os.environ, "COLUMNS": "300", **environment}
    done = subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, timeout=4 * LIMIT
    )
    return done.stdout + done.stderr


def test_fixtures_give_a_server_a_url_and_a_client(tmp_path: Path) -> None:
    tests = """
        import os

        import redlatch

        clients = []

        def test_client(redlatch_client, redlatch_url, redlatch_server):
            assert redlatch_url == redlatch_server.url == os.environ["REDLATCH_URL"]
            assert redlatch_client.lock("a").acquire()
            left = redlatch.Client(linger=True)
            assert left.lock("b").acquire()
            clients.extend([redlatch_client, left])

        def test_nothing_is_left_of_another_test(redlatch_url):
            assert not redlatch.Client().lock("b").locked()
            try:
                clients[0].lock("a").acquire()
            except redlatch.ClosedError:
                return
            raise AssertionError("the client is open")
    """
    text = outcome(tmp_path, tests)
    assert "2 passed" in text, text


def test_the_example_of_the_readme_passes(tmp_path: Path) -> None:
    text = outcome(tmp_path, next(block for block in BLOCKS if "redlatch_client" in block))
    assert "1 passed" in text, text


NO_SERVER = "def test_it(redlatch_client): ..."


def test_without_a_server_the_tests_are_skipped_with_the_reason(tmp_path: Path) -> None:
    text = outcome(tmp_path, NO_SERVER, PATH=str(tmp_path), REDLATCH_SERVER_BIN="")
    assert "1 skipped" in text, text
    assert (
        "neither redis-server nor valkey-server is on PATH; install one, or name its file in REDLATCH_SERVER_BIN"
        in text
    )


def test_a_variable_that_names_no_program_is_an_error(tmp_path: Path) -> None:
    text = outcome(tmp_path, NO_SERVER, REDLATCH_SERVER_BIN=str(tmp_path / "none"))
    assert "1 error" in text and "/none', which is no program" in text, text


@pytest.mark.parametrize("name", ["redis-server", "valkey-server"])
def test_a_server_on_path_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (tmp_path / name).symlink_to(str(shutil.which(SERVER)))
    monkeypatch.delenv("REDLATCH_SERVER_BIN")
    monkeypatch.setenv("PATH", str(tmp_path))
    with Server() as server, redlatch.Client(server.url) as client, client.lock("a"):
        assert server.program == str(tmp_path / name)


def test_without_a_server_there_is_an_error_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("REDLATCH_SERVER_BIN", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServerNotFoundError, match="REDLATCH_SERVER_BIN"):
        Server()


def test_what_a_server_says_as_it_fails_is_told(tmp_path: Path) -> None:
    broken = tmp_path / "server"
    broken.write_text("#!/bin/sh\necho no memory\nexit 3\n")
    broken.chmod(0o755)
    with pytest.raises(RuntimeError, match=r"ended with 3 as it started:\nno memory"):
        Server(broken).start()


def test_a_port_that_is_taken_is_left(tmp_path: Path) -> None:
    log = tmp_path / "asked"
    busy = tmp_path / "server"
    # The first time it finds the port taken.
    busy.write_text(
        f'#!/bin/sh\n[ -e {log} ] && exec {SERVER} "$@"\ntouch {log}\necho bind: Address already in use\nexit 1\n'
    )
    busy.chmod(0o755)
    with Server(busy) as server:
        assert log.exists() and answers(server.port)


def test_a_server_ends_with_its_block() -> None:
    # A child has the pipe to the guard of the server as well, and does not keep it.
    program = """
        import os, signal
        from redlatch.testing import Server
        with Server() as server:
            child = os.fork()
            if child == 0:
                signal.pause()
            server.empty()
        server.stop()
        os.kill(child, signal.SIGKILL)
        print(server.port)
    """
    assert not answers(int(run(program)))


def test_a_server_that_stands_still_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redlatch.testing.STOPPING", 0.1)
    with Server() as server, redis.Redis(port=server.port) as look:
        process = look.info("server")["process_id"]
        os.kill(process, signal.SIGSTOP)
    assert not answers(server.port)


def test_a_server_ends_with_a_program_that_is_killed() -> None:
    program = """
        import signal
        from redlatch.testing import Server
        server = Server().start()
        print(server.port, flush=True)
        signal.pause()
    """
    with subprocess.Popen(script(program), stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        port = int(killed.stdout.readline())
        assert answers(port)
        killed.kill()
    eventually(lambda: not answers(port), "the server ends")
