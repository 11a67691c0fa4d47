"""The tables that are written again for Python equal the core's."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
import redlatch
from redlatch import _options, _redlatch, exceptions

CLASSES = {
    "timeout": "LockTimeoutError",
    "cancelled": "LockCancelledError",
    "lost": "LockLostError",
}
"""The classes whose names say more than their kinds."""

ALSO = {
    "timeout": TimeoutError,
    "not_owner": RuntimeError,
    "would_deadlock": RuntimeError,
    "invalid_argument": ValueError,
    "forked": RuntimeError,
    "unavailable": ConnectionError,
}
"""The classes that are also what Python itself raises in such a case."""


@pytest.mark.parametrize("row", _redlatch.error_kinds(), ids=lambda row: row[1])
def test_every_kind_has_its_class(row: tuple[int, str, bool, str]) -> None:
    number, kind, retryable, meaning = row
    error = exceptions.BY_KIND[kind]
    camel = "".join(word.capitalize() for word in kind.split("_")) + "Error"
    assert error.__name__ == CLASSES.get(kind, camel)
    assert (error.kind, error.code, error.retryable, error.__doc__) == (kind, number, retryable, meaning)
    assert error.__bases__ == (redlatch.LockError, *([ALSO[kind]] if kind in ALSO else []))
    assert getattr(redlatch, error.__name__) is error and error.__name__ in redlatch.__all__


def test_there_is_no_class_without_a_kind() -> None:
    assert set(exceptions.BY_KIND) == {kind for _, kind, _, _ in _redlatch.error_kinds()}


def test_every_reason_of_a_loss_is_typed() -> None:
    assert list(get_args(redlatch.LostReason)) == [reason for _, reason, _ in _redlatch.lost_reasons()]


def test_errors_survive_pickling() -> None:
    with pytest.raises(redlatch.NotOwnerError) as caught:
        redlatch.Client().lock("a").release()
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (type(copy), str(copy), copy.lock_name) == (redlatch.NotOwnerError, str(caught.value), "a")
    copy = pickle.loads(pickle.dumps(redlatch.UnavailableError("unavailable: x")))
    assert str(copy) == "unavailable: x"


def test_the_options_are_those_of_the_table() -> None:
    table = {(name, kind) for name, scope, kind, _, _, _ in _redlatch.options() if scope == "lock"}
    assert written(_options.LockOptions) == table
    table |= {(name, kind) for name, scope, kind, _, _, _ in _redlatch.options() if scope == "client"}
    assert written(_options.ClientOptions) == table


def test_the_kinds_of_locks_are_those_of_the_table() -> None:
    kinds = get_args(_options.Kind)
    with pytest.raises(redlatch.InvalidArgumentError) as caught:
        redlatch.Client().lock("a", kind="none")  # type: ignore[arg-type]
    *first, last = kinds
    assert str(caught.value).endswith(f"give it {', '.join(first)} or {last}")
    for kind in kinds:
        if kind != "semaphore":  # that is no lock here, but has a method of its own
            redlatch.Client().lock("a", kind=kind)


def test_the_words_for_pubsub_in_a_cluster_are_those_of_the_table() -> None:
    words = get_args(_options.ClusterPubsub)
    with pytest.raises(redlatch.InvalidArgumentError) as caught:
        redlatch.Client(cluster_pubsub="none")  # type: ignore[arg-type]
    *first, last = words
    assert str(caught.value).endswith(f"give it {', '.join(first)} or {last}")
    for word in words:
        redlatch.Client(cluster_pubsub=word)


def written(options: type) -> set[tuple[str, str]]:
    hints = get_type_hints(options)
    return {(name, type_name(hint.__args__[0])) for name, hint in hints.items()}


def type_name(hint: Any) -> str:
    return "Literal" if get_origin(hint) is Literal else hint.__name__


def test_the_version_is_the_core_s() -> None:
    assert redlatch.__version__ == _redlatch.__version__


@pytest.mark.timeout(600)  # it types the package, which takes time on a busy machine
def test_the_stubs_are_what_is_there(tmp_path: Path) -> None:
    pytest.importorskip("sqlite3", reason="mypy needs it")
    pytest.importorskip("mypy")
    # Its comparison of aliases takes every Literal of several values for a mistake.
    (tmp_path / "allowed").write_text(r"redlatch(\.\w+)?\.(LostReason|Kind|ClusterPubsub|Protocol)")
    command = [
        sys.executable,
        "-m",
        "mypy.stubtest",
        "redlatch",
        "--allowlist",
        "allowed",
        "--ignore-unused-allowlist",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_type_checkers_understand_the_interface(tmp_path: Path) -> None:
    pytest.importorskip("sqlite3", reason="mypy needs it")
    pytest.importorskip("mypy")
    program = Path(__file__).with_name("typing_program.py")
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path), str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("slow", ["asyncio", "inspect", "dataclasses", "ctypes", "urllib.parse"])
def test_the_import_loads_nothing_slow_that_few_need(slow: str) -> None:
    """Each takes as long as all of ours. The tests' plug-ins of an environment may load them, so it is a bare interpreter."""
    program = "import sys; before = set(sys.modules); import redlatch; sys.exit(sys.argv[1] in set(sys.modules) - before)"
    subprocess.run([sys.executable, "-c", program, slow], check=True, timeout=60)
