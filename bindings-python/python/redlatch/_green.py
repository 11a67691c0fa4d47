"""Greenlets: how a call waits in a program that runs gevent or eventlet, and when a greenlet has ended.

A greenlet that waits switches to the hub of its thread, which runs the other greenlets meanwhile. The answers of the
engines reach the hub through a queue, whose descriptor the hub watches. Neither library is imported here: what the
program has not imported cannot be running.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from functools import partial
from typing import Any

from redlatch import _redlatch
from redlatch.exceptions import InvalidArgumentError

_modules = sys.modules

exiting = False
"""Set when the interpreter exits. A hub may never run again then, so calls wait on their thread."""


def original(module: str, name: str) -> Any:
    """The object that the standard library has under this name, even if gevent or eventlet has replaced it."""
    if patcher := _modules.get("eventlet.patcher"):
        return getattr(patcher.original(module), name)
    if monkey := _modules.get("gevent.monkey"):
        return monkey.get_original(module, name)
    return getattr(importlib.import_module(module), name)


def in_main_thread() -> bool:
    """Whether this is the main thread, in whatever greenlet."""
    # gevent gives the main thread the identity of its greenlet, eventlet gives it to the caller only.
    identities = (threading.get_ident(), original("_thread", "get_ident")())
    return threading.main_thread().ident in identities


# ---- owners ----

_keys: weakref.WeakKeyDictionary[Any, _redlatch.Key] = weakref.WeakKeyDictionary()


def key_of(greenlet: Any) -> _redlatch.Key:
    """The key that ends with this greenlet. The keys of its flows end with it, as those of a thread do with the thread."""
    known = _keys.get(greenlet)
    if known is None:
        known = _redlatch.Key.of_greenlet()
        # gevent and eventlet call back when a greenlet of theirs ends. A raw greenlet ends unnoticed until it is collected.
        link = getattr(greenlet, "rawlink", None) or getattr(greenlet, "link", None)
        if link is not None:
            link(partial(_end, known))
        else:
            weakref.finalize(greenlet, _end, known).atexit = False
        # Last, because a signal handler may raise before: no key is without its end.
        _keys[greenlet] = known
    return known


def _end(key: _redlatch.Key, *_: object) -> None:
    """A lock that the greenlet still holds without a grant is not renewed any more."""
    from redlatch import _dispatcher

    for client in _dispatcher.dispatcher.clients():
        client._core.key_ended(key)


# ---- waiting ----

# Local to the native thread, as hubs are.
_local = original("_thread", "_local")()


def ask(send: Callable[..., Any], *args: Any) -> Any:
    """Sends a request and waits for its answer: on the thread, or in a greenlet so that its hub can run."""
    if "greenlet" not in _modules or (hub := hub_here()) is None:
        return send(*args, None)
    return hub.ask(send, *args)


def acquire(
    core: _redlatch.Lock,
    wait: float | None,
    lease: float | None,
    token: str | None,
    tied: bool,
    canceller: _redlatch.Canceller | None,
    permits: int | None = None,
) -> _redlatch.Guard:
    """Acquires for the flow that calls, and waits as `ask` does."""
    if hub := hub_here():
        return hub.acquire(core, wait, lease, token, tied, canceller, permits)
    guard: _redlatch.Guard = core.acquire(None, wait, lease, token, tied, None, canceller, permits)
    return guard


def told(send: Callable[..., Any], *args: object, canceller: _redlatch.Canceller | None) -> bool:
    """Waits as `ask` does, for permits or for a latch; False when the time is over."""
    if (hub := hub_here()) is None:
        return send(*args, None, canceller)  # type: ignore[no-any-return]
    _refuse_canceller(canceller)
    return hub.ask(send, *args)  # type: ignore[no-any-return]


def _refuse_canceller(canceller: _redlatch.Canceller | None) -> None:
    if canceller is not None:
        raise InvalidArgumentError(
            f"invalid_argument: canceller is {canceller!r}, and a greenlet waits in its hub, where a canceller cannot end "
            "the wait; leave it out, and end the wait with a Timeout, with timeout=, or with kill() from another greenlet"
        )


def hub_here() -> Hub | None:
    """The hub that runs the calling greenlet; None if the calling thread has no hub and a call may block it.

    The main thread of a patched program gets its hub with the first call that needs one, as it does from the libraries.
    """
    if "greenlet" not in _modules or exiting:
        return None
    for find in (Gevent.find, Eventlet.find):
        if hub := find():
            return hub
    return None


class Hub:
    """Brings the answers of the engines into the hub of one thread.

    A greenlet that is killed or times out while it waits cancels its request and releases what the request has won.
    """

    def __init__(self, hub: Any) -> None:
        self.queue = _redlatch.Queue()
        self._hub = weakref.ref(hub)
        self._pid = os.getpid()
        self._context = Context()
        self._waiting: dict[_redlatch.Answer, Callable[[_redlatch.Answer], object]] = {}
        # A loop keeps what it watches. This must end with its thread, so the loop knows it weakly.
        drain = weakref.WeakMethod(self._drain)
        self._watch(hub, lambda *_: (method := drain()) and method())

    def __del__(self) -> None:
        with suppress(Exception):  # the loop may be closed
            self._unwatch()
        if not exiting:
            from redlatch import _dispatcher

            _dispatcher.dispatcher.hub_ended(self.queue)

    @classmethod
    def _of(cls, hub: Any) -> Hub:
        ours: Hub | None = getattr(_local, "hub", None)
        # A child that was forked has the hub of its parent, and needs a queue of its own.
        if ours is None or ours._hub() is not hub or ours._pid != os.getpid():
            ours = _local.hub = cls(hub)
        return ours

    def ask(self, send: Callable[..., Any], *args: Any) -> Any:
        """Sends a request, and switches to the hub until the answer is there."""
        answer = None
        try:
            answer = send(*args, self.queue)
            if type(answer) is not _redlatch.Answer:  # it came at once
                return answer
            event, tell = self._event()
            answer.add_done_callback(tell, context=self._context)
            self._waiting[answer] = tell
            self._keep_watching()
            try:
                event.wait()
            finally:
                del self._waiting[answer]
                self._keep_watching()
            answer.send(None)
        except StopIteration as end:
            return end.value
        except BaseException:
            if type(answer) is _redlatch.Answer:
                answer.forget()
            raise

    def acquire(
        self,
        core: _redlatch.Lock,
        wait: float | None,
        lease: float | None,
        token: str | None,
        tied: bool,
        canceller: _redlatch.Canceller | None,
        permits: int | None = None,
    ) -> _redlatch.Guard:
        _refuse_canceller(canceller)
        send = partial(core.acquire, permits=permits)
        guard: _redlatch.Guard = self.ask(send, None, wait, lease, token, tied)
        return guard

    def take(
        self, core: _redlatch.PlainSemaphore, wait: float | None, canceller: _redlatch.Canceller | None
    ) -> _redlatch.Permit:
        _refuse_canceller(canceller)
        permit: _redlatch.Permit = self.ask(core.take, 1, wait)
        return permit

    def _drain(self) -> None:
        """Runs in the hub, which must not wait: it only schedules."""
        if self._pid != os.getpid():
            self._unwatch()
            return
        lost: list[int] = []
        try:
            self.queue.settle(True, lost)
        except BaseException:
            # The handler of a signal raised it, and may have done so in place of telling a greenlet.
            for answer, tell in list(self._waiting.items()):
                if answer.done():
                    tell(answer)
            raise
        finally:
            self._call_back(lost)

    def _call_back(self, tags: list[int]) -> None:
        """Runs each callback of a loss in a greenlet of its own, also when a signal's handler raises in between."""
        try:
            while tags:
                self._spawn(_fire, tags.pop())
        finally:
            if tags:
                self._call_back(tags)

    def _watch(self, hub: Any, drain: Callable[..., object]) -> None:
        """Has the hub call `drain` while the queue has entries."""
        raise NotImplementedError

    def _unwatch(self) -> None:
        raise NotImplementedError

    def _keep_watching(self) -> None:
        """A greenlet begins to wait, or has ended its wait."""
        raise NotImplementedError

    def _event(self) -> tuple[Any, Callable[[object], object]]:
        """The event that a greenlet waits for, and how it is told. Told twice, it ignores the second time."""
        raise NotImplementedError

    def _spawn(self, function: Callable[..., object], *args: object) -> None:
        raise NotImplementedError


