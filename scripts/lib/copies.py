"""A copy of the checkout, to build and test it in another way beside the usual one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def copy_sources(to: Path) -> None:
    """Copies the tracked files. Only those that have changed are written: the next build compiles them."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    names = [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]
    for name in names:
        source, copy = ROOT / name, to / name
        if not (copy.is_file() and copy.read_bytes() == source.read_bytes()):
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, copy)
    # A test that is gone is not to be run.
    record = to / ".copied"
    before = record.read_text().splitlines() if record.is_file() else []
    for name in {*before} - {*names}:
        (to / name).unlink(missing_ok=True)
    record.write_text("\n".join(names))


def link_tools(to: Path) -> None:
    """The copy uses what scripts/setup has installed."""
    for name in (".tools", "bindings-node/node_modules"):
        link = to / name
        if not link.is_symlink():
            link.symlink_to(ROOT / name)
    (to / "node_modules").mkdir(exist_ok=True)
    package = to / "node_modules" / "redlatch"
    if not package.is_symlink():
        package.symlink_to(Path("..") / "bindings-node")


if __name__ == "__main__":
    copy_sources(Path(sys.argv[1]))
    link_tools(Path(sys.argv[1]))
