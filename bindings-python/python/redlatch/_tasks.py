"""How tasks of asyncio wait, and what they own: the part of `redlatch.aio` that threads have in another way (`_threads`)."""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
import weakref
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from redlatch import _dispatcher, _redlatch
from redlatch._base import (
    BaseClient,
    BaseGrant,
    BaseLock,
    BaseName,
    BasePlainSemaphore,
    note,
    required,
    wait_of,
)
from redlatch._dispatcher import OnLost
from redlatch._options import LockOptions
from redlatch._typing import Unpack
from redlatch.exceptions import LockError, LockLostError, LockTimeoutError, NotOwnerError

Task = asyncio.Task[Any]
To = _redlatch.Queue
Answer = _redlatch.Answer


def _nothing() -> None:
    return None


# The tasks that run what callbacks returned: the loop itself does not keep its tasks alive.
_begun: set[Task] = set()


def _begin(
    loop_of: Callable[[], asyncio.AbstractEventLoop | None], coroutine: Coroutine[Any, Any, None]
) -> None:
    """Runs what a callback returned."""
    loop = loop_of()
    if loop is None:
        return coroutine.close()
    task = loop.create_task(coroutine)
    _begun.add(task)
    task.add_done_callback(_begun.discard)


F = TypeVar("F", bound=Callable[..., Coroutine[Any, Any, Any]])


def coroutine_function(function: F) -> F:
    """Says of a `def` which returns a coroutine that it is called as an `async def`: asgiref and mocks look for that.

    It is no `async def`, because the call itself already says which task is the owner.
    """
    if sys.version_info >= (3, 12):
        return inspect.markcoroutinefunction(function)
    # The mark of asyncio.iscoroutinefunction. Python 3.10 and 3.11 have none for inspect.
    function._is_coroutine = asyncio.coroutines._is_coroutine  # type: ignore[attr-defined]
    return function


YEARS = 1e9
"""Seconds after which no loop runs any more."""


def _keep(_: object) -> None:
    return None


class Listener:
    """A thread that tells a loop when its queue has entries, where the loop cannot wait for a descriptor: Windows' usual one."""

    def __init__(self, loop: asyncio.AbstractEventLoop, bridge: Bridge) -> None:
        self._queue = bridge.queue
        self._bridge = weakref.ref(bridge)
        self._drained = threading.Semaphore(0)
        # A loop drops its timers, as its readers, when it is closed.
        loop.call_later(YEARS, _keep, bridge)
        threading.Thread(target=self._run, name="redlatch-loop", daemon=True).start()

    def _run(self) -> None:
        sleep = _dispatcher.sleeper(self._queue)
        while True:
            sleep()
            bridge = self._bridge()
            loop = bridge._loop() if bridge is not None else None
            if bridge is None or loop is None:
                return
            try:
                loop.call_soon_threadsafe(self._drain, bridge)
            except RuntimeError:  # it is closed
                return
            del bridge, loop
            self._drained.acquire()

    def _drain(self, bridge: Bridge) -> None:
        try:
            bridge._drain()
        finally:
            self._drained.release()

    def end(self) -> None:
        self._queue.wake()
        self._drained.release()


