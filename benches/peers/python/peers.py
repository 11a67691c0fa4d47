"""The lock libraries for Python that the benchmark measures beside ours; arguments and output: see ../../README.md."""

import argparse
import asyncio
import gc
import inspect
import json
import os
import re
import sys
import threading
import time

ap = argparse.ArgumentParser()
ap.add_argument("--peer", required=True)
ap.add_argument("--workload", default="W1")
ap.add_argument("--url", default="redis://127.0.0.1:6379")
ap.add_argument("--seconds", type=float, default=5)
ap.add_argument("--warmup", type=float, default=0.3)
ap.add_argument("--tasks", type=int, default=64)
ap.add_argument("--locks", type=int, default=10000)
ap.add_argument("--lease-ms", type=int, default=30000)
ap.add_argument("--cs-us", type=int, default=1000)
ap.add_argument("--poll-ms", type=float, default=0)
ap.add_argument("--id", type=int, default=0)
ap.add_argument("--clients", type=int, default=1, help="W3: so many of this process, each with a connection")
ap.add_argument("--ts-file", default="")
ap.add_argument("--name", default="bench")
ap.add_argument("--barrier", action="store_true")
ap.add_argument("--busy", action="store_true", help="another thread computes all the time")
A = ap.parse_args()
now = time.monotonic_ns


class NA(Exception):
    """the library lacks the feature"""


# ----------------------------------------------------------------------------- synchronous contestants
class RedisPy:
    """redis-py Lock: SET NX PX, polls every `sleep` seconds (default 0.1); no watchdog."""

    def __init__(self):
        import redis

        self.r = redis.Redis.from_url(A.url)
        self.kw = {"timeout": A.lease_ms / 1000}
        if A.poll_ms:
            self.kw["sleep"] = A.poll_ms / 1000

    def acquire(self, name):
        lock = self.r.lock(name, **self.kw)
        return lock if lock.acquire() else None

    def release(self, lock):
        lock.release()

    def hold(self, name):
        raise NA("no automatic renewal (manual extend()/reacquire() only)")


