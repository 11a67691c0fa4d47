"""One daemon thread per process writes the events of all clients to the log and runs on_lost callbacks.

It starts with the first request of the first client, sleeps until something comes, and belongs to Python alone: the engine's
thread only writes to a queue. Here is also what has to happen when the process forks and when it exits.

The thread is a native one, also where gevent or eventlet has replaced the standard library: a greenlet in its place
would stop with its hub, and would block the signals of the main thread. Callbacks that a greenlet registers run in its hub
while the hub is there.
"""

from __future__ import annotations

import atexit
import logging
import os
import select
import signal
import sys
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Protocol

from redlatch import _green, _redlatch
from redlatch.exceptions import LockLostError, UnavailableError

OnLost = Callable[[LockLostError], object]

logger = logging.getLogger("redlatch")
STOP_LIMIT = 5.0  # seconds
LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING}


class Watchers:
    """Callbacks that wait for the loss of a hold, by the tag under which it will be told."""

    def __init__(self, begin: Callable[[Coroutine[Any, Any, None]], object] | None = None) -> None:
        # Has an event loop run a coroutine, where there is one.
        self._begin = begin
        self._callbacks: dict[int, tuple[_redlatch.Hold, OnLost, weakref.ref[_redlatch.Queue]]] = {}
        self._sweep_at = 64

    def add(self, hold: _redlatch.Hold, queue: _redlatch.Queue, callback: OnLost) -> int:
        tag = _redlatch.next_tag()
        self._callbacks[tag] = (hold, callback, weakref.ref(queue))
        self._sweep()
        hold.watch_lost(queue, tag)
        return tag

    def told_by(self, queue: _redlatch.Queue) -> list[int]:
        return [tag for tag, (_, _, told_by) in list(self._callbacks.items()) if told_by() is queue]

    def move(self, tags: list[int], queue: _redlatch.Queue) -> None:
        """Has this queue tell of losses that another one was to tell of."""
        for tag in tags:
            if tag in self._callbacks:
                hold, callback, _ = self._callbacks[tag]
                self._callbacks[tag] = (hold, callback, weakref.ref(queue))
                hold.watch_lost(queue, tag)

    def remove(self, tag: int) -> None:
        self._callbacks.pop(tag, None)

    def fire(self, tag: int) -> None:
        hold, callback, _ = self._callbacks.pop(tag, (None, None, None))
        if hold is None or callback is None:
            return
        try:
            hold.check()
        except LockLostError as lost:
            self._call(callback, lost)

    def _call(self, callback: OnLost, lost: LockLostError) -> None:
        try:
            result = callback(lost)
            if not isinstance(result, Awaitable):
                return
            if self._begin is None:
                raise TypeError(
                    f"it returned {result!r}, and no event loop runs that: use a `def`, or redlatch.aio"
                )
            self._begin(_awaited(callback, result))
        except Exception:
            logger.exception("on_lost callback %r failed", callback)

    def _sweep(self) -> None:
        # A hold that ended well tells nobody; its callbacks are dropped when there are twice as many as before.
        if len(self._callbacks) < self._sweep_at:
            return
        for tag, (hold, _, _) in list(self._callbacks.items()):
            if hold.count == 0 and hold.lost_reason is None:
                self.remove(tag)
        self._sweep_at = max(64, 2 * len(self._callbacks))


async def _awaited(callback: OnLost, result: Awaitable[object]) -> None:
    try:
        await result
    except Exception:
        logger.exception("on_lost callback %r failed", callback)


class HasCore(Protocol):
    """A client, for threads or for asyncio."""

    _core: _redlatch.Client

    def __hash__(self) -> int: ...


Observer = Callable[[Any, str, "str | None"], None]


