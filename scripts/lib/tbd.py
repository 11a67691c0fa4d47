"""The stub that a linker takes for one of Apple's frameworks: `tbd.py FRAMEWORK CRATE` prints it, with the names that the crate
for it declares. The linker does not notice if the oldest system lacks one of them."""

from __future__ import annotations

import re
import sys

import crates


def stub(framework: str, crate: str) -> str:
    sources = [found for found in crates.linked("redlatch", "aarch64-apple-darwin") if found.name == crate]
    if not sources:
        raise SystemExit(f"tbd: no crate {crate} is linked for macOS any more")
    text = "".join(file.read_text() for source in sources for file in source.folder.glob("src/**/*.rs"))
    names = sorted(set(re.findall(r"pub (?:fn|static) (\w+)", text)))
    targets = "[ x86_64-macos, arm64-macos ]"
    return f"""--- !tapi-tbd
tbd-version: 4
targets: {targets}
install-name: /System/Library/Frameworks/{framework}.framework/Versions/A/{framework}
exports:
  - targets: {targets}
    symbols: [ {", ".join(f"_{name}" for name in names)} ]
...
"""


if __name__ == "__main__":
    print(stub(*sys.argv[1:]), end="")
