# SPDX-License-Identifier: Apache-2.0
"""LayersFirst on real ranks: DDP's parameters bit for bit, whatever model and loop; and what it refuses."""

import functools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import weir.torch
from tests.harness.effort import effort
from tests.host_agent.torch.worlds import World, raising
from weir.host_agent.torch.overlap.bucket import Bucket
from weir.host_agent.torch.overlap.exchange import Exchange
from weir.host_agent.torch.process_group import WeirProcessGroup

SIZE = 3
WIDTH = 160
PIECE = 4096
STEPS = 4


class Tied(nn.Module):
    """One weight at both ends, as language models have it, and attention, which uses a part's parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WIDTH, 32)
        self.attention = nn.MultiheadAttention(32, 2, batch_first=True)
        self.middle = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = (x.abs() * 50).long().clamp(max=WIDTH - 1)
        h = self.embedding(tokens)
        h = h + self.attention(h, h, h)[0]
        return nn.functional.linear(self.middle(h).mean(1), self.embedding.weight)


class Borrower(nn.Module):
    """Uses another module's parameters without calling it, first of all."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.last = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.first(x + self.last.bias)))


class Choosy(nn.Module):
    """Leaves one of its layers out, another one at every step; and one always."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.never = nn.Linear(WIDTH, WIDTH)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        for number, layer in enumerate(self.layers):
            if number != self.calls % 3:
                x = torch.relu(layer(x))
        return x


class Words(nn.Module):
    """Touches few rows of a large embedding: most blocks of its gradient are zero on every rank."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9000, 64)
        self.head = nn.Linear(64, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding((x.abs() * 300).long()).mean(1))


