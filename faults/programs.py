"""Programs of the matrix that play an act in a process of their own; see conformance/drivers/README.md."""

from __future__ import annotations

import json
import subprocess
import threading
import time

from world import PATIENCE, Failed, begin, build

building = threading.Lock()
built: dict[str, tuple[str, ...]] = {}
# The plan of a program that gets nothing more.
OVER = "(it is over)"
# Sizes that take long want what is measured to be what is shipped.
profile = "debug"


def command(language: str) -> tuple[str, ...]:
    with building:
        if language not in built:
            built[language] = build.ours(profile)[language]().command
        return built[language]


class Program:
    """An act that is being played."""

    def __init__(self, language: str, act: str, url: str, lock: str, lease_ms: int, size: int) -> None:
        plan = {"act": act, "url": url, "lock": lock, "lease_ms": lease_ms, "size": size}
        words = [*command(language), "act", json.dumps(plan)]
        self.process = begin(words, stderr=subprocess.STDOUT)
        self.lines: list[str] = []
        self.seen = 0
        self.changed = threading.Condition()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in self.process.stdout or ():
            with self.changed:
                self.lines.append(line.rstrip())
                self.changed.notify_all()
        with self.changed:
            self.lines.append(OVER)
            self.changed.notify_all()

    def said(self, word: str, within: float = PATIENCE) -> str:
        """The next line that begins with this word."""
        end = time.monotonic() + within
        with self.changed:
            while True:
                while self.seen < len(self.lines):
                    line = self.lines[self.seen]
                    self.seen += 1
                    if line.startswith(word):
                        return line
                    if line.startswith("failed") or line == OVER:
                        raise Failed(f"instead of {word}: {' / '.join(self.lines[-5:])}")
                if not self.changed.wait(end - time.monotonic()) and time.monotonic() > end:
                    raise Failed(f"{word} is not said within {within} s: {' / '.join(self.lines[-5:])}")

    def go_on(self, told: str = "") -> None:
        assert self.process.stdin
        self.process.stdin.write(f"{told}\n")
        self.process.stdin.flush()

    def ended(self, code: int = 0, within: float = PATIENCE) -> None:
        try:
            self.process.wait(within)
        except subprocess.TimeoutExpired:
            raise Failed(f"it does not end: {' / '.join(self.lines[-5:])}") from None
        if self.process.returncode != code:
            told = " / ".join(self.lines[-5:])
            raise Failed(f"it ended with {self.process.returncode}, and not {code}: {told}")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
