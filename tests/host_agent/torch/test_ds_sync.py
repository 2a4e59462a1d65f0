# SPDX-License-Identifier: Apache-2.0
"""DS-Sync with real ranks on a real switch: means, no set-up in a step, the end, checkpoints, resizing."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import update_bn

import weir
from tests.host_agent.torch.worlds import World
from weir.cluster import LocalCluster
from weir.host_agent.torch.ds_sync import DsSync, Schedule
from weir.network import NetworkSpec, parse_shape

SIZE = 5  # two rows of three and two workers: some groups are weighted


class Mixed(nn.Module):
    """Batch normalisation between layers of three dtypes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 300)
        self.norm = nn.BatchNorm1d(300)
        self.last = nn.Linear(300, 3, dtype=torch.float64)
        self.narrow = nn.Parameter(torch.ones(7, dtype=torch.bfloat16))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(self.norm(self.first(inputs)).double()) * self.narrow.double().mean()


def mixed(seed: int = 0) -> Mixed:
    torch.manual_seed(seed)
    return Mixed()


def floats(model: nn.Module) -> list[Tensor]:
    return [t.detach().clone() for t in [*model.parameters(), *model.buffers()] if t.is_floating_point()]


def scramble(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for tensor in [*model.parameters(), *model.buffers()]:
        if tensor.is_floating_point():
            tensor.data.copy_(torch.rand(tensor.shape, generator=generator))


def digest(model: nn.Module) -> bytes:
    return b"".join(
        t.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        for t in model.state_dict().values()
        if t.dim()
    )


def batch(rank: int, step: int) -> Tensor:
    return torch.randn(8, 6, generator=torch.Generator().manual_seed(100 * step + rank))


def descend(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    optimizer.zero_grad()
    model(batch(dist.get_rank(), step)).square().mean().backward()
    optimizer.step()


def a_cycle_of_rounds() -> list[bytes]:
    """Return the replica after each round; checks that a cycle gives the mean of all."""
    rank, model = dist.get_rank(), mixed(seed=dist.get_rank())
    averager = DsSync(model, seed=3)
    same = mixed(seed=0)
    for ours, rank0 in zip(floats(model), floats(same), strict=True):
        assert torch.equal(ours, rank0), "all begin with rank 0's parameters"
    assert averager.identical
    digests = []
    for cycle in range(averager.schedule.period // averager.schedule.cycle):
        everyones = []
        for other in range(SIZE):
            scramble(same, seed=100 * cycle + other)
            everyones.append(floats(same))
        scramble(model, seed=100 * cycle + rank)
        for _ in range(averager.schedule.cycle):
            averager.step()
            digests.append(digest(model))
            assert not averager.identical
        for ours, values in zip(floats(model), zip(*everyones, strict=True), strict=True):
            mean = torch.stack([value.double() for value in values]).mean(dim=0)
            tolerance = {torch.bfloat16: 1e-2, torch.float32: 1e-6, torch.float64: 1e-12}[ours.dtype]
            torch.testing.assert_close(ours.double(), mean, rtol=0, atol=tolerance)
    averager.close()
    return digests


def test_a_cycle_leaves_the_mean_and_a_group_has_the_same_bits(world: World) -> None:
    digests = world.run(a_cycle_of_rounds)
    schedule = Schedule(SIZE, seed=3)
    for number in range(schedule.period):
        groups = schedule.partition(number)
        assert any(not group.equal for group in groups) == (number % 2 == 1)
        for group in groups:
            assert len({digests[rank][number] for rank in group.ranks}) == 1
    assert len({digests[rank][0] for rank in range(SIZE)}) == len(schedule.partition(0))


_kept: dict[str, Any] = {}


def set_up() -> None:
    _kept["averager"] = DsSync(mixed(), may_contend=[1])


def take_rounds(count: int) -> None:
    for _ in range(count):
        _kept["averager"].step()


def leave() -> None:
    _kept.pop("averager").close()


def test_no_step_sets_anything_up(world: World, cluster: LocalCluster) -> None:
    def held() -> tuple[list[int], list[int]]:
        status = cluster.status()
        return [job.job_id for job in status.jobs], [switch.entries for switch in status.switches]

    world.run(set_up)
    before = held()
    assert len(before[0]) == 1 + len(Schedule(SIZE).memberships(candidates=[1]))
    world.run(take_rounds, 2 * Schedule(SIZE).period)
    assert held() == before
    world.run(leave)
    world.run(dist.barrier)
    assert len(held()[0]) == 1


def a_contended_worker() -> tuple[bytes, bytes, frozenset[int]]:
    rank, model = dist.get_rank(), mixed()
    averager = DsSync(model, may_contend=[2])
    scramble(model, seed=rank)
    before = digest(model)
    contended = averager.agree(rank == 2)
    averager.step(contended)
    after = digest(model)
    averager.step({0})  # nobody foresaw that: its group sits out, the others do not
    averager.close()
    return before, after, contended


def test_a_contended_worker_sits_out_and_its_group_goes_on(world: World) -> None:
    outcomes = world.run(a_contended_worker)
    groups = Schedule(SIZE).partition(0, {2})
    assert {contended for _, _, contended in outcomes} == {frozenset({2})}
    assert outcomes[2][0] == outcomes[2][1]
    for group in groups:
        assert len({outcomes[rank][1] for rank in group.ranks}) == 1
    assert len({after for _, after, _ in outcomes}) == len(groups)


def an_end() -> tuple[bytes, list[Tensor]]:
    """Check the final average; the replica, its statistics, and those by this rank's batches alone."""
    rank, model = dist.get_rank(), mixed()
    averager = DsSync(model)
    for epoch in range(rank + 1):  # as if workers had collected different numbers of epochs
        scramble(model, seed=10 * rank + epoch)
        averager.collect()
    batches = [batch(rank, step) for step in range(2)] if rank else []  # rank 0 has no data
    averager.finish(batches)
    assert averager.identical
    expected, likely = [], copy.deepcopy(model)
    for other in range(SIZE):
        for epoch in range(other + 1):
            scramble(likely, seed=10 * other + epoch)
            expected.append([p.detach().double().clone() for p in likely.parameters()])
    for ours, values in zip(model.parameters(), zip(*expected, strict=True), strict=True):
        tolerance = 1e-2 if ours.dtype == torch.bfloat16 else 1e-6
        torch.testing.assert_close(
            ours.detach().double(), torch.stack(values).mean(dim=0), rtol=0, atol=tolerance
        )
    alone = copy.deepcopy(model)
    if batches:
        update_bn(batches, alone)
    averager.close()
    return digest(model), [model.norm.running_var, alone.norm.running_var]


def test_the_end_averages_workers_and_epochs_and_renews_statistics(world: World) -> None:
    outcomes = world.run(an_end)
    assert len({replica for replica, _ in outcomes}) == 1
    expected = torch.stack([alone for _, (_, alone) in outcomes[1:]]).mean(dim=0)
    torch.testing.assert_close(outcomes[0][1][0], expected)


def an_end_without_batches() -> bytes:
    rank, model = dist.get_rank(), mixed()
    averager = DsSync(model)
    scramble(model, seed=rank)
    own = digest(model)
    with averager.averaged() as mean:
        inside = digest(mean)
    assert digest(model) == own
    averager.finish()
    assert digest(model) == inside != own
    averager.close()
    return inside


def test_without_batches_all_is_the_mean_as_in_an_evaluation(world: World) -> None:
    assert len(set(world.run(an_end_without_batches))) == 1


def interrupted(steps: int, at: int) -> tuple[bytes, bytes]:
    """Return the replica after ``steps`` steps and ``finish``, without and with a checkpoint and a new
    start.
    """

    def start() -> tuple[nn.Module, torch.optim.Optimizer, DsSync]:
        model = mixed()
        return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), DsSync(model, seed=2)

    def go(parts: tuple[nn.Module, torch.optim.Optimizer, DsSync], numbers: range) -> None:
        for step in numbers:
            descend(parts[0], parts[1], step)
            parts[2].step()
            parts[2].collect()

    def end(parts: tuple[nn.Module, torch.optim.Optimizer, DsSync]) -> bytes:
        before = digest(parts[0])
        parts[2].finish()
        parts[2].close()
        return before + digest(parts[0])

    straight = start()
    go(straight, range(steps))
    first = start()
    go(first, range(at))
    saved = copy.deepcopy([part.state_dict() for part in first])
    first[2].close()
    second = start()
    for part, state in zip(second, saved, strict=True):
        part.load_state_dict(state)
    go(second, range(at, steps))
    return end(straight), end(second)


def test_training_goes_on_from_a_checkpoint_as_if_nothing_had_been(world: World) -> None:
    outcomes = world.run(interrupted, 4, 2)
    assert all(straight == continued for straight, continued in outcomes)
    assert len({straight for straight, _ in outcomes}) > 1


def instead_of_ddp() -> None:
    """Under DistributedDataParallel gradients stay each rank's own, and parameters are averaged."""
    ddp = DistributedDataParallel(mixed())
    averager = DsSync(ddp)
    ddp(batch(dist.get_rank(), 0)).square().mean().backward()
    gradients = [torch.empty(6) for _ in range(SIZE)]
    grad = ddp.module.first.weight.grad
    assert grad is not None
    dist.all_gather(gradients, grad[0].contiguous())
    assert not any(torch.equal(gradients[0], other) for other in gradients[1:])
    averager.close()


def test_ddp_stops_summing_gradients(world: World) -> None:
    world.run(instead_of_ddp)


def refused() -> None:
    with pytest.raises(ValueError, match=r"its arguments on ranks \[2\] are not rank 0's"):
        DsSync(mixed(), seed=int(dist.get_rank() == 2))
    with pytest.raises(ValueError, match=r"sizes of parameters and buffers on ranks \[4\] are not rank 0's"):
        DsSync(nn.Linear(2, 2 + int(dist.get_rank() == 4)))
    dist.barrier()


def test_ranks_that_differ_are_told(world: World) -> None:
    world.run(refused)


def resized(store: str, sizes: list[int]) -> list[tuple[bytes, int, int]]:
    """Train in worlds of these sizes one after another; who is out begins afresh when there is room."""
    rank, averager, outcome = dist.get_rank(), None, []
    model = mixed(seed=rank)
    for number, size in enumerate(sizes):
        if dist.is_initialized():
            dist.destroy_process_group()
        if rank >= size:
            averager, model = None, mixed(seed=rank)
            outcome.append((b"", 0, 0))
            continue
        dist.init_process_group(
            "weir", store=dist.FileStore(f"{store}-{number}", size), rank=rank, world_size=size
        )
        if averager is None:
            averager = DsSync(model)
        else:
            averager.bind()
        outcome.append((digest(model), averager.round, len(averager.connections)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for step in range(3):
            descend(model, optimizer, step)
            averager.step()
    return outcome


def test_groups_are_made_anew_for_fewer_and_for_more_workers(world: World, tmp_path: Path) -> None:
    sizes = [4, 2, SIZE]  # the world is as it was afterwards
    outcomes = world.run(resized, str(tmp_path / "store"), sizes)
    for number, size in enumerate(sizes):
        starts = [outcome[number] for outcome in outcomes[:size]]
        assert len({replica for replica, _, _ in starts}) == 1
        assert {round_ for _, round_, _ in starts} == {3 * number}
        memberships = Schedule(size).memberships()
        for rank, (_, _, connections) in enumerate(starts):
            own = {ranks for ranks in memberships if rank in ranks}
            assert connections == len(own | {tuple(range(size))})


def racks() -> tuple[int, list[tuple[int, ...]]]:
    averager = DsSync(mixed())
    rounds = [averager.schedule.group(dist.get_rank(), number).ranks for number in range(6)]
    for _ in range(6):
        averager.step()
    averager.close()
    return averager.schedule.cycle, rounds


def test_racks_are_known_from_the_controller() -> None:
    network = NetworkSpec(parse_shape("leaf-spine-2x1"))
    with weir.local_cluster(workers=4, network=network) as cluster, World(4, cluster.environment) as world:
        homes = [host.switch for host in cluster.plan.workers]
        outcomes = world.run(racks)
        for rank, (cycle, rounds) in enumerate(outcomes):
            assert cycle == 3
            own = tuple(other for other in range(4) if homes[other] == homes[rank])
            assert [ranks == own for ranks in rounds] == [True, True, False] * 2
            assert all(len({homes[other] for other in ranks}) == 2 for ranks in rounds[2::3])
