"""Installs each package of dist/ into a fresh place outside the checkout and runs the README's programs with it.

So a package that lacks a file, or works only beside its sources, is found before a user finds it.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import crates
import notices
from server import Server
from snippets import snippets

ROOT = Path(os.environ["REDLATCH_ROOT"])
DIST = ROOT / "dist"
LIMIT = 900.0  # seconds for one command; the source packages compile

# Nothing of the checkout may help: no environment of its own, no paths into it, no build directory but where it is
# asked for.
CLEAN = {
    name: value
    for name, value in os.environ.items()
    if name not in ("VIRTUAL_ENV", "PYTHONPATH", "NODE_PATH")
}
CLEAN.pop("CARGO_TARGET_DIR")
# Compiling the source packages may use what is compiled already: the sources are the package's, not the checkout's.
WARM = {**CLEAN, "CARGO_TARGET_DIR": os.environ["CARGO_TARGET_DIR"]}


def run(*command: str | Path, cwd: Path, env: dict[str, str] = CLEAN) -> str:
    ran = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT,
    )
    if ran.returncode:
        raise RuntimeError(f"$ {' '.join(map(str, command))}\n{ran.stdout}\nended with code {ran.returncode}")
    return ran.stdout.strip()


def only(pattern: str) -> Path:
    found = sorted(DIST.glob(pattern))
    if len(found) != 1:
        raise RuntimeError(f"dist/ has {len(found)} files {pattern}, not one")
    return found[0]


def programs(language: str) -> list[str]:
    found = [s.text for s in snippets() if s.language == language and s.where.startswith("docs/start.md")]
    if not found:
        raise RuntimeError(f"docs/start.md shows no {language} program to run")
    return found


def unpack(archive: Path, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    run("tar", "-xzf", archive, cwd=folder)
    (inside,) = folder.iterdir()
    return inside


# --- one package each ---


def command_line(program: Path, folder: Path, url: str) -> None:
    """The program that a package installs says its version, and runs a command under a lock."""
    if not run(program, "version", cwd=folder).startswith("redlatch "):
        raise RuntimeError(f"{program} does not say its version")
    shell = ["sh", "-c", "echo held; exit 7"]
    try:
        run(program, "run", "packages", "--", *shell, cwd=folder, env={**CLEAN, "REDLATCH_URL": url})
    except RuntimeError as error:
        if "held" not in str(error) or "code 7" not in str(error):
            raise
    else:
        raise RuntimeError(f"{program} run does not end with the code of its command")


def with_python(package: Path, folder: Path) -> None:
    run(sys.executable, "-m", "venv", "venv", cwd=folder)
    python = folder / "venv" / "bin" / "python"
    # The sources of one package have features of their own, so most is compiled again: as a development build.
    quickly = {**WARM, "MATURIN_PEP517_ARGS": "--profile=dev"}
    run(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", package, cwd=folder, env=quickly)
    where = run(python, "-c", "import redlatch; print(redlatch.__file__)", cwd=folder)
    if not where.startswith(str(folder)):
        raise RuntimeError(f"it imported {where}")
    with Server() as server:
        for program in programs("python"):
            (folder / "program.py").write_text(program)
            run(python, "program.py", cwd=folder, env={**CLEAN, "REDLATCH_URL": server.url})
        # The source is compiled by maturin alone, which makes one thing at a time.
        if package.suffix == ".whl":
            command_line(python.with_name("redlatch"), folder, server.url)


def wheel(folder: Path) -> None:
    package = only("*.whl")
    if "-abi3-" not in package.name:
        raise RuntimeError(f"{package.name} is for one version of Python only")
    with_python(package, folder)


def sdist(folder: Path) -> None:
    with_python(only("redlatch-[0-9]*.tar.gz"), folder)


def npm(folder: Path) -> None:
    # The package of JavaScript, and that of this platform; npm does without the others.
    packages = [only("redlatch-[0-9]*.tgz"), only("redlatch-[a-z]*.tgz")]
    (folder / "package.json").write_text('{ "name": "fresh", "private": true }\n')
    run("npm", "install", "--no-audit", "--no-fund", "--loglevel=error", *packages, cwd=folder)
    with Server() as server:
        env = {**CLEAN, "REDLATCH_URL": server.url}
        for program in programs("js"):
            (folder / "program.mjs").write_text(program)
            run("node", "program.mjs", cwd=folder, env=env)
        run(
            "node",
            "-e",
            "require('redlatch').Client.connect().then(client => client.close())",
            cwd=folder,
            env=env,
        )
        command_line(folder / "node_modules" / ".bin" / "redlatch", folder, server.url)


def wasm(folder: Path) -> None:
    # The package of JavaScript alone, as where there is no binary.
    (folder / "package.json").write_text('{ "name": "fresh", "private": true }\n')
    quiet = ("--no-audit", "--no-fund", "--loglevel=error", "--omit=optional")
    run("npm", "install", *quiet, only("redlatch-[0-9]*.tgz"), cwd=folder)
    with Server() as server:
        env = {**CLEAN, "REDLATCH_URL": server.url, "REDLATCH_WASM": "1"}
        program = "require('redlatch').Client.connect().then(client => client.close())"
        run("node", "-e", program, cwd=folder, env=env)


def crate(folder: Path) -> None:
    """A program of a user, and the command line: one workspace, or each dependency would be compiled for both."""
    names = ("redlatch", "redlatch-proto", "redlatch-testing", "redlatch-cli")
    places = {name: unpack(only(f"{name}-[0-9]*.crate"), folder / f"{name}-unpacked") for name in names}
    # As a registry gives them, once it has all.
    registry = {name: place for name, place in places.items() if name != "redlatch-cli"}
    patches = "".join(f'{name} = {{ path = "{place}" }}\n' for name, place in registry.items())
    tool = places["redlatch-cli"]
    # Its lock file names the registry for ours, and everything else stays as it says.
    options = [f"--config=patch.crates-io.{name}.path='{place}'" for name, place in registry.items()]
    run("cargo", "update", "--quiet", "--workspace", *options, cwd=tool, env=WARM)
    run("cargo", "metadata", "--quiet", "--locked", "--format-version=1", *options, cwd=tool, env=WARM)
    program = folder / "program"
    (program / "src").mkdir(parents=True)
    (program / "src" / "main.rs").write_text(programs("rust")[0])
    (program / "Cargo.toml").write_text(
        '[package]\nname = "fresh"\nedition = "2024"\n[dependencies]\nredlatch = "*"\n'
        'tokio = { version = "1", features = ["macros", "rt-multi-thread", "time"] }\n'
    )
    text = (ROOT / "Cargo.toml").read_text()
    (folder / "Cargo.toml").write_text(
        f'[workspace]\nresolver = "3"\nmembers = ["program", "{tool.relative_to(folder)}"]\n'
        f"[patch.crates-io]\n{patches}{text[text.index('[profile.') :]}"
    )
    (folder / "Cargo.lock").write_bytes((ROOT / "Cargo.lock").read_bytes())
    run("cargo", "build", "--quiet", "--workspace", cwd=folder, env=WARM)
    built = Path(WARM["CARGO_TARGET_DIR"]) / "debug"
    with Server() as server:
        run(built / "fresh", cwd=folder, env={**CLEAN, "REDLATCH_URL": server.url})
        command_line(built / "redlatch", folder, server.url)


def c_tarball(folder: Path) -> Path:
    c_programs(folder)
    return unpack(only("redlatch-c-*.tar.gz"), folder / "prefix")


def c_programs(folder: Path) -> None:
    (folder / "program.c").write_text(programs("c")[0])
    (folder / "program.cpp").write_text("#include <redlatch.hpp>\n" + programs("c")[0])


def c_pkg_config(folder: Path) -> None:
    prefix = c_tarball(folder)
    pkg_config(folder, prefix / "lib")
    with Server() as server:
        command_line(prefix / "bin" / "redlatch", folder, server.url)


def pkg_config(folder: Path, libraries: Path) -> None:
    env = {**CLEAN, "PKG_CONFIG_PATH": str(libraries / "pkgconfig"), "LD_LIBRARY_PATH": str(libraries)}
    flags = run("pkg-config", "--cflags", "--libs", "redlatch", cwd=folder, env=env).split()
    static = run("pkg-config", "--cflags", "--libs", "--static", "redlatch", cwd=folder, env=env).split()
    # Asked for by its file name, the linker takes the archive though the shared library lies beside it.
    static = [flag.replace("-lredlatch", "-l:libredlatch.a") for flag in static]
    with Server() as server:
        env["REDLATCH_URL"] = server.url
        for command in (
            ["cc", "program.c", *flags],
            ["c++", "program.cpp", *flags],
            ["cc", "program.c", *static],
        ):
            run(*command, "-Wall", "-Wextra", "-Werror", "-o", "program", cwd=folder)
            run("./program", cwd=folder, env=env)
    if "libredlatch" in run("ldd", "program", cwd=folder):
        raise RuntimeError("the statically linked program needs the shared library")


def c_cmake(folder: Path) -> None:
    cmake(folder, c_tarball(folder))


def cmake(folder: Path, prefix: Path) -> None:
    (folder / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.16)\nproject(fresh C CXX)\nfind_package(redlatch 0.1 REQUIRED)\n"
        "add_executable(shared program.c)\ntarget_link_libraries(shared redlatch::redlatch)\n"
        "add_executable(cpp program.cpp)\ntarget_link_libraries(cpp redlatch::redlatch)\n"
        "add_executable(static program.c)\ntarget_link_libraries(static redlatch::static)\n"
    )
    run("cmake", "-S", ".", "-B", "build", f"-DCMAKE_PREFIX_PATH={prefix}", cwd=folder)
    run("cmake", "--build", "build", cwd=folder)
    with Server() as server:
        for program in ("shared", "cpp", "static"):
            run(f"build/{program}", cwd=folder, env={**CLEAN, "REDLATCH_URL": server.url})


def c_suite(folder: Path) -> None:
    """The library as it is shipped: optimized, under valgrind and the sanitizers too."""
    run(ROOT / "c-api/tests/run", c_tarball(folder), cwd=folder)


def debian(folder: Path) -> None:
    """Debian's packages have the libraries in a folder of the processor's name. Unpacked elsewhere they work as well."""
    c_programs(folder)
    packages = [only("libredlatch0_*.deb"), only("libredlatch-dev_*.deb"), only("redlatch_*.deb")]
    for package in packages:
        run("dpkg-deb", "-x", package, folder / "root", cwd=folder)
    (libraries,) = (folder / "root" / "usr" / "lib").iterdir()
    pkg_config(folder, libraries)
    cmake(folder, folder / "root" / "usr")
    with Server() as server:
        command_line(folder / "root" / "usr" / "bin" / "redlatch", folder, server.url)
    if not shutil.which("lintian"):
        print("debian: lintian, which a release needs, is not on PATH", flush=True)
        return
    # It is not for Debian's own archive, which has a number for everything new.
    run(
        "lintian",
        "--fail-on=error,warning",
        "--suppress-tags=initial-upload-closes-no-bugs",
        *packages,
        cwd=folder,
    )


# --- all of them ---


def extract(archive: Path, folder: Path) -> Path:
    folder.mkdir()
    if archive.suffix == ".deb":
        run("dpkg-deb", "-x", archive, folder, cwd=folder)
    elif archive.suffix == ".whl":
        run(sys.executable, "-m", "zipfile", "-e", archive, folder, cwd=folder)
    else:
        run("tar", "-xzf", archive, "-C", folder, cwd=folder)
    return folder


def metadata(folder: Path) -> None:
    """Each package index takes the metadata. Pages have no link into a checkout, and nothing private is in a package."""
    run("twine", "check", "--strict", only("*.whl"), only("redlatch-[0-9]*.tar.gz"), cwd=folder)
    bad = []
    for pattern, readme in {
        "*.whl": "*.dist-info/METADATA",
        "redlatch-[0-9]*.tar.gz": "redlatch-*/PKG-INFO",
        "redlatch-[0-9]*.tgz": "package/README.md",
        "redlatch-[a-z]*.tgz": "package/README.md",
        "redlatch-[0-9]*.crate": "redlatch-*/README.md",
        "redlatch-cli-*.crate": "redlatch-*/README.md",
    }.items():
        inside = extract(archive := only(pattern), folder / archive_name(pattern))
        (page,) = inside.glob(readme)
        links = re.findall(r"\]\(([^)]+)\)", page.read_text())
        bad += [f"{archive.name}: {link}" for link in links if not re.match(r"https://|#", link)]
        bad += [
            f"{archive.name}: {path.name}" for path in inside.rglob("*") if path.suffix in (".key", ".pem")
        ]
    # Nor does a package tell from where it comes.
    sources = Path(os.environ.get("CARGO_HOME", Path.home() / ".cargo")) / "registry" / "src"
    patterns = ["*.whl", "*.tar.gz", "*.tgz", "*.deb"]
    for archive in [archive for pattern in patterns for archive in sorted(DIST.glob(pattern))]:
        inside = extract(archive, folder / f"all-{archive.name}")
        for file in inside.rglob("*"):
            if file.is_file() and any(str(place).encode() in file.read_bytes() for place in (ROOT, sources)):
                bad.append(f"{archive.name}: {file.name} names folders of this machine")
    if bad:
        raise RuntimeError(f"these lead nowhere, or do not belong there: {', '.join(bad)}")


def archive_name(pattern: str) -> str:
    return re.sub(r"\W+", "-", pattern)


def licences(folder: Path) -> None:
    """Each package with a binary has the licences of just the crates that are in it, and ours."""
    for pattern, packages in {
        "*.whl": ["redlatch-python", "redlatch-cli"],
        "redlatch-[a-z]*.tgz": ["redlatch-node", "redlatch-cli"],
        "redlatch-c-*.tar.gz": ["redlatch-c", "redlatch-cli"],
        "libredlatch0_*.deb": ["redlatch-c"],
        "libredlatch-dev_*.deb": ["redlatch-c"],
        "redlatch_*.deb": ["redlatch-cli"],
    }.items():
        if pattern.endswith(".deb") and not shutil.which("dpkg-deb"):
            continue
        archive = only(pattern)
        inside = extract(archive, folder / archive_name(pattern))
        (told,) = inside.rglob("THIRD-PARTY-NOTICES.txt*")
        text = gzip.decompress(told.read_bytes()).decode() if told.suffix == ".gz" else told.read_text()
        if text != notices.notices(packages, crates.host()):
            raise RuntimeError(f"{archive.name} has the licences of other crates than are linked")
        if archive.suffix != ".deb" and len(list(inside.rglob("LICENSE-MIT"))) != 1:
            raise RuntimeError(f"{archive.name} has not our own licence")


def bill(folder: Path) -> None:
    """The bill of materials has each crate that is linked; the checksums are those of all files."""
    told = {
        f"{part['name']} {part['version']}"
        for part in json.loads(only("redlatch-*.cdx.json").read_text())["components"]
    }
    linked = {
        f"{c.name} {c.version}"
        for name in [*notices.LIBRARIES, notices.PROGRAM]
        for c in notices.others(name, crates.host())
    }
    if missing := linked - told:
        raise RuntimeError(f"the bill of materials lacks {', '.join(sorted(missing))}")
    run("sha256sum", "--check", "--strict", "SHA256SUMS", cwd=DIST)
    summed = [line.split()[1] for line in only("SHA256SUMS").read_text().splitlines()]
    files = {path.name for path in DIST.iterdir() if path.is_file()}
    if missing := files - {*summed, "SHA256SUMS"}:
        raise RuntimeError(f"SHA256SUMS lacks {', '.join(sorted(missing))}")


# --- a release ---

HOME = "https://example.org/somebody/redlatch"
DOCUMENTATION = "https://somebody.example.org/redlatch/"


def copy(folder: Path) -> Path:
    """The source in a repository of its own, with what is not committed yet."""
    place = folder / "copy"
    listed = run("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT).splitlines()
    for name in listed:
        if (ROOT / name).exists():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, place / name, follow_symlinks=False)
    run("git", "init", "-q", cwd=place)
    commit(place)
    return place


def commit(place: Path) -> None:
    who = ["-c", "user.name=Somebody", "-c", "user.email=somebody@example.org"]
    run("git", "add", "--all", cwd=place)
    run("git", *who, "commit", "-q", "--message", "copy", cwd=place)


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    if old not in text:
        raise RuntimeError(f"{file.name} does not have {old!r}")
    file.write_text(text.replace(old, new, 1))


def refusal(place: Path, version: str) -> str:
    """The objections of the checks of a release; none if it may go on."""
    try:
        run("scripts/release", version, "--checks", cwd=place, env=WARM)
    except RuntimeError as error:
        return str(error)
    return ""


def release(folder: Path) -> None:
    """A release is refused until all is in step; filled in once, the links are in every package."""
    place = copy(folder)
    version = only("redlatch-[0-9]*.crate").stem.removeprefix("redlatch-")
    for name, value in {"repository": '""', "homepage": '""', "authors": "[]"}.items():
        stated = re.search(rf"^{name} = .*$", (place / "Cargo.toml").read_text(), re.MULTILINE)
        assert stated is not None
        edit(place / "Cargo.toml", stated[0], f"{name} = {value}")
    edit(place / "CHANGELOG.md", f"## [{version}] - ", f"## [{version}] - not yet, or ")
    objections = refusal(place, version)
    for wanted in ("no repository", "no homepage", 'no author "Name <address>"', "and a date", "not clean"):
        if wanted not in objections:
            raise RuntimeError(f"the checks of a release do not say '{wanted}': {objections}")

    edit(place / "Cargo.toml", 'repository = ""', f'repository = "{HOME}"')
    edit(place / "Cargo.toml", 'homepage = ""', f'homepage = "{DOCUMENTATION}"')
    edit(place / "Cargo.toml", "authors = []", 'authors = ["Somebody <somebody@example.org>"]')
    changes = place / "CHANGELOG.md"
    changes.write_text(
        re.sub(r"^(## \[.+?\] - ).*", r"\g<1>2026-11-24", changes.read_text(), count=1, flags=re.MULTILINE)
    )
    commit(place)
    if objections := refusal(place, version):
        raise RuntimeError(f"a release that is in step is refused: {objections}")
    for step, wanted in (
        (
            lambda: edit(place / "bindings-node" / "package.json", f'"{version}"', '"9.9.9"'),
            "has version 9.9.9",
        ),
        (lambda: run("git", "tag", f"v{version}", cwd=place), f"there is a tag v{version} already"),
    ):
        step()
        if wanted not in (objections := refusal(place, version)):
            raise RuntimeError(f"the checks of a release do not say '{wanted}': {objections}")
        run("git", "checkout", "-q", ".", cwd=place)
    run("git", "tag", "v0.0.1", cwd=place)
    edit(place / "c-api" / "abi.txt", "REDLATCH_TIMEOUT = 1", "REDLATCH_TIMEOUT = 7")
    wanted = "breaks programs of v0.0.1: REDLATCH_TIMEOUT = 1"
    if wanted not in (objections := refusal(place, version)):
        raise RuntimeError(f"the checks of a release do not say '{wanted}': {objections}")
    run("git", "checkout", "-q", ".", cwd=place)

    out = folder / "out"
    out.mkdir()
    env = {**WARM, "CARGO_TARGET_DIR": str(folder / "target")}
    names = ("redlatch-proto", "redlatch-testing", "redlatch", "redlatch-cli")
    packages = [word for name in names for word in ("--package", name)]
    run("cargo", "package", "--quiet", "--no-verify", *packages, cwd=place, env=env)
    run("maturin", "sdist", "--manifest-path", "bindings-python/Cargo.toml", "--out", out, cwd=place, env=env)
    run("scripts/pack", "npm", out, cwd=place, env=env)
    run("tar", "-xzf", next((folder / "target" / "package").glob("redlatch-[0-9]*.crate")), cwd=out)
    run("tar", "-xzf", next(out.glob("*.tar.gz")), cwd=out)
    run("tar", "-xzf", next(out.glob("*.tgz")), cwd=out)
    inside = next(path for path in out.glob("redlatch-*") if path.is_dir())
    for file in (inside / "Cargo.toml", inside / "PKG-INFO", out / "package" / "package.json"):
        for link in (HOME, DOCUMENTATION):
            if link not in file.read_text():
                raise RuntimeError(f"{file.name} does not have the link {link} that was filled in")


PACKAGES: list[Callable[[Path], None]] = [
    wheel,
    sdist,
    npm,
    wasm,
    crate,
    c_pkg_config,
    c_cmake,
    c_suite,
    debian,
    metadata,
    licences,
    bill,
    release,
]
# Tools that a package needs and that not every machine has.
NEEDS: dict[Callable[[Path], None], tuple[str, ...]] = {c_suite: ("valgrind",), debian: ("dpkg-deb",)}


def lacking(package: Callable[[Path], None]) -> str:
    if missing := [tool for tool in NEEDS.get(package, ()) if not shutil.which(tool)]:
        return f"no {', '.join(missing)} on PATH"
    if package is wasm:
        # scripts/dist leaves the module out for this reason, and for no other.
        asked = subprocess.run(
            [ROOT / "scripts/build-wasm", "--can"], stdout=subprocess.PIPE, text=True, check=False
        )
        if asked.returncode:
            return asked.stdout.strip()
    return ""


def main() -> int:
    passed = failed = skipped = 0
    for package in PACKAGES:
        if why := lacking(package):
            skipped += 1
            print(f"SKIPPED {package.__name__}: {why}", flush=True)
            continue
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="redlatch-dist-") as folder:
            try:
                package(Path(folder))
            except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
                failed += 1
                print(f"FAILED {package.__name__}: {error}", flush=True)
            else:
                passed += 1
                print(f"ok {package.__name__} ({time.monotonic() - began:.1f} s)", flush=True)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
