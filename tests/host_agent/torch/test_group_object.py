# SPDX-License-Identifier: Apache-2.0
"""The group object as torch, its tools and other libraries use one of torch's own."""

# mypy: disable-error-code="no-untyped-call"

import copy
import importlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch._C._distributed_c10d import (
    AllreduceCoalescedOptions,
    AllreduceOptions,
    BroadcastOptions,
    GatherOptions,
    ReduceOp,
    ReduceOptions,
    ScatterOptions,
)
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from tests.host_agent.torch.worlds import World

SIZE = 2
ALL = 3.0  # the sum of what ranks 0 and 1 give: their numbers plus 1


coalescing: Any = dist.distributed_c10d._coalescing_manager


def group() -> Any:
    return dist.group.WORLD


def own(count: int = 2) -> torch.Tensor:
    return torch.full((count,), dist.get_rank() + 1.0)


def options(cls: type, **values: Any) -> Any:
    made = cls()
    for name, value in values.items():
        setattr(made, name, value)
    return made


def forms() -> None:
    rank, limit = dist.get_rank(), timedelta(seconds=20)
    for call in (
        lambda tensor: group().allreduce([tensor], options(AllreduceOptions, reduceOp=ReduceOp.MAX)),
        lambda tensor: group().allreduce([tensor], ReduceOp.MAX),
        lambda tensor: group().allreduce(tensor, ReduceOp.MAX),
        lambda tensor: group().allreduce(tensor=tensor, op=dist.ReduceOp(ReduceOp.MAX), timeout=limit),
        lambda tensor: (
            group().reduce(tensor, 0, ReduceOp.MAX)
            if rank == 0
            else group().reduce(tensor, root=0, op=ReduceOp.MAX)
        ),
        lambda tensor: group().broadcast([tensor], options(BroadcastOptions, rootRank=1)),
        lambda tensor: group().broadcast(tensor, 1, limit),
        lambda tensor: group().broadcast(tensor, root=1),
    ):
        tensor = own()
        call(tensor).wait()
        assert tensor.tolist() == [2.0, 2.0]
    for tensor in (own(), own()):
        group().allreduce(tensor).wait()
        assert tensor.tolist() == [ALL, ALL]

    parts = [torch.zeros(2) for _ in range(SIZE)]
    group().allgather(parts, own()).wait()
    assert [part.tolist() for part in parts] == [[1.0, 1.0], [2.0, 2.0]]
    output = torch.zeros(2)
    group().reduce_scatter(output, [own(), own()], ReduceOp.MIN).wait()
    assert output.tolist() == [1.0, 1.0]
    group().all_to_all_single(output, own(), [1, 1], [1, 1], limit).wait()
    assert output.tolist() == [1.0, 2.0]
    group().barrier(timeout=limit).wait()
    with pytest.raises(TypeError, match=r"broadcast\(\): incompatible function arguments \(str, root=int\)"):
        group().broadcast("x", root=0)
    with pytest.raises(TypeError, match=r"incompatible function arguments.*root: a rank"):
        group().broadcast(own(), timeout=limit)


def test_collectives_can_be_called_in_all_forms_of_torch_groups(world: World) -> None:
    world.run(forms)


def several() -> None:
    rank = dist.get_rank()
    for op, wanted in (
        (ReduceOp.SUM, 10.0),
        (ReduceOp.AVG, 5.0),
        (ReduceOp.PRODUCT, 24.0),
        (ReduceOp.MAX, 4.0),
    ):
        tensors = [torch.full((2,), 2.0 * rank + 1), torch.full((2,), 2.0 * rank + 2)]
        group().allreduce(tensors, op).wait()
        assert [one.tolist() for one in tensors] == [[wanted] * 2] * 2, op
    twice = torch.ones(3)
    group().allreduce([twice, twice]).wait()
    assert twice.tolist() == [4.0] * 3
    bits = [torch.tensor([1 << rank]), torch.tensor([4])]
    group().allreduce(bits, ReduceOp.BOR).wait()
    assert torch.cat(bits).tolist() == [7, 7]
    rows = [torch.eye(3)[[row]].t().to_sparse(1) for row in (rank, 2)]
    group().allreduce(rows).wait()
    assert [one.to_dense().flatten().tolist() for one in rows] == [[1.0, 1.0, 2.0]] * 2
    sent = [torch.full((2,), 10.0 * rank), torch.full((2,), 10.0 * rank + 1)]
    group().broadcast(sent, options(BroadcastOptions, rootRank=1, rootTensor=1)).wait()
    assert [one.tolist() for one in sent] == [[11.0] * 2] * 2
    gathered = [[torch.zeros(1) for _ in range(4)] for _ in range(2)]
    group().allgather(gathered, [torch.tensor([2.0 * rank + index]) for index in range(2)]).wait()
    assert [torch.cat(one).tolist() for one in gathered] == [[0.0, 1.0, 2.0, 3.0]] * 2


