"""The other commands, and wrong usage."""

from __future__ import annotations

import json
import os
import pty
import re
import resource
import select
import shutil
import signal
import subprocess
import termios
import time
from pathlib import Path

import pytest
import redis
from conftest import LIMIT, PROGRAM, ROOT, Start, ended, line, run
from server import Server, eventually


@pytest.fixture
def held(name: str, look: redis.Redis) -> str:
    look.hset(name, "somebody:1", 2)
    look.pexpire(name, 600_000)
    return name


def test_who_shows_the_holder(held: str, look: redis.Redis) -> None:
    done = run("who", held)
    assert done.returncode == 0
    assert re.fullmatch(
        rf"{re.escape(held)} is held by somebody:1, 2 levels, ends in \d+ min \d+ s unless it is renewed\n",
        done.stdout,
    )
    shown = json.loads(run("who", "--json", held).stdout)
    assert 0 < shown.pop("remaining_ms") <= 600_000
    holder = {"owner": "somebody:1", "levels": 2, "client": None}
    assert shown == {
        "name": held,
        "held": True,
        "kind": "reentrant",
        "holders": [holder],
        "more": False,
        "waiting": 0,
    }
    look.persist(held)
    assert "never ends by itself" in run("who", held).stdout
    assert json.loads(run("who", "--json", held).stdout)["remaining_ms"] is None


def test_who_shows_a_free_lock(name: str) -> None:
    done = run("who", name)
    assert (done.returncode, done.stdout) == (1, f"{name} is free\n")
    assert json.loads(run("who", "--json", name).stdout) == {"name": name, "held": False}


def test_a_number_is_no_lock_and_not_called_free(name: str, look: redis.Redis) -> None:
    look.set(name, 5)
    done = run("who", name)
    words = (
        "is the number 5: the count of a latch, or the free permits of a semaphore, plain or with none taken"
    )
    assert (done.returncode, done.stdout) == (1, f"{name} {words}\n")
    assert json.loads(run("who", "--json", name).stdout) == {"name": name, "held": False, "number": 5}
    done = run("free", "--force", "--yes", name)
    assert (done.returncode, done.stdout) == (0, f"{name} {words}; nothing was changed\n")
    done = run("free", "--force", "--yes", "--json", name)
    assert json.loads(done.stdout) == {"name": name, "deleted": False, "before": None, "number": 5}
    assert look.get(name) == "5"
    assert name not in run("ls", name).stdout


def test_who_looks_at_other_kinds(name: str, look: redis.Redis) -> None:
    look.set(name, "a token", px=600_000)
    assert run("who", name).returncode == 65
    assert "is held by a token" in run("who", "-o", "kind=simple", name).stdout


def test_who_knows_a_read_write_lock(name: str, look: redis.Redis) -> None:
    readers = [f"0b0e6f2a-8d1c-4c7a-9e55-3d2b1a0f9c8e:{number}" for number in (17, 18)]
    look.hset(name, mapping={"mode": "read", **dict.fromkeys(readers, 1)})
    look.pexpire(name, 600_000)
    done = run("who", name)
    assert done.returncode == 0, done.stderr
    assert f"the read side of {name} is held by {readers[0]} and {readers[1]}, ends in" in done.stdout
    assert json.loads(run("who", "--json", name).stdout)["kind"] == "read"
    look.delete(name)
    look.hset(name, mapping={"mode": "write", f"{readers[0]}:write": 2})
    look.pexpire(name, 600_000)
    assert json.loads(run("who", "--json", name).stdout)["kind"] == "write"
    assert run("who", name).stdout.startswith(f"the write side of {name} is held by {readers[0]}")
    look.delete(name)
    look.hset(name, mapping={"price": 3, "mode": "x"})
    assert run("who", name).returncode == 65


def of_user(server: Server, look: redis.Redis, *rules: str) -> str:
    """The URL of a user with these rights."""
    look.execute_command("ACL", "SETUSER", "few", "reset", "on", ">pw", "&*", "+@all", *rules)
    return f"redis://few:pw@127.0.0.1:{server.port}"


