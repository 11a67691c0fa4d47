"""`redlatch run`: a command that runs while the lock is held."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis
from conftest import LIMIT, PROGRAM, Start, Started, children, ended, gone, is_alive, line, run
from server import Server, eventually

# A shell that says when it has begun, and then waits for a child of its own.
WAITING = "echo $$; sleep 1000 & echo $!; wait"
LEASE = "watchdog_lease=2s"


# ---- the command's face ----


@pytest.mark.parametrize("code", [0, 1, 7, 255])
def test_the_exit_code_is_that_of_the_command(name: str, code: int) -> None:
    assert run("run", name, "--", "sh", "-c", f"exit {code}").returncode == code


def test_a_signal_that_ends_the_command_gives_128_and_its_number(name: str) -> None:
    assert run("run", name, "sh", "-c", "kill -KILL $$").returncode == 128 + signal.SIGKILL


def test_a_pipe_with_the_url_is_read_once(name: str, url: str) -> None:
    """As `--url-file <(pass redis)` makes one."""
    words = [PROGRAM, "run", "--url-file", "/dev/stdin", name, "sh", "-c", "echo $REDLATCH_URL"]
    env = {name: value for name, value in os.environ.items() if name != "REDLATCH_URL"}
    done = subprocess.run(words, input=f"{url}\n", env=env, capture_output=True, text=True, timeout=LIMIT)
    assert (done.returncode, done.stdout) == (0, f"{url}\n"), done.stderr


def test_input_and_output_are_those_of_the_command(name: str) -> None:
    done = subprocess.run(
        [PROGRAM, "run", name, "--", "sh", "-c", "cat; echo problem >&2"],
        input="a line\n",
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "a line\n", "problem\n")


def test_words_of_the_command_are_not_ours(name: str) -> None:
    """All words after the first of the command belong to it, with and without `--`."""
    for dashes in ([], ["--"]):
        done = run("run", name, *dashes, "echo", "--wait", "-n", "--", "end")
        assert done.stdout == "--wait -n -- end\n"


def test_the_lock_is_held_while_the_command_runs(name: str, look: redis.Redis, start: Start) -> None:
    process = start("run", name, "sh", "-c", "echo on; read line", stdin=subprocess.PIPE)
    assert line(process) == "on"
    assert look.exists(name)
    assert ended(process)[0] == 1  # the end of its input
    assert not look.exists(name)


def test_the_fencing_token_grows(name: str) -> None:
    tokens = [
        int(run("run", "--fencing", name, "printenv", "REDLATCH_FENCING_TOKEN").stdout) for _ in range(2)
    ]
    assert tokens[0] < tokens[1]
    assert run("run", name, "printenv", "REDLATCH_FENCING_TOKEN").returncode == 1


def test_a_command_that_is_missing_leaves_nothing(name: str, look: redis.Redis) -> None:
    missing, folder = run("run", name, "no-such-command"), run("run", name, "/")
    assert missing.returncode == 127
    assert missing.stderr.startswith("redlatch: cannot run no-such-command: No such file")
    assert folder.returncode == 126
    assert not look.exists(name)


# ---- the sides of a read-write lock ----


def test_shared_commands_run_beside_each_other_and_an_exclusive_one_alone(
    name: str, look: redis.Redis, start: Start
) -> None:
    inside = ["sh", "-c", "echo on; read line"]
    shared = [start("run", "--shared", name, *inside, stdin=subprocess.PIPE) for _ in range(2)]
    for process in shared:
        assert line(process) == "on"
    refused = run("run", "-n", "--exclusive", name, "true")
    assert refused.returncode == 75
    assert name in refused.stderr and "process" in refused.stderr
    exclusive = start("run", "-x", name, *inside, stdin=subprocess.PIPE)
    shown = lambda: run("who", "--json", name).stdout.replace(" ", "")  # noqa: E731
    eventually(lambda: '"waiting":1' in shown(), "one waits")
    for process in shared:
        ended(process)
    assert line(exclusive) == "on"
    assert run("run", "-n", "-s", name, "true").returncode == 75
    assert run("run", "-n", name, "true").returncode == 65, "a lock without sides is another kind"
    ended(exclusive)
    assert not look.exists(name)


def test_as_many_commands_run_as_there_are_permits(name: str, look: redis.Redis, start: Start) -> None:
    inside = ["sh", "-c", "echo on; read line"]
    running = [start("run", "--permits", "2", name, *inside, stdin=subprocess.PIPE) for _ in range(2)]
    for process in running:
        assert line(process) == "on"
    refused = run("run", "-n", "--permits", "2", name, "true")
    assert refused.returncode == 75
    assert name in refused.stderr and "process" in refused.stderr
    who = json.loads(run("who", "--json", name).stdout)
    assert who["kind"] == "semaphore" and [holder["levels"] for holder in who["holders"]] == [1, 1]
    assert {holder["client"]["pid"] for holder in who["holders"]} == {process.pid for process in running}
    assert who.pop("permits") == {"limit": 2, "taken": 2}
    (listed,) = json.loads(run("ls", "--json", name).stdout)
    assert {**listed, "remaining_ms": 0, "waiting": 0} == {**who, "remaining_ms": 0, "waiting": 0}
    waits = start("run", "--permits", "2", name, *inside, stdin=subprocess.PIPE)
    ended(running[0])
    assert line(waits) == "on"
    ended(running[1])
    ended(waits)
    assert look.get(name) == "2" and run("who", name).returncode == 1
    assert run("run", "--permits", "0", name, "true").returncode == 64
    assert run("run", "--permits", "2", "--shared", name, "true").returncode == 64


def test_the_sides_exclude_each_other_and_a_token_is_for_the_writer(name: str) -> None:
    assert run("run", "--shared", "--exclusive", name, "true").returncode == 64
    assert run("run", "--shared", "--fencing", name, "true").returncode == 64
    assert int(run("run", "-x", "--fencing", name, "printenv", "REDLATCH_FENCING_TOKEN").stdout) > 0


# ---- waiting ----


def test_commands_run_one_after_the_other(name: str, start: Start, tmp_path: Path) -> None:
    # mkdir fails when the folder is there: then two were inside.
    script = "mkdir inside && echo $(($(cat count) + 1)) > count && rmdir inside"
    (tmp_path / "count").write_text("0")
    processes = [start("run", name, "sh", "-c", script) for _ in range(8)]
    assert [ended(process)[0] for process in processes] == [0] * 8
    assert (tmp_path / "count").read_text() == "8\n"


def test_a_lock_that_is_held_is_a_conflict(name: str, start: Start) -> None:
    holder = start("run", name, "sh", "-c", "echo on; read line", stdin=subprocess.PIPE)
    line(holder)
    for words in (["-n"], ["--nonblock"], ["--wait", "50ms"]):
        refused = run("run", *words, name, "echo", "never")
        assert (refused.returncode, refused.stdout) == (75, "")
        assert f"{name} is held by " in refused.stderr
        assert f", process {holder.pid} on " in refused.stderr
    assert run("run", "-n", "-E", "3", name, "true").returncode == 3
    ended(holder)
    assert run("run", "-n", name, "true").returncode == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_wait(name: str, look: redis.Redis, start: Start, number: signal.Signals) -> None:
    look.hset(name, "somebody:1", 1)
    look.pexpire(name, 600_000)
    process = start("run", name, "echo", "never")
    channel = f"redisson_lock__channel:{{{name}}}"
    eventually(lambda: look.pubsub_numsub(channel)[0][1], "the waiter listens", LIMIT)
    process.send_signal(number)
    assert ended(process) == (128 + number, "", "")
    assert look.hgetall(name) == {"somebody:1": "1"}


# ---- signals while it runs ----


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_goes_to_the_command(name: str, start: Start, number: signal.Signals) -> None:
    trap = f"trap 'echo got; exit 5' {int(number)}; echo on; while :; do sleep 0.02; done"
    process = start("run", name, "sh", "-c", trap)
    assert line(process) == "on"
    process.send_signal(number)
    assert ended(process)[:2] == (5, "got\n")


def test_what_nohup_ignores_stays_ignored(name: str, start: Start) -> None:
    ask = "grep SigIgn /proc/self/status; read line"
    ignore = lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)  # noqa: E731
    process = start("run", name, "sh", "-c", ask, stdin=subprocess.PIPE, preexec_fn=ignore)
    assert int(line(process).split()[1], 16) & 1
    process.send_signal(signal.SIGHUP)
    assert ended(process)[0] == 1


def read_until(terminal: int, wanted: bytes) -> bytes:
    text = b""
    while wanted not in text:
        text += os.read(terminal, 1024)
    return text


# Says each signal that it gets: a handler of a shell, or of Python, may run once for two of them.
EACH_SIGNAL = """
import os, signal
told, tell = os.pipe()
os.set_blocking(tell, False)
signal.set_wakeup_fd(tell)
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda *_: None)
print("on", flush=True)
while os.read(told, 1)[0] == signal.SIGINT:
    print("int", flush=True)