class Dispatcher:
    """The thread and what it looks after."""

    def __init__(self) -> None:
        # Re-entrant, because a signal handler or a finalizer may come in between and use a client as well.
        self._lock = _green.original("_thread", "RLock")()
        # Held by the thread while it writes events to the log, and for ever once the interpreter ends.
        self._writing = _green.original("_thread", "allocate_lock")()
        self._clients: weakref.WeakSet[HasCore] = weakref.WeakSet()
        # Clients that nobody has any more, and that hold locks.
        self._outliving: set[HasCore] = set()
        # Functions that hear of the events of a client besides the log.
        self._observers: weakref.WeakKeyDictionary[HasCore, Observer] = weakref.WeakKeyDictionary()
        self._queue: _redlatch.Queue | None = None
        self.watchers = Watchers()
        self.exiting = False

    def attach(self, client: HasCore) -> None:
        """Starts the engine of this client, and the thread if it is the first."""
        with self._lock:
            client._core.wake_on_events(self._started())
            self._clients.add(client)

    def observe(self, client: HasCore, observer: Observer) -> None:
        """Has this function called with the client, the kind and the lock of each event from now on."""
        with self._lock:
            self._observers[client] = observer

    def watch(self, hold: _redlatch.Hold, callback: OnLost) -> int:
        hub = _green.hub_here()
        with self._lock:
            return self.watchers.add(hold, hub.queue if hub else self._started(), callback)

    def hub_ended(self, queue: _redlatch.Queue) -> None:
        """Nobody drains the queue of this hub any more: our thread calls the callbacks that wait for it."""
        with self._lock:
            if tags := self.watchers.told_by(queue):
                self.watchers.move(tags, self._started())

    def clients(self) -> list[HasCore]:
        with self._lock:
            return list({*self._clients, *self._outliving})

    def outlive(self, client: HasCore) -> None:
        """Keeps a client that nobody has any more for as long as it holds locks: they are renewed, and a loss is told."""
        if _has_holds(client):
            with self._lock:
                self._outliving.add(client)
        self._log(client)

    def flush(self) -> None:
        """Writes the events that wait to the log."""
        for client in self.clients():
            self._log(client)
        # Here, because a hold that ends by itself is an event.
        with self._lock:
            over = {client for client in self._outliving if not _has_holds(client)}
            self._outliving -= over

    def _log(self, client: HasCore) -> None:
        observer = self._observers.get(client)
        for kind, level, lock, text in client._core.events():
            if observer is not None:
                observer(client, kind, lock)
            about = f"{lock!r}: " if lock is not None else ""
            extra = {"redlatch_event": kind, "redlatch_lock": lock}
            logger.log(LEVELS[level], "%s%s", about, text, extra=extra)

    def stop_writing(self) -> None:
        """At the end of the interpreter `logging` closes its handlers, whose locks break under gevent if two native threads
        use them. So the thread writes nothing more; a record that it is writing is waited for, `STOP_LIMIT` at most."""
        self._writing.acquire(timeout=STOP_LIMIT)

    def _started(self) -> _redlatch.Queue:
        if self._queue is None:
            queue = _redlatch.Queue()
            if (
                self.exiting
            ):  # a thread cannot start any more, and before Python 3.12 its `start` never returns
                return queue
            _finish_in_multiprocessing_child()
            _finish_in_celery_child()
            # Not threading.Thread, which under gevent and eventlet makes a greenlet.
            try:
                _green.original("_thread", "start_new_thread")(self._run, (queue,))
            except RuntimeError as error:
                text = f"cannot start a thread: {error}; raise the limits of the process (ulimit -u), or use less of them"
                raise UnavailableError(text) from error
            # Last: without its thread nobody would ever be told.
            self._queue = queue
        return self._queue

    def _run(self, queue: _redlatch.Queue) -> None:
        # Signals are for the main thread, which may sleep in a wait and has to be woken by them.
        if sys.platform != "win32":
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        threading.current_thread().name = "redlatch"
        sleep = sleeper(queue)
        while True:
            sleep()
            for tag in queue.drain():
                with self._outlived("an on_lost callback raised what ends a thread"):
                    self.watchers.fire(tag)
            with self._writing, self._outlived("an event could not be logged"):
                self.flush()

    @contextmanager
    def _outlived(self, what: str) -> Iterator[None]:
        """Whatever is raised inside, SystemExit too, the thread lives on: it serves all clients of the process."""
        try:
            yield
        except BaseException:
            if self.exiting:  # whoever uses a client then is told SystemExit
                return
            with suppress(Exception):  # a handler of the log may be what fails
                logger.exception(what)


def sleeper(queue: _redlatch.Queue) -> Callable[[], object]:
    """A function that sleeps, without the GIL, until the queue has entries."""
    if sys.platform == "win32":
        return partial(_green.original("select", "select"), (queue.fd,), (), ())
    poll = _green.original("select", "poll")()
    poll.register(queue.fd, select.POLLIN)
    return partial(poll.poll, None)


def _has_holds(client: HasCore) -> bool:
    return not client._core.forked and client._core.stats()["holds"] > 0


dispatcher = Dispatcher()


def outlive(client: HasCore) -> None:
    """Nobody has this client any more."""
    # An interpreter that ended without its exit handlers, as uWSGI's workers do, has cleared this module.
    if dispatcher is not None and not dispatcher.exiting:
        dispatcher.outlive(client)


def _close_all() -> None:
    """Before the interpreter dies: closes all clients at the same time, each within its exit_limit."""
    if dispatcher.exiting:  # a child of multiprocessing may run its finalizers, and then those of atexit
        return
    dispatcher.exiting = _green.exiting = True
    _redlatch.begin_exit()
    queue = _redlatch.Queue()
    unclosed = set()
    for tag, client in enumerate(dispatcher.clients()):
        client._core.close_at_exit(queue, tag)
        unclosed.add(tag)
    sleep = sleeper(queue)
    try:
        while unclosed:
            sleep()
            unclosed -= set(queue.drain())
    finally:
        # Callers that waited for a lock are told `closed`, and have to be back in Python before that ends.
        _redlatch.wait_idle()
    dispatcher.stop_writing()
    dispatcher.flush()


def _finish_in_multiprocessing_child() -> None:
    """Such a child ends without atexit before Python 3.13, one of billiard always, but both run the finalizers."""
    libraries = [sys.modules.get(name) for name in ("multiprocessing.process", "billiard.process")]
    if any(library and library.current_process()._parent_pid is not None for library in libraries):
        from multiprocessing.util import Finalize

        Finalize(None, _join_and_close_all, exitpriority=0)


def _finish_in_celery_child() -> None:
    """A child of Celery's prefork pool ends by `os._exit`, and tells of it before."""
    if signals := sys.modules.get("celery.signals"):
        signals.worker_process_shutdown.connect(lambda **_: _close_all(), weak=False)


def _join_and_close_all() -> None:
    # The finalizers come before the threads have ended, unlike atexit. The threads of an executor end by this function alone,
    # which multiprocessing calls after the finalizers, and which does nothing the second time.
    try:
        threading._shutdown()  # type: ignore[attr-defined]
    finally:
        _close_all()


def _after_fork() -> None:
    # The thread, the descriptor and perhaps a lock that is held were the parent's.
    global dispatcher
    # A client that was instrumented before is told of, as it is in the parent.
    observers = dispatcher._observers
    dispatcher = Dispatcher()
    dispatcher._observers = observers


atexit.register(_close_all)
if sys.platform != "win32":
    os.register_at_fork(after_in_child=_after_fork)