class Narrow(nn.Sequential):
    """Works in another type than its input's."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__(*(nn.Linear(WIDTH, WIDTH, dtype=dtype) for _ in range(3)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.to(self[0].weight.dtype)).to(x.dtype)


def deep() -> nn.Module:
    parts = [part for _ in range(3) for part in (nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU())]
    return nn.Sequential(*parts)


SGD = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=1e-3)
Loop = Callable[[DistributedDataParallel, list[Any], weir.torch.LayersFirst | None], None]


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
    return torch.randn(8, WIDTH, generator=generator), torch.randn(8, WIDTH, generator=generator)


def backward(ddp: Callable[[torch.Tensor], torch.Tensor], step: int) -> None:
    inputs, targets = batch(step)
    nn.functional.mse_loss(ddp(inputs), targets).backward()


def usual(ddp: DistributedDataParallel, optimizers: list[Any], layers: weir.torch.LayersFirst | None) -> None:
    schedules = [torch.optim.lr_scheduler.ExponentialLR(one, 0.7) for one in optimizers]
    for step in range(STEPS):
        for optimizer in optimizers:
            optimizer.zero_grad()
        backward(ddp, step)
        for optimizer in optimizers:
            optimizer.step()
        for schedule in schedules:
            schedule.step()


def zeroing_in_place(
    ddp: DistributedDataParallel, optimizers: list[Any], layers: weir.torch.LayersFirst | None
) -> None:
    for step in range(STEPS):
        backward(ddp, step)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)


def accumulating(
    ddp: DistributedDataParallel, optimizers: list[Any], layers: weir.torch.LayersFirst | None
) -> None:
    for step in range(STEPS):
        optimizers[0].zero_grad()
        with ddp.no_sync():
            backward(ddp, 2 * step)
        backward(ddp, 2 * step + 1)
        optimizers[0].step()


def summing_twice(
    ddp: DistributedDataParallel, optimizers: list[Any], layers: weir.torch.LayersFirst | None
) -> None:
    for step in range(STEPS):
        optimizers[0].zero_grad()
        backward(ddp, 2 * step)
        backward(ddp, 2 * step + 1)
        optimizers[0].step()


def clipping(
    ddp: DistributedDataParallel, optimizers: list[Any], layers: weir.torch.LayersFirst | None
) -> None:
    for step in range(STEPS):
        optimizers[0].zero_grad()
        backward(ddp, step)
        if layers is not None:
            layers.sums()
        nn.utils.clip_grad_norm_(ddp.parameters(), 0.01)
        optimizers[0].step()


def evaluating(
    ddp: DistributedDataParallel, optimizers: list[Any], layers: weir.torch.LayersFirst | None
) -> None:
    for step in range(STEPS):
        optimizers[0].zero_grad()
        backward(ddp, step)
        optimizers[0].step()
        ddp.eval()
        seen = ddp.module[0](batch(step)[0])  # a part alone
        kept = {name: value.clone() for name, value in ddp.state_dict().items()}
        ddp.train()
        with torch.no_grad():
            ddp.module[-3].weight.add_(seen.mean() + kept["module.0.weight"].mean())


CASES: dict[str, tuple[Callable[[], nn.Module], Any, Loop, dict[str, Any]]] = {
    "usual": (deep, SGD, usual, {}),
    "adam": (deep, torch.optim.AdamW, usual, {}),
    "views": (deep, SGD, usual, {"gradient_as_bucket_view": True}),
    "sparse": (Words, SGD, usual, {}),
    "bfloat16": (functools.partial(Narrow, torch.bfloat16), SGD, usual, {}),
    "float64": (functools.partial(Narrow, torch.float64), SGD, usual, {}),
    "one bucket": (deep, SGD, usual, {"bucket_cap_mb": 25}),
    "zeroing in place": (deep, SGD, zeroing_in_place, {}),
    "shared": (Tied, SGD, usual, {}),
    "borrowed": (Borrower, SGD, usual, {}),
    "unused": (Choosy, SGD, usual, {"find_unused_parameters": True}),
    "accumulating": (deep, SGD, accumulating, {}),
    "summing twice": (deep, SGD, summing_twice, {}),
    "clipping": (deep, SGD, clipping, {}),
    "evaluating": (deep, SGD, evaluating, {}),
    "two optimizers": (deep, None, usual, {}),
}


def make(case: str, group: Any = None) -> tuple[DistributedDataParallel, list[Any]]:
    model, optimizer, _, options = CASES[case]
    torch.manual_seed(7)
    ddp = DistributedDataParallel(model(), process_group=group, **{"bucket_cap_mb": 0.05, **options})
    if optimizer is not None:
        return ddp, [optimizer(ddp.parameters())]
    half = len(list(ddp.parameters())) // 2
    parameters = list(ddp.parameters())
    return ddp, [SGD(parameters[:half]), torch.optim.Adam(parameters[half:])]


def trained(case: str, at_once: int) -> list[bytes]:
    """Return the parameters after training by DDP alone (0), or with this many runs of layers at once."""
    ddp, optimizers = make(case)
    layers = weir.torch.LayersFirst(ddp, *optimizers, piece=PIECE, at_once=at_once) if at_once else None
    CASES[case][2](ddp, optimizers, layers)
    return [value.view(torch.uint8).numpy().tobytes() for value in ddp.state_dict().values() if value.dim()]


@pytest.mark.parametrize("case", list(CASES)[:: effort(2, 1)])
def test_parameters_are_those_of_ddp_alone_bit_for_bit(world: World, case: str) -> None:
    plain, first = world.run(trained, case, 0), world.run(trained, case, 1)
    assert first == plain


@pytest.mark.parametrize(
    ("case", "at_once"), [("usual", 4), ("accumulating", 2), ("clipping", 3), ("unused", 4)]
)
def test_so_they_are_where_several_runs_of_layers_are_summed_at_once(
    world: World, case: str, at_once: int
) -> None:
    assert world.run(trained, case, at_once) == world.run(trained, case, 0)


def passed() -> tuple[int, bool]:
    """Let the front layers' group sum while that of the layers behind is busy; return what has overtaken."""
    ddp, optimizers = make("usual")
    layers = weir.torch.LayersFirst(ddp, *optimizers, piece=PIECE, at_once=2)
    front, back = layers._exchanges
    for step in range(2):  # the first step has one bucket
        backward(ddp, step)
        optimizers[0].step()
    layers.finish()
    go, before = threading.Event(), layers.overtaken
    busy = back.group.submit(go.wait)
    backward(ddp, 2)
    optimizers[0].step()
    ahead = [pending for pending in layers._pending.values() if pending.bucket in front._on_their_way]
    for pending in ahead:
        pending.bucket.wait(0)
    behind = all(pending.bucket.over for pending in layers._pending.values() if pending not in ahead)
    go.set()
    busy.wait()
    layers.finish()
    return layers.overtaken - before, bool(ahead) and not behind


