"""Checks a recorded history of locks against what a lock may do.

Times come from one clock, of the machine that recorded. A caller knows less than what happened, so two
intervals belong to a hold:

- it was certainly held from the answer of its acquire to the call of its release, if that release succeeded, else to
  the last moment at which its client called it held; in both cases at most until somebody deleted the key;
- it was possibly held, or waited for, from the call of its acquire to the answer of its release, and for as long as
  its lease after that if an answer was an error, or its process died.

The rules: certain intervals of one name never overlap, but those of readers, and those of a caller that reads while it
writes, and permits of a semaphore, of which there are never more than its limit; a try for permits is refused only while others possibly have
too many of them, or kept out somebody of the same client who still waits; a try is refused only while somebody possibly holds, the try of a reader only while somebody possibly writes; fencing
tokens grow from each hold to all that began after it was granted; the counts that a caller is told are those it made;
the hold of a multi lock is one of each of its names, its try is refused only while somebody possibly holds one of them, and the deletion of one is
the loss of all; the lock of a quorum may stay for a lease on the server that did not confirm its release, and a deletion at some of its servers ends
it or does not;
a hold that is lost before it is released is told so once, others never; what was told lost is not called held any more; a hold whose key
was deleted is not called held for longer than a lease; a hold whose key nobody deleted is not lost before its time is over.

The lines of a file are those that `conformance/drivers/README.md` describes. Names have nothing to do with each other, so they
are read one after the other.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Protocol

DIED = "died"
# Every lease is relied on, from the call of its acquire on, for a little more than this part of it.
RELIED_ON = 0.97
# A lock that these give up is not possessed any longer than its clean-up takes.
ENDED = ("timeout", "cancelled", "foreign_kind")


@dataclass(slots=True)
class Hold:
    """An acquire, the hold that it brought if it succeeded, and the end of that. Times in any unit."""

    name: str
    who: str
    called: float
    answered: float
    status: str  # of the acquire; or that its process died
    tried: bool = False  # it did not wait
    token: int | None = None
    counted: int = 0  # levels made and told
    told: int = 0
    sure: float = 0  # when the client last called it held, and whether it did before the release
    kept: bool = True
    until: float = 0  # to when the client then relied on it, asked right before the last release
    freed: float | None = None  # when the last release was called, and answered, and how
    done: float | None = None
    release: str = ""
    lost: list[float] = field(default_factory=list)  # when it was told so
    watched: bool = True  # what it was told of a loss is known
    reads: bool = False  # it has the read side of a read-write lock
    permits: int = 1  # of a semaphore
    whole: tuple[str, ...] = ()  # all names of its multi lock
    elsewhere: list[Deletion] = field(default_factory=list)  # of the other names of its multi lock

    @property
    def granted(self) -> bool:
        return self.status == "ok"

    @property
    def given_back(self) -> float:
        """When its last release was called."""
        assert self.freed is not None
        return self.freed

    def possible(self, lease: float) -> tuple[float, float]:
        if self.granted and self.release == "ok" and self.done is not None:
            return self.called, self.done
        if self.status in ENDED:
            # The clean-up releases it: one more copy, and the way there.
            return self.called, self.answered + lease
        return self.called, max(self.answered, self.done or 0.0) + 2 * lease

    @property
    def is_lost(self) -> bool:
        return bool(self.lost) or self.release == "lost"

    def lost_at(self) -> float | None:
        """When it was told lost, by its release at the latest."""
        ended = [self.done] if self.release == "lost" and self.done is not None else []
        return min([*self.lost, *ended]) if ended else None


@dataclass(slots=True)
class Deletion:
    """Somebody deletes a key: the call and its answer. A deletion at some servers of a quorum is weak: it
    may end a hold, and that hold is then told lost."""

    called: float
    answered: float
    weak: bool = False


@dataclass
class Past:
    """All that happened to one name."""

    holds: list[Hold]
    deletions: list[Deletion] = field(default_factory=list)
    # Permits of a semaphore; how long one is kept beyond its lease.
    limit: int = 0
    margin: float = 0
    # How long after a release a server of a quorum may keep it.
    lingers: float = 0

    def __post_init__(self) -> None:
        self.holds.sort(key=lambda hold: hold.called)
        self.deletions.sort(key=lambda deletion: deletion.answered)
        self.answers = [deletion.answered for deletion in self.deletions]

    @property
    def shared(self) -> bool:
        return any(hold.reads for hold in self.holds)

    def like(self, holds: list[Hold], deletions: list[Deletion] | None = None) -> Past:
        """Other holds of the same name."""
        deletions = self.deletions if deletions is None else deletions
        return Past(holds, deletions, self.limit, self.margin, self.lingers)

    def deletion(self, hold: Hold) -> Deletion | None:
        """The first that may have been this hold's."""
        at = bisect_left(self.answers, hold.called)
        while at < len(self.deletions) and self.deletions[at].weak and not hold.is_lost:
            at += 1
        return self.deletions[at] if at < len(self.deletions) else None

    def surely_deleted(self, hold: Hold) -> Deletion | None:
        """The first deletion that was called after the grant, and is not weak: it ended what was held."""
        at = bisect_left(self.answers, hold.answered)
        later = (self.deletions[index] for index in range(at, len(self.deletions)))
        return next((one for one in later if not one.weak and one.called > hold.answered), None)

    def causes(self, hold: Hold, until: float) -> bool:
        """Whether a deletion may have ended this hold by then, of this name or of another of its multi lock."""
        deletion = self.deletion(hold)
        own = [deletion] if deletion else []
        return any(one.called <= until for one in (*own, *hold.elsewhere))

    def may_be_deleted(self, hold: Hold) -> bool:
        """Whether somebody deleted it, or may have, before it was released."""
        at = bisect_left(self.answers, hold.called)
        end = max(hold.answered, hold.done or 0.0)
        return any(one.called <= end for one in (*self.deletions[at : at + 1], *hold.elsewhere))

    def possible(self, hold: Hold, lease: float) -> tuple[float, float]:
        """When it may have kept others out."""
        begin, end = hold.possible(lease)
        return begin, end + (self.lingers if hold.release == "ok" else 0)

    def certain(self, hold: Hold) -> tuple[float, float] | None:
        if not hold.granted:
            return None
        end = hold.freed if hold.release == "ok" and hold.freed is not None else hold.sure
        if deletion := self.deletion(hold):
            end = min(end, deletion.called)
        return (hold.answered, end) if end > hold.answered else None


