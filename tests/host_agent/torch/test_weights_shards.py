# SPDX-License-Identifier: Apache-2.0
"""Weights that the ranks of an FSDP2 job publish by shards: engines have the whole model, of one version."""

import contextlib
import hashlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

import weir
import weir.torch
from tests.host_agent.torch.worlds import World
from weir.host_agent.torch.weights.gate import Gate
from weir.host_agent.torch.weights.joined import JoinedSubscription
from weir.host_agent.torch.weights.shards import STAMP, cut, own_shard, rows_of, shard_name
from weir.host_agent.weights.packets import Name
from weir.host_agent.weights.subscriber import Digest, Message
from weir.host_agent.weights.versions import Source
from weir.network import NetworkSpec

RANKS, VERSIONS = 2, 6
START_S = 200.0


def make() -> nn.Module:
    """Return a model whose rows do not divide by the ranks, with buffers, a tie and two dtypes."""
    torch.manual_seed(3)
    model = nn.Sequential(
        nn.Linear(24, 51), nn.BatchNorm1d(51), nn.Linear(51, 24).bfloat16(), nn.Linear(24, 7)
    )
    model.append(nn.Linear(24, 7))
    model[4].weight = model[3].weight
    return model


def sharded() -> nn.Module:
    model = make()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return fully_shard(model, mesh=mesh)


def whole_digest(model: nn.Module) -> str:
    """Return the digest of a sharded model, put together; all ranks call it."""
    plain = make()
    plain.load_state_dict(
        {
            name: tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            for name, tensor in model.state_dict().items()
        }
    )
    return weir.torch.weights_digest(plain)


def change(model: nn.Module) -> None:
    """Change some values of all tensors of this rank, as a step does, and the buffers alike on all ranks."""
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            own = tensor.to_local() if isinstance(tensor, DTensor) else tensor
            own += 1


def trains(folder: Path, versions: int) -> list[str]:
    """Publish versions; return the digest of the whole model at each, when the engine needs no more."""
    model, digests = sharded(), []
    with weir.torch.publish(model, "policy") as publication:
        digests.append(whole_digest(model))
        (folder / f"published-{dist.get_rank()}").touch()
        until(folder / "go")
        for number in range(2, versions + 1):
            change(model)
            digests.append(whole_digest(model))
            assert publication.update() == number
            time.sleep(0.02 * dist.get_rank() * (number % 2))  # ranks are not in step
        until(folder / "done")
    return digests


def until(path: Path, timeout_s: float = START_S) -> None:
    end = time.monotonic() + timeout_s
    while not path.exists():
        assert time.monotonic() < end, path
        time.sleep(0.01)


def engine(cluster: weir.LocalCluster, model: nn.Module) -> Any:
    host = cluster.plan.workers[RANKS].name
    return weir.torch.subscribe(model, "policy", controller=cluster.controller, host=host, shards=RANKS)


@pytest.mark.timeout(400)  # both ranks import FSDP, wherever else is much to do
@pytest.mark.parametrize("loss", [pytest.param(0.0, marks=pytest.mark.long), 0.02])
def test_an_engine_has_whole_versions_of_a_model_in_shards(tmp_path: Path, loss: float) -> None:
    """Also while versions follow one another: what ``swap`` puts in is always one version of all shards."""
    seen: dict[int, str] = {}
    model = make()
    with (
        weir.local_cluster(RANKS + 1, network=NetworkSpec(loss=loss)) as cluster,
        World(RANKS, cluster.environment) as world,
        engine(cluster, model) as subscription,
    ):
        assert not subscription.swap() and subscription.received == subscription.version == 0
        world.start(trains, tmp_path, VERSIONS)
        assert subscription.wait(1, START_S) == 1
        assert subscription.swap() and not subscription.swap()
        seen[1] = weir.torch.weights_digest(model)
        (tmp_path / "go").touch()
        end = time.monotonic() + 60
        while subscription.version < VERSIONS and time.monotonic() < end:
            if subscription.swap():
                seen[subscription.version] = weir.torch.weights_digest(model)
            time.sleep(0.002)
        (tmp_path / "done").touch()
        published = [world.outcome(rank) for rank in range(RANKS)]
        assert len(subscription.stats) == RANKS and len(subscription.digest) == 64
    assert published[0] == published[1], published
    assert VERSIONS in seen
    assert {number: published[0][number - 1] for number in seen} == seen