print("end", flush=True)
raise SystemExit(6)
"""


def test_ctrl_c_reaches_the_command_once(name: str) -> None:
    """The terminal sends to the whole job. A copy from us would be the second."""
    # The kernel may merge a copy with the signal itself, but hardly every time.
    times = 20
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(PROGRAM, [PROGRAM, "run", name, sys.executable, "-c", EACH_SIGNAL])
    try:
        read_until(terminal, b"on")
        said = b""
        for _ in range(times):
            os.write(terminal, b"\x03")
            said += read_until(terminal, b"int")
        os.kill(pid, signal.SIGTERM)
        said += read_until(terminal, b"end")
        assert said.count(b"int") == times
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 6
    finally:
        os.close(terminal)


def interrupted(process: Started, interrupt: Callable[[], object], times: int) -> None:
    """Each interrupt is one for the command, and what goes to redlatch alone goes on to it."""
    for _ in range(times):
        interrupt()
        assert line(process) == "int"
    # It goes behind a copy that would be one too many.
    os.kill(pid_of(process), signal.SIGTERM)
    assert line(process) == "end"
    assert ended(process)[0] == 6


def pid_of(process: Started) -> int:
    """Of redlatch, which timeout(1) may have started."""
    (pid,) = [process.pid] if Path(f"/proc/{process.pid}/exe").samefile(PROGRAM) else children(process.pid)
    return pid


def test_a_signal_to_the_whole_group_reaches_the_command_once(name: str, start: Start) -> None:
    """As a shell script ends its jobs. A copy from us was a second SIGTERM: "at once", to many programs."""
    process = start("run", name, sys.executable, "-c", EACH_SIGNAL)
    assert line(process) == "on"
    interrupted(process, lambda: os.killpg(process.pid, signal.SIGINT), 5)


def test_a_signal_to_each_process_of_a_unit_reaches_the_command_once(name: str, start: Start) -> None:
    """As systemd ends a unit: each process of the control group gets it."""
    process = start("run", name, sys.executable, "-c", EACH_SIGNAL)
    assert line(process) == "on"

    def interrupt() -> None:
        for pid in [*children(process.pid), process.pid]:
            os.kill(pid, signal.SIGINT)

    interrupted(process, interrupt, 1)


def test_a_signal_for_what_runs_beside_the_command_changes_nothing(name: str, start: Start) -> None:
    """As `pkill sleep` sends it. The next signal to redlatch alone looked like one for all."""
    process = start("run", name, sys.executable, "-c", EACH_SIGNAL)
    assert line(process) == "on"
    (command,) = [pid for pid in children(process.pid) if Path(f"/proc/{pid}/exe").samefile(sys.executable)]

    def beside() -> list[int]:
        """When it is a program of its own. Until then it handles signals as redlatch does."""
        found = []
        for pid in {*children(process.pid)} - {command}:
            with suppress(FileNotFoundError):
                if not Path(f"/proc/{pid}/exe").samefile(PROGRAM):
                    found.append(pid)
        return found

    for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGTERM):
        eventually(beside, "one", LIMIT)
        (before,) = beside()
        os.kill(before, number)
        eventually(partial(lambda before: {*beside()} - {before}, before), "another one", LIMIT)
    # It goes on 0.1 s later, and then the signals from before are of no account.
    os.kill(process.pid, signal.SIGINT)
    assert line(process) == "int"
    os.kill(process.pid, signal.SIGTERM)
    assert ended(process) == (6, "end\n", "")


def test_a_signal_that_comes_again_goes_on_again(name: str, start: Start) -> None:
    process = start("run", name, sys.executable, "-c", EACH_SIGNAL)
    assert line(process) == "on"
    interrupted(process, lambda: process.send_signal(signal.SIGINT), 3)


def test_timeout_around_it_interrupts_the_command_once(name: str, tmp_path: Path) -> None:
    """It sends to its child, and then to the group."""
    with subprocess.Popen(
        ["timeout", "1000", PROGRAM, "run", name, sys.executable, "-c", EACH_SIGNAL],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert line(process) == "on"
        interrupted(process, lambda: process.send_signal(signal.SIGINT), 1)


def test_a_signal_to_the_group_of_a_command_in_another_one_goes_on_to_it(name: str, start: Start) -> None:
    script = "import os, signal, time; os.setpgid(0, 0); print('on', flush=True); time.sleep(1000)"
    process = start("run", name, sys.executable, "-c", script)
    assert line(process) == "on"
    os.killpg(process.pid, signal.SIGTERM)
    assert ended(process)[0] == 128 + signal.SIGTERM


def test_signals_by_name_reach_the_command(name: str, start: Start) -> None:
    """pkill -f and its like find redlatch alone, not what it has beside the command."""
    process = start("run", name, sys.executable, "-c", EACH_SIGNAL)
    assert line(process) == "on"
    tree = [process.pid, *children(process.pid)]
    found = [pid for pid in tree if "redlatch" in Path(f"/proc/{pid}/cmdline").read_text()]
    assert found == [process.pid]
    assert [pid for pid in tree if "redlatch" in os.readlink(f"/proc/{pid}/exe")] == [process.pid]
    for pid in found:
        os.kill(pid, signal.SIGTERM)
    assert ended(process)[0] == 6


def test_nothing_is_left_beside_the_command(name: str, start: Start) -> None:
    process = start("run", name, "sh", "-c", "echo on; read line", stdin=subprocess.PIPE)
    assert line(process) == "on"
    beside = children(process.pid)
    ended(process)
    gone(*beside)
    process = start("run", "-o", LEASE, name, "sh", "-c", "echo on; read line", stdin=subprocess.PIPE)
    assert line(process) == "on"
    beside = children(process.pid)
    process.kill()
    gone(*beside)


def test_ctrl_c_reaches_a_command_with_a_process_group_of_its_own(name: str) -> None:
    """As timeout(1) makes one: the terminal does not send to it."""
    pid, terminal = pty.fork()
    if pid == 0:
        script = "import os, signal, time; os.setpgid(0, 0); print('on', flush=True); time.sleep(1000)"
        os.execv(PROGRAM, [PROGRAM, "run", name, sys.executable, "-c", script])
    read_until(terminal, b"on")
    os.write(terminal, b"\x03")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 128 + signal.SIGINT
    os.close(terminal)


def test_a_hangup_reaches_the_command(name: str, look: redis.Redis) -> None:
    """The kernel tells the leader of the session only."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(PROGRAM, [PROGRAM, "run", name, "sh", "-c", "echo on; sleep 1000"])
    read_until(terminal, b"on")
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 128 + signal.SIGHUP
    assert not look.exists(name)


