# SPDX-License-Identifier: Apache-2.0
"""The commands as processes: they start, say where they are, explain what is wrong, and end cleanly."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from controller import cli
from controller.client import AgentClient
from controller.proto import agent_pb2
from controller.status import render
from controller.topology import single_switch
from tests.controller.helpers import until
from tests.controller.switches import SwitchProcess

STATUS = "import typer; from controller.cli import status; typer.run(status)"


def controller(*arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "controller", *arguments]
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
    """A controller process and its address."""
    ready = tmp_path / "ready.json"
    process = controller("--topology", str(topology), "--listen", "127.0.0.1:0", "--ready-file", str(ready))
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
        member = agent.join(job="digits", size=1, rank=0, host="h2", slots=16)
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
        assert (job["name"], job["job_id"], job["slot_count"]) == ("digits", member.job_id, 16)
        assert [(m["rank"], m["host"], m["state"]) for m in job["members"]] == [(0, "h2", "attending")]
        shown = status("--controller", address)
        assert shown.returncode == 0
        for text in ("s1", "digits", f"{member.job_id:#010x}", "attending", "16/1024"):
            assert text in shown.stdout


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
    monkeypatch.setattr("controller.client.CONNECT_TIMEOUT_S", 0.2)
    code, errors = run_here(cli.status, "--controller", "127.0.0.1:1")
    assert code == 1
    assert "weir: no controller answers at 127.0.0.1:1" in errors


@pytest.mark.parametrize(
    ("text", "arguments", "says"),
    [
        ('{"switches": []}', [], "is not a valid topology"),
        (None, [], "cannot read topology file"),
        ("good", ["--p4-dir", "/nowhere"], "cannot read compiled P4 program /nowhere/weir_v1model.json"),
        ("good", ["--tls-cert", "/nowhere/a.pem"], "belong together"),
        ("good", ["--listen", "999.0.0.1:1"], "cannot listen at 999.0.0.1:1"),
    ],
)
def test_what_is_wrong_at_the_start_is_said_in_one_line(
    tmp_path: Path, text: str | None, arguments: list[str], says: str
) -> None:
    path = tmp_path / "topology.json"
    if text is not None:
        path.write_text(single_switch(1, "127.0.0.1:1").model_dump_json() if text == "good" else text)
    code, errors = run_here(cli.controller, "--topology", str(path), "--listen", "127.0.0.1:0", *arguments)
    assert code == 1
    assert errors.startswith("weir: ")
    assert says in errors


def run_here(command: Callable[..., None], *arguments: str) -> tuple[int, str]:
    """A command in this process: its exit code and what it said was wrong."""
    app = typer.Typer()
    app.command()(command)
    told = CliRunner().invoke(app, arguments)
    return told.exit_code, told.stderr