def test_several_tensors_of_a_rank_count_as_those_of_so_many_devices(world: World) -> None:
    world.run(several)


def rooted_forms() -> None:
    rank = dist.get_rank()
    lists = [[torch.zeros(2) for _ in range(SIZE)]] if rank == 1 else []
    group().gather(lists, [own()], options(GatherOptions, rootRank=1)).wait()
    if rank == 1:
        assert [part.tolist() for part in lists[0]] == [[1.0, 1.0], [2.0, 2.0]]
    output = torch.zeros(2)
    inputs = [[torch.ones(2), torch.full((2,), 7.0)]] if rank == 0 else []
    group().scatter([output], inputs, options(ScatterOptions, rootRank=0)).wait()
    assert output.tolist() == ([1.0, 1.0] if rank == 0 else [7.0, 7.0])
    solo = [dist.new_group([one], backend="weir") for one in range(SIZE)][rank]
    (kept,) = parts = [torch.zeros(2)]
    solo.gather(parts, own(), 0, timedelta(seconds=20)).wait()
    assert torch.equal(kept, own())
    solo.scatter(output, [own() * 5], root=0).wait()
    assert torch.equal(output, own() * 5)
    dist.barrier()


def test_rooted_collectives_can_be_called_in_all_forms(world: World) -> None:
    world.run(rooted_forms)


REFUSED: dict[str, Callable[[], Any]] = {
    "requires non-empty tensor list": lambda: group().allreduce([]),
    r"allreduce: invalid tensor size at index 1 \(expected \(2,\), got \(3,\)\)": lambda: group().allreduce(
        [own(2), own(3)]
    ),
    "broadcast: invalid tensor type at index 1": lambda: group().broadcast([own(), own().double()]),
    r"invalid root rank: 2 \(the group has ranks 0 to 1\)": lambda: group().broadcast(own(), root=2),
    "reduce: invalid root rank: -1": lambda: group().reduce([own()], options(ReduceOptions, rootRank=-1)),
    "invalid root tensor: 1": lambda: group().broadcast([own()], options(BroadcastOptions, rootTensor=1)),
    "reduce: requires a single-element tensor list": lambda: group().reduce([own(), own()]),
    "allreduce_coalesced: requires non-empty": lambda: group().allreduce_coalesced([]),
    "allreduce: invalid tensor layout at index 1": lambda: group().allreduce(
        [own(), own().int().to_sparse()]
    ),
    "invalid root tensor: 0": lambda: group().broadcast([]),
    "requires non-empty input tensor list": lambda: group().allgather([], []),
    "tensors must all have the same type": lambda: group().allreduce_coalesced([own(), own().double()]),
    "input/output tensor lists to have the same length": lambda: group().allgather([], [own()]),
    r"invalid output tensor list at index 0 \(expected length 2, got 1\)": lambda: group().allgather(
        [[own()]], [own()]
    ),
    "allgather: invalid tensor type at index 1": lambda: group().allgather([[own(), own().int()]], [own()]),
    "invalid input tensor list size, must be world size 2": lambda: group().reduce_scatter(
        [own()], [[own()]]
    ),
    "reduce_scatter: invalid tensor size": lambda: group()._reduce_scatter_base(own(2), own(3)),
    "allgather: invalid tensor size": lambda: group()._allgather_base(own(3), own(2)),
    "gather: requires a single-element input tensor list": lambda: group().gather([], []),
    "Incorrect (out|in)put list size 3|requires empty": lambda: group().gather(
        [[own()] * 3], [own()], options(GatherOptions, rootRank=0)
    ),
    "Incorrect input list size 1|requires empty input on non-root": lambda: group().scatter(
        [own()], [[own()]], options(ScatterOptions, rootRank=0)
    ),
    "input tensor list size 0 does not match world size 2": lambda: group().alltoall([own()] * 2, []),
    "Number of tensor splits not equal to group size": lambda: group().alltoall_base(own(), own(), [2], [2]),
    "Split sizes doesn't match total dim 0 size": lambda: group().alltoall_base(own(), own(), [1, 1], [2, 1]),
    "send: takes a single tensor, not 2": lambda: group().send([own(), own()], 0, 0),
}


