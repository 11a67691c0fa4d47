"""Encrypted connections: the server of the tests behind a terminator of TLS."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redlatch
from conftest import LIMIT
from redlatch import aio

ROOT = Path(__file__).parents[2]


def load_module() -> Any:
    """The one that the other languages' tests use."""
    spec = importlib.util.spec_from_file_location("tls_terminator", ROOT / "scripts/lib/tls.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tls = load_module()
CA = str(tls.CERTIFICATES / "ca.pem")


@pytest.fixture
def encrypted(server: Any) -> Iterator[str]:
    terminator = tls.Terminator(server.port)
    yield terminator.url
    terminator.close()


def test_a_lock_over_tls(encrypted: str, name: str) -> None:
    for ca in (CA, Path(CA).read_text()):
        client = redlatch.Client(encrypted, tls_ca=ca)
        with client.lock(name) as grant:
            grant.check()
            assert redlatch.Client().lock(name).locked()
        client.close()


async def test_a_lock_over_tls_in_asyncio(encrypted: str, name: str) -> None:
    async with aio.Client(encrypted, tls_ca=CA) as client, client.lock(name) as grant:
        grant.check()


def test_an_authority_that_is_not_trusted(encrypted: str, name: str) -> None:
    client = redlatch.Client(encrypted, tls_ca=str(tls.CERTIFICATES / "other.pem"))
    with pytest.raises(redlatch.AuthError, match="give tls_ca"):
        client.lock(name).acquire(timeout=LIMIT)
    client.close()


def test_options_of_tls_are_checked(encrypted: str, url: str) -> None:
    with pytest.raises(redlatch.InvalidArgumentError, match="let it begin with rediss"):
        redlatch.Client(url, tls_ca=CA)
    with pytest.raises(redlatch.InvalidArgumentError, match="give both"):
        redlatch.Client(encrypted, tls_ca=CA, tls_cert=CA)