def check(history: Iterable[Hold], lease: float) -> list[str]:
    """The faults in holds of any names; `lease`: how long anything lives in Redis that nobody renews."""
    by_name: dict[str, list[Hold]] = defaultdict(list)
    for hold in history:
        by_name[hold.name].append(hold)
    return [line for holds in by_name.values() for line in check_past(Past(holds), lease)]


def check_past(past: Past, lease: float) -> list[str]:
    found = (
        too_many(past) if past.limit else overlaps(past),
        refused_permits(past, lease) if past.limit else refusals(past, lease),
        tokens(past.holds),
        counts(past),
        losses(past, lease),
    )
    return [line for lines in found for line in lines]


def overlaps(past: Past) -> list[str]:
    wrong = []
    holds = past.holds
    spans = sorted((span, index) for index, hold in enumerate(holds) if (span := past.certain(hold)))
    writers, readers = Ends(), Ends()
    for (begin, end), index in spans:
        hold = holds[index]
        # A writer may read, and goes on reading when it has written; a reader that begins to write would be one too many.
        if hold.reads:
            until, last = writers.of_others(hold.who)
        else:
            until, last = max(writers.latest, readers.latest)
        if begin < until:
            wrong.append(f"two hold {hold.name}: {last} until {until}, {hold.who} from {begin}")
        (readers if hold.reads else writers).add(end, hold.who)
    return wrong


