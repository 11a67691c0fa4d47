"""Which rows there are: the scenarios, with everybody who can play their actors."""

import itertools
from dataclasses import dataclass, field

from drivers import Side
from kinds import FOREIGN, LockKind, expand

# A row whose steps pause for so long together takes next to nothing of the machine.
STILL_MS = 3000


@dataclass
class Row:
    """One scenario with the drivers that play its actors."""

    scenario: dict
    sides: dict[str, Side]
    kinds: dict[str, LockKind]
    name: str | None = None
    checks: int = 0
    failure: str = ""
    trace: list[str] = field(default_factory=list)
    told: list[tuple[str, str, str, str]] = field(default_factory=list)

    @property
    def title(self) -> str:
        who = " × ".join(f"{side.name}: {self.kinds[actor].name}" for actor, side in self.sides.items())
        return f"{self.scenario['name']}{f' {self.name!r}' if self.name else ''} [{who}]"

    @property
    def prefix(self) -> str:
        """The prefix that a kind of this row sets before the name, so that all actors mean the same key."""
        return max((kind.prefix for kind in self.kinds.values()), key=len)

    def stands_still(self) -> bool:
        return sum(step.get("pause_ms", 0) for step in self.scenario["steps"]) >= STILL_MS


def rows(table: list[dict], sides: list[Side], topology: str, long: bool) -> list[Row]:
    """`long`: every pair of sides, also those that `pairs` leaves out in the short form."""
    found = []
    for scenario in table:
        if topology in scenario.get("not_on", ()):
            continue
        for name in scenario.get("names", [None]):
            if topology in scenario.get("names_not_on", {}).get(name, ()):
                continue
            for kinds, actors in casts(scenario, sides, long):
                found.append(Row(scenario, actors, kinds, name))
    return found


BRIEF = 3  # rows of a scenario with the same kinds, in the brief form


def in_brief(found: list[Row]) -> list[Row]:
    """A few rows of each scenario and its kinds: the next ones of its sides each time, so that each pair plays every kind of lock."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in found:
        names = (row.scenario["name"], str(row.name), *(kind.name for kind in row.kinds.values()))
        groups.setdefault(names, []).append(row)
    turns: dict[tuple[str, ...], int] = {}
    chosen = []
    for (_, _, *kinds), group in groups.items():
        turn = turns.get(tuple(kinds), 0)
        turns[tuple(kinds)] = turn + BRIEF
        chosen += [group[(turn + number) % len(group)] for number in range(min(BRIEF, len(group)))]
    return chosen


def left_out(table: list[dict], topology: str) -> list[str]:
    """Scenarios that make no sense on this topology, and why."""
    found = []
    for scenario in table:
        if topology in scenario.get("not_on", ()):
            found.append(f"- {scenario['name']}: {scenario['not_because']}.")
        names = [name for name, where in scenario.get("names_not_on", {}).items() if topology in where]
        if names:
            found.append(f"- {scenario['name']}, of them {names}: {scenario['not_because']}.")
    return found


def casts(scenario: dict, sides: list[Side], long: bool) -> list[tuple[dict[str, LockKind], dict[str, Side]]]:
    """The players of this scenario, and their kinds of locks."""
    found = []
    for kind in expand(scenario.get("kinds", ["reentrant"])):
        if scenario["who"] == "each":
            # Among ourselves a preset is the simple kind: only a scenario about the preset itself plays it.
            preset = kind.name in FOREIGN and not scenario.get("presets")
            alone = [side for side in players(scenario, "a", kind, sides) if not (side.ours and preset)]
            found += [({"a": kind}, {"a": side}) for side in alone]
            continue
        if scenario["who"] == "crowd":
            found += [(dict.fromkeys(cast, kind), cast) for cast in crowds(scenario, kind, sides)]
            continue
        for other in expand(scenario["kinds_b"]) if "kinds_b" in scenario else [kind]:
            kinds = {"a": kind, "b": other}
            found += [(kinds, {"a": a, "b": b}) for a, b in pairs(scenario, kinds, sides, long)]
    return found


def pairs(
    scenario: dict, kinds: dict[str, LockKind], sides: list[Side], long: bool
) -> list[tuple[Side, Side]]:
    """The sides that play `a` and `b`. The rules of locks are in one core, so in the short form each side plays with Rust and with the
    newest Redisson, and not with every other side."""
    a_sides, b_sides = (players(scenario, actor, kind, sides) for actor, kind in kinds.items())
    # Two others are not ours to test; where nobody else plays they test the table.
    theirs = all(not side.ours for side in sides)
    found = [(a, b) for a, b in itertools.product(a_sides, b_sides) if a.ours or b.ours or theirs]
    if any(kind.name in FOREIGN for kind in kinds.values()):
        return [(a, b) for a, b in found if not set(a.kinds + b.kinds).isdisjoint(FOREIGN)]
    partners = {"rust", newest(sides)}
    has_partners = not partners.isdisjoint(side.name for side in sides)
    if scenario["who"] == "mixed" or (has_partners and not long):
        return [(a, b) for a, b in found if a.name in partners or b.name in partners]
    return found


def crowds(scenario: dict, kind: LockKind, sides: list[Side]) -> list[dict[str, Side]]:
    """Seven actors, `a` to `g`: every side of ours, the newest Redisson, and another Redisson, each of them in turn. Where
    there are fewer, they come several times."""
    able = players(scenario, "a", kind, sides)
    ours = [side for side in able if side.ours]
    others = [side for side in able if not side.ours]
    found = []
    for turn, other in enumerate(others or ours[:1]):
        # Each time others come first, and the two Redissons stand apart.
        first = turn % len(ours) if ours else 0
        everybody = [other, *ours[first:], *others[-1:], *ours[:first]]
        found.append(dict(zip("abcdefg", itertools.cycle(everybody), strict=False)))
    return found


def players(scenario: dict, actor: str, kind: LockKind, sides: list[Side]) -> list[Side]:
    """The sides that can play this actor with this kind."""

    def plays(side: Side) -> bool:
        if side.name in scenario.get("without", ()) or side.name not in scenario.get("only", [side.name]):
            return False
        if side.ours:
            return scenario.get(f"ours_{actor}", True)
        if kind.name not in side.kinds or not all(
            scenario.get(word, True) for word in ("theirs", f"theirs_{actor}")
        ):
            return False
        if any(
            scenario.get(f"{able}_{actor}") and not getattr(side, able)
            for able in ("waits", "renews", "forces", "takes_many")
        ):
            return False
        return side.family != "redisson" or scenario.get("redisson") != "newest" or side.name == newest(sides)

    return [side for side in sides if plays(side)]


def newest(sides: list[Side]) -> str:
    """The newest Redisson."""
    return max((side.name for side in sides if side.family == "redisson"), default="", key=version_of)


def version_of(name: str) -> list[int]:
    return [int(part) for part in name.split("-")[1].split(".")]
