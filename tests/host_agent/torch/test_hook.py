# SPDX-License-Identifier: Apache-2.0
"""The DDP hook: replicas stay identical, nothing is lost, a checkpoint goes on bit for bit."""

import functools
import io
import pickle
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import weir
import weir.torch
from tests.host_agent.torch.worlds import World, raising
from weir.host_agent.compression.bucket_layout import BucketLayout
from weir.host_agent.compression.sparsifiers import sparsifier_names

SIZE = 3
BLOCK = 32
BLOCKWISE: dict[str, Any] = {"sparsifier": "topk-block"}


def make_model(seed: int = 0, group: dist.ProcessGroup | None = None) -> DistributedDataParallel:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Linear(30, 70),
        torch.nn.Tanh(),
        torch.nn.Linear(70, 70),
        torch.nn.Tanh(),
        torch.nn.Linear(70, 3),
    )
    return DistributedDataParallel(model, process_group=group, bucket_cap_mb=0.01)  # several buckets


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
    inputs = torch.randn(16, 30, generator=generator)
    return inputs, inputs[:, :3].cos()


class Run:
    """A model in training with the hook."""

    def __init__(self, group: dist.ProcessGroup | None = None, **options: Any) -> None:
        self.model = make_model(group=group)
        self.state = weir.torch.HookState(self.model, block=BLOCK, **BLOCKWISE | options)
        self.model.register_comm_hook(self.state, weir.torch.hook)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)

    def step(self, number: int) -> None:
        inputs, targets = batch(number)
        self.optimizer.zero_grad()
        torch.nn.functional.mse_loss(self.model(inputs), targets).backward()
        self.optimizer.step()

    def parameters(self) -> list[torch.Tensor]:
        return [parameter.detach().clone() for parameter in self.model.parameters()]

    def digest(self) -> bytes:
        return b"".join(parameter.numpy().tobytes() for parameter in self.parameters())


def trained_digests(options: dict[str, Any]) -> list[bytes]:
    run = Run(**options)
    digests = []
    for number in range(5):
        run.step(number)
        digests.append(run.digest())
    return digests


@pytest.mark.parametrize("name", sparsifier_names())
def test_replicas_are_bit_identical_after_every_step(world: World, name: str) -> None:
    first, *others = world.run(trained_digests, {"sparsifier": name, "density": 0.1})
    assert all(other == first for other in others)
    assert len(set(first)) == 5


def dense_beside_plain_ddp() -> float:
    run, plain = Run(sparsifier="dense"), make_model()
    for number in range(3):
        inputs, targets = batch(number)
        for model in (run.model, plain):
            model.zero_grad()
            torch.nn.functional.mse_loss(model(inputs), targets).backward()
    pairs = zip(run.model.parameters(), plain.parameters(), strict=True)
    return max(float((a.grad - b.grad).abs().max()) for a, b in pairs)


def test_the_dense_hook_averages_as_ddp_does(world: World) -> None:
    assert max(world.run(dense_beside_plain_ddp)) < 1e-7


def unaccounted(options: dict[str, Any]) -> None:
    """Feed buckets to the state directly and follows every bit of them through three steps."""
    model = make_model()
    state = weir.torch.HookState(model, block=BLOCK, **BLOCKWISE | options)
    named = list(model.module.named_parameters())
    layout = BucketLayout.of(0, [name for name, _ in named], [parameter for _, parameter in named], 256)
    residual = torch.zeros(layout.length)
    for step in range(3):
        bucket = gradient_bucket(named, step)
        compensated = layout.spread(bucket, SIZE) + residual
        state.group.submit(functools.partial(state.average_bucket, layout, bucket, True)).wait()
        residual = residuals(state, layout)
        delivered = compensated.double() - residual.double()
        # What this rank delivered is rounded to the shared fixed point, nothing else is lost of it ...
        assert torch.equal(delivered.float().double(), delivered)
        assert torch.equal((compensated - residual) + residual, compensated)
        # ... and what all ranks delivered is what all applied: exactly, before the one rounding to float32.
        dist.all_reduce(delivered)
        applied = layout.spread(bucket)
        assert torch.equal(delivered.float(), applied)
        assert state.last_step is not None
        assert state.last_step.entered == state.last_step.included + state.last_step.returned
        assert 0 < state.last_step.blocks_sent <= state.last_step.blocks
        assert 0 < state.last_step.sent_elements < state.last_step.elements


