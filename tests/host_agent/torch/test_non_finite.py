# SPDX-License-Identifier: Apache-2.0
"""NaN and infinity as programs meet them: gradient scalers, DDP and its hooks, and Gloo beside Weir."""

import logging
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

import weir
import weir.torch
from tests.host_agent.torch.worlds import World, raising
from weir.host_agent.collectives import float_sum

SIZE = 3
Op = dist.ReduceOp
BAD = [float("nan"), float("inf"), -float("inf")]
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128]
ERROR = {torch.float16: 4e-3, torch.bfloat16: 2e-2}


@pytest.fixture(scope="module")
def one_host() -> Iterator[World]:
    with World(SIZE, lambda _rank: {"WEIR_LOCAL": "on"}) as world:
        yield world


_gloo: list[Any] = []


# --------------------------------------------------------------------------------------- Gloo beside Weir


def drawn(case: random.Random, count: int, dtype: torch.dtype, bad: list[float], rank: int) -> torch.Tensor:
    """Return a rank's values, some not finite; all ranks draw those of all."""
    number = case.randrange(2**31)
    tensor = torch.randn(count, dtype=dtype, generator=torch.Generator().manual_seed(number + rank))
    parts = torch.view_as_real(tensor).view(-1) if tensor.is_complex() else tensor
    for _ in range(4):
        owner, place, value = case.randrange(SIZE), case.randrange(parts.numel()), case.choice(bad)
        long = case.choice([1, 1, 1, 300])
        if owner == rank:
            parts[place : place + long] = value
    return tensor


def same(ours: torch.Tensor, theirs: torch.Tensor, error: float) -> None:
    wide = [torch.view_as_real(one) if one.is_complex() else one for one in (ours, theirs)]
    a, b = (one.to(torch.float64) for one in wide)
    assert torch.equal(a.isnan(), b.isnan())
    assert torch.equal(a.isposinf(), b.isposinf()) and torch.equal(a.isneginf(), b.isneginf())
    difference = (a - b)[b.isfinite()].abs()
    assert not difference.numel() or difference.max() <= error * max(1.0, float(b[b.isfinite()].abs().max()))


def beside_gloo(seed: int, cases: int) -> None:
    if not _gloo:
        _gloo.append(dist.new_group(backend="gloo"))
    case, gloo, rank = random.Random(seed), _gloo[0], dist.get_rank()
    for _ in range(cases):
        dtype, count = case.choice(DTYPES), case.choice([1, 255, 257, 1025, 3000, 9001, 40_000])
        op = case.choice([Op.SUM] if dtype.is_complex else [Op.SUM, Op.SUM, Op.PRODUCT, Op.MAX, Op.MIN])
        bad = BAD if op in (Op.SUM, Op.PRODUCT) else BAD[1:]  # Gloo's maximum of NaN depends on the order
        tensor, error = drawn(case, count * SIZE, dtype, bad, rank), ERROR.get(dtype, 1e-6)
        total = tensor.clone()
        dist.all_reduce(total, op, group=gloo)
        ours, part, root = tensor.clone(), torch.zeros(count, dtype=dtype), case.randrange(SIZE)
        dist.all_reduce(ours, op)
        same(ours, total, error)
        dist.reduce_scatter_tensor(part, tensor.clone(), op)
        same(part, total[rank * count :][:count], error)
        ours = tensor.clone()
        dist.reduce(ours, root, op)
        if rank == root:
            same(ours, total, error)


@pytest.mark.parametrize("seed", range(2))
def test_reductions_through_the_switch_have_them_where_gloo_has(world: World, seed: int) -> None:
    world.run(beside_gloo, seed, 20)


def test_reductions_in_one_hosts_memory_have_them_where_gloo_has(one_host: World) -> None:
    one_host.run(beside_gloo, 2, 20)


# ------------------------------------------------------------------------------------- gradient scalers


def make_model(group: Any = None, **options: Any) -> DistributedDataParallel:
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(40, 90), torch.nn.ReLU(), torch.nn.Linear(90, 40))
    return DistributedDataParallel(model, process_group=group, bucket_cap_mb=0.01, **options)


def as_it_is(_ddp: DistributedDataParallel) -> None:
    """Register no hook."""


def halves(ddp: DistributedDataParallel) -> None:
    ddp.register_comm_hook(ddp.process_group, fp16_compress_hook)


