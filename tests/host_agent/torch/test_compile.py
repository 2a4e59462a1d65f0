# SPDX-License-Identifier: Apache-2.0
"""``torch.compile`` and the backend: what is compiled computes what it does uncompiled."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.nn.parallel import DistributedDataParallel

import weir
import weir.torch
from tests.harness.effort import effort
from tests.host_agent.torch.worlds import World, raising

SIZE = 2
STEPS = 3
WIDTHS = (16, 200, 30, 200, 8)
BUCKET = 16 * 1024  # bytes: DDP makes several buckets of so few parameters

needs_a_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("g++", "clang++", "c++"))), reason="inductor needs a C++ compiler"
)
SLOW = [needs_a_compiler, pytest.mark.long]  # inductor, which compiles C++
BACKENDS = ["eager", "aot_eager", pytest.param("inductor", marks=SLOW)]
HOOK = {"sparsifier": "topk-block", "density": 0.1, "block": 32}


class Net(torch.nn.Module):
    """Linear layers and tanh. Dynamo compiles a forward of ours; that of ``Sequential`` it would skip."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(*pair) for pair in pairwise(WIDTHS))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            values = torch.tanh(layer(values))
        return values


@dataclass(frozen=True)
class Outcome:
    """Losses of a training, the parameters at its end, graphs compiled, and reductions of the switch."""

    losses: list[float]
    parameters: torch.Tensor
    graphs: int
    reduces: int


def reductions() -> int:
    group = dist.group.WORLD
    assert isinstance(group, weir.torch.WeirProcessGroup)
    return group.connection.stats.reduces


