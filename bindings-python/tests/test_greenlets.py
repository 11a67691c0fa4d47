"""Programs that run gevent or eventlet. Each is a process of its own, because both replace the standard library.

A program says `spawn`, `sleep`, `wait_for`, `kill` and `Timeout`, whichever library it runs.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
from conftest import LIMIT, eventually, run, script

PATCHED = {
    "gevent": """
        from gevent import monkey
        monkey.patch_all()
        """,
    "eventlet": """
        import eventlet
        eventlet.monkey_patch()
        """,
}
NAMES = {
    "gevent": """
        import gevent
        from gevent import Timeout, sleep, spawn
        def wait_for(greenlet): return greenlet.get(timeout=60)
        def kill(greenlet): greenlet.kill()
        def in_hub(function): gevent.get_hub().loop.run_callback(function)
        """,
    "eventlet": """
        import eventlet
        from eventlet import Timeout, sleep, spawn
        def wait_for(greenlet):
            with Timeout(60): return greenlet.wait()
        def kill(greenlet): greenlet.kill()
        def in_hub(function): eventlet.hubs.get_hub().schedule_call_global(0, function)
        """,
}
COMMON = """
        import os, signal, sys, threading, time
        import redlatch
        # A shell starts what runs in the background with Ctrl-C ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        name = sys.argv[1] if len(sys.argv) > 1 else "test"
        def eventually(condition):
            with Timeout(60):
                while not condition(): sleep(0.002)
        """

both = pytest.mark.parametrize("library", ["gevent", "eventlet"])


def program(library: str, source: str, *, patched: bool = True) -> str:
    parts = [PATCHED[library] if patched else "", NAMES[library], COMMON, source]
    return "\n".join(textwrap.dedent(part) for part in parts)


# ---- exclusion ----

LOCKS = {
    "re-entrant": "client.lock(name, reentrant=True)",
    "not re-entrant": "client.lock(name, reentrant=False)",
    "simple": "client.lock(name, kind='simple')",
    "with a callback": "client.lock(name, on_lost=print)",
    "as redis-py's": "redispy.Lock(client, name)",
    "as redis-py's with a time-out": "redispy.Lock(client, name, timeout=60)",
    "as redis-py's for all threads": "redispy.Lock(client, name, thread_local=False)",
}


@both
@pytest.mark.parametrize("shared", [True, False], ids=["one object", "an object each"])
def test_greenlets_exclude_each_other(library: str, shared: bool, name: str) -> None:
    source = """
        from redlatch.compat import redispy
        client, base = redlatch.Client(), name
        counter = inside = most = 0
        def work(make):
            global counter, inside, most
            for _ in range(10):
                with make():
                    inside += 1
                    most = max(most, inside)
                    before = counter
                    sleep(0.001)
                    counter = before + 1
                    inside -= 1
        for kind, text in %s.items():
            name, counter, most = f"{base}:{kind}", 0, 0
            make = eval("lambda: " + text)
            if %s:
                lock = make()
                make = lambda: lock
            for greenlet in [spawn(work, make) for _ in range(10)]:
                wait_for(greenlet)
            print(kind, counter, most, make().locked())
        client.close()
        """
    out = run(program(library, source % (LOCKS, shared)), name)
    assert out.splitlines() == [f"{kind} 100 1 False" for kind in LOCKS]


@both
def test_a_greenlet_re_enters_its_own_lock_only(library: str, name: str) -> None:
    source = """
        client = redlatch.Client()
        lock = client.lock(name, reentrant=True)
        def other():
            got = lock.acquire(False)
            try:
                lock.release()
            except redlatch.NotOwnerError:
                return got, lock.owned(), lock.hold_count, "not the owner"
        def owner():
            with lock, lock as grant:
                assert lock.acquire()
                lock.extend(40)
                grant.extend(50)
                counts = lock.hold_count, lock.holder().count
                lock.release()
                return counts, wait_for(spawn(other))
        print(*wait_for(spawn(owner)), lock.holder())
        with lock:  # the main greenlet is an owner as well
            print(wait_for(spawn(other)))
        """
    other = "(False, False, 0, 'not the owner')"
    assert run(program(library, source), name) == f"(3, 3) {other} None\n{other}\n"


@both
def test_threading_s_own_suite_holds_for_greenlets(library: str, name: str) -> None:
    """CPython's tests of locks, and those that gevent has made of them for its own."""
    pytest.importorskip("test.lock_tests", reason="this Python comes without its tests")
    source = """
        import itertools, unittest
        from test import lock_tests as of_python
        client = redlatch.Client().connect()
        numbers = itertools.count()
        class Like:
            def __init__(self, **options):
                self.lock = lock = client.lock(f"{name}:{next(numbers)}", **options)
                self.acquire, self.release, self.locked, self._is_owned = lock.acquire, lock.release, lock.locked, lock.owned
            def __enter__(self): return self.lock.__enter__()
            def __exit__(self, *error): return self.lock.__exit__(*error)
            def _recursion_count(self): return self.lock.hold_count
        def suite(base, **options):
            made = type(base.__name__, (base,), {"locktype": staticmethod(lambda: Like(**options))})
            # These ask for the text and for private methods of the classes in `threading`.
            left_out = {"test_repr", "test_repr_count", "test_locked_repr", "test_release_save_unacquired"}
            return [made(test) for test in unittest.defaultTestLoader.getTestCaseNames(made) if test not in left_out]
        tests = suite(of_python.RLockTests, reentrant=True) + suite(of_python.BaseLockTests, reentrant=False)
        if "gevent" in sys.modules:
            from gevent.tests import lock_tests as of_gevent
            tests += suite(of_gevent.RLockTests, reentrant=True) + suite(of_gevent.BaseLockTests, reentrant=False)
        result = unittest.TextTestRunner(sys.stdout).run(unittest.TestSuite(tests))
        print("ran", result.testsRun, result.wasSuccessful())
        """
    out = run(program(library, source), name)
    ran = re.search(r"ran (\d+) True\n$", out)
    assert ran and int(ran[1]) >= (40 if library == "gevent" else 25), out


