"""Programs that block the interpreter, are interrupted, fork and exit: each one in a process of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis
import redlatch
from conftest import LIMIT, RENEWED, Server, eventually, run, script

# ---- the process in CLIENT LIST ----


def test_connections_are_named_after_the_process(client: redlatch.Client, look: redis.Redis) -> None:
    client.connect()
    names = [connection["name"] for connection in look.client_list()]
    assert [name for name in names if f";lang=python;pid={os.getpid()};host=" in name]


# ---- the watchdog ----

HOLD_THE_GIL = """
    import ctypes, sys, time
    import redlatch

    lease = float(sys.argv[2])
    client = redlatch.Client(watchdog_lease=lease)
    with client.lock(sys.argv[1]) as grant:
        started = time.monotonic()
        ctypes.PyDLL(None).usleep(int(1.5 * lease * 1e6))  # unlike CDLL, it keeps the GIL
        assert time.monotonic() - started > 1.4 * lease
        grant.check()
        print(time.monotonic())
    assert client.stats()["lost"] == 0
"""


def test_a_hold_survives_a_gil_that_is_held_for_longer_than_its_lease(
    name: str, look: redis.Redis, client: redlatch.Client
) -> None:
    with ThreadPoolExecutor(1) as pool:
        program = pool.submit(run, HOLD_THE_GIL, name, str(RENEWED))
        eventually(lambda: look.exists(name))
        with client.lock(name, timeout=LIMIT):  # tries all the while
            acquired = time.monotonic()
        assert acquired > float(program.result())


# ---- limits ----

WITHOUT_THREADS = """
    import asyncio, os, resource, sys
    import redlatch, redlatch.aio

    def refused(error):
        assert isinstance(error, redlatch.UnavailableError), repr(error)
        assert error.retryable and "raise the limits of the process" in str(error), error

    async def tries():
        async with redlatch.aio.Client() as client:
            try:
                await client.lock(sys.argv[1]).acquire()
            except BaseException as error:
                refused(error)

    # The limit does not bind root, and counts all threads of a user.
    if os.getuid() == 0:
        os.setuid(64_000 + os.getpid() % 1_000)
    before, most = resource.getrlimit(resource.RLIMIT_NPROC)
    resource.setrlimit(resource.RLIMIT_NPROC, (1, most))
    client = redlatch.Client()
    try:
        client.lock(sys.argv[1]).acquire()
    except BaseException as error:
        refused(error)
    asyncio.run(tries())
    resource.setrlimit(resource.RLIMIT_NPROC, (before, most))
    with client.lock(sys.argv[1]):
        print("held")
"""


def test_a_moment_without_threads_is_an_outage(name: str) -> None:
    assert run(WITHOUT_THREADS, name) == "held\n"


# ---- Ctrl-C ----

WAIT = """
    import signal, sys, time
    import redlatch

    # A shell starts what runs in the background with Ctrl-C ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    client = redlatch.Client(recheck=float(sys.argv[3]))
    lock = client.lock(sys.argv[1])
    try:
        print("waiting", flush=True)
        lock.acquire() if sys.argv[2] == "acquire" else lock.__enter__()
    except KeyboardInterrupt:
        while client.stats()["waiting"]:
            time.sleep(0.001)
        print("interrupted")
"""


@pytest.mark.parametrize("how", ["acquire", "with"])
def test_ctrl_c_ends_a_wait(how: str, name: str, look: redis.Redis) -> None:
    """Nothing but the signal ends it within the limit: neither a look by itself nor the end of the holder's lease."""
    rare = 20 * LIMIT
    with redlatch.Client(watchdog_lease=rare) as client, client.lock(name):
        for _ in range(5):
            command = [*script(WAIT), name, how, str(rare)]
            waiting = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            try:
                assert waiting.stdout is not None and waiting.stdout.readline() == "waiting\n"
                eventually(lambda: look.pubsub_channels(f"*{name}*"), "it waits")
                waiting.send_signal(signal.SIGINT)
                assert waiting.communicate(timeout=LIMIT)[0] == "interrupted\n"
                assert waiting.returncode == 0
            finally:
                waiting.kill()
                waiting.communicate()
            eventually(lambda: not look.pubsub_channels(f"*{name}*"))
    assert not look.exists(name)


