"""Builds the drivers, or finds them built."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from drivers import Kind

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
BUILT = TARGET / "debug"
DRIVERS = HERE / "drivers"
# The generations whose wire differs: plain PUBLISH; the verb as an argument; the newest of each line.
REDISSONS = ("3.21.3", "3.23.5", "3.52.0", "4.7.0")


def build(wanted: list[str]) -> list[Kind]:
    """The drivers whose names begin with one of these words; all of them if there are none."""
    commands: dict[str, Callable[[], list[str]]] = {
        "rust": rust,
        "python": lambda: [sys.executable, str(DRIVERS / "python" / "driver.py")],
        "asyncio": lambda: [sys.executable, str(DRIVERS / "python" / "driver_asyncio.py")],
        "node": lambda: ["node", str(DRIVERS / "node" / "driver.mjs")],
        "c": c,
        **{f"redisson-{version}": partial(redisson, version) for version in REDISSONS},
    }
    names = [name for name in commands if not wanted or any(map(name.startswith, wanted))]
    return [Kind(name, commands[name]()) for name in names]


def rust() -> list[str]:
    subprocess.run(["cargo", "build", "--quiet", "--package", "redlatch-conformance"], cwd=ROOT, check=True)
    return [str(BUILT / "redlatch-conformance")]


def c() -> list[str]:
    program, source = BUILT / "conformance_c", DRIVERS / "c" / "driver.c"
    header = ROOT / "c-api" / "include"
    words = [
        "cc",
        "-std=c11",
        "-Wall",
        "-Wextra",
        "-g",
        f"-I{header}",
        str(source),
        f"-L{BUILT}",
        f"-Wl,-rpath,{BUILT}",
    ]
    subprocess.run([*words, "-lredlatch", "-lpthread", "-o", str(program)], check=True)
    return [str(program)]


def redisson(version: str) -> list[str]:
    """Redisson of this version with the driver compiled against it."""
    folder = TARGET / "conformance" / f"redisson-{version}"
    stamp = folder / "Driver.class"
    source = DRIVERS / "java" / "Driver.java"
    if not stamp.exists() or stamp.stat().st_mtime < source.stat().st_mtime:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        words = ["mvn", "-q", "-B", "-f", str(DRIVERS / "java" / "pom.xml"), f"-Dredisson.version={version}"]
        goal = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
        subprocess.run(
            [*words, goal, f"-DoutputDirectory={folder / 'lib'}"], check=True, stdout=subprocess.DEVNULL
        )
        subprocess.run(["javac", "-cp", f"{folder / 'lib'}/*", "-d", str(folder), str(source)], check=True)
    options = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    return ["java", *options, "-cp", f"{folder}:{folder / 'lib'}/*", "Driver"]
