# SPDX-License-Identifier: Apache-2.0
"""Every dtype with every operator at every entrance: the result is torch's own, or the call is refused."""

import functools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed import ReduceOp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial
from torch.nn.parallel import DistributedDataParallel

import weir
import weir.torch
from tests.host_agent.torch.test_long_tensors import CHUNK, as_on_a_device
from tests.host_agent.torch.worlds import World

SIZE = 2
COUNT = 6  # an even number: reduce_scatter halves it

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
COMPLEX = [torch.complex32, torch.complex64, torch.complex128]
OTHERS = [
    torch.uint16,
    torch.uint32,
    torch.uint64,
    *(getattr(torch, name) for name in dir(torch) if name.startswith("float8_")),
]
DTYPES = [*FLOATS, *INTEGERS, torch.bool, *COMPLEX, *OTHERS]
OPERATORS = list(ReduceOp.RedOpType.__members__.values())

SUM, AVG, PRODUCT, MIN, MAX = ReduceOp.SUM, ReduceOp.AVG, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX
BAND, BOR, BXOR = ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR
DEFINED = (
    {(dtype, op) for dtype in [*FLOATS, *INTEGERS] for op in (SUM, AVG, PRODUCT, MIN, MAX)}
    | {(torch.bool, op) for op in (SUM, PRODUCT, MIN, MAX)}
    | {(dtype, op) for dtype in [*INTEGERS, torch.bool] for op in (BAND, BOR, BXOR)}
    | {(dtype, op) for dtype in COMPLEX for op in (SUM, AVG)}
)
"""The table of docs/internals/collectives.md."""


def values(dtype: torch.dtype, rank: int, count: int = COUNT) -> torch.Tensor:
    """A rank's values: small whole numbers, whose sums, halves and products every dtype holds."""
    generator = torch.Generator().manual_seed(rank)
    whole = torch.randint(1, 4, (2, count), generator=generator)
    if dtype.is_complex:
        return torch.complex(*(whole - 2).double()).to(dtype)
    if dtype.is_floating_point or dtype.is_signed:
        whole = whole * (1 - 2 * torch.randint(0, 2, (2, count), generator=generator))
    return (whole[0] > 1 if dtype == torch.bool else whole[0]).to(dtype)


def expected(dtype: torch.dtype, op: Any, count: int = COUNT) -> torch.Tensor:
    """Return what torch makes of all ranks' values in one process; in 64 bits, then rounded once."""
    wide = {torch.bool: torch.bool}.get(
        dtype,
        torch.complex128 if dtype.is_complex else torch.float64 if dtype.is_floating_point else torch.int64,
    )
    rows = torch.stack([values(dtype, rank, count) for rank in range(SIZE)]).to(wide)
    folds: dict[Any, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
        SUM: torch.add, AVG: torch.add, PRODUCT: torch.mul, MIN: torch.minimum, MAX: torch.maximum,
        BAND: torch.bitwise_and, BOR: torch.bitwise_or, BXOR: torch.bitwise_xor,
    }  # fmt: skip
    found = functools.reduce(folds[op], rows)
    if op != AVG:
        return found.to(dtype)
    rounding = None if dtype.is_floating_point or dtype.is_complex else "trunc"
    return torch.div(found, SIZE, rounding_mode=rounding).to(dtype)


# ---- the entrances: each returns (what came out, which part of the whole it is)

Outcome = tuple[torch.Tensor, slice]
WHOLE = slice(None)