Span = tuple[float, float]


def crowded(spans: list[tuple[Span, Hold]], room: int) -> list[tuple[float, float, Hold]]:
    """The stretches of time in which these holds have more permits than there is room, each with the last hold."""
    # Holds that end make room for holds that begin at the same time.
    edges = [(end, 0, -hold.permits, hold) for (_, end), hold in spans]
    edges += [(begin, 1, hold.permits, hold) for (begin, _), hold in spans]
    edges.sort(key=lambda edge: edge[:2])
    found, taken = [], 0
    for (at, _, permits, hold), later in pairwise([*edges, (float("inf"), 0, 0, Hold("", "", 0, 0, ""))]):
        taken += permits
        if taken > room:
            found.append((at, later[0], hold))
    return found


def too_many(past: Past) -> list[str]:
    spans = [(span, hold) for hold in past.holds if (span := past.certain(hold))]
    return [
        f"more than {past.limit} permits of {hold.name} are out at {at}, when {hold.who} has {hold.permits}"
        for at, _, hold in crowded(spans, past.limit)
    ]


def is_refused(hold: Hold) -> bool:
    return hold.tried and hold.status == "timeout"


class Touching:
    """Which stretches of time touch another one."""

    def __init__(self, spans: Iterable[Span]) -> None:
        ordered = sorted(spans)
        self.begins = [begin for begin, _ in ordered]
        # The latest end of a span and of all before it.
        self.ends = list(accumulate((end for _, end in ordered), max))

    def __call__(self, begin: float, end: float) -> bool:
        begun = bisect_right(self.begins, end)
        return begun > 0 and self.ends[begun - 1] >= begin


def refused_permits(past: Past, lease: float) -> list[str]:
    """A try that was refused overlaps too many permits of others; or one of its client waits, whom those kept out."""
    spans = [(hold.possible(lease + past.margin), hold) for hold in past.holds if not is_refused(hold)]
    full = {
        permits: Touching((begin, end) for begin, end, _ in crowded(spans, past.limit - permits))
        for permits in {0, *(hold.permits for hold in past.holds)}
    }
    waiting: dict[str, list[Hold]] = defaultdict(list)
    for hold in past.holds:
        if not hold.tried:
            waiting[client_of(hold)].append(hold)

    longest = max((hold.answered - hold.called for hold in past.holds), default=0)

    def is_justified(hold: Hold) -> bool:
        if full[hold.permits](hold.called, hold.answered):
            return True
        others = waiting[client_of(hold)]
        first = bisect_left(others, hold.called - longest, key=lambda other: other.called)
        last = bisect_right(others, hold.answered, key=lambda other: other.called)
        # What it waits for is among the spans.
        return any(
            other.answered >= hold.called and full[0](other.called, hold.answered)
            for other in others[first:last]
        )

    return [
        f"{hold.who} was refused {hold.permits} permits of {hold.name} at {hold.answered}, which were free"
        for hold in past.holds
        if is_refused(hold) and not is_justified(hold)
    ]


def client_of(hold: Hold) -> str:
    return hold.who.partition("/")[0]


class Ends:
    """The latest end so far, and the latest one of another caller."""

    def __init__(self) -> None:
        self.latest = self.second = (float("-inf"), "")

    def add(self, end: float, who: str) -> None:
        new = (end, who)
        if who == self.latest[1]:
            self.latest = max(self.latest, new)
        elif new > self.latest:
            self.latest, self.second = new, self.latest
        elif new > self.second:
            self.second = new

    def of_others(self, who: str) -> tuple[float, str]:
        return self.second if self.latest[1] == who else self.latest


def refusals(past: Past, lease: float) -> list[str]:
    """A try that was refused overlaps somebody else's possible hold, that of a reader somebody else's writing."""
    return [
        f"{hold.who} was refused {hold.name} at {hold.answered}, which nobody had"
        for hold in refused_in_vain(past, lease)
        if not hold.whole
    ]


