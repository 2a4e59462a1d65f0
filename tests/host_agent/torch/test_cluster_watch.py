# SPDX-License-Identifier: Apache-2.0
"""The switch and controller that rank 0 starts by itself: when they die, all ranks say so.

No setting of the environment: as torchrun starts the ranks.
"""

import os
import signal
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import weir.torch
from tests.harness.processes import children, wait_until_gone
from tests.host_agent.torch.worlds import World

SIZE = 2


def controller() -> str:
    return dist.group.WORLD.connection.facts.controller


def reduce_until_broken(folder: str) -> str:
    (Path(folder) / str(dist.get_rank())).touch()
    with pytest.raises(weir.torch.GroupBrokenError) as caught:
        while True:
            dist.all_reduce(torch.ones(1000))
    return str(caught.value)


def wait_until_broken(folder: str) -> str:
    """Rank 0 waits in a collective that rank 1 has not begun: nothing moves."""
    (Path(folder) / str(dist.get_rank())).touch()
    with pytest.raises(weir.torch.GroupBrokenError) as caught:
        if dist.get_rank():
            time.sleep(3)
        dist.all_reduce(torch.ones(1000))
    return str(caught.value)


def cluster_of(world: World) -> dict[int, str]:
    return {
        pid: line for pid, line in children(world.processes[0].pid).items() if "weir.process.child" in line
    }


def begin(world: World, function: object, folder: Path) -> Path:
    """Start it on all ranks; return the cluster's folder when all are at it."""
    address, _ = world.run(controller)
    world.start(function, str(folder))
    while len(list(folder.iterdir())) < SIZE:
        time.sleep(0.01)
    return Path(address.removeprefix("unix:")).parent


@pytest.mark.parametrize("function", [reduce_until_broken, wait_until_broken])
@pytest.mark.parametrize("doomed", ["switch", "controller"])
def test_a_switch_or_controller_that_is_killed_is_named_on_every_rank(
    doomed: str, function: object, tmp_path: Path
) -> None:
    with World(SIZE, timeout_s=1800) as world:
        folder = begin(world, function, tmp_path)
        processes = cluster_of(world)
        (pid,) = [
            pid
            for pid, line in processes.items()
            if (" softp4 run " if doomed == "switch" else " weir.controller ") in line
        ]
        os.kill(pid, signal.SIGKILL)
        for rank in range(SIZE):
            message = world.outcome(rank)
            assert f"the {doomed} died (signal SIGKILL)" in str(message), message
    wait_until_gone(*processes)
    assert not folder.exists()


def test_rank_0_that_is_killed_with_its_cluster_is_named(tmp_path: Path) -> None:
    with World(SIZE, timeout_s=1800) as world:
        folder = begin(world, reduce_until_broken, tmp_path)
        processes = cluster_of(world)
        world.processes[0].kill()
        message = str(world.outcome(1))
        assert "rank 0 died" in message or "rank 0 (h1) went away without leaving" in message
    wait_until_gone(*processes)
    assert not folder.exists()
