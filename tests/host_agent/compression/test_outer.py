# SPDX-License-Identifier: Apache-2.0
"""Outer steps over workers in one process: the mean of all, conservation, one shared point, restarts."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from weir.host_agent.collectives import InMemoryGroup, NonFiniteError
from weir.host_agent.compression.bucket_layout import spans_of
from weir.host_agent.compression.outer.stage import OuterSettings, OuterStage
from weir.host_agent.compression.outer.sums import make_sum
from weir.host_agent.compression.sparsifiers import SparsifierOptions, create_sparsifier
from weir.host_agent.compression.updates.layout import UpdateLayout

SHAPES = {"a.weight": (40, 300), "a.bias": (30,), "b.weight": (7, 3), "b.bias": (700,)}
WAYS: list[dict[str, Any]] = [
    {"method": "dense"},
    {"method": "dense", "bits": 8},
    {"method": "chunk-topk", "density": 0.05, "bits": 8},
    {"method": "topk", "density": 0.05},
    {"method": "micro", "density": 0.05},
    {"method": "dfs", "density": 0.05},
    {"method": "random-k", "density": 0.05, "bits": 16},
    {"method": "rows"},
    {"method": "rows", "density": 0.3},
    {"method": "rows", "density": 0.3, "bits": 8},
]


class Workers:
    """Workers of one process. sent: of every reduction the share of blocks up, mean, and down."""

    def __init__(self, size: int = 3, method: str = "dense", density: float = 1.0, **options: Any) -> None:
        bits, shapes = options.pop("bits", None), options.pop("shapes", SHAPES)
        self.settings = OuterSettings(**{"every": 1, **options})
        self.module = torch.nn.Module()
        for name, shape in shapes.items():
            self.module.register_parameter(name.replace(".", "_"), torch.nn.Parameter(torch.zeros(shape)))
        names = [name for name, _ in self.module.named_parameters()]
        self.layout = UpdateLayout(names, list(shapes.values()))
        self.up, self.down = 0.0, 0.0
        self.group = InMemoryGroup(size, watch=self._watch)
        self.start = torch.randn(self.layout.values, generator=torch.Generator().manual_seed(9))
        self.stages = [self._stage(rank, method, density, bits) for rank in range(size)]

    def _stage(self, rank: int, method: str, density: float, bits: Any) -> OuterStage:
        stage = OuterStage(self.layout, self.settings, make_sum(self.layout, method, density, bits, 5))
        stage.join(self.module, self.group.communicators[rank], 256, 0)
        stage.begin_from(self.start)
        return stage

    def _watch(self, sent: np.ndarray[Any, Any], block: int) -> None:
        self.up += sent.sum() / len(sent) * block
        self.down += sent.any(0).sum() * block

    def each(self, work: Callable[[int, OuterStage], Any]) -> list[Any]:
        return self.group.run([lambda r=r, s=s: work(r, s) for r, s in enumerate(self.stages)])

    def step(self, step: int) -> list[torch.Tensor]:
        return self.each(lambda rank, stage: stage.step(self.local(step, rank)))

    def local(self, step: int, rank: int) -> torch.Tensor:
        """Progress that has something in common."""
        own = torch.Generator().manual_seed(1000 * step + rank + 1)
        common = torch.Generator().manual_seed(1000 * step)
        size = self.layout.values
        return 0.1 * (torch.randn(size, generator=common) + 0.3 * torch.randn(size, generator=own))

    @property
    def shared(self) -> torch.Tensor:
        """The shared point, which is checked to be the same on all workers, bit for bit."""
        for stage in self.stages:
            assert torch.equal(stage.shared, self.stages[0].shared)
        return self.stages[0].shared


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_what_was_made_is_at_the_shared_point_or_kept(way: dict[str, Any]) -> None:
    """All workers' progress, over several steps: nothing is lost, nothing counted twice."""
    workers = Workers(**way)
    made = torch.zeros(workers.layout.values)
    for step in range(4):
        begun = workers.step(step)
        made += sum(workers.local(step, rank) for rank in range(3)) / 3
        kept = [stage.sum.kept() for stage in workers.stages]
        assert torch.allclose(workers.shared - workers.start + sum(kept) / 3, made, atol=2e-6)
        for own, weights in zip(kept, begun, strict=True):
            assert torch.equal(weights, workers.shared + own)
    assert way == {"method": "dense"} or all(own.any() for own in kept)