class Bridge:
    """Brings the answers of the engines into one event loop: a queue, and one reader that drains it.

    The loop keeps the bridge, through its reader or a timer, and drops it when it is closed.
    """

    _bridges: ClassVar[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.ref[Bridge]]] = (
        weakref.WeakKeyDictionary()
    )
    # The loop and the bridge that were asked for last: in most programs there is one loop.
    _latest: ClassVar[tuple[Callable[[], object], Callable[[], Bridge | None]]] = (_nothing, _nothing)

    def __init__(self, loop: asyncio.AbstractEventLoop, queue: _redlatch.Queue) -> None:
        self.queue = queue
        self._loop = weakref.ref(loop)
        # Not a method of the bridge: a cycle would keep the bridge when its loop drops it.
        self.watchers: _dispatcher.Watchers = _dispatcher.Watchers(partial(_begin, self._loop))
        self._listener: Listener | None = None
        try:
            loop.add_reader(queue.fd, self._drain)
        except NotImplementedError:
            self._listener = Listener(loop, self)

    def __del__(self) -> None:
        # The queue lives on with the tasks that wait, until the garbage collector finds them.
        self._give_up()

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> Bridge:
        latest_loop, latest_bridge = cls._latest
        if latest_loop() is loop and (latest := latest_bridge()) is not None:
            return latest
        known = cls._bridges.get(loop)
        bridge = known() if known is not None else None
        if bridge is None:
            cls._close_orphans()
            bridge = cls(loop, _redlatch.Queue(loop))
            cls._bridges[loop] = weakref.ref(bridge)
        cls._latest = weakref.ref(loop), weakref.ref(bridge)
        return bridge

    @classmethod
    def _close_orphans(cls) -> None:
        """Gives up what a loop that was closed with work pending will never take."""
        for reference in cls._bridges.keyrefs():  # a list, since other threads have loops of their own
            loop = reference()
            if loop is not None and loop.is_closed() and (bridge := cls._bridges[loop]()) is not None:
                bridge._give_up()

    def _give_up(self) -> None:
        # A closed loop that somebody keeps keeps its tasks, which never end: they would stay in the queues of their locks,
        # and what they hold would be renewed for ever.
        self.queue.give_up()
        if self._listener is not None:
            self._listener.end()
        if (loop := self._loop()) is not None and loop.is_closed():
            Keys.end_all(loop)

    async def ask(self, send: Callable[..., Any], *args: object) -> Any:
        """Sends something and waits for the answer. Cancelled, it cancels what it sent and releases what it won."""
        answer = send(*args, self.queue)
        if not isinstance(answer, Answer):
            return answer
        try:
            return await answer
        except BaseException:  # also when the coroutine is closed
            answer.forget()
            raise

    def _drain(self) -> None:
        loop = self._loop()
        # A loop that is debugged is to see each task by its name, and how long it takes.
        # A loop that is patched to be run again by one of its tasks (nest_asyncio) would call this handle again while it runs.
        here = (
            loop is not None
            and asyncio.current_task(loop) is None
            and not loop.get_debug()
            and not hasattr(loop, "_nest_patched")
        )
        others: list[int] = []
        try:
            self.queue.settle(here, others)
        finally:  # after the others, because these call what others wrote
            self._fire(others)

    def _fire(self, tags: list[int]) -> None:
        """Each is told, also when a callback ends the loop."""
        try:
            while tags:
                self.watchers.fire(tags.pop(0))
        finally:
            if tags:
                self._fire(tags)


def _current_task() -> Task | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no loop runs
        return None


def ask_unstarted(send: Callable[..., Any]) -> Coroutine[Any, Any, Any]:
    """Sends what needs no engine, and waits for the answer."""
    return Bridge.of(_running_loop()).ask(send)


def ask(client: BaseClient, send: Callable[..., Any], *args: object) -> Coroutine[Any, Any, Any]:
    """Sends something in the name of this client, and waits for the answer. `told` is this one, for permits and latches."""
    loop = _running_loop()
    client._start()
    return Bridge.of(loop).ask(send, *args)


told = ask


def acquire(
    client: BaseClient, core: _redlatch.Lock, wait: float | None, lease: float | None, permits: int
) -> Coroutine[Any, Any, Any]:
    """Takes permits, which belong to no task."""
    return ask(client, partial(core.acquire, permits=permits), None, wait, lease, None, False)


def watch(hold: _redlatch.Hold, on_lost: OnLost, loop: asyncio.AbstractEventLoop | None = None) -> int:
    """Has the loop call this when the hold is lost; the tag of that."""
    bridge = Bridge.of(loop or asyncio.get_running_loop())
    return bridge.watchers.add(hold, bridge.queue, on_lost)


def callback_of(on_lost: OnLost | None) -> OnLost | None:
    """Refuses what cannot be called."""
    return None if on_lost is None else required(on_lost)


