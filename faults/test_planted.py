"""The planted bugs can still be planted: every text that is to be replaced occurs exactly once."""

from __future__ import annotations

import unittest
from pathlib import Path

import tomllib

HERE = Path(__file__).resolve().parent


class Planting(unittest.TestCase):
    def test_every_edit_fits_the_sources(self) -> None:
        bugs = tomllib.loads((HERE / "planted.toml").read_text())["bug"]
        self.assertGreaterEqual(len(bugs), 12)
        for bug in bugs:
            for file, old, new in bug["edits"]:
                with self.subTest(bug=bug["name"], file=file):
                    self.assertEqual((HERE.parent / file).read_text().count(old), 1, old)
                    self.assertNotEqual(old, new)


if __name__ == "__main__":
    unittest.main()