def test_everything_at_rate_1_is_the_mean_of_the_models() -> None:
    workers = Workers(method="dense")
    workers.step(0)
    mean = sum(workers.local(0, rank) for rank in range(3)) / 3
    assert torch.allclose(workers.shared, workers.start + mean, atol=1e-7)


def test_momentum_is_nesterovs_as_torch_has_it() -> None:
    workers = Workers(method="dense", rate=0.7, momentum=0.9)
    point = torch.nn.Parameter(workers.start.clone())
    outer = torch.optim.SGD([point], lr=0.7, momentum=0.9, nesterov=True)
    for step in range(5):
        workers.step(step)
        point.grad = -sum(workers.local(step, rank) for rank in range(3)) / 3
        outer.step()
    assert torch.allclose(workers.shared, point.detach(), atol=1e-5)


def test_what_is_kept_decays_or_waits_beside_the_weights() -> None:
    half, whole, beside = (
        Workers(method="topk", density=0.05, **more) for more in ({"decay": 0.5}, {}, {"ahead": False})
    )
    for one in (half, whole, beside):
        begun = one.step(0)
        assert torch.equal(one.shared, half.shared)
    assert torch.equal(half.stages[0].sum.kept(), 0.5 * whole.stages[0].sum.kept())
    assert torch.equal(beside.stages[0].sum.kept(), whole.stages[0].sum.kept())
    assert torch.equal(begun[0], beside.shared)
    beside.step(1)
    whole.step(1)
    assert torch.equal(beside.shared, whole.shared)  # what was kept is in the next sum in either case


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_state_goes_on_bit_for_bit(way: dict[str, Any]) -> None:
    options = {"momentum": 0.5, "decay": 0.9, **way}
    first, second = Workers(**options), Workers(**options)
    for step in range(3):
        first.step(step)
    for before, after in zip(first.stages, second.stages, strict=True):
        after.load_state_dict(before.state_dict())
    for step in range(3, 6):
        assert all(map(torch.equal, first.step(step), second.step(step)))
    assert torch.equal(first.shared, second.shared)


