"""Counts the lines of code of the core and of each binding.

    shares.py [FOLDER]

A line counts if it has code: no blank line, comment, documentation or test. A binding is all that its users load, in both
languages; Python's drop-in for redis-py and C's header for C++ are faces of their own and are counted apart. A file that
`unasync.py` makes is counted by its source.
"""

from __future__ import annotations

import io
import re
import sys
import tokenize
from collections.abc import Iterable
from pathlib import Path

import unasync

BINDINGS: dict[str, list[str]] = {
    "Python": ["bindings-python/src/*.rs", "bindings-python/python/redlatch/*.py"],
    "Node.js": ["bindings-node/src/*.rs", "bindings-node/build.rs", "bindings-node/lib/*.js"],
    "C": ["c-api/src/*.rs", "c-api/build.rs"],
}
APART: dict[str, list[str]] = {
    "OpenTelemetry for Python": ["bindings-python/python/redlatch/otel/*.py"],
    "servers and fixtures for pytest": [
        "bindings-python/python/redlatch/testing/*.py",
        "bindings-python/src/testing/*.rs",
    ],
    "OpenTelemetry for Node.js": ["bindings-node/opentelemetry.js"],
    "the server in memory for Node.js": ["bindings-node/testing.js", "bindings-node/src/testing/*.rs"],
    "the server in memory": ["core/testing/src/*.rs", "core/testing/src/*.lua"],
    "Web Locks for Node.js": ["bindings-node/web-locks.js"],
    "redis-py drop-in": ["bindings-python/python/redlatch/compat/**/*.py"],
    "C++ header": ["c-api/include/redlatch.hpp"],
    # A driver of its own, which the native faces have in the core.
    "WebAssembly": ["bindings-wasm/src/*.rs", "bindings-node/lib/wasm/*.js", "bindings-node/lib/wasm/*.mjs"],
}
CORE = ["core/src/**/*.rs", "core/proto/src/**/*.rs", "core/proto/src/**/*.lua"]
# Modules that only tests compile.
TESTS = re.compile(
    r"(^|/)(tests|[a-z_]*_tests\.rs|fuzz\.rs|campaign\.rs|real\.rs|simulated\.rs|wire/encode\.rs)(/|$)"
)

TEST_MODULE = re.compile(r"^#\[cfg\(test\)\]\n(?:#\[.*\]\n)*mod \w+ \{\n(?:.*\n)*?\}\n", re.MULTILINE)
NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def lines_of_python(text: str) -> int:
    """Lines with a token that is neither a comment nor a string that stands alone."""
    lines: set[int] = set()
    statement: list[tokenize.TokenInfo] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NEWLINE:
            if any(part.type != tokenize.STRING for part in statement):
                for part in statement:
                    lines.update(range(part.start[0], part.end[0] + 1))
            statement = []
        elif token.type not in NO_CODE:
            statement.append(token)
    return len(lines)


def lines_of(path: Path) -> int:
    text = path.read_text()
    if path.suffix == ".py":
        made = unasync.MADE in text.splitlines()
        return 0 if made else lines_of_python(unasync.sections(text, ("asyncio", "threads", "both")))
    text = re.sub(r"/\*.*?\*/", "", TEST_MODULE.sub("", text), flags=re.DOTALL)
    comment = "--" if path.suffix == ".lua" else "//"
    lines = (line.strip() for line in text.splitlines())
    return sum(1 for line in lines if line and not line.startswith(comment))


def count(folder: Path, patterns: Iterable[str]) -> int:
    files = {file for pattern in patterns for file in folder.glob(pattern)}
    return sum(lines_of(file) for file in files if not TESTS.search(str(file.relative_to(folder))))


def main(folder: Path) -> None:
    for name, patterns in {"the core": CORE, **BINDINGS, **APART}.items():
        print(f"lines of code: {name} {count(folder, patterns)}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[2]))
