"""The order in which a fair lock went from owner to owner, as MONITOR shows it. No client is asked."""

import re

from tap import Tap

WORD = re.compile(r'"((?:[^"\\]|\\.)*)"')


class Turns:
    """The record of what the scripts of all clients do with the lock and its queue."""

    def __init__(self, tap: Tap, key: str, queue_key: str) -> None:
        self.tap, self.key, self.queue_key = tap, key, queue_key
        self.seen = len(tap.lines)
        self.line: list[str] = []
        self.holder = ""
        # The owners that left the queue without the lock, and the clients of all owners that ever stood there.
        self.dropped: list[str] = []
        self.clients: set[str] = set()
        self.grants = 0
        self.violations: list[str] = []

    def follow(self) -> int:
        """Reads on; how often the lock was granted until now."""
        new = self.tap.lines[self.seen :]
        self.seen += len(new)
        for line in new:
            if self.key in line and " lua]" in line.split('"')[0]:
                self.see(*WORD.findall(line))
        return self.grants

    def see(self, command: str, key: str = "", *words: str) -> None:
        command = command.lower()
        if key == self.queue_key:
            if command == "rpush":
                self.line.append(words[0])
                self.clients.add(client_of(words[0]))
            elif command == "lset":  # the owner has a new name, after a new connection
                self.line[int(words[0])] = words[1]
            elif command == "lpop" and self.line:
                self.left(self.line.pop(0))
            elif command == "lrem" and words[1] in self.line:
                self.line.remove(words[1])
                self.left(words[1])
        elif key == self.key:
            if command in ("hset", "hincrby") and not words[1].startswith("-"):
                self.granted(words[0])
            elif command in ("del", "hdel"):
                self.holder = ""

    def left(self, owner: str) -> None:
        if owner != self.holder:
            self.dropped.append(owner)

    def granted(self, owner: str) -> None:
        if owner == self.holder:
            return
        self.holder = owner
        self.grants += 1
        if owner in self.dropped:  # it left the queue for the lock
            self.dropped.remove(owner)
            before = []
        else:
            before = self.line[: self.line.index(owner)] if owner in self.line else self.line
        if before:
            self.violations.append(f"{owner} came before {before}")
        for lost in [each for each in self.dropped if client_of(each) == client_of(owner)]:
            self.dropped.remove(lost)
            self.violations.append(f"{lost} lives, and lost its place")


def client_of(owner: str) -> str:
    """The part that is the same in all owners of a client: redlatch has another last group after a new connection."""
    return owner.rpartition("-")[0]