def refused() -> None:
    for words, call in REFUSED.items():
        for kind in (ValueError, RuntimeError):  # Python's, and what torch's backends raise
            with pytest.raises(kind, match=words):
                call()
    dist.barrier()


def test_arguments_that_do_not_fit_are_refused_in_the_words_of_torch(world: World) -> None:
    world.run(refused)


def devices() -> None:
    assert group()._device_types == [torch.device("cpu"), torch.device("cuda")]
    assert dist.distributed_c10d._get_object_coll_device(group()) == "cpu"
    assert set(dist.distributed_c10d._device_capability(group())) == {"cpu", "cuda"}
    with pytest.warns(UserWarning, match="will be deprecated"):
        assert dist.distributed_c10d._get_pg_default_device(group()) == torch.device("cpu")
    assert dist.get_backend_config() == "cpu:weir,cuda:weir"
    assert group()._get_backend_name() == dist.get_backend(group()) == "weir"


def test_torch_finds_the_devices_of_a_group(world: World) -> None:
    world.run(devices)


def saved_asynchronously(folder: str) -> None:
    checkpoint: Any = importlib.import_module("torch.distributed.checkpoint")

    checkpoint.async_save({"values": torch.ones(3)}, checkpoint_id=folder).result()
    loaded = {"values": torch.zeros(3)}
    checkpoint.load(loaded, checkpoint_id=folder)
    assert loaded["values"].tolist() == [1.0] * 3


def test_a_checkpoint_is_saved_in_the_background(world: World, tmp_path: Any) -> None:
    world.run(saved_asynchronously, str(tmp_path))


def counted() -> int:
    before = group()._get_sequence_number_for_group()
    for _ in range(5):
        dist.all_reduce(own())
    dist.all_gather_object([None] * SIZE, "some")  # two collectives
    with pytest.raises(ValueError, match="invalid root rank"):
        group().broadcast(own(), root=9)
    assert group()._get_sequence_number_for_group() == before + 8
    fresh = dist.new_group(backend="weir")
    fresh._set_sequence_number_for_group()
    assert fresh._get_sequence_number_for_group() == 0
    dist.destroy_process_group(fresh)
    found: int = group()._get_sequence_number_for_group()
    return found


def test_ranks_that_are_in_step_have_the_same_sequence_number(world: World) -> None:
    ours, theirs = world.run(counted)
    assert ours == theirs


def profiled() -> None:
    whole, parts = torch.zeros(8), [torch.zeros(4) for _ in range(SIZE)]
    with torch.profiler.profile(record_shapes=True) as profile:
        dist.all_reduce(own(10))
        dist.broadcast(own(3), 0)
        dist.all_gather(parts, own(4))
        dist.all_gather_single(whole, own(4))
        dist.reduce_scatter_single(own(4), whole)
        work = dist.all_reduce(own(5), async_op=True)
        assert work is not None
        work.wait()
        dist.send(own(), 1) if dist.get_rank() == 0 else dist.recv(own(), 0)
        dist.barrier()
    events = [(event.name, event.input_shapes) for event in profile.events() if "c10d::" in event.name]
    between = "send" if dist.get_rank() == 0 else "recv_"
    assert events == [
        ("c10d::allreduce_", [[10]]),
        ("c10d::broadcast_", [[3]]),
        ("c10d::allgather_", [[4], [4], [4]]),
        ("c10d::_allgather_base_", [[8], [4]]),
        ("c10d::_reduce_scatter_base_", [[4], [8]]),
        ("c10d::allreduce_", [[5]]),
        (f"c10d::{between}", [[2]]),
        ("c10d::barrier", []),
    ]
    names = {event.key: event.count for event in profile.key_averages() if event.key.startswith("weir:")}
    assert names == {
        "weir:all_reduce": 2,
        "weir:broadcast": 1,
        "weir:all_gather": 2,
        "weir:reduce_scatter": 1,
        f"weir:{between.rstrip('_')}": 1,
        "weir:barrier": 1,
    }


