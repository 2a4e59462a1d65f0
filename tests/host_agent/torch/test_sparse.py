# SPDX-License-Identifier: Apache-2.0
"""Sums of sparse tensors, and models whose embeddings have sparse gradients."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import weir
import weir.torch
from tests.host_agent.torch.worlds import World, raising

SIZE = 3


def sparse(
    rank: int, shape: tuple[int, ...], dims: int, count: int, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """A rank's tensor, with small whole numbers; some rows stand in it twice. Rank 1 has no rows."""
    generator = torch.Generator().manual_seed(rank)
    count = 0 if rank == 1 else count * (rank + 1)
    indices = torch.stack([torch.randint(0, size, (count,), generator=generator) for size in shape[:dims]])
    indices[:, count // 2 :] = indices[:, : count - count // 2].clone()
    values = torch.randint(1, 4, (count, *shape[dims:]), generator=generator).to(dtype)
    return torch.sparse_coo_tensor(indices, values, shape, check_invariants=True)


def summed(
    shape: tuple[int, ...], dims: int, count: int, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a sum, and what it must be."""
    tensors = [sparse(rank, shape, dims, count, dtype) for rank in range(SIZE)]
    mine = tensors[dist.get_rank()]
    work = dist.all_reduce(mine, async_op=True)
    assert work is not None
    work.wait()
    (found,) = work.get_future().wait()  # as DDP reads it
    assert found is mine and mine.is_coalesced()
    fresh = [sparse(rank, shape, dims, count, dtype) for rank in range(SIZE)]
    indices, values = (
        torch.cat(parts, cut)
        for parts, cut in (([t._indices() for t in fresh], 1), ([t._values() for t in fresh], 0))
    )
    total = torch.sparse_coo_tensor(indices, values, shape, check_invariants=True)
    return mine, total.coalesce()


def same(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    return (
        found.shape == wanted.shape
        and found.dtype == wanted.dtype
        and torch.equal(found.indices(), wanted.indices())
        and torch.equal(found.values(), wanted.values())
    )


CASES: list[tuple[Any, ...]] = [
    ((8,), 1, 2),
    ((5, 4), 2, 3),
    ((50, 3), 1, 9),
    ((6, 7, 3, 2), 2, 20),
    ((3000, 64), 1, 300),
    ((400, 300), 1, 50),
    ((20_000,), 1, 4000),
    ((10_000_000, 16), 1, 100),  # the numbers of its rows are gathered
    ((100_000, 100_000, 2), 2, 70),  # enough rows that a number takes two lanes
    ((1_000_000,), 1, 40_000),  # many enough for a bit for each
    ((7, 0), 1, 3),
    *(((50, 3), 1, 9, dtype) for dtype in (torch.float64, torch.float16, torch.bfloat16)),
    *(((50, 3), 1, 900, dtype) for dtype in (torch.int64, torch.int8, torch.complex64, torch.bool)),
]


def sums() -> list[str]:
    found = []
    for case in CASES:
        total, wanted = summed(*case)
        if not same(total, wanted):
            found.append(f"{case}: {total}, not {wanted}")
    return found


def test_sums_are_those_of_torch(world: World) -> None:
    assert [wrong for one in world.run(sums) for wrong in one] == []


def without_rows() -> None:
    for shape in ((100, 4), (0, 4), (10_000_000, 4)):
        nothing = torch.sparse_coo_tensor(size=shape)
        dist.all_reduce(nothing)
        assert nothing._nnz() == 0 and nothing.shape == shape
    average = torch.sparse_coo_tensor([[0, 2]], [3.0, 6.0 * dist.get_rank()], (4,))
    dist.all_reduce(average, dist.ReduceOp.AVG)
    assert average.to_dense().tolist() == [3.0, 0.0, 6.0, 0.0]
    dense, beside = torch.ones(3), torch.sparse_coo_tensor([[dist.get_rank()]], [1.0], (SIZE,))
    dist.all_reduce_coalesced([dense, beside])
    assert dense.tolist() == [SIZE] * 3 and beside.to_dense().tolist() == [1.0] * SIZE


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_no_rows_averages_and_dense_tensors_beside(world: World) -> None:
    world.run(without_rows)


def not_finite() -> None:
    rank, nan, inf = dist.get_rank(), float("nan"), float("inf")
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64):
        for rows in (5, 9000):  # gathered; and in fixed point
            values = torch.ones(rows, dtype=dtype)
            values[:3] = torch.tensor([inf, inf if rank else -inf, nan if rank == 2 else 1])
            tensor = torch.sparse_coo_tensor(2 * torch.arange(rows)[None], values, (20_000,))
            before = tensor.clone()
            dist.all_reduce(tensor)
            total = tensor.coalesce().values()
            real = torch.view_as_real(total)[:, 0] if dtype.is_complex else total
            assert real[0] == inf and real[1:3].isnan().all()
            assert torch.equal(total[3:], torch.full((rows - 3,), SIZE, dtype=dtype))
            with pytest.raises(weir.torch.NonFiniteError, match=r"ranks 0, 1, 2: .*value 0 of row 0 of a sp"):
                dist.all_reduce(before, group=raising())
            assert torch.equal(before._values()[3:], values[3:]) and before._values()[0].real == inf


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
def test_nan_and_infinity_are_delivered_or_raised(world: World) -> None:
    world.run(not_finite)


def in_inference_mode() -> None:
    for made_in, used_in in ((True, False), (False, True), (True, True)):
        with torch.inference_mode(made_in):
            tensor = torch.sparse_coo_tensor([[dist.get_rank()]], [1.0], (4,), check_invariants=False)
        with torch.inference_mode(used_in):
            dist.all_reduce(tensor)
        with torch.inference_mode(made_in):
            assert tensor.to_dense().tolist() == [1.0] * SIZE + [0.0]


def test_inference_mode_changes_nothing(world: World) -> None:
    world.run(in_inference_mode)


def random_rows() -> tuple[torch.Tensor, int]:
    """Return a sum of rows that are not whole numbers, and the bytes that this rank sent for it."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    rows = torch.randperm(100_000, generator=generator)[:500]
    tensor = torch.sparse_coo_tensor(rows[None], torch.randn(500, 64, generator=generator), (100_000, 64))
    stats = dist.group.WORLD.connection.stats
    before = stats.bytes_up
    dist.all_reduce(tensor)
    return tensor, dist.group.WORLD.connection.stats.bytes_up - before


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")  # where results are unpickled
def test_a_rank_sends_its_own_rows_and_has_the_bits_of_all(world: World) -> None:
    found = world.run(random_rows)
    wanted = torch.zeros(100_000, 64, dtype=torch.float64)
    for rank in range(SIZE):
        generator = torch.Generator().manual_seed(rank)
        rows = torch.randperm(100_000, generator=generator)[:500]
        wanted[rows] += torch.randn(500, 64, generator=generator)
    for total, sent in found:
        assert same(total, found[0][0])
        assert torch.allclose(total.to_dense().double(), wanted, rtol=0, atol=1e-6)
        assert sent < 1.5 * 500 * 64 * 4  # the rows, a bit for each of the table's, headers


def other_precisions() -> None:
    for options, tolerance in (
        (weir.torch.GroupOptions(lane_bits=8), 0.05),
        (weir.torch.GroupOptions(exact=True), 1e-7),
    ):
        group = dist.new_group(pg_options=options)
        tensors = [sparse(rank, (3000, 48), 1, 200) for rank in range(SIZE)]
        wanted = sum(tensor.to_dense() for tensor in tensors)
        dist.all_reduce(tensors[dist.get_rank()], group=group)
        found = tensors[dist.get_rank()].to_dense()
        assert (found - wanted).abs().max() <= tolerance * wanted.max()
        dist.destroy_process_group(group)


def test_groups_of_other_precision(world: World) -> None:
    world.run(other_precisions)


class Model(torch.nn.Module):
    """Two tables, of which a batch touches some rows, and a layer with dense gradients."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.table = torch.nn.Embedding(500, 8, sparse=sparse)
        self.bag = torch.nn.EmbeddingBag(300, 8, mode="sum", sparse=sparse)
        self.head = torch.nn.Linear(8, 1)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(words).mean(1) + self.bag(words % 300)).square().mean()


def train(model: torch.nn.Module, batches: Any, kind: str) -> dict[str, torch.Tensor]:
    """Train, and return the parameters."""
    inner: Any = model if isinstance(model, Model) else model.module
    tables = [inner.table.weight, inner.bag.weight]
    if kind == "adam":
        optimizers = [
            torch.optim.SparseAdam(tables, lr=0.1),
            torch.optim.SGD(inner.head.parameters(), lr=0.1),
        ]
    else:
        optimizers = [getattr(torch.optim, kind)(inner.parameters(), lr=0.1)]
    for batch in batches:
        for optimizer in optimizers:
            optimizer.zero_grad()
        model(batch).backward()
        assert all(table.grad is not None and table.grad.is_sparse for table in tables)
        for optimizer in optimizers:
            optimizer.step()
    return {name: tensor.detach() for name, tensor in inner.named_parameters()}


def embeddings() -> None:
    generator = torch.Generator().manual_seed(1)
    batches = torch.randint(0, 500, (4, SIZE, 6, 5), generator=generator)
    for kind in ("SGD", "Adagrad", "adam"):
        alone = train(Model(sparse=True), [batch.flatten(0, 1) for batch in batches], kind)
        together = train(DistributedDataParallel(Model(sparse=True)), batches[:, dist.get_rank()], kind)
        for name, wanted in alone.items():
            assert torch.allclose(together[name], wanted, atol=1e-5), (kind, name)
            copies = [torch.empty_like(wanted) for _ in range(SIZE)]
            dist.all_gather(copies, together[name])
            assert all(torch.equal(copy, copies[0]) for copy in copies)


def test_sparse_embeddings_train_as_on_one_rank(world: World) -> None:
    world.run(embeddings)


def raised_in_backward() -> None:
    ddp = DistributedDataParallel(Model(sparse=True), process_group=raising())
    words = torch.ones(2, 3, dtype=torch.int64)
    for factor in (float("nan"), 1.0, float("inf")):
        ddp.zero_grad()
        loss = ddp(words) * (factor if dist.get_rank() == 1 else 1.0)
        if factor == 1.0:
            loss.backward()
        else:
            with pytest.raises(weir.torch.NonFiniteError, match="NaN or infinity on rank 1"):
                loss.backward()


def test_backward_raises_the_error_by_its_class(world: World) -> None:
    world.run(raised_in_backward)


def halved() -> None:
    words = torch.ones(2, 3, dtype=torch.int64) + dist.get_rank()
    found = []
    for kind in (dist.BuiltinCommHookType.ALLREDUCE, dist.BuiltinCommHookType.FP16_COMPRESS):
        ddp = DistributedDataParallel(Model(sparse=True))
        ddp._register_builtin_comm_hook(kind)
        ddp(words).backward()
        found.append(ddp.module.table.weight.grad.to_dense())
    whole, half = found
    assert torch.allclose(half, whole, rtol=1e-2, atol=1e-4) and whole.any()


def test_torchs_float16_hook_takes_sparse_gradients(world: World) -> None:
    world.run(halved)


def refused() -> None:
    tensor = torch.sparse_coo_tensor([[0]], [1.0], (4,))
    with pytest.raises(TypeError, match=r"MAX is not defined for sparse tensors: use SUM or AVG"):
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
    with pytest.raises(TypeError, match=r"layout torch\.sparse_csr.*in all_reduce alone.*to_dense"):
        dist.all_reduce(torch.eye(3).to_sparse_csr())
    with pytest.raises(TypeError, match=r"layout torch\.sparse_coo.*in all_reduce alone.*to_dense"):
        dist.broadcast(tensor, 0)
    ones = torch.ones(1)
    dist.all_reduce(ones)
    assert ones.item() == SIZE


def refused_beside_ddp() -> None:
    ddp = DistributedDataParallel(Model(sparse=True))
    with pytest.raises(TypeError, match=r"table has sparse gradients: train without LayersFirst"):
        weir.torch.LayersFirst(ddp, torch.optim.SGD(ddp.parameters(), lr=0.1))
    ddp.register_comm_hook(weir.torch.HookState(ddp), weir.torch.hook)
    with pytest.raises((TypeError, RuntimeError), match=r"these are sparse.*Train without the hook"):
        ddp(torch.ones(1, 1, dtype=torch.int64)).backward()
    dist.barrier()


def test_the_hook_and_layers_first_refuse_sparse_gradients(world: World) -> None:
    world.run(refused_beside_ddp)


def disagreement() -> str:
    group = dist.new_group()
    shape = (4,) if dist.get_rank() else (5,)
    try:
        dist.all_reduce(torch.sparse_coo_tensor([[0]], [1.0], shape), group=group)
    except weir.torch.GroupBrokenError as error:
        return str(error)
    finally:
        dist.destroy_process_group(group)
    return ""


def test_what_is_no_sum_is_refused(world: World) -> None:
    world.run(refused)
    for said in world.run(disagreement):
        assert "rank 0 called all_reduce(sparse float32[5], SUM)" in said
