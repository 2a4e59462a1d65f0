# SPDX-License-Identifier: Apache-2.0
"""The passes of C over parameters, against plain NumPy: the same bits, whatever the sizes and numbers."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from weir.host_agent.collectives.counts import CHUNK, CountLanes
from weir.host_agent.compression.updates.layout import ROW, UpdateLayout
from weir.host_agent.compression.updates.moments import LEAST
from weir.host_agent.compression.updates.parts import Parts
from weir.host_agent.compression.updates.rules import Adam, Rule, Sgd, Step
from weir.host_agent.compression.updates.samples import Piece, Sample

Floats = npt.NDArray[np.float32]

SIZES = st.lists(st.integers(1, 3 * ROW) | st.sampled_from([ROW, 2 * ROW, ROW + 1]), min_size=1, max_size=4)


def layout_of(sizes: list[int]) -> UpdateLayout:
    return UpdateLayout([str(index) for index in range(len(sizes))], [(size,) for size in sizes])


def numbers(rng: np.random.Generator, size: int) -> torch.Tensor:
    """Return float32 of many magnitudes, zeros of both signs among them."""
    found = rng.normal(size=size) * 10.0 ** rng.integers(-6, 3, size)
    found[rng.random(size) < 0.1] = rng.choice([0.0, -0.0])
    return torch.from_numpy(found.astype(np.float32))


def rows_of(layout: UpdateLayout, tensors: list[Any]) -> Floats:
    """Return tensors in rows; a copy."""
    return array(layout.gather(tensors, layout.empty()))


def array(tensor: torch.Tensor) -> npt.NDArray[Any]:
    return tensor.numpy().copy()


def per_row(layout: UpdateLayout, values: torch.Tensor) -> Floats:
    """Return a parameter's numbers for each of its rows, as a column of float32."""
    return array(values.double()[layout.owner].float())[:, None]


def of_parameters(rng: np.random.Generator, count: int, *choices: float) -> torch.Tensor:
    return torch.from_numpy(rng.choice(np.array(choices), count))


def same(found: torch.Tensor, expected: Floats) -> None:
    """Check bits, but for the sign of zero."""
    assert np.array_equal(array(found), expected)


class Case:
    """Parameters, gradients and a step, of random sizes and options."""

    def __init__(self, sizes: list[int], seed: int) -> None:
        self.rng = rng = np.random.default_rng(seed)
        self.layout = layout_of(sizes)
        self.count = count = len(sizes)
        self.values = [numbers(rng, size) for size in sizes]
        self.gradients = [numbers(rng, size) if rng.random() < 0.8 else None for size in sizes]
        self.shared = self.layout.gather([numbers(rng, size) for size in sizes], self.layout.empty())
        self.stepping = torch.from_numpy(rng.random(count) < 0.8)
        self.clip = float(rng.choice([1.0, 0.3]))

    def options(self, names: dict[str, tuple[float, ...]]) -> dict[str, torch.Tensor]:
        return {name: of_parameters(self.rng, self.count, *choices) for name, choices in names.items()}

    def update(self, rule: Rule, step: Step, sample: Sample | None, expected: Floats) -> None:
        """Make a step, and check what is pending then: ``expected`` for the parameters that made one."""
        parts = Parts(self.layout, self.values, self.gradients)
        before = rows_of(self.layout, self.values) - array(self.shared)
        sums = rule.update(parts, step, sample, self.shared)
        stepped = per_row(self.layout, step.stepping.float()) > 0
        pending = np.where(stepped, before + expected, before).astype(np.float32)
        same(parts.value_rows(None), pending)
        moved = torch.from_numpy(np.where(stepped, expected, 0)).double()
        magnitudes = torch.from_numpy(np.abs(pending)).double()
        for found, wanted in zip(sums, (magnitudes, magnitudes.square(), moved.square()), strict=True):
            torch.testing.assert_close(found, wanted.sum(1).float())
        rest = self.layout.gather([None] * self.count, self.layout.empty())
        Parts(self.layout, self.values).settle(
            torch.empty(0, dtype=torch.int64), rest[:0], rest[:0], self.shared, torch.ones(self.count)
        )

    def mean_gradient(self) -> Floats:
        return rows_of(self.layout, self.gradients) * np.float32(self.clip)


