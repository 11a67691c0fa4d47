"""A release uploads one package for each system, built where its suites have run."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import release
from crates import ROOT

WORKFLOW = ROOT / ".github/workflows/ci.yml"
# The package of npm for each target of a release, as the packing scripts name it.
NPM = {row[0]: row[3] for row in release.ROWS if row[-1] != "wine"}


@pytest.fixture
def dist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder dist/ with a package for every target, and what else may lie there."""
    for target, npm in NPM.items():
        (tmp_path / target).mkdir()
        (tmp_path / target / f"redlatch-{npm}-0.1.0.tgz").touch()
        (tmp_path / target / f"redlatch-0.1.0-{target}.whl").touch()
    # Built on Linux for Wine: it has the names of the one that Windows has built.
    (tmp_path / "x86_64-pc-windows-gnu").mkdir()
    (tmp_path / "x86_64-pc-windows-gnu" / "redlatch-win32-x64-msvc-0.1.0.tgz").touch()
    # Left over from another release.
    (tmp_path / "aarch64-apple-darwin" / "redlatch-darwin-arm64-0.0.9.tgz").touch()
    (tmp_path / "aarch64-apple-darwin" / "redlatch-0.0.9-old.whl").touch()
    (tmp_path / "redlatch-0.1.0.tgz").touch()
    (tmp_path / "redlatch-linux-x64-gnu-0.1.0.tgz").touch()
    monkeypatch.setattr(release, "DIST", tmp_path)
    monkeypatch.setattr(release, "version", lambda: "0.1.0")
    return tmp_path


def test_each_platform_is_uploaded_once(dist: Path) -> None:
    assert [*release.HERE, *release.ELSEWHERE] == list(NPM)
    uploaded = [path.name for path in release.tarballs()]
    assert sorted(uploaded) == sorted(
        ["redlatch-0.1.0.tgz", *(f"redlatch-{npm}-0.1.0.tgz" for npm in NPM.values())]
    )
    assert uploaded[-1] == "redlatch-0.1.0.tgz", "it names the others, which have to be there before"
    assert release.platforms() == []
    assert len(release.of_targets(release.wheel())) == len(NPM)


def test_the_platforms_that_the_package_of_javascript_names_are_those_that_are_built() -> None:
    listed = "JSON.stringify(require('./bindings-node/lib/platform.js').PLATFORMS)"
    told = subprocess.run(["node", "-p", listed], cwd=ROOT, check=True, capture_output=True, text=True)
    assert sorted(json.loads(told.stdout)) == sorted(NPM.values())


def test_the_packages_of_a_mac_are_asked_of_a_mac(dist: Path) -> None:
    assert release.elsewhere() == []
    for file in (dist / "aarch64-apple-darwin").glob("*0.1.0*"):
        file.unlink()
    objections = release.elsewhere()
    assert len(objections) == 2
    assert all("dist/aarch64-apple-darwin has no" in objection for objection in objections)
    assert not set(release.HERE) & set(release.ELSEWHERE)


def test_the_workflow_has_a_machine_for_each_of_them() -> None:
    workflow = WORKFLOW.read_text()
    assert [target for target in release.ELSEWHERE if f"target: {target} }}" not in workflow] == []


def test_what_windows_builds_is_refused_here() -> None:
    told = subprocess.run(
        ["scripts/dist", "x86_64-pc-windows-msvc"], cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert told.returncode == 2
    assert ".ci/windows" in told.stderr