def test_a_semaphore_that_cannot_be_read_is_not_free(
    name: str, server: Server, look: redis.Redis, start: Start
) -> None:
    holder = start("run", "--permits", "2", name, "sh", "-c", "echo on; sleep 1000")
    assert line(holder) == "on"
    url = ("--url", of_user(server, look, "~*", "-strlen"))
    for words in ["who"], ["free", "--force", "--yes"]:
        done = run(*words, *url, name)
        assert (done.returncode, done.stdout) == (77, ""), words
        assert "strlen" in done.stderr
    # One holder is known without that right.
    done = run("who", *url, "-o", "kind=semaphore", name)
    assert done.returncode == 0, done.stderr
    assert f"process {holder.pid} on " in done.stdout
    assert " and perhaps others, ends in " in done.stdout
    assert json.loads(run("who", "--json", name).stdout)["more"] is False
    assert holder.poll() is None


@pytest.mark.parametrize("words", [[], ["-o", "kind=semaphore"]], ids=["any", "semaphore"])
def test_more_permits_than_are_listed_are_not_free(
    name: str, server: Server, look: redis.Redis, words: list[str]
) -> None:
    taken, end = f"{{{name}}}:timeout", time.time() * 1000 + 600_000
    look.set(name, 0)
    ids = [number.to_bytes(14, "big") + bytes(2) for number in range(1, 1101)]
    with redis.Redis(port=server.port) as raw:
        raw.zadd(taken, dict.fromkeys(ids[:1024], end))
        assert json.loads(run("who", "--json", *words, name).stdout)["more"] is False
        # Permits whose time is over do not count.
        raw.zadd(taken, dict.fromkeys(ids[1024:], 1))
        shown = json.loads(run("who", "--json", *words, name).stdout)
        assert (len(shown["holders"]), shown["more"]) == (1024, False)
        raw.zadd(taken, dict.fromkeys(ids, end))
    done = run("who", *words, name)
    assert done.returncode == 0, done.stderr
    assert " and perhaps others, ends in " in done.stdout
    assert json.loads(run("who", "--json", *words, name).stdout)["more"] is True
    assert name in run("ls", "cli:test_more_*").stdout
    assert run("free", "--force", "--yes", *words, name).stdout.startswith("deleted. ")
    assert look.zcard(taken) == 0


def test_the_rights_of_a_plain_lock_show_its_kind(name: str, server: Server, look: redis.Redis) -> None:
    reader = "0b0e6f2a-8d1c-4c7a-9e55-3d2b1a0f9c8e:17"
    url = ("--url", of_user(server, look, f"~{name}*"))
    look.hset(name, mapping={"mode": "read", reader: 1})
    look.pexpire(name, 600_000)
    assert f"is held by {reader}, ends in" in run("who", *url, name).stdout
    look.delete(name)
    look.hset(name, mapping={"price": 3, "mode": "x"})
    assert run("who", *url, name).returncode == 65


def test_free_deletes_and_tells_the_holder(name: str, start: Start) -> None:
    holder = start("run", name, "sh", "-c", "echo on; sleep 1000")
    line(holder)
    done = run("free", "--force", "--yes", name)
    assert done.returncode == 0
    assert done.stdout.startswith(f"deleted. Before: {name} is held by ")
    assert ended(holder)[0] == 76
    assert run("free", "--force", "--yes", name).stdout == f"{name} is free; nothing was changed\n"


@pytest.mark.parametrize("words", [["--permits", "2"], ["--shared"], ["-x"], ["-o", "kind=simple"]])
def test_free_knows_the_kind(name: str, start: Start, words: list[str]) -> None:
    holder = start("run", *words, name, "sh", "-c", "echo on; sleep 1000")
    line(holder)
    done = run("free", "--force", "--yes", "--json", name)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["name"], told["deleted"]) == (name, True)
    assert told["before"]["holders"][0]["client"]["pid"] == holder.pid
    assert ended(holder)[0] == 76
    done = run("free", "--force", "--yes", "--json", name)
    if words[0] != "--permits":  # the number of permits stays
        assert json.loads(done.stdout) == {"name": name, "deleted": False, "before": None}


