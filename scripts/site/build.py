"""Builds the documentation site from the Markdown pages of the checkout, into target/site/html.

    build.py            stages the pages, runs the generator, checks every link of what it made
    build.py --check    only checks the links of target/site/html

GitHub shows the same pages, so they are plain Markdown. Three things are made of them here, in a copy:

- Programs of several languages that stand one after the other become tabs; all four have to be there, except in the pages that
  show some. So do paragraphs with programs that begin with a language in bold, up to the next heading or bold word.
- A line `Programs:` with links to files of examples/ becomes tabs with these files.
- A link to a file of the checkout that is no page leads to the repository; it is plain text while Cargo.toml names none.
- The API pages come from Python's sources, index.d.ts, redlatch.h and rustdoc.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

import api
import tomllib

ROOT = Path(os.environ["REDLATCH_ROOT"])
TARGET = Path(os.environ["CARGO_TARGET_DIR"])
SITE = TARGET / "site"
PAGES, HTML = SITE / "pages", SITE / "html"
HERE = Path(__file__).parent

# In the order of the tabs. The label is what a reader chooses once for all pages.
LABELS = {
    "rust": "Rust",
    "python": "Python",
    "js": "Node.js",
    "ts": "Node.js",
    "c": "C",
    "cpp": "C++",
    "go": "Go",
    "java": "Java",
}
ORDER = list(dict.fromkeys(LABELS.values()))
FOUR = {"Rust", "Python", "Node.js", "C"}
SHOW_SOME = {"docs/recipes.md"}
FENCE = re.compile(r"^```(\S*)[^\n]*\n.*?^```[ ]*$", re.MULTILINE | re.DOTALL)
PROGRAMS = re.compile(r"(?m)^(?:Programs|File): (\[.*\)) *$")
FILES = {".rs": "rust", ".py": "python", ".mjs": "js", ".c": "c", ".yml": "yaml"}
FILES |= {".go": "go", ".java": "java", ".rb": "ruby", ".php": "php", ".cs": "csharp"}
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")


class Broken(Exception):
    """A page that cannot be shown as it is."""


# --- pages and links ---


def listed(nav: Any) -> list[str]:
    """The paths in a part of the navigation."""
    if isinstance(nav, str):
        return [nav]
    return [path for part in (nav.values() if isinstance(nav, dict) else nav) for path in listed(part)]


def place_of(source: str) -> str:
    """Where a page of the checkout lies in the site: as in docs/, others by the name of their folder."""
    if source == "README.md":
        return "index.md"
    if source.startswith("docs/"):
        return source.removeprefix("docs/")
    if source == "api/README.md":
        return "api/index.md"
    if source.startswith("api/"):
        return source
    folder, _, name = source.rpartition("/")
    name = name if name != "README.md" else f"{folder.removeprefix('bindings-')}.md"
    return ("languages/" if folder.startswith("bindings-") else "") + name.lower()


def title_of(source: str) -> str:
    heading = re.search(r"(?m)^# (.+)$", (ROOT / source).read_text())
    if heading is None:
        raise Broken(f"{source} has no title")
    return heading[1]


def linked(text: str, source: str, places: dict[str, str], repository: str) -> str:
    """The text with links as the site has them."""
    own = places[source]

    def one(link: re.Match[str]) -> str:
        image, label, target = link.groups()
        path, mark, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target) or not path:
            return link[0]
        wanted = os.path.normpath(os.path.join(os.path.dirname(source), path))
        if wanted in places:
            if label.strip("`").endswith(".md"):  # the name of a file says nothing here
                label = title_of(wanted)
            return f"{image}[{label}]({os.path.relpath(places[wanted], os.path.dirname(own) or '.')}{mark}{anchor})"
        if not (ROOT / wanted).exists():
            raise Broken(f"{source}: the link to {target} leads nowhere")
        if image:
            asset = wanted.removeprefix("docs/")
            (PAGES / asset).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / wanted, PAGES / asset)
            return f"![{label}]({os.path.relpath(asset, os.path.dirname(own) or '.')})"
        return f"[{label}]({repository}/blob/main/{wanted}{mark}{anchor})" if repository else label

    return outside_code(text, lambda prose: LINK.sub(one, prose))


def outside_code(text: str, change: Any) -> str:
    parts, end = [], 0
    for block in FENCE.finditer(text):
        parts += [change(text[end : block.start()]), block[0]]
        end = block.end()
    return "".join([*parts, change(text[end:])])


# --- tabs ---


def tab(label: str, body: str) -> str:
    return f'=== "{label}"\n\n' + re.sub(r"(?m)^(?=.)", "    ", body.strip()) + "\n\n"


def programs_of_links(text: str, source: str) -> str:
    """The files that a line names, in place of the line."""

    def one(line: re.Match[str]) -> str:
        fences = []
        for _, _, target in LINK.findall(line[1]):
            file = ROOT / os.path.dirname(source) / target
            if not file.exists():
                raise Broken(f"{source}: the link to {target} leads nowhere")
            fences.append(f"```{FILES[file.suffix]}\n{file.read_text().rstrip()}\n```")
        return "\n\n".join(fences)

    return PROGRAMS.sub(one, text)


def tabs(bodies: dict[str, list[str]], all_four: bool = True) -> str:
    if all_four and bodies and (missing := FOUR - bodies.keys()):
        raise Broken(f"a program is shown in {', '.join(bodies)} and not in {', '.join(sorted(missing))}")
    return "".join(tab(label, "\n\n".join(bodies[label])) for label in ORDER if label in bodies)


def programs_as_tabs(text: str, all_four: bool = True) -> str:
    """Neighbouring programs of two languages or more are one group of tabs."""
    out, end = [], 0
    group: list[re.Match[str]] = []

    def close() -> None:
        nonlocal end
        bodies: dict[str, list[str]] = {}
        for block in group:
            bodies.setdefault(LABELS[block[1]], []).append(block[0])
        if len(bodies) > 1:
            out.append(text[end : group[0].start()] + tabs(bodies, all_four))
            end = group[-1].end()
        group.clear()

    for block in FENCE.finditer(text):
        if group and text[group[-1].end() : block.start()].strip():
            close()
        if block[1] in LABELS:
            group.append(block)
        else:
            close()
    close()
    return "".join(out) + text[end:]


def paragraphs_as_tabs(text: str) -> str:
    """Paragraphs that begin with **Python**, **Rust** and so on, each with what follows it, if all have programs."""
    fences = [(block.start(), block.end()) for block in FENCE.finditer(text)]
    marks = [
        mark
        for mark in re.finditer(r"(?m)^(?:\*\*([^*\n]+)\*\*|#+ )", text)
        if not any(start <= mark.start() < end for start, end in fences)
    ]
    out, end = [], 0
    group: list[tuple[int, int, str, str]] = []
    for mark, after in zip(marks, [*marks[1:], None]):
        if mark[1] in ORDER:
            stop = after.start() if after else len(text)
            group.append((mark.start(), stop, mark[1], text[mark.end() : stop].lstrip(",: \n")))
        if group and (after is None or after[1] not in ORDER):
            if all("```" in body for *_, body in group):
                bodies = {label: [body[:1].upper() + body[1:]] for *_, label, body in group}
                out.append(text[end : group[0][0]] + tabs(bodies))
                end = group[-1][1]
            group = []
    return "".join(out) + text[end:]


def bars(text: str) -> str:
    """GitHub wants a bar in the code of a table escaped, Python-Markdown shows the escape."""
    row = re.compile(r"(?m)^\|.*$")
    return outside_code(
        text, lambda prose: row.sub(lambda line: re.sub(r"`[^`]*`", unescaped, line[0]), prose)
    )


def unescaped(code: re.Match[str]) -> str:
    return code[0].replace("\\|", "|")


def lists_apart(text: str) -> str:
    """Python-Markdown wants an empty line before a list, GitHub does not."""
    return outside_code(
        text, lambda prose: re.sub(r"(?m)^(?![-*|#>] |\d+\. |\s)(.+)\n(?=(- |1\. ))", r"\1\n\n", prose)
    )


# --- building ---


def stage() -> None:
    shutil.rmtree(SITE, ignore_errors=True)
    PAGES.mkdir(parents=True)
    config = (HERE / "zensical.toml").read_text()
    sources = listed(tomllib.loads(config)["project"]["nav"])
    pages = {str(page.relative_to(ROOT)) for page in (ROOT / "docs").glob("**/*.md")}
    if left_out := pages - set(sources):
        raise Broken(f"scripts/site/zensical.toml does not name {', '.join(sorted(left_out))}")
    package = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]
    repository = package["repository"]
    places = {source: place_of(source) for source in sources}
    for source, place in places.items():
        (PAGES / place).parent.mkdir(parents=True, exist_ok=True)
        if not source.startswith("api/"):
            text = programs_of_links((ROOT / source).read_text(), source)
            text = linked(text, source, places, repository)
            try:
                text = paragraphs_as_tabs(lists_apart(bars(text)))
                (PAGES / place).write_text(programs_as_tabs(text, source not in SHOW_SOME))
            except Broken as error:
                raise Broken(f"{source}: {error}") from error
        config = config.replace(f'"{source}"', f'"{place}"')
    api.write(PAGES / "api", ROOT)
    shutil.copy(HERE / "extra.css", PAGES)
    home = "".join(
        f'{name} = "{value}"\n'
        for name, value in (("site_url", package["homepage"]), ("repo_url", repository))
        if value
    )
    (SITE / "zensical.toml").write_text(config.replace("[project]\n", f"[project]\n{home}", 1))


def generate() -> None:
    """Runs the generator. It says of itself only what failed."""
    command = [str(Path(sys.executable).parent / "zensical"), "build", "--clean", "--strict"]
    made = subprocess.run(command, cwd=SITE, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if made.returncode:
        raise Broken(made.stdout)
    api.node(HTML / "api" / "node", ROOT, HERE / "node_modules")
    # The links in the pages of rustdoc and TypeDoc are checked by them.
    rust = TARGET / "doc"
    for name in ("redlatch", "static.files", "search.index", "src", "trait.impl", "type.impl"):
        if (rust / name).exists():
            shutil.copytree(rust / name, HTML / "api" / "rust" / name, dirs_exist_ok=True)
    for file in rust.glob("*.*"):
        if file.is_file():
            shutil.copy(file, HTML / "api" / "rust")


# --- checking ---


class Page(HTMLParser):
    """The links of a page, and the anchors that links may name."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name in ("id", "name") and value:
                self.anchors.add(value)
            elif name in ("href", "src") and value is not None:
                self.links.add(value)


