# SPDX-License-Identifier: Apache-2.0
"""Compiled models, and sharded ones with NCCL inside and Weir between, on a GPU.

All ranks share one GPU here, and NCCL takes one rank of a group per GPU: NCCL's groups are of one rank each.
"""

import importlib.util
import itertools
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import weir
import weir.torch
from tests.host_agent.torch.worlds import World

pytestmark = pytest.mark.cuda

DEVICE = "cuda"
INSIDE = "nccl"
SIZE = 4
STEPS = 3
WIDTHS = (32, 500, 60, 500, 8)
HOOK = {"sparsifier": "topk-block", "density": 0.1, "block": 32}

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="inductor needs Triton")


@pytest.fixture(scope="module")
def world(world: World, request: pytest.FixtureRequest, tmp_path_factory: Any) -> World:
    """Return a world whose default group has the backend that the test names."""
    world.run(begin, request.param, str(tmp_path_factory.mktemp("store") / "store"))
    return world


def begin(backend: str, store: str) -> None:
    rank = dist.get_rank()
    dist.destroy_process_group()
    dist.init_process_group(backend, store=dist.FileStore(store, SIZE), rank=rank, world_size=SIZE)


default_is_weir = pytest.mark.parametrize("world", ["weir"], indirect=True)
default_is_nccl = pytest.mark.parametrize("world", [INSIDE], indirect=True)


class Net(torch.nn.Module):
    """Linear layers and tanh, with a forward that Dynamo compiles."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(*pair) for pair in itertools.pairwise(WIDTHS))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            values = torch.tanh(layer(values))
        return values


def batch() -> torch.Tensor:
    return torch.randn(8, WIDTHS[0], generator=torch.Generator().manual_seed(dist.get_rank())).to(DEVICE)


def train(model: torch.nn.Module, wrap: Callable[[Any], Any] = lambda step: step) -> list[float]:
    """Return the losses of a few steps, each by ``wrap`` of a function that makes one."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(inputs: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(inputs).float().square().mean()
        loss.backward()
        optimizer.step()
        return loss

    make = wrap(step)
    return [float(make(batch()).detach()) for _ in range(STEPS)]


def whole(model: torch.nn.Module) -> torch.Tensor:
    """Return all parameters in one vector on the host. Every rank is to call it."""
    parameters = [
        one.full_tensor() if isinstance(one, DTensor) else one.detach() for one in model.parameters()
    ]
    return torch.cat([one.flatten().cpu() for one in parameters])


def reductions(group: dist.ProcessGroup | None = None) -> int:
    group = group or dist.group.WORLD
    assert isinstance(group, weir.torch.WeirProcessGroup)
    return group.connection.stats.reduces


# Compiled models.


def compiled_ddp(compiled: str, backend: str, hook: dict[str, Any] | None) -> torch.Tensor:
    """Compare compiled training with uncompiled training, and return its parameters.

    Args:
        compiled: the "ddp" module, or the whole "step".
        backend: Dynamo's.
        hook: options of weir's hook; None: DDP without one.
    """

    def trained(kind: str) -> tuple[list[float], torch.Tensor]:
        torch._dynamo.reset()
        ddp = DistributedDataParallel(Net().to(DEVICE))
        if hook is not None:
            ddp.register_comm_hook(weir.torch.HookState(ddp, **hook), weir.torch.hook)
        model = torch.compile(ddp, backend=backend) if kind == "ddp" else ddp
        wrap = (lambda step: torch.compile(step, backend=backend)) if kind == "step" else (lambda step: step)
        return train(model, wrap), whole(ddp)

    expected_losses, expected = trained("nothing")
    before = reductions()
    losses, parameters = trained(compiled)
    assert reductions() >= before + STEPS
    assert losses[-1] < losses[0]
    torch.testing.assert_close(losses, expected_losses, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(parameters, expected, rtol=1e-3, atol=1e-5)
    return parameters


@default_is_weir
@pytest.mark.parametrize("hook", [None, HOOK], ids=["no-hook", "hook"])
@pytest.mark.parametrize(
    ("compiled", "backend"),
    [("ddp", "eager"), ("step", "eager"), pytest.param("ddp", "inductor", marks=needs_triton)],
)
def test_compiled_ddp_trains_as_without_compiling(
    world: World, compiled: str, backend: str, hook: dict[str, Any] | None
) -> None:
    first, *others = world.run(compiled_ddp, compiled, backend, hook)
    assert all(torch.equal(first, other) for other in others)


def collectives_in_a_graph(backend: str) -> None:
    group = dist.group.WORLD
    assert group is not None
    name = group.group_name

    def by_name(values: torch.Tensor) -> Any:
        return functional.all_reduce(values * 2, "sum", name) + 1

    def gathered(values: torch.Tensor) -> Any:
        return functional.all_gather_tensor(values * 2, 0, name) + 1

    def in_place(values: torch.Tensor) -> torch.Tensor:
        values = values * 2
        dist.all_reduce(values)
        return values + 1

    inputs = torch.arange(8.0, device=DEVICE) + dist.get_rank()
    for function in (by_name, gathered, in_place):
        torch._dynamo.reset()
        expected = function(inputs)
        found = torch.compile(function, backend=backend, fullgraph=True)(inputs)
        assert torch.equal(found, expected)


@default_is_weir
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=needs_triton)])
def test_collectives_are_part_of_a_compiled_graph(world: World, backend: str) -> None:
    world.run(collectives_in_a_graph, backend)


