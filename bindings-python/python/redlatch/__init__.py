"""One distributed lock over Redis, the same for threads, asyncio, Rust, Node.js, C, and Java with Redisson.

    import redlatch

    client = redlatch.Client("redis://localhost")
    with client.lock("orders:42") as grant:
        ...

For asyncio see `redlatch.aio`.
"""

from redlatch._base import Holder, Part, Permits, Process
from redlatch._options import ClientOptions, LockOptions
from redlatch._redlatch import Canceller, __version__
from redlatch._sync import Client, Latch, Lock, MultiLock, PlainSemaphore, RWLock, Semaphore
from redlatch._threads import Grant
from redlatch.exceptions import (
    AuthError,
    ClosedError,
    DeniedError,
    ForeignKindError,
    ForkedError,
    InternalError,
    InvalidArgumentError,
    LockCancelledError,
    LockError,
    LockLostError,
    LockTimeoutError,
    LostInterrupt,
    LostReason,
    NameNotClusterableError,
    NotOwnerError,
    NotReplicatedError,
    ServerError,
    UnavailableError,
    WouldDeadlockError,
)

__all__ = [
    "AuthError",
    "Canceller",
    "Client",
    "ClientOptions",
    "ClosedError",
    "DeniedError",
    "ForeignKindError",
    "ForkedError",
    "Grant",
    "Holder",
    "InternalError",
    "InvalidArgumentError",
    "Latch",
    "Lock",
    "LockCancelledError",
    "LockError",
    "LockLostError",
    "LockOptions",
    "LockTimeoutError",
    "LostInterrupt",
    "LostReason",
    "MultiLock",
    "NameNotClusterableError",
    "NotOwnerError",
    "NotReplicatedError",
    "Part",
    "Permits",
    "PlainSemaphore",
    "Process",
    "RWLock",
    "Semaphore",
    "ServerError",
    "UnavailableError",
    "WouldDeadlockError",
    "__version__",
]
