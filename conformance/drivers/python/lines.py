"""The lines of the protocol, for every Python driver."""

import json
import sys
import threading
from typing import Any

_out = threading.Lock()


def lines() -> Any:
    return (json.loads(line) for line in sys.stdin)


def answer(request: dict[str, Any], reply: dict[str, Any]) -> None:
    with _out:
        print(json.dumps(reply | {"id": request["id"]}), flush=True)


def seconds(request: dict[str, Any], name: str) -> float | None:
    return None if request.get(name) is None else request[name] / 1000
