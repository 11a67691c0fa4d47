"""Metrics and spans reach OpenTelemetry's own SDK."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redlatch
import redlatch.aio
from conftest import eventually
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from redlatch.otel import COUNTERS, NOW, instrument


class Sdk:
    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self._spans = InMemorySpanExporter()
        self.meters = MeterProvider([self._reader], shutdown_on_exit=False)
        self.tracers = TracerProvider(shutdown_on_exit=False)
        self.tracers.add_span_processor(SimpleSpanProcessor(self._spans))

    def instrument(self, client: Any) -> Any:
        return instrument(client, meter_provider=self.meters, tracer_provider=self.tracers)

    def names(self) -> set[str]:
        data = self._reader.get_metrics_data()
        scopes = [scope for part in data.resource_metrics for scope in part.scope_metrics] if data else []
        return {metric.name for scope in scopes for metric in scope.metrics}

    def points(self, name: str, **attributes: str) -> list[Any]:
        data = self._reader.get_metrics_data()
        scopes = [scope for part in data.resource_metrics for scope in part.scope_metrics] if data else []
        found = [metric for scope in scopes for metric in scope.metrics if metric.name == name]
        wanted = {key.replace("_", "."): value for key, value in attributes.items()}
        points = [point for metric in found for point in metric.data.data_points]
        return [point for point in points if wanted.items() <= dict(point.attributes).items()]

    def sum(self, name: str, **attributes: str) -> int:
        values = (
            getattr(p, "count", None) or getattr(p, "value", 0) for p in self.points(name, **attributes)
        )
        return sum(values)

    def spans(self, name: str) -> list[Any]:
        return [span for span in self._spans.get_finished_spans() if span.name == name]


@pytest.fixture
def sdk() -> Iterator[Sdk]:
    sdk = Sdk()
    yield sdk
    sdk.meters.shutdown()
    sdk.tracers.shutdown()


def test_blocks_are_measured(sdk: Sdk, url: str, name: str) -> None:
    with sdk.instrument(redlatch.Client(url)) as client:
        lock = client.lock(name, timeout=0.5)
        with lock as grant:
            assert sdk.sum("redlatch.lock.held") == 1
            with pytest.raises(redlatch.LockTimeoutError), lock:
                pass
        assert not grant.held
        assert sdk.sum("redlatch.lock.wait.duration") == 2
        (late,) = sdk.points("redlatch.lock.wait.duration", error_type="LockTimeoutError")
        assert late.sum >= 0.05
        (held,) = sdk.points("redlatch.lock.hold.duration")
        assert held.count == 1 and held.sum >= 0.05
        assert sdk.sum("redlatch.lock.acquired") == sdk.sum("redlatch.lock.timeouts") == 1
        assert sdk.sum("redlatch.lock.held") == 0
        assert [span.attributes["redlatch.lock.name"] for span in sdk.spans("redlatch.acquire")] == [name] * 2
        assert [span.status.status_code for span in sdk.spans("redlatch.acquire")].count(
            StatusCode.ERROR
        ) == 1
        assert len(sdk.spans("redlatch.hold")) == 1


def test_acquire_and_release_are_measured(sdk: Sdk, url: str, name: str) -> None:
    with sdk.instrument(redlatch.Client(url)) as client:
        lock = client.lock(name, reentrant=True)
        assert lock.acquire() and lock.acquire()
        refused: list[bool] = []
        other = threading.Thread(target=lambda: refused.append(lock.acquire(timeout=0.01)))
        other.start()
        other.join()
        assert refused == [False]
        lock.release()
        assert sdk.sum("redlatch.lock.hold.duration") == 1
        client.lock(name, reentrant=True).release()
        assert sdk.sum("redlatch.lock.hold.duration") == 2
        assert sdk.sum("redlatch.lock.wait.duration") == 3
        assert sdk.sum("redlatch.lock.wait.duration", error_type="timeout") == 1


def test_tasks_are_measured(sdk: Sdk, url: str, name: str) -> None:
    async def main() -> None:
        async with sdk.instrument(redlatch.aio.Client(url)) as client:
            lock = client.lock(name, timeout=0.5)
            async with lock as grant:
                with pytest.raises(redlatch.LockTimeoutError):
                    async with client.lock(name, timeout=0.5):
                        pass
                await grant.release()
                assert sdk.sum("redlatch.lock.hold.duration") == 1
            assert await lock.acquire()
            await lock.release()
            assert sdk.sum("redlatch.lock.hold.duration") == 2
            assert sdk.sum("redlatch.lock.wait.duration") == 3
            assert sdk.sum("redlatch.lock.wait.duration", error_type="LockTimeoutError") == 1
            assert len(sdk.spans("redlatch.hold")) == 2

    asyncio.run(main())


def test_decorated_functions_are_measured(sdk: Sdk, url: str, name: str) -> None:
    with sdk.instrument(redlatch.Client(url)) as client:
        client.locked(name)(lambda: None)()
        assert sdk.sum("redlatch.lock.hold.duration") == 1


def test_every_lock_with_an_owner_is_measured(sdk: Sdk, url: str, name: str) -> None:
    with sdk.instrument(redlatch.Client(url)) as client:
        sides, names = client.rw_lock(name), [f"{name}:a", f"{name}:b"]
        several, permits = client.multi_lock(names), client.semaphore(f"{name}:permits", limit=1)
        for lock in (sides.read, sides.write, several, permits):
            with lock:
                pass
            assert lock.acquire()
            lock.release()
        client.locked(*names)(lambda: None)()
        spans = [span.attributes["redlatch.lock.name"] for span in sdk.spans("redlatch.hold")]
    both = ", ".join(names)
    assert spans == [*[name] * 4, both, both, *[f"{name}:permits"] * 2, both]
    assert sdk.sum("redlatch.lock.wait.duration") == len(spans)


def test_every_lock_of_tasks_with_an_owner_is_measured(sdk: Sdk, url: str, name: str) -> None:
    async def main() -> list[str]:
        async with sdk.instrument(redlatch.aio.Client(url)) as client:
            sides, names = client.rw_lock(name), [f"{name}:a", f"{name}:b"]
            several, permits = client.multi_lock(names), client.semaphore(f"{name}:permits", limit=1)
            for lock in (sides.read, sides.write, several, permits):
                async with lock:
                    pass
                assert await lock.acquire()
                await lock.release()

            @client.locked(*names)
            async def locked() -> None: ...

            await locked()
            return [span.attributes["redlatch.lock.name"] for span in sdk.spans("redlatch.hold")]

    both = f"{name}:a, {name}:b"
    assert asyncio.run(main()) == [*[name] * 4, both, both, *[f"{name}:permits"] * 2, both]
    assert sdk.sum("redlatch.lock.wait.duration") == 9


def test_permits_that_acquire_took_are_measured(sdk: Sdk, url: str, name: str) -> None:
    with sdk.instrument(redlatch.Client(url)) as client, redlatch.Client(url) as other:
        permits = client.semaphore(name, limit=3)
        assert permits.acquire(permits=2) and permits.acquire()
        assert not permits.acquire(timeout=0.5)
        assert sdk.sum("redlatch.lock.wait.duration", error_type="timeout") == 1
        with pytest.raises(redlatch.NotOwnerError):
            permits.release(4)
        assert sdk.spans("redlatch.hold") == []
        permits.release(3)
        assert len(sdk.spans("redlatch.hold")) == 2
        assert permits.acquire()
        assert other.semaphore(name).force_release()
        eventually(lambda: sdk.sum("redlatch.lock.lost") == 1)
        with pytest.raises(redlatch.LockLostError):
            permits.release()
        assert sdk.sum("redlatch.lock.hold.duration", error_type="LockLostError") == 1


def test_a_loss_ends_its_hold(sdk: Sdk, url: str, name: str) -> None:
    with sdk.instrument(redlatch.Client(url)) as client, redlatch.Client(url) as other:
        with pytest.raises(redlatch.LockLostError), client.lock(name) as grant:
            assert other.lock(name).force_release()
            eventually(lambda: not grant.held)
        assert sdk.sum("redlatch.lock.hold.duration", error_type="LockLostError") == 1
        assert sdk.sum("redlatch.lock.lost") == 1
        assert client.lock(name).acquire()
        assert other.lock(name).force_release()
        # Nobody releases this one: the event ends it.
        eventually(lambda: sdk.sum("redlatch.lock.hold.duration", error_type="lost") == 1)
        assert sdk.sum("redlatch.client.events") >= 3


def test_the_connection_has_a_state(sdk: Sdk, url: str) -> None:
    with sdk.instrument(redlatch.Client(url)) as client:
        client.connect()
        eventually(lambda: sdk.sum("redlatch.client.connected") == 1)


def test_counters_outlive_their_client(sdk: Sdk, url: str, name: str) -> None:
    """Also if nothing was read while they were there."""
    with sdk.instrument(redlatch.Client(url)) as client, client.lock(name):
        pass
    del client
    gc.collect()
    assert sdk.sum("redlatch.lock.acquired") == 1
    client = sdk.instrument(redlatch.Client(url))
    client.itself = client  # the garbage collector ends it
    with client.lock(name):
        pass
    del client
    gc.collect()
    assert sdk.sum("redlatch.lock.acquired") == 2
    assert not type(sdk.instrument(redlatch.Client(url)))._telemetry._up


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_counts_its_own(sdk: Sdk, url: str, name: str) -> None:
    gone = sdk.instrument(redlatch.Client(url))
    with gone.lock(name):
        pass
    gone.close()
    del gone
    gc.collect()
    with sdk.instrument(redlatch.Client(url)) as used, sdk.instrument(redlatch.Client(url)) as fresh:
        assert used.lock(name).acquire()
        used.lock(name).release()
        used.connect()
        connected = {"redlatch_event_kind": "connected"}
        eventually(lambda: sdk.sum("redlatch.client.events", **connected) == 2)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                before = sdk.sum("redlatch.lock.acquired"), sdk.sum("redlatch.client.connected")
                with fresh.lock(name):
                    eventually(lambda: sdk.sum("redlatch.client.events", **connected) == 3)
                told = *before, sdk.sum("redlatch.lock.acquired"), sdk.sum("redlatch.client.connected")
                os.write(writer, repr(told).encode())
            finally:
                os._exit(0)
        os.close(writer)
        with open(reader) as said:
            assert said.read() == "(0, 0, 1, 1)"
        os.waitpid(child, 0)
        assert sdk.sum("redlatch.lock.acquired") == 2


def test_other_clients_stay_as_they_are(sdk: Sdk, url: str) -> None:
    with redlatch.Client(url) as plain, sdk.instrument(redlatch.Client(url)) as client:
        assert type(plain) is redlatch.Client and type(plain.lock("n")) is redlatch.Lock
        kind = type(client)
        assert isinstance(client, redlatch.Client) and isinstance(client.lock("n"), redlatch.Lock)
        assert type(sdk.instrument(client)) is kind
    with pytest.raises(TypeError, match=r"give it a redlatch\.Client"):
        instrument("redis://localhost")  # type: ignore[type-var]


def interrupt(*_: Any) -> None:
    """A handler of a signal may raise wherever Python code runs."""
    raise KeyboardInterrupt


def test_an_interrupt_after_the_grant_leaves_nothing(
    sdk: Sdk, url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = redlatch.otel._waiting
    interrupted = SimpleNamespace(set=waiting.set, get=waiting.get, reset=interrupt)
    with sdk.instrument(redlatch.Client(url)) as client:
        lock = client.lock(name)
        with monkeypatch.context() as patched:
            patched.setattr(redlatch.otel, "_waiting", interrupted)
            with pytest.raises(KeyboardInterrupt) as kept, lock:
                pass
        # Also while somebody looks at the exception, whose frames have the grant.
        eventually(lambda: not lock.locked())
        assert kept.value is not None


def test_an_interrupt_after_the_grant_of_a_task_leaves_nothing(
    sdk: Sdk, url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def enter(client: Any) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(redlatch.otel, "_granted", interrupt)
            async with client.lock(name):
                pass

    with redlatch.Client(url) as look:
        client = sdk.instrument(redlatch.aio.Client(url))
        with pytest.raises(KeyboardInterrupt) as kept:
            asyncio.run(enter(client))
        eventually(lambda: not look.lock(name).locked())
        assert kept.value is not None
        asyncio.run(client.close())


def test_an_interrupt_after_acquire_leaves_nothing(
    sdk: Sdk, url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def acquire(client: Any) -> None:
        await client.lock(name).acquire()

    with sdk.instrument(redlatch.Client(url)) as client:
        lock = client.lock(name, reentrant=True)
        assert lock.acquire()
        with monkeypatch.context() as patched:
            patched.setattr(redlatch.otel, "_push", interrupt)
            with pytest.raises(KeyboardInterrupt):
                lock.acquire()
        assert lock.hold_count == 1
        lock.release()
        assert not lock.locked()
        tasks = sdk.instrument(redlatch.aio.Client(url))
        with monkeypatch.context() as patched:
            patched.setattr(redlatch.otel, "_push", interrupt)
            with pytest.raises(KeyboardInterrupt):
                asyncio.run(acquire(tasks))
        eventually(lambda: not lock.locked())
        asyncio.run(tasks.close())
        # No wait is counted twice, and each hold has an end.
        assert sdk.sum("redlatch.lock.wait.duration") == 3
        assert len(sdk.spans("redlatch.hold")) == 3


def test_a_provider_that_fails_does_not_fail_the_lock(
    sdk: Sdk, url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("telemetry")

    with sdk.instrument(redlatch.Client(url)) as client:
        telemetry = type(client)._telemetry
        monkeypatch.setattr(telemetry.waits, "record", fail)
        monkeypatch.setattr(telemetry.held, "record", fail)
        monkeypatch.setattr(telemetry._events, "add", fail)
        with client.lock(name):
            pass
        assert client.lock(name).acquire(timeout=1)


def test_every_counter_is_a_metric_that_is_documented(sdk: Sdk, url: str) -> None:
    with sdk.instrument(redlatch.Client(url)) as client:
        client.connect()
        assert {*COUNTERS, *NOW} == {*client.stats()}
    page = (Path(__file__).resolve().parents[2] / "docs" / "metrics.md").read_text()
    names = {name for name, _ in [*COUNTERS.values(), *NOW.values()]}
    measured = {*names, "redlatch.lock.wait.duration", "redlatch.lock.hold.duration"}
    measured |= {"redlatch.client.events", "redlatch.client.connected"}
    assert [name for name in sorted(measured) if f"`{name}`" not in page] == []
    assert sdk.names() <= measured
    assert names <= sdk.names()


def test_redlatch_alone_does_not_need_opentelemetry() -> None:
    program = "import sys, redlatch, redlatch.aio; print([m for m in sys.modules if 'opentelemetry' in m])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