def test_front_layers_overtake_those_that_are_summed_beside_them(world: World) -> None:
    for overtaken, alone in world.run(passed):
        assert overtaken > 0 and alone


def test_pieces_of_a_bucket_travel_in_the_class_of_their_own_layers() -> None:
    """A piece that holds the end of one layer and the beginning of another is as urgent as the front one."""
    bucket = Bucket(0, 0, 0, torch.zeros(300), ["back", "middle", "front"], [0, 100, 200], [3, 2, 0])
    ranges = [(0, 100), (50, 150), (100, 200), (150, 201), (250, 300), (0, 300)]
    assert [bucket.service(*each).layer for each in ranges] == [3, 2, 2, 0, 0, 0]


def more_groups() -> tuple[int, list[str | None]]:
    """Make two models' groups on a group of their own, and end that; return what became of them."""
    group = dist.new_group(backend="weir")
    ddp, optimizers = make("usual", group)
    made = [weir.torch.LayersFirst(ddp, *optimizers, piece=PIECE, at_once=3)]
    other, optimizers = make("usual", group)
    made.append(weir.torch.LayersFirst(other, *optimizers, piece=PIECE, at_once=2))
    groups = [exchange.group for layers in made for exchange in layers._exchanges[1:]]
    names = {one.group_name for one in groups}
    dist.destroy_process_group(group)
    closed = [one.connection._closed for one in groups]
    return len(names), closed


def test_their_groups_end_with_the_models(world: World) -> None:
    for names, closed in world.run(more_groups):
        assert names == 3 and all(closed)


def ordered() -> tuple[list[str], bool]:
    """Issue a back bucket, a front one and a barrier while the group's thread is busy; return the order."""
    group = dist.group.WORLD
    assert isinstance(group, WeirProcessGroup)
    exchange, go, order = Exchange(group, PIECE), threading.Event(), []
    busy = group.submit(go.wait)
    values = [torch.full((5 * PIECE,), float(dist.get_rank())) for _ in range(2)]
    buckets = [Bucket(place, 0, place, values[place], ["weight"], [0]) for place in range(2)]
    works = [exchange.issue(bucket) for bucket in buckets]
    barrier = group.submit(lambda: (group.collectives.barrier(), order.append("barrier")))
    for bucket, name in zip(buckets, ("back", "front"), strict=True):
        notify = bucket.summed
        bucket.summed = lambda start, name=name, notify=notify: (order.append(name), notify(start))  # type: ignore[method-assign]
    go.set()
    for work in [busy, *works, barrier]:
        work.wait()
    right = all(bool((one == 3.0).all()) for one in values)
    return order, right


def test_after_a_piece_all_know_what_waits_and_it_goes_first_then_the_front_bucket(world: World) -> None:
    for order, right in world.run(ordered):
        assert right
        assert order == ["back", "barrier", *["front"] * 5, *["back"] * 4]


def late_rank(slow: int) -> list[bytes]:
    """Train where one rank issues its buckets late, so that ranks know of different ones at a time."""
    ddp, optimizers = make("usual")
    layers = weir.torch.LayersFirst(ddp, *optimizers, piece=PIECE)
    if dist.get_rank() == slow:
        for parameter in ddp.parameters():
            parameter.register_hook(lambda _: time.sleep(0.005))
    usual(ddp, optimizers, layers)
    return [value.view(torch.uint8).numpy().tobytes() for value in ddp.state_dict().values() if value.dim()]


def test_ranks_of_different_speed_agree_on_the_order(world: World) -> None:
    assert world.run(late_rank, 1) == world.run(trained, "usual", 0)


