"""Runs every program shown in README.md, core/README.md and docs/, and those that these pages name in a line of their own, each against a
server of its own. Words leave only the pages whose names contain one of them.

A fenced block in a language of ours is a whole program and has to end with code 0. The server's address in it,
redis://127.0.0.1:6379 or the like, is replaced by that of a running one; rediss://redis.example:6380 and /etc/redis/ca.pem by
those of a way to it over TLS. redis+quorum://a.example:6379,... is replaced by a quorum that all programs share: its servers have a vote
only after a while. Rust may leave main away, as in its docs.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from server import Quorum, Server
from tls import CERTIFICATES, Terminator

ROOT = Path(os.environ["REDLATCH_ROOT"])
TARGET = Path(os.environ["CARGO_TARGET_DIR"])
LIMIT = 60.0  # seconds for one program
QUORUM = "redis+quorum://a.example:6379,b.example:6379,c.example:6379"
FIRST = "docs/start.md"  # its programs are run in two terminals at once, as it says
WORK = 3.0  # seconds that they work
RESTART_DELAY = 30.0  # the default of the option
JNA = "net.java.dev.jna:jna:5.17.0"
FILES = {
    ".c": "c",
    ".go": "go",
    ".java": "java",
    ".rb": "ruby",
    ".php": "php",
    ".cs": "csharp",
    ".yml": "yaml",
}
NOT_PROGRAMS = {
    "",
    "sh",
    "console",
    "text",
    "toml",
    "json",
    "lua",
    "sql",
    "diff",
    "cmake",
    "make",
    "yaml",
    "ini",
}


@dataclass
class Snippet:
    where: str
    language: str
    text: str


def snippets() -> list[Snippet]:
    found = []
    for page in [ROOT / "README.md", ROOT / "core" / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]:
        text = page.read_text()
        for block in re.finditer(r"^( *)```(\S*)[^\n]*\n(.*?)^\1```\s*$", text, re.MULTILINE | re.DOTALL):
            line = text.count("\n", 0, block.start()) + 1
            found.append(Snippet(f"{page.relative_to(ROOT)}:{line}", block[2], block[3]))
        if page.name != "recipes.md":  # its programs want arguments: scripts/lib/examples.py runs them
            for target in re.findall(r"(?m)^(?:Programs|File): .*\]\((\S+)\)$", text):
                file = (page.parent / target).resolve()
                found.append(
                    Snippet(f"{page.relative_to(ROOT)}: {file.name}", FILES[file.suffix], file.read_text())
                )
    return found


# How to make a program of a text: the command that runs it. `folder` is empty and goes away afterwards.


def python(text: str, folder: Path) -> list[str]:
    (folder / "snippet.py").write_text(text)
    return [sys.executable, "snippet.py"]


def link_package(folder: Path) -> None:
    """Ours, and those that the programs of docs/node-frameworks.md and docs/coming-from.md run beside."""
    modules = folder / "node_modules"
    modules.mkdir()
    for package in (ROOT / "scripts" / "frameworks" / "node_modules").glob("[!.]*"):
        (modules / package.name).symlink_to(package)
    (modules / "redlatch").symlink_to(ROOT / "bindings-node")


def javascript(text: str, folder: Path) -> list[str]:
    link_package(folder)
    name = "snippet.cjs" if "require(" in text else "snippet.mjs"
    (folder / name).write_text(text)
    return ["node", name]


def typescript(text: str, folder: Path) -> list[str]:
    link_package(folder)
    (folder / "snippet.mts").write_text(text)
    modules = ROOT / "bindings-node" / "node_modules"
    options = ["--strict", "--target", "es2022", "--module", "nodenext", "--lib", "es2022,esnext.disposable"]
    options += ["--skipLibCheck", "--experimentalDecorators"]
    types = ["--types", "node", "--typeRoots", str(modules / "@types")]
    compiler = str(modules / "typescript" / "bin" / "tsc")
    build(["node", compiler, *options, *types, "snippet.mts"], folder)
    return ["node", "snippet.mjs"]


def rust(text: str, folder: Path) -> list[str]:
    if not re.search(r"\bfn main\(", text):
        head = "#[tokio::main]\nasync fn main() -> Result<(), Box<dyn std::error::Error>> {\n"
        text = f"{head}{text}\nOk(())\n}}\n"
    (folder / "snippet.rs").write_text(text)
    build(["rustc", "--edition", "2024", "snippet.rs", *crates()], folder)
    return ["./snippet"]


@cache
def crates() -> list[str]:
    """What the development build of the workspace has compiled, as options of rustc: nothing is compiled for a program but itself."""
    command = ["cargo", "build", "--quiet", "--workspace", "--lib", "--bins", "--message-format=json"]
    told = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    options = ["-L", f"dependency={TARGET / 'debug' / 'deps'}"]
    for artifact in map(json.loads, told.splitlines()):
        files = [file for file in artifact.get("filenames", ()) if file.endswith(".rlib")]
        if files and artifact["target"]["name"] in ("redlatch", "tokio", "metrics"):
            options += ["--extern", f"{artifact['target']['name']}={files[0]}"]
    return options


def c(text: str, folder: Path) -> list[str]:
    return compiled(["cc", "-std=c11"], "snippet.c", text, folder)


def cpp(text: str, folder: Path) -> list[str]:
    return compiled(["c++", "-std=c++11"], "snippet.cpp", text, folder)


def go(text: str, folder: Path) -> list[str]:
    (folder / "snippet.go").write_text(text)
    library = TARGET / "debug"
    flags = {
        "CGO_ENABLED": "1",
        "CGO_CFLAGS": f"-I{ROOT}/c-api/include",
        "CGO_LDFLAGS": f"-L{library} -Wl,-rpath,{library}",
    }
    build(["go", "build", "-o", "snippet", "snippet.go"], folder, flags)
    return ["./snippet"]


def java(text: str, folder: Path) -> list[str]:
    (folder / "Program.java").write_text(text)
    goal = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"
    build(["mvn", "-q", "-B", goal, f"-Dartifact={JNA}", "-DoutputDirectory=."], folder)
    (jar,) = folder.glob("jna-*.jar")
    return ["java", f"-Djna.library.path={TARGET / 'debug'}", "-cp", jar.name, "Program.java"]


def ruby(text: str, folder: Path) -> list[str]:
    (folder / "program.rb").write_text(text)
    return with_library("ruby", "program.rb")


def php(text: str, folder: Path) -> list[str]:
    (folder / "program.php").write_text(text)
    return with_library("php", "program.php")


def csharp(text: str, folder: Path) -> list[str]:
    (folder / "Program.cs").write_text(text)
    build(["mcs", "-langversion:latest", "Program.cs"], folder)
    return with_library("mono", "Program.exe")


def with_library(*command: str) -> list[str]:
    return ["env", f"LD_LIBRARY_PATH={TARGET / 'debug'}", *command]


def compiled(compiler: list[str], name: str, text: str, folder: Path) -> list[str]:
    (folder / name).write_text(text)
    library = TARGET / "debug"
    flags = [
        "-Wall",
        "-Wextra",
        "-Werror",
        f"-I{ROOT}/c-api/include",
        f"-L{library}",
        f"-Wl,-rpath,{library}",
    ]
    build([*compiler, *flags, name, "-lredlatch", "-lpthread", "-o", "snippet"], folder)
    return ["./snippet"]


def build(command: list[str], folder: Path, environment: dict[str, str] | None = None) -> None:
    subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **(environment or {})},
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


LANGUAGES: dict[str, Callable[[str, Path], list[str]]] = {
    "python": python,
    "js": javascript,
    "javascript": javascript,
    "ts": typescript,
    "typescript": typescript,
    "rust": rust,
    "c": c,
    "cpp": cpp,
    "c++": cpp,
    "go": go,
    "java": java,
    "ruby": ruby,
    "php": php,
    "csharp": csharp,
}
# The others are needs of the phase: they run whole suites. A machine need not have these.
TOOLS = {"ruby": "ruby", "php": "php", "csharp": "mcs"}


def problem_of(snippet: Snippet, quorum: Quorum) -> str:
    """Why it fails, or nothing."""
    language = LANGUAGES.get(snippet.language)
    if language is None:
        return f"'{snippet.language}' is neither run nor known as something that is no program"
    with (
        Server() as server,
        tempfile.TemporaryDirectory(prefix="redlatch-snippet-") as folder,
        closing(Terminator(server.port)) as encrypted,
    ):
        text = re.sub(r"redis://(127\.0\.0\.1|localhost)(:6379)?", server.url, snippet.text)
        text = text.replace("rediss://redis.example:6380", encrypted.url)
        if QUORUM in text:
            quorum.wait_for_votes(RESTART_DELAY)
            text = text.replace(QUORUM, quorum.url)
        text = text.replace("/etc/redis/ca.pem", str(CERTIFICATES / "ca.pem"))

        def run(command: list[str]) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                command,
                cwd=folder,
                env={**os.environ, "REDLATCH_URL": server.url},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=LIMIT,
            )

        try:
            command = language(text, Path(folder))
            terminals = 2 if snippet.where.startswith(FIRST) else 1
            began = time.monotonic()
            with ThreadPoolExecutor() as pool:
                ran = list(pool.map(run, [command] * terminals))
        except subprocess.CalledProcessError as error:
            return f"does not build:\n{error.stdout}"
        except subprocess.TimeoutExpired as error:
            return f"does not end within {LIMIT:.0f} s:\n{(error.stdout or b'').decode(errors='replace')}"
    said = "".join(each.stdout for each in ran)
    if bad := [each.returncode for each in ran if each.returncode]:
        return f"ended with code {bad[0]}:\n{said}"
    # One after the other: each says that the lock is its own, and works for WORK seconds.
    if terminals == 2 and (said.count("it is ours") != 2 or time.monotonic() - began < 2 * WORK):
        return f"two of them do not do what the page says:\n{said}"
    return ""


def main(words: list[str]) -> int:
    with Quorum() as quorum:
        return run_all(words, quorum)


def run_all(words: list[str], quorum: Quorum) -> int:
    passed = failed = 0
    for snippet in snippets():
        if snippet.language in NOT_PROGRAMS or not any(word in snippet.where for word in words or [""]):
            continue
        tool = TOOLS.get(snippet.language)
        if tool and not shutil.which(tool):
            print(f"left out {snippet.where} ({snippet.language}): {tool} is not on PATH", flush=True)
            continue
        began = time.monotonic()
        if problem := problem_of(snippet, quorum):
            failed += 1
            print(f"FAILED {snippet.where} ({snippet.language}): {problem}", flush=True)
        else:
            passed += 1
            print(f"ok {snippet.where} ({snippet.language}, {time.monotonic() - began:.1f} s)", flush=True)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
