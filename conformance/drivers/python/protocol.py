"""What both Python drivers share: the lines of the protocol and what redlatch says of itself."""

import json
import sys
import threading
from typing import Any

import redlatch
from redlatch import _redlatch

_out = threading.Lock()


def answer(request: dict[str, Any], reply: dict[str, Any]) -> None:
    with _out:
        print(json.dumps(reply | {"id": request["id"]}), flush=True)


def failure(error: redlatch.LockError) -> dict[str, Any]:
    reply = {"status": error.kind, "text": str(error)}
    if isinstance(error, redlatch.LockLostError):
        reply["reason"] = error.reason
    return reply


def hello(language: str) -> dict[str, Any]:
    return {
        "status": "ok",
        "language": language,
        "version": _redlatch.__version__,
        "errors": {row[1]: row[0] for row in _redlatch.error_kinds()},
        "reasons": {row[1]: row[0] for row in _redlatch.lost_reasons()},
        "options": [row[0] for row in _redlatch.options()],
    }


def seconds(request: dict[str, Any], name: str) -> float | None:
    return None if request.get(name) is None else request[name] / 1000


def client_options(request: dict[str, Any]) -> dict[str, Any]:
    lease = request["watchdog_ms"] / 1000
    pubsub = request.get("cluster_pubsub")
    return {"watchdog_lease": lease, "fencing": request["fencing"], "cluster_pubsub": pubsub}


def lock_options(client: str, request: dict[str, Any]) -> dict[str, Any]:
    lease = seconds(request, "lease_ms")
    return {"timeout": seconds(request, "wait_ms")} | ({} if lease is None else {"lease": lease})


def lines() -> Any:
    return (json.loads(line) for line in sys.stdin)
