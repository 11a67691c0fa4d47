"""`who`, `ls`, `watch` and `doctor`: what the servers tell about locks."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
import redis
from conftest import LIMIT, PROGRAM, ROOT, Start, Started, ended, line, run
from server import SERVICE, Cluster, Deployment, Sentinels, Server, eventually, free_port

UUID = "0b0e6f2a-8d1c-4c7a-9e55-3d2b1a0f9c8e"


@pytest.fixture(params=[Server, Cluster, Sentinels], ids=["server", "cluster", "sentinel"])
def deployment(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployment]:
    with request.param() as deployment:
        monkeypatch.setenv("REDLATCH_URL", deployment.url)
        yield deployment


def listed(*words: str) -> list[dict[str, Any]]:
    done = run("ls", "--json", *words)
    assert done.returncode == 0, done.stderr
    shown: list[dict[str, Any]] = json.loads(done.stdout)
    return shown


def held(start: Start, name: str, *options: str) -> int:
    """Holds this lock; the process id of its holder."""
    holder = start("run", *options, name, "sh", "-c", "echo on; sleep 1000")
    assert line(holder) == "on"
    return holder.pid


def test_holders_are_found_in_every_deployment(deployment: Deployment, start: Start) -> None:
    names = [f"ls:{number}" for number in range(8)]
    pids = {name: held(start, name) for name in names}
    waiter = start("run", names[0], "true")
    eventually(lambda: listed("ls:0")[0]["waiting"] == 1, "the waiter listens", LIMIT)
    shown = listed("ls:*")
    assert [lock["name"] for lock in shown] == names
    for lock in shown:
        (holder,) = lock["holders"]
        client = holder["client"]
        assert holder["owner"].startswith(client.pop("id"))
        assert client == {
            "name": "sh",
            "language": "cli",
            "pid": pids[lock["name"]],
            "host": socket.gethostname(),
        }
        assert (lock["kind"], lock["waiting"]) == ("reentrant", int(lock["name"] == names[0]))
    who = run("who", names[0]).stdout
    assert who.startswith(f"{names[0]} is held by sh, cli, process {pids[names[0]]} on ")
    assert who.endswith("; 1 client waits\n")
    assert waiter.poll() is None


def test_all_that_stand_in_the_queue_of_a_fair_lock_count(deployment: Deployment, start: Start) -> None:
    fair = ("-o", "kind=fair")
    held(start, "fair:0", *fair)
    waiters = [start("run", *fair, "fair:0", "true") for _ in range(2)]
    eventually(lambda: listed("fair:0")[0]["waiting"] == 2, "both have a place", LIMIT)
    assert listed("fair:0")[0]["kind"] == "fair"
    assert run("who", "fair:0").stdout.endswith("; 2 clients wait\n")
    assert [waiter.poll() for waiter in waiters] == [None, None]


def test_permits_are_taken_in_every_deployment(deployment: Deployment, start: Start) -> None:
    permits = ("--permits", "2")
    pids = [held(start, "permits:0", *permits) for _ in range(2)]
    refused = run("run", "-n", *permits, "permits:0", "true")
    assert refused.returncode == 75, refused.stderr
    waiter = start("run", *permits, "permits:0", "true")
    eventually(lambda: listed("permits:*")[0]["waiting"] == 1, "the waiter listens", LIMIT)
    (lock,) = listed("permits:*")
    assert (lock["name"], lock["kind"]) == ("permits:0", "semaphore")
    assert {holder["client"]["pid"] for holder in lock["holders"]} == set(pids)
    told = json.loads(run("who", "--json", "permits:0").stdout)
    assert (told["holders"], told["permits"]) == (lock["holders"], {"limit": 2, "taken": 2})
    assert run("permits", "permits:0", "5").stdout == "2 of 5 permits of permits:0 are taken\n"
    assert ended(waiter)[0] == 0
    assert run("who", "permits:0").stdout.startswith(
        "the semaphore permits:0 has 2 of 5 permits taken, by sh, "
    )
    assert json.loads(run("permits", "--json", "permits:0", "2").stdout) == {
        "name": "permits:0",
        "permits": {"limit": 2, "taken": 2},
    }
    waiter = start("run", *permits, "permits:0", "true")
    os.kill(pids[0], signal.SIGTERM)
    assert ended(waiter)[0] == 0


def test_a_server_is_fit(deployment: Deployment) -> None:
    done = run("doctor")
    assert (done.returncode, done.stderr) == (0, "")
    for node in deployment.nodes:
        # A cluster and a sentinel set have replicas too, which are not asked.
        seen = [text for text in done.stdout.splitlines() if text.endswith(f":{node.port}")]
        assert len(seen) == int(node("ROLE")[0] == "master")
    assert '"redlatch:doctor" was taken, extended, handed over in ' in done.stdout
    assert "good     wake-ups" in done.stdout
    assert "problem" not in done.stdout
    assert listed() == []


def test_other_keys_are_no_locks(look: redis.Redis) -> None:
    look.hset("ls-other:hash", "field", "1")
    look.hset("ls-other:big", mapping={f"{UUID}:{number}": 1 for number in range(2000)})
    look.set("ls-other:text", "words")
    look.set("ls-other:long", f"{UUID}:1" * 100)
    look.rpush("ls-other:list", f"{UUID}:1")
    look.hset(b"ls-other:\xff", f"{UUID}:1", 1)
    assert listed("ls-other:*") == []


def test_locks_of_others_are_shown_without_a_process(look: redis.Redis) -> None:
    look.hset("ls-java:lock", f"{UUID}:87", 2)
    look.hset("ls-java:rw", mapping={"mode": "read", f"{UUID}:1": 1, f"{UUID}:2": 3})
    look.set("ls-java:simple", f"{UUID}:3", px=600_000)
    look.set("ls-java:article", f"{UUID.replace('-', '')}-3")
    shown = {lock["name"].partition(":")[2]: lock for lock in listed("ls-java:*")}
    assert {name: lock["kind"] for name, lock in shown.items()} == {
        "lock": "reentrant",
        "rw": "read",
        "simple": "simple",
        "article": "article",
    }
    assert shown["lock"]["holders"] == [{"owner": f"{UUID}:87", "levels": 2, "client": None}]
    assert [holder["levels"] for holder in shown["rw"]["holders"]] == [1, 3]
    assert shown["lock"]["remaining_ms"] is None
    assert 0 < shown["simple"]["remaining_ms"] <= 600_000
    table = run("ls", "ls-java:*").stdout.splitlines()
    assert table[0].split() == ["NAME", "KIND", "ENDS", "IN", "WAITING", "HOLDER"]
    assert len(table) == 6
    assert table[2].endswith("  0        0b0e6f2a…:87, 2 levels"), table
    assert table[1].endswith(f"  {UUID.replace('-', '')[:8]}…"), table


def test_the_article_lock_has_its_process(start: Start) -> None:
    pid = held(start, "ls-article", "-o", "kind=article")
    (lock,) = listed("lock:ls-article")
    assert (lock["kind"], lock["holders"][0]["client"]["pid"]) == ("article", pid)


def test_many_keys_are_scanned(look: redis.Redis, start: Start) -> None:
    with look.pipeline(transaction=False) as pipe:
        for number in range(5000):
            pipe.set(f"many:{number}", "x")
        pipe.execute()
    held(start, "many:lock")
    assert [lock["name"] for lock in listed("many:*")] == ["many:lock"]


def scans(look: redis.Redis) -> int:
    calls = look.info("commandstats").get("cmdstat_scan", {"calls": 0})["calls"]
    return int(calls)


def test_the_keys_are_read_once(look: redis.Redis) -> None:
    look.flushall()
    look.hset("once:lock", f"{UUID}:1", 1)
    look.zadd("{once:permits}:timeout", {b"0123456789abcdef": time.time() * 1000 + 600_000})
    before = scans(look)
    assert [lock["name"] for lock in listed("once:*")] == ["once:lock", "once:permits"]
    assert scans(look) == before + 1
    assert listed("*:timeout") == []


def test_a_pattern_finds_what_the_server_finds(look: redis.Redis) -> None:
    look.flushall()
    names = [
        "a",
        "ab",
        "abc",
        "a*",
        "a?c",
        "a[b]c",
        "a-c",
        "a\\c",
        "b]",
        "ä",
        "orders:42",
        "orders:421",
        "^c",
    ]
    for name in names:
        look.hset(name, f"{UUID}:1", 1)
    one_letter = ["[abc]", "[a-c]", "[c-a]", "[^a]", "[\\]]", "[]", "[^]", "[a", "[a-", "[", "[-a]"]
    patterns = [
        "*",
        "a*",
        "*c",
        "a?c",
        "**",
        "a*b*c",
        "??",
        "a\\*",
        "a\\?c",
        "a\\",
        "\\",
        "ä",
        "?",
        "orders:4?",
        "*2*",
    ]
    for pattern in [*patterns, *one_letter, *(f"a{each}c" for each in one_letter), "*[0-9]", "a*[c]*"]:
        assert {lock["name"] for lock in listed(pattern)} == set(look.keys(pattern)), pattern


def test_without_rights_processes_and_waiters_stay_unknown(
    server: Server, start: Start, look: redis.Redis
) -> None:
    held(start, "ls-poor")
    look.execute_command(
        "ACL", "SETUSER", "poor", "on", ">pw", "~*", "&*", "+@all", "-client|list", "-pubsub"
    )
    url = f"redis://poor:pw@127.0.0.1:{server.port}"
    (lock,) = listed("--url", url, "ls-poor")
    assert (lock["waiting"], lock["holders"][0]["client"]) == (None, None)
    assert " ?  " in run("ls", "--url", url, "ls-poor").stdout


def at(text: str) -> float:
    """A time as `watch` writes it."""
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", text), text
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def change(watch: Started) -> str:
    """The next change, behind its time."""
    told, _, text = line(watch).partition(" ")
    assert abs(at(told) - time.time()) < LIMIT
    return text


def test_watch_prints_changes_where_there_is_no_terminal(start: Start, name: str) -> None:
    watch = start("watch", "--interval", "100ms", name)
    holder = start("run", name, "sh", "-c", "echo on; read word", stdin=subprocess.PIPE)
    assert line(holder) == "on"
    assert change(watch).startswith(f"{name} is held by sh, cli, process {holder.pid} on ")
    assert holder.communicate("go\n", timeout=LIMIT)[0] == ""
    assert change(watch) == f"{name} is free"
    stream = start("watch", "--json", name)
    seen = json.loads(line(stream))
    assert abs(at(seen["time"]) - time.time()) < LIMIT
    assert (seen["locks"], seen["scans"] > 0, seen["look_ms"] >= 0) == ([], True, True)


def test_watch_knows_a_lease_that_has_ended(start: Start, name: str, look: redis.Redis) -> None:
    watch = start("watch", "--interval", "100ms", name)
    look.hset(name, f"{UUID}:1", 1)
    look.pexpire(name, 2000)
    assert change(watch).startswith(f"{name} is held by")
    assert change(watch) == f"{name} is free: its lease has ended"


def test_watch_needs_a_sensible_interval() -> None:
    done = run("watch", "--interval", "1ms")
    assert done.returncode == 64
    assert "at least 100ms" in done.stderr


def until(terminal: int, *parts: bytes) -> bytes:
    """Reads from a terminal until all these parts have come."""
    read, end = b"", time.monotonic() + LIMIT
    while not all(part in read for part in parts):
        ready, _, _ = select.select([terminal], [], [], max(0, end - time.monotonic()))
        assert ready, read
        read += os.read(terminal, 4096)
    return read


def resize(terminal: int, columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 10, columns, 0, 0))


def test_watch_on_a_terminal(start: Start, name: str) -> None:
    """It shows the locks, cut to the terminal, and leaves the terminal as it was."""
    held(start, name)
    pid, terminal = pty.fork()
    if pid == 0:
        resize(0, 40)
        os.execv(PROGRAM, [PROGRAM, "watch", "--interval", "100ms", name])
    before = termios.tcgetattr(terminal)
    screen = until(terminal, b"NAME ", b"_on_a_terminal  reentrant", b"\x1b[J")
    assert screen.startswith(b"\x1b[?1049h")
    rows = [
        re.sub(rb"\x1b\[[^a-zA-Z]*[a-zA-Z]", b"", row) for row in re.split(rb"\x1b\[\d*(?:;\d*)?[EH]", screen)
    ]
    assert max(len(row.decode()) for row in rows) == 40, rows
    resize(terminal, 200)
    until(terminal, b"  0 s ", b" on ", b", pid ")
    os.write(terminal, b"q")
    until(terminal, b"\x1b[?1049l")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert termios.tcgetattr(terminal)[:4] == before[:4]
    os.close(terminal)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_leaves_the_terminal_as_it_was(start: Start, name: str, number: signal.Signals) -> None:
    held(start, name)
    pid, terminal = pty.fork()
    if pid == 0:
        resize(0, 100)
        # A bracket has a meaning in a pattern.
        os.execv(PROGRAM, [PROGRAM, "watch", name.replace("[", "?")])
    before = termios.tcgetattr(terminal)
    until(terminal, b"NAME ", b"sh on ")
    assert termios.tcgetattr(terminal)[3] != before[3]
    os.kill(pid, number)
    until(terminal, b"\x1b[?1049l", b"\x1b[?25h")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -number
    assert termios.tcgetattr(terminal)[:4] == before[:4]
    os.close(terminal)


def test_watch_ends_with_its_terminal(start: Start, name: str) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        resize(0, 100)
        os.execv(PROGRAM, [PROGRAM, "watch", name])
    until(terminal, b"NAME ")
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGHUP


def test_rows_that_do_not_fit_are_scrolled(start: Start, look: redis.Redis) -> None:
    for number in range(20):
        look.hset(f"rows:{number:02}", f"{UUID}:1", 1)
    pid, terminal = pty.fork()
    if pid == 0:
        resize(0, 100)
        os.execv(PROGRAM, [PROGRAM, "watch", "rows:*"])
    screen = until(terminal, b"rows 1 to 5 of 20")
    # Ten rows: two heads, an empty one, the names of the columns, five locks, and this one.
    assert b"rows:04" in screen and b"rows:05" not in screen
    for keys, first in (
        (b"\x1b[B", 2),
        (b"\x1b[6~", 7),
        (b"\x1b[F", 16),
        (b"\x1b[A", 15),
        (b"\x1b[5~", 10),
        (b"\x1b[H", 1),
    ):
        os.write(terminal, keys)
        screen = until(terminal, b"rows %d to %d of 20" % (first, first + 4))
        assert b"rows:%02d" % (first - 1) in screen
    os.write(terminal, b"q")
    until(terminal, b"\x1b[?1049l")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(terminal)


def test_watch_ends_with_its_reader(start: Start, name: str) -> None:
    watch = start("watch", name, "--interval", "1h")
    assert watch.stdout is not None
    watch.stdout.close()
    assert watch.wait(timeout=LIMIT) == 0


def test_watch_survives_a_restart_of_the_server(start: Start, name: str) -> None:
    with Server() as other:
        watch = start("watch", "--url", other.url, "--interval", "100ms", name)
        other("HSET", name, f"{UUID}:1", 1)
        assert change(watch).startswith(f"{name} is held by")
        other.restart()
        assert change(watch) == f"{name} is free"
        assert watch.poll() is None


def test_watch_may_begin_before_its_server(start: Start, name: str) -> None:
    port = free_port()
    url = f"redis://127.0.0.1:{port}"
    watch = start("watch", "--url", url, "--interval", "100ms", name)
    stream = start("watch", "--url", url, "--interval", "100ms", "--json", name)
    outage = json.loads(line(stream))
    assert outage.keys() == {"time", "error"} and f"127.0.0.1:{port}" in outage["error"]
    assert abs(at(outage["time"]) - time.time()) < LIMIT
    assert watch.stderr
    told = watch.stderr.readline().removeprefix("redlatch: ")
    assert at(told.partition(" ")[0]) and f"127.0.0.1:{port}" in told
    with Server(port=port) as late:
        late("HSET", name, f"{UUID}:1", 1)
        assert change(watch).startswith(f"{name} is held by 0b0e6f2a-")
        while "locks" not in (seen := json.loads(line(stream))):
            assert "error" in seen
        assert seen["scans"] == 1


def test_a_look_at_many_keys_takes_a_small_part_of_the_time(
    look: redis.Redis, start: Start, name: str
) -> None:
    with look.pipeline(transaction=False) as pipe:
        for number in range(20_000):
            pipe.set(f"{name}:{number}", "x", ex=600)
        pipe.execute()
    watch = start("watch", "--interval", "100ms", name)
    assert watch.stderr
    told = re.fullmatch(
        r"redlatch: a look takes (\d+) SCANs in \d+\.\d\d s, so the next one comes after \d+ s\n",
        watch.stderr.readline(),
    )
    assert told and int(told[1]) > 10
    stream = start("watch", "--interval", "100ms", "--json", name)
    first, second = (json.loads(line(stream)) for _ in range(2))
    assert first["scans"] == int(told[1])
    # Nineteen times as long as the look takes; the times are rounded.
    assert (at(second["time"]) - at(first["time"])) * 1000 >= 19 * (first["look_ms"] - 1)
    look.flushall()


def test_the_screen_has_80_columns(start: Start, name: str) -> None:
    """The program, the host and the process are there; of a long name the end."""
    long = f"{name}:{'orders:' * 8}4711"
    pid = held(start, long, "-o", "client_name=backup")
    child, terminal = pty.fork()
    if child == 0:
        resize(0, 80)
        os.execv(PROGRAM, [PROGRAM, "watch", long])
    holder = f"backup on {socket.gethostname()}, pid {pid}"
    screen = until(terminal, b"HOLDER", b"backup on ", b"expired", b"q quits", b"names: cli:").decode()
    rows = re.sub(r"\x1b\[[?0-9;]*[a-zA-Z]", "\n", screen).split("\n")
    row = next(row for row in rows if "backup on" in row)
    assert "orders:4711  reentrant  " in row, row
    shown = row[row.index("backup on") :]
    assert shown == holder or (len(row) == 80 and holder.startswith(shown)), row
    assert max(map(len, rows)) <= 80
    os.write(terminal, b"q")
    until(terminal, b"\x1b[?1049l")
    os.waitpid(child, 0)
    os.close(terminal)


def test_names_and_owners_do_not_reach_the_terminal(look: redis.Redis) -> None:
    evil = "evil\x1b[31m\x07\nforged:1  reentrant"
    look.hset(evil, f"{UUID}:1", 1)
    look.set("plain-evil", "owner\x1b]0;x\x07", px=600_000)
    for words in ["ls", "evil*"], ["who", evil], ["who", "-o", "kind=redis-py", "plain-evil"]:
        done = run(*words)
        assert done.returncode == 0
        assert "\\u{1b}" in done.stdout
        assert not set(done.stdout) & {"\x1b", "\x07"}
        assert "\nforged" not in done.stdout


def test_a_missing_right_is_no_empty_list(server: Server, look: redis.Redis) -> None:
    look.execute_command("ACL", "SETUSER", "notype", "on", ">pw", "~*", "&*", "+@all", "-type")
    look.set("ls-denied", "x")
    done = run("ls", "--url", f"redis://notype:pw@127.0.0.1:{server.port}", "ls-denied")
    assert (done.returncode, done.stdout) == (77, "")
    assert "type" in done.stderr


def test_one_node_is_not_the_whole_cluster() -> None:
    with Cluster() as cluster:
        done = run("ls", "--url", cluster.primaries[0].url)
    assert done.returncode == 64
    assert "redis+cluster://" in done.stderr


def finding(text: str, check: str, state: str = "") -> str:
    """The only row of this check; with `state` the only one in this state."""
    rows = {row.strip() for row in text.splitlines() if row.split()[1:2] == [check]}
    (found,) = {row for row in rows if row.startswith(state)}
    return found


def test_doctor_names_what_is_wrong(look: redis.Redis, server: Server) -> None:
    look.config_set("maxmemory", "1gb")
    look.config_set("maxmemory-policy", "allkeys-lru")
    try:
        done = run("doctor")
        assert done.returncode == 1
        assert finding(done.stdout, "memory").startswith(
            "problem  memory       with maxmemory-policy allkeys-lru"
        )
        assert done.stdout.count("allkeys-lru") == 1, "one cause is one problem"
    finally:
        look.config_set("maxmemory-policy", "noeviction")
        look.config_set("maxmemory", "0")
    assert "good     memory" in run("doctor").stdout


def test_doctor_names_missing_rights(look: redis.Redis, server: Server) -> None:
    rights = ["on", ">pw", "resetchannels", "~app:*", "&redisson_lock__channel:{app:*", "+@all"]
    look.execute_command("ACL", "SETUSER", "app", *rights, "-evalsha", "-client|tracking")
    url = f"redis://app:pw@127.0.0.1:{server.port}"
    done = run("doctor", "--url", url, "app:doctor")
    assert done.returncode == 1
    assert "evalsha" in finding(done.stdout, "lock")
    assert finding(done.stdout, "tracking").startswith("advice ")
    look.execute_command("ACL", "SETUSER", "app", "+evalsha")
    assert run("doctor", "--url", url, "app:doctor").returncode == 0
    look.execute_command("ACL", "SETUSER", "app", "-info")
    blind = run("doctor", "--url", url, "app:doctor")
    assert blind.returncode == 1
    assert "allow +info to this user" in finding(blind.stdout, "info")
    look.execute_command("ACL", "SETUSER", "app", "+info")
    other = run("doctor", "--url", url, "elsewhere")
    assert other.returncode == 1, other.stdout
    look.execute_command("ACL", "SETUSER", "app", "resetchannels")
    deaf = run("doctor", "--url", url, "app:doctor")
    assert deaf.returncode == 1
    assert "allow +publish and the channel" in deaf.stdout


def documented(*more: str) -> list[str]:
    """The user of docs/security.md, for locks whose names begin with `orders`."""
    page = (ROOT / "docs" / "security.md").read_text()
    (line,) = re.findall("^ACL SETUSER (app reset .*)$", page, re.MULTILINE)
    return [*line.split(), *more]


@pytest.mark.parametrize("options", [[], ["-o", "tracking=false"], ["-o", "protocol=resp2"]])
def test_doctor_tells_whether_wake_ups_come(look: redis.Redis, server: Server, options: list[str]) -> None:
    """A user without PUBSUB NUMSUB was said to wake nobody, and one without PUBLISH to wake everybody."""
    url = f"redis://app:password@127.0.0.1:{server.port}"
    ask = ["doctor", "--url", url, *options, "orders:doctor"]
    look.execute_command("ACL", "SETUSER", *documented())
    done = run(*ask)
    assert done.returncode == 0, done.stdout
    assert finding(done.stdout, "wake-ups").startswith("good"), done.stdout
    assert finding(done.stdout, "lock").startswith("good"), done.stdout
    look.execute_command("ACL", "SETUSER", *documented("-publish"))
    done = run(*ask)
    assert done.returncode == 1, done.stdout
    assert "allow +publish and the channel" in finding(done.stdout, "wake-ups")
    assert finding(done.stdout, "lock").startswith("good"), done.stdout
    look.execute_command("ACL", "SETUSER", *documented("-subscribe"))
    done = run(*ask)
    assert done.returncode == 1, done.stdout
    assert finding(done.stdout, "wake-ups").startswith("problem  wake-ups     cannot subscribe")


@pytest.mark.parametrize("kind", ["fair", "simple", "article", "adaptive", "read", "write", "semaphore"])
def test_doctor_plays_each_kind_of_lock(look: redis.Redis, name: str, kind: str) -> None:
    done = run("doctor", "-o", f"kind={kind}", name)
    assert done.returncode == 0, done.stdout
    for check in "lock", "wake-ups":
        assert finding(done.stdout, check).startswith("good"), done.stdout
    left = [key for key in look.scan_iter(f"*{name}*") if not key.endswith("_renew")]
    assert left == []


@pytest.mark.parametrize("kind", ["reentrant", "semaphore"])
def test_doctor_leaves_alone_what_is_there(look: redis.Redis, name: str, kind: str) -> None:
    look.set(name, "3")
    done = run("doctor", "-o", f"kind={kind}", name)
    assert done.returncode == 1
    assert finding(done.stdout, "lock").startswith("problem")
    assert look.get(name) == "3"


def test_doctor_weighs_what_a_crash_forgets() -> None:
    with Server() as own:
        ask = lambda: run("doctor", "--url", own.url).stdout  # noqa: E731
        assert finding(ask(), "persistence").startswith("advice")
        own("CONFIG", "SET", "appendonly", "yes")
        for policy, state in ("always", "good"), ("everysec", "advice"), ("no", "advice"):
            own("CONFIG", "SET", "appendfsync", policy)
            told = finding(ask(), "persistence")
            assert told.startswith(state) and f"appendfsync {policy}" in told
        url = own.url.replace("//", "//blind:pw@")
        own("ACL", "SETUSER", "blind", "on", ">pw", "~*", "&*", "+@all", "-config")
        told = finding(run("doctor", "--url", url).stdout, "persistence")
        assert told.startswith("advice") and "+config|get" in told


def test_doctor_tells_how_few_keys_are_tracked(look: redis.Redis) -> None:
    look.config_set("tracking-table-max-keys", 1)
    try:
        told = finding(run("doctor").stdout, "tracking")
    finally:
        look.config_set("tracking-table-max-keys", 1_000_000)
    assert told.startswith("advice") and "tracking-table-max-keys 1 " in told
    assert finding(run("doctor").stdout, "tracking").startswith("good")


def test_doctor_tells_that_a_server_without_resp3_does_not_track() -> None:
    with Server("", "--rename-command", "HELLO", "") as own:
        told = finding(run("doctor", "--url", own.url).stdout, "tracking")
    assert told.startswith("advice") and "next renewal" in told


def test_doctor_tells_who_may_connect(look: redis.Redis) -> None:
    assert finding(run("doctor").stdout, "access").startswith("advice   access       anybody")
    with Server("", "--requirepass", "pw") as own:
        told = run("doctor", "--url", own.url.replace("//", "//:pw@")).stdout
    assert finding(told, "access").startswith("good")


def test_doctor_knows_a_replica(server: Server) -> None:
    with Server() as replica:
        replica("REPLICAOF", "127.0.0.1", server.port)
        eventually(
            lambda: replica("ROLE")[3] == b"connected" or replica("ROLE")[3] == "connected",
            "it follows",
            LIMIT,
        )
        done = run("doctor", "--url", replica.url)
    assert done.returncode == 1
    assert "locks need the primary" in finding(done.stdout, "role")


def test_doctor_tells_whether_a_primary_that_is_cut_off_stops() -> None:
    with Server() as own, Server("", "--replicaof", f"127.0.0.1 {own.port}"):
        eventually(lambda: "state=online" in str(own("INFO", "replication")), "the replica follows", LIMIT)
        ask = lambda: finding(run("doctor", "--url", own.url).stdout, "role")  # noqa: E731
        assert "min-replicas-to-write" in ask()
        own("CONFIG", "SET", "min-replicas-to-write", 1)
        assert "min-replicas-to-write" not in ask()


def test_doctor_tells_what_sentinels_do_too_late() -> None:
    with Sentinels() as service:
        ask = lambda: run("doctor", "--url", service.url)  # noqa: E731
        assert ask().stdout.count("good     sentinel") == 3
        service.sentinels[0]("SENTINEL", "SET", SERVICE, "down-after-milliseconds", 30_000)
        done = ask()
    assert done.returncode == 1
    assert finding(done.stdout, "sentinel", "problem").startswith(
        "problem  sentinel     a fail-over begins after 30000 ms"
    )


def test_doctor_advises_to_start_a_sentinel_that_the_others_can_do_without() -> None:
    with Sentinels() as service:
        away, other, _ = service.sentinels
        away.kill()
        done = run("doctor", "--url", service.url)
        assert done.returncode == 0, done.stdout
        told = finding(done.stdout, "sentinel", "advice")
        assert "start it again" in told and f":{away.port}" in told, told
        assert done.stdout.count("good     sentinel") == 2
        other.kill()
        done = run("doctor", "--url", service.url)
        assert done.returncode == 1, done.stdout
        assert done.stdout.count("problem  sentinel") == 2


def test_doctor_reports_a_taken_name(held_name: str) -> None:
    done = run("doctor", held_name)
    assert done.returncode == 1
    assert held_name in finding(done.stdout, "lock")


@pytest.fixture
def held_name(name: str, start: Start) -> str:
    held(start, name)
    return name
