"""`npx redlatch`: the program behind the package's `bin/redlatch.js`, npm and a shell."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
import redis
from conftest import LIMIT, PROGRAM, ROOT, Start, Started, children, ended, gone, is_alive, line
from server import eventually

SCRIPT = "trap 'echo got; exit 5' TERM; echo $$; while :; do sleep 0.02; done"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A folder with the package, and this program as that of the platform."""
    modules = tmp_path / "node_modules"
    (modules / ".bin").mkdir(parents=True)
    (modules / "redlatch").symlink_to(ROOT / "bindings-node")
    (modules / ".bin" / "redlatch").symlink_to("../redlatch/bin/redlatch.js")
    platform = f"process.stdout.write(require({str(ROOT / 'bindings-node/lib/platform.js')!r}).platform())"
    place = subprocess.run(["node", "-e", platform], capture_output=True, text=True, check=True).stdout
    (modules / "@redlatch" / place).mkdir(parents=True)
    (modules / "@redlatch" / place / "redlatch").symlink_to(PROGRAM)
    return tmp_path


def environment(package: Path) -> dict[str, str]:
    return {
        **os.environ,
        "NODE_PATH": str(package / "node_modules"),
        "npm_config_update_notifier": "false",
        "npm_config_cache": str(package / "cache"),
    }


def tree(pid: int) -> list[int]:
    return [pid, *(below for child in children(pid) for below in tree(child))]


def npm(package: Path, name: str, words: list[str], start: Start) -> tuple[Started, list[int]]:
    """What has begun under npm: the command, and the processes down to it."""
    (package / "package.json").write_text(
        json.dumps(
            {
                "name": "job",
                "private": True,
                "scripts": {"job": f"redlatch run '{name}' -- sh -c \"$SCRIPT\""},
            }
        )
    )
    process = subprocess.Popen(
        words,
        cwd=package,
        env={**environment(package), "SCRIPT": SCRIPT},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while not (said := line(process)).isdigit():
        assert process.poll() is None, ended(process)
    return process, [int(said), *tree(process.pid)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("way", ["npx", "npm run"])
def test_the_end_of_npm_ends_the_command(
    package: Path, name: str, look: redis.Redis, start: Start, way: str, number: signal.Signals
) -> None:
    """npm sends its signal to a shell, which ends and tells nobody."""
    words = ["npx", "--no-install", "redlatch", "run", name, "--", "sh", "-c", SCRIPT]
    process, below = npm(package, name, words if way == "npx" else ["npm", "run", "job"], start)
    try:
        assert look.exists(name)
        process.send_signal(number)
        process.wait(LIMIT)
        gone(*below)
        eventually(lambda: not look.exists(name), "the lock is released", LIMIT)
        assert process.stdout is not None
        assert process.stdout.read() == "got\n"
    finally:
        for pid in filter(is_alive, below):
            os.kill(pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGKILL])
def test_the_end_of_the_wrapper_ends_the_command(
    package: Path, name: str, look: redis.Redis, number: signal.Signals
) -> None:
    """Node.js before 22.15 has the program as its child. Its signals go on."""
    process = subprocess.Popen(
        [
            package / "node_modules/.bin/redlatch",
            "run",
            name,
            "--",
            "sh",
            "-c",
            SCRIPT.replace("TERM", "TERM INT QUIT"),
        ],
        env=environment(package),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    command = int(line(process))
    process.send_signal(number)
    gone(command)
    eventually(lambda: not look.exists(name), "the lock is released", LIMIT)
    out, _ = process.communicate(timeout=LIMIT)
    assert out == "got\n"
    assert process.returncode == (5 if number != signal.SIGKILL else -signal.SIGKILL)
