# SPDX-License-Identifier: Apache-2.0
"""``weir train`` from end to end, on the real switch, controller, transport and torch."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest
from typer.testing import CliRunner

import weir
from tests.harness.commands import WEIR, Command
from tests.harness.confined import Capability, without
from tests.harness.forked import forked_clusters  # noqa: F401
from tests.harness.ports import free_port
from tests.harness.processes import children, name, wait_until_gone
from weir.cli import app
from weir.host_agent.compression.sparsifiers import base
from weir.pcap.audit import PacketAudit
from weir.pcap.frames import read_frames
from weir.pcap.rounds import Trace
from weir.train.record import StepSummary


def start(out: Path, *options: str, **variables: str) -> Command:
    words = (*WEIR, "train", "--model", "cnn", "--workers", "2", "--out", out, *options)
    return Command(*words, environment={"COLUMNS": "200", **variables})


VARIABLES: Final = {
    **dict.fromkeys(("RANK", "WORLD_SIZE", "MASTER_ADDR", "WEIR_CONTROLLER")),
    "COLUMNS": "200",
}
"""The environment of ``weir train``: what differs from the tests', None for what it does not have."""


def environment() -> dict[str, str]:
    return {name: value for name, value in {**os.environ, **VARIABLES}.items() if value is not None}


def train(out: Path, *options: str) -> tuple[int, str]:
    """Run ``weir train`` in this process, which has torch already; return its status and what it printed."""
    command = ["train", "--model", "cnn", "--workers", "2", "--out", str(out), *options]
    done = CliRunner().invoke(app, command, env=VARIABLES, catch_exceptions=False)
    return done.exit_code, done.output


def train_apart(out: Path, *options: str) -> tuple[int, str]:
    """Do the same in a process of its own, which a plugin's methods are registered in."""
    with start(out, *options) as process:
        output = process.said(240)
        assert process.returncode is not None
        return process.returncode, output


def workers() -> dict[str, int]:
    """Return the living workers of trainings in this process, by their names."""
    names = {name(pid): pid for pid in children(os.getpid())}
    return {each: pid for each, pid in names.items() if each.startswith("worker-")}


def folder(out: Path) -> Path:
    (made,) = out.iterdir()
    return made


def summary(out: Path) -> dict[str, Any]:
    return json.loads((folder(out) / "summary.json").read_text())


def steps(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder(out) / "steps.jsonl").read_text().splitlines()]


def wait_for_steps(out: Path, number: int, limit_s: float = 120) -> None:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if any(out.glob("*/steps.jsonl")) and len(steps(out)) >= number:
            return
        time.sleep(0.02)
    raise AssertionError(f"no {number} steps were trained")


@pytest.mark.parametrize(
    ("command", "file", "runs"),
    [
        (["train", "--no-reference", "--method", "dense"], "summary.json", "runs"),
        (["compare", "--methods", "dense"], "compare.json", "methods"),
    ],
)
def test_json_is_all_that_standard_output_gets(
    command: list[str], file: str, runs: str, tmp_path: Path
) -> None:
    short = ("--model", "mlp", "--workers", "2", "--epochs", "1", "--max-steps", "2", "--out", str(tmp_path))
    done = CliRunner().invoke(app, [*command, *short, "--json"], env=VARIABLES, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    printed = json.loads(done.stdout)
    written = json.loads((folder(tmp_path) / file).read_text())
    assert printed == {"folder": str(folder(tmp_path)), **written}
    assert printed["status"] == "complete" and len(printed[runs]) == 1
    assert "written to" in done.stderr


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str, Path]]:
    """Yield one short run with its reference, shared: its folder, what it printed, its capture."""
    out = tmp_path_factory.mktemp("train")
    pcap = tmp_path_factory.mktemp("pcap") / "run.pcap"
    options = (
        "--epochs",
        "2",
        "--max-steps",
        "2",
        "--density",
        "0.1",
        "--set",
        f"pcap={pcap}",
        "--set",
        "name=short",
    )
    status, output = train(out / "runs", *options)
    assert status == 0, output
    yield out / "runs", output, pcap


