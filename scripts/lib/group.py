"""A command and all that it starts, which end together: its tests, and the servers that they have started."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path


def start(command: list[str], folder: Path, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """Starts a command in a group of its own; what it says comes out of its `stdout`, errors among it."""
    return subprocess.Popen(
        command,
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )


def end(process: subprocess.Popen[str]) -> None:
    """Kills the group, while nobody has waited for the command: later its number may mean others."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