def mine(count: int = COUNT) -> slice:
    return slice(dist.get_rank() * count // SIZE, (dist.get_rank() + 1) * count // SIZE)


def group() -> Any:
    return dist.group.WORLD


def word(op: Any) -> str:
    return str(op.name).lower()


def all_reduce(tensor: torch.Tensor, op: Any) -> Outcome:
    dist.all_reduce(tensor, op)
    return tensor, WHOLE


def all_reduce_coalesced(tensor: torch.Tensor, op: Any) -> Outcome:
    dist.all_reduce_coalesced([tensor], op)
    return tensor, WHOLE


def all_reduce_in_a_coalescing_manager(tensor: torch.Tensor, op: Any) -> Outcome:
    with dist._coalescing_manager():
        dist.all_reduce(tensor, op)
    return tensor, WHOLE


def all_reduce_as_ddp_does(tensor: torch.Tensor, op: Any) -> Outcome:
    options = dist.AllreduceOptions()
    options.reduceOp = op
    group().allreduce([tensor], options).wait()
    return tensor, WHOLE


def reduce(tensor: torch.Tensor, op: Any) -> Outcome:
    dist.reduce(tensor, 1, op)
    return tensor, WHOLE if dist.get_rank() == 1 else slice(0)


def reduce_scatter(tensor: torch.Tensor, op: Any, count: int = COUNT) -> Outcome:
    output = torch.empty(count // SIZE, dtype=tensor.dtype)
    dist.reduce_scatter(output, list(torch.chunk(tensor, SIZE)), op)
    return output, mine(count)


def reduce_scatter_single(tensor: torch.Tensor, op: Any, count: int = COUNT) -> Outcome:
    output = torch.empty(count // SIZE, dtype=tensor.dtype)
    dist.reduce_scatter_single(output, tensor, op)
    return output, mine(count)


def reduce_scatter_in_a_coalescing_manager(tensor: torch.Tensor, op: Any) -> Outcome:
    output = torch.empty(COUNT // SIZE, dtype=tensor.dtype)
    with dist._coalescing_manager():
        dist.reduce_scatter_single(output, tensor, op)
    return output, mine()


def functional_all_reduce(tensor: torch.Tensor, op: Any) -> Outcome:
    return functional.all_reduce(tensor, word(op), group()).clone(), WHOLE


def functional_all_reduce_in_place(tensor: torch.Tensor, op: Any) -> Outcome:
    ops = torch.ops._c10d_functional
    return ops.wait_tensor(ops.all_reduce_(tensor, word(op), group().group_name)), WHOLE


def functional_all_reduce_coalesced(tensor: torch.Tensor, op: Any) -> Outcome:
    return functional.all_reduce_coalesced([tensor], word(op), group())[0].clone(), WHOLE


def functional_reduce_scatter(tensor: torch.Tensor, op: Any) -> Outcome:
    return functional.reduce_scatter_tensor(tensor, word(op), 0, group()).clone(), mine()


def functional_reduce_scatter_coalesced(tensor: torch.Tensor, op: Any) -> Outcome:
    found = functional.reduce_scatter_tensor_coalesced([tensor], word(op), [0], group())
    return found[0].clone(), mine()


ENTRANCES = [
    all_reduce,
    all_reduce_coalesced,
    all_reduce_in_a_coalescing_manager,
    all_reduce_as_ddp_does,
    reduce,
    reduce_scatter,
    reduce_scatter_single,
    reduce_scatter_in_a_coalescing_manager,
    functional_all_reduce,
    functional_all_reduce_in_place,
    functional_all_reduce_coalesced,
    functional_reduce_scatter,
    functional_reduce_scatter_coalesced,
]


def check(
    call: Callable[[torch.Tensor, Any], Outcome], dtype: torch.dtype, op: Any, count: int = COUNT
) -> str:
    """Return what is wrong with a call, or ""."""
    what = f"{call.__name__} {dtype} {op.name}: "
    tensor = values(dtype, dist.get_rank(), count)
    try:
        found, part = call(tensor, op)
    except (TypeError, ValueError, RuntimeError) as error:
        dist.distributed_c10d._world.pg_coalesce_state.clear()  # which torch's manager leaves behind
        if isinstance(error, weir.torch.GroupBrokenError):
            return f"{what}{error}"
        said = str(error)
        names = (
            str(dtype).removeprefix("torch.") in said
            or op.name in said
            or word(op) in said
            or "complex" in said
        )
        if (dtype, op) in DEFINED:
            return f"{what}refused: {error}"
        return "" if names else f"{what}does not say what is refused: {error}"
    if (dtype, op) not in DEFINED:
        return f"{what}not refused: {found}"
    wanted = expected(dtype, op, count)[part]
    found = found if part != slice(0) else found[part]
    same = (
        torch.equal(torch.view_as_real(found), torch.view_as_real(wanted))
        if dtype.is_complex
        else torch.equal(found, wanted)
    )
    return "" if same else f"{what}{found}, not {wanted}"


def every_pair(entrance: int) -> list[str]:
    warnings.simplefilter("ignore", FutureWarning)
    return [wrong for dtype in DTYPES for op in OPERATORS if (wrong := check(ENTRANCES[entrance], dtype, op))]


@pytest.mark.parametrize("entrance", range(len(ENTRANCES)), ids=lambda number: ENTRANCES[number].__name__)
def test_every_pair_is_right_or_refused(world: World, entrance: int) -> None:
    assert [wrong for one in world.run(every_pair, entrance) for wrong in one] == []


def reduce_scatter_of_many(tensor: torch.Tensor, op: Any) -> Outcome:
    return reduce_scatter(tensor, op, tensor.numel())


def every_pair_in_chunks() -> list[str]:
    """Return what is wrong with pairs where tensors are long, and taken for such on a device."""
    count = 2 * SIZE * CHUNK
    found = []
    with as_on_a_device() as log:
        for call in (all_reduce_as_ddp_does, reduce, reduce_scatter_of_many):
            for dtype in (torch.float32, torch.int64, torch.complex64, torch.float8_e5m2):
                for op in OPERATORS:
                    log.clear()
                    if wrong := check(call, dtype, op, count):
                        found.append(wrong)
    return found


def test_tensors_of_a_device_too(world: World) -> None:
    assert [wrong for one in world.run(every_pair_in_chunks) for wrong in one] == []


def averages_of_integers() -> None:
    """As of NCCL: the sum as the dtype has it, divided and rounded towards zero."""
    rank = dist.get_rank()
    for dtype in (torch.int8, torch.int32, torch.int64):
        tensor = torch.tensor([-3, -4, 3, 4], dtype=dtype) * (rank + 1) + rank
        dist.all_reduce(tensor, AVG)
        assert tensor.tolist() == [-4, -5, 5, 6]
    wrapped = torch.tensor([100, -100, 127], dtype=torch.int8)
    dist.all_reduce(wrapped, AVG)
    assert wrapped.tolist() == [-28, 28, -1]
    large = torch.full((2000,), 2**62 - 1 + rank)  # more than one block of lanes
    dist.all_reduce(large, AVG)
    assert (large == 2**62 - 1).all()
    mesh = init_device_mesh("cpu", (SIZE,))
    mean = DTensor.from_local(torch.tensor([4 + rank]), mesh, [Partial("avg")]).full_tensor()
    assert mean.dtype == torch.int64 and mean.item() == 4
    with pytest.raises(TypeError, match=r"AVG is defined for numbers, not for torch\.bool: average"):
        dist.all_reduce(torch.tensor([True]), AVG)


def test_averages_of_integers(world: World) -> None:
    world.run(averages_of_integers)


def premultiplied() -> list[str]:
    """Return what is wrong with sums of which each rank's values have a factor of its own."""
    warnings.simplefilter("ignore", FutureWarning)
    rank, found = dist.get_rank(), []
    factors = [0.5 * (1 + each) for each in range(SIZE)]
    own = factors[rank]
    for call in ENTRANCES:
        if call.__name__.startswith("functional"):
            continue  # torch has no word for it there
        for dtype in [*FLOATS, *COMPLEX[1:]]:
            for factor in (own, torch.tensor(own), torch.tensor([own], dtype=torch.float64)):
                given = values(dtype, rank)
                kept = given.clone()
                result, part = call(given, dist._make_nccl_premul_sum(factor))
                rows = [values(dtype, each) * factors[each] for each in range(SIZE)]
                wanted = functools.reduce(torch.add, rows)[part]
                if not torch.equal(result if part != slice(0) else result[part], wanted):
                    found.append(f"{call.__name__} {dtype} {factor}: {result}, not {wanted}")
                if result is not given and not torch.equal(given, kept):
                    found.append(f"{call.__name__} {dtype} {factor}: the input has changed")
    third = torch.full((3000,), 3.0, dtype=torch.float16) * (1 + rank)  # rounded once: 2 values, not 1
    dist.all_reduce(third, dist._make_nccl_premul_sum(1 / 3))
    if not (third == 3).all():
        found.append(f"{third}")
    return found


def refused_factors() -> None:
    for dtype in (torch.int64, torch.bool, torch.float8_e5m2):
        with pytest.raises(TypeError, match=str(dtype).removeprefix("torch.")):
            dist.all_reduce(torch.ones(2).to(dtype), dist._make_nccl_premul_sum(2.0))
    dist.barrier()


def premultiplied_in_chunks() -> None:
    count = 2 * SIZE * CHUNK
    own = 0.5 * (1 + dist.get_rank())
    with as_on_a_device():
        for dtype in (torch.float32, torch.bfloat16):
            tensor = values(dtype, dist.get_rank(), count)
            result, _ = all_reduce_as_ddp_does(tensor, dist._make_nccl_premul_sum(own))
            rows = [values(dtype, rank, count) * 0.5 * (1 + rank) for rank in range(SIZE)]
            assert torch.equal(result, functools.reduce(torch.add, rows))


def test_sums_with_factors(world: World) -> None:
    assert [wrong for one in world.run(premultiplied) for wrong in one] == []
    world.run(refused_factors)
    world.run(premultiplied_in_chunks)


def marked() -> None:
    """Conjugated and negated lazily: the memory holds other values than the tensor."""
    rank = dist.get_rank()
    numbers = torch.tensor([1 + 2j, 3 - 1j]) * (rank + 1)
    conjugated = numbers.conj()
    negated = torch._neg_view(torch.tensor([1.0, 2.0]) * (rank + 1))
    total, minus = torch.tensor([3 - 6j, 9 + 3j]), torch.tensor([-3.0, -6.0])
    assert conjugated.is_conj() and negated.is_neg()

    def summed(tensor: torch.Tensor) -> torch.Tensor:
        group().allreduce([tensor]).wait()
        return tensor

    assert torch.equal(summed(conjugated.clone()).resolve_conj(), total)
    kept = numbers.clone().conj()
    assert torch.equal(summed(kept).resolve_conj(), total)
    assert torch.equal(summed(torch._neg_view(-negated)), minus)
    for tensor, whole in ((conjugated, total), (negated, minus)):
        output = torch.empty(1, dtype=tensor.dtype)
        dist.reduce_scatter(output, [tensor[:1], tensor[1:]])
        assert torch.equal(output, whole[rank : rank + 1])
        root = tensor.clone() if rank else tensor
        group().broadcast(root, dist.BroadcastOptions()).wait()
        assert torch.equal(
            root.resolve_conj().resolve_neg(), tensor.resolve_conj().resolve_neg() / (rank + 1)
        )


def sent() -> None:
    numbers = torch.tensor([1 + 2j, 3 - 1j])
    for tensor, values in (
        (numbers.conj(), numbers.conj().resolve_conj()),
        (torch._neg_view(torch.ones(2)), -torch.ones(2)),
    ):
        if dist.get_rank() == 0:
            group().send([tensor], 1, 0).wait()
        else:
            received = torch.zeros_like(values)
            group().recv([received], 0, 0).wait()
            assert torch.equal(received, values)


def test_messages_of_such_tensors(world: World) -> None:
    world.run(sent)


class Complex(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([1 + 1j, 2 - 1j]))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real(self.weight * inputs).sum()


def complex_gradients() -> None:
    """DDP's own sums of complex gradients are right; whatever cannot make them says so, and goes on."""
    rank = dist.get_rank()
    wanted = torch.view_as_real(torch.full((2,), 1.5 + 0j) * (1 + 1j))  # the mean of (1 + j) (rank + 1)
    ddp = DistributedDataParallel(Complex())
    ddp(torch.ones(2) * (rank + 1)).backward()
    assert torch.equal(torch.view_as_real(ddp.module.weight.grad), wanted)
    ddp = DistributedDataParallel(Complex())
    ddp.register_comm_hook(weir.torch.HookState(ddp), weir.torch.hook)
    with pytest.raises(
        (TypeError, RuntimeError), match=r"sums gradients in float32, these are torch\.complex64"
    ):
        ddp(torch.ones(2) * (rank + 1)).backward()
    ddp = DistributedDataParallel(Complex())
    with pytest.raises(TypeError, match=r"weight is torch\.complex64: train it without LayersFirst"):
        weir.torch.LayersFirst(ddp, torch.optim.SGD(ddp.parameters(), lr=1.0))
    dist.barrier()


def test_complex_gradients(world: World) -> None:
    world.run(complex_gradients)


@pytest.mark.parametrize("consistency", ["sync", "async"])
def test_servers_refuse_complex_parameters(consistency: str) -> None:
    model = Complex()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with pytest.raises(TypeError, match=r"servers keep real numbers, but weight is torch\.complex64"):
        weir.torch.ParameterServer(model, optimizer, servers=1, rank=0, workers=1, consistency=consistency)


def test_tensors_that_torch_conjugates_or_negates_lazily(world: World) -> None:
    world.run(marked)


def parts_of_complex_numbers() -> None:
    """Real views of complex numbers are what they are: numbers of their own."""
    tensor = torch.view_as_real(values(torch.complex64, dist.get_rank()))
    both = torch.stack([torch.view_as_real(values(torch.complex64, rank)) for rank in range(SIZE)])
    dist.all_reduce(tensor, MAX)
    assert torch.equal(tensor, both.amax(0))
    real = values(torch.complex64, dist.get_rank()).real
    output = torch.empty(COUNT // SIZE)
    dist.reduce_scatter_single(output, real, MAX)
    assert torch.equal(output, both.amax(0)[:, 0][mine()])


def test_parts_of_complex_numbers_may_be_reduced(world: World) -> None:
    world.run(parts_of_complex_numbers)


def mixed() -> None:
    options = dist.ReduceScatterOptions()
    parts = [torch.ones(2), torch.ones(2, dtype=torch.float64)]
    with pytest.raises(
        ValueError, match=r"invalid tensor type at index . \(expected torch.float32, got torch.float64\)"
    ):
        group().reduce_scatter(
            [torch.empty(2)], [parts if dist.get_rank() == 0 else parts[::-1]], options
        ).wait()


def test_parts_of_several_dtypes_are_refused(world: World) -> None:
    world.run(mixed)
