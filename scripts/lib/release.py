"""Makes a release ready, up to the uploads, which the owner begins.

release.py VERSION          checks, tests, builds everything into dist/, and tries every upload
release.py VERSION --dry    goes on where a check is broken, and leaves out the tests; the end tells what is missing
release.py VERSION --checks only the checks: that tree, changelog, versions and links are ready
release.py --versions       only whether every file names the same version
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from crates import ROOT, workspace

DIST = ROOT / "dist"
CRATES = ["redlatch-proto", "redlatch"]  # in the order of their uploads


def run(*command: str, env: dict[str, str] | None = None) -> bool:
    print(f"$ {' '.join(command)}", flush=True)
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **(env or {})}).returncode == 0


def git(*command: str) -> str:
    return subprocess.run(
        ["git", *command], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


# --- the checks ---


def version() -> str:
    return str(workspace()["redlatch"]["version"])


def versions() -> list[str]:
    """Where another version stands than in Cargo.toml."""
    own = version()
    found = {f"the crate {name}": str(crate["version"]) for name, crate in workspace().items()}
    manifest = (ROOT / "Cargo.toml").read_text()
    for name, stated in re.findall(
        r'^(redlatch[\w-]*) = \{ path = .*version = "(.+?)"', manifest, re.MULTILINE
    ):
        found[f"Cargo.toml, dependency {name}"] = stated
    package = json.loads((ROOT / "bindings-node" / "package.json").read_text())
    locked = json.loads((ROOT / "bindings-node" / "package-lock.json").read_text())
    found["bindings-node/package.json"] = package["version"]
    found["bindings-node/package-lock.json"] = locked["packages"][""]["version"]
    header = (ROOT / "c-api" / "include" / "redlatch.h").read_text()
    (found["redlatch.h"],) = re.findall(r'^#define REDLATCH_VERSION "(.+)"', header, re.MULTILINE)
    found["the newest heading of CHANGELOG.md"] = changelog()[0]
    return [
        f"{where} has version {stated}, Cargo.toml {own}" for where, stated in found.items() if stated != own
    ]


def changelog() -> tuple[str, str]:
    """The newest version and its date."""
    text = (ROOT / "CHANGELOG.md").read_text()
    heading = re.search(r"^## \[(.+?)\] - (.+)$", text, re.MULTILINE)
    if heading is None:
        raise SystemExit("CHANGELOG.md has no heading like ## [0.1.0] - 2026-11-23")
    return heading[1], heading[2]


def owners() -> list[str]:
    """Fields that only the owner can fill in: they stand in Cargo.toml alone."""
    crate = workspace()["redlatch"]
    bad = []
    if not re.fullmatch(r"https://\S+[^/]", str(crate["repository"] or "")):
        bad.append("Cargo.toml has no repository: the packages would lead nowhere")
    authors = crate["authors"]
    if not isinstance(authors, list) or not authors or not re.fullmatch(r".+ <.+@.+>", authors[0]):
        bad.append('Cargo.toml has no author "Name <address>": the packages would have no maintainer')
    return bad


def compatible() -> list[str]:
    """Whether programs for the last release go on working, as far as their compiler can tell."""
    tags = git("tag", "--list", "v*", "--sort=-v:refname").split()
    if not tags:
        print("no tag v*: there is no release to be compatible with")
        return []
    if not shutil.which("cargo-semver-checks"):
        return ["cargo-semver-checks is missing: cargo install --locked cargo-semver-checks"]
    packages = [f"--package={name}" for name in CRATES]
    if run("cargo", "semver-checks", "--baseline-rev", tags[0], *packages):
        return []
    return [f"the crates are not compatible with {tags[0]} as their version says"]


def checks(wanted: str) -> list[str]:
    bad = versions() + owners()
    if version() != wanted:
        bad.append(f"Cargo.toml has version {version()}, asked for is {wanted}")
    newest, date = changelog()
    if newest != wanted or not re.fullmatch(r"\d{4}-\d\d-\d\d", date):
        bad.append(f"CHANGELOG.md begins with [{newest}] - {date}, not with [{wanted}] and a date")
    if changed := git("status", "--porcelain"):
        bad.append(f"the tree is not clean:\n{changed}")
    if git("tag", "--list", f"v{wanted}"):
        bad.append(f"there is a tag v{wanted} already")
    return bad + compatible()


# --- the uploads ---


def tarballs() -> list[Path]:
    """npm's packages: those of the platforms before the one that asks for them."""
    return sorted(
        DIST.rglob("*.tgz"), key=lambda path: (bool(re.match(r"redlatch-\d", path.name)), path.name)
    )


def platforms() -> list[str]:
    """Platforms that the package of JavaScript asks npm for, and that have no package."""
    listed = "require('./bindings-node/lib/platform.js').PLATFORMS.join()"
    names = subprocess.run(
        ["node", "-p", listed], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    made = [path.name for path in tarballs()]
    return [
        f"dist/ has no npm package for {name}: build it, or take it out of bindings-node/lib/platform.js"
        for name in names.strip().split(",")
        if not any(file.startswith(f"redlatch-{name}-") for file in made)
    ]


def uploads() -> list[str]:
    """Tries each, as far as it goes without an upload. PyPI has no dry run; scripts/test-dist has had twine look."""
    bad = []
    dirty = ["--allow-dirty"] if git("status", "--porcelain") else []
    packages = [f"--package={name}" for name in CRATES]
    if not run("cargo", "publish", "--dry-run", "--locked", *dirty, *packages):
        bad.append("cargo publish --dry-run failed")
    for tarball in tarballs():
        if not run("npm", "publish", "--dry-run", "--loglevel=error", str(tarball)):
            bad.append(f"npm publish --dry-run of {tarball.name} failed")
    return bad


def publish(wanted: str) -> str:
    """The commands that are left to the owner."""
    pypi = sorted([*DIST.rglob("*.whl"), *DIST.rglob(f"redlatch-{wanted}.tar.gz")])
    return "\n".join(
        [
            f"git tag --sign v{wanted} --message 'redlatch {wanted}' && git push origin v{wanted}",
            f"cargo publish --locked {' '.join(f'--package={name}' for name in CRATES)}",
            f"twine upload {' '.join(str(path.relative_to(ROOT)) for path in pypi)}",
            *(f"npm publish {path.relative_to(ROOT)}" for path in tarballs()),
        ]
    )


def main() -> int:
    arguments = sys.argv[1:]
    if arguments == ["--versions"]:
        bad = versions()
        print("\n".join(bad) or f"versions: all files name {version()}")
        return 1 if bad else 0
    if not arguments or arguments[1:] not in ([], ["--dry"], ["--checks"]):
        print(__doc__, file=sys.stderr)
        return 2
    wanted, dry = arguments[0], arguments[1:] == ["--dry"]

    bad = checks(wanted)
    if arguments[1:] == ["--checks"]:
        print("\n".join(bad) or f"release: {wanted} may be built")
        return 1 if bad else 0
    if bad and not dry:
        print("release: not ready\n" + "\n".join(bad))
        return 1
    # The tests build the packages into dist/, and install and use each.
    commands = [["scripts/dist"], ["scripts/test-dist"]] if dry else [[".ci/run"]]
    if not all(run(*command) for command in commands):
        print("release: the tests failed")
        return 1
    bad += platforms() + uploads()
    if bad:
        print("release: not ready\n" + "\n".join(bad))
        return 1
    print(f"release: {wanted} is ready in dist/. What is left is yours:\n{publish(wanted)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