HANDLE = """
    import signal, sys
    import redlatch

    handled = []
    signal.signal(signal.SIGALRM, lambda *_: handled.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
    lock = redlatch.Client().lock(sys.argv[1])
    while len(handled) < 6:
        assert not lock.acquire(timeout=0.5)
    signal.setitimer(signal.ITIMER_REAL, 0)
"""


def test_a_handled_signal_does_not_end_a_wait(name: str, client: redlatch.Client) -> None:
    with client.lock(name):
        run(HANDLE, name)


WAIT_IN_THREADS = """
    import os, sys, threading, time
    import redlatch

    def switches():
        # How often all threads have woken up.
        found = 0
        for task in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{task}/status") as status:
                found += sum(int(line.split()[1]) for line in status if line.startswith("voluntary_ctxt"))
        return found

    client = redlatch.Client().connect()
    client.lock(sys.argv[1] + "'").locked()
    before = len(os.listdir("/proc/self/fd"))
    threads = [threading.Thread(target=client.lock(sys.argv[1]).acquire) for _ in range(100)]
    for thread in threads:
        thread.start()
    while client.stats()["waiting"] < 100:
        time.sleep(0.01)
    assert len(os.listdir("/proc/self/fd")) < before + 50
    counted = switches()
    time.sleep(2)  # eight times a quarter of a second
    assert switches() - counted < 400, switches() - counted
    client.close()
    for thread in threads:
        thread.join()
"""


@pytest.mark.reads_proc
def test_threads_that_waited_took_the_gil_four_times_a_second_and_a_descriptor_each(
    name: str, client: redlatch.Client
) -> None:
    with client.lock(name):
        run(
            "import threading\nthreading.excepthook = lambda _: None  # closed\n"
            + textwrap.dedent(WAIT_IN_THREADS),
            name,
        )


# ---- exit ----

EXITS = {
    "held": "lock.acquire()",
    "in a block": "grant = lock.__enter__()",
    "waiting threads": """
for _ in range(8):
    threading.Thread(target=waiter.acquire, daemon=True).start()
while other.stats()["waiting"] < 8:
    time.sleep(0.001)
lock.acquire()
""",
    "busy threads": """
def work():
    mine = client.lock(sys.argv[1] + str(threading.get_ident()))
    while True:
        try:
            with mine:
                mine.locked()
        except redlatch.LockError:
            pass
for _ in range(8):
    threading.Thread(target=work, daemon=True).start()
lock.acquire()
time.sleep(0.05)
""",
    "a thread that leaves a block": """
class Slow(Exception):
    def add_note(self, note):  # runs in the end of the block
        noting.set()
        while not redlatch._dispatcher.dispatcher.exiting:
            pass
        for _ in range(3_000_000):
            pass
noting = threading.Event()
def work():
    mine = client.lock(sys.argv[1] + "-mine")
    try:
        with mine:
            mine.force_release()
            raise Slow
    except Slow:
        pass
threading.Thread(target=work, daemon=True).start()
noting.wait()
lock.acquire()
""",
    "losing threads": """
def told(lost):
    while True:
        lost.reason
held = [client.lock(sys.argv[1] + str(number), on_lost=told).__enter__() for number in range(8)]
client.lock(sys.argv[1] + "0").force_release()
lock.acquire()
""",
    "asyncio": """
async def main():
    global tasks
    tasks = [asyncio.create_task(awaiter.acquire()) for _ in range(8)]
    while another.stats()["waiting"] < 8:
        await asyncio.sleep(0.001)
asyncio.run(main())
lock.acquire()
""",
    "a loop that runs": """
async def main():
    tasks = [asyncio.create_task(awaiter.acquire()) for _ in range(8)]
    async with another.lock(sys.argv[1] + "''"):
        started.set()
        await asyncio.sleep(60)
started = threading.Event()
threading.Thread(target=asyncio.run, args=(main(),), daemon=True).start()
started.wait()
lock.acquire()
""",
    "an exception": "lock.acquire(); raise SystemExit(0)",
}