def test_a_profile_has_the_collectives_with_their_sizes(world: World) -> None:
    world.run(profiled)


def profiled_training() -> None:
    model = DistributedDataParallel(torch.nn.Linear(6, 2))
    with torch.profiler.profile() as profile:
        model(torch.ones(3, 6)).sum().backward()
    assert any(event.key == "weir:all_reduce" for event in profile.key_averages())


def test_a_profile_of_ddp_has_its_reductions(world: World) -> None:
    world.run(profiled_training)


class Names(TorchDispatchMode):
    """Keeps the names of the communication that it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            self.found.append(func.name())
        return func(*args, **(kwargs or {}))


def seen_by_modes() -> None:
    with CommDebugMode() as mode:
        tensor = own()
        dist.all_reduce(tensor)
        dist.broadcast(torch.ones(2), 0)
        dist.all_gather_single(torch.zeros(2 * SIZE), own())
        dist.all_reduce_coalesced([own(), own(3)])
        assert tensor.tolist() == [ALL, ALL]
        assert functional.all_reduce(own(), "sum", group()).tolist() == [ALL, ALL]
    counts = mode.get_comm_counts()
    assert mode.get_total_counts() == 5
    assert counts[torch.ops.c10d.allreduce_] == 1
    assert counts[torch.ops.c10d.allreduce_coalesced_] == 1
    assert counts[torch.ops.c10d_functional.all_reduce] == 1

    with CommDebugMode() as outer, Names() as inner, torch.profiler.profile() as profile:
        work = dist.all_reduce(tensor, async_op=True)
        assert work is not None
        work.wait()
        dist.barrier()
        with pytest.raises(ValueError, match="invalid root rank"):
            group().broadcast(own(), root=9)
    assert tensor.tolist() == [ALL * SIZE] * 2
    assert outer.get_total_counts() == 1
    assert inner.found == ["c10d::allreduce_", "c10d::barrier"]
    assert any(event.key == "c10d::allreduce_" for event in profile.key_averages())
    dist.barrier()


def test_dispatch_modes_see_the_collectives(world: World) -> None:
    world.run(seen_by_modes)


def without_values() -> None:
    before = group().connection.number
    with FakeTensorMode():
        tensor = own(3)
        dist.all_reduce(tensor)
        dist.broadcast(tensor, 0)
        assert tensor.shape == (3,)
    assert group().connection.number == before
    with pytest.raises(TypeError, match="this one is on meta"):
        dist.all_reduce(torch.ones(3, device="meta"))
    dist.barrier()


def test_fake_tensors_pass_collectives_without_sending_anything(world: World) -> None:
    world.run(without_values)


def tensors_of_a_mesh() -> None:
    mesh = init_device_mesh("cpu", (SIZE,))
    whole = torch.arange(8.0).reshape(4, 2)
    with CommDebugMode() as mode:
        sharded = distribute_tensor(whole, mesh, [Shard(0)])
        assert torch.equal(sharded.redistribute(mesh, [Replicate()]).to_local(), whole)
    assert mode.get_comm_counts()[torch.ops.c10d_functional.all_gather_into_tensor] == 1
    assert mode.get_comm_counts()[torch.ops.c10d.scatter_] == 1


def test_the_collectives_of_distributed_tensors_are_counted(world: World) -> None:
    world.run(tensors_of_a_mesh)


def coalesced() -> None:
    sizes = [7, 0, 2000, 1, 300, 1024, 600, 500, 3]
    scale = torch.Generator().manual_seed(dist.get_rank())
    inputs = [torch.randn(size, generator=scale) * 10.0**index for index, size in enumerate(sizes)]

    def rounds(call: Callable[[], Any]) -> int:
        before: int = group().connection.stats.reduces
        call()
        after: int = group().connection.stats.reduces
        return after - before

    alone = [tensor.clone() for tensor in inputs]
    for tensor in alone:
        dist.all_reduce(tensor)
    together = [tensor.clone() for tensor in inputs]
    group().allreduce_coalesced(together, AllreduceCoalescedOptions()).wait()
    assert all(map(torch.equal, together, alone))

    many = [own(10) for _ in range(100)]
    usual = rounds(lambda: dist.all_reduce(own(1000)))
    assert rounds(lambda: dist.all_reduce_coalesced(many)) == usual
    assert all(tensor.tolist() == [ALL] * 10 for tensor in many)

    outputs = [torch.zeros(SIZE * 5, 2) for _ in range(40)]
    with coalescing():
        for index, output in enumerate(outputs):
            dist.all_gather_single(output, own(10).view(5, 2) + index)
    assert all(
        torch.equal(output, torch.tensor([1.0 + index, 2.0 + index]).repeat_interleave(10).view(10, 2))
        for index, output in enumerate(outputs)
    )
    wholes = [tensor.repeat(SIZE) for tensor in inputs]
    alone = [torch.zeros(size) for size in sizes]
    for output, whole in zip(alone, wholes, strict=True):
        dist.reduce_scatter_single(output, whole)
    together = [torch.zeros(size) for size in sizes]
    with coalescing(async_ops=True) as manager:
        for output, whole in zip(together, wholes, strict=True):
            dist.reduce_scatter_single(output, whole)
    manager.wait()
    assert all(map(torch.equal, together, alone))


def test_small_tensors_travel_together_with_the_bits_that_they_have_alone(world: World) -> None:
    world.run(coalesced)


def of_several_dtypes() -> None:
    rank = dist.get_rank()
    given = [torch.tensor([2**40 + 1 + rank]), torch.tensor([0.5 + rank]), torch.tensor([2**40 + 3 + rank])]
    gathered = [torch.zeros(SIZE, dtype=one.dtype) for one in given]
    group().all_gather_single_coalesced(gathered, given).wait()
    assert [one.tolist() for one in gathered] == [
        [2**40 + 1, 2**40 + 2],
        [0.5, 1.5],
        [2**40 + 3, 2**40 + 4],
    ]
    sums = [torch.zeros(1, dtype=one.dtype) for one in given]
    group().reduce_scatter_single_coalesced(sums, [one.repeat(SIZE) for one in given]).wait()
    assert [one.tolist() for one in sums] == [[2**41 + 3], [2.0], [2**41 + 7]]


def test_small_tensors_of_several_dtypes_keep_their_values(world: World) -> None:
    world.run(of_several_dtypes)


def listed_twice() -> None:
    for count in (2, 3000):
        tensor, view = own(count), own(2 * count)
        dist.all_reduce_coalesced([tensor, view[::2], tensor, view[::2], view[1::2]])
        assert tensor.tolist() == [ALL] * count
        assert view.tolist() == [ALL] * 2 * count


def test_a_tensor_that_is_listed_twice_is_reduced_once(world: World) -> None:
    world.run(listed_twice)


def late(timeout: float) -> str:
    other = dist.new_group(backend="weir")
    other.set_timeout(timedelta(seconds=timeout))
    found = ""
    if dist.get_rank() == 0:
        with pytest.raises(RuntimeError) as caught:
            dist.all_reduce(own(), group=other)
        found = str(caught.value)
    dist.barrier()
    dist.destroy_process_group(other)
    return found


def test_a_timeout_says_that_it_timed_out(world: World) -> None:
    said, _ = world.run(late, 0.5)
    assert "timed out" in said


def copied() -> None:
    model = DistributedDataParallel(torch.nn.Linear(3, 2))
    twin = copy.deepcopy(model)
    for one in (model, twin):
        one(torch.ones(2, 3)).sum().backward()
    assert torch.equal(model.module.weight.grad, twin.module.weight.grad)


def test_a_ddp_module_can_be_copied(world: World) -> None:
    world.run(copied)
