"""Both Python drivers of redlatch share this: how requests become options, and what redlatch says of itself."""

from typing import Any

import redlatch
from lines import answer, lines, seconds
from redlatch import _redlatch

__all__ = ["answer", "client_options", "failure", "hello", "lines", "lock_options"]


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


def client_options(request: dict[str, Any]) -> dict[str, Any]:
    # The locks that scenarios re-enter in every language. Here that has to be asked for.
    options = {"watchdog_lease": request["watchdog_ms"] / 1000}
    if request.get("kind", "reentrant") == "reentrant":
        options["reentrant"] = True
    if "recheck_ms" in request:
        options["recheck"] = request["recheck_ms"] / 1000
    same = ("fencing", "cluster_pubsub", "kind", "reentrant")
    return options | {name: request[name] for name in same if name in request}


def lock_options(client: str, request: dict[str, Any]) -> dict[str, Any]:
    lease = seconds(request, "lease_ms")
    return {"timeout": seconds(request, "wait_ms")} | ({} if lease is None else {"lease": lease})


def patience(request: dict[str, Any]) -> float:
    """The wait as Lock.acquire takes it."""
    wait = seconds(request, "wait_ms")
    return -1 if wait is None else wait
