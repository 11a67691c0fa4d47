"""Metrics and spans of clients, by OpenTelemetry (`pip install redlatch[opentelemetry]`).

    import redlatch
    import redlatch.otel

    client = redlatch.otel.instrument(redlatch.Client())

docs/metrics.md lists the names. A client that is not instrumented pays nothing.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from contextvars import ContextVar
from functools import wraps
from typing import Any, ClassVar, TypeVar

from opentelemetry import metrics, trace
from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, TracerProvider

from redlatch import _dispatcher, _redlatch, _sync, _tasks, _threads, aio
from redlatch._base import BaseClient, BaseGrant, BaseLock, BaseName, BaseSemaphore
from redlatch.exceptions import LockError, LockLostError

__all__ = ["instrument"]

C = TypeVar("C", bound=BaseClient)
T = TypeVar("T")

logger: logging.Logger = logging.getLogger("redlatch.otel")

# In seconds: from a round trip to a job that runs for an hour.
BOUNDS: list[float] = [
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1,
    2.5,
    5,
    10,
    30,
    60,
    300,
    900,
    3600,
]

# Counters of a client, as docs/events.md lists them, with the names and units that they have here.
COUNTERS = {
    "acquired": ("redlatch.lock.acquired", "{level}"),
    "released": ("redlatch.lock.released", "{level}"),
    "lost": ("redlatch.lock.lost", "{hold}"),
    "timeouts": ("redlatch.lock.timeouts", "{acquisition}"),
    "cancelled": ("redlatch.lock.cancelled", "{acquisition}"),
    "renewed": ("redlatch.lock.renewals", "{renewal}"),
    "wakeups": ("redlatch.lock.handovers", "{message}"),
    "calls": ("redlatch.client.calls", "{call}"),
    "unanswered": ("redlatch.client.calls.unanswered", "{call}"),
    "connects": ("redlatch.client.connects", "{connection}"),
    "events_dropped": ("redlatch.client.events.dropped", "{event}"),
}
NOW = {
    "holds": ("redlatch.lock.held", "{hold}"),
    "waiting": ("redlatch.lock.waiting", "{caller}"),
}


def instrument(
    client: C, *, meter_provider: MeterProvider | None = None, tracer_provider: TracerProvider | None = None
) -> C:
    """Has OpenTelemetry hear of this client, for threads or for asyncio, from now on; gives the client back.

    Without providers it takes the global ones, also if they are set later. Locks that were made before stay as they are.
    Instrumenting a client twice is no error, and changes nothing.
    """
    kind = type(client)
    if not isinstance(client, BaseClient):
        raise TypeError(f"client is {client!r}; give it a redlatch.Client or a redlatch.aio.Client")
    if getattr(kind, "_telemetry", None) is not None:
        return client
    telemetry = Telemetry.of(meter_provider, tracer_provider)
    body: dict[str, Any] = {
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
    }
    body |= {name: _measured(getattr(kind, name)) for name in ("lock", "rw_lock", "multi_lock", "semaphore")}
    # The decorator of a client makes its locks by these.
    body |= {"_thread_lock": ThreadLock, "_thread_multi_lock": ThreadMultiLock}
    body |= {"_task_lock": TaskLock, "_task_multi_lock": TaskMultiLock, "_telemetry": telemetry}
    # A class of its own for this client, so that all others stay as they are.
    client.__class__ = type(kind.__name__, (kind,), body)
    telemetry.add(client)
    return client


def _measured(make: Callable[..., T]) -> Callable[..., T]:
    """The method of a client, whose locks and semaphores are measured."""

    @wraps(make)
    def measured(*words: Any, **options: Any) -> T:
        made = make(*words, **options)
        parts = (made.read, made.write) if isinstance(made, (_sync.RWLock, aio.RWLock)) else (made,)
        for part in parts:
            if own := _MEASURED.get(type(part)):
                part.__class__ = own  # without attributes of its own, so both have the same layout
        return made

    return measured


class Telemetry:
    """The instruments of one pair of providers, and the clients that report to them."""

    _all: ClassVar[dict[tuple[int, int], Telemetry]] = {}
    _making = threading.Lock()

    @classmethod
    def of(cls, meters: MeterProvider | None, tracers: TracerProvider | None) -> Telemetry:
        with cls._making:
            key = (id(meters), id(tracers))
            if key not in cls._all:
                cls._all[key] = cls(meters, tracers)
            return cls._all[key]

    def __init__(self, meters: MeterProvider | None, tracers: TracerProvider | None) -> None:
        self._providers = meters, tracers  # whose ids are keys, as long as this lives
        version = _redlatch.__version__
        meter = metrics.get_meter("redlatch", version, meters)
        self.tracer: trace.Tracer = trace.get_tracer("redlatch", version, tracers)
        self.waits: metrics.Histogram = meter.create_histogram(
            "redlatch.lock.wait.duration",
            "s",
            "How long callers waited for a lock, error.type tells why in vain",
            explicit_bucket_boundaries_advisory=BOUNDS,
        )
        self.held: metrics.Histogram = meter.create_histogram(
            "redlatch.lock.hold.duration",
            "s",
            "How long a level was held, error.type tells that it was lost",
            explicit_bucket_boundaries_advisory=BOUNDS,
        )
        self._events = meter.create_counter(
            "redlatch.client.events", "{event}", "Events of docs/events.md, by redlatch.event.kind"
        )
        # Without a mutex: a child of a fork could inherit it locked, and the garbage collector calls `_retire` at any time.
        # The core of a client gives its counters also while the client goes.
        self._clients: dict[weakref.ref[BaseClient], _redlatch.Client] = {}
        self._gone: Counter[str] = Counter()
        self._up: weakref.WeakKeyDictionary[BaseClient, bool] = weakref.WeakKeyDictionary()
        # Permits that were taken without a block: any thread or task may give them back.
        self.permits: weakref.WeakKeyDictionary[BaseSemaphore, list[Hold]] = weakref.WeakKeyDictionary()
        # Levels that were acquired without a block, by client, name and owner; the newest level last.
        self.levels: weakref.WeakKeyDictionary[BaseClient, dict[tuple[str, str], list[Hold]]]
        self.levels = weakref.WeakKeyDictionary()
        for counter, (name, unit) in COUNTERS.items():
            meter.create_observable_counter(name, [self._observed(counter)], unit)
        for counter, (name, unit) in NOW.items():
            meter.create_observable_up_down_counter(name, [self._observed(counter)], unit)
        meter.create_observable_up_down_counter(
            "redlatch.client.connected",
            [lambda _: [Observation(sum(self._up.values()))]],
            "{client}",
            "Clients that reach their server, as their last event about it says",
        )

    # --- clients and their counters ---

    def add(self, client: BaseClient) -> None:
        self._clients[weakref.ref(client, self._retire)] = client._core
        _dispatcher.dispatcher.observe(client, self._event)

    def _retire(self, client: weakref.ref[BaseClient]) -> None:
        # Its last numbers stay in the sum, which never falls.
        core = self._clients.pop(client, None)
        if core is not None and not core.forked:
            with _Outlived():
                self._gone.update(core.stats())

    def _observed(self, counter: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            cores = list(self._clients.values())
            total = sum(core.stats()[counter] for core in cores if not core.forked)
            # A client that nobody has any more holds nothing, and waits for nothing.
            return [Observation(total + (0 if counter in NOW else self._gone[counter]))]

        return observe

    def forget_parent(self) -> None:
        """Drops in a forked child what its parent counts. Clients that were not used before the fork are the child's too."""
        self._clients = {client: core for client, core in self._clients.items() if not core.forked}
        self._gone = Counter()
        clients = [client for reference in self._clients if (client := reference()) is not None]
        up, levels = self._up, self.levels
        self._up, self.levels = weakref.WeakKeyDictionary(), weakref.WeakKeyDictionary()
        self.permits = weakref.WeakKeyDictionary()
        self._up.update({client: up[client] for client in clients if client in up})
        self.levels.update({client: levels[client] for client in clients if client in levels})

    def _event(self, client: BaseClient, kind: str, lock: str | None) -> None:
        with _Outlived():
            self._events.add(1, {"redlatch.event.kind": kind})
        if kind in ("connected", "disconnected"):
            self._up[client] = kind == "connected"
        elif kind in ("lost", "abandoned"):
            for key in [key for key in self.levels.get(client, ()) if key[0] == lock]:
                for hold in self.levels[client].pop(key, ()):
                    hold.end(kind)

    # --- one acquisition ---

    def attributes(self, name: str, operation: str) -> dict[str, str]:
        return {"db.system.name": "redis", "db.operation.name": operation, "redlatch.lock.name": name}