def test_both_runs_are_complete_and_their_replicas_identical(run: tuple[Path, str, Path]) -> None:
    told = summary(run[0])
    assert (told["schema"], told["status"], told["problem"]) == (1, "complete", None)
    assert told["config"]["density"] == 0.1
    assert list(told["runs"]) == ["weir", "gloo"]
    for record in told["runs"].values():
        assert record["status"] == "complete"
        assert record["steps"] == record["steps_planned"] == 4
        assert len(record["epochs"]) == 2 and 0 <= record["accuracy"] <= 1
        assert record["replicas"]["identical_after_every_step"]
        assert record["per_worker"]["bytes_up"] > 0 and record["per_worker"]["bytes_down"] > 0
        assert record["replicas"]["identical_at_end"]
    ours, gloo = told["runs"]["weir"], told["runs"]["gloo"]
    assert ours["density"] < 0.2 and gloo["density"] == 1
    assert ours["build_up"] == 1  # with dfs all workers send the same positions
    assert 1 <= ours["imbalance"] < 1.5 and ours["selection_s"] > 0
    assert gloo["build_up"] is gloo["imbalance"] is None


def test_a_sparse_run_costs_a_fraction_of_the_bytes(run: tuple[Path, str, Path]) -> None:
    told = summary(run[0])["runs"]
    assert told["weir"]["per_worker"]["bytes_up"] < 0.35 * told["gloo"]["per_worker"]["bytes_up"]


def test_steps_and_files_are_written(run: tuple[Path, str, Path]) -> None:
    where = folder(run[0])
    assert re.fullmatch(r"\d{8}-\d{6}-short", where.name)
    assert json.loads((where / "config.json").read_text())["versions"].keys() >= {"weir", "torch", "python"}
    assert (where / "report.png").read_bytes().startswith(b"\x89PNG")
    lines = steps(run[0])
    assert [(line["run"], line["step"]) for line in lines] == [
        (name, step) for name in ("weir", "gloo") for step in range(1, 5)
    ]
    assert all(line.keys() == StepSummary.__dataclass_fields__.keys() for line in lines)


def test_equal_seeds_start_from_equal_parameters(run: tuple[Path, str, Path]) -> None:
    """Before the first exchange both runs compute the same; the first step's loss shows it."""
    first = [line for line in steps(run[0]) if line["step"] == 1]
    assert first[0]["loss"] == first[1]["loss"]


def test_the_table_names_what_was_compared(run: tuple[Path, str, Path]) -> None:
    for words in (
        "accuracy, held out",
        "bytes up per worker",
        "sent by any worker : by one",
        "dfs, density 0.1, encoding auto",
        "Weir : Gloo",
        "bit-identical",
    ):
        assert words in run[1]


def test_what_the_switch_counted_fits_what_the_workers_sent(run: tuple[Path, str, Path]) -> None:
    events = summary(run[0])["switch_events"]
    assert events["contribution"] == events["round_complete"] > 0  # of two, one completes the round
    assert not [name for name in events if name.startswith("drop")]


def test_the_capture_shows_right_rounds_only(run: tuple[Path, str, Path]) -> None:
    trace = Trace.of(read_frames(run[2]))
    assert trace.malformed == []
    events = summary(run[0])["switch_events"]
    complete = [found for found in trace.rounds if found.complete]
    assert len(complete) == events["round_complete"]
    assert not PacketAudit.of_files([run[2]]).findings
    sent = sum(len(found.contributions) for found in trace.rounds)
    assert sent >= 2 * len(complete)
    done = CliRunner().invoke(app, ["pcap", "show", str(run[2]), "--limit", "2"], catch_exceptions=False)
    assert done.exit_code == 0 and "round 1" in done.stdout and "more rounds" in done.stdout


SERVERS = ("--mode", "ps", "--set", "servers=2", "--method", "topk-block", "--no-reference")


@pytest.mark.long
def test_parameter_servers_train(tmp_path: Path) -> None:
    status, output = train(tmp_path, *SERVERS, "--epochs", "1", "--max-steps", "4")
    assert status == 0, output
    assert "2 workers and 2 servers" in output
    (run,) = summary(tmp_path)["runs"].values()
    assert run["steps"] == 4
    assert run["replicas"]["identical_after_every_step"]


@pytest.mark.long
def test_a_dead_parameter_server_is_named(tmp_path: Path) -> None:
    with start(tmp_path, *SERVERS, "--epochs", "1000") as process:
        wait_for_steps(tmp_path, 3)
        (server,) = [pid for pid in children(process.pid) if name(pid) == "worker-3"]
        os.kill(server, signal.SIGKILL)
        output = process.said(60)
    assert process.returncode == 1
    assert "server 1 failed: signal SIGKILL" in output, output


