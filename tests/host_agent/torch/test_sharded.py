# SPDX-License-Identifier: Apache-2.0
"""Sharded models and nested groups: FSDP2 over Weir, HSDP with another backend inside and Weir between."""

import itertools
import sys
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import weir
import weir.torch
from tests.harness.effort import effort
from tests.harness.source import source_path
from tests.harness.started import started
from tests.host_agent.torch.worlds import World
from weir.netns.cluster import network_cluster

SIZE = 4
SHARDS = 2  # ranks that share a copy of the model
STEPS = 4
# Backends of the default group. The last is Weir's for tensors on either device.
DEFAULTS = ["gloo", "weir", "cpu:gloo,cuda:weir"]

Model = torch.nn.Module


@pytest.fixture(scope="module", params=DEFAULTS)
def world(world: World, request: pytest.FixtureRequest, tmp_path_factory: Any) -> World:
    """Return a world whose default group has another backend; not all tests need all of them."""
    world.run(begin, request.param, str(tmp_path_factory.mktemp("store") / "store"))
    return world


def begin(backend: str, store: str) -> None:
    rank = dist.get_rank()
    dist.destroy_process_group()
    dist.init_process_group(backend, store=dist.FileStore(store, SIZE), rank=rank, world_size=SIZE)


def net() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(20, 300),
        torch.nn.Tanh(),
        torch.nn.Linear(300, 40),
        torch.nn.Tanh(),
        torch.nn.Linear(40, 6),
    )


def sharded(mesh: DeviceMesh, policy: MixedPrecisionPolicy | None = None) -> Any:
    model = net()
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh, mp_policy=policy or MixedPrecisionPolicy())
    fully_shard(model, mesh=mesh, mp_policy=policy or MixedPrecisionPolicy())
    return model


def train(model: Model) -> list[float]:
    """Return the losses of a few steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    inputs = torch.randn(8, 20, generator=torch.Generator().manual_seed(dist.get_rank()))
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(inputs).float().square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def whole(model: Model) -> list[torch.Tensor]:
    """Return all parameters, whole. Every rank is to call it."""
    return [
        one.full_tensor() if isinstance(one, DTensor) else one.detach().clone() for one in model.parameters()
    ]


def trained_by_ddp() -> tuple[list[float], list[torch.Tensor]]:
    """Return losses and parameters of DDP over Gloo."""
    group = dist.new_group(backend="gloo")
    model = DistributedDataParallel(net(), process_group=group)
    return train(model), whole(model)


def assert_equal(ours: list[torch.Tensor], theirs: list[torch.Tensor], rtol: float, atol: float) -> None:
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=rtol, atol=atol)


def reductions(group: dist.ProcessGroup) -> int:
    assert isinstance(group, weir.torch.WeirProcessGroup)
    return group.connection.stats.reduces


meshes = itertools.count()


def new_names() -> tuple[str, str]:
    """Return names for the dimensions of a mesh: torch takes meshes of the same names and ranks for one."""
    number = next(meshes)
    return f"replicate{number}", f"shard{number}"


@contextmanager
def hybrid_mesh(replicate: Any = "weir", shard: str = "gloo") -> Iterator[DeviceMesh]:
    """Make a mesh of two dimensions, and destroy its groups at the end."""
    names = new_names()
    overrides: Any = dict(zip(names, (replicate, shard), strict=True))
    mesh = init_device_mesh("cpu", (SIZE // SHARDS, SHARDS), mesh_dim_names=names, backend_override=overrides)
    yield mesh
    for name in names:
        dist.destroy_process_group(mesh.get_group(name))


@contextmanager
def flat_mesh(backend: str) -> Iterator[DeviceMesh]:
    """Make a mesh of one dimension, and destroy its group at the end."""
    group = dist.new_group(backend=backend)
    assert group is not None
    yield DeviceMesh.from_group(group, "cpu", mesh_dim_names=new_names()[1:])
    dist.destroy_process_group(group)


POLICIES = {
    "float32": None,
    "bfloat16": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
    "bfloat16-reduce": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16),
    "float16-reduce": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float16),
}
MIXED = list(POLICIES)[1:]


def compare(mesh: DeviceMesh, gloo_mesh: DeviceMesh, policy: str) -> None:
    """Train over a mesh with a dimension of Weir's, and over Gloo alone."""
    group = mesh.get_group(0)
    ours, theirs = sharded(mesh, POLICIES[policy]), sharded(gloo_mesh, POLICIES[policy])
    before = reductions(group)
    losses, expected = train(ours), train(theirs)
    assert reductions(group) >= before + STEPS
    assert losses[-1] < losses[0]
    if policy == "float32":
        torch.testing.assert_close(losses, expected, rtol=1e-5, atol=1e-6)
        assert_equal(whole(ours), whole(theirs), 1e-4, 1e-6)
        losses, parameters = trained_by_ddp()
        torch.testing.assert_close(losses, expected, rtol=1e-5, atol=1e-6)
        assert_equal(whole(ours), parameters, 1e-4, 1e-6)
        state: dict[str, Any] = get_model_state_dict(ours, options=StateDictOptions(full_state_dict=True))
        assert_equal([state[name] for name, _ in ours.named_parameters()], parameters, 1e-4, 1e-6)
    else:
        torch.testing.assert_close(losses, expected, rtol=1e-2, atol=1e-4)
        assert_equal(whole(ours), whole(theirs), 1e-2, 1e-3)


