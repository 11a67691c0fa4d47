"""The servers that the suites start for themselves."""

import itertools
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
