"""A wrong use is told what is wrong, word for word: conformance/wrong_uses.json has the texts of every language."""

from __future__ import annotations

import json
import os
import re
import socket
import threading
from pathlib import Path

import pytest
import redis
import redlatch
from conftest import LIMIT, Server

TABLE = Path(__file__).parents[2] / "conformance" / "wrong_uses.json"


def nowhere() -> str:
    """A port at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"redis://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.skipif(not TABLE.exists(), reason="the table is in the checkout only")
def test_every_wrong_use_is_told_what_is_wrong_and_what_to_do(server: Server) -> None:
    bless = os.environ.get("REDLATCH_BLESS") == "1"
    rows = json.loads(TABLE.read_text())
    closed = redlatch.Client(server.url)
    closed.close()
    other = redlatch.Client(server.url)
    with redlatch.Client(server.url) as client, other:
        told = threading.Event()
        lost = client.lock("lost", on_lost=lambda _: told.set())
        lost.acquire()
        raw = redis.Redis.from_url(server.url)
        raw.delete("lost")
        assert told.wait(LIMIT)
        held = client.lock("held")
        other_hold = other.lock("held")
        other_hold.acquire()
        raw.set("data", "mine")
        reading = client.rw_lock("sides")
        reading.read.acquire()
        given = {
            "Client": redlatch.Client,
            "client": client,
            "url": server.url,
            "closed": closed,
            "lost": lost,
            "held": held,
            "reading": reading,
            "lock": client.lock("n"),
            "nowhere": nowhere(),
        }
        for what, languages in rows:
            row = languages.get("python")
            if row is None:  # Python itself refuses it, in the words of its version
                continue
            with pytest.raises((redlatch.LockError, TypeError)) as caught:
                eval(row[0], dict(given))
                pytest.fail(f"{what}: nothing is wrong")
            text = f"{type(caught.value).__name__}: {caught.value}"
            # Systems have words of their own for a refusal.
            text = re.sub(r"127\.0\.0\.1:\d+: [^;]+", "NOWHERE: REFUSED", text)
            if bless:
                row[1:] = [text]
            assert row[1:] == [text], what
        reading.read.release()
        other_hold.release()
        raw.close()
    if bless:
        TABLE.write_text(json.dumps(rows, indent=2) + "\n")
