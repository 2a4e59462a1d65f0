# SPDX-License-Identifier: Apache-2.0
"""weir.torch.compress on real ranks and a real switch: loops stay as they are, and all hold one point."""

import io
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import weir
import weir.torch
from tests.host_agent.models import Model, batch, flat, loss_of
from tests.host_agent.torch.worlds import World
from weir.host_agent.torch.compress.timing import Timing

SIZE = 3
HOSTS = SIZE + 2
STEPS = 6
EXACT: dict[str, Any] = {"bits": 32, "sample_share": 1.0, "sample_bits": 32}


def make(kind: str) -> tuple[Model, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = Model()
    bare = [one for one in model.parameters() if one.dim() == 1]
    matrices = [one for one in model.parameters() if one.dim() > 1]
    groups = [{"params": matrices}, {"params": bare, "weight_decay": 0.0}]
    if kind == "sgd":
        return model, torch.optim.SGD(groups, lr=0.1, momentum=0.9, weight_decay=0.01)
    return model, getattr(torch.optim, kind)(groups, lr=0.01, weight_decay=0.01)


def backward(model: nn.Module, step: int, how: str) -> None:
    if how == "autocast":
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model, batch(step))
        loss.backward()
    elif how == "accumulated":
        for part in batch(step).chunk(2):
            (loss_of(model, part) / 2).backward()
    else:
        loss_of(model, batch(step)).backward()
    if how == "clipped":  # by the loop, each worker its own
        assert nn.utils.clip_grad_norm_(model.parameters(), 0.1) > 0.1


def difference_from_dense(kind: str, how: str) -> float:
    """Train with everything sent at full width, and by hand with averaged gradients; with a schedule."""
    trained = []
    for compressed in (True, False):
        model, optimizer = make(kind)
        compressing = weir.torch.compress(model, optimizer, **EXACT) if compressed else None
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
        for step in range(STEPS):
            optimizer.zero_grad()
            backward(model, step, how)
            if compressing is None:
                for one in model.parameters():
                    if one.grad is not None:
                        dist.all_reduce(one.grad, dist.ReduceOp.AVG)
            optimizer.step()
            schedule.step()
        if compressing is not None:
            assert not optimizer.state
            assert compressing.steps == STEPS
        trained.append(flat(model))
    return float((trained[0] - trained[1]).abs().max())


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        *((kind, how) for kind in ("sgd", "Adam", "AdamW") for how in ("usual", "accumulated")),
        *((kind, "clipped") for kind in ("sgd", "AdamW")),
        ("sgd", "autocast"),
    ],
)
def test_everything_at_full_width_is_the_dense_optimizer(world: World, kind: str, how: str) -> None:
    """Of tied, frozen, unused and several groups of parameters, with a schedule.

    Adam makes a step of 0.01 of gradients that are as small as their rounding, so 1 % of one is allowed. In
    bfloat16 a difference of float32's last bit may become one of bfloat16's.
    """
    assert max(world.run(difference_from_dense, kind, how)) < (5e-4 if how == "autocast" else 1e-4)


def train(
    steps: int, kind: str = "AdamW", ddp: bool = False, **options: Any
) -> tuple[nn.Module, weir.torch.CompressedUpdates, Callable[[int], float]]:
    model, optimizer = make(kind)
    whole: nn.Module = DistributedDataParallel(model, find_unused_parameters=True) if ddp else model
    compressed = weir.torch.compress(whole, optimizer, **options)

    def one(step: int) -> float:
        optimizer.zero_grad()
        loss = loss_of(whole, batch(step))
        loss.backward()
        optimizer.step()
        return float(loss)

    for step in range(steps):
        one(step)
    return model, compressed, one