def refused_in_vain(past: Past, lease: float) -> list[Hold]:
    return [hold for reads in (False, True) for hold in in_vain(past, lease, reads=reads)]


def in_vain(past: Past, lease: float, *, reads: bool) -> list[Hold]:
    found, holds = [], past.holds
    # Readers keep no reader out.
    none = (float("-inf"), float("-inf"))
    spans = [none if reads and hold.reads else past.possible(hold, lease) for hold in holds]
    # The two that last longest of those that began before: one of them may be the try itself.
    longest = second = (float("-inf"), -1)
    begun = 0
    tries = [
        index
        for index, hold in enumerate(holds)
        if hold.tried and hold.status == "timeout" and hold.reads == reads
    ]
    for index in sorted(tries, key=lambda index: holds[index].answered):
        hold = holds[index]
        while begun < len(holds) and holds[begun].called <= hold.answered:
            other = (spans[begun][1], begun)
            if other > longest:
                longest, second = other, longest
            elif other > second:
                second = other
            begun += 1
        if not any(end >= hold.called for end, other in (longest, second) if other != index):
            found.append(hold)
    return found


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


def counts(past: Past) -> list[str]:
    return [
        f"{hold.who} made {hold.counted} levels of {hold.name} and was told {hold.told}"
        for hold in past.holds
        if hold.release == "ok" and hold.told != hold.counted and past.certain(hold)
    ]


def losses(past: Past, lease: float) -> list[str]:
    wrong = []
    for hold in past.holds:
        if not hold.granted:
            continue
        what = f"{hold.name} of {hold.who} since {hold.answered}"
        # A holder that finds it lost by releasing it is told by that, and perhaps by nothing else; the rule about deletions
        # bounds how late that may be. A holder that did not call it held before the release had been told, so once.
        if hold.watched and hold.release == "lost" and len(hold.lost) not in ((0, 1) if hold.kept else (1,)):
            wrong.append(f"{what} was lost, which was told {len(hold.lost)} times")
        if hold.lost and hold.release == "ok":
            wrong.append(f"{what} was told lost and then released")
        if hold.lost and hold.sure > min(hold.lost):
            wrong.append(f"{what} was told lost and then called held")
        deletion = past.surely_deleted(hold)
        if deletion and hold.sure > deletion.answered + lease:
            wrong.append(f"{what} was deleted by {deletion.answered} and called held at {hold.sure}")
        told, time = hold.lost_at(), max(hold.called + RELIED_ON * lease, hold.until)
        if told is not None and told < time and not past.causes(hold, told):
            wrong.append(f"{what} was lost by {told}, had time until {time}, and nobody had deleted it")
    return wrong


# ---- what a check must find ----