# Sharded models.


def sharded(mesh: DeviceMesh, **options: Any) -> Any:
    model = Net().to(DEVICE)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def trained_by_ddp() -> tuple[list[float], torch.Tensor]:
    """Return losses and parameters of DDP over Gloo."""
    model = DistributedDataParallel(Net().to(DEVICE), process_group=dist.new_group(backend="gloo"))
    return train(model), whole(model)


def hybrid(kind: str) -> None:
    """Train with NCCL inside and Weir between.

    Args:
        kind: "float32", "bfloat16" gradients and activations, or "compiled".
    """
    names = (f"replicate-{kind}", f"shard-{kind}")  # torch takes meshes of equal names and ranks for one
    mesh = init_device_mesh(
        DEVICE,
        (SIZE, 1),
        mesh_dim_names=names,
        backend_override={names[0]: ("weir", weir.torch.GroupOptions(slots=8)), names[1]: INSIDE},  # type: ignore[dict-item]
    )
    between, inside = mesh.get_group(0), mesh.get_group(1)
    ones = torch.ones(3, device=DEVICE)
    dist.all_reduce(ones, group=inside)
    assert dist.get_backend(inside) == INSIDE
    assert ones.tolist() == [1.0] * 3

    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    model = sharded(mesh, mp_policy=half if kind == "bfloat16" else MixedPrecisionPolicy())
    before = reductions(between)
    torch._dynamo.reset()
    losses = train(torch.compile(model, backend="aot_eager") if kind == "compiled" else model)
    assert reductions(between) >= before + STEPS
    expected, parameters = trained_by_ddp()
    if kind == "bfloat16":
        torch.testing.assert_close(losses, expected, rtol=0.05, atol=1e-3)
    else:
        torch.testing.assert_close(losses, expected, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(whole(model), parameters, rtol=1e-3, atol=1e-5)
    for group in (between, inside):
        dist.destroy_process_group(group)


@default_is_nccl
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "compiled"])
def test_hybrid_sharding_with_nccl_inside_and_weir_between(world: World, kind: str) -> None:
    world.run(hybrid, kind)


def over_weir_alone() -> None:
    """Shard over all ranks, and over pairs of them, with Weir in both dimensions."""
    losses, parameters = trained_by_ddp()
    for shape in ((SIZE,), (2, SIZE // 2)):
        names = tuple(f"dimension-{size}-of-{len(shape)}-{number}" for number, size in enumerate(shape))
        mesh = init_device_mesh(DEVICE, shape, mesh_dim_names=names)
        model = sharded(mesh)
        before = reductions(mesh.get_group(0))
        torch.testing.assert_close(train(model), losses, rtol=1e-4, atol=1e-6)
        assert reductions(mesh.get_group(0)) >= before + STEPS
        torch.testing.assert_close(whole(model), parameters, rtol=1e-3, atol=1e-5)


@default_is_weir
def test_sharded_models_train_over_weir_alone(world: World) -> None:
    world.run(over_weir_alone)


PROGRAM = """
    import os

    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    import weir.torch

    machines, gpus = int(os.environ["WORLD_SIZE"]), 1
    torch.cuda.set_device(0)
    dist.init_process_group("nccl")
    mesh = init_device_mesh(
        "cuda",
        (machines, gpus),
        mesh_dim_names=("replicate", "shard"),
        backend_override={"replicate": "weir"},
    )
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)).cuda()
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model(torch.full((1, 8), float(dist.get_rank()), device="cuda")).sum().backward()
    (bias,) = (model[1].bias.grad.full_tensor().tolist(),)
    assert bias == [1.0], bias
    weight = model[0].weight.grad.full_tensor()
    torch.manual_seed(0)
    alone = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)).cuda()
    mean = sum(range(machines)) / machines
    alone(torch.full((1, 8), mean, device="cuda")).sum().backward()
    torch.testing.assert_close(weight, alone[0].weight.grad)
    assert type(mesh.get_group("replicate")).__name__ == "WeirProcessGroup"
    assert dist.get_backend(mesh.get_group("shard")) == "nccl"
    if dist.get_rank() == 0:
        print("hybrid", flush=True)
    dist.destroy_process_group()
"""


def test_hybrid_sharding_under_torchrun(tmp_path: Path) -> None:
    program = tmp_path / "hybrid.py"
    program.write_text(textwrap.dedent(PROGRAM))
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(program)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.stdout.strip() == "hybrid", done.stderr
