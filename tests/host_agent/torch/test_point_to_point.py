# SPDX-License-Identifier: Apache-2.0
"""Messages between two ranks, and what is built on them: batches, meshes, pipelines."""

import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

import weir
import weir.torch
from tests.host_agent.torch.worlds import World
from weir.cluster import LocalCluster

SIZE = 4
HOSTS = 2 * SIZE


def second_world(cluster: LocalCluster) -> World:
    """Return ranks on the hosts that the module's world does not use."""
    return World(SIZE, lambda rank: cluster.environment(SIZE + rank))


def ring() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64):
        for shape in ((3, 5), (1_000_003,), (), (0,)):
            given = torch.full(shape, rank + 1).to(dtype)
            taken = torch.zeros(shape, dtype=dtype)
            sending = dist.isend(given, (rank + 1) % size)
            assert dist.recv(taken, (rank - 1) % size) == (rank - 1) % size
            sending.wait()
            assert torch.equal(taken, torch.full(shape, (rank - 1) % size + 1).to(dtype))
            assert sending.is_completed()


def test_a_ring_of_messages_of_all_kinds_arrives(world: World) -> None:
    world.run(ring)


def strided_and_to_itself() -> None:
    rank = dist.get_rank()
    taken = torch.zeros(6, 4)
    sending = dist.isend(torch.arange(12.0).reshape(3, 4).T, rank)
    receiving = dist.irecv(taken[::2].T, rank)
    receiving.wait()
    sending.wait()
    assert torch.equal(taken[::2], torch.arange(12.0).reshape(3, 4))
    assert torch.equal(taken[1::2], torch.zeros(3, 4))


def test_strides_do_not_matter_and_a_rank_can_send_to_itself(world: World) -> None:
    world.run(strided_and_to_itself)


def out_of_order() -> None:
    """Tags are taken in another order than they were sent; messages of one tag stay in order."""
    if dist.get_rank() == 0:
        for work in [dist.isend(torch.tensor([n]), 1, tag=tag) for n, tag in enumerate([7, 8, 7, 9])]:
            work.wait()
    elif dist.get_rank() == 1:
        taken = []
        for tag in (9, 7, 8, 7):
            value = torch.zeros(1, dtype=torch.int64)
            dist.recv(value, 0, tag=tag)
            taken.append(value.item())
        assert taken == [3, 0, 1, 2]


def test_tags_choose_among_messages(world: World) -> None:
    world.run(out_of_order)


def from_anybody() -> list[int]:
    if dist.get_rank():
        dist.send(torch.full((1000,), float(dist.get_rank())), 0, tag=5)
        return []
    sources = []
    for _ in range(SIZE - 1):
        value = torch.zeros(1000)
        sources.append(dist.recv(value, tag=5))
        assert value.unique().tolist() == [float(sources[-1])]
    return sorted(sources)


def test_a_receive_from_any_rank_says_whose_it_was(world: World) -> None:
    assert world.run(from_anybody)[0] == [1, 2, 3]


def batches_among_collectives() -> None:
    rank = dist.get_rank()
    for step in range(20):
        taken = torch.zeros(50)
        total = torch.ones(500)
        summing = dist.all_reduce(total, async_op=True)
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.irecv, taken, (rank - 1) % SIZE),
                dist.P2POp(dist.isend, torch.full((50,), float(rank + step)), (rank + 1) % SIZE),
            ]
        )
        for work in works:
            work.wait()
        summing.wait()
        assert taken.unique().tolist() == [float((rank - 1) % SIZE + step)]
        assert total.unique().tolist() == [float(SIZE)]


def test_batches_and_collectives_do_not_disturb_one_another(world: World) -> None:
    world.run(batches_among_collectives)


def objects() -> Any:
    if dist.get_rank() == 2:
        dist.send_object_list(["weir", {"rank": 2}], 1)
    if dist.get_rank() == 1:
        taken = [None, None]
        dist.recv_object_list(taken, 2)
        return taken
    return None


def test_objects_are_sent(world: World) -> None:
    assert world.run(objects)[1] == ["weir", {"rank": 2}]


def mesh_of_two_dimensions() -> None:
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pipeline", "data"))
    for name, partner in (("pipeline", rank ^ 2), ("data", rank ^ 1)):
        group = mesh.get_group(name)
        value = torch.tensor([10.0**rank])
        dist.all_reduce(value, group=group)
        assert value.item() == 10.0**rank + 10.0**partner
        other = torch.zeros(1)
        sending = dist.isend(torch.tensor([float(rank)]), group=group, group_dst=1 - group.rank())
        dist.recv(other, group=group, group_src=1 - group.rank())
        sending.wait()
        assert other.item() == partner


def test_a_mesh_has_collectives_and_messages_in_each_dimension(cluster: LocalCluster) -> None:
    with second_world(cluster) as world:
        world.run(mesh_of_two_dimensions)


def halves() -> list[float]:
    """Split as ``dist.split_group`` has a group do it where there is an accelerator."""
    rank = dist.get_rank()
    half = dist.group.WORLD.split_group([0, 2] if rank % 2 == 0 else [1, 3], group_name=f"half-{rank % 2}")
    assert dist.group.WORLD.split_group([(rank + 1) % SIZE], group_name="elsewhere") is None
    value = torch.tensor([10.0**rank])
    half.allreduce([value]).wait()
    quarter = half.split_group([half.rank()], group_name=f"quarter-{rank}")
    quarter.allreduce([value]).wait()
    assert quarter.size() == 1
    quarter.shutdown()
    half.shutdown()
    return [half.rank(), half.size(), value.item()]