def planted(past: Past, lease: float) -> dict[str, Past]:
    """Copies of a name's history with one thing wrong in each: a check that accepts one of these is none."""
    found: dict[str, Past] = {}
    certain = sorted((hold for hold in past.holds if past.certain(hold)), key=lambda hold: hold.answered)
    # A deletion would explain what is planted.
    certain = [hold for hold in certain if hold.release == "ok" and not past.may_be_deleted(hold)]
    if not certain:
        return found

    def with_one(hold: Hold) -> Past:
        return past.like([*past.holds, hold])

    def instead(old: Hold, new: Hold) -> Past:
        return past.like([new if hold is old else hold for hold in past.holds])

    example = max(certain, key=lambda hold: hold.given_back - hold.answered)
    middle = (example.answered + example.given_back) / 2
    # One that writes: it is wrong beside anybody.
    # One for a semaphore wants all permits.
    all_of_it = past.limit or 1
    alone: dict[str, Any] = {"token": None, "counted": 1, "told": 1, "reads": False, "permits": all_of_it}
    second = replace(example, who="planted", called=middle, answered=middle, **alone)
    found["a second holder"] = with_one(
        replace(second, freed=middle + lease, done=middle + lease, release="ok")
    )
    unsure: dict[str, Any] = {
        "sure": middle + lease,
        "freed": None,
        "done": middle + lease,
        "release": "lost",
    }
    found["a second holder that lost it later"] = with_one(replace(second, **unsure, lost=[middle + lease]))
    end = max(max(hold.answered, hold.done or 0.0) for hold in past.holds) + 10 * lease
    end += past.margin
    nobody = Hold(example.name, "planted", end, end + lease / 1000, "timeout", tried=True, permits=all_of_it)
    found["a try refused while free"] = with_one(nobody)
    if any(hold.reads for hold in past.holds):

        def reader(begin: float, end: float, who: str = "planted") -> Hold:
            times: dict[str, Any] = {
                "called": begin,
                "answered": begin,
                "sure": end,
                "freed": end,
                "done": end,
            }
            return replace(second, who=who, reads=True, release="ok", **times)

        writers = [hold for hold in certain if not hold.reads and hold.given_back > hold.answered]
        if writers:
            writer = max(writers, key=lambda hold: hold.given_back - hold.answered)
            inside = (writer.answered + writer.given_back) / 2
            found["a reader beside a writer"] = with_one(reader(inside, inside + lease))
            found["a reader that begins to write"] = with_one(
                reader(writer.called - lease, inside, writer.who)
            )
        asks = [reader(end, end + lease), replace(nobody, who="planted too", reads=True)]
        found["a reader's try refused beside a reader"] = past.like([*past.holds, *asks])
    with_token = [hold for hold in certain if hold.token is not None]
    if with_token:
        first = with_token[0]
        after: dict[str, Any] = {
            "called": end,
            "answered": end,
            "sure": end,
            "freed": end,
            "done": end,
            "who": "planted",
        }
        found["a token twice"] = with_one(replace(first, **after))
        found["a token that falls"] = with_one(replace(first, **after, token=(first.token or 0) - 1))
    found["a wrong count"] = instead(certain[0], replace(certain[0], told=certain[0].told + 1))
    if past.limit == 0 and (pair := undisturbed(past, certain)):
        first, follower = pair
        late = (follower.answered + follower.given_back) / 2 + lease * 1e-6
        found["a release that came too late"] = instead(first, replace(first, freed=late, done=late))
    found["a loss that is none"] = instead(example, replace(example, lost=[middle]))
    quiet = replace(example, release="lost", sure=example.answered, lost=[], watched=True, kept=False)
    found["a loss that is not told"] = instead(example, quiet)
    found["a loss that is told twice"] = instead(example, replace(quiet, lost=[middle, middle]))
    found["held after it was told lost"] = instead(
        example, replace(quiet, lost=[middle], sure=example.given_back)
    )
    long_ago = Deletion(middle, middle)
    deaf = replace(quiet, lost=[middle + 3 * lease], sure=middle + 2 * lease)
    others = [hold for hold in past.holds if hold is not example]
    found["held long after its key was deleted"] = past.like([*others, deaf], [*past.deletions, long_ago])
    # A release may be the first to tell, but not of what happened a lease before.
    late_found = replace(
        quiet, kept=True, sure=middle + 2 * lease, freed=middle + 2 * lease, done=middle + 2 * lease
    )
    found["a loss that its release tells a lease too late"] = past.like(
        [*others, late_found], [*past.deletions, long_ago]
    )
    # Told before its time by nothing but its release, or by its event.
    early = replace(example, release="lost", lost=[], kept=True, until=(example.done or 0.0) + lease)
    found["a loss without a cause that its release tells"] = instead(example, early)
    event = replace(early, lost=[example.given_back], kept=False)
    found["a loss without a cause that is told at once"] = instead(example, event)
    return found