@pytest.mark.long
def test_workers_train_alone_and_end_alike(tmp_path: Path) -> None:
    filters = ("--set", "push_filter=0.001:lr", "--set", "pull_filter=0.001:lr:4")
    options = ("--mode", "ps", "--set", "servers=1", "--method", "dense", "--consistency", "ssp:2", *filters)
    status, output = train(tmp_path, *options, "--no-reference", "--epochs", "2", "--max-steps", "5")
    assert status == 0, output
    (run,) = summary(tmp_path)["runs"].values()
    assert run["steps"] == 10
    assert "bit-identical on all workers after the last step" in output


def test_interrupting_ends_every_process_and_still_writes_the_summary(tmp_path: Path) -> None:
    with start(tmp_path, "--epochs", "500") as process:
        wait_for_steps(tmp_path, 3)
        started = children(process.pid)
        assert len(started) == 5  # switch, controller, two workers and their template
        process.send_signal(signal.SIGINT)
        output = process.said(60)
    wait_until_gone(*started)
    assert process.returncode == 130
    assert "Traceback" not in output and "interrupted" in output
    told = summary(tmp_path)
    assert told["status"] == told["runs"]["weir"]["status"] == "interrupted"
    assert told["runs"]["weir"]["steps"] == len(steps(tmp_path)) >= 3
    assert (folder(tmp_path) / "report.png").exists()


def test_a_killed_worker_ends_the_run_and_is_named(tmp_path: Path) -> None:

    def kill() -> None:
        wait_for_steps(tmp_path, 2)
        os.kill(workers()["worker-1"], signal.SIGKILL)

    with ThreadPoolExecutor(1) as pool:
        killing = pool.submit(kill)
        status, output = train(tmp_path, "--epochs", "500")
        killing.result()
    assert (status, workers()) == (1, {})
    assert "worker 1 failed: signal SIGKILL" in output
    told = summary(tmp_path)
    assert told["status"] == "failed" and told["problem"].startswith("worker 1 failed")


@pytest.mark.long
def test_a_method_of_ones_own_needs_no_change_of_the_package(tmp_path: Path) -> None:
    plugin = tmp_path / "plugin.py"
    plugin.write_text(
        "import weir.torch\n"
        "HALF = 0.5\n"
        "@weir.torch.register_sparsifier\n"
        "class EveryOther(weir.torch.Sparsifier):\n"
        "    name = 'every-other'\n"
        "    summary = 'Every other value.'\n"
        "    def encode(self, gradient, span):\n"
        "        sent = HALF * 2 * gradient\n"
        "        sent[1::2] = 0\n"
        "        return sent\n"
    )
    options = ("--model", "mlp", "--epochs", "1", "--max-steps", "3", "--no-reference")
    status, output = train_apart(
        tmp_path / "runs", "--plugin", str(plugin), "--method", "every-other", *options
    )
    assert status == 0, output
    assert 0.2 < summary(tmp_path / "runs")["runs"]["weir"]["density"] <= 0.5
    status, output = train_apart(tmp_path / "no", "--method", "every-other", *options)
    assert status == 2 and "no such method: 'every-other'" in output


def test_a_gradient_that_is_no_number_is_said_once_without_tracebacks(tmp_path: Path) -> None:
    status, output = train(tmp_path, "--model", "mlp", "--lr", "1e30", "--epochs", "1")
    assert status == 1
    (line,) = [line for line in output.splitlines() if "NaN or infinity" in line]
    assert line.startswith("weir: workers 0, 1 failed: NaN or infinity on ranks 0, 1: gradient of parameter")
    assert line.endswith("Look for a loss that diverged or a division by zero there.")
    assert "Traceback" not in output and "reported on" not in output
    assert summary(tmp_path)["status"] == "failed"


def test_a_switch_that_does_not_start_has_failed(tmp_path: Path) -> None:
    with start(tmp_path / "runs", CC="/bin/false", SOFTP4_CACHE=str(tmp_path / "none")) as process:
        output = process.said(60)
    assert process.returncode == 1
    assert "the switch did not start" in output and "(failed): no step was trained" in output
    assert "interrupted" not in output
    assert summary(tmp_path / "runs")["status"] == "failed"