def test_free_wakes_the_head_of_a_fair_queue(held: str, look: redis.Redis, start: Start) -> None:
    fair = ("-o", "kind=fair")
    waiter = start("run", *fair, held, "true")
    shown = lambda: json.loads(run("who", "--json", held).stdout)  # noqa: E731
    eventually(lambda: shown()["waiting"] == 1, "it has a place", LIMIT)
    assert shown()["kind"] == "fair"
    with look.pubsub(ignore_subscribe_messages=True) as told:
        told.psubscribe(f"redisson_lock__channel:{{{held}}}:*")
        told.get_message(timeout=LIMIT)  # the subscription
        waiter.send_signal(signal.SIGSTOP)  # it looks by itself, too
        assert run("free", "--force", "--yes", held).returncode == 0
        # Each place has a channel of its own.
        assert told.get_message(timeout=LIMIT)
    waiter.send_signal(signal.SIGCONT)
    assert ended(waiter)[0] == 0


def test_a_name_of_another_kind_says_which_option_it_needs(name: str, start: Start) -> None:
    for number, (words, option) in enumerate(((["--permits", "2"], "--permits"), (["--shared"], "--shared"))):
        other = f"{name}:{number}"
        holder = start("run", *words, other, "sh", "-c", "echo on; read line", stdin=subprocess.PIPE)
        line(holder)
        refused = run("run", other, "true")
        assert (refused.returncode, option in refused.stderr) == (65, True), refused.stderr
        ended(holder)


def test_free_leaves_data_alone(name: str, look: redis.Redis) -> None:
    look.hset(name, "apples", 3)
    done = run("free", "--force", "--yes", name)
    assert done.returncode == 65
    assert "looks like no lock" in done.stderr
    assert look.exists(name)


def test_free_asks_again_if_the_holder_has_changed(held: str, look: redis.Redis) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(PROGRAM, [PROGRAM, "free", "--force", held])
    text = b""
    while b"[y/N]" not in text:
        text += os.read(terminal, 1024)
    look.delete(held)
    look.hset(held, "another:2", 1)
    look.pexpire(held, 600_000)
    os.write(terminal, b"y\n")
    while text.count(b"[y/N]") < 2:
        text += os.read(terminal, 1024)
    assert b"held by another:2" in text
    os.write(terminal, b"n\n")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    assert look.exists(held)
    os.close(terminal)


@pytest.mark.parametrize(
    "words",
    [
        ["run", "--wait", "10", "n", "true"],
        ["run", "--lease", "300", "n", "true"],
        ["run", "--on-lost", "term,10,kill", "n", "true"],
        ["watch", "--interval", "1"],
    ],
)
def test_a_time_has_a_unit(words: list[str]) -> None:
    """Seconds for flock(1), milliseconds for the C interface: a person may mean either."""
    done = run(*words)
    assert done.returncode == 64
    assert re.search("with(out)? a unit", done.stderr)


def test_a_misplaced_password_is_not_repeated() -> None:
    for words in ["ping", "redis://:geheim@h"], ["redis://u:geheim@h"], ["-o", "redis://:geheim@h", "ping"]:
        done = run(*words)
        assert done.returncode == 64
        assert "geheim" not in done.stderr
        assert "redis://***@h" in done.stderr
    done = run("ping", "h:6380,password=geheim,ssl=True")
    assert "h:6380,password=***" in done.stderr and "geheim" not in done.stderr


def test_free_does_nothing_unasked(held: str, look: redis.Redis) -> None:
    for words, text in ([], "--force"), (["--force"], "so say --yes"):
        done = run("free", *words, held)
        assert done.returncode == 64
        assert text in done.stderr
    assert look.exists(held)


@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("n", 1), ("", 1)])
def test_free_asks_at_a_terminal(held: str, look: redis.Redis, answer: str, code: int) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(PROGRAM, [PROGRAM, "free", "--force", held])
    try:
        text = b""
        while b"[y/N]" not in text:
            text += os.read(terminal, 1024)
        os.write(terminal, f"{answer}\n".encode())
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == code
    finally:
        os.close(terminal)
    assert bool(look.exists(held)) == bool(code)