EXITS["everything"] = "\n".join(
    EXITS[how] for how in ("waiting threads", "busy threads", "a loop that runs", "asyncio")
)

EXIT = """
import asyncio, sys, threading, time
import redlatch
from redlatch import aio

client, other, another = redlatch.Client(), redlatch.Client(), aio.Client()
lock = client.lock(sys.argv[1] + "'", reentrant=True)
waiter, awaiter = (one.lock(sys.argv[1]) for one in (other, another))
keeper = redlatch.Client()
if sys.argv[2] == "keep":
    kept = keeper.lock(sys.argv[1]).__enter__()
"""


@pytest.mark.parametrize("how", EXITS)
def test_exit_with_locks_held_and_waits_pending(how: str, name: str, look: redis.Redis) -> None:
    keep = "keep" if "aiter" in EXITS[how] else "free"
    times = 20 if how == "everything" else 3
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(run, EXIT + EXITS[how], f"{name}:{turn}", keep) for turn in range(times)]
        for done in runs:
            done.result()
    eventually(lambda: not look.keys(f"{name}*"), "all was released")


FIRST_USE_IN_DEL = """
    import os
    import redlatch

    class Late:
        def __del__(self):
            try:
                redlatch.Client().lock("late").acquire(False)
            except redlatch.ClosedError as error:
                os.write(1, b"refused")

    late = Late()
"""


def pythons() -> list[str]:
    """This Python, and the others of the machine that load the same module."""
    others = [shutil.which(f"python3.{minor}") for minor in range(10, 16)]
    runs = [
        path
        for path in others
        if path and subprocess.run([path, "-c", ""], capture_output=True).returncode == 0
    ]
    return [sys.executable, *runs]


@pytest.mark.parametrize("python", pythons(), ids=lambda path: Path(path).name)
def test_the_first_use_in_a_finalizer_at_exit_is_refused(python: str) -> None:
    """Before Python 3.12 it never returned: a thread that is started then never runs."""
    where = {**os.environ, "PYTHONPATH": str(Path(redlatch.__file__).parents[1])}
    command = [python, "-c", textwrap.dedent(FIRST_USE_IN_DEL)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=4 * LIMIT, env=where)
    assert (ended.returncode, ended.stdout) == (0, "refused"), ended.stdout + ended.stderr


@pytest.mark.parametrize("library", ["multiprocessing", "billiard"])
def test_a_child_of_multiprocessing_releases_what_a_collected_client_holds(
    library: str, name: str, look: redis.Redis
) -> None:
    """billiard is what Celery has in place of multiprocessing; its tasks may start processes by it."""
    pytest.importorskip(library)
    run(
        f"""
        import gc, {library}, sys
        import redlatch

        def work(name):
            assert redlatch.Client().lock(name).acquire(False)
            gc.collect()
            assert redlatch.Client().lock(name).locked()

        if __name__ == "__main__":
            child = {library}.get_context("fork").Process(target=work, args=(sys.argv[1],))
            child.start()
            child.join()
            sys.exit(child.exitcode)
        """,
        name,
    )
    assert not look.exists(name)


def test_a_record_that_is_being_written_at_exit_is_waited_for(name: str, look: redis.Redis) -> None:
    """`logging` closed its handlers while the dispatcher's thread wrote to one: under gevent its lock broke."""
    source = """
        import atexit, logging, os, sys, threading
        ended, writing = threading.Event(), threading.Event()
        class Handler(logging.Handler):
            def emit(self, record):
                writing.set()
                while not dispatcher.exiting:
                    ended.wait(0.001)
                print("ended before" if ended.wait(0.5) else "written")
        # Registered first, so it is called last.
        atexit.register(lambda: (ended.set(), print("ended")))
        import redis, redlatch
        from redlatch._dispatcher import dispatcher
        logging.getLogger("redlatch").addHandler(Handler())
        client = redlatch.Client()
        lock = client.lock(sys.argv[1])
        lock.acquire()
        lock.force_release()
        writing.wait()
    """
    assert run(source, name).splitlines() == ["written", "ended"]


