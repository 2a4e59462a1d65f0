# SPDX-License-Identifier: Apache-2.0
"""Groups beyond the first take few slots of the switch, more while they send much, and give those back."""

import contextlib
import os
import random
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import weir
import weir.torch
from tests.host_agent.torch.worlds import World
from weir.agent_service.client import AgentClient, NoResources
from weir.host_agent.torch.elastic_slots import ElasticSlots
from weir.host_agent.transport import growth

SIZE = 4
HOSTS = 20
LARGE = 1 << 18  # values: many rounds of the few slots
SOON_S = 0.3

groups: dict[str, Any] = {}  # of a rank's process


@pytest.fixture(scope="module")
def world(world: World) -> World:
    world.run(idle_after, SOON_S)
    return world


@pytest.fixture(autouse=True)
def _closes(world: World) -> Iterator[None]:
    yield
    world.run(close_all)


def idle_after(seconds: float) -> None:
    growth.IDLE_S = seconds  # type: ignore[misc]


def make(*names: str) -> None:
    for name in names:
        groups[name] = dist.new_group()


def make_fixed(name: str, slots: int) -> None:
    groups[name] = dist.new_group(pg_options=weir.torch.GroupOptions(slots=slots))


def close_all() -> None:
    for group in groups.values():
        dist.destroy_process_group(group)
    groups.clear()