def test_a_real_time_signal_ends_the_command(name: str) -> None:
    number = signal.SIGRTMIN + 6
    assert run("run", name, "sh", "-c", f"kill -{number} $$").returncode == 128 + number


def test_blocked_signals_are_unblocked(name: str, start: Start) -> None:
    """A mask survives exec, and a parent may have blocked them."""

    def block() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD, signal.SIGTERM])

    assert run("run", name, "true", preexec_fn=block).returncode == 0
    program = start(
        "run", name, "sh", "-c", "trap 'exit 7' TERM; echo on; while :; do sleep 0.02; done", preexec_fn=block
    )
    assert line(program) == "on"
    program.terminate()
    assert ended(program)[0] == 7


def test_the_token_of_an_outer_lock_is_not_passed_on(name: str) -> None:
    inner = [PROGRAM, "run", f"{name}:inner", "sh", "-c", "echo ${REDLATCH_FENCING_TOKEN-none}"]
    assert run("run", "--fencing", name, *inner).stdout == "none\n"


def test_a_loss_spares_processes_that_were_there_before(name: str, look: redis.Redis, start: Start) -> None:
    script = f'sleep 1000 >&- 2>&- & echo $!; exec "{PROGRAM}" run --on-lost kill {name} sh -c "echo on; sleep 1000"'
    program = start("run", f"{name}:outer", "sh", "-c", script)
    earlier = int(line(program))
    assert line(program) == "on"
    look.delete(name)
    assert ended(program)[0] == 76
    assert is_alive(earlier)
    os.kill(earlier, signal.SIGKILL)