class Keys(_redlatch.Key):
    """The re-entry key of a task, and the clients that have to be told when it ends."""

    # By the id of the task, which is taken out before another one can have it: of all maps with weak keys the quickest.
    _of: ClassVar[dict[int, Keys]] = {}

    def __init__(self, task: Task) -> None:
        number, all_keys = id(task), self._of
        self._task = weakref.ref(task, lambda _: all_keys.pop(number, None))
        self._clients: weakref.WeakSet[BaseClient] = weakref.WeakSet()

    @classmethod
    def of(cls, task: Task) -> Keys:
        keys = cls._of.get(id(task))
        if keys is None:
            keys = cls._of[id(task)] = cls(task)
        return keys

    @classmethod
    def end_all(cls, loop: asyncio.AbstractEventLoop) -> None:
        """The tasks of this loop will not go on."""
        for keys in list(cls._of.values()):
            task = keys._task()
            if task is not None and not task.done() and task.get_loop() is loop:
                for client in keys._clients:
                    client._core.key_gone(keys)

    def end_with(self, task: Task, client: BaseClient) -> None:
        """A lock that the task still holds without a grant when it ends is nobody's then."""
        if client not in self._clients:
            self._clients.add(client)
            core = client._core
            task.add_done_callback(lambda _: core.key_ended(self))
        elif self.ended:
            client._core.key_ended(self)


class Blocks(BaseName):
    """The part of locks and semaphores that an `async with` block needs."""

    __slots__ = ()
    _cancel_on_lost: bool

    def __init__(
        self,
        client: BaseClient,
        name: str | _redlatch.Lock,
        timeout: float | None = None,
        on_lost: OnLost | None = None,
        cancel_on_lost: bool = False,
        **options: Unpack[LockOptions],
    ) -> None:
        super().__init__(client, name, dict(options), timeout, on_lost)
        self._cancel_on_lost = cancel_on_lost  # type: ignore[misc]

    def _prepare(self, task: Task | None) -> tuple[Keys, To]:
        """Before the first request of this task with this client: what its requests need, which the key knows then."""
        task = task or _task_of_loop()
        self._client._start()
        keys, queue = Keys.of(task), Bridge.of(task.get_loop()).queue
        keys.end_with(task, self._client)
        keys.prepared_for(self._client._core, queue)
        return keys, queue

    if TYPE_CHECKING:
        # A type checker takes nothing but an `async def` for an `async with` in an AsyncExitStack.
        async def __aenter__(self) -> Grant: ...

    else:

        @coroutine_function
        def __aenter__(self) -> Coroutine[Any, Any, Grant]:
            return self._entering(_redlatch.begin(self))

    async def _entering(self, block: _redlatch.Block | None) -> Grant:
        task = _task_of_loop()
        guard = await self._core.entering(self, self._timeout)
        try:
            grant = Grant(self, guard, task)
            if self._on_lost is not None:
                self._watch(grant._hold)
            if self._cancel_on_lost:
                grant.on_lost(grant._cancel)
            _redlatch.begun(self, block, grant)
            return grant
        except BaseException:  # a signal's handler raised it: the block does not begin
            guard.let_go()
            raise

    if TYPE_CHECKING:

        async def __aexit__(
            self,
            kind: type[BaseException] | None,
            error: BaseException | None,
            trace: TracebackType | None,
            /,
        ) -> None: ...

    else:
        __aexit__ = _redlatch.Exit(awaited=True)

    async def _leaving(self, grant: Grant, error: BaseException | None) -> None:
        if self._client._core.forked:  # what a child inherits is the parent's
            return
        if _is_collected(error, grant._task.get_loop()):
            grant._guard.let_go()
            return
        task = asyncio.current_task()
        failure: LockError | None = None
        try:
            if not grant._released:
                grant._spend()
                try:
                    # Without a task, as somebody may drive a coroutine by hand, there is no key whose queue is known.
                    await (
                        self._core.leaving(self, grant._guard)
                        if task
                        else ask(self._client, grant._guard.release)
                    )
                finally:
                    grant._forget()
        except LockError as error_of_release:
            failure = error_of_release
        except asyncio.CancelledError:
            # Python 3.11 and 3.12 deliver a cancellation here that was taken back too late.
            if not grant._cancelled:
                raise
        if ours := grant._cancelled and grant._uncancel():
            failure = failure or grant._loss()
        if failure is None:
            return
        if error is None or (ours and isinstance(error, asyncio.CancelledError)):
            raise failure from error
        note(error, failure)

    def _watch(self, hold: _redlatch.Hold) -> None:
        if on_lost := self._to_watch(hold):
            watch(hold, on_lost)

    def _callback(self, on_lost: OnLost | None) -> OnLost | None:
        return callback_of(on_lost)

    def _caller(self) -> object:
        return _current_task()  # none where no loop runs: the garbage collector ends the block


