# SPDX-License-Identifier: Apache-2.0
"""Groups of a process progress independently, in whatever order ranks issue their collectives."""

import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn.parallel import DistributedDataParallel

import weir
import weir.torch
from tests.harness.effort import effort, examples
from tests.host_agent.torch.worlds import World
from weir.cluster import LocalCluster
from weir.network import NetworkSpec

SIZE = 4
MEMBERS = ((0, 1, 2, 3), (0, 1, 2, 3), (0, 2, 3))  # of the groups
GROUPS: dict[int, Any] = {}

Collective = Callable[[Any, Sequence[int], int], list[torch.Tensor]]


def make_groups() -> None:
    for number, members in enumerate(MEMBERS):
        GROUPS[number] = dist.new_group(members)


def on_hosts(cluster: LocalCluster, rank: int) -> Mapping[str, str]:
    """Two ranks a host: the leader's share a port, the others have none."""
    return cluster.environment(rank // 2)


LINKS = {"ring": NetworkSpec(), "loss": NetworkSpec(loss=0.02), "hosts": NetworkSpec()}


@pytest.fixture(scope="module", params=effort(["loss", "hosts"], list(LINKS)))
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    link = request.param
    with weir.local_cluster(SIZE, network=LINKS[link]) as cluster:
        environment = partial(on_hosts, cluster) if link == "hosts" else cluster.environment
        with World(SIZE, environment) as world:
            world.run(make_groups)
            yield world


# ---- collectives, each with inputs that a seed decides


def values(seed: int, rank: int, count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    found = torch.randn(count, generator=generator) * 100
    return found.to(dtype)


def all_reduce(group: Any, members: Sequence[int], seed: int) -> list[torch.Tensor]:
    tensor = values(seed, dist.get_rank(), (1, 700, 40_000)[seed % 3])
    dist.all_reduce(tensor, group=group)
    return [tensor]


def all_reduce_whole_numbers(group: Any, members: Sequence[int], seed: int) -> list[torch.Tensor]:
    tensor = values(seed, dist.get_rank(), 300, torch.int64)
    dist.all_reduce(tensor, dist.ReduceOp.MAX if seed % 2 else dist.ReduceOp.SUM, group=group)
    return [tensor]


def broadcast(group: Any, members: Sequence[int], seed: int) -> list[torch.Tensor]:
    tensor = values(seed, dist.get_rank(), 500, torch.float16)
    dist.broadcast(tensor, members[seed % len(members)], group=group)
    return [tensor]


def all_gather(group: Any, members: Sequence[int], seed: int) -> list[torch.Tensor]:
    found = [torch.empty(33) for _ in members]
    dist.all_gather(found, values(seed, dist.get_rank(), 33), group=group)
    return found


def all_to_all(group: Any, members: Sequence[int], seed: int) -> list[torch.Tensor]:
    output = torch.empty(20 * len(members))
    dist.all_to_all_single(output, values(seed, dist.get_rank(), 20 * len(members)), group=group)
    return [output]


def barrier(group: Any, members: Sequence[int], seed: int) -> list[torch.Tensor]:
    dist.barrier(group=group)
    return []


COLLECTIVES: dict[str, Collective] = {
    function.__name__: function
    for function in (all_reduce, all_reduce_whole_numbers, broadcast, all_gather, all_to_all, barrier)
}
Script = list[tuple[str, int]]  # collectives and their seeds


def perform(number: int, script: Script) -> list[list[bytes]]:
    """Make a group's collectives one after the other; return the bits of what each gave."""
    members = MEMBERS[number]
    results = (COLLECTIVES[name](GROUPS[number], members, seed) for name, seed in script)
    return [[tensor.numpy().tobytes() for tensor in tensors] for tensors in results]


def mine(scripts: Sequence[Script]) -> list[int]:
    return [number for number in range(len(scripts)) if dist.get_rank() in MEMBERS[number]]


def in_order(scripts: Sequence[Script]) -> dict[int, list[list[bytes]]]:
    return {number: perform(number, scripts[number]) for number in mine(scripts)}


def in_threads(scripts: Sequence[Script]) -> dict[int, list[list[bytes]]]:
    """Make each group's collectives in a thread of its own."""
    found: dict[int, list[list[bytes]]] = {}
    threads = [
        threading.Thread(target=lambda n=number: found.update({n: perform(n, scripts[n])}))
        for number in mine(scripts)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return dict(sorted(found.items()))


scripts = st.lists(
    st.lists(st.tuples(st.sampled_from(sorted(COLLECTIVES)), st.integers(0, 99)), min_size=1, max_size=5),
    min_size=len(MEMBERS),
    max_size=len(MEMBERS),
)


@settings(
    max_examples=examples(6), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(scripts=scripts)
def test_a_thread_for_each_group_gets_what_each_group_gives_alone(
    world: World, scripts: Sequence[Script]
) -> None:
    assert world.run(in_threads, scripts) == world.run(in_order, scripts)


def issued(rounds: int, seed: int) -> list[int]:
    """Issue sums of all groups, in an order that is each rank's own; return the groups of wrong ones."""
    generator = random.Random(seed + dist.get_rank())
    numbers = [number for number in range(len(MEMBERS)) if dist.get_rank() in MEMBERS[number]]
    order = [number for number in numbers for _ in range(rounds)]
    generator.shuffle(order)
    tensors = [torch.full((500,), 2.0**number) for number in order]
    works = [
        dist.all_reduce(tensor, group=GROUPS[number], async_op=True)
        for tensor, number in zip(tensors, order, strict=True)
    ]
    for work in works:
        work.wait()
    return [
        number
        for tensor, number in zip(tensors, order, strict=True)
        if not (tensor == len(MEMBERS[number]) * 2.0**number).all()
    ]


def test_ranks_may_issue_the_collectives_of_different_groups_in_different_orders(world: World) -> None:
    for seed in range(3):
        assert world.run(issued, 6, 10 * seed) == [[]] * SIZE


def opposite() -> float:
    """Begin a long sum of one group and a short one of another; every other rank begins with the other."""
    pair = [(GROUPS[0], torch.ones(300_000)), (GROUPS[1], torch.ones(3))]
    order = pair if dist.get_rank() % 2 else pair[::-1]
    for work in [dist.all_reduce(tensor, group=group, async_op=True) for group, tensor in order]:
        work.wait()
    return sum(float(tensor.sum()) for _, tensor in pair)


def test_opposite_orders(world: World) -> None:
    assert world.run(opposite) == [SIZE * 300_003.0] * SIZE


# ---- a group that stands still


def one_is_late(rounds: int) -> tuple[float, float]:
    """Make sums in one group while the last rank does not come to another's; then it comes."""
    late, tensor, step = torch.ones(2), torch.zeros(100), torch.ones(100)
    work = None
    if dist.get_rank() != SIZE - 1:
        work = dist.all_reduce(late, group=GROUPS[0], async_op=True)
    for _ in range(rounds):
        # The last rank needs this one for what it does first.
        assert work is None or not work.is_completed(), "a sum was done without all of its ranks"
        step.fill_(1)
        dist.all_reduce(step, group=GROUPS[1])
        tensor += step
    work = work or dist.all_reduce(late, group=GROUPS[0], async_op=True)
    dist.barrier(GROUPS[1])
    work.wait()
    return float(late.sum()), float(tensor.sum())


def test_a_group_that_waits_for_a_rank_lets_another_reduce(world: World) -> None:
    assert world.run(one_is_late, 300) == [(2.0 * SIZE, 100.0 * SIZE * 300)] * SIZE


def never_comes() -> tuple[str, float]:
    """Let a group run into its own timeout while another goes on; return its error, and the other's sums."""
    doomed = dist.new_group(range(SIZE), timeout=timedelta(seconds=1.5))
    said, work = "", None
    if dist.get_rank():
        work = dist.all_reduce(torch.ones(5), group=doomed, async_op=True)
    ended = torch.zeros(1)
    while ended.item() < SIZE - 1:
        ended.fill_(work.is_completed() if work else 0)
        dist.all_reduce(ended, group=GROUPS[0])
    if work is not None:
        try:
            work.wait()
        except Exception as error:
            said = str(error)
    tensor = torch.ones(4)
    dist.all_reduce(tensor, group=GROUPS[0])
    dist.destroy_process_group(doomed)
    return said, float(tensor.sum())


def test_a_group_that_times_out_ends_alone(world: World) -> None:
    (first, total), *others = world.run(never_comes)
    assert (first, total) == ("", 4.0 * SIZE)
    for said, sums in others:
        assert (
            "timeout of 1.5 s" in said or "within 1.5 s" in said or "for 1.5 s" in said or "gave up" in said
        )
        assert sums == 4.0 * SIZE


def comes_and_goes() -> list[bool]:
    """Make and end groups in one thread while another sums in a group that stays."""
    right: list[bool] = []

    def train() -> None:
        for number in range(60):
            tensor = torch.full((2000,), float(number))
            dist.all_reduce(tensor, group=GROUPS[0])
            right.append(bool((tensor == SIZE * number).all()))

    thread = threading.Thread(target=train)
    thread.start()
    for _ in range(3):
        group = dist.new_group(range(SIZE))
        tensor = torch.ones(3)
        dist.all_reduce(tensor, group=group)
        right.append(bool((tensor == SIZE).all()))
        dist.barrier(GROUPS[1])
        dist.destroy_process_group(group)
    thread.join()
    return right


def test_groups_come_and_go_beside_one_that_works(world: World) -> None:
    assert world.run(comes_and_goes) == [[True] * 63] * SIZE


# ---- what others do so


def saves_beside_training(folder: str) -> tuple[bytes, bytes]:
    """Train on while a checkpoint is saved in the background; return what was saved, and what it was."""
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(40, 40), process_group=GROUPS[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        model(values(7, dist.get_rank(), 80).view(2, 40) / 100).square().mean().backward()
        optimizer.step()

    step()
    before = model.module.weight.detach().clone()
    state = {"model": {name: tensor.clone() for name, tensor in model.module.state_dict().items()}}
    saving = dcp.async_save(state, checkpoint_id=folder, process_group=GROUPS[1])
    for _ in range(30):
        step()
    saving.result()
    loaded = {"model": torch.nn.Linear(40, 40).state_dict()}
    dcp.load(loaded, checkpoint_id=folder, process_group=GROUPS[1])
    return before.numpy().tobytes(), loaded["model"]["weight"].numpy().tobytes()


def test_a_checkpoint_is_saved_beside_training(world: World, tmp_path: Path) -> None:
    for before, saved in world.run(saves_beside_training, str(tmp_path / "checkpoint")):
        assert before == saved


def pipelines() -> list[float]:
    """Send messages of one group in a thread, and reduce in another group meanwhile."""
    rank, got = dist.get_rank(), []

    def stage() -> None:
        for number in range(10):
            tensor = torch.full((50,), float(number))
            if rank:
                dist.recv(tensor, rank - 1, group=GROUPS[1])
            if rank < SIZE - 1:
                dist.send(tensor + 1, rank + 1, group=GROUPS[1])
            dist.barrier(GROUPS[1])
            got.append(float(tensor[0]) - number)

    thread = threading.Thread(target=stage)
    thread.start()
    for number in range(20):
        flat = torch.full((SIZE * 100,), float(number))
        part = torch.empty(100)
        dist.reduce_scatter_tensor(part, flat, group=GROUPS[0])
        dist.all_gather_into_tensor(flat, part, group=GROUPS[0])
        assert (flat == SIZE * number).all()
    thread.join()
    return got


def test_a_pipeline_runs_beside_sharded_data(world: World) -> None:
    assert world.run(pipelines) == [[float(rank)] * 10 for rank in range(SIZE)]
