# SPDX-License-Identifier: Apache-2.0
"""The backend and the hook with tensors on a GPU: the same bits as with tensors in host memory."""

import contextlib
import functools
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import weir
import weir.torch
from tests.host_agent.torch.worlds import World
from weir.host_agent.compression.bucket_layout import BucketLayout
from weir.host_agent.compression.sparsifiers import sparsifier_names
from weir.host_agent.torch.staging import devices_of

pytestmark = pytest.mark.cuda

SIZE = 2
BLOCK = 32


def values(dtype: torch.dtype, length: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * seed + dist.get_rank())
    if dtype.is_floating_point:
        return torch.randn(length, generator=generator, dtype=torch.float64).to(dtype)
    return torch.randint(-(2**31), 2**31 - 1, (length,), generator=generator).to(dtype)


@contextlib.contextmanager
def no_synchronising() -> Iterator[None]:
    """Let every thread of the process raise where it waits for a stream, or copies so that it has to."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def same_as_on_the_host(call: Callable[..., None], *host: Any) -> None:
    """Run a collective with tensors on the host and on the GPU; results must have the same bits."""
    device = _mapped(host, lambda tensor: tensor.clone().cuda())
    call(*host)
    with no_synchronising():
        call(*device)
    for ours, theirs in zip(_flat(device), _flat(host), strict=True):
        assert ours.is_cuda
        assert torch.equal(ours.cpu(), theirs)


def sparse_sums() -> None:
    rank = dist.get_rank()
    host = torch.sparse_coo_tensor([[rank, 5, 5]], torch.randn(3, 40), (5000, 40))
    device = host.cuda()
    dist.all_reduce(host)
    dist.all_reduce(device)
    assert device.is_cuda and device.is_coalesced() and torch.equal(device.cpu().to_dense(), host.to_dense())


def test_sparse_sums(world: World) -> None:
    world.run(sparse_sums)


def _mapped(tensors: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(tensors, torch.Tensor):
        return change(tensors)
    return [_mapped(part, change) for part in tensors]


def _flat(tensors: Any) -> Iterator[torch.Tensor]:
    if isinstance(tensors, torch.Tensor):
        yield tensors
    else:
        for part in tensors:
            yield from _flat(part)


def every_collective(dtype: torch.dtype) -> None:
    rank, length = dist.get_rank(), 1000
    own, whole = values(dtype, length), values(dtype, length * SIZE, 1)
    parts, outputs = list(whole.chunk(SIZE)), [torch.zeros_like(own) for _ in range(SIZE)]
    same_as_on_the_host(dist.all_reduce, own.clone())
    same_as_on_the_host(functools.partial(dist.all_reduce, op=dist.ReduceOp.MAX), own.clone())
    same_as_on_the_host(functools.partial(dist.broadcast, src=1), own.clone())
    same_as_on_the_host(functools.partial(dist.reduce, dst=1), own.clone())
    same_as_on_the_host(dist.all_gather, [t.clone() for t in outputs], own)
    same_as_on_the_host(dist.all_gather_into_tensor, torch.zeros_like(whole), own)
    same_as_on_the_host(dist.reduce_scatter, torch.zeros_like(own), parts)
    same_as_on_the_host(dist.reduce_scatter_tensor, torch.zeros_like(own), whole)
    same_as_on_the_host(dist.all_to_all_single, torch.zeros_like(whole), whole)
    if dtype.is_floating_point:
        same_as_on_the_host(dist.all_to_all, [t.clone() for t in outputs], parts)

    def scatter(output: torch.Tensor, *inputs: torch.Tensor) -> None:
        dist.scatter(output, list(inputs) if rank == 0 else None, src=0)

    same_as_on_the_host(scatter, torch.zeros_like(own), *parts)

    def gather(own: torch.Tensor, *outputs: torch.Tensor) -> None:
        dist.gather(own, list(outputs) if rank == 0 else None, dst=0)

    same_as_on_the_host(gather, own, *(t.clone() for t in outputs))
    dist.barrier()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.int64])
def test_every_collective_gives_the_same_bits_as_on_the_host(world: World, dtype: torch.dtype) -> None:
    world.run(every_collective, dtype)


def behind_a_long_computation() -> None:
    """Reduce what kernels that still run will write, and read it right after."""
    factor = torch.full((2048, 2048), 1 / 2048, device="cuda")
    product = torch.ones(2048, 2048, device="cuda")
    for _ in range(200):
        product = factor @ product  # stays 1
    work = dist.all_reduce(product, async_op=True)
    product_elsewhere = torch.ones(4096, 4096, device="cuda").sum()  # goes on meanwhile
    work.wait()
    doubled = product * 2
    assert float(product_elsewhere) == 4096**2
    torch.testing.assert_close(doubled, torch.full_like(doubled, 2.0 * SIZE), rtol=1e-3, atol=0)


def test_a_collective_waits_for_what_the_stream_has_under_way(world: World) -> None:
    world.run(behind_a_long_computation)


def exchanged(options: dict[str, Any], device: str) -> list[torch.Tensor]:
    """What three steps of the hook's exchange make of the same gradients on a device, and what they keep."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(300, 700), torch.nn.Linear(700, 30)).to(device)
    state = weir.torch.HookState(model, block=BLOCK, **{"sparsifier": "topk-block"} | options)
    named = list(model.named_parameters())
    layout = BucketLayout.of(0, [name for name, _ in named], [parameter for _, parameter in named], 256)
    results = []
    for step in range(3):
        generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
        parts = [torch.randn(p.numel(), generator=generator) * 10.0**k for k, (_, p) in enumerate(named)]
        bucket = torch.cat(parts).to(device)
        exchange = functools.partial(state.average_bucket, layout, bucket, True)
        state.group.submit(exchange, devices=devices_of(bucket)).wait()
        results.append(bucket.cpu())
        kept = [state.residual(name) for name, _ in named]
        results += [residual.cpu() for residual in kept if residual is not None]
    return results