def test_the_terminal_is_the_commands(name: str) -> None:
    """The command is in the foreground: it may read, and sees a terminal on all three."""
    script = "test -t 0 && test -t 1 && test -t 2 && read answer && echo answer is $answer"
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(PROGRAM, [PROGRAM, "run", name, "sh", "-c", script])
    try:
        os.write(terminal, b"yes\n")
        read_until(terminal, b"answer is yes")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finally:
        os.close(terminal)


# ---- losing the lock ----


def test_a_loss_ends_the_command_and_its_children(name: str, look: redis.Redis, start: Start) -> None:
    process = start("run", name, "sh", "-c", WAITING)
    pids = int(line(process)), int(line(process))
    look.delete(name)
    code, _, err = ended(process)
    assert code == 76
    assert err == f"redlatch: the lock {name} is lost: deleted\nredlatch: sending SIGTERM to the command\n"
    gone(*pids)


def test_a_process_that_starts_beside_the_kill_ends_too(name: str, look: redis.Redis, start: Start) -> None:
    forks = "i=0; while [ $i -lt 300 ]; do sleep 1000 & i=$((i + 1)); done; wait"
    process = start("run", "--on-lost", "kill", name, "sh", "-c", f"({forks}) & ({forks}) & echo on; {forks}")
    assert line(process) == "on"
    look.delete(name)
    # Each `sleep` has the output open, so it ends when all of them have ended.
    assert ended(process)[0] == 76