class OwnedLock(Blocks, BaseLock):
    """A lock that a task owns."""

    __slots__ = ("_cancel_on_lost",)

    @coroutine_function
    def acquire(
        self,
        blocking: bool = True,
        timeout: float = -1,
        *,
        lease: float | None = None,
        token: str | None = None,
    ) -> Coroutine[Any, Any, bool]:
        """Acquires as threading.Lock does: True if the lock is held now, False if others had it, or waited for it, all the time.

        Raises UnavailableError, instead of returning False, if the server cannot be reached or its answer is late: nobody knows
        then whether somebody has the lock. `timeout` is by default that of the lock. With `lease` the lock ends after so many
        seconds and is not renewed. `token` is what a simple lock's key gets as its value.
        """
        wait = self._timeout if blocking is True and timeout == -1 else wait_of(blocking, timeout)
        if self._on_lost is None:
            return self._core.acquiring(self, wait, lease, token)
        return self._acquire_watched(_current_task(), wait, lease, token)

    async def _acquire_watched(
        self, task: Task | None, wait: float | None, lease: float | None, token: str | None
    ) -> bool:
        if task is None and _task_of_loop().get_coro().cr_frame is sys._getframe():  # type: ignore[union-attr]
            raise only_acquires(self.name)
        try:
            await self._own(task or _task_of_loop(), self._core.acquire, wait, lease, token)
        except LockTimeoutError:
            return False
        return True

    async def _own(self, task: Task, send: Callable[..., Any], *args: object) -> None:
        keys = Keys.of(task)
        guard: _redlatch.Guard = await ask(self._client, send, keys, *args, True)
        self._watch(guard.hold())
        guard.detach()
        keys.end_with(task, self._client)

    async def adopt(self, token: str, *, lease: float | None = None) -> None:
        """Takes over the lock if `token` is its value, in whatever process it was acquired. Simple kinds only.

        The calling task holds it then, as after `acquire`. The token is worth nothing any more: who acquired with it can
        neither release nor extend the lock. Raises NotOwnerError if the lock is free or has another value.
        """
        await self._own(_task_of_loop(), partial(self._core.acquire, adopts=True), None, lease, token)

    @coroutine_function
    def release(self) -> Coroutine[Any, Any, None]:
        """Gives back the newest level of the calling task.

        Raises NotOwnerError if it holds none, LockLostError if the lock was lost before, and UnavailableError if the
        server did not confirm; then the lock ends with its lease.
        """
        return self._core.releasing(self)

    @coroutine_function
    def extend(self, seconds: float) -> Coroutine[Any, Any, None]:
        """Makes the lock of the calling task live at least so many seconds from now; never shortens it."""
        return self._extend(_current_task(), seconds)

    async def _extend(self, task: Task | None, seconds: float) -> None:
        await ask(self._client, self._core.extend, Keys.of(task or _task_of_loop()), seconds)

    async def locked(self) -> bool:
        """Whether anybody holds the lock, as Redis sees it now."""
        return bool(await ask(self._client, self._core.owners))

    def _hold(self) -> _redlatch.Hold:
        return self._core.hold(Keys.of(_task_of_loop()))