def learned(options: dict[str, Any]) -> tuple[float, bytes, bytes, bytes, float]:
    """Return the loss at the shared point, digests of it, of own weights and the end, and the last move."""
    model, compressed, _ = train(60, **options)
    own = flat(model)
    with compressed.shared_point() as shared, torch.no_grad():
        shared.eval()
        loss = float(loss_of(shared, torch.arange(50)))
        shared.train()
        point = flat(model)
    assert torch.equal(flat(model), own)
    pending = compressed.pending("embedding.weight")
    size = model.embedding.weight.numel()
    assert torch.equal(pending.flatten(), own[:size] - point[:size])
    compressed.finish()
    end = torch.cat([flat(model), model.norm.running_mean, model.norm.running_var])
    assert not compressed.pending("embedding.weight").any()
    return loss, digest(point), digest(own), digest(end), float((flat(model) - point).abs().max())


def digest(tensor: torch.Tensor) -> bytes:
    return tensor.numpy().tobytes()


@pytest.mark.parametrize(
    "options",
    [{}, {"share": 0.3}, {"kind": "sgd"}, {"clip_norm": 1.0, "ddp": True}, {"bits": 8}],
    ids=str,
)
def test_a_model_learns_and_all_ranks_hold_one_shared_point(world: World, options: dict[str, Any]) -> None:
    """Its loss at chance is 3.9. Ranks' own weights differ until finish(), which delivers all."""
    losses, points, own, ends, moved = zip(*world.run(learned, options), strict=True)
    assert max(losses) < 1.0
    assert len(set(points)) == len(set(ends)) == 1
    assert len(set(own)) == SIZE
    assert min(moved) > 0


def sent(options: dict[str, Any]) -> float:
    """Return the share of dense float32 values, in bytes, that steps but the first take, up or down."""
    torch.manual_seed(0)
    model = nn.Linear(512, 256)
    optimizer = torch.optim.AdamW(model.parameters())
    weir.torch.compress(model, optimizer, sample_whole_steps=1, **options)
    connection: Any = dist.group.WORLD
    before = connection.connection.stats
    for step in range(5):
        if step == 1:
            before = connection.connection.stats
        model(torch.randn(8, 512)).square().mean().backward()
        optimizer.step()
    after = connection.connection.stats
    count = sum(one.numel() for one in model.parameters())
    return max(after.bytes_up - before.bytes_up, after.bytes_down - before.bytes_down) / (4 * 4 * count)


def test_bytes_are_those_of_signs_scales_and_samples(world: World) -> None:
    """For 3 ranks, 16 signs to a lane; 32 bits a row of 256; 6 % of samples, 8 to a lane; and headers."""
    assert max(world.run(sent, {})) < 1.25 * (1 / 16 + 1 / 256 + 0.06 / 8)
    assert max(world.run(sent, {"share": 0.25})) < 1.4 * (0.25 * (1 / 16 + 1 / 256) + 0.06 / 8)


def timed() -> tuple[Timing | None, list[str]]:
    """Return what is known of a step's time when ten were made, and what was said."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("weir.host_agent.torch.compress")
    logger.addHandler(handler)
    _, compressed, one = train(9, sample_whole_steps=1)
    before = compressed.timing
    one(9)
    logger.removeHandler(handler)
    return None if before else compressed.timing, said


def test_worker_0_says_once_where_steps_save_no_time(world: World) -> None:
    (timing, said), *others = world.run(timed)
    assert timing is not None and timing.step_s > 0 and timing.dense_s > 0
    assert len(said) == (not timing.pays) and all("no time" in words for words in said)
    assert all(other is not None and not words for other, words in others)
    assert Timing(0.1, 0.2).pays and not Timing(0.2, 0.2).pays


def restarted() -> bool:
    """Save in the middle of a training, go on in another process's stead, and compare bit for bit."""
    options: dict[str, Any] = {"share": 0.3, "sample_whole_steps": 2, "clip_norm": 1.0, "most_pending": 0.5}
    _, compressed, _ = train(4, **options)
    saved = io.BytesIO()
    torch.save(compressed.state_dict(), saved)
    model, compressed, one = train(4, **options)
    for step in range(4, 8):
        one(step)
    again, other, one = train(0, **options)
    saved.seek(0)
    other.load_state_dict(torch.load(saved, weights_only=True))
    for step in range(4, 8):
        one(step)
    with compressed.shared_point() as first, other.shared_point() as second:
        same = torch.equal(flat(first), flat(second))
    grown = other.share == compressed.share > 0.3
    return same and torch.equal(flat(model), flat(again)) and other.steps == 8 and grown


