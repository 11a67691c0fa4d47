"""The exceptions of the locks of this layer: redis-py's exceptions where it is installed, else some of our own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import redlatch

__all__ = ["LockError", "LockNotOwnedError", "chain", "lock_error", "redis_errors"]

if TYPE_CHECKING:
    from redis.exceptions import LockError, LockNotOwnedError
else:
    try:
        from redis.exceptions import LockError, LockNotOwnedError
    except ModuleNotFoundError:

        class LockError(redlatch.LockError, ValueError):
            """Stands in for redis.exceptions.LockError."""

        class LockNotOwnedError(LockError):
            """Stands in for redis.exceptions.LockNotOwnedError."""


REDIS_NAMES: dict[type[redlatch.LockError], str] = {
    redlatch.AuthError: "AuthenticationError",
    redlatch.DeniedError: "NoPermissionError",
    redlatch.ForeignKindError: "ResponseError",
    redlatch.InvalidArgumentError: "DataError",
    redlatch.ServerError: "ResponseError",
    redlatch.UnavailableError: "ConnectionError",
}
"""The classes of redis-py for what is no matter of locks; for the rest it is their base, RedisError."""


def lock_error(text: str, name: object, kind: type[LockError] = LockError) -> LockError:
    error = kind(text)
    # Older versions of redis-py do not take it as an argument.
    error.lock_name = name  # type: ignore[assignment]
    return error


@contextmanager
def redis_errors(name: object, no_longer_owned: str) -> Iterator[None]:
    """Has redis-py's exceptions raised in place of ours, which become their causes."""
    try:
        yield
    except (LockError, redlatch.LockTimeoutError):
        raise
    except (redlatch.NotOwnerError, redlatch.LockLostError) as error:
        raise lock_error(no_longer_owned, name, LockNotOwnedError) from error
    except redlatch.LockError as error:
        raise _translated(error) from error


def chain(failure: BaseException, body: BaseException | None) -> None:
    """Has the error of a block's body shown before that of its end: an error of the compiled part knows of none."""
    first = failure.__cause__
    if first is not None and first.__context__ is None and first is not body:
        first.__context__ = body


def _translated(error: redlatch.LockError) -> Exception:
    try:
        from redis import exceptions
    except ModuleNotFoundError:
        return error
    kind: type[Exception] = getattr(exceptions, REDIS_NAMES.get(type(error), "RedisError"))
    return kind(str(error))
