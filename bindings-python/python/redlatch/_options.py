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
    """Options of a lock.

    kind: reentrant, simple, redis-py, redlock, redsync, redis-semaphore, article, adaptive, read, write,
    semaphore or fair; default reentrant
        The wire protocol: that of Redisson's lock, of the simple lock, or of a program that has one.
    reentrant: True or False; default False
        Whether a caller that holds the lock enters once more, instead of waiting for itself.
    lease: a time from 100 ms to 24 h, as a number of seconds; default none: the watchdog renews
        A fixed lease: the lock ends by itself after this time and is never renewed.
    watchdog_lease: a time from 100 ms to 24 h, as a number of seconds; default 30 s
        The lease that the watchdog renews, every third of it, for as long as the lock is held.
    fencing: True or False; default False
        Draw a fencing token with every first acquisition: a number that only grows, also together with
        Redisson's `RFencedLock`. Its counter stays in Redis for ever.
    fencing_expires: True or False; default False
        Draw fencing tokens from a counter that expires 25 hours after its last use, unless it has no expiry
        already. Not for names that Java locks with `RFencedLock`: its tokens would begin at 1 again. Implies
        `fencing`.
    max_hold: a time from 100 ms to 365 days, as a number of seconds; default none
        The longest time a hold may last, renewed or not.
    replicas: a whole number from 0 to 100; default 0
        How many replicas must acknowledge an acquisition (WAIT); with fewer it is rolled back and fails.
    linger: True or False; default False
        The lock outlives the client and the program: only a release or its lease ends it. For a job once an
        hour, say.
    writer_preference: a time from 0 ms to 1 min, as a number of seconds; default 0 ms
        Read-write lock: how long new readers let a waiting writer go first, in all clients that have this
        option. 0: not at all.
    limit: a whole number from 0 to 2147483647; default 0: others set it
        How many permits a semaphore gets, if it has none yet.
    fair: True or False; default False
        Serve the callers of a semaphore that have this option in their order, over all programs. Redisson and
        callers without it can overtake them. A lock has the kind `fair` for that.
    """

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
    """Options of a client; those of a lock are defaults for the locks of this client.

    connect_timeout: a time from 10 ms to 5 min, as a number of seconds; default 5 s
        How long one attempt to connect may take, log-in included.
    recheck: a time from 100 ms to 1 h, as a number of seconds; default 5 s
        The longest time between two tries of a waiter, should every wake-up be lost. Spread by a tenth.
    outage: a time from 0 ms to 1 h, as a number of seconds; default 10 s
        How long a server that had been reached may be away before callers that acquire, release or close stop
        waiting for it.
    restart_delay: a time from 0 ms to 1 h, as a number of seconds; default 30 s
        Quorum: how long a server has no vote after its start, because it may have lost its locks. At least
        the longest lease of all clients; 0 if the servers lose nothing (appendfsync always).
    handover_limit: a whole number from 0 to 1000000; default 100
        How often in a row a release hands the lock to the next waiter of the same client; then others get a
        chance. 0: never.
    handover_time: a time from 0 ms to 1 h, as a number of seconds; default 50 ms
        How long a client may go on handing the lock to its own waiters before others get a chance.
    close_limit: a time from 0 ms to 10 min, as a number of seconds; default 5 s
        How long closing may take to release what is held; 0 leaves it to its lease.
    exit_limit: a time from 0 ms to 1 min, as a number of seconds; default 1 s
        The same, when the program ends without closing (Python, Node.js); 0 leaves what is held to its lease.
        A signal may stop another thread inside malloc: then the process ends after this time, and what is
        held ends with its lease.
    tracking: True or False; default True
        Ask the server to tell when the key of a hold changes, so that a loss is known in milliseconds.
    direct: True or False; default True
        Make a call on the caller's thread, on one more connection, while no other caller uses the client. Not
        with TLS or a cluster.
    cluster_pubsub: auto, sharded, classic or both; default auto
        How releases are published in a cluster: by shard where nodes can (auto), always by shard (sharded),
        to all nodes (classic), or both ways (both), for mixed fleets.
    client_name: 1 to 64 printable ASCII characters without spaces; default redlatch
        The first part of the names of the connections in CLIENT LIST. Client id, language, process id and
        host follow.
    protocol: auto, resp2 or resp3; default auto
        The protocol. With RESP2 a loss is noticed at the next renewal only. `auto` is RESP3 where the server
        knows it.
    keep_alive: a time from 1 s to 1 h, as a number of seconds; default 5 s
        After how much silence TCP asks whether the server is still there. Not for Unix sockets.
    tls_ca: PEM text, or the path of a file of it; default none: those of the system
        The certificates of the authorities that may have signed the server's certificate.
    tls_cert: PEM text, or the path of a file of it; default none
        The client's certificate, for servers that ask for one, with the intermediate certificates up to its
        authority.
    tls_key: PEM text, or the path of a file of it; default none
        The private key of `tls_cert`.
    events: a whole number from 0 to 1000000; default 1024
        How many events are kept for a reader; 0 keeps none.
    debug_events: True or False; default False
        Keep events about single locks as well: acquired, waiting, released.
    """

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