def test_ping_says_whether_the_server_answers() -> None:
    assert run("ping").stdout == "the server answers\n"
    done = run("--url", "redis://127.0.0.1:1", "ping")
    assert done.returncode == 69
    assert done.stderr.startswith("redlatch: cannot reach 127.0.0.1:1: ")
    assert done.stderr.count("\n") == 1


def test_the_url_comes_from_a_file(url: str, tmp_path: Path) -> None:
    file = tmp_path / "url"
    file.write_text(f"{url}\n")
    assert run("--url-file", str(file), "ping", env={"REDLATCH_URL": "redis://127.0.0.1:1"}).returncode == 0
    file.write_text("\n")
    empty, missing = run("--url-file", str(file), "ping"), run("--url-file", "no-such-file", "ping")
    assert (empty.returncode, missing.returncode) == (64, 64)
    assert "is empty" in empty.stderr
    assert "no-such-file" in missing.stderr


def test_no_password_is_shown(url: str) -> None:
    refused = run("ping", env={"REDLATCH_URL": url.replace("redis://", "redis://user:hidden@")})
    assert refused.returncode == 77
    assert "hidden" not in refused.stdout + refused.stderr
    assert "hidden" not in run("--help", env={"REDLATCH_URL": "redis://:hidden@localhost"}).stdout


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["rum", "x", "true"], "similar subcommand exists: 'run'"),
        (["run", "x"], "<COMMAND>..."),
        (["run", "--wiat", "3s", "x", "true"], "'--wait'"),
        (["run", "--wait", "soon", "x", "true"], 'wait is "soon"; give it a time'),
        (["run", "--wait", "1s", "-n", "x", "true"], "cannot be used with"),
        (["run", "--lease", "1ms", "x", "true"], "lease is 1 ms"),
        (["run", "--on-lost", "nuke", "x", "true"], '"nuke" is neither a signal'),
        (["run", "--on-lost", "term,5s", "x", "true"], "does not end with a signal"),
        (["run", "-E", "256", "x", "true"], "256 is not in 0..=255"),
        (["run", "-o", "kind", "x", "true"], "NAME=VALUE"),
        (["run", "-o", "outge=3s", "x", "true"], "did you mean outage?"),
        (["run", "", "true"], "name"),
        (
            ["run", "--permits", "two", "x", "true"],
            "the number of commands that may run at a time, such as 4",
        ),
        (["run", "--permits", "0", "x", "true"], "the number of commands that may run at a time, such as 4"),
        (["run", "--permits", "2", "--fencing", "x", "true"], "cannot be used with '--fencing'"),
        (["run", "--permits", "2", "-o", "kind=fair", "x", "true"], "and -o kind=fair names another"),
        (["run", "--shared", "-o", "kind=fair", "x", "true"], "and -o kind=fair names another"),
        (["run", "-o", "kind=semaphore", "x", "true"], "use --permits 4 in place of -o kind=semaphore"),
        (["run", "-o", "kind=fiar", "x", "true"], "semaphore or fair"),
        (["--url", "http://localhost", "ping"], "http"),
    ],
)
def test_wrong_usage_is_named(words: list[str], text: str) -> None:
    done = run(*words)
    assert done.returncode == 64
    assert text in done.stderr


def test_a_usage_line_names_what_is_missing_and_not_what_is_set() -> None:
    done = run("run")
    assert done.returncode == 64
    assert "Usage: redlatch run <NAME> <COMMAND>..." in done.stderr


def test_a_missing_url_is_named() -> None:
    done = run("ping", env={})
    assert done.returncode == 64
    assert "set REDLATCH_URL" in done.stderr


def test_completions_and_the_manual_can_be_read(tmp_path: Path) -> None:
    script = tmp_path / "redlatch.bash"
    script.write_text(run("completions", "bash").stdout)
    subprocess.run(["bash", "-n", str(script)], check=True)
    for shell in ("zsh", "fish"):
        assert "on-lost" in run("completions", shell).stdout
    page = run("man").stdout
    assert page.startswith(".")
    for words in ("redlatch run", "\\-\\-on\\-lost", "\\-\\-conflict\\-exit\\-code"):
        assert words in page or words.replace(" ", "\\-") in page
    heads = re.findall(r"^\.SH (.*)$", page, re.MULTILINE)
    for head in "SYNOPSIS", "RUN", "WHO", "EXIT STATUS", "ENVIRONMENT", "EXAMPLES", "SEE ALSO":
        assert head in heads
    assert "redlatch\\-run(1)" not in page, "there is no such page"
    assert "69  server away or failing" in page and "redlatch run \\-\\-wait 30s" in page
    if man := shutil.which("mandoc"):
        subprocess.run([man, "-Tlint", "-Werror"], input=page, text=True, check=True)


