"""Runs each story of examples/ in all languages at once, against one server, and checks what it promises.

Each check is made twice: with one server for all, where the promise has to hold, and with a server for each program,
where their locks cannot see each other: there it has to break, or the check would show nothing.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

import redis
import redlatch
from server import Server

ROOT = Path(os.environ["REDLATCH_ROOT"])
EXAMPLES = ROOT / "examples"
BUILT = Path(os.environ["CARGO_TARGET_DIR"]) / "debug"
LIMIT = 180  # seconds for one check, on a busy machine
ROUNDS = 100  # after so many without a collision something is wrong
PERIOD = 3600  # seconds between two runs of the cron job; nothing here takes that long


# --- the programs ---


def commands(story: str) -> dict[str, list[str]]:
    """How the program of each language is run; asyncio has one where waiting is what it is about."""
    found = {
        "rust": [str(BUILT / story)],
        "python": [sys.executable, str(EXAMPLES / "python" / f"{story}.py")],
        "asyncio": [sys.executable, str(EXAMPLES / "python" / f"{story}_asyncio.py")],
        "node": ["node", str(EXAMPLES / "node" / f"{story}.mjs")],
        "c": [compiled(story)],
    }
    if not Path(found["asyncio"][-1]).exists():
        del found["asyncio"]
    return found


@cache
def compiled(story: str) -> str:
    """Builds the C program against this checkout's header and library."""
    program = BUILT / f"{story}_c"
    library = [f"-I{ROOT}/c-api/include", f"-L{BUILT}", f"-Wl,-rpath,{BUILT}", "-lredlatch", "-lpthread"]
    source = str(EXAMPLES / "c" / f"{story}.c")
    strict = ["-std=c99", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["cc", *strict, source, *library, "-o", str(program)], check=True)
    return str(program)


Programs = dict[str, subprocess.Popen[str]]


