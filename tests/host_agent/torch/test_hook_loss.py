# SPDX-License-Identifier: Apache-2.0
"""The hook where packets are lost or trimmed: what is missing is within budget, and kept; replicas agree."""

import functools
import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import weir
import weir.torch
from tests.host_agent.torch.test_hook import residuals
from tests.host_agent.torch.worlds import World
from weir.cluster import LocalCluster
from weir.controller.qos import WEIR_CLASSES
from weir.host_agent.collectives.quantize import exponents
from weir.host_agent.compression.bucket_layout import BucketLayout
from weir.host_agent.compression.classes import LayerClasses, shared_magnitude_classes
from weir.host_agent.compression.encodings import SCALE_BLOCK
from weir.host_agent.compression.loss_policy import LossPolicy
from weir.host_agent.transport.ledger import Direction
from weir.network import NetworkSpec, Shape
from weir.wire.definition import LAYER_CLASSES

SIZE = 3
BLOCK = 32
BLOCKS: dict[str, Any] = {"sparsifier": "topk-block", "block": BLOCK, "encoding": f"blocks:{BLOCK}"}
SCATTERED: dict[str, Any] = {"sparsifier": "topk", "density": 0.2, "encoding": "shared-mask:2"}
STEPS = 4
POLICY = LossPolicy(budgets=((0.6, 0.4, 0.2),) * LAYER_CLASSES, tensor=(0.4,) * LAYER_CLASSES)

# Packets vanish on every link; or arrive, but every one that may be trimmed is.
NETWORKS = {
    "loss": NetworkSpec(loss=0.03),
    "trimming": NetworkSpec(
        shape=Shape(racks=2, spines=1),
        qos={"classes": {code: {"trim_at": 0} for code in WEIR_CLASSES}},
    ),
}


