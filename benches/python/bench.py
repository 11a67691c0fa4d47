"""The workloads W1 to W5 for Python, with threads or (--peer aio) with asyncio; see benches/README.md."""

import argparse
import asyncio
import inspect
import json
import os
import re
import resource
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import redlatch
from redlatch import aio

# Which shares of all times are at most as long as each of the quantiles.
SHARES = [0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", default="threads", choices=["threads", "aio"])
    parser.add_argument("--kind", default="reentrant", choices=["reentrant", "simple"])
    parser.add_argument("--busy", action="store_true", help="another thread computes all the time")
    parser.add_argument("--workload", required=True, choices=["W1", "W2", "W3", "W4", "W5"])
    parser.add_argument("--url", required=True)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--warmup", type=float, default=0.3)
    parser.add_argument("--tasks", type=int, default=64)
    parser.add_argument("--locks", type=int, default=10_000)
    parser.add_argument("--lease-ms", type=int, default=30_000)
    parser.add_argument("--cs-us", type=int, default=1_000)
    parser.add_argument("--poll-ms")
    parser.add_argument("--id")
    parser.add_argument("--ts-file", type=Path)
    parser.add_argument("--name", default="bench")
    parser.add_argument("--barrier", action="store_true")
    return parser.parse_args()


def usage() -> tuple[float, int, int]:
    """CPU seconds, resident kilobytes and threads of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return used.ru_utime + used.ru_stime, int(fields["VmRSS"].split()[0]), int(fields["Threads"])


class Window:
    """A time in which callers go on."""

    def __init__(self, seconds: float) -> None:
        self.cpu = usage()[0]
        self.begun = time.monotonic()
        self.end = self.begun + seconds

    def left(self) -> float:
        return max(0.0, self.end - time.monotonic())

    def is_open(self) -> bool:
        return time.monotonic() < self.end

    def used(self) -> dict[str, float]:
        return {"seconds": time.monotonic() - self.begun, "cpu_s": usage()[0] - self.cpu}

    def report(self, **figures: Any) -> None:
        """The usage until now, unless the figures tell what was until an earlier moment."""
        print(json.dumps(self.used() | figures), flush=True)


def open_window(args: argparse.Namespace) -> Window:
    """The time in which a workload counts."""
    if args.barrier:
        print("READY", flush=True)
        sys.stdin.readline()
    return Window(args.seconds)


def share(values: list[float], part: float) -> float:
    return sorted(values)[round((len(values) - 1) * part)] if values else 0.0


def jain(shares: list[int]) -> float:
    squares = sum(value * value for value in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 0.0


def latencies(times: list[float]) -> dict[str, Any]:
    micros = sorted(value * 1e6 for value in times)
    figures = {"pairs": len(micros), "p50_us": share(micros, 0.5), "p99_us": share(micros, 0.99)}
    return {**figures, "max_us": share(micros, 1), "quantiles_us": [share(micros, part) for part in SHARES]}


def fairness(results: list[tuple[int, int, list[float]]]) -> dict[str, float]:
    """The report of the callers of W4: acquisitions, hand-overs, waits."""
    waits = [wait * 1000 for _, _, each in results for wait in each]
    counts = [acquired for acquired, _, _ in results]
    figures = {"acq": sum(counts), "handoffs": sum(handed for _, handed, _ in results), "jain": jain(counts)}
    return figures | {"max_wait_ms": max(waits, default=0.0), "p99_wait_ms": share(waits, 0.99)}


class Workloads:
    """They are written for tasks. `for_threads` makes those of threads of the same text."""

    # A client, a pause, and how many threads have ended when they are counted.
    client: Any
    sleep: Any
    ended = 0

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args

    def lock(self, name: object) -> Any:
        return self.client.lock(f"{self.args.name}:{name}")

    async def each(self, work: Callable[[int, Window], Any]) -> tuple[Window, list[Any]]:
        """Runs `work` for every one of the callers: all warm up in the way that is measured, which begins when they are done."""
        raise NotImplementedError

    async def warm(self, lock: Any) -> None:
        await self.client.connect()
        window = Window(self.args.warmup)
        while window.is_open():
            await lock.acquire()
            await lock.release()

    async def w1(self) -> None:
        lock, times = self.lock(1), []
        await self.warm(lock)
        window = open_window(self.args)
        while window.is_open():
            begun = time.perf_counter()
            await lock.acquire()
            await lock.release()
            times.append(time.perf_counter() - begun)
        window.report(**latencies(times))

    async def w2(self) -> None:
        await self.client.connect()

        async def work(number: int, window: Window) -> int:
            lock, pairs = self.lock(number), 0
            while window.is_open():
                await lock.acquire()
                await lock.release()
                pairs += 1
            return pairs

        window, pairs = await self.each(work)
        window.report(pairs=sum(pairs), threads=self.ended + usage()[2])

    async def w3(self) -> None:
        lock, lines = self.lock("w3"), []
        await self.warm(self.lock(f"warm{self.args.id}"))
        window = open_window(self.args)
        while window.is_open() and await lock.acquire(timeout=window.left()):
            acquired = time.monotonic_ns()
            await self.sleep(self.args.cs_us / 1e6)
            called = time.monotonic_ns()
            await lock.release()
            lines.append(f"{acquired} {called} {time.monotonic_ns()}\n")
        if self.args.ts_file:
            self.args.ts_file.write_text("".join(lines))
        window.report(acq=len(lines))

    async def w4(self) -> None:
        await self.client.connect()
        last = [-1]

        async def work(number: int, window: Window) -> tuple[int, int, list[float]]:
            lock, acquired, handed, waits = self.lock("one"), 0, 0, []
            while window.is_open():
                begun = time.perf_counter()
                won = await lock.acquire(timeout=window.left())
                waits.append(time.perf_counter() - begun)
                if not won:
                    break
                acquired += 1
                handed += last[0] != number
                last[0] = number
                await lock.release()
            return acquired, handed, waits

        window, results = await self.each(work)
        used = window.used()
        window.report(**fairness(results) | used)

    async def w5(self) -> None:
        await self.client.connect()
        before, begun = usage()[1], time.monotonic()
        locks = [self.lock(number) for number in range(self.args.locks)]
        for lock in locks:
            await lock.acquire()
        taken = time.monotonic() - begun
        window = open_window(self.args)
        await self.sleep(self.args.seconds)
        used = window.used()
        held = sum(lock.owned() for lock in locks)
        _, rss, count = usage()
        memory = {"rss_before_kb": before, "rss_after_kb": rss}
        window.report(locks=held, threads=count, acquire_s=taken, **memory, **used)


class Tasks(Workloads):
    sleep = staticmethod(asyncio.sleep)

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__(args)
        self.client = aio.Client(args.url, kind=args.kind, watchdog_lease=args.lease_ms / 1000)

    async def each(self, work: Callable[[int, Window], Awaitable[Any]]) -> tuple[Window, list[Any]]:
        numbers, warming = range(self.args.tasks), Window(self.args.warmup)
        await asyncio.gather(*(work(number, warming) for number in numbers))
        window = open_window(self.args)
        return window, await asyncio.gather(*(work(number, window) for number in numbers))


def for_threads(workloads: type[Workloads]) -> Any:
    """The class without `async` and `await`, so that threads are measured without what those two cost."""
    scope = dict(globals())
    exec(re.sub(r"\b(async|await) ", "", inspect.getsource(workloads)), scope)
    return scope[workloads.__name__]


class Threads(for_threads(Workloads)):  # type: ignore[misc]
    sleep = staticmethod(time.sleep)

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__(args)
        self.client = redlatch.Client(args.url, kind=args.kind, watchdog_lease=args.lease_ms / 1000)
        self.ended = args.tasks

    def each(self, work: Callable[[int, Window], Any]) -> tuple[Window, list[Any]]:
        results: list[Any] = []
        warmed, opened = threading.Barrier(self.args.tasks + 1), threading.Event()
        windows = [Window(self.args.warmup)]

        def call(number: int) -> None:
            work(number, windows[0])
            warmed.wait()
            opened.wait()
            results.append(work(number, windows[1]))

        threads = [threading.Thread(target=call, args=(number,)) for number in range(self.args.tasks)]
        for thread in threads:
            thread.start()
        warmed.wait()
        windows.append(open_window(self.args))
        opened.set()
        for thread in threads:
            thread.join()
        return windows[1], results


def compute() -> None:
    """Keeps the interpreter busy: pure Python, as a program's own work is."""
    number = 0
    while True:
        number = (number * 31 + 7) % 1_000_003


def main() -> None:
    args = arguments()
    if args.busy:
        threading.Thread(target=compute, daemon=True).start()
    if args.peer == "aio":
        asyncio.run(getattr(Tasks(args), args.workload.lower())())
    else:
        getattr(Threads(args), args.workload.lower())()
    # The runner cleans up; ten thousand releases would only be in the way.
    os._exit(0)


if __name__ == "__main__":
    main()