def test_a_lost_permit_ends_the_command_that_has_it(name: str, server: Server, start: Start) -> None:
    """The other one goes on."""
    # The ids of permits are no text.
    look = redis.Redis(port=server.port)
    permits = ("run", "--permits", "2", name)
    taken = f"{{{name}}}:timeout"
    spared = start(*permits, "sh", "-c", "echo on; read line", stdin=subprocess.PIPE)
    assert line(spared) == "on"
    ids: Any = look.zrange(taken, 0, -1)
    (of_the_other,) = ids
    process = start(*permits, "sh", "-c", WAITING)
    pids = int(line(process)), int(line(process))
    ids = look.zrange(taken, 0, -1)
    (ours,) = {*ids} - {of_the_other}
    look.zrem(taken, ours)
    code, _, err = ended(process)
    assert code == 76
    assert err == f"redlatch: the lock {name} is lost: stolen\nredlatch: sending SIGTERM to the command\n"
    gone(*pids)
    assert spared.poll() is None
    assert ended(spared)[0] == 1
    goes_on = start("run", "--permits", "2", "--on-lost", "ignore", "--lease", "300ms", name, "sleep", "1")
    code, _, err = ended(goes_on)
    assert (code, "is lost: expired" in err) == (0, True)
    look.close()


def test_a_killed_redlatch_leaves_no_permit(name: str, start: Start) -> None:
    process = start("run", "-o", LEASE, "--permits", "1", name, "sh", "-c", "echo $$; while :; do :; done")
    command = int(line(process))
    process.kill()
    gone(command)
    assert run("run", "--permits", "1", name, "true").returncode == 0


