"""Checks a recorded history of one lock against what a lock may do.

Times come from one clock, of the machine that recorded. What a caller knows is less than what happened, so two
intervals belong to a hold:

- it was certainly held from the answer of its acquire to the call of its release, if that release succeeded;
- it was possibly held, or waited for, from the call of its acquire to the answer of its release, and for as long as
  its lease after that if an answer was an error.

The rules: certain intervals of one name never overlap; a try is refused only while somebody possibly holds; fencing
tokens grow from each hold to all that began after it was granted; the counts that a caller is told are those it made.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass
class Hold:
    """An acquire, the hold that it brought if it succeeded, and the end of that. Times in seconds."""

    name: str
    who: str
    called: float
    answered: float
    status: str  # of the acquire
    tried: bool = False  # it did not wait
    token: int | None = None
    counted: int = 0  # levels made and told
    told: int = 0
    freed: float | None = None  # when the last release was called, and answered, and how
    done: float | None = None
    release: str = ""

    @property
    def granted(self) -> bool:
        return self.status == "ok"

    def certain(self) -> tuple[float, float] | None:
        if self.granted and self.release == "ok" and self.freed is not None:
            return self.answered, self.freed
        return None

    def possible(self, lease: float) -> tuple[float, float]:
        if self.granted and self.release == "ok" and self.done is not None:
            return self.called, self.done
        if self.granted or self.status not in ("timeout", "cancelled", "foreign_kind"):
            return self.called, max(self.answered, self.done or 0.0) + 2 * lease
        # What its clean-up releases: one more copy, and the way there.
        return self.called, self.answered + lease


def check(history: Iterable[Hold], lease: float) -> list[str]:
    """What is wrong with a history; `lease`: how long anything lives in Redis that nobody renews, in seconds."""
    by_name: dict[str, list[Hold]] = defaultdict(list)
    for hold in history:
        by_name[hold.name].append(hold)
    wrong: list[str] = []
    for holds in by_name.values():
        holds.sort(key=lambda hold: hold.called)
        wrong += overlaps(holds) + refusals(holds, lease) + tokens(holds) + counts(holds)
    return wrong


def overlaps(holds: list[Hold]) -> list[str]:
    wrong = []
    spans = sorted((span, index) for index, hold in enumerate(holds) if (span := hold.certain()))
    last, until = None, float("-inf")
    for (begin, end), index in spans:
        hold = holds[index]
        if last is not None and begin < until:
            wrong.append(f"two hold {hold.name}: {last} until {until:.6f}, {hold.who} from {begin:.6f}")
        if end > until:
            last, until = hold.who, end
    return wrong


def refusals(holds: list[Hold], lease: float) -> list[str]:
    """A try that was refused overlaps somebody else's possible hold."""
    wrong = []
    spans = [hold.possible(lease) for hold in holds]
    # Of what began before: the two that last longest, for one of them may be the try itself.
    longest: list[tuple[float, int]] = []
    begun = 0
    tries = [index for index, hold in enumerate(holds) if hold.tried and hold.status == "timeout"]
    for index in sorted(tries, key=lambda index: holds[index].answered):
        hold = holds[index]
        while begun < len(holds) and spans[begun][0] <= hold.answered:
            longest = sorted([*longest, (spans[begun][1], begun)])[-2:]
            begun += 1
        if not any(end >= hold.called for end, other in longest if other != index):
            wrong.append(f"{hold.who} was refused {hold.name} at {hold.answered:.6f}, which nobody had")
    return wrong


def tokens(holds: list[Hold]) -> list[str]:
    wrong = []
    granted = [hold for hold in holds if hold.granted and hold.token is not None]
    by_answer = sorted(granted, key=lambda hold: hold.answered)
    highest, at = -1, 0
    for hold in granted:
        while at < len(by_answer) and by_answer[at].answered < hold.called:
            highest = max(highest, by_answer[at].token or 0)
            at += 1
        if (hold.token or 0) <= highest:
            wrong.append(f"{hold.who} got token {hold.token} of {hold.name} after {highest}")
    seen: dict[int, str] = {}
    for hold in granted:
        if hold.token in seen:
            wrong.append(f"{hold.who} and {seen[hold.token]} got the same token {hold.token} of {hold.name}")
        seen[hold.token or 0] = hold.who
    return wrong


def counts(holds: list[Hold]) -> list[str]:
    return [
        f"{hold.who} made {hold.counted} levels of {hold.name} and was told {hold.told}"
        for hold in holds
        if hold.certain() and hold.told != hold.counted
    ]


def planted(history: list[Hold]) -> dict[str, list[Hold]]:
    """Copies of a history with one thing wrong in each: a check that accepts one of these is none."""

    def copy() -> list[Hold]:
        return [Hold(**asdict(hold)) for hold in history]

    found: dict[str, list[Hold]] = {}
    certain = sorted((hold for hold in history if hold.certain()), key=lambda hold: hold.answered)
    if not certain:
        return found
    example = max(certain, key=lambda hold: hold.freed - hold.answered)
    middle = (example.answered + example.freed) / 2
    second = Hold(
        example.name, "planted", middle, middle, "ok", freed=middle + 60, done=middle + 60, release="ok"
    )
    found["a second holder"] = [*copy(), second]
    end = max(max(hold.answered, hold.done or 0.0) for hold in history) + 3600
    found["a try refused while free"] = [
        *copy(),
        Hold(example.name, "planted", end, end + 1e-3, "timeout", tried=True),
    ]
    with_token = [hold for hold in certain if hold.token is not None]
    if with_token:
        late = Hold(
            with_token[0].name,
            "planted",
            end,
            end,
            "ok",
            token=with_token[0].token,
            freed=end,
            done=end,
            release="ok",
        )
        found["a token twice"] = [*copy(), late]
        lower = Hold(**(asdict(late) | {"token": (with_token[0].token or 0) - 1}))
        found["a token that falls"] = [*copy(), lower]
    miscounted = copy()
    next(hold for hold in miscounted if hold.certain()).told += 1
    found["a wrong count"] = miscounted
    released = copy()
    early = next(hold for hold in released if hold.name == example.name and hold.called == example.called)
    follower = next(
        (hold for hold in certain if hold.name == early.name and hold.answered > early.freed), None
    )
    if follower and early.freed is not None:
        early.freed = (follower.answered + follower.freed) / 2 + 1e-6
        early.done = early.freed
        found["a release that came too late"] = released
    return found


def judge(history: list[Hold], lease: float) -> tuple[list[str], int, int]:
    """What is wrong; how many violations were planted, and how many of them were found."""
    wrong = check(history, lease)
    variants = planted(history)
    rejected = sum(1 for variant in variants.values() if len(check(variant, lease)) > len(wrong))
    return wrong, len(variants), rejected


def main() -> int:
    lease, history = float(sys.argv[1]), []
    for file in sys.argv[2:]:
        history += [Hold(**json.loads(line)) for line in Path(file).read_text().splitlines()]
    wrong, variants, rejected = judge(history, lease)
    for line in wrong[:20]:
        print(line)
    granted = sum(1 for hold in history if hold.granted)
    print(f"history: acquisitions={granted} violations={len(wrong)} planted={variants} rejected={rejected}")
    return 1 if wrong or rejected < variants else 0


if __name__ == "__main__":
    sys.exit(main())
