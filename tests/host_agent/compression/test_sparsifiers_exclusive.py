# SPDX-License-Identifier: Apache-2.0
"""ExDyna, MiCRO, DEFT over whole trainings: no build-up, the density asked for, work divided evenly."""

import io
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from tests.harness.effort import effort
from tests.host_agent.compression.sparsified_job import Job, Step, spans_of
from weir.host_agent.compression.sparsifiers import Span, Sparsifier, create_sparsifier
from weir.host_agent.compression.sparsifiers.exclusive import Exclusive, corrected_factor, published_factor

SIZES = [4000, 64, 20000, 9000, 15000]
EXCLUSIVE = ["exdyna", "exdyna-published", "micro", "micro-published", "deft"]
Gradients = Callable[[int], list[torch.Tensor]]


def heavy_tailed(workers: int, sizes: Sequence[int] = SIZES, fading: float = 0.0) -> Gradients:
    """Gradients like those of a training: layers and elements differ by orders of magnitude, workers have a
    wandering part in common, the rest is noise; all shrinks by ``fading`` in a step."""
    generator = torch.Generator().manual_seed(workers)
    layers = [10.0 ** (-2 - number % 3 / 2) for number in range(len(sizes))]
    scale = torch.cat([torch.full((size,), each) for size, each in zip(sizes, layers, strict=True)])
    scale *= torch.randn(len(scale), generator=generator).exp() / workers
    common = torch.randn(len(scale), generator=generator)

    def gradients(step: int) -> list[torch.Tensor]:
        common.mul_(0.98).add_(torch.randn(len(scale), generator=generator), alpha=0.2)
        noise = torch.randn(workers, len(scale), generator=generator)
        return list(noise.add_(common, alpha=0.3).mul_(scale * math.exp(-fading * step)))

    return gradients


def trained(name: str, workers: int, steps: int, density: float, fading: float = 0.0) -> list[Step]:
    job = Job(name, workers, spans_of(SIZES), alone=True, density=density)
    gradients = heavy_tailed(workers, fading=fading)
    return [job.step(gradients(step)) for step in range(steps)]


def mean_density(steps: list[Step]) -> float:
    return statistics.fmean(step.density for step in steps)


@pytest.mark.parametrize("workers", [4, *effort([], [8])])
def test_exdyna_holds_density_and_balance_without_build_up(workers: int) -> None:
    steps = trained("exdyna", workers, 300, 0.05, fading=0.002)
    assert all(int(step.union.sum()) == sum(step.counts) for step in steps)
    assert mean_density(steps) == pytest.approx(0.05, rel=0.05)
    for start in range(100, 300, 40):
        assert mean_density(steps[start : start + 40]) == pytest.approx(0.05, rel=0.05)
    assert statistics.fmean(step.imbalance for step in steps[100:]) < 1.1


def test_micro_holds_density_but_not_balance() -> None:
    steps = trained("micro", 4, 160, 0.05)
    assert all(int(step.union.sum()) == sum(step.counts) for step in steps)
    assert mean_density(steps) == pytest.approx(0.05, rel=0.05)
    assert statistics.fmean(step.imbalance for step in steps[100:]) > 1.5


@pytest.mark.parametrize(("factor", "settled"), [(published_factor, 0.93), (corrected_factor, 1.0)])
@pytest.mark.parametrize("density", [0.001, 0.05])
def test_where_a_threshold_settles(factor: Callable[[float], float], settled: float, density: float) -> None:
    """On Gaussian gradients that do not change."""
    threshold, ratios = 2.0, []
    for _ in range(1500):
        ratios.append(math.erfc(threshold / math.sqrt(2)) / density)
        threshold *= factor(ratios[-1])
    assert statistics.fmean(ratios[1000:]) == pytest.approx(settled, abs=0.015)


