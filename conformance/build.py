"""Builds the programs of all languages, or finds them built. With REDLATCH_BUILT set nothing of Rust is built anew."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from drivers import Side, begin

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT / "scripts" / "lib"))
from server import Server  # noqa: E402

TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
DRIVERS = HERE / "drivers"
# The generations whose wire differs: plain PUBLISH; the verb as an argument; with a latch; the newest of each line.
REDISSONS = ("3.21.3", "3.23.5", "3.27.2", "3.52.0", "4.7.0")


def build(wanted: list[str], topology: str = "single", *, long: bool = False) -> list[Side]:
    """The sides whose names begin with one of these words; all of them but `wasm` if there are none."""
    sides: dict[str, Callable[[], Side]] = ours() | redissons(all_kinds=long or bool(wanted))
    if topology == "single":  # the others are told of one server
        sides |= others()
    if wanted:
        sides["wasm"] = wasm
    if unknown := [word for word in wanted if not any(name.startswith(word) for name in sides)]:
        sys.exit(f"no driver for {topology} is named {', '.join(unknown)}; there are {', '.join(sides)}")
    return [make() for name, make in sides.items() if not wanted or any(map(name.startswith, wanted))]


def ours(profile: str = "debug") -> dict[str, Callable[[], Side]]:
    """The faces of redlatch. Rust's and C's programs are built in this profile."""
    return {
        "rust": lambda: Side("rust", rust(profile)),
        "python": lambda: Side("python", python("driver.py", "threads")),
        "asyncio": lambda: Side("asyncio", python("driver.py", "asyncio")),
        "node": lambda: Side("node", node("driver.mjs")),
        "c": lambda: Side("c", c(profile)),
    }


def wasm() -> Side:
    """The program of Node.js on the WebAssembly module. Few machines build that, so it plays only where it is named."""
    if not (ROOT / "bindings-node" / "redlatch.wasm").exists():
        sys.exit("there is no bindings-node/redlatch.wasm; `make wasm` builds it")
    return Side("wasm", ("env", "REDLATCH_WASM=1", *node("driver.mjs")))


def redissons(*, all_kinds: bool = False) -> dict[str, Callable[[], Side]]:
    return {f"redisson-{version}": partial(redisson, version, all_kinds) for version in REDISSONS}


def others() -> dict[str, Callable[[], Side]]:
    """The real other sides of the simple kinds."""

    def node_lock(name: str, kind: str, renews: bool = False) -> Callable[[], Side]:
        return lambda: Side(name, node("foreign.mjs"), kind, (kind,), renews=renews)

    def java_lock(name: str, renews: bool = False) -> Callable[[], Side]:
        return lambda: Side(
            name, java_driver("foreign", "Foreign"), name, (name,), waits=False, renews=renews
        )

    return {
        "redis-py": lambda: Side("redis-py", python("foreign.py", "threads"), "redis-py", ("redis-py",)),
        "redis-py-asyncio": lambda: Side(
            "redis-py-asyncio", python("foreign.py", "asyncio"), "redis-py", ("redis-py",)
        ),
        "redlock": node_lock("redlock", "redlock"),
        "redlock-5": node_lock("redlock-5", "redlock"),
        "redsync": lambda: Side("redsync", python("foreign.py", "threads"), "redsync", ("redsync",)),
        "redis-semaphore": node_lock("redis-semaphore", "redis-semaphore", renews=True),
        "article": java_lock("article"),
        "adaptive": java_lock("adaptive", renews=True),
    }


def python(program: str, face: str) -> tuple[str, ...]:
    return (sys.executable, str(DRIVERS / "python" / program), face)


def node(program: str) -> tuple[str, ...]:
    return ("node", "--expose-gc", "--no-warnings", str(DRIVERS / "node" / program))


def cargo(package: str, profile: str) -> Path:
    """Builds a package of the workspace, unless of a tree that goes on changing meanwhile; the folder it is in."""
    if not os.environ.get("REDLATCH_BUILT"):
        # A development build is one of the whole workspace: scripts/build says why.
        words = (
            ["--release", "--package", package]
            if profile == "release"
            else ["--workspace", "--lib", "--bins"]
        )
        subprocess.run(["cargo", "build", "--quiet", *words], cwd=ROOT, check=True)
    return TARGET / profile


def rust(profile: str) -> tuple[str, ...]:
    return (str(cargo("redlatch-conformance", profile) / "redlatch-conformance"),)


def c(profile: str) -> tuple[str, ...]:
    built = cargo("redlatch-c", profile)
    library, program = built / "libredlatch.so.0", built / "conformance_c"
    if not library.is_symlink():
        library.symlink_to("libredlatch.so")
    sources = map(str, sorted((DRIVERS / "c").glob("*.c")))
    words = ["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-g", f"-I{ROOT / 'c-api' / 'include'}"]
    # Another phase may run the program meanwhile.
    new = f"{program}.{os.getpid()}"
    words += [*sources, f"-L{built}", f"-Wl,-rpath,{built}", "-lredlatch", "-lpthread", "-o", new]
    subprocess.run(words, check=True)
    os.replace(new, program)
    return (str(program),)


def redisson(version: str, all_kinds: bool = False) -> Side:
    command = java_driver("redisson", "Driver", version)
    everything = ("reentrant", "read-write", "multi", "semaphore", "plain-semaphore", "latch", "fair")
    # In the short form one more generation is worth its time where order depends on each of them.
    kinds = everything if all_kinds or version != "3.27.2" else ("fair",)
    # The API of several permits at once came with 3.23.4.
    takes_many = [int(part) for part in version.split(".")] >= [3, 23, 4]
    name = f"redisson-{version}"
    return Side(name, command, "redisson", kinds, renews=True, forces=True, takes_many=takes_many)


def java_driver(name: str, main: str, version: str = "") -> tuple[str, ...]:
    """The driver of this folder, compiled against what its pom.xml names (in this version)."""
    source = DRIVERS / "java" / name
    folder = TARGET / "conformance" / "-".join(filter(None, (name, version)))
    stamp, jar, loaded = (folder / name for name in ("made", "driver.jar", "loaded.jsa"))
    paths = f"{jar}:{folder / 'lib'}/*"
    sources = [DRIVERS / "java" / "Json.java", *sorted(source.glob("*.java"))]
    depends = [source / "pom.xml", *sources]
    if not stamp.exists() or stamp.stat().st_mtime < max(path.stat().st_mtime for path in depends):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        goal = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
        words = [
            "mvn",
            "-q",
            "-B",
            "-f",
            str(source / "pom.xml"),
            goal,
            f"-DoutputDirectory={folder / 'lib'}",
        ]
        if version:
            words.append(f"-D{name}.version={version}")
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        words = ["javac", "-cp", f"{folder / 'lib'}/*", "-d", str(folder / "classes")]
        subprocess.run([*words, *map(str, sources)], check=True)
        shutil.make_archive(str(jar), "zip", folder / "classes")
        Path(f"{jar}.zip").rename(jar)
        if version:
            keep_loaded((*JAVA, f"-XX:ArchiveClassesAtExit={loaded}", "-cp", paths, main))
        stamp.touch()
    return (*JAVA, f"-XX:SharedArchiveFile={loaded}", "-cp", paths, main)


# A word about the archive, as from a Java that has none, would be taken for an answer.
JAVA = (
    "java",
    *("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"),
    *("-Xshare:auto", "-Xlog:disable", "-XX:+IgnoreUnrecognizedVMOptions"),
)


def keep_loaded(command: tuple[str, ...]) -> None:
    """Lets the driver keep, at its end, the classes that it has loaded for a lock: the next ones start in half the time."""
    with Server() as server, begin(command) as driver:
        assert driver.stdin is not None and driver.stdout is not None
        opened = {"url": server.url, "watchdog_ms": 30000, "private": True, "role": "a"}
        for request in (
            {"op": "open", **opened},
            {"op": "acquire", "lock": "a"},
            {"op": "release", "lock": "a"},
        ):
            driver.stdin.write(json.dumps({"id": 1, "client": "c", "as": "main", **request}) + "\n")
            driver.stdin.flush()
            driver.stdout.readline()
