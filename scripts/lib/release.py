"""Makes a release ready, up to the uploads, which the owner begins.

release.py VERSION          checks, tests, builds everything into dist/, and tries every upload
release.py VERSION --dry    goes on where a check is broken, and tests the packages only; the end tells what is missing
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
TOOLS = ROOT / ".tools" / "cargo"
ROWS = [
    line.split()
    for line in (ROOT / "scripts/lib/targets.txt").read_text().splitlines()
    if not line.startswith("#")
]
# This machine can run what it builds for Linux, on arm64 under an emulator.
HERE = [row[0] for row in ROWS if row[-1] == "here"]
# Machines of their own build and test these: .ci/macos and .ci/windows. They have to lie in dist/ before.
ELSEWHERE = [row[0] for row in ROWS if row[-1] in ("mac", "windows")]
SEMVER_CHECKS = "cargo-semver-checks@0.51.0"


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


def crates(kind: str = "") -> list[str]:
    """The published crates, or only the published crates of this kind; cargo puts them into their order."""
    return [
        f"--package={name}"
        for name, crate in workspace().items()
        if crate["publish"] is None and (not kind or any(kind in part["kind"] for part in crate["targets"]))
    ]


def versions() -> list[str]:
    """Where another version stands than in Cargo.toml."""
    own = version()
    found = {f"the crate {name}": str(crate["version"]) for name, crate in workspace().items()}
    manifest = (ROOT / "Cargo.toml").read_text()
    for name, stated in re.findall(
        r'^(redlatch[\w-]*) = \{ path = .*version = "=?(.+?)"', manifest, re.MULTILINE
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
    """Fields that only the owner can fill in: they stand in Cargo.toml alone, and every published crate takes them."""
    bad = []
    for name, crate in workspace().items():
        if crate["publish"] is not None:
            continue
        if not re.fullmatch(r"https://\S+[^/]", crate["repository"] or ""):
            bad.append(f"Cargo.toml has no repository for {name}: the packages would lead nowhere")
        if not re.fullmatch(r"https://\S+", crate["homepage"] or ""):
            bad.append(
                f"Cargo.toml has no homepage for {name}: the packages would not lead to their documentation"
            )
        if not crate["authors"] or not re.fullmatch(r".+ <.+@.+>", crate["authors"][0]):
            bad.append(
                f'Cargo.toml has no author "Name <address>" for {name}: the packages would have no maintainer'
            )
    return bad


def broken(tag: str) -> list[str]:
    """Lines of abi.txt that programs of that release rely on, and that are gone. Under another name a library breaks nothing."""
    then = git("show", f"{tag}:c-api/abi.txt").splitlines()
    now = (ROOT / "c-api" / "abi.txt").read_text().splitlines()
    return sorted(set(then) - set(now)) if then[0] == now[0] else []


def compatible(wanted: str) -> list[str]:
    """Whether programs for the last release go on working, as far as their compiler can tell."""
    tags = [tag for tag in git("tag", "--list", "v*", "--sort=-v:refname").split() if tag != f"v{wanted}"]
    if not tags:
        print("no other tag v*: there is no release to be compatible with")
        return []
    if gone := broken(tags[0]):
        return [f"the C library breaks programs of {tags[0]}: {', '.join(gone)}"]
    tool = shutil.which("cargo-semver-checks")
    if tool is None:
        tool = str(TOOLS / "bin" / "cargo-semver-checks")
        if not Path(tool).exists() and not run(
            "cargo", "install", "--locked", f"--root={TOOLS}", SEMVER_CHECKS
        ):
            return [f"{SEMVER_CHECKS} could not be installed"]
    if run(tool, "semver-checks", "--baseline-rev", tags[0], *crates("lib")):
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
    return bad + compatible(wanted)


# --- the uploads ---


def tarballs() -> list[Path]:
    """npm's packages: those of the platforms before the one that asks for them."""
    # Directly in dist/ are the binaries for this machine, which run on no older system.
    return [*of_targets(binary()), *DIST.glob(f"redlatch-{version()}.tgz")]


def wheel() -> str:
    """How the wheel of a system is called in this version; one of another may lie beside it."""
    return f"redlatch-{version()}-*.whl"


def binary() -> str:
    """The same for npm's package of a system."""
    return f"redlatch-*-{version()}.tgz"


def of_targets(pattern: str) -> list[Path]:
    """The files of all systems: of what else lies in dist/ nothing is uploaded."""
    return [path for target in [*HERE, *ELSEWHERE] for path in sorted((DIST / target).glob(pattern))]


def elsewhere() -> list[str]:
    """Systems whose packages have to come from another machine, and that have none."""
    return [
        f"dist/{target} has no {what} of this version: a machine of that system builds and tests it"
        for target in ELSEWHERE
        for what, pattern in (("wheel", wheel()), ("npm package", binary()))
        if not any((DIST / target).glob(pattern))
    ]


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
    if not run("cargo", "publish", "--dry-run", "--locked", *dirty, *crates()):
        bad.append("cargo publish --dry-run failed")
    for tarball in tarballs():
        if not run("npm", "publish", "--dry-run", "--loglevel=error", str(tarball)):
            bad.append(f"npm publish --dry-run of {tarball.name} failed")
    return bad


def publish(wanted: str) -> str:
    """The commands that are left to the owner."""
    pypi = [DIST / f"redlatch-{wanted}.tar.gz", *of_targets(wheel())]
    return "\n".join(
        [
            f"git tag --sign v{wanted} --message 'redlatch {wanted}' && git push origin v{wanted}",
            f"cargo publish --locked {' '.join(crates())}",
            f"twine upload {' '.join(str(path.relative_to(ROOT)) for path in pypi)}",
            # Without the dot npm takes it for a repository.
            *(f"npm publish ./{path.relative_to(ROOT)}" for path in tarballs()),
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
    # They come first: a release of some hours would end without them.
    bad += elsewhere()
    if bad and not dry:
        print("release: not ready\n" + "\n".join(bad))
        return 1
    # The tests pack as well, but without what makes a release fast. Each of its packages is installed and used.
    tests = [] if dry else [[".ci/run"], ["scripts/test", "versions", "portable"]]
    optimised = ["env", "REDLATCH_LTO=1", "scripts/dist"]
    here = [*tests, optimised, ["scripts/test-dist"]]
    everywhere = [
        ["scripts/setup-cross"],
        *([*optimised, target] for target in HERE),
        ["scripts/test-platforms", *HERE],
        ["scripts/pack", "bill", str(DIST), *HERE, *ELSEWHERE],
    ]
    if not all(run(*command) for command in [*here, *everywhere]):
        print("release: the tests failed")
        return 1
    if not shutil.which("lintian"):
        bad.append("lintian is missing, so that nothing has looked at the Debian packages")
    bad += platforms() + uploads()
    if bad:
        print("release: not ready\n" + "\n".join(bad))
        return 1
    print(f"release: {wanted} is ready in dist/. The rest is yours:\n{publish(wanted)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
