"""Puts a program into a wheel of maturin's, which pip then installs beside `python`: wheel.py WHEEL PROGRAM FOLDER

The new wheel has the old one's name, and lies in FOLDER. maturin takes programs from a folder that has to be there always.
"""

from __future__ import annotations

import base64
import hashlib
import stat
import sys
import zipfile
from pathlib import Path


def add(wheel: Path, program: Path, folder: Path) -> None:
    content = program.read_bytes()
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    name, version = wheel.name.split("-")[:2]
    place = f"{name}-{version}.data/scripts/{program.name}"
    with (
        zipfile.ZipFile(wheel) as old,
        zipfile.ZipFile(folder / wheel.name, "w", zipfile.ZIP_DEFLATED) as new,
    ):
        # The list of files is the last one.
        *others, record = old.infolist()
        if record.filename != f"{name}-{version}.dist-info/RECORD":
            raise SystemExit(f"wheel: {wheel.name} does not end with its RECORD, but with {record.filename}")
        for file in others:
            new.writestr(file, old.read(file))
        # It has the same time, that of the last commit.
        added = zipfile.ZipInfo(place, record.date_time)
        added.compress_type = zipfile.ZIP_DEFLATED
        added.create_system = 3  # Unix, which has permissions
        added.external_attr = (stat.S_IFREG | 0o755) << 16
        new.writestr(added, content)
        row = f"{place},sha256={digest},{len(content)}\n"
        new.writestr(record, old.read(record).decode().removesuffix("\n") + "\n" + row)


if __name__ == "__main__":
    add(*map(Path, sys.argv[1:]))