@pytest.mark.parametrize("name", sparsifier_names())
def test_the_hook_makes_the_same_of_gradients_on_either_device(world: World, name: str) -> None:
    options = {"sparsifier": name, "density": 0.1}
    for ours, theirs in zip(
        world.run(exchanged, options, "cuda"), world.run(exchanged, options, "cpu"), strict=True
    ):
        assert len(ours) == len(theirs)
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def trained(options: dict[str, Any] | None) -> tuple[list[float], bytes]:
    """Losses of a training with DDP on the GPU, and the parameters at its end."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 8)).cuda()
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.03)
    if options is not None:
        ddp.register_comm_hook(
            weir.torch.HookState(ddp, block=BLOCK, **{"sparsifier": "topk-block"} | options), weir.torch.hook
        )
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(30):
        generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
        inputs = torch.randn(64, 64, generator=generator).cuda()
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(ddp(inputs), inputs[:, :8].sin())
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    return losses, b"".join(p.detach().cpu().numpy().tobytes() for p in model.parameters())


@pytest.mark.parametrize("options", [None, {"sparsifier": "dense"}, {"sparsifier": "dfs", "density": 0.1}])
def test_ddp_trains_on_the_gpu(world: World, options: dict[str, Any] | None) -> None:
    (losses, parameters), (_, others) = world.run(trained, options)
    assert parameters == others
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])


def messages() -> None:
    other = 1 - dist.get_rank()
    for shape in ((3, 5), (1_000_003,)):
        given = torch.full(shape, float(dist.get_rank()), device="cuda") * 3
        taken = torch.zeros(shape, device="cuda")
        with no_synchronising():
            works = dist.batch_isend_irecv(
                [dist.P2POp(dist.isend, given, other), dist.P2POp(dist.irecv, taken, other)]
            )
            for work in works:
                work.wait()
        assert torch.equal(taken, torch.full(shape, 3.0 * other, device="cuda"))


def test_messages_between_devices_arrive(world: World) -> None:
    world.run(messages)


SPLIT = """
    import torch, torch.distributed as dist, weir.torch
    from torch.distributed.device_mesh import init_device_mesh
    device = torch.device("cuda:0")
    dist.init_process_group("weir", device_id=device)
    rank = dist.get_rank()
    half = dist.split_group(split_ranks=[[0, 2], [1, 3]])
    value = torch.tensor([10.0**rank], device=device)
    dist.all_reduce(value, group=half)
    assert value.item() == [101.0, 1010.0][rank % 2], value
    mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("rows", "columns"))
    for name, partner in (("rows", rank ^ 2), ("columns", rank ^ 1)):
        value = torch.tensor([10.0**rank], device=device)
        dist.all_reduce(value, group=mesh.get_group(name))
        assert value.item() == 10.0**rank + 10.0**partner, value
    if rank == 0:
        print("split", flush=True)
    dist.destroy_process_group()
"""


def test_a_group_bound_to_a_device_is_split_also_by_meshes(tmp_path: Path) -> None:
    program = tmp_path / "split.py"
    program.write_text(textwrap.dedent(SPLIT))
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4", str(program)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.stdout.strip() == "split", done.stderr
