"""The servers that the suites start for themselves."""

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts" / "lib"))
import server
from server import Server


def test_a_server_whose_port_another_took_gets_another_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many servers start at once, and two of them may find the same port free."""
    # It starts so late that the other server has answered before this one can find the port taken.
    slow = tmp_path / "slow"
    slow.write_text(f'#!/bin/sh\nsleep 1\nexec {server.find_server()} "$@"\n')
    slow.chmod(0o755)
    with Server() as other:
        free = server.free_port
        ports = itertools.chain([other.port], iter(free, None))
        monkeypatch.setattr(server, "free_port", lambda spread: next(ports))
        with Server(str(slow)) as ours:
            assert ours.port != other.port
            assert ours.process.poll() is None


@pytest.mark.parametrize("end", ["its lines end", "it is killed"])
def test_what_is_served_ends_with_its_starter(end: str) -> None:
    """The program of tests that asked may have been killed."""
    program = [sys.executable, server.__file__, "--serve"]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as starter:
        assert starter.stdin and starter.stdout

        def ask(**line: object) -> dict:
            assert starter.stdin and starter.stdout
            starter.stdin.write(json.dumps({"id": 7, **line}).encode() + b"\n")
            starter.stdin.flush()
            return json.loads(starter.stdout.readline())

        told = ask(do="quorum", args=["--maxmemory", "10mb"], **{"with": {"servers": 2}})["is"]
        first, second = told["nodes"]
        assert ask(of=first["of"], do="__call__", args=["PING"])["is"] == "PONG"
        assert "unknown command" in ask(of=first["of"], do="__call__", args=["NONSENSE"])["error"]
        ask(of=first["of"], do="kill")
        with pytest.raises(ConnectionRefusedError):
            server.ask(first["port"], "PING")
        assert server.ask(second["port"], "CONFIG", "GET", "maxmemory")[1] == "10485760"
        if end == "it is killed":
            starter.kill()

    def is_gone() -> bool:
        try:
            server.ask(second["port"], "PING")
        except ConnectionError:
            return True
        return False

    server.eventually(is_gone, "the end of the server")