def test_version_is_a_command_too() -> None:
    assert run("version").stdout == run("--version").stdout
    assert re.fullmatch(r"redlatch \d+\.\d+\.\d+\n", run("version").stdout)


@pytest.mark.parametrize(
    "words",
    [["who"], ["ls"], ["doctor"], ["ping"], ["version"], ["help"], ["completions", "bash"], ["man"]],
    ids=lambda words: words[0],
)
def test_a_terminal_shows_what_a_pipe_gets(words: list[str], held: str) -> None:
    words = [*words, *{"who": [held], "ls": [held]}.get(words[0], [])]
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    with subprocess.Popen([PROGRAM, *words], stdin=theirs, stdout=theirs, stderr=theirs) as process:
        shown, left = b"", True
        while left:
            left = process.poll() is None
            while select.select([ours], [], [], 0.05)[0]:
                shown += os.read(ours, 65536)
    assert termios.tcgetattr(theirs) == before
    os.close(theirs)
    os.close(ours)
    piped = run(*words)
    assert process.returncode == piped.returncode == 0

    def words_of(text: str) -> list[str]:
        # Times differ, and colours and line breaks are the terminal's.
        return re.sub(r"\x1b\[[0-9;]*m|\d", "", text).split()

    assert words_of(shown.decode()) == words_of(piped.stdout)


def test_help_and_version_succeed() -> None:
    assert run("--version").stdout.startswith("redlatch ")
    for words in (["--help"], ["run", "--help"], ["help", "free"]):
        assert run(*words).returncode == 0
    for text in run("run", "--help").stdout, run("man").stdout.replace("\\-", "-"):
        assert "--permits" in text and "kind=fair" in text
    for shell in "bash", "zsh", "fish":
        assert "permits" in run("completions", shell).stdout


def test_an_error_is_explained_as_its_page_explains_it() -> None:
    page = " ".join((ROOT / "docs" / "errors.md").read_text().split())
    for word, heads in {
        "69": ["unavailable (exit code 69)", "server (exit code 69)", "not_replicated (exit code 69)"],
        "77": ["auth (exit code 77)", "denied (exit code 77)"],
        "denied": ["denied (exit code 77)"],
        "stolen": ["lost, stolen"],
    }.items():
        entries = run("explain", word).stdout.removesuffix("\n").split("\n\n")
        assert [entry.partition(": ")[0] for entry in entries] == heads
        for entry in entries:
            meaning, advice = entry.partition(": ")[2].split("\n")
            assert meaning in page and advice.strip() in page, entry
    assert run("explain", "watchdog_lease").stdout.startswith("option watchdog_lease (default: 30 s): ")
    unknown = run("explain", "78")
    assert unknown.returncode == 64 and "denied" in unknown.stderr
    assert "redlatch explain 77" in run("run", "--help").stdout


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_a_process_without_threads_says_so(name: str, threads: int) -> None:
    """A limit of processes counts a user's threads, and does not bind root: as root this is another user's."""
    program = os.open(PROGRAM, os.O_RDONLY)
    other = 64_000 + os.getpid() % 1_000

    def bind() -> None:
        if os.getuid() == 0:
            os.setgroups([])
            os.setgid(other)
            os.setuid(other)
        resource.setrlimit(resource.RLIMIT_NPROC, (threads, threads))

    done = subprocess.run(
        [f"/proc/self/fd/{program}", "run", name, "--", "/bin/true"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        pass_fds=[program],
        preexec_fn=bind,
    )
    os.close(program)
    assert done.returncode in (0, 69, 126), (done.returncode, done.stderr)
    assert "panicked" not in done.stderr
    if done.returncode == 69:
        assert "raise the limits of the process" in done.stderr
