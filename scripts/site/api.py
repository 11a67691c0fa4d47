"""The API pages of the site: Python's from its sources, C's from redlatch.h, and one that leads to all, with those of
rustdoc and TypeDoc. They are references: each name, its types, and the text that the source has for it."""

from __future__ import annotations

import ast
import re
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path

INDEX = """\
# API references

Made of the sources.

| language | |
|---|---|
| Rust | [crate `redlatch`](rust/redlatch/index.html), by rustdoc |
| Python | [`redlatch`, `redlatch.aio` and the exceptions](python.md) |
| Node.js | [`redlatch`, `redlatch/opentelemetry`, `redlatch/testing`, `redlatch/web-locks`](node/modules/index.html), by TypeDoc |
| C | [`redlatch.h`](c.md) |
| shell | [the command line](../cli.md); `redlatch help` |
| options, errors | [options](../options.md) and [errors](../errors.md), for all languages |
"""


def write(folder: Path, root: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "index.md").write_text(INDEX)
    (folder / "python.md").write_text(python(root / "bindings-python" / "python" / "redlatch"))
    (folder / "c.md").write_text(c((root / "c-api" / "include" / "redlatch.h").read_text()))


def node(out: Path, root: Path, modules: Path) -> None:
    """TypeDoc's own pages: with the search and the links that a type of TypeScript needs."""
    package = root / "bindings-node"
    faces = [
        package / name for name in ("index.d.ts", "opentelemetry.d.ts", "testing.d.ts", "web-locks.d.ts")
    ]
    options = [
        "--readme",
        "none",
        "--disableSources",
        "--excludePrivate",
        "--excludeExternals",
        "--name",
        "redlatch",
    ]
    types = ["--tsconfig", str(package / "tsconfig.json"), "--skipErrorChecking"]
    quiet = ["--logLevel", "Warn", "--treatWarningsAsErrors", "--validation.notExported", "false"]
    subprocess.run(
        [
            "node",
            str(modules / "typedoc" / "bin" / "typedoc"),
            *options,
            *types,
            *quiet,
            "--out",
            str(out),
            *map(str, faces),
        ],
        check=True,
        cwd=package,
    )


# --- Python ---

MODULES = {
    "redlatch": ("__init__.py", "For threads and greenlets."),
    "redlatch.aio": ("aio.py", "For asyncio."),
    "redlatch.exceptions": (
        "exceptions.py",
        "Also names of `redlatch`. When each is raised: [errors](../errors.md).",
    ),
}
PYTHON = """\
# Python

Times are seconds. The options that calls take as `**options` are in [options](../options.md).
"""


def python(package: Path) -> str:
    """The public classes of each module, each in the first one that has it, with those of their base classes."""
    common = classes(package / "_base.py")
    parts = [PYTHON]
    shown: dict[str, str] = {}
    for module, (file, about) in MODULES.items():
        bases = common | classes(package / ("_tasks.py" if module == "redlatch.aio" else "_threads.py"))
        parts.append(f"## {module}\n\n{about}\n")
        for name, found in exported(package / file).items():
            is_error = name.endswith("Error")
            if is_error == (module == "redlatch.exceptions") and shown.get(name) != ast.unparse(found):
                parts.append(of_class(found, bases, "redlatch" if is_error else module))
                shown[name] = ast.unparse(found)
    if missing := exported(package / "__init__.py").keys() - shown.keys():
        raise ValueError(f"the page of Python does not have {', '.join(sorted(missing))}")
    return "\n".join(parts)


def exported(file: Path) -> dict[str, ast.ClassDef]:
    """The classes that `__all__` names, from wherever the module has them; all public ones where there is no `__all__`."""
    tree = ast.parse(file.read_text())
    found = classes(file)
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("redlatch."):
            source = file.parent / (node.module or "").removeprefix("redlatch.").replace(".", "/")
            there = next(
                (path for path in (source.with_suffix(".py"), source.with_suffix(".pyi")) if path.exists()),
                None,
            )
            own = classes(there) if there else {}
            found |= {name.name: own[name.name] for name in node.names if name.name in own}
    names = [
        name
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        for name in ast.literal_eval(node.value)
    ]
    return {
        name: node for name, node in found.items() if (name in names if names else not name.startswith("_"))
    }


def classes(file: Path) -> dict[str, ast.ClassDef]:
    return {node.name: node for node in ast.parse(file.read_text()).body if isinstance(node, ast.ClassDef)}


def of_class(node: ast.ClassDef, bases: dict[str, ast.ClassDef], module: str) -> str:
    over = [ast.unparse(base) for base in node.bases if ast.unparse(base) not in bases]
    head = f"class {module}.{node.name}({', '.join(over)})".replace("()", "")
    lines = [f"### {module}.{node.name}\n", block("python", head), cleaned(node)]
    seen: set[str] = set()
    for own in [node, *inherited(node, bases)]:
        for member in own.body:
            if text := of_member(member):
                name, shown = text
                # All others are made by a client.
                if name not in seen and (name != "__init__" or own is node or node.name == "Client"):
                    title = f"{node.name}()" if name in ("__init__", "__new__") else f"{node.name}.{name}"
                    lines.append(f"#### {title}\n\n{shown}")
                seen.add(name)
    return "\n".join(lines)