@given(SIZES, st.integers(0, 1 << 30), st.booleans())
@settings(max_examples=60, deadline=None)
def test_adam(sizes: list[int], seed: int, exact: bool) -> None:
    """Over some steps, in which parameters are sampled at different times."""
    case = Case(sizes, seed)
    place, rng, workers = case.layout, case.rng, 3
    given_options = {
        "lr": (0.01, 0.1),
        "beta1": (0.9, 0.5),
        "beta2": (0.999, 0.9),
        "eps": (1e-8, 1e-3),
        "weight_decay": (0.0, 0.1),
        "decoupled": (0.0, 1.0),
    }
    options = case.options(given_options)
    of = {name: per_row(place, values) for name, values in options.items()}
    rule, made = Adam(place, workers, exact=exact), torch.zeros(case.count, dtype=torch.int64)
    first, own, mean = (np.zeros((place.rows, ROW), np.float32) for _ in range(3))
    last, corrections = np.zeros(place.rows, np.int64), np.zeros((place.rows, 1), np.float32)
    owner = array(place.owner)
    for _ in range(3):
        made += case.stepping
        step = Step(options, case.stepping, made.clone(), case.clip)
        chosen = np.sort(rng.permutation(place.rows)[: place.rows if exact else rng.integers(place.rows + 1)])
        sampled = numbers(rng, len(chosen) * ROW).view(-1, ROW)
        shared = array(case.shared)
        pull = per_row(place, options["weight_decay"] * (1 - options["decoupled"]))
        taken = array(sampled) + pull[chosen] * shared[chosen]
        for row, square in zip(chosen, np.square(taken), strict=True):
            index = owner[row]
            if not case.stepping[index]:
                continue
            decay, now = float(options["beta2"][index]), int(made[index])
            kept = decay ** (now - last[row])
            mean[row] = mean[row] * np.float32(kept) + square * np.float32(1 - kept)
            last[row], corrections[row] = now, np.float32(1 / (1 - decay**now))
        gradient = case.mean_gradient() + pull * shared
        on = per_row(place, case.stepping.float())
        first += on * per_row(place, 1 - options["beta1"]) * (gradient - first)
        own += on * per_row(place, 1 - options["beta2"]) * (gradient * gradient - own)
        steps = made.clamp_min(1)
        whole = 1 / (1 - options["beta2"].pow(steps))
        least = np.where(
            corrections > 0, per_row(place, whole * LEAST**2 / workers), per_row(place, whole)
        ).astype(np.float32)
        roots = mean * corrections
        if not exact:
            roots = np.maximum(roots, own * least)
        rate = per_row(place, -options["lr"] / (1 - options["beta1"].pow(steps)))
        wanted = first / (np.sqrt(roots) + of["eps"]) * rate
        rows = torch.from_numpy(chosen)
        case.update(rule, step, Sample(rows, partial(_one_piece, rows, sampled)), wanted)
        case.stepping = torch.from_numpy(rng.random(case.count) < 0.8)


def _one_piece(rows: torch.Tensor, mean: torch.Tensor) -> Iterator[Piece]:
    yield rows, mean.clone()


@given(SIZES, st.integers(0, 1 << 30))
@settings(max_examples=60, deadline=None)
def test_sgd(sizes: list[int], seed: int) -> None:
    """Momentum, dampening and Nesterov's step, and the momentum of weight decay at the shared point."""
    case = Case(sizes, seed)
    place = case.layout
    options = case.options(
        {
            "lr": (0.01, 0.1),
            "momentum": (0.0, 0.9),
            "dampening": (0.0, 0.5),
            "nesterov": (0.0, 1.0),
            "weight_decay": (0.0, 0.1),
        }
    )
    of = {name: per_row(place, values) for name, values in options.items()}
    rule, made = Sgd(place), torch.zeros(case.count, dtype=torch.int64)
    momenta = [np.zeros((place.rows, ROW), np.float32) for _ in range(2)]
    for _ in range(3):
        made += case.stepping
        step = Step(options, case.stepping, made.clone(), case.clip)
        on = per_row(place, case.stepping.float()) > 0
        begins = (per_row(place, made.float()) == 1) | (of["momentum"] == 0)
        taken = np.where(begins, np.float32(1), per_row(place, 1 - options["dampening"]))

        def with_momentum(
            momentum: Floats, gradient: Floats, on: Floats = on, taken: Floats = taken
        ) -> Floats:
            momentum[:] = np.where(on, momentum * of["momentum"] + gradient * taken, momentum)
            return np.where(of["nesterov"] > 0, gradient + of["momentum"] * momentum, momentum)

        case.update(rule, step, None, with_momentum(momenta[0], case.mean_gradient()) * -of["lr"])
        point = array(case.shared)
        pull = with_momentum(momenta[1], point * of["weight_decay"])
        expected = np.where(on, point - pull * of["lr"], point)
        factors = rule.decay(Parts(place, case.values), step, case.shared)
        if options["weight_decay"].any():
            same(case.shared, expected)
        assert torch.equal(factors, torch.ones(case.count))
        case.stepping = torch.from_numpy(case.rng.random(case.count) < 0.8)


