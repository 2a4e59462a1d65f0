# SPDX-License-Identifier: Apache-2.0
"""Operations on a GPU and its streams: nobody waits on the host, everything is in order on the device."""

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import weir
import weir.torch
from tests.host_agent.torch.test_cuda import no_synchronising, same_as_on_the_host, values
from tests.host_agent.torch.worlds import World, raising
from weir.host_agent.collectives import chunks

pytestmark = pytest.mark.cuda

SIZE = 2
CHUNK = 1 << 16
LONG = 3 * CHUNK + 77
A_WHILE = 600_000_000  # cycles: a third of a second or so


@pytest.fixture(scope="module")
def world(world: World) -> World:
    world.run(warm_up)
    return world


@contextlib.contextmanager
def short_chunks() -> Iterator[None]:
    """Cut vectors into chunks of CHUNK, so that long ones need not be long."""
    before: int = chunks.CHUNK_VALUES
    chunks.CHUNK_VALUES = CHUNK  # type: ignore[misc]
    try:
        yield
    finally:
        chunks.CHUNK_VALUES = before  # type: ignore[misc]


def warm_up() -> None:
    """Make streams, pinned memory and kernels, which takes time once."""
    torch.cuda._sleep(1000)
    with short_chunks():
        for count in (10, LONG):
            tensor = torch.ones(count, device="cuda")
            for _ in range(2):
                dist.all_reduce(tensor)
    exchange = [
        dist.P2POp(dist.isend, tensor, 1 - dist.get_rank()),
        dist.P2POp(dist.irecv, tensor.clone(), 1 - dist.get_rank()),
    ]
    for work in dist.batch_isend_irecv(exchange):
        work.wait()
    torch.cuda.synchronize()


def passed(event: torch.cuda.Event, within_s: float = 10.0) -> bool:
    """Return whether the device passes an event in time."""
    until = time.monotonic() + within_s
    while not event.query():
        if time.monotonic() > until:
            return False
        time.sleep(1e-3)
    return True


def of_every_length(dtype: torch.dtype) -> None:
    operators = [dist.ReduceOp.SUM] + [dist.ReduceOp.AVG] * dtype.is_floating_point
    for op in operators:
        call = functools.partial(dist.all_reduce, op=op)
        with short_chunks():
            for count in (CHUNK - 1, CHUNK, CHUNK + 1, LONG):
                same_as_on_the_host(call, values(dtype, count))
    same_as_on_the_host(dist.all_reduce, values(dtype, chunks.CHUNK_VALUES + 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int32])
def test_sums_in_chunks_have_the_same_bits_as_on_the_host(world: World, dtype: torch.dtype) -> None:
    world.run(of_every_length, dtype)


def in_parts(dtype: torch.dtype) -> None:
    own, whole = values(dtype, LONG), values(dtype, SIZE * LONG, 1)
    parts, outputs = list(whole.chunk(SIZE)), [torch.zeros_like(own) for _ in range(SIZE)]
    with short_chunks():
        same_as_on_the_host(functools.partial(dist.broadcast, src=1), own.clone())
        same_as_on_the_host(functools.partial(dist.reduce, dst=1), own.clone())
        same_as_on_the_host(dist.all_gather, outputs, own)
        same_as_on_the_host(dist.all_gather_into_tensor, torch.zeros_like(whole), own)
        same_as_on_the_host(dist.reduce_scatter, torch.zeros_like(own), parts)
        same_as_on_the_host(dist.reduce_scatter_tensor, torch.zeros_like(own), whole)
        sharded = whole.cuda()
        with no_synchronising():  # in place, as fully_shard does
            dist.reduce_scatter_tensor(part := sharded.chunk(SIZE)[dist.get_rank()], sharded)
            dist.all_gather_into_tensor(sharded, part)
        dist.reduce_scatter_tensor(own, whole)
        dist.all_gather_into_tensor(whole, own)
        assert torch.equal(sharded.cpu(), whole)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_collectives_in_chunks_give_the_same_bits_as_on_the_host(
    world: World, dtype: torch.dtype
) -> None:
    world.run(in_parts, dtype)