def fsdp(policy: str) -> None:
    with flat_mesh("weir") as mesh, flat_mesh("gloo") as gloo_mesh:
        compare(mesh, gloo_mesh, policy)


@pytest.mark.parametrize("world", ["gloo"], indirect=True)
@pytest.mark.parametrize("policy", effort(["float32", MIXED[-1]], POLICIES))
def test_sharded_models_train_over_weir_alone(world: World, policy: str) -> None:
    world.run(fsdp, policy)


def hsdp(policy: str) -> None:
    with hybrid_mesh() as mesh, hybrid_mesh("gloo") as gloo_mesh:
        assert dist.get_backend(mesh.get_group(1)) == "gloo"
        compare(mesh, gloo_mesh, policy)


def test_hybrid_sharding_with_weir_between(world: World) -> None:
    world.run(hsdp, "float32")


@pytest.mark.parametrize("world", ["gloo"], indirect=True)
@pytest.mark.parametrize("policy", effort(MIXED[:1], MIXED))
def test_hybrid_sharding_in_mixed_precision(world: World, policy: str) -> None:
    world.run(hsdp, policy)


def with_options() -> None:
    """Give the groups between options of Weir's, by a mesh and by groups of one's own."""
    options = weir.torch.GroupOptions(slots=8, exact=True)
    expected = trained_by_ddp()[1]
    with hybrid_mesh(("weir", options)) as mesh:
        group = mesh.get_group(0)
        assert isinstance(group, weir.torch.WeirProcessGroup)
        assert group.connection.facts.slot_count == 8
        model = sharded(mesh)
        train(model)
        assert_equal(whole(model), expected, 1e-4, 1e-6)

    numbers = torch.arange(SIZE).view(-1, SHARDS)
    mine = {}
    for name, backend, lines in (("replicate", "weir", numbers.T), ("shard", "gloo", numbers)):
        for ranks in lines.tolist():
            group = dist.new_group(ranks, backend=backend, pg_options=options if backend == "weir" else None)
            if dist.get_rank() in ranks:
                mine[name] = group
    mesh = DeviceMesh.from_group(list(mine.values()), "cpu", mesh=numbers, mesh_dim_names=new_names())
    model = sharded(mesh)
    train(model)
    assert reductions(mine["replicate"]) >= STEPS
    assert_equal(whole(model), expected, 1e-4, 1e-6)
    for group in mine.values():
        dist.destroy_process_group(group)


@pytest.mark.parametrize("world", ["gloo"], indirect=True)
def test_meshes_take_options_and_groups(world: World) -> None:
    world.run(with_options)


def as_large_models_are_trained() -> None:
    """Accumulate gradients, clip their norm, keep parameters whole between passes, compile."""
    inputs = torch.randn(4, 8, 20, generator=torch.Generator().manual_seed(dist.get_rank()))

    def trained(mesh: DeviceMesh, compiled: bool) -> list[torch.Tensor]:
        model = sharded(mesh)
        model.set_allocate_memory_from_process_group_for_comm(True)
        call = torch.compile(model, backend="aot_eager") if compiled else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            for number, part in enumerate(inputs):
                last = number == len(inputs) - 1
                model.set_requires_all_reduce(last)
                model.set_is_last_backward(last)
                call(part).square().mean().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
        return whole(model)

    with hybrid_mesh() as mesh, hybrid_mesh("gloo") as gloo_mesh:
        expected = trained(gloo_mesh, False)
        for compiled in (False, True):
            assert_equal(trained(mesh, compiled), expected, 1e-4, 1e-6)
    torch._dynamo.reset()