class Wait:
    """One caller that waits for a lock or a semaphore."""

    def __init__(self, lock: BaseName) -> None:
        self._lock = lock
        self._telemetry: Telemetry = lock._client._telemetry  # type: ignore[attr-defined]
        self._wall, self._began = time.time_ns(), time.perf_counter()
        self.grant: BaseGrant | None = None
        self._told = False

    def acquired(self) -> Hold:
        self._tell(None)
        return Hold(self._telemetry, self._lock.name)

    def failed(self, error: BaseException | str) -> None:
        """The acquisition has failed. Nobody has a grant that was made before."""
        if self.grant is not None:
            self.grant._guard.let_go()
        self._tell(error)

    def _tell(self, error: BaseException | str | None) -> None:
        if self._told:
            return
        self._told = True
        with _Outlived():
            name, attributes = self._lock.name, {} if error is None else {"error.type": _type_of(error)}
            self._telemetry.waits.record(time.perf_counter() - self._began, attributes)
            span = self._telemetry.tracer.start_span(
                "redlatch.acquire",
                kind=SpanKind.CLIENT,
                attributes={**self._telemetry.attributes(name, "acquire"), **attributes},
                start_time=self._wall,
            )
            if error is not None:
                span.set_status(Status(StatusCode.ERROR, None if isinstance(error, str) else str(error)))
            span.end()


