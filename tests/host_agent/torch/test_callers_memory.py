# SPDX-License-Identifier: Apache-2.0
"""Tensors as programs have them: of any layout and mode, and whose storages they go on to resize."""

from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

import weir
import weir.torch
from tests.host_agent.torch.worlds import World
from weir.host_agent.collectives.tensor_memory import array_of

SIZE: Final = 2
SHAPE: Final = (2, 4, 2, 6)  # of what each rank gives; dimension 0 divides among the ranks


@pytest.fixture(scope="module")
def gloo() -> Iterator[World]:
    with World(SIZE, backend="gloo") as world:
        yield world


def message(output: torch.Tensor, given: torch.Tensor) -> None:
    other = 1 - dist.get_rank()
    sending = dist.isend(given, other)
    dist.recv(output, other)
    sending.wait()


# By name: a call with an output and an input, and the output's shape. In place: the output is the input.
Collective = Callable[[torch.Tensor, torch.Tensor], object]
IN_PLACE: Final[dict[str, Collective]] = {
    "all_reduce": lambda tensor, _: dist.all_reduce(tensor),
    "all_reduce max": lambda tensor, _: dist.all_reduce(tensor, dist.ReduceOp.MAX),
    "reduce": lambda tensor, _: dist.reduce(tensor, 0),
    "broadcast": lambda tensor, _: dist.broadcast(tensor, 1),
}
OUT_OF_PLACE: Final[dict[str, Collective]] = {
    "all_gather": lambda output, given: dist.all_gather([torch.empty_like(given), output], given),
    "gather": lambda output, given: dist.gather(
        given, [torch.empty_like(given), output] if dist.get_rank() == 0 else None
    ),
    "scatter": lambda output, given: dist.scatter(
        output, [given, given] if dist.get_rank() == 1 else None, src=1
    ),
    "reduce_scatter": lambda output, given: dist.reduce_scatter(output, [given, given]),
    "all_to_all": lambda output, given: dist.all_to_all([torch.empty_like(given), output], [given, given]),
    "all_to_all_single": dist.all_to_all_single,
    "send, recv": message,
}
REDUCTIONS: Final = {"all_reduce", "all_reduce max", "reduce", "reduce_scatter", "reduce_scatter_tensor"}
SINGLE: Final[dict[str, tuple[Collective, Callable[[torch.Tensor], torch.Tensor]]]] = {
    "all_gather_into_tensor": (dist.all_gather_into_tensor, lambda given: torch.cat([given] * SIZE)),
    "reduce_scatter_tensor": (dist.reduce_scatter_tensor, lambda given: given[: len(given) // SIZE].clone()),
}
REDUCIBLE: Final = [
    torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64,
    torch.complex64,
]  # fmt: skip
OTHERS: Final = [torch.float8_e4m3fn, torch.uint16, torch.uint32, torch.complex128, torch.complex32]


def values(dtype: torch.dtype = torch.float32, shape: tuple[int, ...] = SHAPE) -> torch.Tensor:
    """Return whole numbers that differ from rank to rank, whose sums are exact."""
    numbers = torch.arange(torch.Size(shape).numel()).reshape(shape) % 7 + dist.get_rank()
    return numbers.to(torch.float32).to(dtype) if dtype.is_floating_point else numbers.to(dtype)


def calls(given: torch.Tensor) -> Iterator[tuple[str, Collective, torch.Tensor, torch.Tensor]]:
    """Yield the name, call, output and input of each collective that takes a tensor such as ``given``."""
    for name, call in {**IN_PLACE, **OUT_OF_PLACE}.items():
        is_known = given.dtype not in OTHERS and not (name == "all_reduce max" and given.is_complex())
        if name in REDUCTIONS and not is_known:
            continue
        mine = given.clone()
        yield name, call, mine if name in IN_PLACE else torch.zeros_like(given), mine
    for name, (call, output) in SINGLE.items():
        if name not in REDUCTIONS or given.dtype not in OTHERS:
            mine = given.clone()
            yield name, call, torch.zeros_like(output(mine)), mine


def resized() -> list[str]:
    failed = []
    for dtype in [*REDUCIBLE, *OTHERS]:
        for name, call, output, given in calls(values(dtype)):
            call(output, given)
            for tensor in (output, given):
                try:
                    tensor.untyped_storage().resize_(0)
                    tensor.untyped_storage().resize_(4096)
                    tensor.resize_(5000)
                except RuntimeError as error:
                    failed.append(f"{name} {dtype}: {error}")
    return failed


def test_storages_can_be_resized_after_any_collective(world: World) -> None:
    assert world.run(resized) == [[]] * SIZE


def test_an_array_of_a_tensor_is_its_memory_and_keeps_it_alive() -> None:
    for dtype in (torch.bool, torch.int16, torch.uint32, torch.float16, torch.float64, torch.complex64):
        whole = torch.arange(24).reshape(4, 6).to(dtype)
        for part in (whole, whole.T, whole[1:3, 1:5:2], whole[:0], whole[2, 3]):
            array = array_of(part)
            assert array.tolist() == part.tolist()
            assert array.strides == part.numpy().strides or not part.numel()
    tensor = torch.zeros(3)
    array = array_of(tensor)
    array[1] = 2.0
    assert tensor.tolist() == [0, 2, 0]
    del tensor
    assert array.tolist() == [0, 2, 0]


@pytest.mark.parametrize("tensor", [torch.ones(2, dtype=torch.cfloat).conj(), torch.ones(2).bfloat16()])
def test_a_tensor_that_numpy_would_read_wrongly_has_no_array(tensor: torch.Tensor) -> None:
    with pytest.raises(TypeError, match="NumPy cannot read"):
        array_of(tensor)


def freed() -> str:
    tensor = torch.ones(8)
    tensor.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="no memory") as caught:
        dist.all_reduce(tensor)
    healthy = torch.ones(2)
    dist.all_reduce(healthy)
    assert healthy.tolist() == [SIZE] * 2
    return str(caught.value)


def test_a_tensor_whose_storage_is_freed_is_refused(world: World) -> None:
    for told in world.run(freed):
        assert "resized to 0 bytes" in told


def after_a_hook(sparsifier: str) -> list[float]:
    """Train with gradients in DDP's buckets, and free each gradient after its step."""
    torch.manual_seed(1)
    model = DistributedDataParallel(torch.nn.Linear(300, 8), gradient_as_bucket_view=True)
    state = weir.torch.HookState(model, sparsifier=sparsifier, density=0.5)
    model.register_comm_hook(state, weir.torch.hook)
    for step in range(3):
        model(values(shape=(2, 300)) + step).sum().backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad = None if step < 2 else parameter.grad
    bucket = next(iter(model.parameters())).grad
    assert bucket is not None
    total = bucket.sum().item()
    bucket.untyped_storage().resize_(0)
    return [total]


@pytest.mark.parametrize("sparsifier", ["dense", "topk", "omnireduce", "dfs"])
def test_gradients_can_be_freed_after_the_hook(world: World, sparsifier: str) -> None:
    first, second = world.run(after_a_hook, sparsifier)
    assert first == second


LAYOUTS: Final[dict[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "transposed": lambda tensor: tensor.clone().transpose(0, -1).contiguous().transpose(0, -1),
    "channels last": lambda tensor: tensor.clone(memory_format=torch.channels_last),
    "every other": lambda tensor: torch.zeros(*tensor.shape[:-1], 2 * tensor.shape[-1], dtype=tensor.dtype)[
        ..., ::2
    ].copy_(tensor),
    "offset": lambda tensor: torch.zeros(tensor.numel() + 3, dtype=tensor.dtype)[3:].view(tensor.shape)
    .copy_(tensor),
    "negative": lambda tensor: torch._neg_view(tensor.neg()),
    "requires a gradient": lambda tensor: tensor.clone().requires_grad_(),
}  # fmt: skip


def of_all_layouts(dtype: torch.dtype) -> list[str]:
    """Return what came out otherwise than for tensors in one piece."""
    wrong, given = [], values(dtype) * (1 + 2j if dtype.is_complex else 1)
    for layout, laid in LAYOUTS.items():
        for name, call, output, mine in calls(given):
            strided = laid(mine)
            target = strided if output is mine else laid(output)
            call(output, mine)
            call(target, strided)
            if not torch.equal(target.detach(), output):
                wrong.append(f"{name}, {layout}")
    for name, call, output, mine in calls(torch.empty(0, 3, dtype=dtype)):
        call(output, mine)
        if output.numel():
            wrong.append(f"{name}, empty")
    return wrong


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
def test_any_layout_is_read_and_written_to(world: World, dtype: torch.dtype) -> None:
    assert world.run(of_all_layouts, dtype) == [[]] * SIZE


def in_inference_mode(made_in: bool, used_in: bool) -> list[str]:
    """Return what came out otherwise than outside inference mode."""
    wrong = []
    averages: dict[str, Collective] = {
        "average": lambda tensor, _: dist.all_reduce(tensor, dist.ReduceOp.AVG)
    }
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        for name, call, output, given in [
            *calls(values(dtype)),
            *((name, call, mine, mine) for name, call in averages.items() for mine in [values(dtype)]),
        ]:
            in_place = output is given
            columns = [torch.stack([one, one], -1) for one in (output, given)]
            call(output, given)
            with torch.inference_mode(made_in):
                target, mine = (column.clone()[..., 0] for column in columns)
                packed = mine.contiguous()
            with torch.inference_mode(used_in):
                call(mine if in_place else target, mine)
                if in_place:
                    call(packed, packed)
            if not torch.equal(mine if in_place else target, output):
                wrong.append(f"{name} {dtype}")
            if in_place and not torch.equal(packed, output):
                wrong.append(f"{name} {dtype}, in one piece")
    return wrong


@pytest.mark.parametrize("used_in", [True, False])
@pytest.mark.parametrize("made_in", [True, False])
def test_inference_mode_changes_nothing(world: World, made_in: bool, used_in: bool) -> None:
    assert world.run(in_inference_mode, made_in, used_in) == [[]] * SIZE


def expanded() -> list[str]:
    """Return for which collectives an output whose elements share memory led to another error, or none."""
    wrong = []
    for name, call, output, given in calls(torch.ones(2, 2)):
        wide = torch.zeros(1, 1).expand(output.shape)
        if name in ("gather", "send, recv", "reduce", "broadcast"):
            continue  # there, a rank has no output, or has sent already
        with pytest.raises(ValueError, match="share memory"):
            call(wide, wide if output is given else given)
        call(output, given)
        if name not in REDUCTIONS and not torch.equal(output, torch.ones(output.shape)):
            wrong.append(name)
    return wrong


def test_an_output_whose_elements_share_memory_is_refused(world: World) -> None:
    assert world.run(expanded) == [[]] * SIZE


def from_expanded() -> list[str]:
    """Return for which collectives an input whose elements share memory is read wrongly."""
    wrong = []
    for name, call, output, given in calls(torch.ones(2, 2)):
        if output is not given:
            call(output, torch.ones(1, 1).expand(given.shape))
            is_written = name != "gather" or dist.get_rank() == 0
            if is_written and (output.unique().numel() != 1 or not output.all()):
                wrong.append(name)
    return wrong


def test_an_input_whose_elements_share_memory_is_read(world: World) -> None:
    assert world.run(from_expanded) == [[]] * SIZE


def on_ranks_that_are_only_read() -> list[float]:
    """Reduce to rank 0, then broadcast from rank 1, whose tensor's elements share memory."""
    tensor = torch.ones(1).expand(3) if dist.get_rank() == 1 else torch.ones(3)
    dist.reduce(tensor, 0)
    found = tensor.tolist()
    dist.broadcast(tensor, 1)
    return [*found, *tensor.tolist()]


def test_a_rank_that_is_only_read_may_have_such_a_tensor(world: World) -> None:
    assert world.run(on_ranks_that_are_only_read) == [[2.0] * 3 + [1.0] * 3, [1.0] * 6]


def shared_parts() -> list[float]:
    """Gather into the vector that holds one's own part, and scatter a sum into it, as FSDP does."""
    rank, whole = dist.get_rank(), torch.zeros(4 * SIZE)
    mine = whole[4 * rank : 4 * rank + 4].copy_(values(shape=(4,)))
    dist.all_gather_into_tensor(whole, mine)
    found = whole.tolist()
    dist.reduce_scatter_tensor(mine, whole)
    dist.all_gather(list(whole.split(4)), mine)
    found += whole.tolist()
    dist.all_to_all_single(whole, whole)
    return [*found, *whole.tolist()]


def test_input_and_output_may_share_memory(world: World) -> None:
    first, second = world.run(shared_parts)
    assert first == [0, 1, 2, 3, 1, 2, 3, 4, 0, 2, 4, 6, 2, 4, 6, 8, 0, 2, 4, 6, 0, 2, 4, 6]
    assert second == [*first[:16], 2, 4, 6, 8, 2, 4, 6, 8]


def sharded(kind: str, steps: int) -> list[float]:
    """Train a small model and return the losses."""
    torch.manual_seed(3)
    model: Any = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))
    if kind == "FSDP1":
        model = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
    elif kind == "FSDP1, a layer each":
        options = {"device_id": torch.device("cpu"), "use_orig_params": True}
        for index in (0, 2):
            model[index] = FullyShardedDataParallel(model[index], **options)
        model = FullyShardedDataParallel(model, **options)
    else:
        mesh = init_device_mesh("cpu", (SIZE,))
        for index in (0, 2):
            fully_shard(model[index], mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    draws, losses = torch.Generator().manual_seed(dist.get_rank()), []
    for _ in range(steps):
        loss = model(torch.randn(8, 6, generator=draws)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("kind", ["FSDP1", "FSDP1, a layer each", "FSDP2"])
def test_sharded_training_is_gloos(world: World, gloo: World, kind: str) -> None:
    ours, theirs = world.run(sharded, kind, 4), gloo.run(sharded, kind, 4)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