def trained(compiled: str, backend: str, hook: dict[str, Any] | None, **config: Any) -> Outcome:
    """Train a few steps.

    Args:
        compiled: "nothing", the "model" inside DDP, the "ddp" module, or the whole "step".
        backend: Dynamo's.
        hook: options of weir's hook; None: DDP without one.
        config: Dynamo's.
    """
    torch._dynamo.reset()
    graphs = 0

    def counted(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        nonlocal graphs
        graphs += 1
        call: Callable[..., Any] = torch._dynamo.lookup_backend(backend)(graph, inputs)
        return call

    def perhaps(part: Any, name: str) -> Any:
        return torch.compile(part, backend=counted) if name == compiled else part

    def step(inputs: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(inputs).square().mean()
        torch.autograd.backward(loss)
        optimizer.step()
        return loss

    before = reductions()
    with torch._dynamo.config.patch(**config), mock.patch.object(dist, "_DEFAULT_FIRST_BUCKET_BYTES", BUCKET):
        ddp = DistributedDataParallel(perhaps(Net(), "model"), bucket_cap_mb=BUCKET / 2**20)
        if hook is not None:
            ddp.register_comm_hook(weir.torch.HookState(ddp, **hook), weir.torch.hook)
        model = perhaps(ddp, "ddp")
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        make = perhaps(step, "step")
        inputs = torch.randn(8, WIDTHS[0], generator=torch.Generator().manual_seed(dist.get_rank()))
        losses = [float(make(inputs).detach()) for _ in range(STEPS)]
    parameters = torch.cat([parameter.detach().flatten() for parameter in ddp.parameters()])
    return Outcome(losses, parameters, graphs, reductions() - before)


def compared(compiled: str, backend: str, hook: dict[str, Any] | None, split: bool) -> torch.Tensor:
    """Compare a compiled training with the uncompiled one, and return its parameters.

    Args:
        split: DDPOptimizer is to split the graph where DDP's buckets begin.
    """
    expected = trained("nothing", backend, hook)
    assert expected.losses[-1] < expected.losses[0]
    found = trained(compiled, backend, hook, optimize_ddp=split)
    assert found.graphs > 1 if split else found.graphs >= 1
    assert found.reduces > STEPS
    if backend == "eager":
        assert found.losses == expected.losses
        assert torch.equal(found.parameters, expected.parameters)
    else:
        torch.testing.assert_close(found.losses, expected.losses, rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(found.parameters, expected.parameters, rtol=1e-4, atol=1e-6)
    return found.parameters


# A backend, what it compiles, whether the graph is split, and whether there is a hook.
TRAININGS = [
    ("eager", "model", True, "no hook"),
    ("eager", "ddp", False, "hook"),
    ("eager", "step", True, "no hook"),
    ("aot_eager", "ddp", True, "hook"),
]
MORE_TRAININGS = [
    ("eager", "model", True, "hook"),
    ("eager", "ddp", True, "hook"),
    ("eager", "ddp", True, "no hook"),
    ("eager", "ddp", False, "no hook"),
    ("eager", "step", True, "hook"),
    ("aot_eager", "ddp", True, "no hook"),
    ("aot_eager", "step", False, "hook"),
    ("aot_eager", "step", False, "no hook"),
]


@pytest.mark.parametrize(
    ("backend", "compiled", "split", "hook"),
    [
        *TRAININGS,
        *effort([], MORE_TRAININGS),
        *(pytest.param("inductor", "ddp", True, hook, marks=SLOW) for hook in ("hook", "no hook")),
    ],
)
def test_compiled_ddp_trains_as_without_compiling(
    world: World, backend: str, compiled: str, split: bool, hook: str
) -> None:
    ours, theirs = world.run(compared, compiled, backend, HOOK if hook == "hook" else None, split)
    assert torch.equal(ours, theirs)  # ranks have the same bits


def with_options(options: dict[str, Any], optimize: Any, fullgraph: bool) -> None:
    """Compare gradients of a compiled DDP module, one of whose layers is not used, with uncompiled ones."""

    class Partly(Net):
        def __init__(self) -> None:
            super().__init__()
            if not fullgraph:
                self.unused = torch.nn.Linear(3, 3)

    torch._dynamo.reset()
    found = []
    with torch._dynamo.config.patch(optimize_ddp=optimize, compiled_autograd="python" in str(optimize)):
        for compiled in (False, True):
            ddp = DistributedDataParallel(Partly(), **options)
            model = torch.compile(ddp, backend="eager", fullgraph=fullgraph) if compiled else ddp
            for _ in range(STEPS):
                ddp.zero_grad()
                inputs = torch.full((4, WIDTHS[0]), dist.get_rank() + 1.0)
                torch.autograd.backward(model(inputs).square().mean())
            found.append([layer.weight.grad for layer in ddp.module.layers])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("options", "optimize", "fullgraph"),
    [
        ({"find_unused_parameters": True}, "ddp_optimizer", False),
        ({"static_graph": True}, "no_optimization", False),
        ({"find_unused_parameters": True}, "python_reducer_without_compiled_forward", False),
        ({}, "python_reducer", True),
    ],
)
def test_ddp_of_any_options_and_optimization_can_be_compiled(
    world: World, options: dict[str, Any], optimize: Any, fullgraph: bool
) -> None:
    world.run(with_options, options, optimize, fullgraph)


def with_compiled_autograd() -> torch.Tensor:
    expected = trained("nothing", "eager", None)
    found = trained("step", "eager", None, optimize_ddp="python_reducer", compiled_autograd=True)
    assert found.graphs >= 1
    assert found.reduces > STEPS
    torch.testing.assert_close(found.losses, expected.losses, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(found.parameters, expected.parameters, rtol=1e-4, atol=1e-6)
    return found.parameters


# Behind the tests of DDP's options: torch's compiled autograd leaves the process unfit for some of them.
def test_a_compiled_backward_pass_trains_as_without_compiling(world: World) -> None:
    ours, theirs = world.run(with_compiled_autograd)
    assert torch.equal(ours, theirs)


def hooked_without_buckets() -> None:
    with pytest.raises(TypeError, match="DDP's Python reducer has no buckets"):
        trained("ddp", "eager", HOOK, optimize_ddp="python_reducer")


def test_the_hook_refuses_gradients_that_are_in_no_bucket(world: World) -> None:
    world.run(hooked_without_buckets)


def in_one_graph(backend: str) -> None:
    """Compare collectives in compiled code with the same ones called as they are."""
    for group in (dist.group.WORLD, dist.new_group(list(range(SIZE)), backend="weir")):
        assert isinstance(group, weir.torch.WeirProcessGroup)
        inputs = torch.arange(4.0 * SIZE) + dist.get_rank()
        for collective in [*functional_collectives(group), *plain_collectives(group)]:
            expected = collective(inputs)
            before = group.connection.stats.reduces
            found = torch.compile(collective, backend=backend, fullgraph=True)(inputs)
            assert torch.equal(found, expected)
            assert group.connection.stats.reduces > before
            if backend != "eager" and group is not dist.group.WORLD:
                break  # one will do: compiling takes time


def sizes_in_one_graph() -> None:
    group = dist.group.WORLD
    assert group is not None

    def placed(values: torch.Tensor) -> torch.Tensor:
        return values * dist.get_rank(group) + dist.get_world_size() + group.size() + group.rank()

    ones = torch.ones(3)
    assert torch.equal(torch.compile(placed, backend="eager", fullgraph=True)(ones), placed(ones))


def functional_collectives(group: dist.ProcessGroup) -> list[Callable[[torch.Tensor], torch.Tensor]]:
    return [
        lambda values: functional.all_reduce(values * 2, "sum", group) + 1,
        lambda values: functional.all_reduce(values * 2, "avg", group.group_name) + 1,
        lambda values: functional.broadcast(values * 2, 1, group) + 1,
        lambda values: functional.all_gather_single(values * 2, 0, group) + 1,
        lambda values: functional.reduce_scatter_single(values * 2, "sum", 0, group) + 1,
        lambda values: functional.all_to_all_single(values * 2, None, None, group) + 1,
        lambda values: torch.stack(functional.all_reduce_coalesced([values, values * 2], "sum", group)) + 1,
    ]


def plain_collectives(group: dist.ProcessGroup) -> list[Callable[[torch.Tensor], torch.Tensor]]:
    """Return collectives in place, which Dynamo replaces by functional ones."""

    def all_reduce(values: torch.Tensor) -> torch.Tensor:
        values = values * 2
        dist.all_reduce(values, group=group)
        return values + 1

    def all_gather(values: torch.Tensor) -> torch.Tensor:
        parts = [torch.zeros_like(values) for _ in range(SIZE)]
        dist.all_gather(parts, values * 2, group=group)
        return torch.cat(parts) + 1

    def all_gather_single(values: torch.Tensor) -> torch.Tensor:
        whole = torch.zeros(SIZE * len(values))
        dist.all_gather_single(whole, values * 2, group=group)
        return whole + 1

    def reduce_scatter_single(values: torch.Tensor) -> torch.Tensor:
        part = torch.zeros(len(values) // SIZE)
        dist.reduce_scatter_single(part, values * 2, group=group)
        return part + 1

    def all_to_all_single(values: torch.Tensor) -> torch.Tensor:
        output = torch.zeros_like(values)
        dist.all_to_all_single(output, values * 2, group=group)
        return output + 1

    return [all_reduce, all_gather, all_gather_single, reduce_scatter_single, all_to_all_single]


@pytest.mark.parametrize("backend", effort(BACKENDS[1:], BACKENDS))
def test_collectives_are_part_of_a_compiled_graph(world: World, backend: str) -> None:
    world.run(in_one_graph, backend)


def test_ranks_and_sizes_are_part_of_a_compiled_graph(world: World) -> None:
    world.run(sizes_in_one_graph)


def differentiated() -> None:
    inputs = (torch.arange(4.0 * SIZE) + dist.get_rank()).requires_grad_()
    group = dist.group.WORLD
    assert group is not None

    def gathered(values: torch.Tensor) -> Any:
        return functional.all_gather_single_autograd(values * values, 0, group).square().sum()

    def scattered(values: torch.Tensor) -> Any:
        return functional.reduce_scatter_single_autograd(values * values, "sum", 0, group).square().sum()

    for function in (gathered, scattered):
        (expected,) = torch.autograd.grad(function(inputs), inputs)
        compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
        (found,) = torch.autograd.grad(compiled(inputs), inputs)
        assert torch.equal(found, expected)


def test_gradients_pass_through_compiled_collectives(world: World) -> None:
    world.run(differentiated)


def graph_breaks(backend: str) -> None:
    """Call what Dynamo cannot put into a graph, so that it runs the group's own methods beside graphs."""
    other = 1 - dist.get_rank()

    def program(values: torch.Tensor) -> torch.Tensor:
        values = values * 2
        work = dist.all_reduce(values, async_op=True)
        work.wait()
        dist.broadcast(values, 0)
        group = dist.new_group(list(range(SIZE)), backend="weir")
        dist.reduce(values, 0, group=group)
        dist.broadcast(values, 0, group=group)
        message = dist.isend(values, other)
        assert message is not None
        received = torch.zeros_like(values)
        dist.recv(received, other)
        message.wait()
        dist.barrier()
        dist.destroy_process_group(group)
        return received + 1

    found = torch.compile(program, backend=backend)(torch.ones(1000))
    assert torch.equal(found, torch.full((1000,), 2.0 * SIZE * SIZE + 1))


@pytest.mark.parametrize(
    "backend", [*effort([], BACKENDS[:2]), pytest.param("inductor", marks=needs_a_compiler)]
)
def test_collectives_between_compiled_graphs(world: World, backend: str) -> None:
    world.run(graph_breaks, backend)


def non_finite_in_compiled_code() -> None:
    group = raising()

    def summed(values: torch.Tensor) -> Any:
        return functional.all_reduce(values * 2, "sum", group) + 1

    compiled = torch.compile(summed, backend="aot_eager", fullgraph=True)
    with pytest.raises(weir.torch.NonFiniteError):
        compiled(torch.full((5,), float("nan")))
    assert torch.equal(compiled(torch.ones(5)), torch.full((5,), 2.0 * SIZE + 1))

    ddp = DistributedDataParallel(Net(), process_group=group, bucket_cap_mb=25)
    model = torch.compile(ddp, backend="aot_eager")
    with pytest.raises(weir.torch.NonFiniteError, match="NaN or infinity on ranks 0, 1"):
        model(torch.full((8, WIDTHS[0]), float("nan"))).square().mean().backward()
    assert torch.equal(compiled(torch.ones(5)), torch.full((5,), 2.0 * SIZE + 1))


def test_errors_of_sums_in_compiled_code_are_raised_as_they_are(world: World) -> None:
    world.run(non_finite_in_compiled_code)


def test_the_backend_does_not_import_dynamo() -> None:
    program = "import sys, weir.torch; print('torch._dynamo' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