def test_a_restart_goes_on_bit_for_bit(world: World) -> None:
    assert all(world.run(restarted))


def evaluated_in_the_middle(kind: str) -> tuple[bool, float, list[bytes]]:
    """Return whether evaluations change nothing of a training, a loss, and the shared points seen."""
    ends, points, loss = [], [], 0.0
    for evaluates in (False, True):
        model, compressed, one = train(0, kind, share=0.3, clip_norm=1.0)
        for step in range(12):
            one(step)
            if evaluates and step % 4 == 3:
                with compressed.shared_point() as shared, torch.no_grad():
                    shared.eval()
                    loss = float(loss_of(shared, torch.arange(50)))
                    shared.train()
                    points.append(digest(flat(shared)))
        ends.append(flat(model))
    return torch.equal(*ends), loss, points


@pytest.mark.parametrize("kind", ["AdamW", "sgd"])
def test_evaluations_in_the_middle_are_at_the_shared_point_and_change_nothing(
    world: World, kind: str
) -> None:
    same, losses, points = zip(*world.run(evaluated_in_the_middle, kind), strict=True)
    assert all(same)
    assert points[0] == points[1] == points[2]
    assert len(set(points[0])) == 3
    assert all(0 < loss < 10 for loss in losses)


def stepper(model: nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int) -> None:
    for step in range(first, last):
        optimizer.zero_grad()
        loss_of(model, batch(step)).backward()
        optimizer.step()


def elastic() -> tuple[bool, bytes]:
    """Rank 2 leaves a training, which goes on without it, and comes back to it as a new worker."""
    options: dict[str, Any] = {"share": 0.3, "sample_whole_steps": 2}
    model, compressed, _ = train(4, **options)
    state, own = compressed.state_dict(), flat(model)
    compressed.close()
    pair = dist.new_group([0, 1])
    kept = True
    if dist.get_rank() < 2:
        model, optimizer = make("AdamW")
        compressed = weir.torch.compress(model, optimizer, process_group=pair, **options)
        compressed.load_state_dict(state)
        kept = torch.equal(flat(model), own)
        stepper(model, optimizer, 4, 8)
        compressed.close()
        state = compressed.state_dict()
    handed = [state]
    dist.broadcast_object_list(handed, 0)
    model, optimizer = make("AdamW")
    compressed = weir.torch.compress(model, optimizer, **options)
    joins = dist.get_rank() == 2
    compressed.load_state_dict(handed[0] if joins else state, joins=joins)
    if joins:
        kept = not any(compressed.pending(name).any() for name in state["names"])
    stepper(model, optimizer, 8, 12)
    with compressed.shared_point() as shared:
        return kept and compressed.steps == 12, digest(flat(shared))


def test_workers_leave_and_join(world: World) -> None:
    """In groups of 3, 2 and 3 workers, by the states of those that stay."""
    kept, points = zip(*world.run(elastic), strict=True)
    assert all(kept)
    assert len(set(points)) == 1


def elsewhere() -> str:
    """Rank 1 goes on from a state of another step."""
    model, optimizer = make("AdamW")
    compressed = weir.torch.compress(model, optimizer)
    state = compressed.state_dict()
    stepper(model, optimizer, 0, 1)
    compressed.load_state_dict(state if dist.get_rank() else compressed.state_dict())
    try:
        stepper(model, optimizer, 1, 2)
    except weir.torch.GroupBrokenError as error:
        return str(error)
    return "nothing was raised"


def test_ranks_that_go_on_from_other_points_are_told(pair: World) -> None:
    assert all("weir.torch.compress(step" in said for said in pair.run(elsewhere))


