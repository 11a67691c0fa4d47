"""The planted bugs can still be planted: every text that is to be replaced occurs exactly once. The page lists them all."""

from __future__ import annotations

import unittest
from pathlib import Path

import planted
import tomllib

HERE = Path(__file__).resolve().parent
BUGS = tomllib.loads((HERE / "planted.toml").read_text())["bug"]


def rows(page: str) -> list[list[str]]:
    """The cells of the page's table of planted bugs."""
    table = page.split("| planted bug |", 1)[1].split("\n\n", 1)[0]
    return [[cell.strip() for cell in row.split("|")[1:-1]] for row in table.splitlines()[2:]]


class Planting(unittest.TestCase):
    def test_every_edit_fits_the_sources(self) -> None:
        self.assertGreaterEqual(len(BUGS), 12)
        for bug in BUGS:
            for file, old, new in bug["edits"]:
                with self.subTest(bug=bug["name"], file=file):
                    self.assertEqual((HERE.parent / file).read_text().count(old), 1, old)
                    self.assertNotEqual(old, new)

    def test_the_page_lists_them_all(self) -> None:
        found = rows((HERE / "PLANTED.md").read_text())
        self.assertEqual(sorted(name for name, *_ in found), sorted(bug["name"] for bug in BUGS))
        # A bug that no test found must not look like one that was not tried.
        self.assertEqual([name for name, *_, by in found if not by], [])

    def test_a_bug_that_names_its_tests_runs_no_others_of_a_layer(self) -> None:
        for layer in planted.layers(["cargo", "test", "--"]):
            with self.subTest(layer=layer.name):
                self.assertEqual(layer.running(["word"]), [*layer.command, "word"])
                for test in layer.tests:
                    self.assertNotIn(test, layer.command)


if __name__ == "__main__":
    unittest.main()
