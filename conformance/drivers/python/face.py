"""One program text for threads and for asyncio: every step is a coroutine, and a thread's never waits for a loop.

The first argument says which: `threads` or `asyncio`. The owner of a lock is the thread or the task.
"""

from __future__ import annotations

import asyncio
import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

ASYNCIO = sys.argv[1] == "asyncio"
Job = dict[str, Any]


async def done(step: Any) -> Any:
    """The result of a call. A thread's is done when it returns."""
    return await step if isinstance(step, Awaitable) else step


def enter(lock: Any) -> Any:
    return lock.__aenter__() if ASYNCIO else lock.__enter__()


def leave(lock: Any) -> Any:
    return lock.__aexit__(None, None, None) if ASYNCIO else lock.__exit__(None, None, None)


async def pause(seconds: float) -> None:
    await done((asyncio.sleep if ASYNCIO else time.sleep)(seconds))


def finish(steps: Coroutine[Any, Any, Any]) -> Any:
    """Runs a coroutine that never suspends."""
    try:
        steps.send(None)
    except StopIteration as end:
        return end.value
    raise RuntimeError("a step of a thread waits for an event loop")


def run(steps: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(steps) if ASYNCIO else finish(steps)


def start(work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Another thread or task."""
    if ASYNCIO:
        return asyncio.create_task(work())
    thread = threading.Thread(target=lambda: finish(work()), daemon=True)
    thread.start()
    return thread


async def join(started: Any, limit: float | None = None) -> None:
    """Waits until it has ended."""
    if ASYNCIO:
        await asyncio.wait_for(started, limit)
    else:
        started.join(limit)
        if started.is_alive():
            raise TimeoutError("a thread does not end")


def usage() -> tuple[int, int, int]:
    """Resident kilobytes, threads, open files."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]), int(fields["Threads"]), len(os.listdir("/proc/self/fd"))


def seconds(request: Job, name: str) -> float | None:
    return None if request.get(name) is None else request[name] / 1000


class Actors:
    """Serves the requests of stdin. Each actor thread of a client is a thread, or a task, until the client is forgotten.
    In a driver of its own ("private") `main` is the main thread, where Ctrl-C cancels."""

    def __init__(
        self, perform: Callable[[Job], Awaitable[Job]], failure: Callable[[Exception], Job | None]
    ) -> None:
        self.perform, self.failure = perform, failure
        self.jobs: dict[tuple[str, str], Any] = {}
        self.running: dict[int, Any] = {}
        self.workers: list[Any] = []
        self.private = False
        self.main: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self.out = threading.Lock()

    def serve(self) -> None:
        if ASYNCIO:
            asyncio.run(self.serve_in_loop())
            return
        # A shell starts background jobs with SIGINT ignored, and Python leaves that so.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        threading.Thread(target=self.read, args=(lambda take, request: take(request),), daemon=True).start()
        finish(self.work(self.main))

    async def serve_in_loop(self) -> None:
        later = asyncio.get_running_loop().call_soon_threadsafe
        threading.Thread(target=self.read, args=(later,), daemon=True).start()
        await asyncio.Event().wait()

    def read(self, call: Callable[..., object]) -> None:
        for line in sys.stdin.buffer:
            call(self.take, json.loads(line))
        os._exit(0)

    def take(self, request: Job) -> None:
        if request["op"] == "cancel":
            self.answer(request, {} if self.cancel(request["target"]) else {"status": "not_found"})
        else:
            self.private = self.private or "private" in request
            if request["op"] == "forget":
                self.end(request["client"])
            self.queue_of(request.get("client", ""), request.get("as", "main")).put_nowait(request)

    def end(self, client: str) -> None:
        """Ends all actor threads of a client but the one that asks."""
        for place in [place for place in self.jobs if place[0] == client and place[1] != "main"]:
            self.jobs.pop(place).put_nowait(None)

    def cancel(self, target: int) -> bool:
        """A task, or what the main thread does."""
        runner = self.running.get(target)
        if ASYNCIO and runner is not None:
            runner.cancel()
            return True
        if runner is not threading.main_thread():
            return False
        os.kill(os.getpid(), signal.SIGINT)
        return True

    def queue_of(self, client: str, actor: str) -> Any:
        if self.private and actor == "main" and not ASYNCIO:
            return self.main
        if (client, actor) not in self.jobs:
            jobs: Any = asyncio.Queue() if ASYNCIO else queue.SimpleQueue()
            self.jobs[client, actor] = jobs
            self.workers.append(start(lambda: self.work(jobs)))
        return self.jobs[client, actor]

    async def work(self, jobs: Any) -> None:
        while request := await done(jobs.get()):
            self.running[request["id"]] = asyncio.current_task() if ASYNCIO else threading.current_thread()
            try:
                reply = await self.perform(request)
            except (KeyboardInterrupt, asyncio.CancelledError):
                reply = {"status": "cancelled"}
            except Exception as error:
                known = self.failure(error)
                if known is None:
                    traceback.print_exc()
                reply = known or {"status": "error", "text": repr(error)}
            self.running.pop(request["id"], None)
            self.answer(request, reply)

    def answer(self, request: Job, reply: Job) -> None:
        self.write({"status": "ok", **reply, "id": request["id"]})

    def write(self, line: Job) -> None:
        with self.out:
            print(json.dumps(line), flush=True)