def test_an_exit_limit_of_0_leaves_what_is_held_to_its_lease(name: str, look: redis.Redis) -> None:
    run(
        """
        import sys
        import redlatch

        client = redlatch.Client(exit_limit=0)
        assert client.lock(sys.argv[1]).acquire(blocking=False, lease=60)
        """,
        name,
    )
    assert 0 < look.pttl(name) <= 60_000


def test_exit_is_quick_with_a_server_that_does_not_answer(name: str) -> None:
    # One attempt to connect may take longer than `run` waits.
    run(
        """
        import socket, threading, redlatch
        silent = socket.create_server(("127.0.0.1", 0))
        for number in range(4):
            client = redlatch.Client(f"redis://127.0.0.1:{silent.getsockname()[1]}", connect_timeout=300)
            threading.Thread(target=client.lock(str(number)).acquire, daemon=True).start()
        connection = silent.accept()
        """
    )


@pytest.mark.parametrize("face", ["threads", "asyncio"])
def test_a_server_that_never_answered_is_not_taken_for_a_holder(face: str) -> None:
    run(
        """
        import asyncio, socket, sys
        import redlatch, redlatch.aio

        silent = socket.create_server(("127.0.0.1", 0))
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}"

        def told(error):
            assert "no connection to the server within 1.2s" in str(error), error

        def threads():
            client = redlatch.Client(url, connect_timeout=60)
            try:
                client.lock("n").acquire(timeout=1.2)
            except redlatch.UnavailableError as error:
                told(error)
            try:
                with client.lock("n", timeout=1.2):
                    pass
            except redlatch.UnavailableError as error:
                return told(error)
            raise AssertionError("no error")

        async def tasks():
            client = redlatch.aio.Client(url, connect_timeout=60)
            try:
                await client.lock("n").acquire(timeout=1.2)
            except redlatch.UnavailableError as error:
                return told(error)
            raise AssertionError("no error")

        threads() if sys.argv[1] == "threads" else asyncio.run(tasks())
        """,
        face,
    )


def test_a_paused_server_is_not_taken_for_a_holder(name: str, own_server: Server) -> None:
    with (
        redlatch.Client(own_server.url, close_limit=0) as client,
        redis.Redis(port=own_server.port) as look,
    ):
        assert not client.lock(name).locked()
        look.client_pause(int(4 * LIMIT * 1000))  # itself included: nothing can end it earlier
        with pytest.raises(redlatch.UnavailableError, match=r"did not answer within 1\.2s"):
            client.lock(name).acquire(timeout=1.2)


# ---- fork ----

FORK = """
    import faulthandler, os, signal, sys, traceback
    import redlatch

    # A child that hangs says where, and ends.
    faulthandler.register(signal.SIGALRM, chain=True)

    def in_child(function):
        child = os.fork()
        if not child:
            signal.alarm(30)
            try:
                function()
                os._exit(0)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    def refused(call):
        try:
            call()
        except redlatch.ForkedError as error:
            assert isinstance(error, RuntimeError) and "new client" in str(error), error
        else:
            raise AssertionError(f"{call} did not say that it is forked")

    client = redlatch.Client()
    name = sys.argv[1]
    lock = client.lock(name, reentrant=True)
"""


def test_a_child_cannot_touch_what_its_parent_holds(name: str, look: redis.Redis) -> None:
    run(
        FORK
        + """
    def child():
        for call in (lock.acquire, lock.locked, lock.force_release, client.connect, grant.check):
            refused(call)
        refused(lambda: lock.extend(1))
        assert not lock.owned() and lock.remaining == 0 and not grant.held
        lock.release()  # what is inherited is the parent's: nothing happens
        client.close()
        with redlatch.Client() as own:
            assert not own.lock(name).acquire(False)
            with own.lock(name + "'") as another:
                another.check()

    with lock as grant:
        in_child(child)
        lock.acquire()
        # The child leaves the block that it inherited.
        in_child(lambda: lock.__exit__(None, None, None))
        lock.release()
        grant.check()
        assert client.lock(name).hold_count == 1

        def grandchild():
            in_child(child)
            with redlatch.Client() as own, own.lock("of the child"):
                in_child(child)
        in_child(grandchild)
        grant.check()
    client.close()
    """,
        name,
    )
    assert not look.exists(name)


