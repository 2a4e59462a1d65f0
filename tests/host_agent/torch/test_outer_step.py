# SPDX-License-Identifier: Apache-2.0
"""weir.torch.OuterStep on real ranks and a real switch: loops stay as they are, and all hold one point."""

import io
import os
import re
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

import weir
import weir.torch
from tests.harness.effort import effort
from tests.host_agent.models import Model, batch, flat, loss_of
from tests.host_agent.torch.worlds import World

SIZE = 3
HOSTS = SIZE + 2
PAGE = Path(__file__).parents[3] / "docs" / "guides" / "outer-steps.md"
LIMIT = timedelta(seconds=20)


def make(kind: str = "AdamW", **options: Any) -> tuple[Model, torch.optim.Optimizer]:
    torch.manual_seed(dist.get_rank())  # rank 0's weights go to all
    model = Model()
    options = options or {"lr": 0.01}
    return model, getattr(torch.optim, kind)(model.parameters(), **options)


def steps(
    model: nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int, mean: bool = False
) -> None:
    """Make steps. mean: of gradients averaged over all ranks, as data-parallel training does."""
    for step in range(first, last):
        optimizer.zero_grad()
        loss_of(model, batch(step)).backward()
        for one in model.parameters() if mean else ():
            if one.grad is not None:
                dist.all_reduce(one.grad, dist.ReduceOp.AVG)
        optimizer.step()


def digest(model: nn.Module) -> bytes:
    return flat(model).numpy().tobytes()


def difference_from_data_parallel(
    inner: dict[str, Any], outer: dict[str, Any], dense: dict[str, Any]
) -> float:
    trained = []
    for parallel in (False, True):
        model, optimizer = make("SGD", **(dense if parallel else inner))
        if parallel:
            for tensor in (*model.parameters(), *model.buffers()):
                dist.broadcast(tensor.detach(), 0)
        else:
            weir.torch.OuterStep(model, optimizer, every=1, method="dense", **outer)
        steps(model, optimizer, 0, 8, mean=parallel)
        trained.append(flat(model))
    return float((trained[0] - trained[1]).abs().max())


PLAIN = {"lr": 0.1}
MOMENTUM = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}


@pytest.mark.parametrize(
    ("inner", "outer", "dense"),
    [
        (PLAIN, {}, PLAIN),
        (MOMENTUM, {}, MOMENTUM),
        (
            {"lr": 0.2},
            {"outer_rate": 0.5, "outer_momentum": 0.9},
            {"lr": 0.1, "momentum": 0.9, "nesterov": True},
        ),
    ],
)
def test_an_outer_step_after_every_step_is_data_parallel_training(
    world: World, inner: dict[str, Any], outer: dict[str, Any], dense: dict[str, Any]
) -> None:
    """Of all values, by SGD, whose steps are linear in the gradient; momentum may be on either side."""
    assert max(world.run(difference_from_data_parallel, inner, outer, dense)) < 3e-6


WAYS: list[dict[str, Any]] = [
    {"every": 4, "method": "dense", "outer_rate": 0.7, "outer_momentum": 0.5},
    {"every": 4, "method": "rows"},
    {"every": 4, "method": "chunk-topk", "density": 0.2, "bits": 8, "decay": 0.9, "ahead": False},
    {"every": 4, "method": "rows", "density": 0.3, "overlap": 2},
    {"every": 3, "method": "dfs", "density": 0.2, "overlap": 1},
]


def learned(options: dict[str, Any]) -> tuple[float, float, bytes, bytes, bytes]:
    """Return losses at the shared point before and at the end, digests of both points and own weights."""
    model, optimizer = make()
    outer = weir.torch.OuterStep(model, optimizer, **options)
    steps(model, optimizer, 0, 61)
    own = flat(model)
    with outer.shared_point() as shared, torch.no_grad():
        shared.eval()
        loss = float(loss_of(shared, torch.arange(50)))
        shared.train()
        point = digest(model)
    assert torch.equal(flat(model), own)
    assert outer.rounds == 61 // options["every"]
    kept = outer.kept("embedding.weight")
    assert kept.shape == (50, 24) and bool(kept.any()) == (options["method"] != "dense")
    outer.finish()
    assert not outer.kept("embedding.weight").any()
    end = digest(model) + model.norm.running_mean.numpy().tobytes()
    with torch.no_grad():
        last = float(loss_of(model.eval(), torch.arange(50)))
    return loss, last, point, end, own.numpy().tobytes()


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_a_model_learns_and_all_ranks_hold_one_shared_point(world: World, options: dict[str, Any]) -> None:
    """Its loss at chance is 3.9."""
    losses, ends, points, models, own = zip(*world.run(learned, options), strict=True)
    assert max(losses) < 3.0 and max(ends) < 2.0, (losses, ends)
    assert len(set(points)) == len(set(models)) == 1
    assert len(set(own)) == SIZE


