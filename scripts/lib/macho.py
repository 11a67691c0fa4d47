"""Reads a library for macOS: what its loader asks of the system, and whether its signature still fits its bytes."""

from __future__ import annotations

import hashlib
import importlib
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

AD_HOC = 0x2
SHA256 = 2


@dataclass
class MachO:
    arch: str
    oldest: str  # the oldest version of macOS that loads it
    name: str  # its install name
    needs: list[str]
    loose: list[str]  # the symbols that it finds in no library that it names
    is_signed: bool
    forged: str  # what is wrong with the signature; empty if it fits


def read(file: Path) -> MachO:
    # scripts/setup-cross installs it, so that the type checker may not have it.
    lief: Any = importlib.import_module("lief")
    lief.logging.disable()
    # The parts live as long as the whole.
    whole = lief.MachO.parse(str(file))
    binary = whole.at(0)
    own = [
        command.name for command in binary.commands if command.command == lief.MachO.LoadCommand.TYPE.ID_DYLIB
    ]
    loaded = [
        command.name
        for command in binary.libraries
        if command.command != lief.MachO.LoadCommand.TYPE.ID_DYLIB
    ]
    loose = {bound.symbol.name.removeprefix("_") for bound in binary.bindings if not bound.has_library}
    start, raw = (binary.code_signature.data_offset if binary.has_code_signature else 0), file.read_bytes()
    return MachO(
        arch={"X86_64": "x86_64", "ARM64": "aarch64"}.get(binary.header.cpu_type.name, ""),
        oldest=".".join(map(str, binary.build_version.minos[:2])),
        name="".join(own),
        needs=loaded,
        loose=sorted(loose),
        is_signed=start != 0,
        forged=forged(raw[:start], raw[start:]) if start else "",
    )


def forged(signed: bytes, blob: bytes) -> str:
    """A signature without a certificate lists the hash of every page of what stands before it."""
    _, _, count = struct.unpack_from(">3I", blob)
    parts = dict(struct.unpack_from(">2I", blob, 12 + 8 * part) for part in range(count))
    directory = blob[parts[0] :]
    _, _, _, flags, at, _, _, pages, limit = struct.unpack_from(">9I", directory)
    size, kind, _, shift = directory[36:40]
    if not flags & AD_HOC or kind != SHA256:
        return f"it is no ad-hoc signature by SHA-256, but has flags {flags:#x} and kind {kind}"
    if limit != len(signed) or pages != -(-limit >> shift):
        return f"it is for {limit} bytes in {pages} pages, and there are {len(signed)} bytes"
    for page in range(pages):
        there = hashlib.sha256(signed[page << shift : page + 1 << shift]).digest()
        if there != directory[at + page * size :][:size]:
            return f"page {page} of {pages} has changed since"
    return ""
