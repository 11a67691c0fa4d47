"""Everything that can go wrong: one tree of exceptions under LockError, one class for each kind in the core's table."""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias

from redlatch import _redlatch

LostReason: TypeAlias = Literal["expired", "deleted", "stolen", "forced", "unreachable", "closed"]
"""Why a lock was lost, by the names of the core's table."""


class LockError(Exception):
    """Everything that redlatch raises by itself. The text names the lock, the value and the remedy."""

    kind: ClassVar[str] = ""
    """The name of the kind, the same in every language; empty for this class itself."""
    code: ClassVar[int] = 0
    """The number of the kind, the same in every language."""
    retryable: ClassVar[bool] = False
    """Whether the same call can succeed later without changing anything."""
    lock_name: str | None = None
    """The lock it concerns, if it concerns one."""

    # No class here has an __init__: the compiled part makes them at any time, even while the
    # interpreter exits, and must not run Python code then.


class LockTimeoutError(LockError, TimeoutError):
    kind = "timeout"


class LockCancelledError(LockError):
    kind = "cancelled"


class NotOwnerError(LockError, RuntimeError):
    kind = "not_owner"


class LockLostError(LockError):
    kind = "lost"
    reason: LostReason | None = None
    """Why; None only if the error was not made by redlatch."""


class ForeignKindError(LockError):
    kind = "foreign_kind"


class WouldDeadlockError(LockError, RuntimeError):
    kind = "would_deadlock"


class InvalidArgumentError(LockError, ValueError):
    kind = "invalid_argument"


class ClosedError(LockError):
    kind = "closed"


class ForkedError(LockError, RuntimeError):
    kind = "forked"


class UnavailableError(LockError, ConnectionError):
    kind = "unavailable"


class AuthError(LockError):
    kind = "auth"


class DeniedError(LockError):
    kind = "denied"


class ServerError(LockError):
    kind = "server"


class NotReplicatedError(LockError):
    kind = "not_replicated"


class NameNotClusterableError(LockError):
    kind = "name_not_clusterable"


class InternalError(LockError):
    kind = "internal"


class LostInterrupt(BaseException):
    """Interrupts the body of a `with` block whose lock is lost, with the option `interrupt_on_lost`.

    The end of the block raises the LockLostError in its place. It is no Exception, so that `except Exception` lets it pass.
    """


# The compiled part finds the class of an error here.
BY_KIND: dict[str, type[LockError]] = {error.kind: error for error in LockError.__subclasses__()}

for _number, _kind, _retryable, _meaning in _redlatch.error_kinds():
    _error = BY_KIND.setdefault(_kind, LockError)
    if _error is not LockError:
        _error.code, _error.retryable, _error.__doc__ = _number, _retryable, _meaning

# A test may take this module out of `sys.modules` (`patch.dict`) and import it again. The compiled part stays, and so do its classes.
_classes = {name: value for name, value in globals().items() if isinstance(value, type) or name == "BY_KIND"}
globals().update(_redlatch.keep_errors(_classes))
