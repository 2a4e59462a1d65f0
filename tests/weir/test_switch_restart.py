# SPDX-License-Identifier: Apache-2.0
"""Switches that are killed while a job runs are given everything back, and the job changes no bit."""

import os
import subprocess
import sys
import time
from pathlib import Path
from signal import SIGKILL

import pytest

from tests.harness.effort import effort
from weir.controller.wiring import Target
from weir.netns.cluster import NetworkCluster, network_cluster, start_switches
from weir.network import SINGLE, NetworkSpec, Shape, parse_shape
from weir.process import child
from weir.train.workers import worker_environment

pytestmark = pytest.mark.root

PROGRAM = Path(__file__).resolve().parents[2] / "examples" / "ddp_backend.py"
STEPS = effort(15, 100)
WORKERS = 2
TIMEOUT_S = 180.0


def started(cluster: NetworkCluster) -> list[subprocess.Popen[str]]:
    """Start a DDP job, a worker on each host."""
    return [
        subprocess.Popen(
            child.tied([*cluster.lab.at_worker(rank), sys.executable, str(PROGRAM), "--steps", str(STEPS)]),
            env={
                **os.environ,
                **worker_environment(),
                **cluster.environment(rank),
                "RANK": str(rank),
                "WORLD_SIZE": str(WORKERS),
                "MASTER_ADDR": cluster.lab.plan.workers[0].ip,
                "MASTER_PORT": "29500",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(WORKERS)
    ]


def parameters(job: list[subprocess.Popen[str]]) -> set[str]:
    """Return what the ranks say of their parameters at the end."""
    said = [process.communicate(timeout=TIMEOUT_S)[0] for process in job]
    assert not any(process.returncode for process in job), said
    return {words.split()[-1] for words in said}


def rounds(cluster: NetworkCluster) -> int:
    """Return how many rounds of slots the switches have completed."""
    events = (event for switch in cluster.status().switches for event in switch.events)
    return sum(event.count.packets for event in events if event.name == "round_complete")


def kill_and_restart(cluster: NetworkCluster, kind: Target) -> None:
    """Kill every switch in the middle of the job; start it again, empty."""
    end = time.monotonic() + TIMEOUT_S
    while (number := rounds(cluster)) < STEPS:
        assert time.monotonic() < end
        time.sleep(0.01 if number else 0.1)  # asking keeps all busy, while the ranks start
    for switch in cluster.lab.topology.switches:
        cluster.processes[switch.name].send_signal(SIGKILL)
        cluster.processes[switch.name].wait()
    again = start_switches(cluster.lab, kind, cluster.folder)
    for switch, process in zip(cluster.lab.topology.switches, again, strict=True):
        cluster.processes[switch.name] = process  # type: ignore[index]


def disturbed(kind: Target, shape: Shape) -> set[str]:
    """Return the parameters of a job whose switches were all killed."""
    with network_cluster(WORKERS, switch=kind, network=NetworkSpec(shape)) as cluster:
        job = started(cluster)
        kill_and_restart(cluster, kind)
        assert any(process.poll() is None for process in job)
        return parameters(job)


@pytest.mark.bmv2
def test_a_bmv2_that_is_killed_and_racks_that_are_killed_leave_the_same_parameters() -> None:
    assert disturbed("bmv2", SINGLE) == disturbed("soft", parse_shape("leaf-spine-2x1"))