def restarted(options: dict[str, Any], stop: int) -> bool:
    """Save in the middle of a training, go on in another process's stead, and compare bit for bit."""

    def training() -> tuple[Model, torch.optim.Optimizer, weir.torch.OuterStep]:
        model, optimizer = make()
        return model, optimizer, weir.torch.OuterStep(model, optimizer, **options)

    model, optimizer, outer = training()
    steps(model, optimizer, 0, stop)
    saved = io.BytesIO()
    torch.save([model.state_dict(), optimizer.state_dict(), outer.state_dict()], saved)
    steps(model, optimizer, stop, stop + 9)
    again, second, other = training()
    saved.seek(0)
    for one, state in zip((again, second, other), torch.load(saved, weights_only=True), strict=True):
        one.load_state_dict(state)
    steps(again, second, stop, stop + 9)
    same = torch.equal(flat(model), flat(again)) and outer.rounds == other.rounds
    with outer.shared_point():
        point = digest(model)
    with other.shared_point():
        same = same and digest(again) == point
    outer.finish()
    other.finish()
    return same and digest(model) == digest(again)


@pytest.mark.parametrize("options", WAYS, ids=str)
@pytest.mark.parametrize("stop", effort([9], [8, 9, 10]))
def test_a_restart_goes_on_bit_for_bit(world: World, options: dict[str, Any], stop: int) -> None:
    """At an outer step, while its sum is under way, and behind it."""
    assert all(world.run(restarted, options, stop))


def bytes_of(options: dict[str, Any]) -> tuple[float, float]:
    """Return the bytes up and down of an outer step after the first, relative to the values' float32."""
    torch.manual_seed(0)
    model = nn.Linear(512, 512)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    outer = weir.torch.OuterStep(model, optimizer, every=2, **options)
    connection: Any = dist.group.WORLD
    before = connection.connection.stats
    for step in range(6):
        if step == 2:
            before = connection.connection.stats
        torch.manual_seed(10 * step + dist.get_rank())
        model(torch.randn(8, 512)).square().mean().backward()
        optimizer.step()
    after = connection.connection.stats
    assert outer.rounds == 3
    values = 4 * sum(one.numel() for one in model.parameters())
    return tuple(  # type: ignore[return-value]
        (getattr(after, name) - getattr(before, name)) / 2 / values for name in ("bytes_up", "bytes_down")
    )


@pytest.mark.parametrize(
    ("options", "most"),
    [
        ({"method": "dense"}, 1.15),
        ({"method": "rows"}, 1.25 * (1 / 16 + 1 / 256)),  # for 3 ranks 16 signs to a lane, and scales
        ({"method": "rows", "density": 0.1}, 1.4 * 0.1 * (1 / 16 + 1 / 256)),
        ({"method": "chunk-topk", "density": 1 / 64, "bits": 8}, 0.011),
    ],
    ids=str,
)
def test_bytes_down_are_at_most_1_3_times_those_up(
    world: World, options: dict[str, Any], most: float
) -> None:
    """With all headers. Of 3 ranks, a list of all payloads would take 3 times as many down."""
    for up, down in world.run(bytes_of, options):
        assert up < most
        assert down < 1.3 * up