def test_a_command_that_ignores_the_first_signal_gets_the_next(
    name: str, look: redis.Redis, start: Start
) -> None:
    script = f"trap 'echo no' TERM; {WAITING}; echo on; while :; do sleep 0.02; done"
    process = start("run", "--on-lost", "term,100ms,kill", name, "sh", "-c", script)
    pids = int(line(process)), int(line(process))
    look.delete(name)
    code, out, err = ended(process)
    assert code == 76
    assert out.startswith("no\n")
    assert err.endswith("sending SIGKILL to the command\n")
    gone(*pids)


def test_an_orphan_of_the_command_ends_too(name: str, look: redis.Redis, start: Start) -> None:
    """A command that ends on the signal leaves a child behind, which ignores the signal."""
    script = "(trap '' TERM; echo orphan; sleep 1000) & echo $!; exec sleep 1000"
    process = start("run", "--on-lost", "term,100ms,kill", name, "sh", "-c", script)
    said = {line(process), line(process)}
    orphan = int((said - {"orphan"}).pop())
    look.delete(name)
    assert ended(process)[0] == 76
    gone(orphan)


def test_ignore_lets_the_command_go_on(name: str, look: redis.Redis, start: Start) -> None:
    process = start(
        "run", "--on-lost", "ignore", name, "sh", "-c", "echo on; read line; exit 4", stdin=subprocess.PIPE
    )
    assert line(process) == "on"
    look.delete(name)
    assert process.stderr is not None
    assert process.stderr.readline() == f"redlatch: the lock {name} is lost: deleted\n"
    assert process.poll() is None
    assert ended(process)[0] == 4


def test_a_refusal_that_passes_is_told(name: str) -> None:
    with Server("", "--min-replicas-to-write", "1") as server, redis.Redis(port=server.port) as look:
        process = subprocess.Popen(
            [PROGRAM, "run", "--url", server.url, name, "true"], stderr=subprocess.PIPE, text=True
        )
        try:
            assert process.stderr is not None
            told = process.stderr.readline()
            assert told.startswith("redlatch: still waiting, because "), told
            assert "min-replicas-to-write" in told
            look.config_set("min-replicas-to-write", 0)
            assert process.wait(LIMIT) == 0
            assert process.stderr.read() == ""
        finally:
            process.kill()
            process.communicate()


def test_nothing_is_told_while_somebody_holds_it(name: str, look: redis.Redis, start: Start) -> None:
    look.hset(name, "somebody:1", 1)
    look.pexpire(name, 5_000)
    assert ended(start("run", name, "true")) == (0, "", "")


def test_a_fixed_lease_ends_the_command(name: str, start: Start) -> None:
    code, _, err = ended(start("run", "--lease", "300ms", name, "sleep", "1000"))
    assert code == 76
    assert "is lost: expired" in err


def test_a_server_that_goes_away_ends_the_command(name: str, start: Start) -> None:
    with Server() as own:
        process = start("--url", own.url, "run", "-o", LEASE, name, "sh", "-c", WAITING)
        pids = int(line(process)), int(line(process))
        own.kill()
        code, _, err = ended(process)
    assert code == 76
    assert "is lost: unreachable" in err
    gone(*pids)


def test_a_killed_redlatch_leaves_no_command_and_no_lock(name: str, look: redis.Redis, start: Start) -> None:
    # The shell ignores all signals that it can.
    process = start(
        "run", "-o", LEASE, name, "sh", "-c", "trap '' TERM INT HUP; echo $$; while :; do :; done"
    )
    command = int(line(process))
    process.kill()
    gone(command)
    eventually(lambda: not look.exists(name), "the lease ends", LIMIT)


def test_a_stopped_command_keeps_its_lock(name: str, look: redis.Redis, start: Start) -> None:
    process = start("run", "-o", LEASE, name, "sh", "-c", "echo $$; read line", stdin=subprocess.PIPE)
    command = int(line(process))
    os.kill(command, signal.SIGSTOP)
    lowest = look.pttl(name)

    def renewed() -> bool:
        nonlocal lowest
        now = look.pttl(name)
        lowest, grown = min(lowest, now), now > lowest
        return grown

    eventually(renewed, "it is renewed", LIMIT)
    assert is_alive(command)
    os.kill(command, signal.SIGCONT)
    assert ended(process)[0] == 1
