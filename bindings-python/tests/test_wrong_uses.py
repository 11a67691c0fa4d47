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


@pytest.mark.skipif(not TABLE.exists(), reason="the table is in the checkout only")
def test_every_wrong_use_is_told_what_is_wrong_and_what_to_do(own_server: Server) -> None:
    server = own_server
    bless = os.environ.get("REDLATCH_BLESS") == "1"
    rows = json.loads(TABLE.read_text())
    closed = redlatch.Client(server.url)
    closed.close()
    cancelled = redlatch.Canceller()
    cancelled.cancel()
    other = redlatch.Client(server.url)
    with redlatch.Client(server.url) as client, other, socket.socket() as bound:
        # Bound and not listening: nobody else can answer there.
        bound.bind(("127.0.0.1", 0))
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
            "cancelled": cancelled,
            "client": client,
            "url": server.url,
            "server": f"127.0.0.1:{server.port}",
            "closed": closed,
            "lost": lost,
            "held": held,
            "raw": raw,
            "reading": reading,
            "lock": client.lock("n"),
            # Nobody connects to these servers.
            "quorum": redlatch.Client("redis+quorum://a,b,c"),
            "nowhere": f"redis://127.0.0.1:{bound.getsockname()[1]}",
        }
        wrong = []
        for what, languages in rows:
            row = languages["python"]
            if isinstance(row, str) and row:  # why there is no such use
                continue
            try:
                eval(row[0], dict(given))
            except (redlatch.LockError, TypeError) as error:
                text = f"{type(error).__name__}: {error}".replace(str(given["server"]), "SERVER")
            else:
                text = "nothing is wrong"
            # Systems and servers have words of their own.
            text = re.sub(r"127\.0\.0\.1:\d+: [^;]+", "NOWHERE: REFUSED", text)
            text = re.sub(r'the server said "[^"]*', 'the server said "...', text)
            if bless:
                row[1:] = [text]
            if row[1:] != [text]:
                wrong.append(f"{what}: {text}, not {row[1:]}")
        assert not wrong, "\n".join(wrong)
        reading.read.release()
        other_hold.release()
        raw.close()
    if bless:
        TABLE.write_text(json.dumps(rows, indent=2) + "\n")
