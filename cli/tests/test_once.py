"""`redlatch run --once-per`, and what else cron and scripts want: silence, the URL, who is waited for."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import redis
from conftest import LIMIT, Start, ended, line, run
from server import eventually


def test_a_job_runs_once_in_its_time_on_all_machines(name: str, look: redis.Redis) -> None:
    """The machine that came 0.2 s later ran a short job again, 3 of 3."""
    assert run("run", "--once-per", "1h", name, "echo", "done").stdout == "done\n"
    # A minute less than an hour, less what this took.
    assert 3_000_000 < look.pttl(name) <= 3_540_000
    for words in [], ["--wait", "50ms"]:
        late = run("run", "--once-per", "1h", *words, name, "echo", "again")
        assert (late.returncode, late.stdout) == (75, "")
        assert f"the command runs, or has run in the last 3600s, under {name}" in late.stderr
    assert run("run", "-n", name, "true").returncode == 75
    assert run("free", "--force", "--yes", name).returncode == 0
    assert run("run", "--once-per", "1h", name, "echo", "anew").stdout == "anew\n"


def test_the_lock_is_that_of_the_command_until_it_ends(name: str, look: redis.Redis, start: Start) -> None:
    """It is renewed beyond the time, and then released: the time is over."""
    script = "echo on; read line; exit 0"
    job = start(
        *["run", "--once-per", "1s", "-o", "watchdog_lease=2s", name, "sh", "-c", script],
        stdin=subprocess.PIPE,
    )
    assert line(job) == "on"
    # Renewals: the level for the time ended long ago.
    lowest, renewals = look.pttl(name), 0

    def renewed() -> bool:
        nonlocal lowest, renewals
        now = look.pttl(name)
        renewals += now > lowest
        lowest = now
        return renewals >= 3

    eventually(renewed, "it is renewed", LIMIT)
    assert run("run", "-n", name, "true").returncode == 75
    assert ended(job)[0] == 0
    assert not look.exists(name)


def test_the_lock_stays_for_the_rest_of_a_time_shorter_than_its_lease(name: str, look: redis.Redis) -> None:
    assert run("run", "--once-per", "10s", name, "true").returncode == 0
    assert 0 < look.pttl(name) <= 9_000


@pytest.mark.parametrize("job", [["sh", "-c", "exit 3"], ["sh", "-c", "kill -TERM $$"]])
def test_a_job_that_fails_may_be_run_by_another_machine(name: str, look: redis.Redis, job: list[str]) -> None:
    failed = run("run", "--once-per", "1h", name, *job)
    assert failed.returncode in (3, 143)
    assert "another machine may run it" in failed.stderr
    assert not look.exists(name)
    missing = run("run", "--once-per", "1h", name, "no-such-command")
    assert missing.returncode == 127
    assert not look.exists(name)


def test_a_machine_that_waits_runs_what_failed(name: str, start: Start) -> None:
    fails = start(
        "run", "--once-per", "1h", name, "sh", "-c", "echo on; read line; exit 1", stdin=subprocess.PIPE
    )
    assert line(fails) == "on"
    waits = start("run", "--once-per", "1h", "--wait", "1min", name, "echo", "second")
    assert ended(fails)[0] == 1
    assert ended(waits)[:2] == (0, "second\n")


def test_a_lost_lock_ends_the_job_as_ever(name: str, look: redis.Redis, start: Start) -> None:
    job = start("run", "--once-per", "1h", name, "sh", "-c", "echo on; exec sleep 1000")
    assert line(job) == "on"
    look.delete(name)
    code, _, told = ended(job)
    assert code == 76 and f"the lock {name} is lost: deleted" in told
    assert not look.exists(name)


@pytest.mark.parametrize("words", [["-x"], ["-o", "kind=fair"], ["--fencing"]])
def test_it_goes_with_other_locks(name: str, look: redis.Redis, words: list[str]) -> None:
    assert run("run", *words, "--once-per", "1h", name, "true").returncode == 0
    assert look.pttl(name) > 3_000_000
    assert run("run", *words, "--once-per", "1h", name, "true").returncode == 75


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--once-per", "60"], "a time with a unit, from 1s to 24h, such as 1h"),
        (["--once-per", "2days"], "a time with a unit, from 1s to 24h, such as 1h"),
        (["--once-per", "500ms"], "a time with a unit, from 1s to 24h, such as 1h"),
        (["--once-per", "25h"], "a time with a unit, from 1s to 24h, such as 1h"),
        (["--once-per", "1h", "--lease", "1h"], "--lease"),
        (["--once-per", "1h", "--shared"], "--shared"),
        (["--once-per", "1h", "--permits", "2"], "--permits"),
        (["--once-per", "1h", "-o", "kind=simple"], "leave one of the two out"),
        (["-o", "linger=true"], "--once-per TIME in place of -o linger=true"),
    ],
)
def test_what_does_not_go_with_it_is_refused(
    name: str, look: redis.Redis, words: list[str], told: str
) -> None:
    done = run("run", *words, name, "true")
    assert done.returncode == 64
    assert told in done.stderr
    assert not look.exists(name)


def test_a_skip_can_be_silent(name: str, look: redis.Redis) -> None:
    """cron mails each line."""
    look.hset(name, "somebody:1", 1)
    look.pexpire(name, 600_000)
    for words, code in (["-n", "-E", "0"], 0), (["-n", "-q"], 75), (["-q", "--once-per", "1h"], 75):
        done = run("run", *words, name, "true")
        assert (done.returncode, done.stdout, done.stderr) == (code, "", "")
    look.delete(name)
    done = run("run", "-q", name, "sh", "-c", "echo mine >&2; exit 3")
    assert (done.returncode, done.stderr) == (3, "mine\n")


def test_the_command_has_the_url_however_it_was_given(
    name: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "url"
    file.write_text(url + "\n")
    for set_to in None, "redis://another":
        if set_to is None:
            monkeypatch.delenv("REDLATCH_URL")
        else:
            monkeypatch.setenv("REDLATCH_URL", set_to)
        for words in ["--url", url], ["--url-file", str(file)]:
            assert run("run", *words, name, "printenv", "REDLATCH_URL").stdout == url + "\n"


def test_a_long_wait_says_for_whom(name: str, start: Start) -> None:
    holder = start("run", name, "sh", "-c", "echo on; read line", stdin=subprocess.PIPE)
    assert line(holder) == "on"
    waits = start("run", name, "true")
    assert waits.stderr is not None
    told = waits.stderr.readline()
    assert told.startswith(f"redlatch: still waiting: {name} is held by ")
    assert f", process {holder.pid} on " in told
    ended(holder)
    assert ended(waits)[0] == 0


def test_a_holder_shows_its_command(name: str, start: Start) -> None:
    for words, shown in ([], "sh"), (["-o", "client_name=backup"], "backup"):
        holder = start("run", *words, name, "/bin/sh", "-c", "echo on; read line", stdin=subprocess.PIPE)
        assert line(holder) == "on"
        assert f"is held by {shown}, cli, process {holder.pid} on " in run("who", name).stdout
        ended(holder)


def test_another_number_of_permits_is_told(name: str, start: Start) -> None:
    assert run("run", "--permits", "2", name, "true").stderr == ""
    told = run("run", "--permits", "5", name, "true")
    assert told.returncode == 0
    words = (
        f"redlatch: the semaphore {name} has 2 permits already, and --permits 5 does not change that; "
        f"`redlatch permits {name} 5` does\n"
    )
    assert told.stderr == words
    holders = [start("run", "--permits", "2", name, "sh", "-c", "echo on; sleep 1000") for _ in range(2)]
    assert [line(holder) for holder in holders] == ["on", "on"]
    refused = run("run", "-n", "--permits", "5", name, "true")
    assert refused.returncode == 75
    assert refused.stderr.startswith(words)
    assert f"the semaphore {name} has 2 of 2 permits taken, by sh, cli, process " in refused.stderr
    waits = start("run", "--permits", "5", name, "true")
    assert waits.stderr and waits.stderr.readline() == words
    assert run("permits", name, "5").returncode == 0
    assert ended(waits)[0] == 0