class Hooked:
    """Registers Weir's hook; pickles."""

    def __init__(self, **options: Any) -> None:
        self.options = options

    def __call__(self, ddp: DistributedDataParallel) -> None:
        ddp.register_comm_hook(weir.torch.HookState(ddp, **self.options), weir.torch.hook)


def several_at_once(ddp: DistributedDataParallel) -> None:
    """Sum each bucket together with a second tensor, in one call of the group."""

    def hook(group: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        work = group.allreduce([bucket.buffer(), torch.zeros_like(bucket.buffer())])
        return work.get_future().then(lambda done: done.value()[0])  # type: ignore[no-any-return]

    ddp.register_comm_hook(ddp.process_group, hook)


METHODS = {
    "plain": as_it_is,
    "fp16": halves,
    "dense": Hooked(sparsifier="dense"),
    "packed": Hooked(sparsifier="dense", lane_bits=8),
    "topk": Hooked(sparsifier="topk", density=0.2),
    "blocks": Hooked(sparsifier="topk-block", density=0.2),
    "dfs": Hooked(sparsifier="dfs"),
    "loss": Hooked(sparsifier="topk-block", density=0.2, loss_policy=0.1),
    "several tensors": several_at_once,
}


def scaled(register: Callable[[DistributedDataParallel], None], overflowing: list[int], layer: int) -> Any:
    """Return the scale after each step, and what all parameters were before and after them.

    overflowing: steps in which rank 1's gradient of a layer is beyond all numbers.
    """
    ddp = make_model()
    register(ddp)
    optimizer = torch.optim.SGD(ddp.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    scales, digests, spoil = [], [], False
    ddp.module[layer].weight.register_hook(lambda found: found * float("inf") if spoil else found)
    for step in range(6):
        spoil = step in overflowing and dist.get_rank() == 1
        inputs = torch.randn(4, 40, generator=torch.Generator().manual_seed(10 * step + dist.get_rank()))
        optimizer.zero_grad()
        scaler.scale(ddp(inputs).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        digests.append(torch.cat([p.detach().flatten() for p in ddp.parameters()]).numpy().tobytes())
        assert all(bool(p.isfinite().all()) for p in ddp.parameters())
    return scales, digests


@pytest.mark.parametrize("layer", [0, 2], ids=["last bucket", "first bucket"])
@pytest.mark.parametrize("method", METHODS)
def test_all_ranks_skip_a_step_that_overflows_and_train_on(world: World, method: str, layer: int) -> None:
    (scales, digests), *others = world.run(scaled, METHODS[method], [1, 2], layer)
    assert scales == [2.0**16, 2.0**15] + [2.0**14] * 4
    assert digests[0] == digests[1] == digests[2]
    assert len(set(digests[2:])) == 4
    assert all(other == (scales, digests) for other in others)


def layers_first() -> tuple[list[float], list[bytes]]:
    ddp = make_model()
    optimizer = torch.optim.SGD(ddp.parameters(), 0.01)
    layers = weir.torch.LayersFirst(ddp, optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    scales, digests = [], []
    for step in range(4):
        scale = 1e-3 if step > 1 else 100.0
        optimizer.zero_grad()
        scaler.scale(ddp(torch.full((4, 40), scale)).square().mean()).backward()
        layers.sums()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        layers.finish()
        digests.append(torch.cat([p.detach().flatten() for p in ddp.parameters()]).numpy().tobytes())
    return scales, digests


def test_layers_first_brings_them_to_the_scaler(world: World) -> None:
    (scales, digests), *others = world.run(layers_first)
    assert scales[:2] == [2.0**126, 2.0**125]
    assert digests[0] == digests[1]
    assert all(other == (scales, digests) for other in others)


def divergent() -> tuple[bool, float]:
    """Return whether NaN came to all, and the norm of what a hook still owes after a step that had one."""
    ddp = make_model()
    state = weir.torch.HookState(ddp, sparsifier="topk", density=0.1)
    ddp.register_comm_hook(state, weir.torch.hook)
    ddp(torch.ones(2, 40)).square().mean().backward()
    assert state.step == 1
    bad = float("nan") if dist.get_rank() == 2 else 1.0
    ddp.zero_grad()
    ddp(torch.full((2, 40), bad)).square().mean().backward()
    came = all(bool(p.grad.isnan().any()) for p in ddp.parameters() if p.grad is not None)
    assert state.step == 1  # the step does not count
    return came, sum(float(kept.square().sum()) for kept in state.state_dict()["residuals"].values())


def test_a_hook_delivers_nan_and_drops_what_it_owes_of_that_step(world: World) -> None:
    for came, owed in world.run(divergent):
        assert came
        assert owed < float("inf")


# ------------------------------------------------------------------------------------------ raised by name


def raised(register: Callable[[DistributedDataParallel], None], value: float) -> str:
    ddp = make_model(raising())
    register(ddp)
    said = ""
    inputs = torch.full((2, 40), value if dist.get_rank() == 1 else 1.0)
    try:
        ddp(inputs).square().mean().backward()
    except weir.torch.NonFiniteError as error:
        said = str(error)
        assert error.ranks == (1,)
    ddp.zero_grad()
    ddp(torch.ones(2, 40)).square().mean().backward()  # DDP is ready for the next step
    assert all(bool(p.grad.isfinite().all()) for p in ddp.parameters() if p.grad is not None)
    return said


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("method", ["plain", "fp16", "topk", "dfs", "several tensors"])
def test_backward_raises_the_error_by_its_class(world: World, method: str, value: float) -> None:
    for rank, said in enumerate(world.run(raised, METHODS[method], value)):
        assert "NaN or infinity on rank 1: " in said
        assert f"reported on rank {rank}" in said


def sums_thrice(_state: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Sum a bucket in a callback, which some ranks run in the pass and others do not, then something else."""
    group = _raising[0]
    future = dist.all_reduce(torch.ones(1), group=group, async_op=True).get_future()
    if dist.get_rank():
        future.wait()

    def go_on(_future: object) -> torch.Tensor:
        dist.all_reduce(bucket.buffer(), group=group)
        dist.all_reduce(torch.ones(1), group=group)
        return bucket.buffer()

    return future.then(go_on)


_raising: list[Any] = []


def raised_below_callbacks() -> list[str]:
    _raising[:] = [raising()]
    ddp = make_model(_raising[0])
    ddp.register_comm_hook(None, sums_thrice)
    said = []
    for _ in range(3):
        with pytest.raises(weir.torch.NonFiniteError) as caught:
            ddp(torch.full((2, 40), float("inf") if dist.get_rank() == 1 else 1.0)).sum().backward()
        said.append(str(caught.value))
        ddp.zero_grad()
        ddp(torch.ones(2, 40)).sum().backward()
    return said


def test_ranks_agree_on_what_fails_in_a_hooks_callbacks(world: World) -> None:
    for said in world.run(raised_below_callbacks):
        assert all("NaN or infinity on rank 1: " in words for words in said)


def issued_in_backward() -> None:
    """Reductions that a hook issues, and waits for after the pass, as Megatron does."""
    weight, group, behind = torch.ones(5000, requires_grad=True), raising(), torch.ones(20_000)
    works: list[dist.Work] = []

    def reduce(gradient: torch.Tensor) -> None:
        for tensor in [*(behind.clone() for _ in range(10)), gradient.clone()]:
            work = dist.all_reduce(tensor, group=group, async_op=True)
            assert work is not None
            works.append(work)

    weight.register_hook(reduce)
    with pytest.raises(weir.torch.NonFiniteError):
        (weight * float("nan")).sum().backward()
        for work in works:
            work.wait()


def test_an_error_is_raised_by_backward_or_by_wait_and_never_lost(world: World) -> None:
    world.run(issued_in_backward)


# -------------------------------------------------------------------------------------------- the warning


class _Said(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def mixed(in_backward: bool) -> list[str]:
    """Sum gradients, or statistics, of which few in each block are far above the others."""
    values = torch.full((50_000,), 1e-8)
    values[::256] = 1e3
    float_sum._has_warned = False
    log, said = logging.getLogger("weir"), _Said()
    log.addHandler(said)
    try:
        if in_backward:
            ddp = DistributedDataParallel(torch.nn.Linear(50_000, 1))
            ddp(values).sum().backward()
        else:
            for _ in range(2):
                dist.all_reduce(values.clone())
    finally:
        log.removeHandler(said)
    return said.lines


def test_coarse_sums_are_warned_of_once_and_not_in_gradients(world: World, one_host: World) -> None:
    for each in (world, one_host):
        assert each.run(mixed, True) == [[]] * SIZE
        (line,), *others = each.run(mixed, False)
        assert others == [[]] * (SIZE - 1)
        assert line.startswith("rank 0: all_reduce number") and "GroupOptions(exact=True)" in line
