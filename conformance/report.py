"""The summary and the report of the rows that were played."""

import platform
from collections import defaultdict

from drivers import Side
from kinds import FOREIGN, KINDS
from rows import Row, left_out
from server import Deployment


def matrix(rows: list[Row]) -> list[str]:
    """A line per scenario: with which kinds, how many rows, checks, failures."""
    by_scenario: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_scenario[row.scenario["name"]].append(row)
    lines = ["| scenario | kinds | rows | checks | failed |", "|---|---|---:|---:|---:|"]
    for name, group in by_scenario.items():
        failed = sum(1 for row in group if row.failure)
        kinds = ", ".join(dict.fromkeys(kind.name for row in group for kind in row.kinds.values()))
        lines.append(f"| {name} | {kinds} | {len(group)} | {sum(row.checks for row in group)} | {failed} |")
    return lines


def pair_table(rows: list[Row], holders: list[Side], waiters: list[Side], kinds: list[str]) -> list[str]:
    """Holders against waiters, over all scenarios: rows passed of rows played."""
    lines = [
        "| holds \\ waits | " + " | ".join(side.name for side in waiters) + " |",
        "|---|" + "---:|" * len(waiters),
    ]
    for a in holders:
        cells = []
        for b in waiters:
            group = [row for row in rows if row.sides == {"a": a, "b": b} and row.kinds["a"].name in kinds]
            cells.append(f"{sum(1 for row in group if not row.failure)}/{len(group)}" if group else "")
        lines.append(f"| {a.name} | " + " | ".join(cells) + " |")
    return lines


def pair_tables(rows: list[Row], sides: list[Side]) -> list[str]:
    ours = [side for side in sides if side.ours]
    others = [side for side in sides if not set(side.kinds).isdisjoint(FOREIGN)]
    redissons = [side for side in sides if side.family == "redisson"]
    both = [*ours, *redissons]
    everything = list(KINDS)
    return [
        "## Pairs: the reentrant kind",
        "\n".join(pair_table(rows, both, both, ["reentrant"])),
        "## Pairs: the read-write lock",
        "\n".join(pair_table(rows, both, both, ["read-write"])),
        "## Pairs: the multi lock",
        "\n".join(pair_table(rows, both, both, ["multi"])),
        "## Pairs: the semaphore",
        "\n".join(pair_table(rows, both, both, ["semaphore"])),
        "## Pairs: the plain semaphore and the latch",
        "\n".join(pair_table(rows, both, both, ["plain-semaphore", "latch"])),
        "## Pairs: the fair lock",
        "\n".join(pair_table(rows, both, both, ["fair"])),
        "## Pairs: the simple kind",
        "\n".join(pair_table(rows, ours, ours, ["simple", "simple, reentrant"])),
        "## Pairs: redlatch holds, the other side waits or tries",
        "\n".join(pair_table(rows, ours, others, everything)),
        "## Pairs: the other side holds, redlatch waits or tries",
        "\n".join(pair_table(rows, others, ours, everything)),
    ]


def told(rows: list[Row]) -> list[str]:
    """Each side's answer where another kind of data lies at the key."""
    answers: dict[tuple[str, str], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    columns: list[str] = []
    for row in rows:
        for side, name, op, status in row.told:
            answers[side, op][name].append(status)
            columns += [] if name in columns else [name]
    lines = ["| side | does | " + " | ".join(columns) + " |", "|---|---|" + "---|" * len(columns)]
    for (side, op), cells in answers.items():
        texts = [", ".join(dict.fromkeys(cells[name])) for name in columns]
        lines.append(f"| {side} | {op} | " + " | ".join(texts) + " |")
    return lines


def differences(table: list[dict]) -> list[str]:
    """Where others answer otherwise, and why."""
    seen = {}
    for scenario in table:
        for step in scenario["steps"]:
            if "why" in step:
                seen[scenario["name"]] = step["why"]
    return [f"- {name}: {why}." for name, why in seen.items()]


def report(
    deployment: Deployment, versions: dict[Side, str], table: list[dict], rows: list[Row], summary: str
) -> str:
    """`versions`: all sides that took part, and what each says of itself."""
    topology = deployment.topology
    parts = [
        "# Conformance report",
        "Made by `make conformance`; the scenarios are in `scenarios.toml`.",
        "\n".join(
            [
                f"- server: {deployment.version()}, {topology}",
                *(f"- {side.name}: {version}" for side, version in versions.items()),
                f"- system: {platform.system()} {platform.machine()}",
            ]
        ),
        "\n".join(matrix(rows)),
        *pair_tables(rows, list(versions)),
        "## At a key of another kind",
        "\n".join(told(rows)),
        "## Where others answer otherwise",
        "\n".join(differences(table)),
        *(
            ["## Not played on this topology", "\n".join(missing)]
            if (missing := left_out(table, topology))
            else []
        ),
        summary,
    ]
    return "\n\n".join(parts) + "\n"