def of_other_kinds() -> None:
    with short_chunks():
        largest = functools.partial(dist.all_reduce, op=dist.ReduceOp.MAX)
        same_as_on_the_host(largest, values(torch.bfloat16, LONG))
        same_as_on_the_host(dist.all_reduce, values(torch.float64, LONG))
        same_as_on_the_host(
            dist.all_reduce, torch.view_as_complex(values(torch.float32, 2 * LONG).view(-1, 2))
        )
        strided = values(torch.bfloat16, 2 * LONG).view(-1, 2).cuda()
        expected = strided.clone()
        with no_synchronising():
            dist.all_reduce(strided[:, 1])
            dist.all_reduce(column := expected[:, 1].contiguous())
        expected[:, 1] = column
        assert torch.equal(strided, expected)
        mixed = [values(torch.float32, count).cuda() for count in (5, LONG, 300, CHUNK + 1)]
        alone = [tensor.clone() for tensor in mixed]
        with no_synchronising():
            dist.all_reduce_coalesced(mixed)
            for tensor in alone:
                dist.all_reduce(tensor)
        assert all(torch.equal(a, b) for a, b in zip(mixed, alone, strict=True))


def test_other_reductions_in_chunks_are_those_of_the_whole(world: World) -> None:
    world.run(of_other_kinds)


def issued(begin: Callable[[], list[Any]]) -> None:
    """Begin operations behind a computation, which must still run when they have been issued."""
    with no_synchronising():
        torch.cuda._sleep(A_WHILE)
        busy = torch.cuda.current_stream().record_event()
        works = begin()
        assert not busy.query()
        assert not works[0].is_completed()
        for work in works:
            work.wait()


def issuing() -> None:
    rank, other = dist.get_rank(), 1 - dist.get_rank()
    short, long = torch.ones(10, device="cuda"), torch.ones(LONG, device="cuda")
    gathered, taken = torch.zeros(SIZE * LONG, device="cuda"), torch.zeros(LONG, device="cuda")
    given = torch.full((LONG,), float(rank), device="cuda")
    with short_chunks():
        issued(
            lambda: [
                dist.all_reduce(short, async_op=True),
                dist.all_reduce(long, async_op=True),
                dist.all_gather_into_tensor(gathered, given, async_op=True),
            ]
        )
        issued(lambda: [dist.isend(given, other), dist.irecv(taken, other)])
        sent, received = dist.isend(given, other), dist.irecv(again := torch.zeros_like(taken), other)
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            assert received.get_future().wait()[0].eq(other).all()
        sent.wait()
    assert again.eq(other).all()
    assert short.eq(SIZE).all()
    assert long.eq(SIZE).all()
    assert gathered.view(SIZE, -1).sum(1).tolist() == [0.0, LONG]
    assert taken.eq(other).all()


def test_to_issue_an_operation_waits_for_nothing(world: World) -> None:
    world.run(issuing)


def reading() -> None:
    """Read results on the stream that waits, which need not be the one that issued."""
    side = torch.cuda.Stream()
    read: list[tuple[float, torch.Tensor]] = []
    with short_chunks(), no_synchronising():
        for step in range(20):
            tensor = torch.full((LONG if step % 2 else 1000,), float(step), device="cuda")
            work = dist.all_reduce(tensor, async_op=True)
            with torch.cuda.stream(side if step % 4 < 2 else torch.cuda.current_stream()):
                work.wait()
                read.append((2.0 * SIZE * step, tensor * 2))
                tensor.record_stream(torch.cuda.current_stream())
            future = dist.all_reduce(torch.full_like(tensor, 1.0), async_op=True).get_future()
            with torch.cuda.stream(side):
                read.append((float(SIZE), future.wait()[0] * 1))
    torch.cuda.synchronize()
    for value, tensor in read:
        assert tensor.eq(value).all()


def test_results_are_there_for_the_stream_that_waits(world: World) -> None:
    world.run(reading)


def freeing() -> None:
    """Give memory back as early as can be, and have others write into it."""
    rank, other, side = dist.get_rank(), 1 - dist.get_rank(), torch.cuda.Stream()
    kept: list[tuple[float, torch.Tensor]] = []
    with short_chunks():
        for step in range(30):
            count = LONG if step % 2 else 5000
            value = float(step)
            gathered, taken = torch.zeros(SIZE * count, device="cuda"), torch.zeros(count, device="cuda")
            works = [
                dist.all_gather_into_tensor(
                    gathered, torch.full((count,), value, device="cuda"), async_op=True
                ),
                dist.isend(torch.full((count,), value, device="cuda"), other),
                dist.irecv(taken, other),
            ]
            dist.all_reduce(torch.full((count,), value, device="cuda"), async_op=True)  # nobody waits
            kept.append((-1.0, torch.full((count,), -1.0, device="cuda")))
            summed = torch.full((count,), value, device="cuda")
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                dist.all_reduce(summed)
            del summed
            kept.append((-2.0, torch.full((count,), -2.0, device="cuda")))
            for work in works:
                work.wait()
            kept += [(value, gathered), (value, taken)]
            kept = kept[-12:]
            if rank == step % SIZE:
                torch.cuda._sleep(1_000_000)
    torch.cuda.synchronize()
    for value, tensor in kept:
        assert tensor.eq(value).all()