def dead_links() -> tuple[int, list[str]]:
    """How many links there are, and those that lead nowhere. Addresses elsewhere are not asked."""
    pages: dict[str, Page] = {}

    def page(name: str) -> Page:
        if name not in pages:
            pages[name] = Page((HTML / name).read_text())
        return pages[name]

    seen, dead = 0, []
    for file in sorted(HTML.glob("**/*.html")):
        own = str(file.relative_to(HTML))
        if own.startswith(("api/rust/", "api/node/")) or own == "404.html":
            continue
        for link in sorted(page(own).links):
            if re.match(r"[a-z]+:|//", link):
                continue
            seen += 1
            base = urlsplit(urljoin(f"http://site/{own}", link))
            path = unquote(base.path).lstrip("/")
            if (HTML / path).is_dir():
                path = f"{path.rstrip('/')}/index.html".lstrip("/")
            if not (HTML / path).exists():
                dead.append(f"{own}: {link} leads nowhere")
            elif base.fragment and path.endswith(".html") and not path.startswith(("api/rust/", "api/node/")):
                anchor = unquote(base.fragment)
                if anchor not in page(path).anchors:
                    dead.append(f"{own}: {link} names an anchor that is not there")
    return seen, dead


def main() -> int:
    try:
        if sys.argv[1:] != ["--check"]:
            stage()
            generate()
        seen, dead = dead_links()
    except Broken as error:
        print(f"site: {error}")
        return 1
    if dead:
        print("\n".join(f"site: {line}" for line in dead))
        return 1
    pages = len(
        [
            file
            for file in HTML.glob("**/index.html")
            if not {"rust", "node"} & set(file.relative_to(HTML).parts[1:2])
        ]
    )
    print(f"site: {pages} pages, {seen} links, none dead. To look at it: python3 -m http.server -d {HTML}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