@given(SIZES, st.integers(0, 1 << 30), st.sampled_from([1, 2, 3, 4, 8, 40]), st.booleans())
@settings(max_examples=60, deadline=None)
def test_signs(sizes: list[int], seed: int, workers: int, whole: bool) -> None:
    """They are packed as counts, and their sums move the shared point; other rows decay alone."""
    case = Case(sizes, seed)
    place, rng = case.layout, case.rng
    chosen = np.sort(rng.permutation(place.rows)[: rng.integers(place.rows + 1)])
    rows = None if whole else torch.from_numpy(chosen)
    turn = np.arange(place.rows) if whole else chosen
    parts, form = Parts(place, case.values), CountLanes(workers)
    pending = rows_of(place, case.values)
    found = form.unpack(parts.signs(rows, form), len(turn) * ROW)
    assert np.array_equal(found.reshape(-1, ROW), ~np.signbit(pending[turn]))
    counts = rng.integers(0, workers + 1, (len(turn), ROW)).astype(np.uint8)
    scales = np.abs(array(numbers(rng, len(turn))))
    factors, point = of_parameters(rng, case.count, 1.0, 0.9).float(), array(case.shared)
    parts.settle_signs(
        rows, torch.from_numpy(scales), form.pack(counts.reshape(-1)), form, case.shared, factors
    )
    point *= per_row(place, factors)
    point[turn] += (2 * counts.astype(np.float32) - workers) * (scales / np.float32(workers))[:, None]
    pending[turn] -= np.copysign(scales[:, None], pending[turn])
    check_settled(case, point, pending)


@given(SIZES, st.integers(0, 1 << 30), st.booleans())
@settings(max_examples=40, deadline=None)
def test_values(sizes: list[int], seed: int, whole: bool) -> None:
    case = Case(sizes, seed)
    place, rng = case.layout, case.rng
    chosen = np.sort(rng.permutation(place.rows)[: rng.integers(place.rows + 1)])
    rows = None if whole else torch.from_numpy(chosen)
    turn = np.arange(place.rows) if whole else chosen
    parts, pending = Parts(place, case.values, case.gradients), rows_of(place, case.values)
    same(parts.value_rows(rows), pending[turn])
    same(parts.gradient_rows(torch.from_numpy(turn)), rows_of(place, case.gradients)[turn])
    own, mean = (numbers(rng, len(turn) * ROW).view(-1, ROW) for _ in range(2))
    factors, point = of_parameters(rng, case.count, 1.0, 0.9).float(), array(case.shared)
    parts.settle(rows, own, mean, case.shared, factors)
    point *= per_row(place, factors)
    point[turn] += array(mean)
    pending[turn] -= array(own)
    check_settled(case, point, pending)


def check_settled(case: Case, point: Floats, pending: Floats) -> None:
    """Check the shared point and the weights, and that nothing but parameters is touched."""
    real = np.arange(ROW) < array(case.layout.lengths)[:, None]
    same(case.shared, np.where(real, point, np.float32(0)))
    same(Parts(case.layout, case.values).value_rows(None), np.where(real, point + pending, np.float32(0)))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_is_found_wherever_it_is(bad: float) -> None:
    layout = layout_of([ROW + 3, 5, 700])
    for index, place in ((0, 0), (0, ROW + 2), (2, 699)):
        gradients = [torch.zeros(size) for size in layout.sizes]
        gradients[index][place] = bad
        found = Parts(layout, gradients, gradients).spoilt()
        assert found.tolist() == [index == each for each in range(3)]


@given(st.integers(0, 3 * CHUNK), st.sampled_from([1, 2, 3, 4, 5, 15, 30, 300, 65535]), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_counts_fill_the_fewest_lanes_of_each_chunk(count: int, most: int, seed: int) -> None:
    form = CountLanes(most)
    given_counts = np.random.default_rng(seed).integers(0, min(most, 255) + 1, count).astype(np.uint8)
    lanes = form.pack(given_counts)
    assert np.array_equal(form.unpack(lanes, count), given_counts)
    assert len(lanes) - -(-count // form.digits) <= count // CHUNK


def test_tensors_that_c_cannot_read_are_refused() -> None:
    layout = UpdateLayout(["a"], [(4, 6)])
    for wrong in (torch.zeros(6, 4).t(), torch.zeros(4, 6).double(), torch.zeros(4, 5)):
        with pytest.raises(ValueError, match="contiguous float32"):
            Parts(layout, [wrong])