def test_a_group_is_split(cluster: LocalCluster) -> None:
    with second_world(cluster) as world:
        assert world.run(halves) == [[0, 2, 101.0], [0, 2, 1010.0], [1, 2, 101.0], [1, 2, 1010.0]]


def pipeline() -> list[list[float]]:
    """Return the gradients of this rank's stage of two."""
    stages = dist.new_group([0, 1])
    if (rank := dist.get_rank()) > 1:
        return []
    layers = two_layers()
    stage = PipelineStage(layers[rank], rank, 2, torch.device("cpu"), group=stages)
    schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=torch.nn.functional.mse_loss)
    inputs, targets = samples()
    if rank == 0:
        schedule.step(inputs)
    else:
        schedule.step(target=targets)
    dist.destroy_process_group(stages)
    return [parameter.grad.flatten().tolist() for parameter in layers[rank].parameters()]


def two_layers() -> torch.nn.Sequential:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Linear(5, 3))


def samples() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(8, 6, generator=generator), torch.randn(8, 3, generator=generator)


def test_a_gpipe_schedule_has_the_gradients_of_the_whole_model(cluster: LocalCluster) -> None:
    with second_world(cluster) as world:
        first, second, *_ = world.run(pipeline)
    layers = two_layers()
    inputs, targets = samples()
    torch.nn.functional.mse_loss(layers(inputs), targets).backward()
    for found, parameter in zip([*first, *second], layers.parameters(), strict=True):
        torch.testing.assert_close(torch.tensor(found), parameter.grad.flatten())


def misfits() -> str:
    rank = dist.get_rank()
    with pytest.raises(ValueError, match="size and dtype must be the same on both") as caught:
        if rank == 0:
            dist.send(torch.ones(5), 1)
        elif rank == 1:
            dist.recv(torch.ones(3), 0)
        elif rank == 2:
            dist.send(torch.ones(3), 3)
        else:
            dist.recv(torch.ones(3, dtype=torch.int32))
    ring()
    return str(caught.value)


def test_a_message_that_does_not_fit_is_refused_on_both_sides_and_costs_nothing(world: World) -> None:
    messages = world.run(misfits)
    assert messages[0] == messages[1]
    assert (
        "rank 0 sends 20 bytes of float32 to rank 1 (tag 0), which receives 12 bytes of float32"
        in messages[0]
    )
    assert (
        "rank 2 sends 12 bytes of float32 to rank 3 (tag 0), which receives 12 bytes of int32" in messages[3]
    )


def without_a_partner() -> str:
    dist.barrier()
    dist.group.WORLD.set_timeout(timedelta(seconds=2))
    if dist.get_rank() == 2:
        with pytest.raises(weir.torch.MessageError) as caught:
            dist.recv(torch.ones(3), 1, tag=4)
        with pytest.raises(weir.torch.MessageError, match="still waiting for rank 1 to send"):
            dist.send(torch.ones(3), 0)
        return str(caught.value)
    if dist.get_rank() == 3:
        with pytest.raises(weir.torch.MessageError, match="rank 2 has closed its connection") as caught:
            dist.isend(torch.ones(3), 2).wait(timedelta(seconds=20))
        return str(caught.value)
    return ""


def test_a_timeout_names_the_rank_that_was_waited_for(cluster: LocalCluster) -> None:
    with second_world(cluster) as world:
        _, _, message, _ = world.run(without_a_partner)
    assert message == "timed out: after 2 s still waiting for rank 1 to send (tag 4)"


def wait_for_one_that_dies(meet: bool, ready: str) -> str:
    rank = dist.get_rank()
    if meet:
        ring()
    dist.barrier()
    Path(ready, str(rank)).touch()
    with pytest.raises(weir.torch.GroupBrokenError) as caught:
        if rank == 0:
            dist.recv(torch.ones(3), 1)
        elif rank == 2:
            dist.send(torch.ones(3), 1)
        elif rank == 3:
            dist.recv(torch.ones(3))
        else:
            time.sleep(60)
    return str(caught.value)


@pytest.mark.parametrize("meet", [False, True])
def test_nobody_waits_for_a_rank_that_died(cluster: LocalCluster, meet: bool, tmp_path: Path) -> None:
    with second_world(cluster) as world:
        world.start(wait_for_one_that_dies, meet, str(tmp_path))
        while len(list(tmp_path.iterdir())) < SIZE:
            time.sleep(0.01)
        world.processes[1].kill()
        for rank in (0, 2, 3):
            message = world.outcome(rank)
            assert isinstance(message, str), message
            assert "rank 1" in message, message


def leave_with_a_message_under_way() -> None:
    rank = dist.get_rank()
    if rank == 0:
        dist.send(torch.ones(5_000_000), 1)
        dist.destroy_process_group()
    elif rank == 1:
        value = torch.zeros(5_000_000)
        dist.recv(value, 0)
        assert value.min() == 1
        with pytest.raises(weir.torch.MessageError, match="cannot receive from rank 0"):
            dist.recv(value, 0)


def test_what_was_sent_arrives_although_the_sender_left(cluster: LocalCluster) -> None:
    with second_world(cluster) as world:
        world.run(leave_with_a_message_under_way)


def wait_shortly() -> None:
    if dist.get_rank() == 0:
        value = torch.zeros(3)
        work = dist.irecv(value, 1)
        with pytest.raises(TimeoutError, match="goes on in the background"):
            work.wait(timedelta(seconds=0.1))
        dist.barrier()
        work.wait()
        assert value.tolist() == [1.0] * 3
        return
    dist.barrier()
    if dist.get_rank() == 1:
        dist.send(torch.ones(3), 0)


def test_a_wait_that_was_too_short_can_be_repeated(world: World) -> None:
    world.run(wait_shortly)
