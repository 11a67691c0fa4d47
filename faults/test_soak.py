"""A soak that did nothing fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).parent / "soak.py"


@pytest.mark.parametrize(
    ("model", "told"), [("lock", "python0 acquired nothing"), ("counters", "no acquire succeeded")]
)
def test_a_soak_without_callers_fails(model: str, told: str) -> None:
    words = ["--model", model, "--callers", "0", "--minutes", "0.01", "--processes", "1", "--debug", "python"]
    ended = subprocess.run(
        [sys.executable, str(SOAK), *words], stdout=subprocess.PIPE, text=True, check=False
    )
    assert told in ended.stdout
    assert ended.returncode == 1
