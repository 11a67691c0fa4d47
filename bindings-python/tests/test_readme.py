"""The programs of the README work."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import run

BLOCKS = re.findall(r"```python\n(.*?)```", (Path(__file__).parents[1] / "README.md").read_text(), re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_an_example(block: str) -> None:
    run(block)


def test_there_are_examples() -> None:
    assert len(BLOCKS) >= 2
