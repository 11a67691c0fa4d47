"""Compares the figures in ARCHITECTURE.md with the sources.

    lines.py [FOLDER]

A figure may be a twentieth off: a commit need not change it. REDLATCH_BLESS=1 writes them anew.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import shares

PARTS: dict[str, list[str]] = {
    "the core": shares.CORE,
    "`core/proto/src/engine/`": ["core/proto/src/engine/**/*.rs"],
    "`core/proto/src/primitives/`": ["core/proto/src/primitives/**/*.rs"],
    "`core/proto/src/wire/`": ["core/proto/src/wire/**/*.rs"],
    "the scripts": ["core/proto/src/**/*.lua"],
    "`core/proto/src/outbox/`": ["core/proto/src/outbox/**/*.rs"],
    "`core/proto/src/net/`": ["core/proto/src/net/**/*.rs"],
    "`core/src/driver/`": ["core/src/driver/**/*.rs"],
    "`core/src/sys/`": ["core/src/sys/**/*.rs"],
    **shares.BINDINGS,
    "WebAssembly": shares.APART["WebAssembly"],
}
TABLE = re.compile(r"(<!-- figures -->\n).*(<!-- end of figures -->\n)", re.DOTALL)
ROW = re.compile(r"^\| (.+?) \| ([\d,]+) \|$", re.MULTILINE)


def main(folder: Path) -> int:
    page = folder / "ARCHITECTURE.md"
    text = page.read_text()
    figures = {part: shares.count(folder, patterns) for part, patterns in PARTS.items()}
    if os.environ.get("REDLATCH_BLESS"):
        rows = "".join(f"| {part} | {figure:,} |\n" for part, figure in figures.items())
        page.write_text(TABLE.sub(rf"\1| part | lines |\n|---|---:|\n{rows}\2", text))
        return 0
    said = {part: int(figure.replace(",", "")) for part, figure in ROW.findall(text)}
    stale = [part for part, figure in figures.items() if abs(said.get(part, 0) - figure) * 20 > figure]
    for part in stale:
        print(f"ARCHITECTURE.md says {said.get(part)} lines of {part}; it has {figures[part]}")
    return len(stale)


if __name__ == "__main__":
    sys.exit(min(1, main(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[2]))))
