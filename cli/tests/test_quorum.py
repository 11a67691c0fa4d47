"""The commands on a quorum: a lock is held if most of the servers have it, and each of them has a key of it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from conftest import LIMIT, Start, ended, line, run
from server import Quorum, Server, eventually

# A server that was started now has lost nothing.
AT_ONCE = ("-o", "restart_delay=0")
OWNER = "{}b0e6f2a-8d1c-4c7a-9e55-3d2b1a0f9c8e:1"


@pytest.fixture
def quorum(monkeypatch: pytest.MonkeyPatch) -> Iterator[Quorum]:
    with Quorum() as quorum:
        monkeypatch.setenv("REDLATCH_URL", quorum.url)
        yield quorum


def held(start: Start, name: str) -> tuple[int, object]:
    """Holds this lock; the process id of its holder, and the holder."""
    holder = start(*AT_ONCE, "run", name, "--", "sh", "-c", "echo on; sleep 1000")
    assert line(holder) == "on"
    return holder.pid, holder


def take(server: Server, name: str, digit: int) -> None:
    """As Redisson writes it."""
    server("HSET", name, OWNER.format(digit), 1)
    server("PEXPIRE", name, 60_000)


def test_every_command_takes_the_servers_as_one(quorum: Quorum, start: Start, name: str) -> None:
    pid, holder = held(start, name)
    assert quorum.having(name) == 3
    done = run("who", "--json", name)
    assert done.returncode == 0, done.stderr
    (owner,) = json.loads(done.stdout)["holders"]
    assert (owner["client"]["pid"], owner["owner"]) == (pid, owner["client"]["id"])
    done = run("ls", "--json")
    assert [lock["name"] for lock in json.loads(done.stdout)] == [name]
    watching = start("watch", "--json", "--interval", "100ms")
    assert [lock["name"] for lock in json.loads(line(watching))["locks"]] == [name]
    done = run(*AT_ONCE, "run", "-w", "100ms", name, "--", "true")
    assert done.returncode == 75 and f"process {pid} on" in done.stderr, done.stderr
    done = run("free", "--force", "--yes", name)
    assert done.returncode == 0 and done.stdout.startswith("deleted."), done.stderr
    assert ended(holder)[0] == 76  # type: ignore[arg-type]
    eventually(lambda: quorum.having(name) == 0, "nothing is left", LIMIT)
    assert run("who", name).returncode == 1
    eventually(lambda: json.loads(line(watching))["locks"] == [], "it is seen to be free", LIMIT)


def test_the_doctor_looks_at_each_server_and_hands_a_lock_over(quorum: Quorum) -> None:
    done = run(*AT_ONCE, "doctor", "--json")
    findings = json.loads(done.stdout)
    assert done.returncode == 0, findings
    assert {finding["server"] for finding in findings} == {node.address for node in quorum.nodes} | {
        "a client"
    }
    assert [f["check"] for f in findings if f["server"] == "a client"] == ["lock", "wake-ups"]


def test_a_server_without_a_vote_is_told_with_its_remedy(quorum: Quorum) -> None:
    for words in (["ping"], ["run", "n", "--", "true"]):
        done = run(*words)
        assert done.returncode == 69 and "option restart_delay" in done.stderr, done.stderr


def test_a_lock_that_too_few_servers_have_is_free(quorum: Quorum, name: str) -> None:
    take(quorum.nodes[0], name, 0)
    assert run("who", name).returncode == 1
    assert json.loads(run("ls", "--json").stdout) == []
    # Redisson has another owner on each server.
    take(quorum.nodes[1], name, 1)
    done = run("who", "--json", name)
    owners = [holder["owner"] for holder in json.loads(done.stdout)["holders"]]
    assert sorted(owners) == [OWNER.format(digit) for digit in (0, 1)]


def test_a_lock_that_an_absent_server_decides_is_not_called_free(
    quorum: Quorum, start: Start, name: str
) -> None:
    take(quorum.nodes[0], name, 0)
    take(quorum.nodes[1], name, 0)
    quorum.nodes[0].kill()
    for words in (["who", name], ["free", "--force", "--yes", name]):
        done = run(*words)
        assert done.returncode == 69 and "it may be held" in done.stderr, done.stderr
    assert quorum.nodes[1]("EXISTS", name) == 1
    (lock,) = json.loads(run("ls", "--json").stdout)
    assert (lock["name"], lock["more"]) == (name, True)
    watching = start("watch", "--json", "--interval", "100ms")
    assert [lock["more"] for lock in json.loads(line(watching))["locks"]] == [True]
    # The server comes back empty, and without it too few have the lock.
    quorum.nodes[0].restart()
    eventually(lambda: json.loads(line(watching))["locks"] == [], "the server is seen again", LIMIT)
    assert run("who", name).returncode == 1


def test_a_server_that_is_away_is_told_and_two_are_too_many(quorum: Quorum, start: Start, name: str) -> None:
    _, holder = held(start, name)
    quorum.nodes[0].kill()
    assert run("who", name).returncode == 0
    assert [lock["name"] for lock in json.loads(run("ls", "--json").stdout)] == [name]
    done = run("free", "--force", "--yes", name)
    assert done.returncode == 0 and quorum.nodes[0].address in done.stderr, done.stderr
    assert quorum.having(name) == 0
    assert ended(holder)[0] == 76  # type: ignore[arg-type]
    quorum.nodes[1].kill()
    done = run("ls")
    assert done.returncode == 69 and "only 1 of the servers" in done.stderr, done.stderr
    done = run("who", name)
    assert done.returncode == 69 and "only 1 of the servers" in done.stderr, done.stderr