def _fire(tag: int) -> None:
    from redlatch import _dispatcher

    _dispatcher.dispatcher.watchers.fire(tag)


class Gevent(Hub):
    def _watch(self, hub: Any, drain: Callable[..., object]) -> None:
        # Without a reference, or the loop would never end.
        self._watcher = hub.loop.io(self.queue.fd, 1, ref=False)
        # gevent stops a watcher whose callback raises, as the handler of a signal may in any Python code. No such code
        # runs in this callback; `drain` runs afterwards, and again if it raised.
        self._watcher.start(hub.loop.run_callback, drain)

    def _unwatch(self) -> None:
        self._watcher.stop()

    @classmethod
    def find(cls) -> Hub | None:
        if (local := _modules.get("gevent._hub_local")) is None:
            return None
        hub = local.get_hub_if_exists()
        if hub is None:
            monkey = _modules.get("gevent.monkey")
            if monkey is None or not monkey.is_module_patched("threading") or not in_main_thread():
                return None
            hub = local.get_hub()
        if hub is _modules["greenlet"].getcurrent():
            raise _in_hub("gevent", "gevent.spawn")
        return cls._of(hub)

    def _keep_watching(self) -> None:
        # The loop goes on while a greenlet waits.
        self._watcher.ref = bool(self._waiting)

    def _event(self) -> tuple[Any, Callable[[object], object]]:
        event = _modules["gevent.event"].AsyncResult()
        return event, event.set

    def _spawn(self, function: Callable[..., object], *args: object) -> None:
        _modules["gevent"].spawn(function, *args)


