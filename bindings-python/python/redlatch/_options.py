"""The core's options as keyword arguments, for type checkers and editors.

Generated from `core/src/options.rs`; a test compares them. The table also holds defaults and bounds and is printed
in docs/options.md. Times are in seconds; None stands for the default.
"""

from __future__ import annotations

from typing import Literal, TypedDict

ClusterPubsub = Literal["auto", "sharded", "classic", "both"]

Protocol = Literal["auto", "resp2", "resp3"]

Kind = Literal[
    "reentrant",
    "simple",
    "redis-py",
    "redlock",
    "redsync",
    "redis-semaphore",
    "article",
    "adaptive",
    "read",
    "write",
    "semaphore",
    "fair",
]


class LockOptions(TypedDict, total=False):
    """Options of a lock."""

    kind: Kind | None
    reentrant: bool | None
    lease: float | None
    watchdog_lease: float | None
    fencing: bool | None
    fencing_expires: bool | None
    max_hold: float | None
    replicas: int | None
    linger: bool | None
    writer_preference: float | None
    limit: int | None
    fair: bool | None


class ClientOptions(LockOptions, total=False):
    """Options of a client; those of a lock are defaults for the locks of this client."""

    connect_timeout: float | None
    recheck: float | None
    outage: float | None
    restart_delay: float | None
    handover_limit: int | None
    handover_time: float | None
    close_limit: float | None
    exit_limit: float | None
    tracking: bool | None
    direct: bool | None
    cluster_pubsub: ClusterPubsub | None
    client_name: str | None
    protocol: Protocol | None
    keep_alive: float | None
    tls_ca: str | None
    tls_cert: str | None
    tls_key: str | None
    events: int | None
    debug_events: bool | None
