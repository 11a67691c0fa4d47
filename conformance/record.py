"""Records what this version sends for a lock of each kind, into conformance/recorded/VERSION.json. At a release; test_recorded.py plays it
beside later versions.

    scripts/with-server python conformance/record.py
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "scripts" / "lib"))
import redlatch  # noqa: E402
from server import Redis, eventually  # noqa: E402

NAME = "recorded"
LEASE = 1.234  # seconds; as milliseconds it is no other number of a call
LIMIT = 60.0
KINDS = ("reentrant", "fair", "simple", "read", "write", "semaphore")


def lock_of(client: redlatch.Client, kind: Any) -> redlatch.Lock | redlatch.Semaphore:
    if kind == "semaphore":
        return client.semaphore(NAME, limit=1)
    if kind in ("read", "write"):
        sides = client.rw_lock(NAME)
        return sides.read if kind == "read" else sides.write
    return client.lock(NAME, kind=kind)


class Monitor:
    """The scripts that a server is asked to run, as MONITOR tells them."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.scripts: dict[str, str] = {}
        self.look = Redis(port, LIMIT)
        self.look("MONITOR")

    def calls(self) -> list[dict[str, Any]]:
        """Those since the last time."""
        Redis(self.port, LIMIT)("ECHO", "now")
        found: list[dict[str, Any]] = []
        while True:
            line = self.look.read()
            line = line.decode() if isinstance(line, bytes) else str(line)
            words = [
                word.encode().decode("unicode_escape") for word in re.findall(r'"((?:[^"\\]|\\.)*)"', line)
            ]
            if words == ["ECHO", "now"]:
                return found
            if words[0] not in ("EVAL", "EVALSHA") or " lua]" in line:
                continue
            script, count = words[1], int(words[2])
            if words[0] == "EVAL":
                script = hashlib.sha1(words[1].encode()).hexdigest()
                self.scripts[script] = words[1]
            at = int(float(line.split()[0].lstrip("+")) * 1000)
            found.append(
                {"at": at, "script": script, "keys": words[3 : 3 + count], "args": words[3 + count :]}
            )


def record(url: str, kind: str, monitor: Monitor) -> dict[str, Any]:
    with redlatch.Client(url, direct=False, tracking=False, watchdog_lease=LEASE) as client:
        lock = lock_of(client, kind)
        lock.acquire()
        acquire = monitor.calls()[-1]
        eventually(lambda: client.stats()["renewed"] > 0, "it is renewed", LIMIT)
        renew = monitor.calls()[0]
        lock.release()
        return {"acquire": acquire, "renew": renew, "release": monitor.calls()[-1]}


def main() -> None:
    url = os.environ["REDLATCH_URL"]
    monitor = Monitor(urlparse(url).port or 6379)
    kinds = {kind: record(url, kind, monitor) for kind in KINDS}
    used = {call["script"] for calls in kinds.values() for call in calls.values()}
    scripts = {sha: monitor.scripts[sha] for sha in sorted(used)}
    file = HERE / "recorded" / f"{redlatch.__version__}.json"
    file.write_text(json.dumps({"kinds": kinds, "scripts": scripts}, indent=2) + "\n")
    print(file)


if __name__ == "__main__":
    main()