def summed(name: str, values: int = LARGE, late_s: float = 0.0) -> bool:
    """Reduce, the first rank late; return whether the sum is right."""
    if dist.get_rank() == 0:
        time.sleep(late_s)
    tensor = torch.arange(values, dtype=torch.int32) + dist.get_rank()
    dist.all_reduce(tensor, group=groups[name])
    ranks = dist.get_world_size()
    return bool((tensor == ranks * torch.arange(values) + ranks * (ranks - 1) // 2).all())


def sums_in_any_order(seed: int) -> bool:
    order = list(groups)
    random.Random(seed).shuffle(order)
    return all(summed(name, 8) for name in order)


def free() -> int:
    return dist.group.WORLD.connection.free_slots()[0].count


def extended(name: str) -> bool:
    return groups[name].connection._slots._growth.extended


def test_many_groups_share_the_switch(world: World) -> None:
    began = world.run(free)[0]
    world.run(make, *map(str, range(40)))
    assert world.run(sums_in_any_order, 1) == [True] * SIZE
    assert began - world.run(free)[0] == 40 * growth.BASE_SLOTS
    world.run(close_all)
    assert world.run(free)[0] == began


def test_a_group_that_sends_much_gets_more_slots_and_all_ranks_use_them(world: World) -> None:
    world.run(make, "a")
    before = world.run(free)[0]
    assert world.run(summed, "a", 8) == [True] * SIZE
    assert world.run(extended, "a") == [False] * SIZE
    assert world.run(summed, "a") == [True] * SIZE
    assert world.run(extended, "a") == [True] * SIZE
    assert before - world.run(free)[0] >= 64
    assert world.run(summed, "a", 8) == [True] * SIZE


def test_an_idle_groups_slots_serve_another(world: World) -> None:
    world.run(make, "idle", "busy")
    assert world.run(summed, "idle") == [True] * SIZE
    rest = world.run(free)[0]
    time.sleep(2 * SOON_S)
    world.run(make_fixed, "large", rest)  # there are no more
    assert world.run(summed, "large") == [True] * SIZE
    assert world.run(extended, "idle") == [True] * SIZE  # nobody had to ask for its slots
    assert world.run(summed, "busy") == [True] * SIZE
    assert world.run(extended, "idle") == [False] * SIZE
    assert world.run(extended, "busy") == [True] * SIZE
    assert world.run(summed, "idle", 8) == [True] * SIZE


def test_slots_come_back_from_ranks_that_are_in_the_next_reduction(world: World) -> None:
    """Rank 0 is idle for longer than the others, which wait for it when its slots are asked for."""
    world.run(make, "a", "b")
    assert world.run(summed, "a") == [True] * SIZE
    world.run(make_fixed, "rest", world.run(free)[0])
    world.start(ask_and_sum)
    assert [world.outcome(rank) for rank in range(SIZE)] == [True] * SIZE


def ask_and_sum() -> bool:
    """Have slots asked for while all ranks but the first are in a reduction on the extension."""
    pending = None
    if dist.get_rank():
        tensor = torch.full((LARGE,), 1, dtype=torch.int32)
        pending = dist.all_reduce(tensor, group=groups["a"], async_op=True)
    time.sleep(2 * SOON_S)
    if not dist.get_rank():
        connection = groups["a"].connection
        with AgentClient(connection.facts.controller) as client, contextlib.suppress(NoResources):
            client.join(job="asks", size=1, rank=0, host="h20", slots=512)
        assert not extended("a")
        tensor = torch.full((LARGE,), 1, dtype=torch.int32)
        pending = dist.all_reduce(tensor, group=groups["a"], async_op=True)
    assert pending is not None
    pending.wait()
    return bool((tensor == SIZE).all())


def test_ranks_that_disagree_where_more_slots_are_asked_for_are_told_at_once(world: World) -> None:
    world.run(make, "a")
    for words in world.run(disagree, "a"):
        assert "rank 1 called all_reduce(int32[8], SUM)" in words


def disagree(name: str) -> str:
    with pytest.raises(weir.torch.GroupBrokenError) as caught:
        summed(name, 8 if dist.get_rank() == 1 else LARGE)
    return str(caught.value)


def test_a_rank_that_dies_where_more_slots_are_asked_for_is_named(cluster: weir.LocalCluster) -> None:
    with World(2, lambda rank: cluster.environment(4 + rank)) as world:
        world.run(make, "a")
        world.start(dies_in_the_join)
        assert "rank 1 (h6) went away without leaving" in str(world.outcome(0))
        world.processes[1].join()


def dies_in_the_join() -> None:
    if dist.get_rank() == 1:
        ElasticSlots._joined = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
    summed("a")


def test_a_group_is_closed_while_it_asks_for_more_slots(cluster: weir.LocalCluster) -> None:
    with World(2, lambda rank: cluster.environment(6 + rank)) as world:
        world.run(make, "a")
        ended, late = world.run(closes_in_the_join)
        assert "closed" in ended
        assert late


def closes_in_the_join() -> str:
    joined = ElasticSlots._joined

    def slowly(self: ElasticSlots, number: int, slots: int) -> Any:
        if dist.get_rank():
            time.sleep(2)
        return joined(self, number, slots)

    ElasticSlots._joined = slowly  # type: ignore[method-assign]
    work = dist.all_reduce(torch.ones(LARGE), group=groups["a"], async_op=True)
    time.sleep(1)
    if dist.get_rank() == 0:
        groups["a"].connection.close()
    with pytest.raises(weir.torch.GroupBrokenError) as caught:
        work.wait()
    return str(caught.value)


def test_the_leaders_of_hosts_get_more_slots(cluster: weir.LocalCluster) -> None:
    with World(3, lambda rank: cluster.environment((8, 8, 9)[rank])) as world:
        world.run(make, "a")
        assert world.run(summed, "a") == [True] * 3
        assert world.run(leader_extended) == [True, None, True]
        world.run(idle_after, 0.0)
        with AgentClient(cluster.controller) as client, contextlib.suppress(NoResources):
            client.join(job="asks", size=1, rank=0, host="h20", slots=900)
        assert world.run(leader_extended) == [False, None, False]
        assert world.run(summed, "a") == [True] * 3


def leader_extended() -> bool | None:
    network = groups["a"].connection._network
    return network._slots._growth.extended if network is not None else None


def test_a_mesh_of_four_dimensions(cluster: weir.LocalCluster) -> None:
    with World(8, lambda rank: cluster.environment(10 + rank)) as world:
        assert world.run(sums_over_a_mesh) == [[2, 2, 2, 1]] * 8


def sums_over_a_mesh() -> list[float]:
    mesh = init_device_mesh("cpu", (2, 2, 2, 1), mesh_dim_names=("pp", "dp", "cp", "tp"))
    found = []
    for dimension in range(4):
        tensor = torch.ones(LARGE // 4)
        dist.all_reduce(tensor, group=mesh.get_group(dimension))
        found.append(float(tensor.mean()))
    return found
