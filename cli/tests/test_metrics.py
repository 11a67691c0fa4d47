"""`watch` for Prometheus: over HTTP, and as a file of node_exporter."""

from __future__ import annotations

import json
import re
import signal
import socket
from http.client import HTTPConnection
from pathlib import Path

import pytest
import redis
from conftest import LIMIT, ROOT, Start, ended, line, run
from ruamel.yaml import YAML
from server import Server, eventually, free_port

OWNER = "0b0e6f2a-8d1c-4c7a-9e55-3d2b1a0f9c8e:17"


def get(port: int, path: str = "/metrics", method: str = "GET") -> tuple[int, str, str]:
    connection = HTTPConnection("127.0.0.1", port, timeout=LIMIT)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.headers["Content-Type"], answer.read().decode()
    finally:
        connection.close()


def values(page: str) -> dict[str, float]:
    """The values by name and labels; every line has the form that Prometheus reads."""
    found = {}
    for text in page.splitlines():
        if not text.startswith("#"):
            fits = re.fullmatch(r'([a-z_]+(?:\{(?:[a-z]+="(?:[^"\\\n]|\\.)*",?)*\})?) ([\d.e+-]+)', text)
            assert fits, text
            found[fits[1]] = float(fits[2])
    return found


def page_of(port: int) -> dict[str, float]:
    status, _, page = get(port)
    # Before the first look is over there is none.
    return values(page) if status == 200 else {}


def has(port: int, metric: str, value: float) -> None:
    def is_there() -> bool:
        try:
            return page_of(port).get(metric) == value
        except OSError:  # it does not listen yet
            return False

    eventually(is_there, f"{metric} is {value}", LIMIT)


def hold(look: redis.Redis, name: str, owner: str = OWNER) -> None:
    with look.pipeline() as together:
        together.delete(name)
        together.hset(name, owner, 1)
        together.pexpire(name, 600_000)
        together.execute()


def test_prometheus_reads_what_watch_sees(start: Start, look: redis.Redis, name: str) -> None:
    hold(look, name)
    port = free_port()
    start("watch", "--prometheus", f":{port}", "--interval", "100ms", "--per-lock", f"{name}*")
    has(port, 'redlatch_lock_held{kind="reentrant"}', 1)
    assert get(port)[1] == "text/plain; version=0.0.4; charset=utf-8"
    page = page_of(port)
    # It was held before the first look.
    assert (page["redlatch_up"], page["redlatch_lock_acquired_total"]) == (1, 0)
    assert page[f'redlatch_lock_held_seconds{{lock="{name}",kind="reentrant"}}'] >= 0
    hold(look, name, OWNER.replace(":17", ":18"))
    has(port, "redlatch_lock_handovers_total", 1)
    hold(look, f'{name}"}} 1')
    has(port, "redlatch_lock_acquired_total", 2)
    look.delete(name)
    has(port, "redlatch_lock_released_total", 1)
    page = page_of(port)
    assert page["redlatch_lock_expired_total"] == 0
    assert page["redlatch_lock_hold_duration_seconds_count"] == 2
    assert page['redlatch_lock_hold_duration_seconds_bucket{le="+Inf"}'] == 2
    assert page["redlatch_lock_hold_duration_seconds_sum"] > 0
    look.delete(f'{name}"}} 1')
    has(port, 'redlatch_lock_held{kind="reentrant"}', 0)


def test_a_lease_that_runs_out_is_counted(start: Start, look: redis.Redis, name: str) -> None:
    hold(look, name)
    port = free_port()
    start("watch", "--prometheus", f":{port}", "--interval", "100ms", name)
    has(port, 'redlatch_lock_held{kind="reentrant"}', 1)
    look.pexpire(name, 2000)
    has(port, "redlatch_lock_expired_total", 1)


def test_other_pages_are_refused(start: Start, name: str) -> None:
    port = free_port()
    start("watch", "--prometheus", f"127.0.0.1:{port}", name)
    has(port, "redlatch_up", 1)
    assert get(port, "/")[0] == 404
    assert get(port, method="POST")[0] == 405
    status, _, body = get(port, method="HEAD")
    assert (status, body) == (200, "")
    # A reader that says nothing sensible does not end it.
    with socket.create_connection(("127.0.0.1", port)) as reader:
        reader.sendall(b"x" * 20_000)
    assert get(port, "/metrics?module=locks")[0] == 200


def test_a_server_that_is_away_is_down(start: Start, tmp_path: Path, name: str) -> None:
    port = free_port()
    with Server() as server:
        watching = start(
            "watch", "--url", server.url, "--prometheus", f":{port}", "--interval", "100ms", name
        )
        has(port, "redlatch_up", 1)
    has(port, "redlatch_up", 0)
    assert not any(metric.startswith("redlatch_lock_held") for metric in page_of(port))
    assert watching.poll() is None


def test_a_service_may_begin_before_its_server(start: Start, name: str) -> None:
    port, of_server = free_port(), free_port()
    url = f"redis://127.0.0.1:{of_server}"
    watching = start("watch", "--url", url, "--prometheus", f":{port}", "--interval", "100ms", name)
    has(port, "redlatch_up", 0)
    assert watching.poll() is None


def test_the_file_is_whole_at_any_time(start: Start, look: redis.Redis, name: str, tmp_path: Path) -> None:
    file = tmp_path / "redlatch.prom"
    start("watch", "--prometheus-file", str(file), "--interval", "100ms", name)
    eventually(file.exists, "the file is there", LIMIT)
    assert values(file.read_text())["redlatch_up"] == 1
    hold(look, name)
    wanted = "redlatch_lock_acquired_total"
    eventually(lambda: values(file.read_text())[wanted] == 1, "the lock is counted", LIMIT)
    look.delete(name)
    assert {path.name for path in tmp_path.glob("*")} == {"redlatch.prom"}