class Halves:
    """Two publications, as of two ranks that hold the halves of a vector of 8, and an engine."""

    def __init__(self, cluster: weir.LocalCluster, ends: contextlib.ExitStack) -> None:
        self._controller, self._ends = cluster.controller, ends
        self._hosts = [host.name for host in cluster.plan.workers]
        self.values = [torch.zeros(4) for _ in range(RANKS)]
        self.joined = {"w": torch.full((8,), -1.0)}
        self.engine = ends.enter_context(engine(cluster, self.joined))

    def publish(self, shard: int, job: int) -> weir.torch.Publication:
        stamp = torch.full((16,), job, dtype=torch.uint8)
        tensors = {STAMP: stamp, f"w[{4 * shard}:{4 * shard + 4}]": self.values[shard]}
        name, host = shard_name("policy", shard, RANKS), self._hosts[shard]
        made = weir.torch.publish(tensors, name, host=host, controller=self._controller)
        return self._ends.enter_context(made)

    def update(self, shard: int, publication: weir.torch.Publication) -> int:
        self.values[shard] += 1
        return publication.update()


@pytest.fixture
def halves() -> Iterator[Halves]:
    with weir.local_cluster(RANKS + 1) as cluster, contextlib.ExitStack() as ends:
        yield Halves(cluster, ends)


def swapped(engine: Any, timeout_s: float = 60.0) -> bool:
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if engine.swap():
            return True
        time.sleep(0.01)
    return False


def test_shards_of_two_jobs_are_not_joined(halves: Halves) -> None:
    halves.publish(0, job=1)
    other = halves.publish(1, job=2)
    assert halves.engine.wait(1) == 1
    assert not swapped(halves.engine, 0.3) and halves.engine.version == 0
    assert bool((halves.joined["w"] == -1).all())
    other.close()
    halves.publish(1, job=1)
    assert swapped(halves.engine) and not halves.joined["w"].any()


def test_a_shard_waits_for_the_others_and_nobody_else_for_it(halves: Halves) -> None:
    """One rank goes on alone: an engine keeps the version that it has, and its ``swap`` returns."""
    first, second = (halves.publish(shard, job=1) for shard in range(RANKS))
    assert halves.engine.wait(1) == 1 and halves.engine.swap()
    for _ in range(3):
        halves.update(0, first)
    time.sleep(0.3)
    assert not halves.engine.swap() and halves.engine.received == halves.engine.version == 1
    assert not halves.joined["w"].any()
    assert halves.update(1, second) == 2
    assert swapped(halves.engine) and halves.engine.version == 2
    assert bool((halves.joined["w"] == 1).all())
    first.close()
    with pytest.raises(TimeoutError, match="version 3"):
        halves.engine.wait(3, 0.3)
    assert not halves.engine.swap() and bool((halves.joined["w"] == 1).all())


class Shards:
    """Two shards' trainers, and an engine that no publisher can reach: messages are given to it by hand."""

    def __init__(self, ends: contextlib.ExitStack) -> None:
        self.joined = {"w": torch.full((8,), -1.0)}
        nowhere = "unix:/nonexistent"
        made = JoinedSubscription(self.joined, "policy", RANKS, token="", controller=nowhere, host="h1")
        self.engine = ends.enter_context(made)
        self.values = [torch.tensor([10.0, 20, 30, 40]) * (shard + 1) for shard in range(RANKS)]
        self.sources = [
            Source({STAMP: torch.ones(16, dtype=torch.uint8), f"w[{4 * shard}:{4 * shard + 4}]": values})
            for shard, values in enumerate(self.values)
        ]

    def give(self, shard: int, version: int) -> None:
        """Give the engine a version of a shard, in which all values have changed by the version's number."""
        part, source = self.engine._parts[shard], self.sources[shard]
        self.values[shard] += version
        update, digest = source.update(), source.seal()
        first = version == 1
        code = memoryview(source.snapshot()[0] if first else update)
        name = Name(version, snapshot=first)
        assert part._follow(Message(name, code)) and part._follow(Digest(name, digest))


@pytest.fixture
def shards() -> Iterator[Shards]:
    with contextlib.ExitStack() as ends:
        yield Shards(ends)


def test_shards_are_joined_in_their_order(shards: Shards) -> None:
    for shard in range(RANKS):
        shards.give(shard, 1)
    assert shards.engine.swap() and shards.engine.version == 1
    assert shards.joined["w"].tolist() == [11, 21, 31, 41, 21, 41, 61, 81]
    both = b"".join(source.digest for source in shards.sources)
    assert shards.engine.digest == hashlib.sha256(both).hexdigest()


