# SPDX-License-Identifier: Apache-2.0
"""Groups made from a store, a rank and a size, beside a default group or without one."""

import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import weir.torch
from tests.host_agent.torch.worlds import World
from weir.agent_service.client import AgentClient
from weir.cluster import LocalCluster
from weir.host_agent.torch.rendezvous import RendezvousError

SIZE = 2
HOSTS = 2 * SIZE
LIMIT = timedelta(seconds=30)


@pytest.fixture(scope="module")
def by_themselves() -> Iterator[World]:
    """Yield a world whose ranks found a cluster by themselves."""
    with World(SIZE) as world:
        yield world


def joined(path: str, rank: int, size: int = SIZE, **more: Any) -> weir.torch.WeirProcessGroup:
    store = dist.FileStore(path, size)
    return weir.torch.group_from_store(store, rank, size, **{"timeout": LIMIT, **more})


def summed(group: dist.ProcessGroup) -> float:
    values = torch.full((1000,), group.rank() + 1.0)
    dist.all_reduce(values, group=group)
    assert (values == values[0]).all()
    return float(values[0])


def other_ranks(path: str) -> None:
    """Sum in a group whose ranks are the default group's in reverse, among sums in that one."""
    default = dist.group.WORLD
    assert default is not None
    group = joined(path, 1 - dist.get_rank(), name="reversed")
    assert (group.group_name, group.rank(), group.size()) == ("reversed", 1 - dist.get_rank(), SIZE)
    for _ in range(2):
        assert summed(group) == summed(default) == 3.0
    said = torch.full((3,), float(group.rank()))
    dist.broadcast(said, group_src=1, group=group)
    assert said.tolist() == [1.0] * 3
    group.shutdown()
    assert summed(default) == 3.0


def test_ranks_are_the_groups_own(world: World, tmp_path: Path) -> None:
    world.run(other_ranks, str(tmp_path / "store"))


def test_ranks_on_a_cluster_of_their_own_keep_their_hosts(by_themselves: World, tmp_path: Path) -> None:
    by_themselves.run(other_ranks, str(tmp_path / "store"))


def with_a_stranger(path: str, rank: int) -> float:
    if rank < 0:
        return 3.0
    group = joined(path, rank)
    total = summed(group)
    group.shutdown()
    return total


def test_a_rank_and_a_process_of_another_job_add_up(by_themselves: World, tmp_path: Path) -> None:
    """Rank 1 here is another process than rank 1 of the default group."""
    path = str(tmp_path / "store")
    with World(1) as stranger:
        stranger.start(with_a_stranger, path, 1)
        by_themselves.start(by_rank, path)
        assert [by_themselves.outcome(0), by_themselves.outcome(1), stranger.outcome(0)] == [3.0] * 3


def by_rank(path: str) -> float:
    return with_a_stranger(path, 0 if dist.get_rank() == 0 else -1)


def configured_again(path: str) -> float:
    """Train without a default group, in groups that end by an abort, as torchft makes them."""
    rank = dist.get_rank()
    dist.destroy_process_group()
    threads = threading.active_count()
    for attempt in range(3):
        group = joined(f"{path}-{attempt}", (rank + attempt) % SIZE)
        torch.manual_seed(0)
        model = DistributedDataParallel(torch.nn.Linear(3, 1), process_group=group)
        model(torch.full((1, 3), group.rank() + 1.0)).sum().backward()
        gradient = model.module.weight.grad
        assert gradient is not None and gradient.tolist() == [[1.5] * 3]
        assert not dist.is_initialized()
        group.abort()
        del group, model
    deadline = time.monotonic() + 20
    while threading.active_count() > threads and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= threads, threading.enumerate()
    return float(gradient.sum())


def test_a_group_that_was_aborted_leaves_nothing_behind(cluster: LocalCluster, tmp_path: Path) -> None:
    with World(SIZE, lambda rank: cluster.environment(SIZE + rank)) as world:
        assert world.run(configured_again, str(tmp_path / "store")) == [4.5] * SIZE
        with AgentClient(cluster.controller) as client:
            assert not [job.name for job in client.status().jobs if job.name.startswith("from-store")]


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="rank 2 of a group of 2 ranks: ranks go from 0 to 1"):
        joined(str(tmp_path / "store"), 2)
    with pytest.raises(RendezvousError, match=r"did not come within 0.2 s: rank 1 of 2; have they called"):
        joined(str(tmp_path / "store"), 0, timeout=timedelta(seconds=0.2))
