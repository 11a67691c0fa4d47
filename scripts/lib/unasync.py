"""Makes the Python faces for threads of those for asyncio, and fails if a committed file is another one.

    REDLATCH_BLESS=1 python scripts/lib/unasync.py

It takes `async` and `await` out and replaces words. Lines below `# --- asyncio ---` are left out, up to the next line of this
kind; lines below `# --- threads ---` are comments there and code here. A part that differs in more is by hand for both.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "bindings-python" / "python" / "redlatch"

Words = dict[str, str]

SYNTAX: Words = {
    "async def ": "def ",
    "await ": "",
    "an `async with`": "a `with`",
    "async with": "with",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "redlatch._tasks": "redlatch._threads",
}

CANCELLER = "canceller: _redlatch.Canceller | None = None"

FACE: Words = {
    # What the calls of threads take in place of `cancel_on_lost`, or besides.
    "cancel_on_lost: bool = False,": f"{CANCELLER}, interrupt_on_lost: bool = False,",
    "on_lost, cancel_on_lost": "on_lost, canceller, interrupt_on_lost",
    '"_cancel_on_lost",': '"_canceller", "_interrupt_on_lost"',
    "lease: float | None = None,\n": f"lease: float | None = None, {CANCELLER},\n",
    "timeout: float | None = None) -> PlainSemaphore": f"timeout: float | None = None, {CANCELLER}) -> PlainSemaphore",
    "PlainSemaphore(self, name, timeout)": "PlainSemaphore(self, name, timeout, canceller)",
    "permits: int = 1) -> bool": f"permits: int = 1, {CANCELLER}) -> bool",
    "wait(self, timeout: float | None = None)": f"wait(self, timeout: float | None = None, *, {CANCELLER})",
    "wait, lease, permits)": "wait, lease, permits, canceller)",
    "permits, wait)": "permits, wait, canceller=canceller)",
    "timeout_of(timeout))": "timeout_of(timeout), canceller=canceller)",
    # Docstrings.
    "on_lost: called with the LockLostError when a hold is lost, in the event loop; may be an `async def`": (
        "on_lost: called with the LockLostError when a hold is lost, on a thread of redlatch that it must not block"
    ),
    "cancel_on_lost: then cancels the task": (
        "canceller: ends the wait of a block from another thread, by its `cancel()`: LockCancelledError\n"
        "        interrupt_on_lost: then interrupts the thread"
    ),
    "for a permit, None for ever.": "for a permit, None for ever; `canceller` ends that wait from another thread.",
    "1 to 1,000.": "1 to 1,000. `canceller` is as for Lock.acquire.",
    "A task that is cancelled leaves": "`canceller` is as for Lock.acquire. A signal's exception leaves",
    "Raises UnavailableError, instead of returning False, if the server cannot be reached.\n": (
        "`canceller` ends the wait from another thread. Raises UnavailableError, instead of returning False, if the server\n"
        "        cannot be reached.\n"
    ),
    "tasks, event loops and": "threads, greenlets and",
    "for tasks": "for threads",
    "A task that has": "A flow that has",
    "in whatever task and": "on whatever thread and in whatever",
    "in whatever task": "on whatever thread",
    "; unlike that of asyncio it has to be awaited": "",
    "as asyncio.": "as threading.",
    "with asyncio.": "with threading.",
    "redlatch.aio.RWLock": "redlatch.RWLock",
}

REDISPY: Words = {
    "import _redlatch, aio": "import _redlatch, _sync",
    "`redlatch.aio.Client`": "`redlatch.Client`",
    "aio.Client": "_sync.Client",
    "import AsyncRedis": "import Redis",
    "return AsyncRedis": "return Redis",
    "import Redis as Redis": "import Redis",
    "self,\n        blocking: bool | None = None,": "self, sleep: float | None = None, blocking: bool | None = None,",
    "Awaitable[Literal[True]]": "Literal[True]",
    "from collections.abc import Awaitable\n": "",
    # Docstrings.
    "`redis.asyncio.lock.Lock`": "`redis.lock.Lock`",
    "client of redis.asyncio": "client of redis-py",
    "in the event loop, when": "on the thread that all clients of the process have for that, when",
    "\n\n        Cancelled, it leaves nothing behind.\n        ": "",
    "ConnectionError or a cancellation the": "ConnectionError the",
}

MADE = "# Made of aio.py by scripts/lib/unasync.py."

FILES: dict[str, tuple[str, Words]] = {
    "aio.py": ("_sync.py", FACE),
    "compat/redispy/aio.py": ("compat/redispy/__init__.py", REDISPY),
}

SECTION = re.compile(r" *# --- (asyncio|threads|both) ---")


def sections(source: str, wanted: tuple[str, ...]) -> str:
    """The lines of these sections; those for threads as code."""
    section, lines = "both", []
    for line in source.splitlines(keepends=True):
        if found := SECTION.match(line):
            section = found[1]
        elif section in wanted:
            lines.append(re.sub(r"# ?", "", line, count=1) if section == "threads" else line)
    return "".join(lines)


def for_threads(source: str, words: Words) -> str:
    """The file for threads, before it is formatted."""
    text = sections(source, ("threads", "both"))
    for old, new in (SYNTAX | words).items():
        if old not in text and old in words:
            raise ValueError(f"nothing is called {old!r} any more: take that out of scripts/lib/unasync.py")
        text = text.replace(old, new)
    return text


def main() -> None:
    for source, (name, words) in FILES.items():
        made = for_threads((PACKAGE / source).read_text(), words)
        command = ["ruff", "format", "--quiet", "--stdin-filename", str(PACKAGE / name), "-"]
        text = subprocess.run(command, input=made, capture_output=True, text=True, check=True).stdout
        if os.environ.get("REDLATCH_BLESS"):
            (PACKAGE / name).write_text(text)
        elif (PACKAGE / name).read_text() != text:
            sys.exit(f"{name} is not what {source} says; run REDLATCH_BLESS=1 python scripts/lib/unasync.py")


if __name__ == "__main__":
    main()