def inherited(node: ast.ClassDef, bases: dict[str, ast.ClassDef]) -> Iterator[ast.ClassDef]:
    for base in node.bases:
        if isinstance(base, ast.Name) and base.id in bases:
            yield bases[base.id]
            yield from inherited(bases[base.id], bases)


def of_member(member: ast.stmt) -> tuple[str, str] | None:
    """A method, property or field; nothing if it is private or has no text."""
    if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name):
        name = member.target.id
        return (
            None
            if name.startswith("_")
            else (name, block("python", f"{name}: {ast.unparse(member.annotation)}"))
        )
    if not isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef):
        return None
    marks = [ast.unparse(mark) for mark in member.decorator_list]
    if (member.name.startswith("_") and member.name not in ("__init__", "__new__")) or "overload" in marks:
        return None
    returns = f" -> {ast.unparse(member.returns)}" if member.returns else ""
    if "property" in marks:
        shown = f"{member.name}: {returns.removeprefix(' -> ')}"
    else:
        word = "async def" if isinstance(member, ast.AsyncFunctionDef) else "def"
        arguments = ast.unparse(member.args).replace("self, ", "", 1).removeprefix("self").removeprefix("cls")
        arguments = re.sub(r"(: [^=,]+)=", r"\1 = ", arguments)
        shown = f"{word} {member.name}({arguments}){returns}"
        if len(shown) > 88:
            inner = ",\n".join(f"    {part}" for part in split(arguments))
            shown = f"{word} {member.name}(\n{inner},\n){returns}"
    return member.name, f"{block('python', shown)}\n{cleaned(member)}"


def split(arguments: str) -> Iterator[str]:
    """The arguments one by one: not at a comma between brackets."""
    depth, start = 0, 0
    for at, letter in enumerate(arguments):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            yield arguments[start:at].strip()
            start = at + 1
    yield arguments[start:].strip()


def cleaned(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    return (ast.get_docstring(node) or "") + "\n"


def block(language: str, text: str) -> str:
    return f"```{language}\n{text.replace('_redlatch.', '')}\n```\n"


# --- C ---

SECTIONS = (
    ("redlatch_options", "Options"),
    ("redlatch_client", "Clients"),
    ("redlatch_canceller", "Ending a wait"),
    ("redlatch_lock", "Locks"),
    ("redlatch_rw_lock", "Locks"),
)


def c(header: str) -> str:
    """The comment at the top of redlatch.h, and then each declaration under the name of what it declares."""
    top = re.match(r"/\*(.*?)\*/", header, re.DOTALL)
    assert top is not None
    title, _, about = textwrap.dedent(re.sub(r"(?m)^ \* ?", "", top[1])).strip().partition("\n")
    example, _, rules = about.strip("\n").partition("\n\n")
    parts: dict[str, list[str]] = {}
    pattern = re.compile(
        r"^/\*\*(.*?)\*/\n((?:enum|typedef struct \{).*?^\}[^;]*;|#define [^\n]*|[^#/].*?;)$", re.M | re.S
    )
    for comment, declaration in pattern.findall(header):
        name, section = declared(declaration)
        parts.setdefault(section, []).append(
            f"### {name}\n\n{block('c', declaration.strip())}\n{plain(comment)}\n"
        )
    subject = title.partition(" - ")[2]
    intro = f"# C\n\n{subject[:1].upper()}{subject[1:]}\n\n{block('c', textwrap.dedent(example))}\n{escaped(rules)}\n"
    shown = "".join(f"\n## {section}\n\n" + "\n".join(found) for section, found in parts.items())
    wanted = set(re.findall(r"\b(redlatch_\w+)\(", re.sub(r"(?s)/\*.*?\*/", "", header)))
    if missing := [name for name in wanted if f"### {name}\n" not in shown]:
        raise ValueError(f"redlatch.h: the page of C does not have {', '.join(sorted(missing))}")
    return intro + shown


def declared(text: str) -> tuple[str, str]:
    """The name of what is declared, and the section that it belongs to."""
    if text.startswith("enum"):
        first = re.search(r"REDLATCH_\w+", re.sub(r"(?s)/\*.*?\*/", "", text))
        return (
            "redlatch_lost_reason" if first and "LOST_" in first[0] else "redlatch_status"
        ) + " values", "Values"
    if text.startswith("#define"):
        return text.split()[1], "Values"
    if text.startswith("typedef"):
        name = re.search(r"\(\*(\w+)\)|(\w+);$", text)
        assert name is not None
        return name[1] or name[2], "Types"
    call = re.search(r"(redlatch_\w+)\(", text)
    assert call is not None, text
    for prefix, section in SECTIONS:
        if call[1].startswith(f"{prefix}_"):
            return call[1], section
    return call[1], "Errors and version"


def plain(comment: str) -> str:
    return escaped(re.sub(r"(?m)^ ?\* ?", "", comment).strip())


def escaped(text: str) -> str:
    """A comment as Markdown: a pointer's star and a name's underscores stay as they are."""
    text = re.sub(r"(?<!\w)(\*?[A-Za-z]\w*_\w*(?:\(\))?|\*[a-z]\w*)", r"`\1`", text)
    return re.sub(r"(?m)^([A-Z][\w ().]*?\.) (?=[A-Z])", r"**\1** ", text) if "\n\n" in text else text