@pytest.mark.parametrize("end", ["SIGTERM", "SIGINT", "SIGHUP", "its reader"])
def test_the_file_goes_with_watch(start: Start, name: str, tmp_path: Path, end: str) -> None:
    """It said `redlatch_up 1` for ever."""
    file = tmp_path / "redlatch.prom"
    watching = start("watch", "--prometheus-file", str(file), "--interval", "100ms", name)
    eventually(file.exists, "the file is there", LIMIT)
    if end == "its reader":
        assert watching.stdout
        watching.stdout.close()
        assert watching.wait(LIMIT) == 0
    else:
        number = signal.Signals[end]
        watching.send_signal(number)
        assert ended(watching)[0] == -number
    assert list(tmp_path.glob("*")) == []


def test_a_file_that_cannot_be_written_later_is_told_of_once(
    start: Start, look: redis.Redis, name: str, tmp_path: Path
) -> None:
    folder, away = tmp_path / "folder", tmp_path / "away"
    folder.mkdir()
    file = folder / "redlatch.prom"
    watching = start("watch", "--prometheus-file", str(file), "--interval", "100ms", name)
    eventually(file.exists, "the file is there", LIMIT)
    folder.rename(away)
    assert watching.stderr
    assert f"cannot write --prometheus-file {file}" in watching.stderr.readline()
    hold(look, name)
    # The lines for people show that it looks again, and fails again.
    assert f" {name} is held by" in line(watching)
    look.delete(name)
    assert line(watching).endswith(f" {name} is free")
    away.rename(folder)
    eventually(
        lambda: values(file.read_text())["redlatch_lock_released_total"] == 1, "it is written again", LIMIT
    )
    watching.terminate()
    assert watching.communicate(timeout=LIMIT)[1] == ""


def test_a_slow_reader_stops_no_other(start: Start, name: str) -> None:
    port = free_port()
    start("watch", "--prometheus", f":{port}", name)
    has(port, "redlatch_up", 1)
    with socket.create_connection(("127.0.0.1", port)) as slow:
        slow.sendall(b"GET /metrics")
        assert get(port)[0] == 200
        # It is not given up yet.
        slow.setblocking(False)
        with pytest.raises(BlockingIOError):
            slow.recv(1)
        slow.settimeout(LIMIT)
        assert slow.recv(1) == b""


def test_lines_for_people_still_come(start: Start, look: redis.Redis, name: str) -> None:
    hold(look, name)
    watching = start("watch", "--prometheus", f":{free_port()}", name)
    assert f"Z {name} is held by {OWNER}" in line(watching)
    look.delete(name)


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["--prometheus", "9121"], 64, "it is an address with a port, such as :9121"),
        (["--prometheus", "192.0.2.1:9121"], 64, "cannot listen at --prometheus 192.0.2.1:9121"),
        (["--prometheus-file", "locks.txt"], 64, "names end in .prom"),
        (
            ["--prometheus-file", "/nowhere/locks.prom"],
            64,
            "cannot write --prometheus-file /nowhere/locks.prom",
        ),
    ],
)
def test_what_cannot_be_served_is_named(words: list[str], code: int, text: str) -> None:
    done = run("watch", *words)
    assert (done.returncode, text in done.stderr) == (code, True), done.stderr


def test_two_programs_at_one_port(start: Start, name: str) -> None:
    port = free_port()
    start("watch", "--prometheus", f":{port}", name)
    has(port, "redlatch_up", 1)
    code, _, errors = ended(start("watch", "--prometheus", f":{port}", name))
    assert (code, "in use" in errors) == (64, True), errors


def test_alerts_and_dashboard_name_metrics_that_are_there(start: Start, name: str) -> None:
    files = ROOT / "examples" / "operate"
    groups = YAML(typ="safe").load((files / "alerts.yml").read_text())["groups"]
    alerts = [rule for group in groups for rule in group["rules"]]
    for rule in alerts:
        assert rule.keys() <= {"alert", "expr", "for", "annotations"}
        assert rule["annotations"].keys() == {"summary"}
    dashboard = json.loads((files / "dashboard.json").read_text())
    variables = {each["name"]: each["query"] for each in dashboard["templating"]["list"]}
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    targets = [target for panel in panels for target in panel["targets"]]
    shown = [target["expr"] for target in targets]
    used = {word for text in shown for word in re.findall(r"\$([a-z]+)", text)}
    assert used == variables.keys() - {"datasource"}
    assert {target["datasource"]["uid"] for target in targets} == {"${datasource}"}
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    port = free_port()
    start("watch", "--prometheus", f":{port}", name)
    has(port, "redlatch_up", 1)
    served = set(re.findall("^# TYPE ([a-z_]+)", get(port)[2], re.MULTILINE))
    page = (ROOT / "docs" / "metrics.md").read_text()
    told = {dotted.replace(".", "_") for dotted in re.findall(r"`(redlatch\.[a-z.]+)`", page)}
    asked = [rule["expr"] for rule in alerts] + shown + [*variables.values()]
    assert alerts and shown
    for text in asked:
        for metric in re.findall(r"\bredlatch_(?!event_kind)[a-z_]+", text):
            plain = re.sub("_(total|seconds_bucket)$", "", metric)
            assert {metric, plain, metric.removesuffix("_bucket")} & (served | told), f"{text}: {metric}"
