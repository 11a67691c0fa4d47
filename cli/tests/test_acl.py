"""`redlatch acl`: the rules that it prints are enough, and no more are refused."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
from conftest import LIMIT, Start, ended, line, run
from server import Cluster, Server, eventually

KINDS = [
    "reentrant",
    "simple",
    "redis-semaphore",
    "article",
    "adaptive",
    "read",
    "write",
    "fair",
    "semaphore",
]


@pytest.fixture
def own() -> Iterator[Server]:
    with Server() as own:
        yield own


def old(server: Server) -> list[str]:
    """A server that does not know the rules of today."""
    return ["--redis-6"] if server("COMMAND", "INFO", "PEXPIRETIME") == [None] else []


def as_user(server: Server, *words: str) -> str:
    """Makes the user of `redlatch acl`; its URL."""
    done = run("acl", *words, *old(server))
    assert (done.returncode, done.stderr) == (0, "")
    assert server(*done.stdout.replace(">password", ">pw").split()) == "OK", done.stdout
    return server.url.replace("//", "//app:pw@")


def refused(server: Server) -> object:
    return server("ACL", "LOG")


@pytest.mark.parametrize("names", ["orders:*", "orders:42"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_rules_are_enough_for_each_kind(own: Server, start: Start, kind: str, names: str) -> None:
    more = {
        "reentrant": ["-o", "fencing=true"],
        "write": ["-o", "writer_preference=1min", "-o", "fencing=true"],
        "semaphore": ["-o", "fair=true"],
    }.get(kind, [])
    url = as_user(own, "--kind", kind, *more, names)
    limit = ["-o", "limit=1"] if kind == "semaphore" else []
    words = ["run", "--url", url, "-o", f"kind={kind}", *more, *limit, "orders:42"]
    if kind == "semaphore":
        words = ["run", "--url", url, "--permits", "1", *more, "orders:42"]
    holder = start(*words, "sh", "-c", "echo on; read line; exit 0", stdin=subprocess.PIPE)
    assert line(holder) == "on"
    waits = start(*words, "true")
    if kind != "read":
        counts = ["PUBSUB", "CHANNELS", "*"]
        eventually(lambda: own(*counts), "somebody waits", LIMIT)
    assert ended(holder)[0] == 0
    assert ended(waits) == (0, "", "")
    assert refused(own) == []


@pytest.mark.parametrize("kind", KINDS)
def test_doctor_has_no_objection_to_the_user(own: Server, kind: str) -> None:
    url = as_user(own, "--kind", kind, "jobs:*")
    done = run("doctor", "--url", url, "-o", f"kind={kind}", "jobs:doctor")
    assert done.returncode == 0, done.stdout
    assert "good     rights" in done.stdout and "good     wake-ups" in done.stdout


def test_doctor_names_what_the_user_lacks(own: Server) -> None:
    url = as_user(own, "jobs:*")
    own("ACL", "SETUSER", "app", "-exists", "-mget")
    told = run("doctor", "--url", url, "jobs:doctor").stdout
    assert "advice   rights       allow +exists +mget to this user (`redlatch acl` prints all rules)" in told
    own("ACL", "SETUSER", "app", "-pttl")
    done = run("doctor", "--url", url, "jobs:doctor")
    assert done.returncode == 1
    assert "`redlatch acl` prints the rules for names and kinds" in done.stdout


def test_the_tool_has_rules_of_its_own(own: Server, start: Start) -> None:
    url = as_user(own, "--tool", "orders:*")
    holder = start("run", "--url", url, "orders:1", "sh", "-c", "echo on; read line", stdin=subprocess.PIPE)
    assert line(holder) == "on"
    assert run("who", "--url", url, "orders:1").returncode == 0
    assert "orders:1" in run("ls", "--url", url).stdout
    assert run("run", "-n", "--url", url, "orders:1", "true").returncode == 75
    ended(holder)
    assert refused(own) == []


def test_a_line_for_the_file_of_the_server_is_loaded(tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("acl") / "users.acl"
    with Server() as probe:
        words = old(probe)
    kinds = [word for kind in ["fair", "latch", "plain-semaphore", "write"] for word in ("--kind", kind)]
    file.write_text(run("acl", "--file", "--user", "job", *kinds, *words, "jobs:*").stdout)
    with Server("", "--aclfile", str(file)) as own:
        url = own.url.replace("//", "//job:password@")
        assert run("run", "--url", url, "-o", "kind=fair", "jobs:1", "true").returncode == 0


def test_a_cluster_needs_more() -> None:
    with Cluster() as cluster:
        done = run("acl", "--url", cluster.url, *old(cluster.primaries[0]), "orders:*")
        assert "+asking" in done.stdout
        for node in cluster.nodes:
            assert node(*done.stdout.replace(">password", ">pw").split()) == "OK"
        url = cluster.url.replace("//", "//app:pw@", 1)
        done = run("doctor", "--url", url, "orders:doctor")
        assert done.returncode == 0, done.stdout


def test_names_that_no_rule_can_have_are_refused() -> None:
    for words in (
        ["two words"],
        ["--user", "a b", "x"],
        ["--kind", "mutex", "x"],
        ["-o", "fencnig=true", "x"],
        [],
    ):
        assert run("acl", *words).returncode == 64
    assert "it is one of reentrant, simple" in run("acl", "--kind", "mutex", "x").stderr


def test_no_server_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REDLATCH_URL")
    done = run("acl", "orders:*")
    assert done.stdout.startswith(
        "ACL SETUSER app reset on >password resetchannels ~orders:* ~{orders:*:redlatch:crowd &redisson_lock__channel:{orders:* "
        "&redisson_lock__channel:{orders:*:* +eval "
    )
    assert done.stdout.count("\n") == 1
