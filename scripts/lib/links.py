"""Prints the links of the pages that lead nowhere: to a file that is not there, or to a heading that its page does not have.

scripts/docs-site checks the same in the site, and needs minutes for it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

FENCE = re.compile(r"^( *)```.*?^\1```[ ]*$", re.MULTILINE | re.DOTALL)
PARTS = {Path("benches/peers/notes.md")}  # it is copied into a page of another folder


@cache
def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text())


@cache
def anchors(page: Path) -> set[str]:
    """The names that GitHub gives to the headings."""
    found: dict[str, int] = {}
    for heading in re.findall(r"(?m)^#+ (.+)$", prose(page)):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-")
        found[name] = found.get(name, -1) + 1
    return {f"{name}-{nth}" if nth else name for name, most in found.items() for nth in range(most + 1)}


def dead(page: Path) -> list[str]:
    lines = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        path, _, anchor = target.partition("#")
        if re.match("[a-z]+:", target):
            continue
        file = Path(os.path.normpath(page.parent / path)) if path else page
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
            lines.append(f"{page}: {target}")
    return lines


def main() -> int:
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", "*.md"]
    names = subprocess.run(listing, stdout=subprocess.PIPE, text=True, check=True).stdout.split("\0")
    pages = [page for page in map(Path, filter(None, names)) if page.exists() and page not in PARTS]
    print("\n".join(line for page in pages for line in dead(page)), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