def gradient_bucket(named: list[tuple[str, torch.nn.Parameter]], step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
    parts = [torch.randn(p.numel(), generator=generator) * 10.0**k for k, (_, p) in enumerate(named)]
    return torch.cat(parts)


def residuals(state: weir.torch.HookState, layout: BucketLayout) -> torch.Tensor:
    vector = torch.zeros(layout.length)
    for segment in layout:
        kept = state.residual(segment.name)
        if kept is not None:
            vector[segment.in_vector] = kept
    return vector


SPARSE = [name for name in sparsifier_names() if name != "dense"]


@pytest.mark.parametrize("name", SPARSE)
def test_what_enters_is_delivered_or_kept_exactly(world: World, name: str) -> None:
    world.run(unaccounted, {"sparsifier": name, "density": 0.1, "threshold": 1.0})


def continued(options: dict[str, Any]) -> tuple[bytes, bytes]:
    """Six steps in one go, and three steps, a checkpoint, three steps in new objects."""
    straight, first, second = Run(**options), Run(**options), Run(**options)
    for number in range(6):
        straight.step(number)
    for number in range(3):
        first.step(number)
    saved = io.BytesIO()
    torch.save([first.model.state_dict(), first.optimizer.state_dict(), first.state.state_dict()], saved)
    saved.seek(0)
    for target, state in zip((second.model, second.optimizer, second.state), torch.load(saved), strict=True):
        target.load_state_dict(state)
    for number in range(3, 6):
        second.step(number)
    assert second.state.step == straight.state.step == 6
    return straight.digest(), second.digest()


@pytest.mark.parametrize("name", sparsifier_names())
def test_a_checkpoint_goes_on_bit_for_bit(world: World, name: str) -> None:
    outcomes = world.run(continued, {"sparsifier": name, "density": 0.1})
    assert all(straight == resumed for straight, resumed in outcomes)
    assert len(set(outcomes)) == 1


def pickled() -> None:
    run = Run(sparsifier="topk", density=0.1)
    run.step(0)
    copy = pickle.loads(pickle.dumps(run.state))
    with pytest.raises(RuntimeError, match="call bind"):
        _ = copy.group
    copy.bind(run.model)
    theirs, ours = copy.state_dict(), run.state.state_dict()
    assert theirs["step"] == ours["step"] == 1
    assert theirs["residuals"].keys() == ours["residuals"].keys()
    assert all(torch.equal(kept, ours["residuals"][name]) for name, kept in theirs["residuals"].items())


def test_a_state_survives_pickling(world: World) -> None:
    world.run(pickled)


def not_a_number() -> str:
    run = Run(raising(), sparsifier="topk", density=0.01)
    run.step(0)
    before = run.digest()
    inputs, targets = batch(1)
    run.optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(run.model(inputs), targets)
    if dist.get_rank() == 1:
        parameter = run.model.module[2].weight
        parameter.register_hook(lambda gradient: gradient * torch.inf)
    with pytest.raises(weir.torch.NonFiniteError) as caught:
        loss.backward()
    assert run.digest() == before
    dist.barrier()
    return str(caught.value)


def test_a_non_finite_gradient_names_the_parameter_on_every_rank(world: World) -> None:
    for rank, message in enumerate(world.run(not_a_number)):
        assert "NaN or infinity on rank 1" in message
        assert "parameter '2.weight' of shape (70, 70)" in message
        assert f"reported on rank {rank}" in message


def warm() -> list[float]:
    run = Run(sparsifier="topk", density=0.02, warmup_steps=2)
    densities = []
    for number in range(4):
        run.step(number)
        assert run.state.last_step is not None
        assert run.state.last_step.step == number + 1
        densities.append(run.state.last_step.density)
    return densities


def test_density_warms_up_and_statistics_say_so(world: World) -> None:
    for densities in world.run(warm):
        assert densities[:2] == pytest.approx([0.25, (0.25 * 0.02) ** 0.5], rel=0.05)
        assert densities[2:] == pytest.approx([0.02, 0.02], rel=0.05)


def half_precision() -> float:
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(40, 40).bfloat16())
    state = weir.torch.HookState(model, sparsifier="dense")
    model.register_comm_hook(state, weir.torch.hook)
    model(torch.full((1, 40), dist.get_rank() + 1.0, dtype=torch.bfloat16)).sum().backward()
    return float(model.module.weight.grad.float().mean())


def test_bfloat16_gradients(world: World) -> None:
    assert world.run(half_precision) == [2.0] * SIZE


def refusals() -> None:
    model = make_model()
    with pytest.raises(ValueError, match="density is 0"):
        weir.torch.HookState(model, density=0)
    with pytest.raises(ValueError, match="no sparsifier is called 'best'"):
        weir.torch.HookState(model, sparsifier="best")
    with pytest.raises(TypeError, match="needs a process group of the weir backend"):
        weir.torch.HookState(model, process_group=dist.new_group(backend="gloo"))
    state = weir.torch.HookState(model)
    with pytest.raises(ValueError, match=r"residuals of parameters this module lacks: other\.weight"):
        state.load_state_dict({**state.state_dict(), "residuals": {"other.weight": torch.zeros(1)}})
    wide = DistributedDataParallel(torch.nn.Linear(2, 2).double())
    wide.register_comm_hook(weir.torch.HookState(wide), weir.torch.hook)
    with pytest.raises(Exception, match=r"sums gradients in float32, these are torch.float64"):
        wide(torch.ones(1, 2, dtype=torch.float64)).sum().backward()


def test_wrong_use_is_refused_with_a_reason(world: World) -> None:
    world.run(refusals)