def test_a_greenlet_in_the_context_of_its_driver_leaves_both_their_holds(name: str) -> None:
    """As SQLAlchemy's greenlet_spawn runs the work of a session. The driver's `release` was refused."""
    pytest.importorskip("greenlet")
    source = """
        import asyncio, contextvars, sys
        import greenlet, redlatch
        name = sys.argv[1]
        client = redlatch.Client()
        outer, inner = (client.lock(each, reentrant=True) for each in (name, name + "'"))

        def session():
            driver = greenlet.getcurrent().parent
            assert not outer.owned() and inner.acquire()
            driver.switch()
            assert not outer.owned() and inner.acquire(False) and inner.hold_count == 2
            inner.release()
            inner.release()

        def drive():
            driver = greenlet.getcurrent()
            assert outer.acquire()
            for _ in range(2):
                work = greenlet.greenlet(session, driver)
                work.gr_context = driver.gr_context
                work.switch()
                assert not inner.owned() and outer.acquire(False) and outer.hold_count == 2
                outer.release()
                work.switch()
                assert work.dead
            outer.release()
            print(client.stats()["holds"], outer.holder(), inner.holder())

        async def task():
            drive()

        contextvars.copy_context().run(drive)
        asyncio.run(task())
        client.close()
        """
    assert run(source, name) == "0 None None\n" * 2


# ---- waiting ----