def test_the_exit_of_a_child_releases_nothing_of_its_parent(name: str, look: redis.Redis) -> None:
    run(
        FORK
        + """
    lock.acquire()
    child = os.fork()
    if not child:
        sys.exit(0)  # with all that belongs to an exit
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert lock.owned() and lock.locked()
    """,
        name,
    )
    assert not look.exists(name)


def test_fork_while_other_threads_wait(name: str) -> None:
    run(
        FORK
        + """
    import threading, time, warnings
    warnings.simplefilter("ignore", DeprecationWarning)

    def work(number):
        mine = client.lock(f"{name}:{number % 4}")
        while not done:
            with mine:
                pass

    client.connect()
    done = False
    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(8)]
    for thread in threads:
        thread.start()

    def child():
        refused(lock.acquire)
        with redlatch.Client() as own, own.lock(name):
            pass

    for _ in range(20):
        in_child(child)
    done = True
    for thread in threads:
        thread.join()
    client.close()
    """,
        name,
    )


def test_a_fork_finds_no_value_that_another_thread_is_making() -> None:
    """PyO3's cells are such values. A child found one of them half made, and waited for it for ever."""
    run(
        FORK
        + """
    import asyncio, builtins, threading, warnings
    warnings.simplefilter("ignore", DeprecationWarning)

    def slow_import(module, *rest):
        # The first look at the task of a caller imports asyncio.
        if module == "asyncio" and threading.current_thread() is thread:
            making.set()
            forked.wait()
        return known_import(module, *rest)

    def ask():
        assert not lock.owned()
        asked.set()

    making, forked, asked = (threading.Event() for _ in range(3))
    thread = threading.Thread(target=ask, daemon=True)
    client.connect()
    known_import, builtins.__import__ = builtins.__import__, slow_import
    thread.start()
    making.wait()
    try:
        in_child(lock.owned)
    finally:
        forked.set()
    thread.join()
    assert asked.is_set()
    client.close()
    """,
        "n",
    )


def test_a_client_that_was_not_used_before_the_fork_works_in_the_child(name: str) -> None:
    run(
        FORK
        + """
    def child():
        told = []
        with client.lock(name, on_lost=told.append) as grant:
            grant.check()
        with client:
            pass
    for _ in range(3):
        in_child(child)
    with lock:
        pass
    client.close()
    """,
        name,
    )


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing(method: str, name: str, look: redis.Redis, tmp_path: object) -> None:
    path = f"{tmp_path}/program.py"
    with open(path, "w") as program:
        program.write("""
import multiprocessing, sys
import redlatch

client = redlatch.Client()

def add(path, name):
    for _ in range(25):
        with client.lock(name):
            with open(path) as counter:
                count = int(counter.read())
            with open(path, "w") as counter:
                counter.write(str(count + 1))
    client.lock(name + "'").acquire(False)  # still held as the process ends

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    path, name = sys.argv[2:]
    with open(path, "w") as counter:
        counter.write("0")
    workers = [context.Process(target=add, args=(path, name)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert open(path).read() == "100"
""")
    command = [sys.executable, path, method, f"{tmp_path}/counter", name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=4 * LIMIT)
    assert done.returncode == 0, done.stdout + done.stderr
    eventually(lambda: not look.exists(name, name + "'"))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_child_of_multiprocessing_ends_beside_an_idle_executor(
    method: str, name: str, tmp_path: object
) -> None:
    """It waited for the threads of the executor for ever, and then for its own log once more."""
    path = f"{tmp_path}/program.py"
    with open(path, "w") as program:
        program.write("""
import multiprocessing, sys
from concurrent.futures import ThreadPoolExecutor
import redlatch
from redlatch import _dispatcher

pool = ThreadPoolExecutor(1)  # nobody shuts it down

def work(name):
    _dispatcher.STOP_LIMIT = 3600.0
    assert pool.submit(int).result() == 0
    assert redlatch.Client().lock(name).acquire(False)

if __name__ == "__main__":
    child = multiprocessing.get_context(sys.argv[1]).Process(target=work, args=(sys.argv[2],))
    child.start()
    child.join()
    assert child.exitcode == 0
""")
    done = subprocess.run(
        [sys.executable, path, method, name], capture_output=True, text=True, timeout=4 * LIMIT
    )
    assert done.returncode == 0, done.stdout + done.stderr


