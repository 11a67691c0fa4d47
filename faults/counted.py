"""Histories of plain semaphores and latches, which Porcupine judges: nobody has them, so it is the number alone that counts.

counted.py FILE      judges again what soak.py has kept, with the model `counters`
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from second import Opinion, Porcupine, build

PLAIN, LATCH = "plain-semaphore", "latch"
# The one who looks at the number when all is over.
SERVER = "server"
# How many histories get each violation.
PLANTED_IN = 3


@dataclass(frozen=True)
class Use:
    """A call about a counter. Times are nanoseconds, `who` is the client, and a `look` asks for the number."""

    who: str
    called: int
    answered: int
    op: str
    wanted: int = 1
    status: str = "ok"
    # It was to wait for nothing.
    tried: bool = False
    told: int | None = None

    @property
    def line(self) -> str:
        told = "-" if self.told is None else int(self.told)
        times = f"{self.called} {self.answered}"
        return f"u {self.who} {times} {self.op} {self.wanted} {self.status} {self.tried:d} {told}\n"


@dataclass
class Counted:
    """All calls about one name, which had this number at first."""

    name: str
    counter: str
    number: int
    uses: list[Use]

    @property
    def lines(self) -> list[str]:
        return [f"c {self.name} {self.counter} {self.number}\n", *(use.line for use in self.uses)]

    def like(self, uses: Iterable[Use]) -> Counted:
        return replace(self, uses=list(uses))

    @property
    def last(self) -> Use | None:
        """The server's number in the end."""
        return next((use for use in self.uses if use.who == SERVER), None)

    @property
    def is_certain(self) -> bool:
        """Nothing of it may have been done or not."""
        return all(use.status in ("ok", "timeout") for use in self.uses)


# ---- what must not be ----


def counts_more(past: Counted) -> Counted | None:
    return with_last(past, 1)


def counts_less(past: Counted) -> Counted | None:
    return with_last(past, -1) if past.last and past.last.told else None


def with_last(past: Counted, by: int) -> Counted | None:
    last = past.last
    if last is None or last.told is None or (past.counter == LATCH and not last.told):
        return None
    return past.like(replace(use, told=last.told + by) if use is last else use for use in past.uses)


def granted_instead(past: Counted) -> Counted | None:
    """A try that was refused has taken its permits."""
    found = next((use for use in past.uses if use.op == "acquire" and use.tried and use.status != "ok"), None)
    return (
        past.like(replace(use, status="ok") if use is found else use for use in past.uses) if found else None
    )


def in_the_end(past: Counted, op: str, told: int | None, status: str) -> Counted | None:
    """A call after all others, before the server is looked at."""
    last = past.last
    if last is None or any(use.answered > last.called - 3 for use in past.uses if use is not last):
        return None
    late = Use("planted", last.called - 3, last.called - 2, op, status=status, tried=True, told=told)
    return past.like([*past.uses, late])


def tells_another(past: Counted) -> Counted | None:
    return in_the_end(past, "look", past.last.told + 1, "ok") if past.last and past.last.told else None


def refused_though_free(past: Counted) -> Counted | None:
    is_free = past.counter == PLAIN and past.last and past.last.told
    return in_the_end(past, "acquire", None, "timeout") if is_free else None


def kept_out(past: Counted) -> Counted | None:
    is_open = past.counter == LATCH and past.last and past.last.told == 0
    return in_the_end(past, "wait", None, "timeout") if is_open else None


def drained_of_more(past: Counted) -> Counted | None:
    """All permits were taken, and one more, while nobody else did anything."""
    for one in past.uses:
        others = (use for use in past.uses if use is not one)
        if one.op == "drain" and all(
            use.answered < one.called or use.called > one.answered for use in others
        ):
            assert one.told is not None
            return past.like(replace(use, told=one.told + 1) if use is one else use for use in past.uses)
    return None


def let_in_too_early(past: Counted) -> Counted | None:
    left, opens = past.number, 0
    for use in sorted(past.uses, key=lambda use: use.called):
        left -= use.wanted if use.op == "down" else 0
        if left <= 0:
            opens = use.called
            break
    if past.counter != LATCH or not opens:
        return None
    return past.like([*past.uses, Use("planted", opens - 2, opens - 1, "wait")])


PLANTED: dict[str, Callable[[Counted], Counted | None]] = {
    "one permit or count too many": counts_more,
    "one permit or count too few": counts_less,
    "a refused try that takes permits": granted_instead,
    "a number that was not there": tells_another,
    "a refusal while permits are free": refused_though_free,
    "a waiter kept out at an open latch": kept_out,
    "more permits drained than there are": drained_of_more,
    "a waiter let in at a shut latch": let_in_too_early,
}


# ---- the verdict ----


def judge(pasts: list[Counted], porcupine: Porcupine) -> Opinion:
    """On all of them, and on copies of some into which a violation is planted."""
    opinion, planted = porcupine.opinion, defaultdict[str, int](int)
    for past in pasts:
        answer = porcupine.answer(past.lines)
        porcupine.count(answer)
        if not past.is_certain or answer["violations"] or answer["undecided"]:
            continue
        for what, plant in PLANTED.items():
            if planted[what] < PLANTED_IN and (variant := plant(past)):
                planted[what] += 1
                opinion.planted += 1
                if not porcupine.answer(variant.lines)["violations"]:
                    opinion.missed.append(f"{what}, in {past.name}")
    return opinion


def wrong(opinion: Opinion) -> list[str]:
    return [*opinion.wrong, *(f"planted and not found: {what}" for what in opinion.missed)]


def save(pasts: list[Counted], file: Path) -> None:
    file.write_text(json.dumps([asdict(past) for past in pasts]))


def load(file: Path) -> list[Counted]:
    kept = json.loads(file.read_text())
    return [Counted(**past | {"uses": [Use(**use) for use in past["uses"]]}) for past in kept]


def main() -> int:
    with Porcupine(build()) as porcupine:
        opinion = judge(load(Path(sys.argv[1])), porcupine)
    print(*wrong(opinion), opinion.summary(), sep="\n")
    return 1 if wrong(opinion) else 0


if __name__ == "__main__":
    sys.exit(main())