def test_versions_that_differ_are_not_joined(shards: Shards) -> None:
    for shard in range(RANKS):
        shards.give(shard, 1)
    assert shards.engine.swap()
    shards.give(0, 2)
    assert not shards.engine.swap() and shards.engine.version == 1
    assert shards.joined["w"].tolist() == [11, 21, 31, 41, 21, 41, 61, 81]
    shards.give(1, 2)
    assert shards.engine.swap() and shards.engine.version == 2
    assert shards.joined["w"].tolist() == [13, 23, 33, 43, 23, 43, 63, 83]  # no shard is one of before


def as_fsdp_does() -> list[tuple[str, tuple[int, ...]]]:
    """Compare this rank's tensors with those that an engine cuts; return their layout."""
    own = own_shard(sharded())
    assert (own.shard, own.shards) == (dist.get_rank(), dist.get_world_size())
    wanted = cut(make(), own.shard, own.shards)
    assert list(own.tensors) == list(wanted)
    for name, tensor in wanted.items():
        assert name == STAMP or torch.equal(tensor, own.tensors[name]), name
    stamps: list[Any] = [None] * own.shards
    dist.all_gather_object(stamps, own.tensors[STAMP].tolist())
    assert stamps[0] == stamps[-1] and any(stamps[0])
    other = own_shard(sharded())
    assert other.tensors[STAMP].tolist() != stamps[0]
    return [(name, tuple(tensor.shape)) for name, tensor in wanted.items()]


def refused(what: str) -> str:
    model: Any = make()
    if what == "columns":
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        model = {"w": distribute_tensor(torch.zeros(8, 8), mesh, [Shard(1)])}
    elif what == "small":
        model = fully_shard(nn.Linear(3, 1), mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    elif what == "FSDP1":
        from torch.distributed.fsdp import FullyShardedDataParallel

        model = FullyShardedDataParallel(model.float(), device_id=torch.device("cpu"))
    try:
        own_shard(model)
    except weir.torch.WeightsError as error:
        return str(error)
    return ""


def test_ranks_and_engines_cut_alike_and_the_rest_is_refused() -> None:
    with weir.local_cluster(3) as cluster, World(3, cluster.environment) as world:
        layouts = world.run(as_fsdp_does)
        assert ("0.weight[17:34]", (17, 24)) in layouts[1]
        assert ("1.num_batches_tracked", ()) in layouts[0] and len(layouts[0]) > len(layouts[1])
        assert all("shards of rows over one mesh" in said for said in world.run(refused, "columns"))
        assert ["too small for its shards" in said for said in world.run(refused, "small")] == [
            False,
            True,
            True,
        ]
        assert all("FSDP1" in said for said in world.run(refused, "FSDP1"))


@pytest.mark.parametrize("rows", range(1, 14))
@pytest.mark.parametrize("shards", [1, 2, 3, 5])
def test_rows_are_cut_as_torch_cuts_them(rows: int, shards: int) -> None:
    chunks = [len(chunk) for chunk in torch.arange(rows).chunk(shards)]
    chunks += [0] * (shards - len(chunks))
    bounds = [rows_of(rows, shard, shards) for shard in range(shards)]
    assert [after - first for first, after in bounds] == chunks
    assert [first for first, _ in bounds[1:]] == [after for _, after in bounds[:-1]]


def update(number: int, *, snapshot: bool = False) -> Message:
    return Message(Name(number, snapshot=snapshot), memoryview(b""))


def test_a_gate_lets_an_update_through_when_all_shards_have_it() -> None:
    gate = Gate(2)
    assert gate.newest == 0
    assert gate.lets_through(0, update(4, snapshot=True))
    assert gate.newest == 0  # who waits for shard 1 would wait for its publisher
    assert gate.lets_through(1, update(3, snapshot=True))
    assert not gate.lets_through(0, update(5))
    assert gate.lets_through(1, update(4)) and gate.newest == 4
    assert gate.lets_through(0, Digest(Name(4, snapshot=False), b""))
    with gate.still():
        assert not gate.lets_through(1, update(5))
    assert gate.lets_through(1, update(5)) and gate.lets_through(0, update(5)) and gate.newest == 5
    gate.forget(0)
    assert gate.newest == 0 and not gate.lets_through(1, update(6))


def test_one_subscription_alone_waits_for_nobody() -> None:
    gate = Gate(1)
    assert all(gate.lets_through(0, update(number)) for number in range(2, 9))