def as_published(
    vectors: list[torch.Tensor], state: dict[str, Any], density: float, blocks: int
) -> torch.Tensor:
    """Return one step of the authors' code on whole vectors, in plain Python; ``blocks`` 0: MiCRO. Changes
    state.
    """
    workers, length, step = len(vectors), len(vectors[0]), state["step"]
    pieces = blocks or workers
    if step == 0:
        part = [pieces // workers + (n < pieces % workers) for n in range(workers)]
        state.update(part=part, threshold=1 / (2 * math.sqrt(density * length)) / workers)
    else:
        counts, part, mean = list(state["counts"]), state["part"], state["sent"] / workers
        for n in range(workers - 1) if blocks else ():
            first, second = counts[n] / mean, counts[n + 1] / mean
            moved = 1 if first < 0.95238 and second > 1.05 else -1 if first > 1.05 and second < 0.95238 else 0
            if moved and part[n + (moved > 0)] - 1 >= blocks / (4 * workers):
                part[n], part[n + 1] = part[n] + moved, part[n + 1] - moved
                counts[n] += moved * state["sent"] / blocks
                counts[n + 1] -= moved * state["sent"] / blocks
        ratio = state["sent"] / (density * length)
        state["threshold"] *= 1.005 if ratio > 1.1 else 1.00125 if ratio > 0.909 else 0.995
    edges = [math.ceil(sum(state["part"][:n]) * length / pieces) for n in range(workers + 1)]
    edges = edges if blocks else [n * length // workers for n in range(workers + 1)]
    union, state["counts"] = torch.zeros(length, dtype=torch.bool), [0] * workers
    for rank, vector in enumerate(vectors):
        own = (step + rank) % workers
        for element in range(edges[own], edges[own + 1]):
            if abs(float(vector[element])) >= np.float32(state["threshold"]):
                union[element] = True
                state["counts"][own] += 1
    state.update(step=step + 1, sent=sum(state["counts"]))
    return union


@pytest.mark.parametrize(("name", "blocks"), [("exdyna-published", 1024), ("micro-published", 0)])
def test_the_published_rules_choose_what_the_authors_code_does(name: str, blocks: int) -> None:
    sizes, workers, state = [700, 64, 3000], 3, {"step": 0}
    job, gradients = Job(name, workers, spans_of(sizes), density=0.05), heavy_tailed(workers, sizes)
    residuals = [torch.zeros(sum(sizes))] * workers
    for step in range(12):
        fresh = [100 * gradient for gradient in gradients(step)]
        vectors = [kept + new for kept, new in zip(residuals, fresh, strict=True)]
        union = as_published(vectors, state, 0.05, blocks)
        residuals = [torch.where(union, 0.0, vector) for vector in vectors]
        assert torch.equal(job.step(fresh).union, union)
        assert 0 < int(union.sum()) < sum(sizes)


@pytest.mark.parametrize("name", ["exdyna", "micro"])
def test_a_worker_chooses_what_reaches_the_threshold_in_its_partition(name: str) -> None:
    job, gradients = Job(name, 3, spans_of(SIZES), density=0.05), heavy_tailed(3)
    job.step(gradients(0))
    for number in range(1, 6):
        fresh, first = gradients(number), job.sparsifiers[0]
        assert isinstance(first, Exclusive)
        threshold, edges = first.threshold, first.edges(sum(SIZES))
        assert threshold is not None and edges[0] == 0 and edges[-1] == sum(SIZES)
        vectors = [kept + new for kept, new in zip(job.residuals, fresh, strict=True)]
        step = job.step(fresh)
        for rank, (vector, chosen) in enumerate(zip(vectors, step.chosen, strict=True)):
            own = (number + rank) % 3
            expected = vector.abs() >= threshold
            expected[: edges[own]] = False
            expected[edges[own + 1] :] = False
            assert torch.equal(chosen, expected)


@pytest.mark.parametrize("name", EXCLUSIVE)
def test_all_workers_know_the_same_whatever_the_order_of_parameters(name: str) -> None:
    job, alone = (Job(name, 3, spans_of(SIZES), alone=alone, density=0.05) for alone in (False, True))
    gradients = heavy_tailed(3)
    for number in range(6):
        fresh = gradients(number)
        step, other = job.step(fresh), alone.step(fresh, order=range(len(SIZES)))
        assert torch.equal(step.total, other.total)
        assert int(step.union.sum()) == sum(step.counts)
    states = [saved(sparsifier) for sparsifier in (*job.sparsifiers, *alone.sparsifiers)]
    assert all(state == states[0] for state in states)


def saved(sparsifier: Sparsifier) -> bytes:
    file = io.BytesIO()
    torch.save(sparsifier.state_dict(), file)
    return file.getvalue()


@pytest.mark.parametrize("name", EXCLUSIVE)
def test_a_saved_state_goes_on_bit_for_bit_and_in_a_smaller_group(name: str) -> None:
    straight, gradients = Job(name, 4, spans_of(SIZES), density=0.05), heavy_tailed(4)
    for number in range(5):
        straight.step(gradients(number))
    again, fewer = (Job(name, workers, spans_of(SIZES), density=0.05) for workers in (4, 3))
    for job in (again, fewer):
        job.residuals = [residual.clone() for residual in straight.residuals[: job.workers]]
        for sparsifier in job.sparsifiers:
            sparsifier.load_state_dict(torch.load(io.BytesIO(saved(straight.sparsifiers[1]))))
    for number in range(5, 9):
        fresh = gradients(number)
        assert torch.equal(straight.step(fresh).total, again.step(fresh).total)
        step = fewer.step(fresh[:3])
        assert int(step.union.sum()) == sum(step.counts) > 0


@pytest.mark.parametrize("name", EXCLUSIVE)
def test_a_step_that_failed_may_be_repeated(name: str) -> None:
    once, twice = (Job(name, 2, spans_of(SIZES), alone=True, density=0.05) for _ in range(2))
    gradients = heavy_tailed(2)
    for number in range(4):
        fresh = gradients(number)
        for sparsifier in twice.sparsifiers:
            for span in twice.spans[2:]:
                sum_of_other = torch.full((span.length,), 7.0)
                sparsifier.encode(fresh[0][span.start : span.start + span.length], span)
                sparsifier.observe(sum_of_other, sum_of_other != 0, span)
        assert torch.equal(once.step(fresh).total, twice.step(fresh).total)


def test_exdyna_follows_a_warm_up_exactly_and_takes_over_from_it() -> None:
    job = Job("exdyna", 4, spans_of(SIZES), alone=True, density=0.02, warmup_steps=10)
    gradients = heavy_tailed(4)
    steps = [job.step(gradients(number)) for number in range(60)]
    for number, step in enumerate(steps[:10]):
        assert step.density == pytest.approx(0.25 * 0.08 ** (number / 10), rel=0.02)
    assert mean_density(steps[10:]) == pytest.approx(0.02, rel=0.2)


def test_deft_sends_the_density_and_deals_layers_whole() -> None:
    job, gradients = Job("deft", 4, spans_of(SIZES), alone=True, density=0.02), heavy_tailed(4)
    steps = [job.step(gradients(number)) for number in range(12)]
    for step in steps:
        assert int(step.union.sum()) == pytest.approx(0.02 * sum(SIZES), abs=len(SIZES) + 4)
    for step in steps[1:]:
        # 20000 and 15000 are more than a fourth of the model and cut in four; others go to one each.
        for span in (job.spans[0], job.spans[3]):
            owners = [int(c[span.start : span.start + span.length].sum()) > 0 for c in step.chosen]
            assert sum(owners) == 1
    assert len({tuple(step.counts) for step in steps[1:]}) > 1
    shares = torch.stack([step.union for step in steps[4:]]).float().mean(0)
    dense, sparse = (shares[s.start : s.start + s.length].mean() for s in (job.spans[0], job.spans[2]))
    assert dense > 2 * sparse  # its elements are ten times as large


def test_deft_chooses_the_largest_of_each_piece() -> None:
    job, gradients = Job("deft", 3, spans_of(SIZES), density=0.02), heavy_tailed(3)
    for number in range(3):
        fresh = gradients(number)
        vectors = [kept + new for kept, new in zip(job.residuals, fresh, strict=True)]
        step = job.step(fresh)
        for vector, chosen in zip(vectors, step.chosen, strict=True):
            piece = slice(0, job.spans[0].length) if number else slice(0, 0)
            mine, rest = vector[piece][chosen[piece]].abs(), vector[piece][~chosen[piece]].abs()
            assert not mine.numel() or mine.min() >= rest.max()


@pytest.mark.parametrize("name", EXCLUSIVE)
def test_what_is_not_finite_is_sent_by_whoever_has_it(name: str) -> None:
    for rank in range(3):
        sparsifier = create_sparsifier(name)
        sparsifier.join(rank, 3)
        values = torch.full((3000,), 1e-9)
        values[[5, 1500, 2990]] = torch.tensor([math.inf, math.nan, -math.inf])
        sent = sparsifier.encode(values, Span("weight", 0, 3000, 3000))
        assert not sent[[5, 1500, 2990]].isfinite().any()