def test_a_state_of_other_settings_is_refused() -> None:
    state = Workers(method="dense").stages[0].state_dict()
    with pytest.raises(ValueError, match="other settings"):
        Workers(method="rows").stages[0].load_state_dict(state)
    with pytest.raises(ValueError, match="other parameters"):
        Workers().stages[0].load_state_dict({**state, "names": ["c"]})


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_at_the_end_all_have_the_mean_and_nothing_is_kept(way: dict[str, Any]) -> None:
    workers = Workers(**way)
    begun = workers.step(0)
    own = [weights + workers.local(1, rank) for rank, weights in enumerate(begun)]
    ends = workers.each(lambda rank, stage: stage.finish(own[rank]))
    assert all(torch.equal(end, workers.shared) for end in ends)
    assert torch.allclose(workers.shared, sum(own) / 3, atol=1e-6)
    assert not any(stage.sum.kept().any() for stage in workers.stages)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_spoilt_weights_raise_on_all_and_change_nothing(way: dict[str, Any]) -> None:
    workers, twin = Workers(**way), Workers(**way)
    workers.step(0)
    twin.step(0)

    def spoilt(rank: int, stage: OuterStage) -> str:
        local = workers.local(1, rank)
        if rank == 1:
            local[40 * 300 + 4] = torch.inf
        try:
            stage.step(local)
        except NonFiniteError as error:
            return str(error)
        return "nothing was raised"

    assert all("rank 1: weights of a_bias" in said for said in workers.each(spoilt))
    assert all(map(torch.equal, workers.step(1), twin.step(1)))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"every": 0}, "every=0"),
        ({"rate": 0.0}, "outer_rate=0.0"),
        ({"momentum": 1.0}, "outer_momentum=1.0"),
        ({"decay": 1.1}, "decay=1.1"),
        ({"every": 4, "overlap": 4}, "for 0 to 3 steps"),
        ({"method": "topk", "bits": 1}, "one bit to a value is for method 'rows'"),
        ({"method": "rows", "bits": 3}, "3 bits to a value"),
        ({"method": "rows", "density": 0.0}, "share of 0"),
        ({"method": "best"}, "no sparsifier is called 'best'"),
    ],
)
def test_what_cannot_be_is_refused_in_words(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Workers(**options)


@pytest.mark.parametrize("size", [4, 20])
@pytest.mark.parametrize(
    "way",
    [
        {"method": "chunk-topk", "density": 1 / 64, "bits": 8},
        {"method": "rows", "density": 1 / 16},
        {"method": "dense", "bits": 8},
    ],
    ids=str,
)
def test_the_sum_is_as_long_as_one_workers_part(way: dict[str, Any], size: int) -> None:
    """Bytes down are at most 1.3 times those up, of 4 workers and of 20; without headers."""
    if size == 20 and way.get("bits") == 8:
        way = {**way, "bits": 16}
    workers = Workers(size, **way, shapes={"a.weight": (1600, 512), "a.bias": (400,)})
    for step in range(3):
        workers.step(step)
    assert workers.shared.any()
    assert workers.down < 1.3 * workers.up


def test_chunks_have_one_worker_each_that_chooses_in_turn() -> None:
    """So the union of all choices is as dense as asked for, and every worker comes to every chunk."""
    values = torch.randn(4 * 4096 + 600, generator=torch.Generator().manual_seed(1))
    model = torch.nn.Module()
    model.register_parameter("w", torch.nn.Parameter(values))
    span = spans_of(model)["w"]
    sparsifiers = [create_sparsifier("chunk-topk", SparsifierOptions(density=1 / 64)) for _ in range(4)]
    choosers = []
    for _ in range(4):
        sent = []
        for rank, one in enumerate(sparsifiers):
            one.join(rank, 4)
            sent.append(one.encode(values, span))
            runs = one.quota_of(span)
            assert runs is not None and torch.count_nonzero(sent[-1]) <= 4 * runs
            one.end_step()
        assert int((torch.stack(sent) != 0).sum(0).max()) == 1
        assert int(torch.count_nonzero(sum(sent))) == pytest.approx(values.numel() / 64, abs=4)
        first = torch.stack(sent)[:, :4096].view(4, 1024, 4)
        choosers.append(int(first.abs().sum((1, 2)).argmax()))
        norms = values[:4096].view(1024, 4).norm(dim=1)
        kept = first.sum(0).abs().sum(1) > 0
        assert int(kept.sum()) == 16 and norms[kept].min() > norms[~kept].max()
    assert sorted(choosers) == [0, 1, 2, 3]


def test_every_worker_chooses_in_every_step_in_a_model_of_few_chunks() -> None:
    """Of 7,353 values, not two chunks, each of several workers has a part; together it is the density."""
    shapes = [(70, 30), (70,), (70, 70), (70,), (3, 70), (3,)]
    model = torch.nn.ParameterList([torch.ones(shape) for shape in shapes])
    spans = spans_of(model)
    for workers in (3, 8, 20):
        sparsifiers = [
            create_sparsifier("chunk-topk", SparsifierOptions(density=0.1)) for _ in range(workers)
        ]
        for _ in range(workers):
            chosen = []
            for rank, one in enumerate(sparsifiers):
                one.join(rank, workers)
                parts = [one.encode(torch.ones(span.length), span) for span in spans.values()]
                chosen.append(torch.cat(parts))
                one.end_step()
            assert all(bool(mine.any()) for mine in chosen)
            assert int(torch.stack(chosen).sum(0).max()) == 1
            assert int(torch.stack(chosen).sum()) == pytest.approx(735, abs=24)
