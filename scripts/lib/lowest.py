"""Compiles what users build with the lowest versions that the manifests allow, and with the oldest Rust that Cargo.toml states.

It fails when one of those versions does not compile, when a package in the checkout's lock file or beside the lowest versions
needs a newer Rust than stated, or when a service that is kept on the oldest tokio with long-term support cannot use the crate.

The oldest Rust compiles if rustup has it, or if REDLATCH_OLDEST_RUSTC names its rustc. Else the present one compiles, and only
the statements of the packages and clippy's incompatible_msrv (in `make lint`) speak for the oldest.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(os.environ["REDLATCH_ROOT"])
TARGET = Path(os.environ["CARGO_TARGET_DIR"])
# The packages that users build. The other members of the workspace are ours alone.
MEMBERS = ["core", "core/proto", "core/testing", "c-api", "bindings-python", "bindings-node"]
COMPILED = ["redlatch", "redlatch-c"]
# A service with tokio's oldest LTS release, as its users are told to write it.
DEPENDENT = """[package]
name = "dependent"
version = "0.0.0"
edition = "2024"
rust-version = "{rust}"
[workspace]
[dependencies]
redlatch = {{ path = "../core", features = ["tls"] }}
tokio = {{ version = "~{tokio}", features = ["rt"] }}
"""


class Failed(Exception):
    """Something is not as the manifests say."""


def run(command: list[str], folder: Path, **environment: str) -> str:
    """The output of a command."""
    done = subprocess.run(command, cwd=folder, env=os.environ | environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise Failed(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def stated(field: str) -> str:
    """A version that the workspace's manifest states."""
    found = re.search(
        rf'^{field} = (?:\{{ version = )?"([0-9.]+)"', (ROOT / "Cargo.toml").read_text(), re.MULTILINE
    )
    if found is None:
        raise Failed(f"Cargo.toml states no {field}")
    return found.group(1)


def numbers(version: str) -> tuple[int, ...]:
    """A version to be compared; 1.88.0 is 1.88."""
    parts = [int(part) for part in version.split(".")]
    while parts and parts[-1] == 0:
        parts.pop()
    return tuple(parts)


def needs_newer(folder: Path, oldest: str) -> list[str]:
    """The packages of a lock file that need a newer Rust."""
    told = json.loads(run(["cargo", "metadata", "--locked", "--format-version", "1"], folder))
    return [
        f"{package['name']} {package['version']} needs Rust {package['rust_version']}"
        for package in told["packages"]
        if package["rust_version"] and numbers(package["rust_version"]) > numbers(oldest)
    ]


def refuse_newer(folder: Path, oldest: str, what: str) -> None:
    newer = needs_newer(folder, oldest)
    if newer:
        raise Failed(f"{what}, but Cargo.toml states Rust {oldest}:\n" + "\n".join(newer))


def copy(to: Path) -> None:
    """The packages that users build, as a workspace of their own."""
    listed = run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *MEMBERS], ROOT)
    shutil.rmtree(to, ignore_errors=True)
    # copy2 keeps times, so that the next run compiles only what has changed.
    for name in [*filter(None, listed.split("\0")), "README.md"]:
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)
    manifest = (ROOT / "Cargo.toml").read_text()
    manifest = re.sub(r"^members = .*$", f"members = {json.dumps(MEMBERS)}", manifest, flags=re.MULTILINE)
    manifest = re.sub(r"^(default-members|exclude) = .*$", "", manifest, flags=re.MULTILINE)
    (to / "Cargo.toml").write_text(manifest)


def keep(folder: Path) -> None:
    """Gives what our dependencies depend on the versions of the checkout again, which clippy has checked."""
    told = json.loads(run(["cargo", "metadata", "--no-deps", "--format-version", "1"], folder))
    direct = {depends["name"] for package in told["packages"] for depends in package["dependencies"]}
    first, *packages = (ROOT / "Cargo.lock").read_text().split("[[package]]\n")
    others = [text for text in packages if text.split('"')[1] not in direct]
    (folder / "Cargo.lock").write_text("[[package]]\n".join([first, *others]))
    run(
        ["cargo", "metadata", "-Zdirect-minimal-versions", "--format-version", "1"],
        folder,
        RUSTC_BOOTSTRAP="1",
    )


def compiler(oldest: str) -> str | None:
    """The rustc of the oldest Rust, if it is installed."""
    named = os.environ.get("REDLATCH_OLDEST_RUSTC")
    if named or not shutil.which("rustup"):
        return named
    for toolchain in run(["rustup", "toolchain", "list"], ROOT).split():
        if re.match(rf"{re.escape(oldest)}(\.\d+)?(-|$)", toolchain):
            return run(["rustup", "which", "--toolchain", toolchain, "rustc"], ROOT).strip()
    return None


def main() -> int:
    oldest, tokio = stated("rust-version"), stated("tokio")
    folder = TARGET / "lowest" / "source"
    refuse_newer(ROOT, oldest, "Cargo.lock holds what a newer Rust compiles")

    copy(folder)
    # The option is unstable, and so is for nightly; this makes a stable cargo take it.
    run(["cargo", "generate-lockfile", "-Zdirect-minimal-versions"], folder, RUSTC_BOOTSTRAP="1")
    refuse_newer(folder, oldest, "beside the lowest versions cargo chooses what a newer Rust compiles")
    keep(folder)
    rustc = compiler(oldest)
    # Among what clippy has checked: most of it has the same version there, and is not checked again.
    compiling = {"CARGO_TARGET_DIR": str(TARGET)} | ({"RUSTC": rustc} if rustc else {})
    packages = [word for name in COMPILED for word in ("--package", name)]
    run(["cargo", "check", "--locked", "--quiet", *packages], folder, **compiling)
    used = run([rustc or "rustc", "--version"], ROOT).split()[1]
    if rustc and numbers(used)[:2] != numbers(oldest)[:2]:
        raise Failed(f"{rustc} is Rust {used}, not {oldest}")

    dependent = folder / "dependent"
    (dependent / "src").mkdir(parents=True)
    (dependent / "src" / "lib.rs").touch()
    (dependent / "Cargo.toml").write_text(DEPENDENT.format(rust=oldest, tokio=tokio))
    run(["cargo", "generate-lockfile"], dependent)
    refuse_newer(dependent, oldest, f"a service with tokio ~{tokio} gets what a newer Rust compiles")

    told = "" if rustc else f"; Rust {oldest} itself is not installed and has compiled nothing"
    print(
        f"lowest: the lowest versions compile with Rust {used}, nothing needs more than {oldest}, tokio ~{tokio} resolves{told}"
    )
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as failed:
        print(f"lowest: {failed}", file=sys.stderr)
        sys.exit(1)