PREFORK = """
    # A server that loads the application once and forks its workers, as gunicorn --preload does.
    import os, signal, socket, sys
    import redlatch

    client = redlatch.Client()          # the application: loaded before the fork, used after it
    lock = client.lock(sys.argv[1])

    def answer(connection):
        with connection:
            request = connection.recv(100)
            if request == b"quit":
                os.kill(os.getppid(), signal.SIGTERM)
            with lock as grant:
                grant.check()
                connection.sendall(f"{os.getpid()}".encode())

    listener = socket.create_server(("127.0.0.1", 0), backlog=100)
    print(listener.getsockname()[1], flush=True)
    workers = []
    for _ in range(3):
        worker = os.fork()
        if not worker:
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
            while True:
                answer(listener.accept()[0])
        workers.append(worker)

    def stop(*_):
        for worker in workers:
            os.kill(worker, signal.SIGTERM)
        codes = [os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]) for worker in workers]
        sys.exit(max(codes))

    signal.signal(signal.SIGTERM, stop)
    while True:
        signal.pause()
"""


def test_a_prefork_server(name: str, look: redis.Redis) -> None:
    import socket

    master = subprocess.Popen(
        [*script(PREFORK), name], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert master.stdout is not None
        port = int(master.stdout.readline())

        def ask(_: int) -> str:
            with socket.create_connection(("127.0.0.1", port), LIMIT) as connection:
                connection.sendall(b"work")
                return connection.recv(100).decode()

        with ThreadPoolExecutor(8) as pool:
            assert all(int(answer) != master.pid for answer in pool.map(ask, range(60)))
        master.terminate()
        _, errors = master.communicate(timeout=LIMIT)
    finally:
        if master.poll() is None:
            master.kill()
            master.communicate()
    assert master.returncode == 0 and "Traceback" not in errors, errors
    assert not look.exists(name)


@pytest.mark.reads_proc
def test_an_import_starts_nothing() -> None:
    run(
        """
        import os, redlatch
        from redlatch import aio
        lock = redlatch.Client().lock("a")
        awaiting = aio.Client().lock("a")
        assert len(os.listdir("/proc/self/task")) == 1
        """
    )


def test_a_module_that_is_imported_again_works(name: str) -> None:
    """`patch.dict` on `sys.modules` takes out what was imported meanwhile."""
    program = """
        import asyncio, sys
        from unittest.mock import patch

        with patch.dict("sys.modules"):
            import redlatch as first
        import redlatch, redlatch.aio

        async def waits():
            async with redlatch.aio.Client() as client, client.lock(sys.argv[1]):
                pass

        assert redlatch is not first
        asyncio.run(waits())
        for module in (first, redlatch):
            with module.Client() as client:
                with client.lock(sys.argv[1]):
                    pass
                for errors in (first, redlatch):
                    try:
                        client.lock(sys.argv[1]).release()
                    except errors.NotOwnerError:
                        print("told")
    """
    assert run(program, name) == "told\n" * 4


def test_a_second_interpreter_is_refused_and_the_first_works_on(name: str) -> None:
    module = "_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters"
    pytest.importorskip(module)
    program = f"""
        import {module} as interpreters, sys, redlatch
        other = interpreters.create()
        source = (
            "try:\\n    import redlatch\\n"
            "except ImportError as error:\\n    print('refused:', error)\\n"
        )
        interpreters.run_string(other, source)
        interpreters.destroy(other)
        with redlatch.Client().lock(sys.argv[1]):
            print("held")
        """
    refused, held = run(program, name).splitlines()
    assert refused.startswith("refused:") and "does not support loading in" in refused and held == "held"


def test_a_client_that_goes_after_its_modules_were_cleared_says_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in a worker of uWSGI that ends: each printed "Exception ignored in BaseClient.__del__"."""
    client, told = redlatch.Client(), []
    client._start()
    monkeypatch.setattr("sys.unraisablehook", told.append)
    with monkeypatch.context() as cleared:
        cleared.setattr("redlatch._dispatcher.dispatcher", None)
        del client
    assert not told
