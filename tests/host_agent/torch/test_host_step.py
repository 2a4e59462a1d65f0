# SPDX-License-Identifier: Apache-2.0
"""Ranks that share a host: what they get, what it costs, and how they end. Real processes, a real switch."""

import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import weir
import weir.torch
from tests.harness.source import source_path
from tests.harness.started import started
from tests.host_agent.torch import host_program
from tests.host_agent.torch.worlds import World
from weir.cluster import LocalCluster
from weir.host_agent.torch.connection import Connection
from weir.host_agent.torch.host_connection import HostConnection
from weir.netns.cluster import network_cluster

SIZE = 5
PLACES = (0, 0, 1, 1, 2)  # hosts of the ranks
LEADERS = (0, 2, 4)
SPARE = SIZE + len(LEADERS)  # from here on hosts that no world of the module has
HOSTS = SPARE + len(LEADERS)


def on_hosts(cluster: LocalCluster, rank: int) -> Mapping[str, str]:
    return cluster.environment(PLACES[rank])


def spare_world(cluster: LocalCluster) -> World:
    """Return as many ranks on hosts as many, which are others."""
    return World(SIZE, lambda rank: cluster.environment(SPARE + PLACES[rank]))


def flat_world(cluster: LocalCluster) -> World:
    """Return the same ranks, each a host of its own."""
    return World(SIZE, lambda rank: cluster.environment(len(LEADERS) + rank))


@pytest.fixture(scope="module")
def world(cluster: LocalCluster) -> Iterator[World]:
    with World(SIZE, lambda rank: on_hosts(cluster, rank)) as world:
        yield world


@pytest.fixture(scope="module")
def flat(cluster: LocalCluster) -> Iterator[World]:
    with flat_world(cluster) as world:
        yield world


def connection(group: Any = None) -> Connection:
    group = group or dist.group.WORLD
    found: Connection = group._get_backend(torch.device("cpu")).connection
    return found


