"""The lock for asyncio: the same names as for threads, with `await` where something is sent.

async with aio.Client("redis://localhost") as client:
    async with client.lock("orders:42", timeout=5) as grant:
        ...
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, TypeVar

from redlatch import _dispatcher, _redlatch
from redlatch._base import (
    BaseClient,
    BaseGrant,
    BaseLatch,
    BaseLock,
    BaseMultiLock,
    BaseName,
    BasePlainSemaphore,
    BaseSemaphore,
    Holder,
    LockedOptions,
    Part,
    Permits,
    decorate,
    holders_of,
    multi,
    note,
    required,
    sides,
    timeout_of,
    wait_of,
    wait_of_semaphore,
)
from redlatch._dispatcher import OnLost
from redlatch._help import documented
from redlatch._options import LockOptions
from redlatch._typing import Self, Unpack
from redlatch.exceptions import ClosedError, LockError, LockLostError, LockTimeoutError, NotOwnerError

__all__ = [
    "Client",
    "Grant",
    "Holder",
    "Latch",
    "Lock",
    "MultiLock",
    "Part",
    "PlainSemaphore",
    "RWLock",
    "Semaphore",
]

P = ParamSpec("P")
R = TypeVar("R")
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

    async def ask(self, send: Callable[[To], Any]) -> Any:
        """Sends something and waits for the answer. Cancelled, it cancels what it sent and releases what it won."""
        answer = send(self.queue)
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


@documented(client="Options of a client:", lock="Options of its locks, which each lock may have otherwise:")
class Client(BaseClient):
    """A connection to Redis under one identity, for any number of tasks, event loops and locks.

    `url` is by default the environment variable REDLATCH_URL. The options are keywords, and None is the default of each. Nothing is sent, no thread is started before the first
    request, so a client can be made before a fork; one that was used before belongs to the parent.
    """

    async def connect(self) -> Self:
        """Waits until the server is reached; raises UnavailableError or AuthError if it cannot be."""
        await ask(self, self._core.connect)
        return self

    @documented(lock="Options, by default those of the client:")
    def lock(
        self,
        name: str,
        *,
        timeout: float | None = None,
        on_lost: OnLost | None = None,
        cancel_on_lost: bool = False,
        **options: Unpack[LockOptions],
    ) -> Lock:
        """The lock of this name. No I/O.

        `timeout` is how many seconds an `async with` block and `acquire()` wait for it, None for ever. `on_lost` is called with
        the LockLostError, in the event loop, when a hold of this lock is lost; what an `async def` returns is run there as
        a task of its own. While it, or anything else, blocks the loop,
        locks are renewed and answers wait. With `cancel_on_lost` the task inside an `async with` block is cancelled
        then, and the block raises LockLostError, as asyncio.timeout does it.
        """
        return Lock(self, name, timeout, on_lost, cancel_on_lost, **options)

    def rw_lock(
        self,
        name: str,
        *,
        timeout: float | None = None,
        on_lost: OnLost | None = None,
        cancel_on_lost: bool = False,
        **options: Unpack[LockOptions],
    ) -> RWLock:
        """The read-write lock of this name: many readers, or one writer. No I/O.

        The arguments are those of `lock`, for both sides; `fencing` is for the writer, and `kind` is not taken.
        """
        read, write = sides(dict(options))
        common: dict[str, Any] = {"timeout": timeout, "on_lost": on_lost, "cancel_on_lost": cancel_on_lost}
        return RWLock(self.lock(name, **common, **read), self.lock(name, **common, **write))

    def multi_lock(
        self,
        locks: Iterable[str | Lock | Semaphore],
        *,
        timeout: float | None = None,
        on_lost: OnLost | None = None,
        cancel_on_lost: bool = False,
        **options: Unpack[LockOptions],
    ) -> MultiLock:
        """Several locks as one: all of them, or none. No I/O.

        `locks` are names, and locks of this client of any kind, in any order. The options are those of the names; a lock
        that is given has its own. The other arguments are those of `lock`.
        """
        core = multi(self, locks, dict(options))
        return MultiLock(self, core, timeout, on_lost, cancel_on_lost)

    def semaphore(
        self,
        name: str,
        *,
        timeout: float | None = None,
        on_lost: OnLost | None = None,
        cancel_on_lost: bool = False,
        **options: Unpack[LockOptions],
    ) -> Semaphore:
        """The semaphore of this name: at most `limit` owners at a time, over all programs. No I/O.

        The first acquisition gives it so many permits; a number that is there already stays. Without a limit, others set
        it. The other arguments are those of `lock`; `kind` is not taken.
        """
        return Semaphore(self, name, timeout, on_lost, cancel_on_lost, **options)

    def plain_semaphore(self, name: str, *, timeout: float | None = None) -> PlainSemaphore:
        """The semaphore without leases of this name, the same as Redisson's RSemaphore. No I/O.

        `timeout` is how many seconds an `async with` block waits for a permit, None for ever. Permits of a program that dies
        never come back: take `semaphore`, unless other programs use RSemaphore.
        """
        return PlainSemaphore(self, name, timeout)

    def latch(self, name: str) -> Latch:
        """The count-down latch of this name, the same as Redisson's RCountDownLatch. No I/O."""
        return Latch(self, name)

    def locked(
        self,
        name: str | Callable[..., str],
        *names: str | Callable[..., str],
        **options: Unpack[LockedOptions],
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorates a function, `def` or `async def`, that must not run twice at the same time.

        `name` may hold parameters of the function, as `"order:{id}"` or `"order:{order.id:05}"`, which each call fills in; a
        brace of the name itself is doubled. Or it is a function of the arguments. Several names are a multi lock. The options are those of `lock`; for a
        `def` those of `redlatch.Client.lock`.
        """
        return decorate(self, (name, *names), dict(options))

    async def close(self) -> list[str]:
        """Releases what is held, ends what waits, and stops, all within the option `close_limit`.

        Returns the names of locks that could not be released in time (if that is 0, of all that are held); they end
        with their leases. Holders are told LockLostError, reason `closed`. Closing twice is no error.
        """
        # Not started for that: closing a client that was never used sends nothing.
        names: list[str] = []
        with suppress(ClosedError):
            names = await Bridge.of(_running_loop()).ask(self._core.close)
        _dispatcher.dispatcher.flush()
        return names

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def ask(client: BaseClient, send: Callable[[To], Any]) -> Coroutine[Any, Any, Any]:
    """Sends something in the name of this client, and waits for the answer."""
    loop = _running_loop()
    client._start()
    return Bridge.of(loop).ask(send)


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
            bridge = Bridge.of(asyncio.get_running_loop())
            bridge.watchers.add(hold, bridge.queue, on_lost)

    def _callback(self, on_lost: OnLost | None) -> OnLost | None:
        return callback_of(on_lost)


class Lock(Blocks, BaseLock):
    """A lock for tasks, as asyncio.Lock: a task that holds it and acquires it again waits for itself.

    With `reentrant=True` the task that holds it acquires it again, and releases as often.

    The owner is the task that calls `acquire`, even if another one awaits it: `asyncio.wait_for(lock.acquire(), 1)`
    acquires for the caller. A lock ends with the task that owns it: it is not renewed any more, and a warning is logged. So a
    task that does nothing but `acquire()` is refused. A grant may outlive its task: `grant = await lock.__aenter__()`,
    and later `await grant.release()`.
    """

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

        Raises UnavailableError, instead of returning False, if the server cannot be reached or its answer is late (by a
        second, or a tenth of a shorter lease): nobody knows then whether somebody has the lock.

        Without `timeout` it waits as long as the lock's own `timeout` says, by default for ever.

        With `lease` the lock ends after so many seconds and is not renewed; when it has ended, the task need not
        release it to acquire anew. If the task ends without release, the lock is not renewed any more. `token` is
        what a simple lock's key gets as its value, in place of a fresh one.
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
        task = task or _task_of_loop()
        keys = Keys.of(task)
        try:
            guard = await ask(self._client, lambda to: self._core.acquire(keys, wait, lease, token, True, to))
        except LockTimeoutError:
            return False
        self._watch(guard.hold())
        guard.detach()
        keys.end_with(task, self._client)
        return True

    async def adopt(self, token: str, *, lease: float | None = None) -> None:
        """Takes over the lock if `token` is its value, in whatever process it was acquired. Simple kinds only.

        The calling task holds it then, as after `acquire`. The token is worth nothing any more: who acquired with it can
        neither release nor extend the lock. Raises NotOwnerError if the lock is free or has another value.
        """
        task = _task_of_loop()
        keys = Keys.of(task)
        send = partial(self._core.acquire, keys, None, lease, token, True, adopts=True)
        guard = await ask(self._client, lambda to: send(to=to))
        self._watch(guard.hold())
        guard.detach()
        keys.end_with(task, self._client)

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
        key = Keys.of(task or _task_of_loop())
        await ask(self._client, lambda to: self._core.extend(key, seconds, to))

    async def locked(self) -> bool:
        """Whether anybody holds the lock, as Redis sees it now."""
        return bool(await ask(self._client, self._core.owners))

    async def holder(self) -> Holder | None:
        """The holder of the lock, as Redis sees it now; of a read lock any of them.

        Its process comes from `CLIENT LIST`, which takes the server about a microsecond for each of its connections:
        `locked` does without.
        """
        return next(iter(await self.holders()), None)

    async def holders(self) -> list[Holder]:
        """All holders of the lock, as Redis sees them now: of a read lock there may be several."""
        return holders_of(await ask(self._client, self._core.holders))

    async def waiters(self) -> list[Holder]:
        """The queue of a fair lock, in the order in which its waiters are served, those of other programs included.

        The length is that of the queue, the index a position. `count` is 0; `remaining` is how long the place is kept if
        its waiter does not ask again. Raises ValueError for a lock of another kind, of which Redis keeps no queue.
        """
        return holders_of(await ask(self._client, self._core.waiters))

    async def release_token(self, token: str) -> None:
        """Frees the lock if `token` is its value, in whatever process it was acquired. Simple kinds only.

        Raises NotOwnerError if the lock is free or has another value.
        """
        await ask(self._client, lambda to: self._core.release_token(token, to))

    async def extend_token(self, token: str, seconds: float) -> None:
        """Makes the lock live at least so many seconds from now if `token` is its value; as `release_token`."""
        await ask(self._client, lambda to: self._core.extend_token(token, seconds, to))

    async def force_release(self) -> bool:
        """Deletes the lock whoever holds it; False if nobody does. Its holders are told that they lost it."""
        return bool(await ask(self._client, self._core.force_release))

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


Lock.locked = _AskedWithAwait(Lock.locked)  # type: ignore[method-assign, assignment]


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


class RWLock:
    """Both sides of a read-write lock, the same as the RReadWriteLock of Redisson with this name.

        prices = client.rw_lock("prices")
        async with prices.read: ...   # beside other readers
        async with prices.write: ...  # alone

    Each side is a Lock. A task that has the write side may take the read side too, and keep it when it releases the write
    side. The other way round it would wait for itself: WouldDeadlockError.
    """

    __slots__ = ("read", "write")

    def __init__(self, read: Lock, write: Lock) -> None:
        self.read: Lock = read
        """The side that many may have at a time."""
        self.write: Lock = write
        """The side that one may have, while nobody else has the other."""

    @property
    def name(self) -> str:
        """The name, as it is in Redis."""
        return self.write.name

    def __repr__(self) -> str:
        return f"<redlatch.aio.RWLock {self.write.name!r}>"


class MultiLock(Lock, BaseMultiLock):
    """Several locks as one: a caller has all of them, or none.

        async with client.multi_lock(["account:3", "account:7"]): ...

    Give the names in any order: every client waits for them in the same order, so no two callers wait for each other. While
    it waits, it keeps the names before the one that it waits for. The loss of one is the loss of the whole; the others stay
    held until the release.

    It has no key of its own: what asks Redis, as `locked` or `holders`, raises InvalidArgumentError. Ask each of its locks.
    """

    __slots__ = ()


class Semaphore(Blocks, BaseSemaphore):
    """Permits for tasks, as asyncio.BoundedSemaphore; the same as Redisson's RPermitExpirableSemaphore of this name.

        gpus = client.semaphore("gpu", limit=5)
        async with gpus: ...  # at most five at once, over all programs

    Each permit has a lease, which is renewed while it is held. The permits of a program that dies are free again after
    their lease and 2 seconds. Callers of one client come in their order.

    An `async with` block gives back its own permit. `release` gives back what `acquire` took, in whatever task; unlike that
    of asyncio it has to be awaited.
    """

    __slots__ = ("_cancel_on_lost",)

    async def acquire(
        self,
        blocking: bool = True,
        timeout: float | None = None,
        *,
        permits: int = 1,
        lease: float | None = None,
    ) -> bool:
        """Takes permits, as asyncio.Semaphore does: True if they are taken now, False if there were not enough in time.

        `permits` is how many to take at once, 1 to 1,000. With `lease` they are free again after so many seconds, and not
        renewed. Raises UnavailableError, instead of returning False, if the server cannot be reached or its answer is late.
        """
        wait = self._timeout if blocking is True and timeout is None else wait_of_semaphore(blocking, timeout)

        def send(to: To) -> _redlatch.Answer:
            return self._core.acquire(None, wait, lease, None, False, to, None, permits)

        try:
            guard = await ask(self._client, send)
        except LockTimeoutError:
            return False
        self._take(guard, permits)
        self._watch(guard.hold())
        return True

    async def release(self, n: int = 1) -> None:
        """Gives back n permits that `acquire` took, those taken last first.

        Raises NotOwnerError if there are not so many, or if they were taken as part of more; LockLostError if they were
        lost before, and UnavailableError if the server did not confirm: then they are free after their lease.
        """
        failures = []
        for answer in [ask(self._client, guard.release) for guard in self._give(n)]:
            try:
                await answer
            except LockError as failure:  # the others are given back all the same
                failures.append(failure)
        if failures:
            raise failures[0]

    async def permits(self) -> Permits:
        """How many permits there are, and how many are free, as Redis sees it now."""
        return Permits(*await ask(self._client, lambda to: self._core.permits(None, to)))

    async def set_permits(self, limit: int) -> Permits:
        """Gives the semaphore so many permits, whatever it had before. Permits that are held stay held."""
        return Permits(*await ask(self._client, lambda to: self._core.permits(limit, to)))

    async def holders(self) -> list[Holder]:
        """The holders of permits, as Redis sees them now; `count` is how many each has."""
        return holders_of(await ask(self._client, self._core.holders))

    async def waiters(self) -> list[Holder]:
        """The queue of a semaphore with the option `fair`, as Lock.waiters; `count` is how many permits each wants."""
        return holders_of(await ask(self._client, self._core.waiters))

    async def force_release(self) -> bool:
        """Takes all permits back, whoever has them; False if nobody does. Their holders are told that they lost them."""
        return bool(await ask(self._client, self._core.force_release))


class PlainSemaphore(BasePlainSemaphore):
    """Permits without leases for tasks, as asyncio.Semaphore; the same as Redisson's RSemaphore of this name.

        seats = client.plain_semaphore("seats")
        await seats.try_set_permits(5)  # if it has no number yet
        async with seats: ...  # one permit, given back at the end

    It is a number in Redis, and nothing says who has permits. The permits of a program that dies never come back, until somebody
    adds them anew: client.semaphore(...) has leases. A semaphore without a number has no permits. Callers of one client come
    in their order. Between clients there is no order.

    `release` gives back what `acquire` took, in whatever task and program; unlike that of asyncio it has to be awaited.
    """

    async def __aenter__(self) -> None:
        loop = _running_loop()
        permit = await ask(self._client, lambda to: self._core.take(1, self._timeout, to))
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

    async def acquire(self, blocking: bool = True, timeout: float | None = None, *, permits: int = 1) -> bool:
        """Takes permits, as asyncio.Semaphore does: True if they are taken now, False if there were not enough in time.

        `permits` is how many to take at once. A task that is cancelled leaves nothing taken. Raises UnavailableError, instead
        of returning False, if the server cannot be reached.
        """
        wait = self._timeout if blocking is True and timeout is None else wait_of_semaphore(blocking, timeout)
        return await ask(self._client, lambda to: self._core.acquire(permits, wait, to))  # type: ignore[no-any-return]

    async def release(self, n: int = 1) -> None:
        """Gives n permits back, whoever took them. Nothing stops a caller that gives back more than were taken.

        Raises UnavailableError if the server did not confirm: they are given back as soon as it answers, so do not release
        them again.
        """
        await ask(self._client, lambda to: self._core.release(n, to))

    async def try_set_permits(self, permits: int) -> bool:
        """Gives the semaphore so many permits if it has no number yet; whether it did."""
        return bool(await ask(self._client, lambda to: self._core.try_set_permits(permits, to)))

    async def add_permits(self, permits: int) -> int:
        """Adds permits, or takes some away if the number is negative, without waiting for them; the new number."""
        return int(await ask(self._client, lambda to: self._core.add_permits(permits, to)))

    async def drain(self) -> int:
        """Takes all permits that there are; how many. A number below 0 becomes 0."""
        return int(await ask(self._client, self._core.drain))

    async def available(self) -> int:
        """How many permits there are, as Redis sees it now."""
        return int(await ask(self._client, self._core.available))


class Latch(BaseLatch):
    """A count-down latch for tasks; the same as Redisson's RCountDownLatch of this name.

        ready = client.latch("ready")
        await ready.try_set_count(3)  # if it has none
        await ready.count_down()  # in each worker
        await ready.wait()  # until the count is 0

    At 0 the latch is open: everybody who waits goes on, and so does a late caller at once, as with asyncio.Event. A latch
    without a count is open. Its key goes away at 0, and it can get a count again.
    """

    async def wait(self, timeout: float | None = None) -> bool:
        """Waits until the count is 0, as asyncio.Event.wait: True then, False if the time in seconds was over before.

        Raises UnavailableError, instead of returning False, if the server cannot be reached.
        """
        wait = timeout_of(timeout)
        return bool(await ask(self._client, lambda to: self._core.wait(wait, to)))

    async def try_set_count(self, count: int) -> bool:
        """Gives the latch this count if it has none; whether it did."""
        return bool(await ask(self._client, lambda to: self._core.try_set_count(count, to)))

    async def count_down(self, by: int = 1) -> int:
        """Counts down, to 0 at most; what is left."""
        return int(await ask(self._client, lambda to: self._core.count_down(by, to)))

    async def count(self) -> int:
        """The count, as Redis sees it now; 0 if the latch is open."""
        return int(await ask(self._client, self._core.count))


class Grant(BaseGrant):
    """The object that `async with lock as grant` gives: one level of a hold."""

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
        await ask(self._client, lambda to: self._guard.extend(seconds, to))

    def on_lost(self, callback: OnLost) -> None:
        """Calls `callback` once with the LockLostError, in the event loop, when the lock is lost; it may be `async def`."""
        callback = required(callback)
        bridge = Bridge.of(self._task.get_loop())
        self._tags += (bridge.watchers.add(self._hold, bridge.queue, callback),)

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
