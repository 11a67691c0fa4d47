"""The kinds of locks as they lie in Redis, as far as the runner has to look there itself."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# The value of a string, by whose lock it is.
VALUES = {
    "redlatch": r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}:\d+",
    "redis-py": r"[0-9a-f]{32}",
    "redlock": r"[0-9a-f]{32}",
    "redsync": r"[A-Za-z0-9+/]{22}==",
    "redis-semaphore": r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    "article": r"[0-9a-f]{32}-\d+",
    "adaptive": r".+",
}


@dataclass(frozen=True)
class LockKind:
    """How one kind is asked for, and where it lies."""

    name: str
    options: dict[str, object]
    prefix: str = ""
    hash: bool = False
    # The name of its channel, as far as the name of the lock.
    channel: str = "redisson_lock__channel:"
    # Whether its own redlatch writes what the other side writes.
    same_value: bool = False
    # Nobody has it: each request names it as its `counter`.
    counter: bool = False

    def value_of(self, family: str) -> str:
        return VALUES[self.name if self.same_value else family]


KINDS = {
    kind.name: kind
    for kind in (
        LockKind("reentrant", {}, hash=True),
        # Each request about it names a side.
        LockKind("read-write", {}, hash=True, channel="redisson_rwlock:"),
        # Each request about it names one lock, or several.
        LockKind("multi", {}, hash=True),
        # Each request about it has a limit.
        LockKind("semaphore", {"kind": "semaphore"}, channel="redisson_sc:"),
        LockKind("plain-semaphore", {}, channel="redisson_sc:", counter=True),
        LockKind("latch", {}, channel="redisson_countdownlatch__channel__", counter=True),
        # Its waiters stand in a queue in Redis, and each listens to a channel of its own.
        LockKind("fair", {"kind": "fair"}, hash=True),
        LockKind("simple", {"kind": "simple"}),
        LockKind("simple, reentrant", {"kind": "simple", "reentrant": True}),
        LockKind("redis-py", {"kind": "redis-py"}),
        LockKind("redlock", {"kind": "redlock"}),
        LockKind("redsync", {"kind": "redsync"}),
        LockKind("redis-semaphore", {"kind": "redis-semaphore"}, prefix="mutex:"),
        LockKind("article", {"kind": "article"}, prefix="lock:", same_value=True),
        LockKind("adaptive", {"kind": "adaptive"}),
    )
}

# The kinds that others than redlatch and Redisson speak. Redisson speaks the kinds before `simple`.
FOREIGN = ("redis-py", "redlock", "redsync", "redis-semaphore", "article", "adaptive")


def expand(names: list[str]) -> list[LockKind]:
    """The kinds of these names; `foreign` stands for all that another side speaks too."""
    found = []
    for name in names:
        found += [KINDS[each] for each in (FOREIGN if name == "foreign" else (name,))]
    return found


# Free permits, taken ones, those of them whose time is not over, and how many ms the last of them is kept.
RECORD = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local last = redis.call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')[2] or now
return {tonumber(redis.call('GET', KEYS[1]) or 0), redis.call('ZCARD', KEYS[2]),
        redis.call('ZCOUNT', KEYS[2], '(' .. now, '+inf'), last - now}
"""


def taken(semaphore: str) -> str:
    """The key of the taken permits of a semaphore."""
    return f"{semaphore if '{' in semaphore else '{' + semaphore + '}'}:timeout"


def recorded(redis: Callable[..., Any], semaphore: str) -> list[int]:
    """The server's record of a semaphore, read together."""
    found: list[int] = redis("EVAL", RECORD, "2", semaphore, taken(semaphore))
    return found