class _AskedWithAwait:
    """A method that asyncio.Condition must not have: it takes this one of its lock when it is made."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def __get__(self, lock: Any, owner: Any = None) -> Any:
        if lock is not None and sys._getframe(1).f_code is asyncio.Condition.__init__.__code__:
            raise TypeError(
                f"asyncio.Condition cannot be made of {lock!r}: it calls release() without await, and nothing would be "
                "released; make an asyncio.Condition() without a lock, and take this one where the work is done"
            )
        return self._function.__get__(lock, owner)


OwnedLock.locked = _AskedWithAwait(OwnedLock.locked)  # type: ignore[method-assign, assignment]


def only_acquires(name: str) -> NotOwnerError:
    """The error for a task that would end as soon as it holds the lock."""
    error = NotOwnerError(
        f"not_owner: lock {name!r}: acquire() is all that this task does, and the lock would end with the task "
        "(run_coroutine_threadsafe, asyncio.run); await it in the coroutine that also releases, use `async with`, or keep "
        "the grant of `lock.__aenter__()`"
    )
    error.lock_name = name
    return error


def _running_loop() -> asyncio.AbstractEventLoop:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        if not _trio_runs():
            raise
        raise RuntimeError(
            "redlatch.aio needs the event loop of asyncio, and trio runs here, by itself or as the backend of anyio: let anyio "
            'run on asyncio (anyio.run(main, backend="asyncio")), or take a redlatch.Client and do the whole `with` block in '
            "a thread (anyio.to_thread.run_sync or trio.to_thread.run_sync)"
        ) from None


def _is_collected(error: BaseException | None, loop: asyncio.AbstractEventLoop) -> bool:
    """Whether the garbage collector ends a block of this loop, which cannot wait any more."""
    return isinstance(error, GeneratorExit) and asyncio._get_running_loop() is not loop


def _trio_runs() -> bool:
    trio = sys.modules.get("trio")
    if trio is None:
        return False
    try:
        trio.lowlevel.current_task()
    except RuntimeError:  # trio is imported, and does not run in this thread
        return False
    return True


def _task_of_loop() -> Task:
    task = asyncio.current_task(_running_loop())
    if task is None:
        raise RuntimeError("a lock belongs to a task, and no task is running here")
    return task


class PlainBlocks(BasePlainSemaphore):
    """The two ends of an `async with` block of a plain semaphore."""

    async def __aenter__(self) -> None:
        loop = _running_loop()
        permit = await ask(self._client, self._core.take, 1, self._timeout)
        try:
            self._entered.append((permit, loop))
        except BaseException:  # a signal's handler raised it: the block does not begin
            with suppress(ValueError):
                self._entered.remove((permit, loop))
            permit.let_go()
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None:
        if not self._entered:
            raise NotOwnerError("not_owner: this semaphore was not entered with an `async with` block")
        # One permit is as good as another, but a loop is not.
        collected = (at for at, (_, loop) in enumerate(self._entered) if _is_collected(error, loop))
        permit, loop = self._entered.pop(next(collected, -1))
        if _is_collected(error, loop):
            permit.let_go()
            return
        try:
            await ask(self._client, permit.release)
        except LockError as failure:
            if error is None:
                raise
            note(error, failure)
        finally:
            permit.let_go()  # if it was not sent


class Grant(BaseGrant):
    """The object that `async with lock as grant` gives: one level of a hold."""

    __module__ = "redlatch.aio"
    __slots__ = ("_cancelled", "_cancelling", "_task")

    def __init__(self, lock: BaseName, guard: _redlatch.Guard, task: Task) -> None:
        super().__init__(lock, guard)
        self._task = task
        self._cancelled = False
        # Python 3.10 does not count cancellations: there every one that we see is taken for ours.
        self._cancelling = task.cancelling() if hasattr(task, "cancelling") else 0

    async def release(self) -> None:
        """Gives the level back before the block ends; see Lock.release. The end of the block does nothing then."""
        self._spend()
        try:
            await ask(self._client, self._guard.release)
        finally:
            self._forget()

    async def extend(self, seconds: float) -> None:
        """Makes the lock live at least so many seconds from now; never shortens it."""
        await ask(self._client, self._guard.extend, seconds)

    def on_lost(self, callback: OnLost) -> None:
        """Calls `callback` once with the LockLostError, in the event loop, when the lock is lost; it may be `async def`."""
        callback = required(callback)
        self._tags += (watch(self._hold, callback, self._task.get_loop()),)

    def _cancel(self, _: LockLostError) -> None:
        if not self._released:
            self._cancelled = True
            self._task.cancel()

    def _uncancel(self) -> bool:
        """Takes back our own cancellation; whether there was one and nobody else wants the task cancelled."""
        if not self._cancelled:
            return False
        self._cancelled = False
        return not hasattr(self._task, "uncancel") or self._task.uncancel() <= self._cancelling

    def _loss(self) -> LockLostError | None:
        try:
            self.check()
        except LockLostError as lost:
            return lost
        return None

    def _watchers(self) -> _dispatcher.Watchers:
        return Bridge.of(self._task.get_loop()).watchers