@contextmanager
def started(
    story: str, urls: Callable[[], str], *arguments: str, only: tuple[str, ...] = ()
) -> Iterator[Programs]:
    """Starts the programs of all languages, or of some; none is left behind."""
    running: Programs = {}
    try:
        for language, command in commands(story).items():
            if only and language not in only:
                continue
            running[language] = subprocess.Popen(
                [*command, *arguments],
                env={**os.environ, "REDLATCH_URL": urls()},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        yield running
    finally:
        for process in running.values():
            if process.poll() is None:
                process.kill()
            process.communicate()


def all_get(running: Programs, line: str) -> Counter[str]:
    """Gives one line to all programs at once; what they answer."""
    for process in running.values():
        assert process.stdin is not None
        process.stdin.write(f"{line}\n")
        process.stdin.flush()
    answers: Counter[str] = Counter()
    for language, process in running.items():
        assert process.stdout is not None
        word, _, answer = process.stdout.readline().strip().partition(" ")
        assert word == line, f"{language} said {word!r} to {line!r}"
        answers[answer] += 1
    return answers


def all_end(running: Programs) -> Counter[str]:
    """Waits for the end of all, which has to be a good one; the last lines that they said."""
    said: Counter[str] = Counter()
    for language, process in running.items():
        out, _ = process.communicate()
        assert process.returncode == 0, f"{language} ended with code {process.returncode}"
        said[out.strip()] += 1
    return said


# --- where they run ---


@contextmanager
def folder(file: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="redlatch-examples-") as name:
        (Path(name) / file).touch()
        yield Path(name)


@contextmanager
def one_server() -> Iterator[str]:
    with Server() as server:
        yield server.url


@contextmanager
def a_server_each() -> Iterator[Callable[[], str]]:
    """Gives the address of another server each time."""
    with ExitStack() as servers:
        yield lambda: servers.enter_context(Server()).url


def written(path: Path) -> Counter[str]:
    return Counter(path.read_text().split("\n")[:-1])


def keys(url: str) -> list[str]:
    with redis.Redis.from_url(url, decode_responses=True) as look:
        return sorted(look.scan_iter())


def eventually(condition: Callable[[], object]) -> None:
    while not condition():  # the alarm of `check` limits it
        time.sleep(0.005)


# --- hello ---


def each_language_holds_the_lock_in_its_turn() -> None:
    with one_server() as url, started("hello", lambda: url) as running:
        assert all_end(running) == Counter({"held hello": len(running)})
        assert keys(url) == [], keys(url)


# --- one order per user ---

USERS = ["ada", "grace", "edsger", "barbara", "donald", "leslie"]


def each_user_orders_once() -> None:
    with one_server() as url, folder("orders") as shop:
        with started("one_order_per_user", lambda: url, str(shop)) as running:
            for user in USERS:
                answers = all_get(running, user)
                assert answers == {"ordered": 1, "refused": len(running) - 1}, f"{user}: {answers}"
            all_end(running)
        assert written(shop / "orders") == Counter(USERS), written(shop / "orders")
        assert keys(url) == [], keys(url)


def without_a_common_lock_users_order_twice() -> None:
    with (
        a_server_each() as url,
        folder("orders") as shop,
        started("one_order_per_user", url, str(shop)) as running,
    ):
        assert any(all_get(running, f"user{n}")["ordered"] > 1 for n in range(ROUNDS))


# --- each task once ---


def each_task_is_done_once() -> None:
    with one_server() as url, folder("done") as place:
        with started("task_once", lambda: url, str(place)) as running:
            tasks = [str(number) for number in range(1, 9)]
            for task in tasks:
                answers = all_get(running, task)
                assert answers["done"] == 1 and set(answers) <= {"done", "busy", "known"}, answers
            for task in tasks:  # delivered again
                answers = all_get(running, task)
                assert set(answers) <= {"busy", "known"}, answers
            all_end(running)
        assert written(place / "done") == Counter(tasks), written(place / "done")
        assert keys(url) == [], keys(url)


def a_task_that_somebody_is_at_is_left_to_him() -> None:
    with (
        one_server() as url,
        folder("done") as place,
        redlatch.Client(url) as client,
        started("task_once", lambda: url, str(place)) as running,
    ):
        with client.lock("task:7"):
            assert all_get(running, "7") == {"busy": len(running)}
        assert written(place / "done") == Counter()
        assert all_get(running, "7")["done"] == 1


def without_a_common_lock_tasks_are_done_twice() -> None:
    with (
        a_server_each() as url,
        folder("done") as place,
        started("task_once", url, str(place)) as running,
    ):
        assert any(all_get(running, f"task{n}")["done"] > 1 for n in range(ROUNDS))


# --- one refreshes, many read ---


def one_refreshes_and_nobody_sees_half_a_list() -> None:
    with one_server() as url, folder("prices") as shop:
        with started("price_list", lambda: url, str(shop)) as running:
            for wanted in range(1, 21):
                answers = all_get(running, str(wanted))
                assert answers == {"refreshed": 1, "read": len(running) - 1}, f"{wanted}: {answers}"
            all_end(running)
        assert written(shop / "prices") == {"20": 2}, written(shop / "prices")
        assert keys(url) == [], keys(url)


def without_a_common_lock_several_refresh() -> None:
    with (
        a_server_each() as url,
        folder("prices") as shop,
        started("price_list", url, str(shop)) as running,
    ):
        assert any(
            all_get(running, str(wanted)) != {"refreshed": 1, "read": len(running) - 1}
            for wanted in range(1, ROUNDS)
        )


# --- a cron job on one host ---


def run_cron(urls: Callable[[], str], place: Path, *languages: str) -> Counter[str]:
    with started("cron_once", urls, str(place), str(PERIOD), only=languages) as running:
        return all_end(running)


def of_all_hosts_one_runs_the_job() -> None:
    with one_server() as url, folder("reports") as place:
        assert run_cron(lambda: url, place) == {"ran": 1, "skipped": 3}
        assert written(place / "reports").total() == 1


def a_host_that_is_late_does_not_run_the_job_again() -> None:
    with one_server() as url, folder("reports") as place, redis.Redis.from_url(url) as look:
        for language in commands("cron_once"):
            assert run_cron(lambda: url, place, language) == {"ran": 1}, language
            assert run_cron(lambda: url, place) == {"skipped": 4}, f"{language} did not keep the lock"
            assert 0.8 * PERIOD < look.pttl("cron:report") / 1000 < PERIOD
            look.pexpire("cron:report", 1)  # the rest of the period goes by
            eventually(lambda: not look.exists("cron:report"))


def without_a_common_lock_every_host_runs_the_job() -> None:
    with a_server_each() as url, folder("reports") as place:
        assert run_cron(url, place) == {"ran": 4}


def a_job_that_fails_may_be_run_by_the_next_host() -> None:
    with one_server() as url, folder("reports") as place:
        (place / "reports").unlink()
        (place / "reports").mkdir()  # cannot be written to
        for language, command in commands("cron_once").items():
            failed = subprocess.run(
                [*command, str(place), str(PERIOD)],
                env={**os.environ, "REDLATCH_URL": url},
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            assert failed.returncode != 0 and failed.stdout == "", f"{language} said {failed.stdout!r}"
            assert keys(url) == [], f"{language} left {keys(url)}"


# --- running the checks ---

CHECKS = [
    each_language_holds_the_lock_in_its_turn,
    each_user_orders_once,
    without_a_common_lock_users_order_twice,
    each_task_is_done_once,
    a_task_that_somebody_is_at_is_left_to_him,
    without_a_common_lock_tasks_are_done_twice,
    one_refreshes_and_nobody_sees_half_a_list,
    without_a_common_lock_several_refresh,
    of_all_hosts_one_runs_the_job,
    a_host_that_is_late_does_not_run_the_job_again,
    without_a_common_lock_every_host_runs_the_job,
    a_job_that_fails_may_be_run_by_the_next_host,
]


def too_long(_number: int, _frame: object) -> None:
    raise TimeoutError(f"not within {LIMIT} s")


def main() -> int:
    signal.signal(signal.SIGALRM, too_long)
    passed = failed = 0
    for check in CHECKS:
        began = time.monotonic()
        signal.alarm(LIMIT)
        try:
            check()
        except Exception:
            failed += 1
            print(f"FAILED {check.__name__}\n{traceback.format_exc()}", flush=True)
        else:
            passed += 1
            print(f"ok {check.__name__} ({time.monotonic() - began:.1f} s)", flush=True)
        finally:
            signal.alarm(0)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
