"""Writes the licences of all that is linked into a binary of ours, for the package that has the binary.

notices.py PACKAGE... TARGET   prints those of PACKAGE (redlatch-node, redlatch-python, redlatch-c, redlatch-cli), or of several
notices.py --check             refuses a crate whose licence does not allow it, or that comes without its text
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict

from crates import ROOT, Crate, host, linked

LIBRARIES = ["redlatch-c", "redlatch-node", "redlatch-python"]
PROGRAM = "redlatch-cli"
# They ask for their text to be passed on, and for nothing more.
ALLOWED = {
    "0BSD", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "ISC",
    "MIT", "Unicode-3.0", "Unlicense", "Zlib",
}  # fmt: skip
FILES = re.compile(r"(LICEN[CS]E|COPYING|COPYRIGHT|NOTICE|UNLICENSE)([-._].*)?", re.IGNORECASE)


def allowed(licence: str) -> bool:
    """Whether we may link it. AND is read as if it bound less than OR, which refuses rather too much."""
    return all(
        any(name.strip(" ()") in ALLOWED for name in re.split(r" OR |/", part))
        for part in licence.split(" AND ")
    )


def texts(crate: Crate) -> list[str]:
    """The licences in its folders: a crate may hold code of others, with their licences beside it."""
    found = [
        path for path in sorted(crate.folder.rglob("*")) if path.is_file() and FILES.fullmatch(path.name)
    ]
    if not found and crate.licence == "MIT" and crate.authors:
        # The text is the same for all, but for its second line.
        title, blank, _, *rest = (ROOT / "LICENSE-MIT").read_text().strip().split("\n")
        return ["\n".join([title, blank, f"Copyright (c) {crate.authors}", *rest])]
    return [path.read_text(errors="replace").strip().replace("\r\n", "\n") for path in found]


def others(package: str, target: str) -> list[Crate]:
    return [crate for crate in linked(package, target) if crate.checksum]


def notices(packages: list[str], target: str) -> str:
    found = {(c.name, c.version): c for package in packages for c in others(package, target)}
    crates = [found[key] for key in sorted(found)]
    uses: dict[str, list[str]] = defaultdict(list)
    for crate in crates:
        for text in texts(crate):
            uses[text].append(f"{crate.name} {crate.version}")
    parts = [
        f"redlatch is licensed under MIT or Apache-2.0. This build for {target} also contains the Rust standard library\n"
        "(MIT or Apache-2.0, The Rust Project Contributors) and these crates, under the licences that follow:\n",
        "\n".join(f"{crate.name} {crate.version}: {crate.licence}" for crate in crates),
    ]
    for text, users in uses.items():
        parts.append(f"\n{'=' * 100}\n{', '.join(users)}\n{'=' * 100}\n\n{text}")
    return "\n".join(parts) + "\n"


def main() -> int:
    if sys.argv[1:] != ["--check"]:
        *packages, target = sys.argv[1:]
        print(notices(packages, target), end="")
        return 0
    crates = {crate for package in [*LIBRARIES, PROGRAM] for crate in others(package, host())}
    bad = [
        f"{c.name} {c.version} is under {c.licence or 'no licence'}" for c in crates if not allowed(c.licence)
    ]
    bad += [f"{c.name} {c.version} comes without the text of its licence" for c in crates if not texts(c)]
    print("\n".join(sorted(bad)) or f"notices: {len(crates)} crates may be linked, and have their texts")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