def undisturbed(past: Past, certain: list[Hold]) -> tuple[Hold, Hold] | None:
    """One hold after another while nobody deleted the key: a deletion would end what is certain of the first."""
    for first, follower in pairwise(certain):
        deletion = past.deletion(first)
        if first.reads and follower.reads:
            continue
        if follower.answered > first.given_back and not (deletion and deletion.called <= follower.given_back):
            return first, follower
    return None


class Checker(Protocol):
    """Another program that judges the same histories."""

    def check(self, past: Past) -> None: ...

    def reject(self, past: Past, variants: dict[str, Past]) -> None: ...


def reject(past: Past, lease: float, other: Checker | None = None) -> tuple[int, list[str]]:
    """How many violations were planted, and which of them were not found. The other checker gets the same copies."""
    wrong = len(check_past(past, lease))
    variants = planted(past, lease)
    missed = [what for what, variant in variants.items() if len(check_past(variant, lease)) <= wrong]
    if other:
        other.reject(past, variants)
    return len(variants), missed


# ---- files ----


@dataclass
class File:
    """The history of one process. `died`: when it was killed."""

    path: Path
    who: str
    died: int | None = None


@dataclass
class Verdict:
    """The result of a check of many names."""

    wrong: list[str] = field(default_factory=list)
    ends: Counter[str] = field(default_factory=Counter)
    acquisitions: int = 0
    attempts: int = 0
    operations: int = 0
    told: int = 0
    overlaps: int = 0
    planted: int = 0
    missed: list[str] = field(default_factory=list)
    # How long after a deletion those who held were told, in nanoseconds.
    delays: list[float] = field(default_factory=list)

    def count(self, past: Past) -> None:
        for hold in past.holds:
            self.ends[hold.release or hold.status] += 1
            self.attempts += hold.status != DIED
            self.acquisitions += hold.granted
            self.operations += 1 + (2 * hold.counted - 1 if hold.granted else 0)
            self.told += len(hold.lost)
            deletion = past.deletion(hold) if hold.lost else None
            if deletion and hold.answered < deletion.called < hold.lost[0]:
                self.delays.append(hold.lost[0] - deletion.answered)


# Between the names of a multi lock.
COMMA = b","
# The end of a name in a line that is about the read side of it, or about so many of the permits of a semaphore.
READS = b"/read"
PERMITS = re.compile(rb"/(\d+)of(\d+)$")


def lock_of(name: bytes) -> bytes:
    return PERMITS.sub(b"", name.removesuffix(READS))


class Lines:
    """The lines of all files by name, and what was told of losses."""

    def __init__(self, files: list[File]) -> None:
        self.files = files
        self.by_name: dict[bytes, list[tuple[int, bytes]]] = defaultdict(list)
        self.told: dict[tuple[int, bytes, bytes], list[float]] = defaultdict(list)
        self.hangs: list[str] = []
        # The limits of semaphores, by name.
        self.limits: dict[bytes, int] = {}
        for number in range(len(files)):
            self.read(number)

    def read(self, number: int) -> None:
        file = self.files[number]
        begun: dict[bytes, bytes] = {}
        with file.path.open("rb") as lines:
            for line in lines:
                if not line.endswith(b"\n"):
                    break
                kind, caller, rest = line.split(b" ", 2)
                if kind == b"b":
                    begun[caller] = rest
                elif kind == b"l":
                    called, at, _ = rest.split(b" ", 2)
                    self.told[number, caller, called].append(int(at))
                else:
                    del begun[caller]
                    self.add(rest[: rest.index(b" ")], number, line)
        for caller, rest in begun.items():
            name, called = rest.split()
            if file.died is None:
                self.hangs.append(f"{file.who}/{caller.decode()} asked for {name.decode()}: no answer")
            else:
                line = b"e %s %s %s %d died 0 - 0 0 0 0 0 0 0 -" % (caller, name, called, file.died)
                self.add(name, number, line)

    def add(self, name: bytes, number: int, line: bytes) -> None:
        for each in name.split(COMMA):
            self.by_name[lock_of(each)].append((number, line))
        if part := PERMITS.search(name):
            self.limits[lock_of(name)] = int(part[2])

    def holds(self, name: bytes) -> Iterator[Hold]:
        """The holds of a name. Its lines are forgotten here."""
        for number, line in self.by_name.pop(name):
            _, caller, side, called, answered, status, tried, token, *rest = line.split()
            counted, told, sure, kept, until, freed, done = map(int, rest[:7])
            granted = status == b"ok"
            yield Hold(
                name.decode(),
                f"{self.files[number].who}/{caller.decode()}",
                int(called),
                int(answered),
                status.decode(),
                tried == b"1",
                int(token) if granted and token != b"-" else None,
                counted,
                told,
                sure,
                kept == 1,
                until,
                freed if granted else None,
                done if granted else None,
                rest[7].decode() if granted else "",
                self.told.get((number, caller, called), []),
                self.files[number].died is None,
                side.endswith(READS),
                int(part[1]) if (part := PERMITS.search(side)) else 1,
                tuple(side.decode().split(",")) if COMMA in side else (),
            )