def test_memory_that_is_freed_early_is_not_written_to(world: World) -> None:
    world.run(freeing)


def failing() -> None:
    with short_chunks():
        for count in (1000, LONG):
            tensor = torch.ones(count, device="cuda")
            if dist.get_rank() == 1:
                tensor[count - 3] = torch.nan
            before = tensor.clone()
            with no_synchronising():
                work = dist.all_reduce(tensor, async_op=True, group=raising())
                with pytest.raises(
                    weir.torch.NonFiniteError, match=f"rank 1: .*element {count - 3} of"
                ) as error:
                    work.wait()
            assert error.value.ranks == (1,)
            torch.testing.assert_close(tensor, before, rtol=0, atol=0, equal_nan=True)
    healthy = torch.ones(3, device="cuda")
    dist.all_reduce(healthy)
    assert healthy.tolist() == [SIZE] * 3


def test_a_failure_is_raised_by_wait_and_the_tensor_keeps_its_values(world: World) -> None:
    world.run(failing)


def model_and_optimizer(
    options: dict[str, Any] | None, group: Any = None
) -> tuple[DistributedDataParallel, Any]:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 512), torch.nn.Tanh(), torch.nn.Linear(512, 512), torch.nn.Linear(512, 8)]
    ddp = DistributedDataParallel(torch.nn.Sequential(*layers).cuda(), process_group=group, bucket_cap_mb=0.5)
    if options is not None:
        ddp.register_comm_hook(weir.torch.HookState(ddp, **options), weir.torch.hook)
    return ddp, torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)


def training(options: dict[str, Any] | None) -> bytes:
    """Train with DDP, of which the first steps, in which it arranges its buckets, may synchronise."""
    ddp, optimizer = model_and_optimizer(options)
    generator = torch.Generator().manual_seed(dist.get_rank())
    inputs = [torch.randn(32, 64, generator=generator).cuda() for _ in range(10)]
    for step, one in enumerate(inputs):
        with no_synchronising() if step >= 4 else contextlib.nullcontext(), short_chunks():
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(ddp(one), one[:, :8].sin())
            loss.backward()
            optimizer.step()
    assert bool(torch.isfinite(loss))
    return b"".join(p.detach().cpu().numpy().tobytes() for p in ddp.parameters())


@pytest.mark.parametrize("options", [None, {"sparsifier": "dense"}, {"sparsifier": "topk-block"}])
def test_ddp_trains_without_synchronising(world: World, options: dict[str, Any] | None) -> None:
    first, *others = world.run(training, options)
    assert all(other == first for other in others)


def diverging(options: dict[str, Any] | None) -> None:
    ddp, _ = model_and_optimizer(options, raising())
    for step in range(3):
        inputs = torch.ones(4, 64, device="cuda")
        if step == 2 and dist.get_rank() == 1:
            inputs[0, 0] = torch.nan
        loss = ddp(inputs).square().mean()
        if step < 2:
            loss.backward()
            continue
        with pytest.raises(weir.torch.NonFiniteError, match="NaN or infinity on rank 1"):
            loss.backward()


@pytest.mark.parametrize("options", [None, {"sparsifier": "dense"}])
def test_a_failure_is_raised_in_the_backward_pass_of_ddp(
    world: World, options: dict[str, Any] | None
) -> None:
    world.run(diverging, options)


def barriers() -> float:
    """Return how long a barrier takes of which rank 1 alone has a busy device."""
    dist.barrier(device_ids=[0])
    if dist.get_rank() == 1:
        torch.cuda._sleep(A_WHILE)
    busy = torch.cuda.current_stream().record_event()
    began = time.perf_counter()
    with no_synchronising():
        dist.barrier(device_ids=[0])
    took = time.perf_counter() - began
    assert busy.query()
    group: Any = dist.group.WORLD
    group.bound_device_id = torch.device("cuda:0")
    torch.cuda._sleep(A_WHILE // 4)
    busy = torch.cuda.current_stream().record_event()
    dist.barrier()
    assert busy.query()
    group.bound_device_id = None
    return took


def test_a_barrier_of_a_device_waits_for_what_every_rank_has_under_way_there(world: World) -> None:
    free, busy = world.run(barriers)
    assert free > 0.8 * busy > 0.05
