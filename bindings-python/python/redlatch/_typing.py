"""Types of arguments, and names that `typing` has since Python 3.11: annotations can be evaluated on 3.10, too, and without
typing_extensions."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if sys.version_info >= (3, 11):
    from typing import Self, Unpack
elif TYPE_CHECKING:
    from typing_extensions import Self, Unpack
else:
    Self = Any

    class Unpack:
        def __class_getitem__(cls, options: Any) -> Any:
            return options


__all__ = ["RedisClient", "Self", "Unpack"]


class HasPool(Protocol):
    """A client of one server, by its address or through Sentinel."""

    @property
    def connection_pool(self) -> Any: ...


class HasNodes(Protocol):
    """A client of a cluster."""

    @property
    def nodes_manager(self) -> Any: ...


RedisClient: TypeAlias = HasPool | HasNodes
"""A client of redis-py or valkey-py, for threads or for asyncio."""
