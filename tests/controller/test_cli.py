# SPDX-License-Identifier: Apache-2.0
"""The commands as processes: they start, say where they are, explain what is wrong, and end cleanly."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from tests.controller.helpers import until
from tests.harness.switch_process import SwitchProcess
from weir.agent_service.client import AgentClient
from weir.agent_service.proto import agent_pb2
from weir.controller import cli
from weir.controller.qos import TRIM_AT
from weir.controller.status import render
from weir.controller.topology import single_switch

STATUS = "import typer; from weir.controller.cli import status; typer.run(status)"


def controller(*arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "weir.controller", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def status(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", STATUS, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def topology(any_switch: SwitchProcess, tmp_path: Path) -> Path:
    path = tmp_path / "topology.json"
    path.write_text(single_switch(2, any_switch.address).model_dump_json())
    return path


@pytest.fixture
def started(topology: Path, tmp_path: Path) -> Iterator["tuple[subprocess.Popen[str], str]"]:
    """Yield a controller process and its address."""
    ready = tmp_path / "ready.json"
    process = controller(str(topology), "--listen", "127.0.0.1:0", "--ready-file", str(ready))
    until(lambda: ready.exists() or process.poll() is not None)
    told = json.loads(ready.read_text())
    assert told["pid"] == process.pid
    yield process, told["address"]
    process.kill()
    process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_cleanly(
    started: "tuple[subprocess.Popen[str], str]", tmp_path: Path, number: signal.Signals
) -> None:
    process, address = started
    with AgentClient(address) as agent:
        agent.join(job="digits", size=1, rank=0, host="h1")
        process.send_signal(number)
        _, errors = process.communicate()
        assert process.returncode == 0, errors
        assert "Traceback" not in errors
        assert agent.stopped == "job 'digits' was stopped: the controller is shutting down"
    assert not (tmp_path / "ready.json").exists()


def test_status_for_people_and_for_programs(started: "tuple[subprocess.Popen[str], str]") -> None:
    _, address = started
    with AgentClient(address) as agent:
        agent.join(job="digits", size=1, rank=0, host="h2", slots=16)
        told = json.loads(status("--controller", address, "--json").stdout)
        switch = told["switches"][0]
        assert (switch["name"], switch["state"], switch["slots"], switch["slots_used"]) == (
            "s1",
            "ready",
            1024,
            16,
        )
        assert [port["host"] for port in switch["ports"]] == ["h1", "h2"]
        assert switch["ports"][1]["up"] == {"packets": 0, "bytes": 0}
        assert {event["name"] for event in switch["events"]} >= {"contribution", "drop_not_admitted"}
        job = told["jobs"][0]
        # Who shows no token learns neither id nor place of a job.
        assert (job["name"], job["job_id"], job["slot_base"], job["slot_count"]) == ("digits", 0, 0, 16)
        assert [(m["rank"], m["host"], m["state"]) for m in job["members"]] == [(0, "h2", "attending")]
        shown = status("--controller", address)
        assert shown.returncode == 0
        for text in ("s1", "Job digits: running on s1, 16 slots", "attending", "16/1024"):
            assert text in shown.stdout
        assert "id 0x" not in shown.stdout and "slots from" not in shown.stdout


def test_a_hangup_brings_new_settings_and_a_mistake_changes_nothing(
    started: "tuple[subprocess.Popen[str], str]", topology: Path
) -> None:
    process, address = started

    def trim_at() -> int:
        (row,) = [c for c in json.loads(told())["switches"][0]["classes"] if c["dscp"] == 38]
        return int(row["trim_at"])

    def told() -> str:
        return status("--controller", address, "--json").stdout

    def rewrite(**sections: object) -> None:
        topology.write_text(json.dumps({**written, **sections}))
        process.send_signal(signal.SIGHUP)

    def logged(what: str) -> None:
        assert process.stderr is not None
        assert any(what in line for line in process.stderr)

    written = json.loads(topology.read_text())
    assert trim_at() == TRIM_AT[0]
    rewrite(qos={"classes": {"AF43": {"trim_at": 5}}})
    until(lambda: trim_at() == 5)
    rewrite(hosts=[], qos={"classes": {"AF43": {"trim_at": 6}}})
    logged("hosts changed, but only qos may while the controller runs")
    rewrite(qos={"classes": {"AF43": {"trim_at": "soon"}}})
    logged("is not a valid topology")
    assert trim_at() == 5


def test_a_busy_leaf_is_shown_with_its_paths_queues_classes_and_losses() -> None:
    def traffic(packets: int) -> Any:
        return agent_pb2.Traffic(packets=packets, bytes=1000 * packets)

    queues = [
        agent_pb2.QueueStatus(queue=6, queued=traffic(50), trimmed=traffic(7), marked=traffic(3)),
        agent_pb2.QueueStatus(queue=5),
    ]
    classes = [
        agent_pb2.ClassStatus(
            dscp=38, name="AF43", queue=4, trim_at=TRIM_AT[0], mark_at=12, drop_at=65535, traffic=traffic(57)
        )
    ]
    paths = [
        agent_pb2.PathStatus(port=number, spine=f"spine{number}", traffic=traffic(number))
        for number in (1, 3)
    ]
    leaf = agent_pb2.SwitchStatus(
        name="leaf1",
        role="leaf",
        state="ready",
        queues=queues,
        classes=classes,
        paths=paths,
        spray="round_robin",
        losses=[agent_pb2.LossStatus(port=3, direction="egress", dscp=-1, probability=0.01)],
    )
    spine = agent_pb2.SwitchStatus(name="spine1", role="spine", state="connecting", given_up=True)
    console = Console(record=True, width=160)
    with console.capture() as capture:
        render(agent_pb2.StatusReply(switches=[leaf, spine]), console)
    rows = [" ".join(line.replace("│", " ").split()) for line in capture.get().splitlines()]
    assert any("spine1 spine" in row and "given up" in row for row in rows)
    assert "1 spine1 1 (1.0 kB) 25.0%" in rows
    assert "3 spine3 3 (3.0 kB) 75.0%" in rows
    assert "6 50 (50.0 kB) 7 (7.0 kB) 3 (3.0 kB) 0" in rows
    assert f"38 AF43 4 {TRIM_AT[0]} 12 never 57 (57.0 kB)" in rows
    assert "3 egress all 0.01" in rows


def test_drops_stand_out() -> None:
    events = [
        agent_pb2.EventCount(
            name="contribution", help="first", count=agent_pb2.Traffic(packets=7, bytes=1500)
        ),
        agent_pb2.EventCount(
            name="drop_not_admitted",
            help="not installed",
            drop=True,
            count=agent_pb2.Traffic(packets=3, bytes=2_500_000),
        ),
        agent_pb2.EventCount(name="drop_malformed", help="malformed", drop=True),
    ]
    switch = agent_pb2.SwitchStatus(name="s1", state="connecting", problem="refused", events=events)
    console = Console(record=True, width=120, force_terminal=True, color_system="standard", quiet=False)
    with console.capture() as capture:
        render(agent_pb2.StatusReply(switches=[switch]), console)
    lines = capture.get().splitlines()
    (drop,) = [line for line in lines if "drop_not_admitted" in line]
    (good,) = [line for line in lines if "contribution" in line]
    assert "\x1b[1;31m" in drop
    assert "\x1b[1;31m" not in good
    assert "2.5 MB" in drop
    assert not any("drop_malformed" in line for line in lines)
    assert any("refused" in line for line in lines)


def test_status_of_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weir.agent_service.client.CONNECT_TIMEOUT_S", 0.2)
    code, errors = run_here(cli.status, "--controller", "127.0.0.1:1")
    assert code == 1
    assert "weir: no controller answers at 127.0.0.1:1" in errors


@pytest.mark.parametrize(
    ("text", "arguments", "says"),
    [
        ('{"switches": []}', [], "is not a valid topology"),
        (None, [], "cannot read topology file"),
        (
            '{"switches": [{"name": "s1", "grpc": "127.0.0.1:1", "tls": {"ca": "no/ca.pem"}}]}',
            [],
            "switch s1, ca: ",
        ),
        ("good", ["--p4-dir", "/nowhere"], "cannot read compiled P4 program /nowhere/weir_v1model.json"),
        ("good", ["--tls-cert", "/nowhere/a.pem"], "belong together"),
        ("good", ["--listen", "999.0.0.1:1"], "cannot listen at 999.0.0.1:1"),
        (
            "good",
            ["--state-file", "/nowhere/jobs.json"],
            "cannot write state file /nowhere/jobs.json: /nowhere: No such file or directory",
        ),
        ("good", ["--state-file", "/proc/self/jobs.json"], "cannot write state file /proc/self/jobs.json: "),
    ],
)
def test_what_is_wrong_at_the_start_is_said_in_one_line(
    tmp_path: Path, text: str | None, arguments: list[str], says: str
) -> None:
    path = tmp_path / "topology.json"
    if text is not None:
        path.write_text(single_switch(1, "127.0.0.1:1").model_dump_json() if text == "good" else text)
    code, errors = run_here(cli.controller, str(path), "--listen", "127.0.0.1:0", *arguments)
    assert code == 1
    assert errors.startswith("weir: ")
    assert says in errors


def run_here(command: Callable[..., None], *arguments: str) -> tuple[int, str]:
    """Return a command in this process: its exit code and what it said was wrong."""
    app = typer.Typer()
    app.command()(command)
    told = CliRunner().invoke(app, arguments)
    return told.exit_code, told.stderr
