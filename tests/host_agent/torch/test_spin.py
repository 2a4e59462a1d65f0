# SPDX-License-Identifier: Apache-2.0
"""Threads that look for work before they sleep, as on machines with many processors: sums are as ever."""

import os
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist

import weir
import weir.torch
from tests.host_agent.torch.worlds import World
from weir.host_agent.torch.backend import GroupOptions

SPIN_NS = "from weir.host_agent.transport.memory_port import spin_ns; print(spin_ns())"


@pytest.mark.parametrize(("chosen", "expected"), [("0", 0), ("20", 20_000), ("-1", 0)])
def test_the_environment_says_for_how_long(chosen: str, expected: int) -> None:
    found = subprocess.run(
        [sys.executable, "-c", SPIN_NS],
        env={**os.environ, "SOFTP4_SPIN_US": chosen},
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(found.stdout) == expected


def sums() -> None:
    local = dist.new_group(backend="weir", pg_options=GroupOptions(local="on"))
    for group in (dist.group.WORLD, local):
        for count in (3, 3000, 300_000):
            tensor = torch.full((count,), float(dist.get_rank() + 1))
            dist.all_reduce(tensor, group=group)
            assert tensor.eq(3.0).all()


def test_sums_come_while_everybody_spins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTP4_SPIN_US", "200")  # the switch and the controller inherit it
    with weir.local_cluster(workers=2) as cluster:

        def environment(rank: int) -> dict[str, str]:
            return {**cluster.environment(rank), "SOFTP4_SPIN_US": "200"}

        with World(2, environment) as world:
            world.run(sums)
