# SPDX-License-Identifier: Apache-2.0
"""DFS: what it chooses, what it learns from what all workers see, and what that costs on the wire."""

import copy
import functools
import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from weir.host_agent.compression.encodings.cost import Occupancy, exchange_cost
from weir.host_agent.compression.sparsifiers import (
    Dfs,
    Span,
    Sparsifier,
    SparsifierOptions,
    create_sparsifier,
)
from weir.host_agent.compression.sparsifiers.density import worthiest, worthiest_torch
from weir.host_agent.compression.sparsifiers.dfs_blocks import (
    copy_blocks,
    energies,
    energies_torch,
    enough,
    norms,
)
from weir.train.config import make_config
from weir.train.data import share
from weir.train.task import make_task, mean_loss

SIZES = (1, 2, 8, 64, 256)


def values(length: int, seed: int = 0) -> torch.Tensor:
    """Return values of very different magnitudes, no two the same."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(length, generator=generator) * torch.randn(length, generator=generator).exp()


def span(length: int, name: str = "weight") -> Span:
    return Span(name, 0, length, length)


def dfs(density: float = 0.01, energy: float | None = None, workers: int = 1) -> Dfs:
    made = Dfs(SparsifierOptions(density=density, energy=energy))
    made.join(0, workers)
    return made


def observed_runs(length: int, run: int, count: int, seed: int = 0) -> torch.Tensor:
    """Return a union of ``count`` runs of elements, each on a multiple of its length."""
    union = torch.zeros(length // run, run, dtype=torch.bool)
    union[torch.randperm(length // run, generator=torch.Generator().manual_seed(seed))[:count]] = True
    return union.view(-1)


def keep_worthy(vector: torch.Tensor, count: int) -> torch.Tensor:
    kept = torch.full_like(vector, math.nan)
    copy_blocks(vector, worthiest(vector, count), 1, kept)
    return kept


# ------------------------------------------------------------------------------------------------- the choice


@pytest.mark.parametrize(("length", "count"), [(7, 3), (1000, 10), (1000, 300), (40_003, 400)])
def test_what_is_kept_is_largest(length: int, count: int) -> None:
    vector = values(length)
    best = torch.topk(vector.abs(), count).indices
    expected = torch.zeros_like(vector)
    expected[best] = vector[best]
    assert torch.equal(keep_worthy(vector, count), expected)


def test_equal_values_are_counted_too() -> None:
    assert torch.count_nonzero(keep_worthy(torch.full((70_000,), -0.5), 700)) == 700


def test_less_is_kept_where_there_is_less() -> None:
    vector = torch.zeros(70_000)
    vector[::7000] = 1.0
    assert torch.equal(keep_worthy(vector, 700), vector)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("length", [1, 255, 4096, 5003])
def test_blocks_are_kept_bit_for_bit_or_left_whole(size: int, length: int) -> None:
    vector = values(length)
    lengths = norms(vector, size)
    assert lengths.numel() == math.ceil(length / size)
    expected = [float(block.double().norm()) for block in vector.split(size)]
    assert lengths.abs().tolist() == pytest.approx(expected, rel=1e-5)
    chosen = worthiest(lengths, max(1, lengths.numel() // 4))
    sent = torch.full_like(vector, math.nan)
    copy_blocks(vector, chosen, size, sent)
    for at, (block, original) in enumerate(zip(sent.split(size), vector.split(size), strict=True)):
        assert torch.equal(block, original if at in chosen else torch.zeros_like(original))


@pytest.mark.parametrize("size", SIZES)
@given(length=st.integers(1, 1100), seed=st.integers(0, 9))
def test_energies_are_the_same_natively_as_by_torch(size: int, length: int, seed: int) -> None:
    vector = values(length, seed)
    assert torch.allclose(energies(vector, size), energies_torch(vector, size), rtol=1e-5)
    vector[length // 2] = math.nan
    assert torch.equal(energies(vector, size).isnan(), energies_torch(vector, size).isnan())


def test_the_worthiest_are_found_where_a_sample_misleads() -> None:
    vector = torch.zeros(100_000)
    vector[1:3000] = 1.0 + torch.rand(2999)  # of which a sample of every eleventh value and more has few
    vector[::11] = 3.0
    assert torch.equal(worthiest(vector, 11_000), worthiest_torch(vector, 11_000))
    assert worthiest(torch.ones(50_000), 50_000).numel() == 50_000
    assert torch.equal(worthiest(torch.full((50_000,), math.nan), 10), torch.arange(50_000))


@pytest.mark.parametrize("scale", [1e-30, 1e-22, 1e22, 1e30])
def test_norms_neither_overflow_nor_vanish(scale: float) -> None:
    vector = values(4096).clamp(-100, 100)
    usual, scaled = norms(vector, 8), norms(vector * scale, 8)
    assert torch.allclose(scaled / scaled.max(), usual / usual.max(), rtol=1e-4)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_always_sent(size: int, bad: float) -> None:
    vector = values(70_001)
    vector[[0, 33_333, 70_000]] = bad
    method = probed(dfs(density=1e-4, workers=4), size, 70_001)
    sent = method.encode(vector, span(70_001))
    assert (~torch.isfinite(sent)).sum() == 3
    assert torch.count_nonzero(sent) <= 3 * size + 100


@pytest.mark.parametrize("budget", [0.0, 0.1, 0.5, 0.99])
@pytest.mark.parametrize("size", [1, 8])
def test_the_energy_that_waits_is_within_its_budget_and_uses_it_up(budget: float, size: int) -> None:
    vector = values(50_001)
    sent = probed(dfs(energy=budget), size, 50_001).encode(vector, span(50_001))
    waits = (vector - sent).double().square()
    allowed = budget * float(vector.double().square().sum())
    assert float(waits.sum()) <= allowed * (1 + 1e-5)
    least = min(float(block.square().sum()) for block in sent.double().split(size) if block.any())
    assert float(waits.sum()) + least > allowed * (1 - 1e-5)


def test_an_energy_of_nothing_needs_no_block() -> None:
    assert enough(torch.zeros(100), 0.5) == 0


# ------------------------------------------------------------------------------------------- what is learnt


def probed(method: Dfs, size: int, length: int) -> Dfs:
    """After a probe that found runs of ``size``, and one step more: it is not in a probe any more."""
    union = observed_runs(2**17, size, 20)
    method.observe(union.float(), union, span(length))
    method.end_step()
    while method.probing:
        method.end_step()
    assert method.mask_block_of(span(length)) == size
    return method


@pytest.mark.parametrize("run", SIZES)
def test_blocks_become_as_large_as_the_runs_in_the_union(run: int) -> None:
    method = dfs(workers=4)
    assert method.mask_block_of(span(2**17)) == 1, "single elements are chosen in a probe"
    probed(method, run, 2**17)
    method.step = 64
    assert method.mask_block_of(span(2**17)) == 1
    union = observed_runs(2**17, 1, 1300)
    method.observe(union.float(), union, span(2**17))
    method.end_step()
    assert method.mask_block_of(span(2**17)) == 1, "no runs any more"


def test_a_size_that_is_hardly_cheaper_is_not_taken() -> None:
    found = {}
    for before in (1, 2):
        method = probed(dfs(workers=4), before, 2**17)
        for scattered in range(0, 2000, 40):  # ever fewer pairs: from where on are single elements cheaper?
            method.step = 64
            union = observed_runs(2**17, 2, 1000) | observed_runs(2**17, 1, scattered, seed=1)
            method.observe(union.float(), union, span(2**17))
            method.end_step()
            if method.mask_block_of(span(2**17)) == 1:
                found[before] = scattered
                break
            method = probed(dfs(workers=4), before, 2**17)
    assert found[1] < found[2], "who has pairs keeps them for longer"


def test_a_step_that_is_repeated_is_learnt_once() -> None:
    once, twice = dfs(workers=4), dfs(workers=4)
    for method in (once, twice, twice):
        before = copy.deepcopy(method.state_dict())
        method.encode(values(2**17), span(2**17))
        union = observed_runs(2**17, 8, 30)
        method.observe(union.float(), union, span(2**17))
        assert method.state_dict() == before, "nothing counts before the step has ended"
    once.end_step()
    twice.end_step()
    assert once.state_dict() == twice.state_dict()


# ----------------------------------------------------------------------------- several workers, a training


def travelled(total: torch.Tensor, union: torch.Tensor, mask: int | None) -> torch.Tensor:
    """Return the blocks of a sum that the union has anything of."""
    size = mask or 1
    total, union = (
        torch.nn.functional.pad(one, (0, -one.numel() % size)).view(-1, size) for one in (total, union)
    )
    return total[union.any(dim=1)].view(-1)


@dataclass(frozen=True)
class Parameter:
    span: Span
    gradients: torch.Tensor  # float32[steps, workers, length]


@functools.cache
def recorded(workers: int = 16, steps: int = 20) -> list[Parameter]:
    """Return the gradients of a real training; fewer workers take those of the first ones."""
    config = make_config(model="mlp", workers=workers, seed=1)
    task = make_task(config)
    named = dict(task.model.named_parameters())
    optimizer = torch.optim.SGD(named.values(), lr=config.lr)
    data, seen = task.data.train, {name: list[torch.Tensor]() for name in named}
    batches = [
        batch
        for epoch in (1, 2)
        for batch in zip(
            *(share(len(data), rank, workers, config.batch_size, 1, epoch) for rank in range(workers)),
            strict=True,
        )
    ]
    for step in batches[:steps]:
        losses = (mean_loss(task.model(data.inputs[batch]), data.targets[batch]) for batch in step)
        own = [torch.autograd.grad(loss, list(named.values())) for loss in losses]
        for (name, parameter), parts in zip(named.items(), zip(*own, strict=True), strict=True):
            seen[name].append(torch.stack([part.flatten() for part in parts]))
            parameter.grad = seen[name][-1].mean(dim=0).view_as(parameter)
        optimizer.step()
    lengths = [parameter.numel() for parameter in named.values()]
    starts = np.cumsum([0, *lengths])
    return [
        Parameter(Span(name, int(start), length, sum(lengths)), torch.stack(seen[name]))
        for name, start, length in zip(named, starts, lengths, strict=False)
    ]


class Group:
    """Workers with the same method and residuals of their own, on recorded gradients."""

    def __init__(self, name: str, density: float, workers: int = 4) -> None:
        options = SparsifierOptions(density=density)
        self.methods: list[Sparsifier] = [create_sparsifier(name, options) for _ in range(workers)]
        for rank, method in enumerate(self.methods):
            method.join(rank, workers)
        self.residuals = {p.span.name: torch.zeros(workers, p.span.length) for p in recorded()}
        self.travelled, self.bytes = 0, 0

    def step(self, at: int, *, count: bool = False) -> None:
        parts, masks, first = [], [], self.methods[0]
        self.travelled = 0
        for parameter in recorded():
            where, residual = parameter.span, self.residuals[parameter.span.name]
            gradients = parameter.gradients[at, : len(residual)] + residual
            sent = torch.stack([m.encode(g, where) for m, g in zip(self.methods, gradients, strict=True)])
            size = {method.mask_block_of(where) for method in self.methods}
            assert len(size) == 1
            mask = size.pop()
            chosen, union = sent != 0, (sent != 0).any(dim=0)
            if first.fills_union:
                assert mask
                blocks = torch.nn.functional.pad(union, (0, -where.length % mask)).view(-1, mask).any(dim=1)
                union = blocks.repeat_interleave(mask)[: where.length]
                sent = gradients * union
            self.residuals[where.name] = gradients - sent
            self.travelled += int(union.sum())
            for method in self.methods:
                method.observe(sent.sum(dim=0), union, where)
                method.take_count(int(union.sum()), where)
                method.take_note(method.measure(travelled(sent.sum(dim=0), union, mask), where), where)
            parts.append(Occupancy(chosen.numpy()))
            masks.append(mask)
        for method in self.methods:
            method.end_step()
        if count:
            self.bytes += min(self._cost(parts, fixed, masks) for fixed in (None, 1, 2, 4, 8, 16, 32, 256))

    def _cost(self, parts: list[Occupancy], fixed: int | None, masks: list[int | None]) -> int:
        """In the one encoding it has, or the best of all."""
        chosen = masks if self.methods[0].fills_union else [fixed] * len(masks)
        if self.methods[0].name == "omnireduce":
            chosen = [None] * len(masks)
        return min(
            exchange_cost(
                parts, chosen, packet_block=b, levels=k, slots=16, fills_union=self.methods[0].fills_union
            ).total
            for b in (32, 256)
            for k in (1, 2)
        )


@pytest.mark.parametrize(("workers", "density"), [(2, 0.05), (4, 0.01), (8, 0.05), (16, 0.02)])
def test_the_density_is_of_what_travels(workers: int, density: float) -> None:
    group, total = Group("dfs", density, workers), recorded()[0].span.total
    shares = []
    for at in range(20):
        group.step(at)
        shares.append(group.travelled / total)
    assert np.mean(shares[4:]) == pytest.approx(density, rel=0.05)
    assert max(shares[4:]) < 1.25 * density


def test_parameters_with_larger_gradients_get_more_of_the_density() -> None:
    generator = torch.Generator().manual_seed(1)
    spans = [Span("small", 0, 20_000, 40_000), Span("large", 20_000, 20_000, 40_000)]
    method = dfs(density=0.05)
    for _ in range(12):
        for place, scale in zip(spans, (1.0, 1.5), strict=True):
            sent = method.encode(scale * torch.randn(place.length, generator=generator), place)
            method.observe(sent, sent != 0, place)
            method.take_count(int(torch.count_nonzero(sent)), place)
            method.take_note(method.measure(travelled(sent, sent != 0, 1), place), place)
        method.end_step()
    small, large = (method.share_of(place) for place in spans)
    assert large > 3 * small, "as normal variables are: the same magnitude is reached by this many more"
    assert small + large == pytest.approx(2 * 0.05, rel=0.02), "together as before"
    equal = Dfs(SparsifierOptions(density=0.05, leave_out=("portions",)))
    equal.load_state_dict({**method.state_dict(), "known": {}})
    assert {equal.share_of(place) for place in spans} == {0.05}


def test_parts_that_there_are_not_cannot_be_left_out() -> None:
    with pytest.raises(ValueError, match="dfs has no part runs: it has portions, lists, sizes"):
        Dfs(SparsifierOptions(leave_out=("runs", "lists")))


@pytest.mark.parametrize("density", [0.01, 0.05])
def test_it_costs_less_than_the_largest_elements_and_than_omnireduce(density: float) -> None:
    costs = {}
    for name in ("dfs", "topk", "omnireduce"):
        group = Group(name, density)
        for at in range(8):
            group.step(at, count=at >= 6)
        costs[name] = group.bytes
    assert costs["dfs"] < 0.6 * costs["topk"]
    assert costs["dfs"] < 0.9 * costs["omnireduce"]


def test_all_workers_know_the_same_and_go_on_from_it_bit_for_bit() -> None:
    group = Group("dfs", 0.02)
    for at in range(5):
        group.step(at)
    first, *others = [method.state_dict() for method in group.methods]
    assert all(other == first for other in others)
    resumed = Group("dfs", 0.02)
    resumed.residuals = copy.deepcopy(group.residuals)
    for method in resumed.methods:
        method.load_state_dict(copy.deepcopy(first))
    for at in range(5, 9):
        group.step(at)
        resumed.step(at)
    assert all(torch.equal(group.residuals[name], resumed.residuals[name]) for name in group.residuals)


def test_a_group_of_another_size_goes_on_with_it() -> None:
    group = Group("dfs", 0.02)
    for at in range(4):
        group.step(at)
    alone = dfs(density=0.02, workers=1)
    alone.load_state_dict(group.methods[0].state_dict())
    sent = sum(int(torch.count_nonzero(alone.encode(values(p.span.length), p.span))) for p in recorded())
    assert sent == pytest.approx(0.02 * recorded()[0].span.total, rel=0.05)
