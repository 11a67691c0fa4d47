"""Writes the options into docstrings, for `help()`: the core's table has each with its bounds, default and meaning."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from redlatch import _redlatch
from redlatch.exceptions import InvalidArgumentError

T = TypeVar("T")

WIDTH = 100
# As Python writes them.
_WORDS = {"true": "True", "false": "False", "true or false": "True or False"}


def documented(**scopes: str) -> Callable[[T], T]:
    """Adds the options of these scopes of the table, each scope under its heading."""

    def add(thing: T) -> T:
        if thing.__doc__:  # not with python -OO
            parts = (f"{heading}\n\n{OPTIONS[scope]}" for scope, heading in scopes.items())
            thing.__doc__ = "\n\n".join((_without_margin(thing.__doc__), *parts))
        return thing

    return add


def _options_of(scope: str) -> str:
    lines: list[str] = []
    for name, of, _, _, default, meaning in _redlatch.options():
        if of == scope:
            first = f"{name}: {_acceptable(name)}; default {_WORDS.get(default, default)}"
            lines += [*_wrapped(first, "    "), *_wrapped(meaning, "        ")]
    return "\n".join(lines)


def _acceptable(name: str) -> str:
    """Taken from the error of a value that no option takes."""
    try:
        _redlatch.Client("redis://", {name: documented})
    except InvalidArgumentError as error:
        text = str(error).partition("; give it ")[2]
        return _WORDS.get(text, text)
    raise AssertionError(f"the option {name} takes anything")


def _without_margin(text: str) -> str:
    """As inspect.cleandoc, which costs too much to import."""
    first, *rest = text.strip().split("\n")
    margin = min((len(line) - len(line.lstrip()) for line in rest if line.strip()), default=0)
    return "\n".join((first, *(line[margin:] for line in rest)))


def _wrapped(text: str, indent: str) -> list[str]:
    # textwrap takes five times as long, and every import waits for it.
    lines = [indent]
    for word in text.split():
        if len(lines[-1]) + len(word) >= WIDTH:
            lines.append(indent)
        lines[-1] += word if lines[-1] == indent else f" {word}"
    return lines


OPTIONS = {scope: _options_of(scope) for scope in ("client", "lock")}