def in_other_memory(layout: torch.memory_format) -> bytes:
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 36, 10))
    model = model.to(memory_format=layout)
    assert next(model.parameters()).is_contiguous() == (layout is torch.contiguous_format)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    weir.torch.compress(model, optimizer)
    for step in range(3):
        torch.manual_seed(10 * step + dist.get_rank())
        for one in model.parameters():
            one.grad = torch.randn(one.shape)
        before = [one._version for one in model.parameters()]
        optimizer.step()
        assert all(one._version > old for one, old in zip(model.parameters(), before, strict=True))
    return digest(flat(model))


def test_parameters_may_lie_in_memory_in_another_order(world: World) -> None:
    """They make the same steps, and autograd notices that they have changed."""
    usual, other = (
        world.run(in_other_memory, layout) for layout in (torch.contiguous_format, torch.channels_last)
    )
    assert usual == other


def refused(what: str) -> str:
    model, optimizer = make("AdamW")
    try:
        if what == "muon":
            weir.torch.compress(model, torch.optim.Adagrad(model.parameters()))
        elif what == "steps":
            loss_of(model, batch(0)).backward()
            optimizer.step()
            weir.torch.compress(model, optimizer)
        elif what == "twice":
            weir.torch.compress(model, optimizer).close()
            weir.torch.compress(model, optimizer)
            weir.torch.compress(model, optimizer)
        elif what == "half":
            weir.torch.compress(model.half(), optimizer)
        elif what == "closure":
            weir.torch.compress(model, optimizer)
            optimizer.step(lambda: 0.0)
        elif what == "swapped":
            compressed = weir.torch.compress(model, optimizer)
            with compressed.shared_point():
                optimizer.step()
        elif what == "nan":
            weir.torch.compress(model, optimizer)
            loss_of(model, batch(0)).backward()
            if dist.get_rank() == 1:
                model.middle.bias.grad[3] = float("nan")
            optimizer.step()
    except (TypeError, ValueError, RuntimeError, weir.torch.NonFiniteError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (
            "muon",
            "TypeError: compress supports torch.optim's SGD, Adam, AdamW, not Adagrad",
        ),
        ("steps", "ValueError: the optimizer has already made steps"),
        ("twice", "ValueError: this optimizer's steps are compressed already"),
        ("half", "TypeError: embedding.weight is torch.float16"),
        ("closure", "TypeError: step() takes no closure"),
        ("swapped", "RuntimeError: the model is at the shared point"),
        ("nan", "NonFiniteError: NaN or infinity on rank 1: gradient of middle.bias"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(world: World, what: str, words: str) -> None:
    assert all(found.startswith(words) for found in world.run(refused, what))


def with_rates(*rates: float) -> str:
    model = nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rates[dist.get_rank()])
    weir.torch.compress(model, optimizer)
    model(torch.randn(4, 8)).square().mean().backward()
    try:
        optimizer.step()
    except weir.torch.GroupBrokenError as error:
        return str(error)
    return "nothing was raised"


def test_ranks_with_other_rates_are_told(pair: World) -> None:
    """Otherwise, their shared points would no longer be one."""
    assert pair.run(with_rates, 0.1, 0.1) == ["nothing was raised"] * 2
    assert all("weir.torch.compress(step" in said for said in pair.run(with_rates, 0.1, 0.2))


def one_rank_cannot() -> str:
    """Rank 1 has a sparse gradient, which it cannot send; rank 0 would wait for it."""
    torch.manual_seed(0)
    model = nn.Embedding(20, 8, sparse=dist.get_rank() == 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    weir.torch.compress(model, optimizer)
    model(torch.arange(4)).square().mean().backward()
    try:
        optimizer.step()
    except (TypeError, weir.torch.GroupBrokenError) as error:
        return str(error)
    return "nothing was raised"


def test_a_rank_that_cannot_make_a_step_tells_the_others(pair: World) -> None:
    found = pair.run(one_rank_cannot)
    assert found[1].startswith("weight has a sparse gradient")
    assert "weight has a sparse gradient" in found[0]
