"""One act of the fault matrix, in Python with threads; see README.md for the acts."""

from __future__ import annotations

import gc
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import redlatch
from act import (
    PATIENCE,
    Act,
    at_rest,
    ensure,
    eventually,
    hold_the_gil,
    in_child,
    main,
    ready,
    renewed,
    say,
    say_resources,
    shares,
)


def open_client(act: Act) -> redlatch.Client:
    return redlatch.Client(act.url, watchdog_lease=act.lease).connect()


def start(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def works(act: Act, client: redlatch.Client) -> None:
    """The same client goes on as if nothing had happened."""
    with client.lock(act.lock, timeout=PATIENCE) as grant:
        ensure(grant.hold_count == 1, "the count is another one")
    at_rest(client)
    say("done")
    client.close()


# ---- parts of the process end ----


def fork(act: Act) -> None:
    client = open_client(act)
    lock, entered = client.lock(act.lock), client.lock(f"{act.lock}:entered")
    lock.acquire()
    grant = entered.__enter__()
    waiting = start(lambda: client.lock(act.busy).acquire() and client.close())
    eventually("nobody waits", lambda: client.stats()["waiting"] == 1)

    def child() -> None:
        for call in (lock.acquire, lock.locked, grant.check):
            try:
                call()
            except redlatch.ForkedError:
                continue
            ensure(False, f"{call} does not say that it is forked")
        ensure(not lock.owned() and not grant.held, "the child believes that it holds")
        lock.release()
        grant.release()
        with redlatch.Client(act.url) as own:
            ensure(not own.lock(act.lock).acquire(blocking=False), "the child took what its parent holds")
            with own.lock(f"{act.lock}:child"):
                pass

    in_child(child)
    ready()
    renewed(client, 3)
    ensure(lock.owned() and lock.hold_count == 1 and grant.held, "the parent does not hold any more")
    lock.release()
    entered.__exit__(None, None, None)
    waiting.join(PATIENCE)
    ensure(not waiting.is_alive(), "what the parent waits for does not come")


def leave(act: Act) -> None:
    client = open_client(act)
    client.lock(act.lock).acquire()
    grant = client.lock(f"{act.lock}:entered").__enter__()
    for _ in range(2):
        start(client.lock(act.busy).acquire)
    eventually("nobody waits", lambda: client.stats()["waiting"] == 2)
    ready()
    if act.name == "exit-exit":
        sys.exit(3)
    if act.name == "exit-exception":
        raise RuntimeError(f"on purpose, with {grant}")


def owner_ends(act: Act) -> None:
    client = open_client(act)

    def hold() -> None:
        client.lock(act.lock).acquire()
        ready()

    start(hold).join()
    say("ended")
    works(act, client)


def collected(act: Act) -> None:
    client = open_client(act)
    client.lock(act.lock).__enter__()
    ready()
    gc.collect()
    # Until then this thread would enter it again.
    at_rest(client)
    works(act, client)


def gil(act: Act) -> None:
    client = open_client(act)
    with client.lock(act.lock) as grant:
        ready()
        hold_the_gil(3 * act.lease)
        grant.check()
        ready()
    ensure(client.stats()["lost"] == 0, "something was lost")
    works(act, client)


# ---- cancelling ----


def interrupt_after(delay: float) -> None:
    """SIGINT for the main thread, some time from now."""
    signal.setitimer(signal.ITIMER_REAL, max(delay, 1e-6))


def instants(act: Act) -> None:
    """KeyboardInterrupt some time after the call began, from nothing to longer than it takes."""
    client, other = open_client(act), open_client(act)
    lock, others = client.lock(act.lock), other.lock(act.lock)
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    ready()
    granted = cancelled = 0
    for turn in range(act.size):
        release = threading.Event()
        if turn % 2:
            held = threading.Event()
            start(lambda held=held, release=release: hold_until(others, held, release))
            held.wait(PATIENCE)
        try:
            interrupt_after(act.lease / 400 * turn / act.size)
            release.set()
            with lock:
                granted += 1
                time.sleep(act.lease / 200)  # the signal comes here, if it has not come before
        except KeyboardInterrupt:
            cancelled += 1
        ensure(not lock.owned() or leftover(lock), "an interrupted block still holds")
    say(f"granted {granted} interrupted {cancelled}")
    works(act, client)


def leftover(lock: redlatch.Lock) -> bool:
    """What an interruption between two bytecodes left is nobody's: collected, it is not renewed any more."""
    gc.collect()
    eventually("an interrupted block still holds", lambda: not lock.owned())
    return True


def hold_until(lock: redlatch.Lock, held: threading.Event, release: threading.Event) -> None:
    with lock:
        held.set()
        release.wait(PATIENCE)


def race(act: Act) -> None:
    """One level is given back by another thread while the owner acquires the next one."""
    client = open_client(act)
    lock = client.lock(act.lock, reentrant=True)
    ready()
    with ThreadPoolExecutor(1) as pool:
        for turn in range(act.size):
            first, second = lock.__enter__(), lock.__enter__()
            releasing = pool.submit(second.release)
            time.sleep(turn % 20 * 1e-5)
            ensure(lock.acquire(), "re-entry is refused")
            releasing.result(PATIENCE)
            counts = (lock.hold_count, getattr(lock.holder(), "count", 0))
            ensure(counts == (2, 2), f"client and server count {counts}, and not 2")
            lock.release()
            for _ in (first, second):
                lock.__exit__(None, None, None)
            ensure(lock.holder() is None, "the lock stays")
    works(act, client)


# ---- scale ----


def waiters(act: Act) -> None:
    """All wait for one name and are served one after the other; then all wait again until their time is over."""
    client, other = open_client(act), open_client(act)
    threading.stack_size(256 * 1024)
    ready()
    for turn in range(3):
        wait_and_be_served(act, client, other)
        wait_in_vain(act, client, other)
        at_rest(client)
        gc.collect()
        say_resources("after" if turn else "before")
    works(act, client)


def wait_and_be_served(act: Act, client: redlatch.Client, other: redlatch.Client) -> None:
    answers: list[bool] = []

    def served() -> None:
        with client.lock(act.lock):
            answers.append(True)

    with other.lock(act.lock):
        threads = [start(served) for _ in range(act.size)]
        eventually("not all wait", lambda: client.stats()["waiting"] == act.size)
    for thread in threads:
        thread.join(PATIENCE)
    ensure(len(answers) == act.size, f"{len(answers)} of {act.size} were served")


def wait_in_vain(act: Act, client: redlatch.Client, other: redlatch.Client) -> None:
    answers: list[bool] = []
    limit = 2 + act.size / 500

    def refused() -> None:
        answers.append(client.lock(act.lock).acquire(timeout=limit))

    with other.lock(act.lock):
        threads = [start(refused) for _ in range(act.size)]
        for thread in threads:
            thread.join(limit + PATIENCE)
    ensure(answers == [False] * act.size, f"{len(answers)} of {act.size} ended, {sum(answers)} with the lock")


def holds(act: Act) -> None:
    client = open_client(act)
    ready()
    locks = [client.lock(f"{act.lock}:{number}") for number in range(act.size)]
    grants = [lock.__enter__() for lock in locks]
    say("held")
    for _ in range(3):
        renewed(client, act.size)
    kept = sum(grant.held for grant in grants)
    ensure(kept == act.size and client.stats()["lost"] == 0, f"{kept} of {act.size} are held")
    ready()
    for lock in locks:
        lock.__exit__(None, None, None)
    works(act, client)


def names(act: Act) -> None:
    """Each name is used once. What grows while the second half is used grows with the names."""
    client = open_client(act)
    ready()
    for half, numbers in enumerate(shares(act.size, act.size // 2)[:2]):
        for number in numbers:
            with client.lock(f"{act.lock}:{number}"):
                pass
        at_rest(client)
        gc.collect()
        say_resources("after" if half else "before")
    works(act, client)


ACTS: dict[str, Callable[[Act], None]] = {
    "fork": fork,
    "exit-return": leave,
    "exit-exit": leave,
    "exit-exception": leave,
    "owner-ends": owner_ends,
    "collected": collected,
    "gil": gil,
    "cancel-instants": instants,
    "race": race,
    "waiters": waiters,
    "holds": holds,
    "names": names,
}

if __name__ == "__main__":
    sys.exit(main(lambda act: ACTS[act.name](act)))