def refused(what: str) -> str:
    try:
        model, optimizer = make()
        if what == "every":
            weir.torch.OuterStep(model, optimizer, every=2 + dist.get_rank())
        elif what == "strangers":
            weir.torch.OuterStep(model, torch.optim.SGD(nn.Linear(2, 2).parameters()), every=2)
        elif what == "point":
            outer = weir.torch.OuterStep(model, optimizer, every=2)
            steps(model, optimizer, 0, 2)
            if dist.get_rank() == 1:
                outer._stage.shared[7] += 1e-6
            steps(model, optimizer, 2, 4)
        elif what == "swapped":
            outer = weir.torch.OuterStep(model, optimizer, every=2)
            with outer.shared_point():
                optimizer.step()
        elif what == "nan":
            weir.torch.OuterStep(model, optimizer, every=2)
            steps(model, optimizer, 0, 1)
            if dist.get_rank() == 1:
                model.middle.bias.detach()[3] = float("nan")
            steps(model, optimizer, 1, 2)
        elif what == "state":
            outer = weir.torch.OuterStep(model, optimizer, every=2)
            other = weir.torch.OuterStep(*make(), every=3)
            outer.load_state_dict(other.state_dict())
    except (TypeError, ValueError, RuntimeError, weir.torch.NonFiniteError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("strangers", "ValueError: the optimizer has 2 parameters that the model lacks"),
        ("swapped", "RuntimeError: the model is at the shared point"),
        ("nan", "NonFiniteError: NaN or infinity on rank 1: weights of "),
        ("state", "ValueError: this state is of other settings"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(world: World, what: str, words: str) -> None:
    assert all(found.startswith(words) for found in world.run(refused, what))


@pytest.mark.parametrize("what", ["every", "point"])
def test_ranks_of_other_settings_or_another_point_are_told(pair: World, what: str) -> None:
    """The shared point of one is off by a millionth, which no loss would show."""
    assert all("weir.torch.OuterStep(" in said for said in pair.run(refused, what))


def as_the_page_says() -> tuple[bytes, int]:
    """Run the page's first example."""
    found = re.search(r"```python\n(optimizer = .*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    torch.manual_seed(0)
    model = nn.Linear(8, 8)
    data = torch.randn(45, 4, 8, generator=torch.Generator().manual_seed(dist.get_rank()))
    names: dict[str, Any] = {
        "torch": torch,
        "weir": weir,
        "model": model,
        "loader": [(one, one.flip(1)) for one in data],
        "loss": functional.mse_loss,
        "evaluate": lambda model: None,
    }
    exec(found[1], names)
    return digest(model), names["outer"].rounds


def test_the_pages_example_ends_with_one_model_on_all_ranks(world: World) -> None:
    models, rounds = zip(*world.run(as_the_page_says), strict=True)
    assert len(set(models)) == 1 and rounds == (2,) * SIZE


RATE, EVERY = 0.1, 4


class Slope(nn.Module):
    """Goes down by RATE times the rank of its job's first group plus 1 at each step: every step shows."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(300))
        self.rank = rank

    def forward(self) -> torch.Tensor:
        return (self.rank + 1) * self.weight.sum()


def slope(rank: int, **options: Any) -> tuple[Slope, torch.optim.Optimizer, weir.torch.OuterStep]:
    model = Slope(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    return model, optimizer, weir.torch.OuterStep(model, optimizer, every=EVERY, **options)


def go(model: Slope, optimizer: torch.optim.Optimizer, count: int) -> int:
    """Make steps; return how many were made before the group broke."""
    for made in range(count):
        optimizer.zero_grad()
        model().backward()
        try:
            optimizer.step()
        except weir.torch.GroupBrokenError:
            return made + 1
    return count


def group_of(path: Path, rank: int, size: int) -> weir.torch.WeirProcessGroup:
    return weir.torch.group_from_store(dist.FileStore(str(path), size), rank, size, timeout=LIMIT)


def goes_on_without_one(folder: Path, overlap: int, killed: bool) -> tuple[float, float, float]:
    """Rank 2 is gone in the second round; the others go on, and later three of them again.

    Returns:
        The point after the second round, and what it is if no step of this rank is lost; the last point.
    """
    rank = dist.get_rank()
    model, optimizer, outer = slope(rank, overlap=overlap)
    made = go(model, optimizer, EVERY + overlap + 1)
    if rank == 2 and killed:
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 2:
        dist.FileStore(str(folder / "late"), 1).wait(["done"], LIMIT)
        go(model, optimizer, 2 * EVERY)
        return comes(model, optimizer, outer, folder)
    made += go(model, optimizer, 2 * EVERY)
    outer.bind(group_of(folder / "two", rank, 2))
    made += go(model, optimizer, 1)
    outer.finish()
    assert outer.rounds == 2
    found, first = float(model.weight[0]), -RATE * EVERY * 2
    dist.FileStore(str(folder / "late"), 1).set("done", "")
    outer.bind(group_of(folder / "three", rank, 3))
    assert float(model.weight[0]) == found
    go(model, optimizer, EVERY)
    outer.finish()
    return found, first - RATE * (made - EVERY) * 1.5, float(model.weight[0])


def comes(
    model: Slope, optimizer: torch.optim.Optimizer, outer: weir.torch.OuterStep, folder: Path
) -> tuple[float, float, float]:
    """Come to the training as rank 2: what this rank had made in its round is lost."""
    outer.bind(group_of(folder / "three", 2, 3))
    begins = float(model.weight[0])
    go(model, optimizer, EVERY)
    outer.finish()
    return begins, begins, float(model.weight[0])


def joins(folder: Path, overlap: int) -> tuple[float, float, float]:
    model, optimizer, outer = slope(2, overlap=overlap)
    go(model, optimizer, EVERY - 1)
    return comes(model, optimizer, outer, folder)


def agreed(found: list[tuple[float, float, float]]) -> None:
    begins, expected, ends = zip(*found, strict=True)
    assert len(set(begins)) == len(set(ends)) == 1
    assert begins[0] == pytest.approx(expected[0], abs=1e-5) == pytest.approx(expected[1], abs=1e-5)
    assert ends[0] == pytest.approx(begins[0] - RATE * EVERY * 2, abs=1e-5)


@pytest.mark.parametrize("overlap", [0, 2])
def test_a_lost_peer_costs_its_own_round_alone_and_a_new_one_begins_where_all_are(
    tmp_path: Path, overlap: int
) -> None:
    """One process of three is killed, as kill -9 does. All steps of the others are in their next sum."""
    with weir.local_cluster(workers=4) as cluster, World(3, cluster.environment) as world:
        world.start(goes_on_without_one, tmp_path, overlap, True)
        with World(1, lambda _: cluster.environment(3)) as new:
            new.start(joins, tmp_path, overlap)
            agreed([world.outcome(0), world.outcome(1), new.outcome(0)])


def test_a_late_peer_costs_its_own_round_alone_and_comes_back(tmp_path: Path) -> None:
    """The others wait for it as long as the group's timeout says, and go on without it."""
    with weir.local_cluster(workers=3) as cluster, World(3, cluster.environment, timeout_s=4.0) as world:
        agreed(world.run(goes_on_without_one, tmp_path, 0, False))
