"""Finds the Rust files of the core that import each other in a circle, and refuses a circle that has grown.

    circles.py [FOLDER]

A file imports another one if it names something of it, in a `use` or by a path that begins with crate, self or super. A name
that a module passes on (`pub use`) counts as imported from its own file. Methods in one file on a type of another make the
two one: each counts as importing the other. A `mod` line imports nothing, and tests do not count.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

Module = tuple[str, ...]

# The roots of the crates, and how many files a circle may have in each folder. In another folder there may be none.
ROOTS = ["core/src", "core/proto/src", "core/testing/src"]
BOUNDS = {
    "core/src": 7,
    "core/src/driver": 7,
    # Files of three systems, of which one is compiled at a time.
    "core/src/sys": 6,
    # The methods of `Engine`, in files by what they do.
    "core/proto/src/engine": 8,
    "core/proto/src/outbox": 3,
    "core/proto/src/wire": 3,
}

USE = re.compile(r"^\s*(pub(?:\([^)]*\))?\s+)?use\s+([^;]+);", re.MULTILINE)
PATH = re.compile(r"\b(?:crate|super|self)(?:::\w+)+")
METHODS = re.compile(r"^impl(?:<[^>]*>)? (\w+)(?:<[^>]*>)? \{", re.MULTILINE)
TEST_FILE = re.compile(r"#\[cfg\(test\)\]\n(?:#\[.*\]\n)*(?:pub )?mod (\w+);")
TEST_MODULE = re.compile(r"^#\[cfg\(test\)\]\n(?:#\[.*\]\n)*mod \w+ \{\n(?:.*\n)*?\}\n", re.MULTILINE)


def paths(tree: str) -> Iterator[str]:
    """The paths of a `use`: `a::{b, c::{d}}` has a::b and a::c::d."""
    head, brace, rest = tree.strip().partition("{")
    if not brace:
        yield re.sub(r"\s+as\s+\w+$", "", head)
        return
    depth, part = 0, ""
    for char in rest.rstrip().removesuffix("}") + ",":
        depth += (char == "{") - (char == "}")
        if char != "," or depth:
            part += char
        elif part.strip():
            yield from (head + path for path in paths(part))
            part = ""
        else:
            part = ""


class Crate:
    """The files of one crate, and what each imports."""

    def __init__(self, root: Path) -> None:
        self.files: dict[Module, Path] = {}
        self.texts: dict[Module, str] = {}
        for file in sorted(root.rglob("*.rs")):
            parts = file.relative_to(root).with_suffix("").parts
            module = parts[:-1] if parts[-1] in ("mod", "lib") else parts
            self.files[module] = file
            self.texts[module] = re.sub(r"//.*", "", file.read_text())
        for module, text in list(self.texts.items()):
            for name in TEST_FILE.findall(text):
                self.drop((*module, name))
        self.passed_on: dict[Module, dict[str, Module]] = {}
        named: dict[Module, list[Module]] = {}
        for module, text in self.texts.items():
            text = self.texts[module] = TEST_MODULE.sub("", text)
            passed = self.passed_on[module] = {}
            named[module] = []
            for public, tree in USE.findall(text):
                whole = [full for path in paths(tree) if (full := self.absolute(module, path))]
                named[module] += whole
                if public:
                    passed.update((full[-1], full) for full in whole)
            for path in PATH.findall(USE.sub("", text)):
                if full := self.absolute(module, path):
                    named[module].append(full)
        self.imports: dict[Module, set[Module]] = {module: set() for module in self.files}
        for module, fulls in named.items():
            types = {full[-1]: full for full in fulls}
            for full in fulls:
                self.connect(module, self.file_of(full))
            for name in METHODS.findall(self.texts[module]):
                if name in types and (owner := self.file_of(types[name])) is not None:
                    self.connect(owner, module)

    def drop(self, module: Module) -> None:
        for other in [other for other in self.files if other[: len(module)] == module]:
            del self.files[other], self.texts[other]

    def connect(self, module: Module, to: Module | None) -> None:
        if to is not None and to != module:
            self.imports[module].add(to)

    def absolute(self, module: Module, path: str) -> Module | None:
        """The path from the crate's root; None if it leads to another crate."""
        words = tuple(word.strip() for word in path.split("::"))
        if words[0] == "crate":
            return words[1:]
        here = module
        while words and words[0] in ("self", "super"):
            here = here[:-1] if words[0] == "super" else here
            words = words[1:]
        inside = len(words) < len(path.split("::")) or (*module, words[0]) in self.files
        return (*here, *words) if inside else None

    def file_of(self, full: Module) -> Module | None:
        """The file that defines what this path names."""
        for length in range(len(full), -1, -1):
            module, rest = full[:length], full[length:]
            if module not in self.files:
                continue
            if rest and (further := self.passed_on[module].get(rest[0])):
                return self.file_of((*further, *rest[1:]))
            # The root of a crate has nothing of its own. It passes on what other crates have.
            return module or None
        return None

    def circles(self) -> Iterable[list[Path]]:
        """The strongly connected components of more than one file."""
        reach = {module: self.reachable(module) for module in self.files}
        found: set[Module] = set()
        for module in self.files:
            circle = {other for other in reach[module] if module in reach[other]}
            if len(circle) > 1 and module not in found:
                found |= circle
                yield sorted(self.files[other] for other in circle)

    def reachable(self, module: Module) -> set[Module]:
        seen: set[Module] = set()
        todo = [module]
        while todo:
            for to in self.imports[todo.pop()] - seen:
                seen.add(to)
                todo.append(to)
        return seen


def main(folder: Path) -> int:
    broken = 0
    for circle in (circle for root in ROOTS for circle in Crate(folder / root).circles()):
        files = [file.relative_to(folder) for file in circle]
        place = os.path.commonpath([file.parent for file in files])
        bound = BOUNDS.get(place, 1)
        print(f"circles: {len(files)} files of {place}, at most {bound}")
        if len(files) > bound:
            print("gate broken: no circle of imports grows")
            print("\n".join(map(str, files)))
            broken += 1
    return broken


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[2])))