@pytest.fixture(scope="module", params=NETWORKS)
def cluster(request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    with weir.local_cluster(workers=SIZE, network=NETWORKS[request.param]) as cluster:
        yield cluster


def make_model() -> DistributedDataParallel:
    torch.manual_seed(0)
    layers = [module for width in (70, 70, 70) for module in (torch.nn.LazyLinear(width), torch.nn.Tanh())]
    model = torch.nn.Sequential(*layers, torch.nn.LazyLinear(3))
    model(torch.zeros(1, 30))
    return DistributedDataParallel(model, bucket_cap_mb=0.02)  # several buckets


class Run:
    """A model in training with the hook."""

    def __init__(self, **options: Any) -> None:
        self.model = make_model()
        self.state = weir.torch.HookState(self.model, loss_policy=POLICY, **(BLOCKS | options))
        self.model.register_comm_hook(self.state, weir.torch.hook)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def step(self, number: int) -> weir.torch.StepStats:
        generator = torch.Generator().manual_seed(100 * number + dist.get_rank())
        inputs = torch.randn(16, 30, generator=generator)
        self.optimizer.zero_grad()
        torch.nn.functional.mse_loss(self.model(inputs), inputs[:, :3].cos()).backward()
        self.optimizer.step()
        assert self.state.last_step is not None
        return self.state.last_step

    def digest(self) -> bytes:
        return b"".join(parameter.detach().numpy().tobytes() for parameter in self.model.parameters())


def trained(options: dict[str, Any]) -> tuple[list[bytes], int, int, int]:
    """Return the parameters after each step; lanes missing, budget, and releases of them all."""
    run, digests = Run(**options), []
    missing = budget = releases = 0
    for number in range(STEPS):
        stats = run.step(number)
        digests.append(run.digest())
        assert stats.missing == stats.returned.lanes <= stats.budget
        assert stats.entered == stats.included + stats.returned
        missing, budget, releases = (
            missing + stats.missing,
            budget + stats.budget,
            releases + stats.releases,
        )
    up = run.state.ledger.total(Direction.UP)
    assert (up.returned.lanes, up.budget) == (missing, budget)
    return digests, missing, budget, releases


@pytest.mark.parametrize(
    "options", [{"sparsifier": "dense"}, {"sparsifier": "topk-block", "density": 0.5}, SCATTERED]
)
def test_replicas_are_bit_identical_whatever_is_missing(world: World, options: dict[str, Any]) -> None:
    outcomes = world.run(trained, options)
    digests = [outcome[0] for outcome in outcomes]
    assert all(other == digests[0] for other in digests)
    assert len(set(digests[0])) == STEPS
    assert 0 < sum(missing for _, missing, _, _ in outcomes) <= sum(budget for _, _, budget, _ in outcomes)


def classes_of(layout: BucketLayout, compensated: torch.Tensor, step: int) -> npt.NDArray[np.uint8]:
    """Return the classes that this rank gives its blocks, by the scales that all ranks agree on."""
    compensated = compensated.cpu()
    scales = torch.from_numpy(exponents(compensated.numpy(), SCALE_BLOCK).astype(np.int64))
    dist.all_reduce(scales, dist.ReduceOp.MAX)
    whole = layout.in_blocks(SCALE_BLOCK)
    classes = shared_magnitude_classes(whole, scales.numpy().astype(np.uint32), step)
    return classes.repeat(SCALE_BLOCK // layout.packet_block)


def followed(options: dict[str, Any]) -> int:
    """Feed gradients to the state directly; returns lanes missing. Every bit is somewhere."""
    model = make_model()
    state = weir.torch.HookState(model, loss_policy=POLICY, **(BLOCKS | options))
    named, layers = list(model.module.named_parameters()), LayerClasses.of(model.module)
    layout = BucketLayout.of(0, [name for name, _ in named], [p for _, p in named], BLOCK, SCALE_BLOCK)
    residual, missing = torch.zeros(layout.length), 0
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
        # Whole numbers below 2^24 / SIZE are exact in fixed point.
        bucket = (
            SIZE * torch.randint(-999, 1000, (sum(p.numel() for _, p in named),), generator=generator).float()
        )
        compensated = layout.spread(bucket, SIZE) + residual
        magnitudes = classes_of(layout, compensated, step)
        state.group.submit(functools.partial(state.average_bucket, layout, bucket, True)).wait()
        residual = residuals(state, layout)
        delivered = compensated.double() - residual.double()
        # What this rank delivered and what it kept make up what it had; what all delivered, all applied.
        assert torch.equal(delivered.float().double(), delivered)
        dist.all_reduce(delivered)
        assert torch.equal(delivered.float(), layout.spread(bucket))
        assert state.last_step is not None
        if "density" not in options:  # all was sent: a block that is kept whole was lost
            lost = (compensated == residual).view(-1, BLOCK).all(dim=1) & (compensated != 0).view(
                -1, BLOCK
            ).any(dim=1)
            within_budget(lost.numpy(), magnitudes, layout, layers)
            assert state.last_step.missing == BLOCK * int(lost.sum())
        missing += state.last_step.missing
    return missing


def within_budget(
    lost: npt.NDArray[np.bool_], magnitudes: npt.NDArray[np.uint8], layout: BucketLayout, layers: LayerClasses
) -> None:
    for segment in layout:
        mine, kinds = lost[layout.blocks_of(segment)], magnitudes[layout.blocks_of(segment)]
        layer = layers[segment.name]
        assert mine.sum() <= POLICY.tensor[layer] * mine.size
        for kind, share in enumerate(POLICY.budgets[layer]):
            assert mine[kinds == kind].sum() <= share * (kinds == kind).sum()


@pytest.mark.parametrize("options", [{"sparsifier": "dense"}, SCATTERED])
def test_what_is_missing_is_kept_and_within_the_budget(world: World, options: dict[str, Any]) -> None:
    assert sum(world.run(followed, options)) > 0


def sparse_rows() -> int:
    """Return a long vector of which few blocks are not zero: classes and accounts are those of the blocks
    sent.

    Only small ones may be lost. A packet holds one block, so that each is lost or not by itself.
    """
    block, size = 256, 600
    small_only = LossPolicy(budgets=((1.0, 0.0, 0.0),) * LAYER_CLASSES, tensor=(1.0,) * LAYER_CLASSES)
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(block, size, bias=False))
    state = weir.torch.HookState(model, sparsifier="dense", block=block, loss_policy=small_only)
    layout = BucketLayout.of(0, ["weight"], list(model.module.parameters()), block)
    missing, residual = 0, torch.zeros(layout.length)
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(step)
        chosen = torch.randperm(size, generator=generator)[:100]  # the same on all ranks
        bucket = torch.zeros(layout.length)
        rows = torch.randint(-9, 10, (100, block), generator=generator) * torch.arange(1, 101).unsqueeze(1)
        bucket.view(size, block)[chosen] = SIZE * rows.roll(dist.get_rank(), dims=0).float()
        compensated = layout.spread(bucket, SIZE) + residual
        classes = classes_of(layout, compensated, step)
        state.group.submit(functools.partial(state.average_bucket, layout, bucket, True)).wait()
        residual = residuals(state, layout)
        delivered = compensated.double() - residual.double()
        dist.all_reduce(delivered)
        assert torch.equal(delivered.float(), bucket)
        assert state.last_step is not None
        occupied = (compensated != 0).view(size, block).any(dim=1).numpy()
        lost = occupied & (compensated == residual).view(size, block).all(dim=1).numpy()
        assert state.last_step.missing == block * lost.sum() <= state.last_step.budget
        assert state.last_step.blocks_sent == occupied.sum()
        assert not classes[lost].any()
        missing += state.last_step.missing
    return missing


def test_accounts_follow_the_blocks_that_are_sent(world: World) -> None:
    assert sum(world.run(sparse_rows)) > 0


def without_error_feedback() -> tuple[bytes, int]:
    run = Run(sparsifier="dense", error_feedback=False)
    missing = sum(run.step(number).missing for number in range(STEPS))
    assert run.state.state_dict()["residuals"] == {}
    return run.digest(), missing


def test_without_error_feedback_replicas_agree_all_the_same(world: World) -> None:
    outcomes = world.run(without_error_feedback)
    assert len({digest for digest, _ in outcomes}) == 1
    assert sum(missing for _, missing in outcomes) > 0


def saved_and_loaded() -> None:
    """Residuals survive a checkpoint bit for bit; what is lost later is up to the network."""
    run, other = Run(sparsifier="dense"), Run(sparsifier="dense")
    for number in range(STEPS):
        run.step(number)
    saved = io.BytesIO()
    torch.save(run.state.state_dict(), saved)
    saved.seek(0)
    other.state.load_state_dict(torch.load(saved))
    ours, theirs = run.state.state_dict(), other.state.state_dict()
    assert theirs["step"] == ours["step"] == STEPS
    kept, loaded = ours["residuals"], theirs["residuals"]
    assert kept.keys() == loaded.keys() == dict(run.model.module.named_parameters()).keys()
    assert all(torch.equal(value, loaded[name]) for name, value in kept.items())
    with pytest.raises(ValueError, match=r"residuals of parameters this module lacks: x"):
        other.state.load_state_dict({**ours, "residuals": {"x": torch.zeros(3)}})


def test_a_checkpoint_holds_residuals(world: World) -> None:
    world.run(saved_and_loaded)


def plain() -> None:
    """No hook: DDP's own all-reduces, and everything else on the group, lose nothing."""
    model, before = make_model(), dist.distributed_c10d._get_default_group().connection.stats
    for number in range(STEPS):
        generator = torch.Generator().manual_seed(100 * number + dist.get_rank())
        model(torch.randn(16, 30, generator=generator)).sum().backward()
    after = dist.distributed_c10d._get_default_group().connection.stats
    assert (after.missing, after.budget, after.releases) == (before.missing, before.budget, before.releases)
    totals = torch.full((1000,), 3, dtype=torch.int64)
    dist.all_reduce(totals)
    assert totals.tolist() == [3 * SIZE] * 1000


def test_the_plain_backend_stays_lossless(world: World) -> None:
    world.run(plain)
