"""A turn: acquires, holds for a while and releases; see conformance/drivers/README.md."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import redlatch
from face import Job, done, enter, pause, seconds

LOOK = 0.05  # how often one that holds looks whether it does
now = time.monotonic_ns


class Turn:
    def __init__(self, request: Job, tell: Callable[[Job], None]) -> None:
        self.request, self.tell = request, tell
        self.called, self.told = 0, 0
        self.permits: int | None = request.get("permits")

    def lost(self, error: redlatch.LockLostError) -> None:
        self.told += 1
        self.tell({"told": error.reason, "as": self.request["as"], "called": self.called, "at": now()})

    async def play(self, lock: Any) -> Job:
        self.called = now()
        # Of permits there is no grant.
        grant, status = await outcome(self.acquire, lock) if self.permits else await outcome(enter, lock)
        times = {"status": status, "called": self.called, "answered": now()}
        return times | (await self.hold(lock, grant) if status == "ok" else {})

    async def acquire(self, lock: Any) -> None:
        wait, lease = seconds(self.request, "wait_ms"), seconds(self.request, "lease_ms")
        if not await done(lock.acquire(timeout=wait, lease=lease, permits=self.permits)):
            raise redlatch.LockTimeoutError

    async def hold(self, lock: Any, grant: Any) -> Job:
        """Does what holders do, and gives all levels back."""
        levels = 1
        if "reenter_ms" in self.request:
            levels += await outcome(lock.acquire, timeout=seconds(self.request, "reenter_ms")) == (True, "ok")
        if "extend_ms" in self.request:
            # A refusal is the loss that the release will tell.
            await outcome(grant.extend, seconds(self.request, "extend_ms"))
        count = lock.hold_count if grant else 1
        rest, sure = self.request["rest_ms"] / 1000, 0
        while True:
            at = now()
            # Permits tell a loss, and nothing else.
            kept = grant.held if grant else not self.told
            if kept and grant:
                sure = at
            if rest <= 0:
                break
            await pause(min(rest, LOOK))
            rest -= LOOK
        for _ in range(levels - 1):
            await outcome(lock.release)
        freed, remaining = now(), grant.remaining if grant else 0
        _, release = await outcome(grant.release) if grant else await outcome(lock.release, self.permits)
        return {
            "token": grant and grant.fencing_token,
            "levels": levels,
            "count": count,
            "sure": sure,
            "kept": kept,
            "until": freed + int(remaining * 1e9) if remaining else 0,
            "freed": freed,
            "done": now(),
            "release": release,
        }


async def outcome(call: Callable[..., Any], *given: Any, **more: Any) -> tuple[Any, str]:
    """The result of a call, and `ok` or the kind of its error."""
    try:
        return await done(call(*given, **more)), "ok"
    except redlatch.LockError as error:
        return None, error.kind