@both
def test_every_call_lets_other_greenlets_run(library: str, name: str) -> None:
    """The server runs no script until a greenlet lets it: a call that blocked the hub would wait for ever."""
    source = """
        import redis
        look = redis.Redis.from_url(os.environ["REDLATCH_URL"])
        client = redlatch.Client()
        simple = client.lock(name + ":simple", kind="simple")
        lock = client.lock(name)
        grants = []
        def enter(): grants.append(lock.__enter__())
        def resume():
            for _ in range(3): sleep(0.001)
            look.client_unpause()
        calls = [
            client.connect, lock.acquire, lambda: lock.extend(50), lock.holder, lock.locked, lock.release, enter,
            lambda: grants[0].extend(60), lambda: lock.__exit__(None, None, None), lock.force_release,
            lambda: simple.acquire(token="mine"), lambda: simple.extend_token("mine", 60),
            lambda: simple.release_token("mine"), client.close,
        ]
        for call in calls:
            look.client_pause(600_000, all=False)
            resuming = spawn(resume)
            call()
            wait_for(resuming)
        print("done")
        """
    assert run(program(library, source), name) == "done\n"


@both
def test_what_ends_a_greenlet_that_waits_leaves_nothing_held(library: str, name: str) -> None:
    source = """
        client, other = redlatch.Client(), redlatch.Client()
        held = other.lock(name)
        held.acquire()
        def enter():
            with client.lock(name): print("inside")
        def time_out():
            try:
                with Timeout(0.05): enter()
            except Timeout:
                return "timed out"
        waiting = [spawn(enter) for _ in range(5)] + [spawn(client.lock(name).acquire) for _ in range(5)]
        eventually(lambda: client.stats()["waiting"] == 10)
        print(wait_for(spawn(time_out)))
        for greenlet in waiting: kill(greenlet)
        eventually(lambda: client.stats()["waiting"] == 0)
        held.release()
        print(held.holder())
        """
    assert run(program(library, source), name) == "timed out\nNone\n"


@both
def test_a_greenlet_that_is_killed_when_it_has_won_leaves_nothing_held(library: str, name: str) -> None:
    source = """
        client = redlatch.Client()
        lock = client.lock(name)
        def enter():
            with client.lock(name): sleep(1000)
        for number in range(100):
            with lock:
                waiter = spawn(enter)
                eventually(lambda: client.stats()["waiting"] == 1)
            if number % 2: sleep(0)
            kill(waiter)
        eventually(lambda: lock.holder() is None)
        print(client.stats()["holds"])
        """
    assert run(program(library, source), name) == "0\n"


@both
@pytest.mark.parametrize("hub", [True, False])
def test_ctrl_c_ends_a_wait_of_the_main_greenlet(library: str, hub: bool, name: str) -> None:
    source = """
        client, other = redlatch.Client(), redlatch.Client()
        held = other.lock(name)
        held.acquire()
        if %s: sleep(0.001)  # the library starts its hub when it is needed first
        print("ready", flush=True)
        try:
            with client.lock(name): print("inside")
        except KeyboardInterrupt:
            print("interrupted")
        held.release()
        eventually(lambda: client.stats()["waiting"] == 0)
        print(held.holder())
        """
    with process(program(library, source % hub), name) as child:
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
        with redis.Redis.from_url(os.environ["REDLATCH_URL"]) as look:
            eventually(lambda: subscribers(look, name), "it waits")
        child.send_signal(signal.SIGINT)
        assert child.communicate(timeout=LIMIT)[0] == "interrupted\nNone\n"
        assert child.returncode == 0


@both
@pytest.mark.parametrize("error", ["KeyboardInterrupt", "ValueError"])
def test_a_hub_listens_on_when_a_signal_s_handler_raises_in_its_callback(
    library: str, error: str, name: str
) -> None:
    """The handler runs wherever Python code runs; here it is made to run when an answer has arrived."""
    source = """
        from redlatch import _green
        drain = _green.Hub._drain
        raising = False
        def interrupted(self):
            global raising
            if raising:
                raising = False
                raise %s
            drain(self)
        _green.Hub._drain = interrupted
        sys.stderr = open(os.devnull, "w")  # where the libraries report it
        client = redlatch.Client()
        holder = redlatch.Client().lock(name)
        def hold():
            with holder: eventually(lambda: over or client.stats()["waiting"] == 1)
        for first in True, False:
            eventually(lambda: client.stats()["waiting"] == 0)
            over = False
            holding = spawn(hold)
            eventually(holder.locked)
            raising = first
            try: print(client.lock(name).acquire(timeout=60))
            except KeyboardInterrupt: print("interrupted")
            else: client.lock(name).release()
            over = True  # also if the exception came before anybody waited
            wait_for(holding)
        """
    out = run(program(library, source % error), name)
    first = "interrupted" if error == "KeyboardInterrupt" else "True"
    assert out == f"{first}\nTrue\n"