@pytest.mark.parametrize("world", ["gloo"], indirect=True)
def test_hybrid_sharding_with_accumulation_clipping_and_compiling(world: World) -> None:
    world.run(as_large_models_are_trained)


def with_tensor_parallel() -> None:
    """Split layers over Gloo, and shard the parts over Weir."""
    expected = trained_by_ddp_of_pairs()
    with hybrid_mesh() as mesh:
        replicate, shard = (mesh[name] for name in mesh.mesh_dim_names or ())
        model = net()
        parallelize_module(model, shard, {"0": ColwiseParallel(), "2": RowwiseParallel()})
        fully_shard(model, mesh=replicate)
        before = reductions(mesh.get_group(0))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(pair_batch()).square().mean().backward()
            optimizer.step()
        assert reductions(mesh.get_group(0)) >= before + STEPS
        assert_equal(whole(model), expected, 1e-4, 1e-6)


def pair_batch() -> torch.Tensor:
    """Return the same batch on both ranks of a copy of the model."""
    return torch.randn(8, 20, generator=torch.Generator().manual_seed(dist.get_rank() // SHARDS))


def trained_by_ddp_of_pairs() -> list[torch.Tensor]:
    model = DistributedDataParallel(net(), process_group=dist.new_group(backend="gloo"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(pair_batch()).square().mean().backward()
        optimizer.step()
    return whole(model)


@pytest.mark.parametrize("world", ["gloo"], indirect=True)
def test_tensor_parallel_layers_sharded_over_weir(world: World) -> None:
    world.run(with_tensor_parallel)


def pipeline(backend: str, within: str) -> list[torch.Tensor]:
    """Train two stages of a pipeline, each on two ranks, over one backend; return this stage's parameters.

    Args:
        backend: of both dimensions of the mesh.
        within: how the two ranks of a stage share it: "shard" or "tensor".
    """
    with hybrid_mesh(backend, backend) as mesh:
        between, inside = (mesh[name] for name in mesh.mesh_dim_names or ())
        stage = between.get_local_rank()
        torch.manual_seed(stage)
        layers: Any = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 16))
        if within == "shard":
            fully_shard(layers, mesh=inside)
        else:
            parallelize_module(layers, inside, {"0": ColwiseParallel(), "2": RowwiseParallel()})
        part = PipelineStage(layers, stage, 2, torch.device("cpu"), group=between.get_group())
        schedule = Schedule1F1B(part, 2, loss_fn=torch.nn.functional.mse_loss)
        optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
        seed = inside.get_local_rank() if within == "shard" else 0
        batch = torch.randn(8, 16, generator=torch.Generator().manual_seed(seed))
        for _ in range(STEPS):
            optimizer.zero_grad()
            schedule.step(*(() if stage else (batch,)), **({"target": batch} if stage else {}))
            optimizer.step()
        return whole(layers)


def pipelines(within: str) -> None:
    assert_equal(pipeline("weir", within), pipeline("gloo", within), 1e-4, 1e-6)


@pytest.mark.parametrize("world", ["weir"], indirect=True)
@pytest.mark.parametrize("within", ["shard", "tensor"])
def test_stages_of_a_pipeline_with_shards_or_parts_of_layers(world: World, within: str) -> None:
    world.run(pipelines, within)


def nested_groups(backend: str) -> None:
    """Use groups of both backends side by side, whatever the default group is."""
    default = dist.group.WORLD
    assert dist.get_backend() == backend
    assert isinstance(default, weir.torch.WeirProcessGroup) == ("weir" in backend)
    rank = dist.get_rank()
    for inner in ("weir", "gloo"):
        halves = [dist.new_group(ranks, backend=inner) for ranks in ([0, 1], [2, 3])]
        mine = halves[rank // 2]
        value = torch.full((300,), 10.0**rank)
        dist.all_reduce(value, group=mine)
        assert set(value.tolist()) == {[11.0, 1100.0][rank // 2]}
        dist.all_reduce(value)
        assert set(value.tolist()) == {2222.0}
        everything = dist.new_group(backend=inner)
        objects: list[Any] = [None] * SIZE
        dist.all_gather_object(objects, {"rank": rank}, group=everything)
        assert [one["rank"] for one in objects] == list(range(SIZE))
        model = DistributedDataParallel(net(), process_group=everything)
        if inner == "weir":
            model.register_comm_hook(weir.torch.HookState(model, sparsifier="dense"), weir.torch.hook)
        train(model)
        assert_equal(whole(model), trained_by_ddp()[1], 1e-4, 1e-6)
        for group in (mine, everything):
            dist.destroy_process_group(group)


def test_groups_of_other_backends_in_one_another(world: World, request: pytest.FixtureRequest) -> None:
    world.run(nested_groups, request.node.callspec.params["world"])


def divided() -> None:
    with flat_mesh("weir") as mesh:
        divide(mesh)


def divide(mesh: DeviceMesh) -> None:
    for factor, forced in ((4.0, False), (2.0, True)):
        model = sharded(mesh)
        for part in (model, *(layer for layer in model if isinstance(layer, torch.nn.Linear))):
            part.set_gradient_divide_factor(factor)  # by PREMUL_SUM, unless sums are forced
            part.set_force_sum_reduction_for_comms(forced)
        model(torch.ones(2, 20)).sum().backward()
        assert isinstance(model[-1].bias.grad, DTensor)
        assert model[-1].bias.grad.full_tensor().tolist() == [2.0 * SIZE / factor] * 6


@pytest.mark.parametrize("world", ["gloo"], indirect=True)
def test_factors_of_gradients(world: World) -> None:
    world.run(divided)


PROGRAM = """
    import os, sys
    from pathlib import Path

    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    import weir.torch

    dist.init_process_group("gloo")
    gpus = int(os.environ["LOCAL_WORLD_SIZE"])
    machines = dist.get_world_size() // gpus
    mesh = init_device_mesh(
        "cpu",
        (machines, gpus),
        mesh_dim_names=("replicate", "shard"),
        backend_override={"replicate": ("weir", weir.torch.GroupOptions(slots=16))},
    )

    def made():
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(20, 300), torch.nn.Tanh(), torch.nn.Linear(300, 6))

    def trained(model):
        inputs = torch.randn(8, 20, generator=torch.Generator().manual_seed(dist.get_rank()))
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(3):
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()

    hybrid = made()
    for layer in (hybrid[0], hybrid[2], hybrid):
        fully_shard(layer, mesh=mesh)
    trained(hybrid)
    replicated = DistributedDataParallel(made())
    trained(replicated)
    for ours, theirs in zip(hybrid.parameters(), replicated.parameters(), strict=True):
        torch.testing.assert_close(ours.full_tensor(), theirs.detach(), rtol=1e-3, atol=1e-5)
    reduces = mesh.get_group("replicate").connection.stats.reduces
    (Path(sys.argv[1]) / str(dist.get_rank())).write_text(str(reduces))
    dist.destroy_process_group()
"""


@pytest.mark.long
@pytest.mark.root
def test_hybrid_sharding_on_two_hosts_with_two_ranks_each(tmp_path: Path) -> None:
    """Real hosts: each has two groups between, whose ranks are others."""
    program = tmp_path / "hybrid.py"
    program.write_text(textwrap.dedent(PROGRAM))
    with network_cluster(2) as cluster, ExitStack() as stack:
        agents = []
        for node in range(2):
            environment = {
                **cluster.environment(node),
                "PYTHONPATH": source_path(),
                "OMP_NUM_THREADS": "1",
                "GLOO_SOCKET_IFNAME": "eth0",
            }
            folder = tmp_path / f"node{node}"
            folder.mkdir()
            nodes = ("--nnodes=2", f"--node-rank={node}", "--nproc-per-node=2", "--master-port=29556")
            master = f"--master-addr={environment['MASTER_ADDR']}"
            command = (sys.executable, "-m", "torch.distributed.run", *nodes, master, program, tmp_path)
            prefix = cluster.lab.at_worker(node)
            agents.append(stack.enter_context(started(folder, *prefix, *command, environment=environment)))
        for agent in agents:
            assert agent.wait() == 0, agent.said
    assert all(int((tmp_path / str(rank)).read_text()) >= 3 for rank in range(4))
