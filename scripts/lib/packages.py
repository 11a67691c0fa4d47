"""Installs each package of dist/ into a fresh place outside the checkout and runs the README's programs with it.

So a package that lacks a file, or works only beside its sources, is found before a user finds it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

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
    found = [s.text for s in snippets() if s.language == language and s.where.startswith("README.md")]
    if not found:
        raise RuntimeError(f"README.md shows no {language} program to run")
    return found


def unpack(archive: Path, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    run("tar", "-xzf", archive, cwd=folder)
    (inside,) = folder.iterdir()
    return inside


# --- one package each ---


def with_python(package: Path, folder: Path) -> None:
    run(sys.executable, "-m", "venv", "venv", cwd=folder)
    python = folder / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", package, cwd=folder, env=WARM)
    where = run(python, "-c", "import redlatch; print(redlatch.__file__)", cwd=folder)
    if not where.startswith(str(folder)):
        raise RuntimeError(f"it imported {where}")
    with Server() as server:
        for program in programs("python"):
            (folder / "program.py").write_text(program)
            run(python, "program.py", cwd=folder, env={**CLEAN, "REDLATCH_URL": server.url})


def wheel(folder: Path) -> None:
    package = only("*.whl")
    if "-abi3-" not in package.name:
        raise RuntimeError(f"{package.name} is for one version of Python only")
    with_python(package, folder)


def sdist(folder: Path) -> None:
    with_python(only("redlatch-[0-9]*.tar.gz"), folder)


def npm(folder: Path) -> None:
    package = only("*.tgz")
    (folder / "package.json").write_text('{ "name": "fresh", "private": true }\n')
    run("npm", "install", "--no-audit", "--no-fund", "--loglevel=error", package, cwd=folder)
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


def crate(folder: Path) -> None:
    package = unpack(only("redlatch-[0-9]*.crate"), folder / "face")
    proto = unpack(only("redlatch-proto-*.crate"), folder / "proto")
    program = folder / "program"
    (program / "src").mkdir(parents=True)
    (program / "src" / "main.rs").write_text(programs("rust")[0])
    (program / "Cargo.toml").write_text(
        '[package]\nname = "fresh"\nedition = "2024"\n[workspace]\n'
        # As a registry gives them, once it has both.
        f'[patch.crates-io]\nredlatch-proto = {{ path = "{proto}" }}\n'
        f'[dependencies]\nredlatch = {{ path = "{package}" }}\n'
        'tokio = { version = "1", features = ["macros", "rt-multi-thread", "time"] }\n'
        + (text := (ROOT / "Cargo.toml").read_text())[text.index("[profile.") :]
    )
    (program / "Cargo.lock").write_bytes((ROOT / "Cargo.lock").read_bytes())
    with Server() as server:
        run("cargo", "run", "--quiet", cwd=program, env={**WARM, "REDLATCH_URL": server.url})


def c_tarball(folder: Path) -> Path:
    prefix = unpack(only("redlatch-c-*.tar.gz"), folder / "prefix")
    (folder / "program.c").write_text(programs("c")[0])
    (folder / "program.cpp").write_text("#include <redlatch.hpp>\n" + programs("c")[0])
    return prefix


def c_pkg_config(folder: Path) -> None:
    prefix = c_tarball(folder)
    env = {
        **CLEAN,
        "PKG_CONFIG_PATH": str(prefix / "lib" / "pkgconfig"),
        "LD_LIBRARY_PATH": str(prefix / "lib"),
    }
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
    prefix = c_tarball(folder)
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


PACKAGES: list[Callable[[Path], None]] = [wheel, sdist, npm, crate, c_pkg_config, c_cmake]


def main() -> int:
    passed = failed = 0
    for package in PACKAGES:
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
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
