"""The crates that are linked into a package of ours, with what their licences and a bill of materials need."""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomllib

ROOT = Path(os.environ["REDLATCH_ROOT"])
# The packages that scripts/lib/cargo-together compiles in one build: each gets what any of them wants of a dependency.
TOGETHER = ["redlatch-python", "redlatch-node", "redlatch-c", "redlatch-cli"]
# The code in C that one of our crates has compiled by a crate of its build script: it is linked all the same.
COMPILED_FOR = {"redlatch-testing": "lua-src"}


@dataclass(frozen=True)
class Crate:
    name: str
    version: str
    licence: str
    authors: str
    folder: Path
    checksum: str  # of its archive, as Cargo.lock has it; empty for our own


def host() -> str:
    told = subprocess.run(["rustc", "-vV"], check=True, capture_output=True, text=True).stdout
    return next(line.removeprefix("host: ") for line in told.splitlines() if line.startswith("host: "))


def cargo(*command: str) -> str:
    return subprocess.run(["cargo", *command], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def workspace() -> dict[str, dict[str, Any]]:
    """Our own crates by name, as cargo reads their manifests."""
    told = json.loads(cargo("metadata", "--locked", "--no-deps", "--format-version=1"))
    return {crate["name"]: crate for crate in told["packages"]}


def linked(package: str, target: str) -> list[Crate]:
    """The crates in the binary of `package`, itself included. Build scripts and procedural macros are not, but for C that they have."""
    edges = ["--edges=normal,no-proc-macro", "--prefix=none", "--format={p}", "--no-dedupe"]
    packages = [f"--package={name}" for name in {package, *(TOGETHER if package in TOGETHER else [])}]
    trees = cargo("tree", "--locked", *packages, f"--target={target}", *edges).split("\n\n")
    tree = next(tree for tree in trees if tree.startswith(f"{package} "))
    wanted: set[tuple[str, ...]] = {
        found.groups() for found in re.finditer(r"^(\S+) v(\S+)", tree, re.MULTILINE)
    }
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]
    checksums = {(crate["name"], crate["version"]): crate.get("checksum", "") for crate in lock}
    compiled = {COMPILED_FOR.get(name) for name, _ in wanted}
    wanted |= {key for key in checksums if key[0] in compiled}
    told = json.loads(cargo("metadata", "--locked", f"--filter-platform={target}", "--format-version=1"))
    crates = [
        Crate(
            name := crate["name"],
            version := crate["version"],
            crate["license"] or "",
            ", ".join(crate["authors"]),
            Path(crate["manifest_path"]).parent,
            checksums[name, version],
        )
        for crate in told["packages"]
        if (crate["name"], crate["version"]) in wanted
    ]
    return sorted(crates, key=lambda crate: (crate.name, crate.version))