def spoilt(layer: int, at_once: int) -> tuple[str, float]:
    ddp, optimizers = make("usual", raising())
    weir.torch.LayersFirst(ddp, *optimizers, piece=PIECE, at_once=at_once)
    backward(ddp, 0)
    optimizers[0].step()
    if dist.get_rank() == 1:
        ddp.module[layer].weight.register_hook(lambda gradient: gradient * float("nan"))
    said = ""
    try:
        backward(ddp, 1)
        optimizers[0].step()
        backward(ddp, 2)
    except weir.torch.NonFiniteError as error:
        said = str(error)
    total = torch.ones(1)
    dist.all_reduce(total, group=raising())
    return said, float(total)


@pytest.mark.parametrize(("layer", "at_once"), [(0, 1), (3, 1), (6, 1), (0, 4), (6, 4)])
def test_an_exception_in_any_layers_sum_surfaces_on_every_rank(
    world: World, layer: int, at_once: int
) -> None:
    for said, total in world.run(spoilt, layer, at_once):
        assert f"gradient of {layer}.weight" in said and "rank 1" in said
        assert total == world.size


def refused() -> None:
    ddp, optimizers = make("usual")
    with pytest.raises(ValueError, match="at least one optimizer"):
        weir.torch.LayersFirst(ddp)
    with pytest.raises(ValueError, match="a piece has a multiple of 256"):
        weir.torch.LayersFirst(ddp, *optimizers, piece=100)
    with pytest.raises(ValueError, match=r"1 to 4 runs of layers .*, not 5"):
        weir.torch.LayersFirst(ddp, *optimizers, at_once=5)
    layers = weir.torch.LayersFirst(ddp, *optimizers, piece=PIECE)
    backward(ddp, 0)
    nn.utils.clip_grad_norm_(ddp.parameters(), 0.01)
    with pytest.raises(RuntimeError, match=r"changed between .* call LayersFirst.sums\(\)"):
        optimizers[0].step()
    layers.finish()
    backward(ddp, 1)
    with pytest.raises(TypeError, match="no closure"):
        optimizers[0].step(lambda: 0.0)
    layers.finish()
    gloo = dist.new_group(backend="gloo")
    other = DistributedDataParallel(deep(), process_group=gloo)
    with pytest.raises(TypeError, match="on the weir backend"):
        weir.torch.LayersFirst(other, SGD(other.parameters()))
    scripted = nn.Sequential(nn.Linear(4, 4), torch.jit.script(nn.Linear(4, 4)))
    compiled = DistributedDataParallel(scripted)
    with pytest.raises(TypeError, match="1 is compiled"):
        weir.torch.LayersFirst(compiled, SGD(compiled.parameters()))


def test_wrong_use_is_refused_with_a_reason(world: World) -> None:
    world.run(refused)


class Counting(torch.optim.SGD):
    """Keeps state where no part of a step may change it."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["count"] = group.get("count", 0) + 1
        return super().step(closure)


def counted() -> None:
    ddp, _ = make("usual")
    optimizer = Counting(ddp.parameters(), lr=0.1)
    layers = weir.torch.LayersFirst(ddp, optimizer, piece=PIECE)
    backward(ddp, 0)
    optimizer.step()
    with pytest.raises(RuntimeError, match="Counting counts in its groups"):
        layers.finish()


def test_an_optimizer_that_cannot_step_in_parts_is_refused(world: World) -> None:
    world.run(counted)


def abandoned() -> Sequence[str]:
    ddp, optimizers = make("usual")
    weir.torch.LayersFirst(ddp, *optimizers, piece=PIECE)
    said = []
    try:
        for step in range(3):
            if step == 1 and dist.get_rank() == 1:
                dist.group.WORLD.abort()  # type: ignore[union-attr]
            backward(ddp, step)
            optimizers[0].step()
    except weir.torch.GroupBrokenError as error:
        said.append(str(error))
    return said


def test_a_lost_rank_is_said_by_the_next_forward_pass() -> None:
    with World(2) as world:
        for said in world.run(abandoned):
            assert len(said) == 1