def test_a_workers_exception_is_shown_with_its_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "_REGISTRY", {**base._REGISTRY})
    plugin = tmp_path / "plugin.py"
    plugin.write_text(
        "import weir.torch\n"
        "@weir.torch.register_sparsifier\n"
        "class Broken(weir.torch.Sparsifier):\n"
        "    name = 'broken'\n"
        "    summary = 'Fails.'\n"
        "    def join(self, rank, workers):\n"
        "        raise KeyError('this method cannot join')\n"
        "    def encode(self, gradient, span):\n"
        "        return gradient\n"
    )
    options = ("--plugin", str(plugin), "--method", "broken", "--model", "mlp", "--no-reference")
    status, output = train(tmp_path / "runs", *options)
    assert status == 1
    assert output.count("Traceback") == 1
    assert "KeyError: 'this method cannot join'" in output
    assert summary(tmp_path / "runs")["status"] == "failed"


def test_a_batch_that_makes_no_step_is_refused_before_anything_starts(tmp_path: Path) -> None:
    status, output = train(tmp_path, "--batch-size", "100000")
    assert status == 2 and len(output.splitlines()) == 1 and not list(tmp_path.iterdir())
    assert "1,438 samples are too few for a step of 2 workers x 100000; the maximum is 719" in output


@pytest.mark.long
def test_one_launcher_per_rank_joins_a_cluster_that_is_there(tmp_path: Path) -> None:
    """As under torchrun or in Mininet: rank 0 shows and writes, and the group compares its replicas."""
    port = free_port()
    options = [
        "--model",
        "cnn",
        "--epochs",
        "1",
        "--max-steps",
        "2",
        "--no-reference",
        "--out",
        str(tmp_path),
    ]
    with weir.local_cluster(workers=2) as cluster:
        launchers = []
        for rank in range(2):
            joined = {
                "RANK": str(rank),
                "WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            }
            launchers.append(
                subprocess.Popen(
                    [sys.executable, "-m", "weir", "train", *options],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    env={**environment(), **cluster.environment(rank), **joined},
                )
            )
        outputs = [launcher.communicate(timeout=120)[0] for launcher in launchers]
    assert [launcher.returncode for launcher in launchers] == [0, 0], outputs
    assert "bit-identical on all workers" in outputs[0] and outputs[1] == ""
    told = summary(tmp_path)
    assert told["config"]["workers"] == 2 and list(told["runs"]["weir"]["workers"]) == ["0"]
    assert told["runs"]["weir"]["steps"] == 2
    assert told["runs"]["weir"]["processor_s_per_gigabyte"] is None  # others started the switch


@pytest.mark.root
@pytest.mark.long
def test_both_runs_have_the_same_links_where_hosts_are_namespaces(tmp_path: Path) -> None:
    status, output = train(
        tmp_path, "--hosts", "namespaces", "--links", "100mbit", "--epochs", "1", "--max-steps", "3"
    )
    assert status == 0, output
    found = summary(tmp_path)
    assert found["config"]["hosts"] == "namespaces"
    assert {run["status"] for run in found["runs"].values()} == {"complete"}
    assert found["runs"]["gloo"]["per_worker"]["packets_up"] > 3000  # segments as on Ethernet, not of 64 KiB
    assert found["switch_events"]["round_complete"] > 0
    assert re.search(r"Gloo's step takes [\d.]+ times as long", output)
    assert "both run over the same links" in output
    assert len(re.findall(r"line in use, (?:up|down) +│ +[\d.]+ % │ +[\d.]+ %", output)) == 2
    weir, gloo = (found["runs"][name]["processor_s_per_gigabyte"] for name in ("weir", "gloo"))
    assert weir["worker"] > 0 and weir["switches"] > 0 == gloo["switches"]  # a bridge is no process
    assert weir["machine"] > weir["switches"]
    assert (folder(tmp_path) / "report.png").stat().st_size > 10_000


def without_rights(*command: str) -> "subprocess.CompletedProcess[str]":
    """Run a command that may make no namespaces, and has tried to have its own."""
    return subprocess.run(
        [*without(Capability.NET_ADMIN, Capability.SYS_ADMIN), *command],
        env={**environment(), "WEIR_USER_NAMESPACE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_without_namespaces_the_user_is_told_so_and_shared_memory_serves() -> None:
    code = "from weir.train.cli import choose_hosts; print(*choose_hosts('auto'))"
    told = without_rights(sys.executable, "-c", code).stdout
    assert told.startswith("processes No network namespaces here: "), told
    assert "share memory with the switch" in told


def test_without_namespaces_a_run_that_needs_them_is_refused() -> None:
    done = without_rights(sys.executable, "-m", "weir", "train", "--hosts", "namespaces")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("weir train: --hosts namespaces: ")
