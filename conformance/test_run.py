"""The runner itself."""

import subprocess
import sys
from pathlib import Path

RUN = Path(__file__).parent / "run.py"


def test_words_that_no_title_has_fail() -> None:
    words = ["--drivers", "rust", "--only", "wake", "no such word"]
    ended = subprocess.run([sys.executable, str(RUN), *words], capture_output=True, text=True, check=False)
    assert "no scenario of these drivers has a title with wake and no such word" in ended.stderr
    assert ended.returncode == 1
