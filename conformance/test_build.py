"""The names of drivers."""

from pathlib import Path

import build
import pytest


@pytest.mark.parametrize(("name", "topology"), [("redlock", "cluster"), ("wsam", "single")])
def test_unknown_driver_is_refused_by_name(name: str, topology: str) -> None:
    with pytest.raises(SystemExit, match=f"no driver for {topology} is named {name}; there are rust, "):
        build.build([name], topology)


def test_module_plays_once_it_is_built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(build, "ROOT", tmp_path)
    with pytest.raises(SystemExit, match="`make wasm` builds it"):
        build.build(["wasm"])
    (tmp_path / "bindings-node").mkdir()
    (tmp_path / "bindings-node" / "redlatch.wasm").touch()
    (side,) = build.build(["wasm"])
    assert (side.name, side.command[:3]) == ("wasm", ("env", "REDLATCH_WASM=1", "node"))