@pytest.mark.reads_proc
@both
def test_signals_end_the_process_as_ever(library: str, name: str) -> None:
    source = """
        client = redlatch.Client()
        with client.lock(name): pass
        def blocked(thread): return next(line for line in open(f"/proc/self/task/{thread}/status") if "SigBlk" in line)
        print(blocked(os.getpid()).split()[1], flush=True)
        with client.lock(name): sleep(1000)
        """
    for number in (signal.SIGTERM, signal.SIGINT):
        # A process that SIGTERM ends leaves its lock until the lease ends.
        with process(program(library, source), f"{name}:{number}") as child:
            assert child.stdout is not None and int(child.stdout.readline(), 16) == 0
            child.send_signal(number)
            child.communicate(timeout=LIMIT)
            assert child.returncode == -number


@contextmanager
def process(source: str, *args: str) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen(
        [*script(source), *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def subscribers(look: redis.Redis, name: str) -> bool:
    return any(name in str(channel) for channel in look.pubsub_channels())


@both
def test_a_canceller_is_refused_where_a_greenlet_waits(library: str, name: str) -> None:
    source = """
        client = redlatch.Client()
        canceller = redlatch.Canceller()
        def enter():
            with client.lock(name, canceller=canceller): print("inside")
        def told(call):
            try: call()
            except redlatch.InvalidArgumentError as error: return str(error)
        acquire = lambda: client.lock(name).acquire(canceller=canceller)
        for call in enter, acquire: print(wait_for(spawn(told, call)))
        # A native thread beside the hub may wait with one.
        canceller.cancel()
        native = __import__("redlatch")._green.original("_thread", "start_new_thread")
        done = []
        def work():
            try: acquire()
            except redlatch.LockCancelledError: done.append("cancelled")
        native(work, ())
        eventually(lambda: done)
        print(*done, client.lock(name).locked())
        """
    *refused, last = run(program(library, source), name).splitlines()
    assert len(refused) == 2 and all("Timeout" in text and "kill()" in text for text in refused)
    assert last == "cancelled False"


@both
def test_a_block_that_ends_in_the_hub_gives_its_level_back(library: str, name: str) -> None:
    source = """
        client = redlatch.Client()
        lock = client.lock(name)
        grant = lock.__enter__()
        told = []
        def leave():
            try: lock.__exit__(None, None, None)
            except redlatch.InvalidArgumentError as error: told.append(error)
        in_hub(leave)
        eventually(lambda: told and not lock.locked())
        print(grant.held)
        """
    assert run(program(library, source), name) == "False\n"


@both
def test_what_a_greenlet_holds_under_a_context_of_its_own_ends_with_it(library: str, name: str) -> None:
    source = """
        import contextvars, logging
        from redlatch.compat import redispy
        client = redlatch.Client(watchdog_lease=0.5)
        locks = [client.lock(name), redispy.Lock(client, name + ":redis-py")]
        def work():
            contexts = [contextvars.copy_context() for _ in locks]
            assert all(context.run(lock.acquire) for context, lock in zip(contexts, locks))
        ended = spawn(work)
        wait_for(ended)
        eventually(lambda: not any(lock.locked() for lock in locks))
        print("done")
        """
    assert run(program(library, source), name) == "done\n"


@both
def test_a_call_in_the_hub_is_refused(library: str, name: str) -> None:
    source = """
        client = redlatch.Client()
        lock = client.lock(name)
        lock.acquire()
        told = []
        def release():
            try: lock.release()
            except redlatch.InvalidArgumentError as error: told.append(str(error))
        in_hub(release)
        eventually(lambda: told)
        print(*told, lock.owned())
        """
    out = run(program(library, source), name)
    assert f"the hub of {library}" in out and f"{library}.spawn(" in out and out.endswith("True\n")


# ---- the life of a process ----


@both
def test_a_callback_of_a_loss_runs_in_a_greenlet_of_its_own(library: str, name: str) -> None:
    source = """
        client = redlatch.Client()
        told = []
        def on_lost(lost):
            sleep(0.001)  # it may wait
            told.append((lost.reason, threading.get_native_id() == os.getpid()))
        # The main greenlet may ask before anything has started the hub.
        client.lock(name + ":main", on_lost=on_lost).acquire()
        def work():
            try:
                with client.lock(name, on_lost=on_lost) as grant:
                    grant.on_lost(on_lost)
                    spawn(client.lock(name).force_release)
                    spawn(client.lock(name + ":main").force_release)
                    eventually(lambda: len(told) == 3)
            except redlatch.LockLostError:
                print(*told)
        wait_for(spawn(work))
        """
    told = ["('forced', True)"] * 3
    assert run(program(library, source), name) == " ".join(told) + "\n"


@both
def test_a_callback_that_a_native_thread_gave_is_called_when_that_has_ended(library: str, name: str) -> None:
    """Its hub ended with it, and the loss was told to nobody."""
    source = """
        from redlatch import _green
        client = redlatch.Client()
        told, grants, threads = [], [], []
        def work():
            sleep(0.001)  # now the thread has a hub
            grants.append(client.lock(name, on_lost=told.append).__enter__())
            grants[0].on_lost(told.append)
            threads.append(threading.get_native_id())
        sleep(0.001)  # and this one: gevent cannot make two at once
        _green.original("_thread", "start_new_thread")(work, ())
        eventually(lambda: threads and not os.path.exists(f"/proc/self/task/{threads[0]}"))
        assert grants[0].held
        client.lock(name).force_release()
        eventually(lambda: len(told) == 2)
        print(*(lost.reason for lost in told))
        """
    assert run(program(library, source), name) == "forced forced\n"


@both
def test_what_a_greenlet_holds_when_it_ends_is_not_renewed(library: str, name: str) -> None:
    source = """
        import logging
        logging.basicConfig(stream=sys.stdout, format="%(message)s")
        client = redlatch.Client(watchdog_lease=2)
        lock = client.lock(name)
        ended = spawn(lock.acquire)
        print(wait_for(ended))
        eventually(lambda: lock.holder() is None)
        client.close()
        """
    out = run(program(library, source), name)
    assert "True" in out and "left without release" in out


@both
def test_a_library_may_be_patched_in_after_the_first_use(library: str, name: str) -> None:
    before = """
        import redlatch
        from redlatch.compat import redispy
        early = redlatch.Client()
        early.lock("early").acquire()
        """
    source = """
        from redlatch.compat import redispy
        early.lock("early").release()
        locks = {early.lock(name, reentrant=True), redispy.Lock(early, name + ":redis-py")}
        def work(lock):
            global inside
            with lock:
                assert not inside
                inside = True
                sleep(0.001)
                inside = False
        for lock in locks:
            inside = False
            for greenlet in [spawn(work, lock) for _ in range(20)]: wait_for(greenlet)
        print("done")
        """
    assert run(textwrap.dedent(before) + program(library, source), name) == "done\n"


@both
def test_a_program_that_patches_nothing_has_greenlets_as_well(library: str, name: str) -> None:
    source = """
        client = redlatch.Client()
        order = []
        def work(number):
            with client.lock(name, reentrant=True):
                order.append(number)
                sleep(0.001)
                order.append(number)
        for greenlet in [spawn(work, number) for number in range(20)]: wait_for(greenlet)
        print(order[::2] == order[1::2], len(order))
        """
    assert run(program(library, source, patched=False), name) == "True 40\n"


def test_real_threads_beside_gevent_wait_on_their_own(name: str) -> None:
    source = """
        pool = gevent.get_hub().threadpool
        client = redlatch.Client()
        inside = most = counter = 0
        def work(wait):
            global inside, most, counter
            for _ in range(10):
                with client.lock(name):
                    inside += 1
                    most = max(most, inside)
                    before = counter
                    wait(0.001)
                    counter = before + 1
                    inside -= 1
        native = monkey.get_original("time", "sleep")
        for task in [pool.spawn(work, native) for _ in range(5)] + [spawn(work, sleep) for _ in range(5)]:
            wait_for(task)
        print(most, counter)
        """
    assert run(program("gevent", source), name) == "1 100\n"


def test_a_child_of_a_gevent_program_has_its_own_queue(name: str) -> None:
    source = """
        client = redlatch.Client()
        lock = client.lock(name)
        def contend(client):
            total = []
            def work():
                with client.lock(name + ":both", reentrant=True):
                    sleep(0.001)
                    total.append(1)
            for greenlet in [spawn(work) for _ in range(10)]: wait_for(greenlet)
            return len(total)
        with lock:
            assert contend(client) == 10
            child = os.fork()
            if child == 0:
                try: lock.acquire()
                except redlatch.ForkedError: pass
                with redlatch.Client() as own: os._exit(contend(own))
            assert contend(client) == 10
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """
    assert run(program("gevent", source), name) == "10\n"


@both
def test_a_program_ends_although_greenlets_wait(library: str, name: str) -> None:
    source = """
        client = redlatch.Client()
        lock = client.lock(name)
        lock.acquire()
        for _ in range(5): spawn(client.lock(name).acquire)
        eventually(lambda: client.stats()["waiting"] == 5)
        print("ends")
        """
    assert run(program(library, source), name) == "ends\n"
    with redis.Redis.from_url(os.environ["REDLATCH_URL"]) as look:
        assert not look.exists(name), "what it held is released"


def test_a_gevent_loop_with_nothing_else_to_do_ends(name: str) -> None:
    source = """
        client = redlatch.Client()
        def work():
            with client.lock(name): sleep(0.001)
        spawn(work); spawn(work)
        print(gevent.wait(timeout=60))
        """
    assert run(program("gevent", source), name) == "True\n"


@pytest.mark.reads_proc
def test_a_program_without_greenlets_imports_none(name: str) -> None:
    source = """
        import sys
        import redlatch
        with redlatch.Client() as client, client.lock("a"): pass
        print([module for module in ("greenlet", "gevent", "eventlet") if module in sys.modules])
        """
    assert run(source) == "[]\n"


# ---- workers ----

APP = """
    import os, time
    import redis, redlatch

    client = redlatch.Client()
    look = redis.Redis.from_url(os.environ["REDLATCH_URL"])

    def count():
        with client.lock("{name}", timeout=60):
            before = int(look.get("{name}:counter") or 0)
            time.sleep(0.001)
            look.set("{name}:counter", before + 1)
        look.incr("{name}:done")
        return next(line for line in open("/proc/self/status") if "SigBlk" in line)
    """


def listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as connection:
        return connection.connect_ex(str(path)) == 0


def ends(child: subprocess.Popen[bytes], number: signal.Signals) -> int:
    child.send_signal(number)
    return child.wait(LIMIT)


@contextmanager
def worker(folder: Path, name: str, app: str, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    (folder / "app.py").write_text(textwrap.dedent(APP.format(name=name)) + textwrap.dedent(app))
    log = folder / "log"
    with log.open("wb") as into:
        child = subprocess.Popen(
            [sys.executable, "-m", *command], cwd=folder, stdout=into, stderr=into, start_new_session=True
        )
    try:
        yield child
    except BaseException:
        print(log.read_text())
        raise
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_gunicorn_s_gevent_workers_count_exactly(
    number: signal.Signals, tmp_path: Path, name: str, look: redis.Redis
) -> None:
    app = """
        def app(environ, start_response):
            start_response("200 OK", [])
            return [count().encode()]
        """
    path = tmp_path / "socket"
    # A worker that ignores the signal is not killed before the test gives up.
    options = [
        "--workers=2",
        f"--bind=unix:{path}",
        "--graceful-timeout=600",
        "--timeout=600",
        "--no-control-socket",
    ]

    def get(_: int) -> str:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(LIMIT)
            connection.connect(str(path))
            connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
            return b"".join(iter(lambda: connection.recv(4096), b"")).decode()

    with worker(tmp_path, name, app, "gunicorn", "--worker-class=gevent", *options, "app:app") as child:
        eventually(lambda: listens(path), "gunicorn listens")
        with ThreadPoolExecutor(20) as pool:
            answers = list(pool.map(get, range(100)))
        assert {answer.rpartition("SigBlk:")[2].strip() for answer in answers} == {"0" * 16}
        assert look.get(f"{name}:counter") == "100"
        assert ends(child, number) == 0


@pytest.mark.reads_proc
@both
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_celery_s_green_pools_count_exactly(
    library: str, number: signal.Signals, tmp_path: Path, name: str, look: redis.Redis
) -> None:
    app = """
        from celery import Celery
        folders = {"data_folder_in": "queue", "data_folder_out": "queue", "control_folder": "control"}
        app = Celery("app", broker="filesystem://")
        app.conf.update(broker_transport_options=folders, worker_prefetch_multiplier=1, task_ignore_result=True)
        task = app.task(name="count")(count)
        """
    for folder in ("queue", "control"):
        (tmp_path / folder).mkdir()
    options = ["worker", f"--pool={library}", "--concurrency=20", "--without-gossip", "--without-mingle"]
    with worker(tmp_path, name, app, "celery", "--app=app", *options) as child:
        send = "import app\nfor _ in range(60): app.task.delay()"
        subprocess.run([sys.executable, "-c", send], cwd=tmp_path, check=True, timeout=2 * LIMIT)
        eventually(lambda: look.get(f"{name}:done") == "60", "all tasks have run")
        assert look.get(f"{name}:counter") == "60"
        status = Path(f"/proc/{child.pid}/status").read_text()
        assert re.search(r"SigBlk:\s0{16}\n", status), status
        # Celery itself ends with 1 after Ctrl-C, in every pool.
        assert ends(child, number) == (1 if number == signal.SIGINT else 0)


def test_a_child_of_celery_s_prefork_pool_releases_what_it_holds(
    tmp_path: Path, name: str, look: redis.Redis
) -> None:
    app = """
        from celery import Celery
        folders = {"data_folder_in": "queue", "data_folder_out": "queue", "control_folder": "control"}
        app = Celery("app", broker="filesystem://")
        app.conf.update(broker_transport_options=folders, task_ignore_result=True)

        @app.task(name="take")
        def take(name):
            assert redlatch.Client().lock(name).acquire()
        """
    for folder in ("queue", "control"):
        (tmp_path / folder).mkdir()
    options = ["worker", "--pool=prefork", "--concurrency=1", "--without-gossip", "--without-mingle"]
    with worker(tmp_path, name, app, "celery", "--app=app", *options) as child:
        send = f"import app; app.take.delay({name!r})"
        subprocess.run([sys.executable, "-c", send], cwd=tmp_path, check=True, timeout=2 * LIMIT)
        eventually(lambda: look.exists(name), "the task has the lock")
        assert ends(child, signal.SIGTERM) == 0
    assert not look.exists(name)