class Eventlet(Hub):
    def _watch(self, hub: Any, drain: Callable[..., object]) -> None:
        # eventlet removes a listener whose callback raises, so `drain` runs afterwards here as well.
        self._drain_soon = partial(hub.schedule_call_global, 0, drain)
        self._listen(hub)

    def _listen(self, hub: Any) -> None:
        self._listener = hub.add(hub.READ, self.queue.fd, self._drain_soon, self._drain_soon, None)

    def _unwatch(self) -> None:
        # A child shares the epoll instance with its parent, which still needs the entry.
        if self._pid == os.getpid() and (hub := self._hub()):
            hub.remove(self._listener)

    @classmethod
    def find(cls) -> Hub | None:
        if (hubs := _modules.get("eventlet.hubs")) is None:
            return None
        hub = getattr(hubs._threadlocal, "hub", None)
        if hub is None:
            if not _modules["eventlet.patcher"].is_monkey_patched("thread") or not in_main_thread():
                return None
            hub = hubs.get_hub()
        if hub.greenlet is _modules["greenlet"].getcurrent():
            raise _in_hub("eventlet", "eventlet.spawn")
        return cls._of(hub)

    def _keep_watching(self) -> None:
        # The handler of a signal may raise in the few lines of eventlet that remain.
        hub = self._hub()
        if hub and hub.listeners[hub.READ].get(self.queue.fd) is not self._listener:
            self._listen(hub)

    def _event(self) -> tuple[Any, Callable[[object], object]]:
        event = _modules["eventlet.event"].Event()
        return event, lambda _: event.ready() or event.send()

    def _spawn(self, function: Callable[..., object], *args: object) -> None:
        _modules["eventlet"].spawn_n(function, *args)


def _in_hub(library: str, spawn: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"invalid_argument: a call of a lock cannot wait in the hub of {library}, which has to run for the answer to arrive; "
        f"call it in a greenlet: {spawn}(lock.release)"
    )
