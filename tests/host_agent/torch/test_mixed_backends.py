# SPDX-License-Identifier: Apache-2.0
"""Groups with a backend for each kind of device, of which weir is one: it serves them all."""

import pytest
import torch
import torch.distributed as dist

from tests.host_agent.torch.worlds import World
from weir.cluster import LocalCluster
from weir.host_agent.torch.process_group import WeirProcessGroup

SIZE = 2


def barriers_and_a_sum() -> int:
    """Return how many of three operations went through Weir."""
    group = dist.group.WORLD
    assert isinstance(group, WeirProcessGroup), group
    before = group.connection.number
    dist.barrier()
    dist.barrier(device_ids=[0])
    dist.all_reduce(torch.ones(3))
    return group.connection.number - before


@pytest.mark.parametrize(
    "backends", ["cpu:gloo,cuda:weir", pytest.param("cpu:weir,cuda:nccl", marks=pytest.mark.cuda)]
)
def test_barriers_and_tensors_of_any_device_go_through_weir(cluster: LocalCluster, backends: str) -> None:
    with World(SIZE, cluster.environment, backend=backends) as world:
        assert world.run(barriers_and_a_sum) == [3, 3]