class Hold:
    """One level, from its grant to its release."""

    def __init__(self, telemetry: Telemetry, name: str) -> None:
        self._telemetry = telemetry
        self._began = time.perf_counter()
        self._ended = False
        self._span: Span | None = None
        with _Outlived():
            attributes = {"redlatch.lock.name": name}
            self._span = telemetry.tracer.start_span("redlatch.hold", attributes=attributes)

    def end(self, error: BaseException | str | None = None) -> None:
        if self._ended:
            return
        self._ended = True
        with _Outlived():
            attributes = {} if error is None else {"error.type": _type_of(error)}
            self._telemetry.held.record(time.perf_counter() - self._began, attributes)
            if self._span is not None:
                if error is not None:
                    self._span.set_attributes(attributes)
                    self._span.set_status(StatusCode.ERROR)
                self._span.end()


class _Outlived:
    """A provider that fails does not fail the lock."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, Exception):
            return False
        logger.debug("telemetry failed", exc_info=error)
        return True


def _type_of(error: BaseException | str) -> str:
    return error if isinstance(error, str) else type(error).__qualname__


# The acquisition for a block that is under way here. The grant is made inside of it.
_waiting: ContextVar[Wait | None] = ContextVar("redlatch.otel", default=None)
# The holds of blocks. A grant has no room for its own.
_holds: weakref.WeakKeyDictionary[BaseGrant, Hold] = weakref.WeakKeyDictionary()


def _granted(grant: BaseGrant, kind: type[BaseGrant], wait: Wait) -> None:
    hold = wait.acquired()
    grant.__class__ = kind  # of the same layout
    _holds[grant] = hold


def _ended(grant: BaseGrant) -> None:
    if hold := _holds.pop(grant, None):
        hold.end(None if grant.lost_reason is None else LockLostError.__qualname__)


def _push(lock: BaseLock, hold: Hold) -> None:
    """Notes a level that was acquired without a block."""
    telemetry: Telemetry = lock._client._telemetry  # type: ignore[attr-defined]
    levels = telemetry.levels.setdefault(lock._client, {})
    levels.setdefault((lock.name, lock._hold().owner), []).append(hold)


def _newest(lock: BaseLock) -> tuple[dict[tuple[str, str], list[Hold]], tuple[str, str]]:
    telemetry: Telemetry = lock._client._telemetry  # type: ignore[attr-defined]
    return telemetry.levels.get(lock._client, {}), (lock.name, lock._hold().owner)


def _pop(levels: dict[tuple[str, str], list[Hold]], key: tuple[str, str]) -> None:
    """Ends the newest level of the caller."""
    if holds := levels.get(key):
        holds.pop().end()
        if not holds:
            levels.pop(key, None)


def _take_back(lock: BaseLock, hold: Hold | None, error: BaseException) -> None:
    """Ends the record of a level whose `acquire` fails after its grant."""
    if hold is None:
        return
    levels, key = _newest(lock)
    if hold in levels.get(key, ()):
        levels[key].remove(hold)
    hold.end(error)


# The acquisition by `Semaphore.acquire` that is under way here, and the holds of what a release gives back.
_taking: ContextVar[Wait | None] = ContextVar("redlatch.otel.taking", default=None)
_giving: ContextVar[list[Hold] | None] = ContextVar("redlatch.otel.giving", default=None)


def _taken(semaphore: BaseSemaphore, wait: Wait | None) -> None:
    """Notes permits that were taken without a block."""
    if wait is not None:
        wait._telemetry.permits.setdefault(semaphore, []).append(wait.acquired())


def _given(semaphore: BaseSemaphore, guards: list[_redlatch.Guard]) -> list[_redlatch.Guard]:
    """Moves the holds of these guards, which are the newest, to the release that is under way here."""
    telemetry: Telemetry = semaphore._client._telemetry  # type: ignore[attr-defined]
    holds, ended = telemetry.permits.get(semaphore, []), _giving.get()
    for _ in guards[: len(holds)]:
        hold = holds.pop()
        if ended is not None:
            ended.append(hold)
    return guards


class _Giving:
    """The release of permits: its end is that of their holds."""

    def __enter__(self) -> None:
        self._holds: list[Hold] = []
        self._before = _giving.set(self._holds)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        _giving.reset(self._before)
        for hold in self._holds:
            hold.end(error)


class ThreadGrant(_sync.Grant):
    __slots__ = ()

    def _forget(self) -> None:
        _ended(self)
        self._tags = tuple(tag for tag in self._tags if tag != _NO_TAG)
        super()._forget()


# A grant with a tag is told of its end.
_NO_TAG = -1


class ThreadBlocks(_threads.Blocks):
    __slots__ = ()

    def __enter__(self) -> _sync.Grant:
        wait = Wait(self)
        before = _waiting.set(wait)
        try:
            grant = super().__enter__()
            _waiting.reset(before)
            return grant
        except BaseException as error:
            _waiting.set(None)
            wait.failed(error)
            raise

    def _grant(self, guard: _redlatch.Guard) -> _sync.Grant:
        grant = super()._grant(guard)
        if wait := _waiting.get():
            _granted(grant, ThreadGrant, wait)
            grant._tags = (_NO_TAG, *grant._tags)
            wait.grant = grant
        return grant


class ThreadLock(ThreadBlocks, _sync.Lock):
    __slots__ = ()
    __doc__ = _sync.Lock.__doc__

    def acquire(self, *args: Any, **options: Any) -> bool:
        wait, acquired, hold = Wait(self), False, None
        try:
            acquired = super().acquire(*args, **options)
            if acquired:
                hold = wait.acquired()
                _push(self, hold)
            else:
                wait.failed("timeout")
        except BaseException as error:  # a signal may raise anywhere
            if acquired:
                with suppress(LockError):
                    super().release()
                _take_back(self, hold, error)
            wait.failed(error)
            raise
        return acquired

    def release(self) -> None:
        levels, key = _newest(self)
        try:
            super().release()
        finally:
            _pop(levels, key)


class ThreadMultiLock(ThreadLock, _sync.MultiLock):
    __slots__ = ()
    __doc__ = _sync.MultiLock.__doc__


class ThreadSemaphore(ThreadBlocks, _sync.Semaphore):
    __slots__ = ()
    __doc__ = _sync.Semaphore.__doc__

    def acquire(self, *args: Any, **options: Any) -> bool:
        wait = Wait(self)
        before = _taking.set(wait)
        try:
            acquired = super().acquire(*args, **options)
            if not acquired:
                wait.failed("timeout")
            return acquired
        except BaseException as error:
            wait.failed(error)
            raise
        finally:
            _taking.reset(before)

    def _take(self, guard: _redlatch.Guard, permits: int) -> None:
        super()._take(guard, permits)
        _taken(self, _taking.get())

    def release(self, n: int = 1) -> None:
        with _Giving():
            super().release(n)

    def _give(self, permits: int) -> list[_redlatch.Guard]:
        return _given(self, super()._give(permits))


class TaskGrant(aio.Grant):
    __slots__ = ()

    def _forget(self) -> None:
        _ended(self)
        super()._forget()


class TaskBlocks(_tasks.Blocks):
    __slots__ = ()

    async def _entering(self, block: _redlatch.Block | None) -> aio.Grant:
        wait = Wait(self)
        try:
            grant = await super()._entering(block)
            wait.grant = grant
            _granted(grant, TaskGrant, wait)
            return grant
        except BaseException as error:
            wait.failed(error)
            raise


class TaskLock(TaskBlocks, aio.Lock):
    __slots__ = ()
    __doc__ = aio.Lock.__doc__

    @_tasks.coroutine_function
    def acquire(self, *args: Any, **options: Any) -> Coroutine[Any, Any, bool]:
        # The call itself says which task is the owner.
        return self._acquired(Wait(self), super().acquire(*args, **options))

    async def _acquired(self, wait: Wait, answer: Coroutine[Any, Any, bool]) -> bool:
        acquired, hold = False, None
        try:
            acquired = await answer
            if acquired:
                hold = wait.acquired()
                _push(self, hold)
            else:
                wait.failed("timeout")
        except BaseException as error:
            if acquired:
                with suppress(LockError):
                    await super().release()
                _take_back(self, hold, error)
            wait.failed(error)
            raise
        return acquired

    @_tasks.coroutine_function
    def release(self) -> Coroutine[Any, Any, None]:
        return self._released(*_newest(self), super().release())

    async def _released(
        self,
        levels: dict[tuple[str, str], list[Hold]],
        key: tuple[str, str],
        answer: Coroutine[Any, Any, None],
    ) -> None:
        try:
            await answer
        finally:
            _pop(levels, key)


class TaskMultiLock(TaskLock, aio.MultiLock):
    __slots__ = ()
    __doc__ = aio.MultiLock.__doc__


class TaskSemaphore(TaskBlocks, aio.Semaphore):
    __slots__ = ()
    __doc__ = aio.Semaphore.__doc__

    async def acquire(self, *args: Any, **options: Any) -> bool:
        wait = Wait(self)
        before = _taking.set(wait)
        try:
            acquired = await super().acquire(*args, **options)
            if not acquired:
                wait.failed("timeout")
            return acquired
        except BaseException as error:
            wait.failed(error)
            raise
        finally:
            _taking.reset(before)

    def _take(self, guard: _redlatch.Guard, permits: int) -> None:
        super()._take(guard, permits)
        _taken(self, _taking.get())

    async def release(self, n: int = 1) -> None:
        with _Giving():
            await super().release(n)

    def _give(self, permits: int) -> list[_redlatch.Guard]:
        return _given(self, super()._give(permits))


_MEASURED: dict[type, type] = {
    _sync.Lock: ThreadLock,
    _sync.MultiLock: ThreadMultiLock,
    _sync.Semaphore: ThreadSemaphore,
    aio.Lock: TaskLock,
    aio.MultiLock: TaskMultiLock,
    aio.Semaphore: TaskSemaphore,
}


def _after_fork() -> None:
    # Another thread of the parent may have held it.
    Telemetry._making = threading.Lock()
    for telemetry in Telemetry._all.values():
        telemetry.forget_parent()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_after_fork)