class PythonRedisLock:
    """python-redis-lock: SET NX EX + BLPOP wake-up; optional renewal thread per lock."""

    renew = False

    def __init__(self):
        import redis
        import redis_lock

        self.L = redis_lock.Lock
        self.r = redis.Redis.from_url(A.url)
        self.exp = max(1, A.lease_ms // 1000)

    def acquire(self, name):
        lock = self.L(self.r, name, expire=self.exp, auto_renewal=self.renew)
        return lock if lock.acquire() else None

    def release(self, lock):
        lock.release()

    def hold(self, name):
        if not self.renew:
            raise NA("auto_renewal=False is the default; see the auto_renewal row")
        return self.acquire(name)


class PythonRedisLockRenew(PythonRedisLock):
    renew = True


class Pottery:
    """pottery Redlock: a ThreadPoolExecutor per operation, random retry delay in [0, 0.2] s; no auto-renewal."""

    def __init__(self):
        import redis
        from pottery import Redlock

        self.L = Redlock
        if A.poll_ms:
            Redlock._RETRY_DELAY = 2 * A.poll_ms / 1000  # mean delay = poll
        self.m = {redis.Redis.from_url(A.url)}

    def acquire(self, name):
        lock = self.L(key=name, masters=self.m, auto_release_time=A.lease_ms / 1000)
        return lock if lock.acquire() else None

    def release(self, lock):
        lock.release()

    def hold(self, name):
        raise NA("no automatic renewal (manual extend(), at most 3 times)")


class RedlockPy:
    """redlock-py: retry_count=3, retry_delay=0.2 s; EVAL (not EVALSHA) to unlock, EVAL after each failed try."""

    def __init__(self):
        from redlock import Redlock

        self.m = Redlock([A.url], retry_delay=(A.poll_ms / 1000) or None)

    def acquire(self, name):
        return self.m.lock(name, A.lease_ms) or None

    def release(self, lock):
        self.m.unlock(lock)

    def hold(self, name):
        raise NA("no automatic renewal")


# ----------------------------------------------------------------------------- asynchronous contestants
class RedisPyAio:
    def __init__(self):
        import redis.asyncio

        self.r = redis.asyncio.Redis.from_url(A.url)
        self.kw = {"timeout": A.lease_ms / 1000}
        if A.poll_ms:
            self.kw["sleep"] = A.poll_ms / 1000

    async def acquire(self, name):
        lock = self.r.lock(name, **self.kw)
        return lock if await lock.acquire() else None

    async def release(self, lock):
        await lock.release()

    async def hold(self, name):
        raise NA("no automatic renewal (manual extend()/reacquire() only)")


class PotteryAio:
    def __init__(self):
        import redis.asyncio
        from pottery import AIORedlock

        self.L = AIORedlock
        if A.poll_ms:
            AIORedlock._RETRY_DELAY = 2 * A.poll_ms / 1000
        self.m = {redis.asyncio.Redis.from_url(A.url)}

    async def acquire(self, name):
        lock = self.L(key=name, masters=self.m, auto_release_time=A.lease_ms / 1000)
        return lock if await lock.acquire() else None

    async def release(self, lock):
        await lock.release()

    async def hold(self, name):
        raise NA("no automatic renewal (manual extend(), at most 3 times)")


class AioRedlock:
    """aioredlock 0.7.3 on aioredis 1.3.1: retry 3 times, 0.1-0.3 s; watchdog task per lock at 0.6 x lease."""

    def __init__(self):
        from aioredlock import Aioredlock

        kw = {"internal_lock_timeout": A.lease_ms / 1000}
        if A.poll_ms:
            kw.update(retry_delay_min=A.poll_ms / 2000, retry_delay_max=A.poll_ms * 1.5 / 1000)
        self.m = Aioredlock([A.url], **kw)

    async def acquire(self, name):
        from aioredlock import LockError

        try:
            return await self.m.lock(name)
        except LockError:
            return None

    async def release(self, lock):
        await self.m.unlock(lock)

    async def hold(self, name):
        return await self.acquire(name)


SYNC = {
    "redispy": RedisPy,
    "prl": PythonRedisLock,
    "prl-renew": PythonRedisLockRenew,
    "pottery": Pottery,
    "redlock-py": RedlockPy,
}
ASYNC = {"redispy-aio": RedisPyAio, "pottery-aio": PotteryAio, "aioredlock": AioRedlock}


# ----------------------------------------------------------------------------- common
def out(obj):
    sys.stdout.write(json.dumps(obj) + "\n")
    sys.stdout.flush()
    os._exit(0)


def ready_go():
    if A.barrier:
        sys.stdout.write("READY\n")
        sys.stdout.flush()
        if not sys.stdin.readline():
            os._exit(0)


def status_kb(field):
    with open("/proc/self/status") as f:
        for line in f:
            if line.startswith(field + ":"):
                return int(line.split()[1])
    return 0


# Which shares of all times are at most as long as each of the quantiles.
SHARES = [0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1]


def pct(lat, q):
    return sorted(lat)[min(len(lat) - 1, int(len(lat) * q))] / 1e3 if lat else 0


def jain(v):
    s2 = sum(x * x for x in v)
    return round(sum(v) ** 2 / (len(v) * s2), 4) if s2 else 0


def out_w1(n, el, lat, cpu):
    out(
        {
            "pairs": n,
            "seconds": el,
            "p50_us": pct(lat, 0.5),
            "p99_us": pct(lat, 0.99),
            "max_us": max(lat) / 1e3,
            "quantiles_us": [pct(lat, q) for q in SHARES],
            "cpu_s": cpu,
        }
    )


def out_w2(counts, el, cpu):
    out({"pairs": sum(counts), "seconds": el, "cpu_s": cpu, "threads": status_kb("Threads")})


def out_w3(ts, el, cpu, failed):
    with open(A.ts_file, "w") as f:
        f.writelines(" ".join(map(str, row)) + "\n" for row in list(ts))
    out({"acq": len(ts), "seconds": el, "cpu_s": cpu, "failed": failed, "clients": A.clients})


def out_w4(counts, since, mx, waits, el, t1, cpu, failed, switches):
    worst = max(max(m, t1 - s if s else 0) for m, s in zip(mx, since))
    out(
        {
            "acq": sum(counts),
            "seconds": el,
            "max_wait_ms": worst / 1e6,
            "p99_wait_ms": pct([w for ws in waits for w in ws], 0.99) / 1e3,
            "jain": jain(counts),
            "cpu_s": cpu,
            "failed": sum(failed),
            "handoffs": switches,
        }
    )


def out_w5(el, cpu, rss0, acq):
    out(
        {
            "locks": A.locks,
            "seconds": el,
            "cpu_s": cpu,
            "rss_before_kb": rss0,
            "rss_after_kb": status_kb("VmRSS"),
            "threads": status_kb("Threads"),
            "acquire_s": acq,
        }
    )


class Tasks:
    """How callers begin and wait: here in an event loop."""

    Event, sleep = asyncio.Event, staticmethod(asyncio.sleep)

    def __init__(self):
        self.begun = []

    def start(self, work, *given):
        self.begun.append(asyncio.create_task(work(*given)))

    def check(self):
        for task in self.begun:
            if task.done():
                task.result()

    async def blocking(self, call):
        await asyncio.get_running_loop().run_in_executor(None, call)


class Threads:
    Event, sleep = threading.Event, staticmethod(time.sleep)

    def start(self, work, *given):
        threading.Thread(target=work, args=given, daemon=True).start()

    def check(self):
        pass

    def blocking(self, call):
        call()


async def measure(peer, callers):
    P = peer()

    async def pair(name):
        h = await P.acquire(name)
        while h is None:
            h = await P.acquire(name)
        await P.release(h)

    if A.workload == "W1":
        name = A.name + ":1"
        end = now() + int(A.warmup * 1e9)
        while now() < end:
            await pair(name)
        ready_go()
        lat = []
        c0 = time.process_time()
        t0 = t = now()
        end = t0 + int(A.seconds * 1e9)
        while t < end:
            await pair(name)
            u = now()
            lat.append(u - t)
            t = u
        out_w1(len(lat), (t - t0) / 1e9, lat, time.process_time() - c0)

    if A.workload in ("W2", "W4"):
        k, w4 = A.tasks, A.workload == "W4"
        counts, since, mx, failed = [0] * k, [0] * k, [0] * k, [0] * k
        waits = [[] for _ in range(k)]
        last = [-1, 0]  # previous holder, changes of holder (guarded by the lock itself)
        warmed, started = [], callers.Event()

        async def work(i):
            name = A.name + (":one" if w4 else f":{i}")
            end = now() + int(A.warmup * 1e9)
            while now() < end:
                await pair(name)
            warmed.append(i)
            await started.wait()
            if not w4:
                while True:
                    await pair(name)
                    counts[i] += 1
            while True:
                since[i] = s = now()
                h = await P.acquire(name)
                while h is None:
                    failed[i] += 1
                    h = await P.acquire(name)
                d = now() - s
                since[i] = 0
                if d > mx[i]:
                    mx[i] = d
                waits[i].append(d)
                counts[i] += 1
                if last[0] != i:
                    last[0] = i
                    last[1] += 1
                await P.release(h)

        for i in range(k):
            callers.start(work, i)
        # A caller that still waits when the others have ended is woken by nobody. It goes on waiting.
        end = now() + int((A.warmup + 1) * 1e9)
        while len(warmed) < k and now() < end:
            await callers.sleep(0.005)
            callers.check()
        await callers.blocking(ready_go)
        c0, t0 = time.process_time(), now()
        started.set()
        await callers.sleep(A.seconds)
        t1, cpu = now(), time.process_time() - c0
        el = (t1 - t0) / 1e9
        if w4:
            out_w4(counts, since, mx, waits, el, t1, cpu, failed, last[1])
        out_w2(counts, el, cpu)

    if A.workload == "W3":
        name, ts, failed, cs = A.name + ":w3", [], [0], A.cs_us / 1e6
        end = now() + int(A.warmup * 1e9)
        while now() < end:
            await pair(f"{A.name}:warm{A.id}")
        peers = [P, *(peer() for _ in range(1, A.clients))]
        for other in peers:
            await other.release(await other.acquire(f"{A.name}:warm{A.id}"))
        ready_go()
        c0, t0 = time.process_time(), now()

        async def work(client, P):
            while True:
                h = await P.acquire(name)
                while h is None:
                    failed[0] += 1
                    h = await P.acquire(name)
                a = now()
                await callers.sleep(cs)
                b = now()
                await P.release(h)
                ts.append((a, b, now(), client))

        for client, P in enumerate(peers):
            callers.start(work, client, P)
        await callers.sleep(A.seconds)
        callers.check()
        out_w3(ts, (now() - t0) / 1e9, time.process_time() - c0, failed[0])

    if A.workload == "W5":
        await pair(A.name + ":warm")
        gc.collect()
        rss0, a0 = status_kb("VmRSS"), now()
        held = []
        for i in range(A.locks):
            held.append(await P.hold(f"{A.name}:{i}"))
        acq = (now() - a0) / 1e9
        await callers.blocking(ready_go)
        c0, t0 = time.process_time(), now()
        await callers.sleep(A.seconds)
        out_w5((now() - t0) / 1e9, time.process_time() - c0, rss0, acq)


def measure_threads(peer):
    """The same text without `async` and `await`: threads are measured without what those two cost."""
    scope = dict(globals())
    exec(re.sub(r"\b(async|await) ", "", inspect.getsource(measure)), scope)
    scope["measure"](peer, Threads())


def compute():
    """Keeps the interpreter busy: pure Python, as a program's own work is."""
    number = 0
    while True:
        number = (number * 31 + 7) % 1_000_003


if A.busy:
    threading.Thread(target=compute, daemon=True).start()
try:
    if A.peer in SYNC:
        measure_threads(SYNC[A.peer])
    else:

        async def run():
            await measure(ASYNC[A.peer], Tasks())

        asyncio.run(run())
except NA as e:
    out({"na": str(e)})
except Exception as e:  # the driver shows the reason in the table
    import traceback

    traceback.print_exc()
    out({"error": f"{type(e).__name__}: {e}"[:200]})