def judge(
    files: list[File],
    lease: float,
    deletions: Iterable[tuple[str | None, Deletion]] = (),
    other: Checker | None = None,
    margin: float = 0,
    lingers: float = 0,
) -> Verdict:
    """Checks what processes recorded; a deletion without a name was one of all keys. The other checker judges it too.
    `margin`: for how long permits are kept beyond their lease; `lingers`: how long after a release a server of a
    quorum may keep a lock."""
    deletions = list(deletions)
    lines, verdict = Lines(files), Verdict()
    verdict.wrong += lines.hangs
    # Tries of multi locks, by the number of their names for which nobody kept them out.
    vain: Counter[tuple[str, float, tuple[str, ...]]] = Counter()
    # One of the names that have readers, and one of the others.
    richest, most = {False: Past([]), True: Past([])}, Counter[bool]()
    for name in list(lines.by_name):
        of_name = [deletion for key, deletion in deletions if key in (None, name.decode())]
        limit = lines.limits.get(name, 0)
        holds = list(lines.holds(name))
        for hold in holds:
            hold.elsewhere = elsewhere(hold, deletions)
        past = Past(holds, of_name, limit, margin if limit else 0, lingers)
        vain.update(
            (hold.who, hold.called, hold.whole) for hold in refused_in_vain(past, lease) if hold.whole
        )
        verdict.count(past)
        verdict.overlaps += len(too_many(past) if limit else overlaps(past))
        verdict.wrong += check_past(past, lease)
        if other:
            other.check(past)
        shared, certain = past.shared, sum(1 for hold in past.holds if hold.release == "ok")
        if certain > most[shared]:
            richest[shared], most[shared] = past, certain
    verdict.wrong += [
        f"{who} was refused {', '.join(whole)} after {called}, of which nobody had any"
        for (who, called, whole), names in vain.items()
        if names == len(whole)
    ]
    for past in richest.values():
        planted, missed = reject(past, lease, None if past.shared else other)
        verdict.planted += planted
        verdict.missed += missed
    return verdict


def elsewhere(hold: Hold, deletions: list[tuple[str | None, Deletion]]) -> list[Deletion]:
    """The deletions of the other names of its multi lock while it was held or waited for."""
    if not hold.whole:
        return []
    end = max(hold.answered, hold.done or 0.0)
    return [
        one
        for name, one in deletions
        if name in hold.whole and name != hold.name and one.answered >= hold.called and one.called <= end
    ]


def summary(verdict: Verdict) -> str:
    rejected = verdict.planted - len(verdict.missed)
    return (
        f"history: acquisitions={verdict.acquisitions} violations={len(verdict.wrong)} "
        f"planted={verdict.planted} rejected={rejected}"
    )
