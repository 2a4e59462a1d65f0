# SPDX-License-Identifier: Apache-2.0
"""Training over racks and spines: exact when nothing may go missing, whatever links lose and whichever
worker dies; within the budget when something may.
"""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import weir
from tests.harness.effort import effort
from tests.harness.processes import children, wait_until_gone
from tests.weir.test_cluster import mine
from tests.weir.test_train import start, steps, summary, train, wait_for_steps
from weir.network import NetworkSpec, parse_shape

RACKS = ("--topology", "leaf-spine-2x2")
WORKERS = effort("2", "3")
MODEL = ("--model", "mlp", "--workers", WORKERS, "--method", "dense", "--epochs", "1", "--no-reference")
STEPS = 6


def checksums(out: Path) -> list[str]:
    return [line["checksum"] for line in steps(out)]


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the parameters after each step over one switch with perfect links."""
    out = tmp_path_factory.mktemp("single")
    status, output = train(out, *MODEL, "--max-steps", str(STEPS))
    assert status == 0, output
    return checksums(out)


def test_a_cluster_of_racks_serves_its_workers_and_leaves_nothing(short_path: Path) -> None:
    network = NetworkSpec(parse_shape("leaf-spine-2x2"), rate_bps=10**9, background="incast")
    with weir.local_cluster(workers=3, network=network, directory=short_path) as cluster:
        status = cluster.status()
        assert {switch.name: (switch.role, switch.state) for switch in status.switches} == {
            "leaf1": ("leaf", "ready"),
            "leaf2": ("leaf", "ready"),
            "spine1": ("spine", "ready"),
            "spine2": ("spine", "ready"),
        }
        assert [cluster.environment(rank)["WEIR_HOST"] for rank in range(3)] == ["h1", "h5", "h6"]
        cluster.check()
        processes = mine()
        assert len(processes) == 6  # four switches, the controller, background traffic
    wait_until_gone(*processes)
    assert list(short_path.iterdir()) == []


def test_a_run_under_load_fails_where_something_that_was_switched_on_did_nothing(tmp_path: Path) -> None:
    status, output = train(tmp_path, *MODEL, "--max-steps", "1", "--set", "loss=1e-9")
    assert status == 1
    assert "did nothing under load: --set loss: no switch has lost a packet on purpose" in " ".join(
        output.split()
    )
    assert summary(tmp_path)["idle"] == ["--set loss: no switch has lost a packet on purpose"]


@pytest.mark.long
def test_loss_without_a_budget_changes_nothing(exact: list[str], tmp_path: Path) -> None:
    status, output = train(tmp_path, *MODEL, *RACKS, "--max-steps", str(STEPS), "--set", "loss=0.02")
    assert status == 0, output
    assert checksums(tmp_path) == exact
    told = summary(tmp_path)["runs"]["weir"]
    assert told["network"]["lost"] > 0 and told["per_worker"]["retransmissions"] > 0
    assert told["delivery"]["missing"] == told["delivery"]["releases"] == 0
    assert all(0.4 < share < 0.6 for share in told["network"]["spine_shares"].values())


def test_a_spine_that_dies_changes_nothing(exact: list[str], tmp_path: Path) -> None:

    def kill() -> int:
        wait_for_steps(tmp_path, 1)
        spine = next(pid for pid, line in children(os.getpid()).items() if "spine2.sock" in line)
        os.kill(spine, signal.SIGKILL)
        return len(steps(tmp_path))

    with ThreadPoolExecutor(1) as pool:
        killed_after = pool.submit(kill)
        status, output = train(tmp_path, *MODEL, *RACKS, "--max-steps", str(STEPS), "--links", "20mbit")
    assert status == 0, output
    assert killed_after.result() < STEPS  # else it would have died in vain
    assert checksums(tmp_path) == exact
    assert summary(tmp_path)["runs"]["weir"]["network"]["dead"] == {"spine2": "signal SIGKILL"}
    assert "spine2 died (signal SIGKILL)" in output


@pytest.mark.long
def test_with_a_budget_a_bounded_share_goes_missing(tmp_path: Path) -> None:
    options = (
        "--set",
        "loss=0.03",
        "--loss-budget",
        "0.2",
        "--links",
        "100mbit",
        "--set",
        "background=incast",
    )
    status, output = train(tmp_path, *MODEL, *RACKS, "--max-steps", str(STEPS), *options)
    assert status == 0, output
    told: dict[str, Any] = summary(tmp_path)["runs"]["weir"]
    assert told["replicas"]["identical_after_every_step"] and told["steps"] == STEPS
    delivery = told["delivery"]
    assert delivery["releases"] > 0
    assert 0 < delivery["missing"] <= delivery["budget"] <= 0.2 * delivery["lanes"]
    assert told["network"]["background"] > 0
    for row in ("releases, all workers", "missing of the gradient", "summed by spines"):
        assert row in output


@pytest.mark.long
def test_the_last_spine_that_dies_ends_the_run_and_is_named(tmp_path: Path) -> None:
    options = ("--workers", "2", "--topology", "leaf-spine-2x1", "--epochs", "500")
    with start(tmp_path, *MODEL, *options) as process:
        wait_for_steps(tmp_path, 2)
        started = children(process.pid)
        os.kill(next(pid for pid, line in started.items() if "spine1.sock" in line), signal.SIGKILL)
        output = process.said()
    wait_until_gone(*started)
    assert process.returncode == 1
    assert "the switch spine1 died (signal SIGKILL)" in output