def values(count: int, seed: int, zeros: bool = False) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * seed + dist.get_rank())
    found = torch.randn(count, generator=generator)
    if zeros:
        found.view(-1, 256)[torch.rand(count // 256, generator=generator) < 0.7] = 0
    return found


def everything(count: int) -> list[torch.Tensor]:
    """Return this rank's results of every collective, on vectors of this many elements."""
    rank, size = dist.get_rank(), dist.get_world_size()
    results = []
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64):
        tensor = (100 * values(count, 1)).to(dtype)
        dist.all_reduce(tensor)
        results.append(tensor)
    tensor = values(count, 2)
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    results.append(tensor)
    for root in range(size):
        tensor = values(count, 3 + root)
        dist.broadcast(tensor, root)
        results.append(tensor)
        tensor = values(count, 10 + root)
        dist.reduce(tensor, root)
        if rank == root:
            results.append(tensor)
        gathered = [torch.empty(count) for _ in range(size)] if rank == root else None
        dist.gather(values(count, 20), gathered, root)
        results += gathered or []
        output = torch.empty(count)
        dist.scatter(
            output, [values(count, 30 + part) for part in range(size)] if rank == root else None, root
        )
        results.append(output)
    outputs = [torch.empty(count) for _ in range(size)]
    dist.all_gather(outputs, values(count, 40))
    results += outputs
    outputs = [torch.empty(count + other) for other in range(size)]  # sizes differ
    dist.all_gather(outputs, values(count + rank, 41))
    results += outputs
    output = torch.empty(count)
    dist.reduce_scatter(output, [values(count, 50 + part) for part in range(size)])
    results.append(output)
    outputs = [torch.empty(count) for _ in range(size)]
    dist.all_to_all(outputs, [values(count, 60 + part) for part in range(size)])
    results += outputs
    dist.barrier()
    return results


@pytest.mark.parametrize("count", [7, 1500, 40_000])
def test_every_collective_has_the_bits_of_a_flat_group(world: World, flat: World, count: int) -> None:
    """On every rank, whatever hosts the ranks are on."""
    for rank, (ours, theirs) in enumerate(
        zip(world.run(everything, count), flat.run(everything, count), strict=True)
    ):
        assert len(ours) == len(theirs) > 30
        for index, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
            assert torch.equal(mine.view(torch.uint8), other.view(torch.uint8)), (rank, index)


def counted(count: int) -> tuple[bool, int, int, int]:
    """Return whether this rank shares a host, its bytes up and down of a sum with zeros, and its lanes."""
    tensor = values(count, 5, zeros=True)
    dist.barrier()
    before = connection().stats
    dist.all_reduce(tensor)
    after = connection().stats
    return (
        isinstance(connection(), HostConnection),
        after.bytes_up - before.bytes_up,
        after.bytes_down - before.bytes_down,
        after.entered.lanes - before.entered.lanes,
    )


def test_a_host_costs_the_wire_of_one_rank(world: World, flat: World) -> None:
    """Ranks that do not lead send nothing at all, and a leader no more than a rank of a flat group would."""
    count = 256 * 300
    ours, theirs = world.run(counted, count), flat.run(counted, count)
    assert all(shares for shares, *_ in ours) and not any(shares for shares, *_ in theirs)
    for rank, (_, up, down, lanes) in enumerate(ours):
        assert lanes > 0
        assert bool(up) == bool(down) == (rank in LEADERS)
    everybody, leaders = sum(up for _, up, _, _ in theirs), sum(up for _, up, _, _ in ours)
    assert leaders < 0.9 * everybody
    # Each leader sends the blocks that any of its ranks has: 1 - 0.7^ranks of all, and scales of all of them.
    most = 1.02 * count * 4 * 1.2
    assert all(ours[rank][1] < most for rank in LEADERS)


def ddp(steps: int, method: str) -> tuple[list[bytes], list[float]]:
    """Return the parameters and residuals after each step of training."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(40, 300), torch.nn.ReLU(), torch.nn.Linear(300, 5))
    model = DistributedDataParallel(module, bucket_cap_mb=0.02)
    state = weir.torch.HookState(model, sparsifier=method, density=0.1) if method else None
    if state is not None:
        model.register_comm_hook(state, weir.torch.hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    after, kept = [], []
    for step in range(steps):
        inputs = torch.randn(8, 40, generator=torch.Generator().manual_seed(step * SIZE + dist.get_rank()))
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        after.append(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))
        if state is not None:
            owed = [state.residual(name) for name, _ in module.named_parameters()]
            kept.append(float(sum(part.abs().sum() for part in owed if part is not None)))
    return after, kept


@pytest.mark.parametrize("method", ["", "dense", "topk", "topk-block", "dfs"])
def test_training_has_the_bits_of_a_flat_group(world: World, flat: World, method: str) -> None:
    """With each method of the hook, and without it: parameters of all ranks, and what each still owes."""
    ours, theirs = world.run(ddp, 4, method), flat.run(ddp, 4, method)
    assert ours == theirs
    assert len({after[-1] for after, _ in ours}) == 1 and len(set(ours[0][0])) == 4


def of_groups() -> list[list[float]]:
    """Return results over sub-groups, of one host, of one rank a host, and across, one after the other."""
    memberships = [[0, 1], [0, 2, 4], [0, 1, 2], [2, 3], [0, 1, 2, 3]]  # led by who has the host's port
    groups = [dist.new_group(ranks) for ranks in memberships]
    results = []
    for turn in range(3):
        for ranks, group in zip(memberships, groups, strict=True):
            if dist.get_rank() in ranks:
                tensor = torch.full((2000,), float(dist.get_rank() + turn))
                dist.all_reduce(tensor, group=group)
                results.append([tensor[0].item(), tensor[-1].item(), sum(ranks) + turn * len(ranks)])
    for ranks, group in zip(memberships, groups, strict=True):
        if dist.get_rank() in ranks:
            dist.destroy_process_group(group)
    return results


def test_groups_take_turns_whichever_hosts_they_are_on(world: World) -> None:
    for results in world.run(of_groups):
        assert results and all(first == last == wanted for first, last, wanted in results)


def outcome_of_a_sum() -> str:
    try:
        dist.all_reduce(torch.ones(3000))
    except weir.torch.GroupBrokenError as error:
        return str(error)
    return "summed"


@pytest.mark.parametrize("dies", [1, 2, 3, 4])
def test_a_rank_that_dies_ends_the_group_and_is_named(cluster: LocalCluster, dies: int) -> None:
    """On every rank, whether it leads its host or not, is on the same host or another."""
    with spare_world(cluster) as world:
        assert world.run(outcome_of_a_sum) == ["summed"] * SIZE
        others = [rank for rank in range(SIZE) if rank != dies]
        for rank in others:
            world._pipes[rank].send((outcome_of_a_sum, ()))
        os.kill(world.processes[dies].pid or 0, signal.SIGKILL)
        for rank in others:
            said = world.outcome(rank)
            assert isinstance(said, str) and f"rank {rank} of {SIZE}" in said, said
            here = [other for other in range(SIZE) if PLACES[other] == PLACES[dies]]
            named = said.partition("in job")[2]
            assert f"rank {dies}" in named or f"ranks {', '.join(map(str, here))}" in named, said
            assert "went away" in said


def stop_and_wait(rank: int) -> str:
    if dist.get_rank() == rank:
        os.kill(os.getpid(), signal.SIGSTOP)
    return outcome_of_a_sum()


def leave_early(rank: int) -> str:
    if dist.get_rank() == rank:
        dist.destroy_process_group()
        return "left"
    return outcome_of_a_sum()


@pytest.mark.parametrize("leaves", [0, 1, 3])
def test_a_rank_that_leaves_is_named(cluster: LocalCluster, leaves: int) -> None:
    with spare_world(cluster) as world:
        for rank, said in enumerate(world.run(leave_early, leaves)):
            if rank == leaves:
                continue
            here = [other for other in range(SIZE) if PLACES[other] == PLACES[leaves]]
            assert f"rank {leaves} left" in said or f"ranks {', '.join(map(str, here))}" in said, said
            assert "no collective can complete without it" in said


def disagree(odd: int) -> str:
    count = 5000 if dist.get_rank() == odd else 4000
    group = dist.new_group(list(range(SIZE)))
    with pytest.raises(weir.torch.GroupBrokenError) as caught:
        dist.all_reduce(torch.ones(count), group=group)
    dist.destroy_process_group(group)
    dist.barrier()
    return str(caught.value)


@pytest.mark.parametrize("odd", [0, 1, 3, 4])
def test_ranks_that_disagree_are_all_named(world: World, odd: int) -> None:
    others = ", ".join(str(rank) for rank in range(SIZE) if rank != odd)
    for said in world.run(disagree, odd):
        assert f"rank {odd} called all_reduce(float32[5000], SUM)" in said
        assert f"ranks {others} called all_reduce(float32[4000], SUM)" in said


def kind() -> str:
    return type(connection()).__name__


def test_the_step_can_be_turned_off_and_on(cluster: LocalCluster) -> None:
    """Off by WEIR_LOCAL; on without a controller it needs no switch at all."""
    off = {"WEIR_LOCAL": "off"}
    with World(2, lambda rank: {**cluster.environment(SPARE + rank), "WEIR_LOCAL": "on"}) as world:
        assert world.run(kind) == ["HostConnection"] * 2
        assert world.run(outcome_of_a_sum) == ["summed"] * 2
    with World(2, lambda rank: cluster.environment(SPARE + rank) | off) as world:
        assert world.run(kind) == ["JobConnection"] * 2
    with World(3, lambda rank: {"WEIR_LOCAL": "on"}) as world:
        assert world.run(kind) == ["HostConnection"] * 3
        assert world.run(outcome_of_a_sum) == ["summed"] * 3
        assert world.run(lambda_controller) == [""] * 3


def lambda_controller() -> str:
    return connection().facts.controller


def test_a_wrong_word_is_refused(cluster: LocalCluster) -> None:
    with World(
        1, lambda rank: {**cluster.environment(SPARE + rank), "WEIR_LOCAL": "yes"}, timeout_s=5
    ) as world:
        world.start(kind)
        assert "WEIR_LOCAL is 'yes': it must be auto, on or off" in str(world.outcome(0))


@pytest.mark.root
@pytest.mark.long
def test_torchrun_on_two_hosts_with_two_ranks_each(tmp_path: Path) -> None:
    """Real hosts: network namespaces, whose interfaces count what is sent."""
    program = Path(host_program.__file__)
    with network_cluster(2) as cluster, contextlib.ExitStack() as stack:
        agents = []
        for node in range(2):
            environment = {
                **cluster.environment(node),
                "PYTHONPATH": source_path(),
                "OMP_NUM_THREADS": "1",
            }
            folder = tmp_path / f"node{node}"
            folder.mkdir()
            nodes = ("--nnodes=2", f"--node-rank={node}", "--nproc-per-node=2", "--master-port=29555")
            master = f"--master-addr={environment['MASTER_ADDR']}"
            command = (sys.executable, "-m", "torch.distributed.run", *nodes, master, program, tmp_path)
            prefix = cluster.lab.at_worker(node)
            agents.append(stack.enter_context(started(folder, *prefix, *command, environment=environment)))
        for agent in agents:
            assert agent.wait() == 0, agent.said
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(4)]
    for one in found:
        assert one["same"] == [True, True]
        assert one["kinds"] == ["HostConnection", "JobConnection"]
        # Values that are zero on both ranks of a host are few: a host sends all of them once, or twice.
        assert 4 * host_program.COUNT < one["sent"] < 1.2 * 4 * host_program.COUNT
        assert 1.9 < one["sent_flat"] / one["sent"] < 2.1
