# SPDX-License-Identifier: Apache-2.0
"""Compressed updates over workers in one process: dense at full width, conservation, one shared point."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from tests.harness.effort import effort
from weir.host_agent.collectives import InMemoryGroup, NonFiniteError, counts
from weir.host_agent.collectives.counts import CountLanes
from weir.host_agent.compression.updates import samples
from weir.host_agent.compression.updates import stage as updates_stage
from weir.host_agent.compression.updates.delivery import Pending, Signs
from weir.host_agent.compression.updates.layout import ROW, UpdateLayout
from weir.host_agent.compression.updates.moments import MeanSquares
from weir.host_agent.compression.updates.parts import Parts
from weir.host_agent.compression.updates.rotation import Rotation
from weir.host_agent.compression.updates.rules import Adam, Options, Step
from weir.host_agent.compression.updates.samples import Sample, Sampler, squared_norm, steps_of
from weir.host_agent.compression.updates.stage import UpdateSettings, UpdateStage

SHAPES = [(40, 30), (30,), (7,), (300,)]
NAMES = ["a", "b", "c", "d"]
EXACT = UpdateSettings(bits=32, sample_share=1.0, sample_bits=32)

ADAMW = {"lr": 0.01, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.1, "decoupled": 1.0}
SGD = {"lr": 0.01, "momentum": 0.9, "dampening": 0.0, "nesterov": 1.0, "weight_decay": 0.1}


def layout() -> UpdateLayout:
    return UpdateLayout(NAMES, SHAPES)


def options(values: dict[str, float], **by_parameter: list[float]) -> Options:
    same = {name: [value] * len(NAMES) for name, value in values.items()}
    return {name: torch.tensor(each, dtype=torch.float64) for name, each in {**same, **by_parameter}.items()}


def gradients(step: int, worker: int, scale: float = 1.0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + worker)
    return [scale * (torch.randn(shape, generator=generator) + 0.3) for shape in SHAPES]


@dataclass
class Workers:
    """Workers of one process in compressed training."""

    size: int
    settings: UpdateSettings
    rule: Any = "adam"
    stages: list[UpdateStage] = field(default_factory=list)
    parameters: list[list[torch.Tensor]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.group = InMemoryGroup(self.size)
        torch.manual_seed(0)
        start = [torch.randn(shape) for shape in SHAPES]
        self.parameters = [[one.clone() for one in start] for _ in range(self.size)]
        self.stages = [UpdateStage(layout(), self.settings, self.rule, self.size) for _ in range(self.size)]
        for stage in self.stages:
            stage.begin_from(start)

    def step(self, given: Callable[[int], list[Any]], using: Options) -> None:
        def one(worker: int) -> None:
            own = given(worker)
            self.stages[worker].step(
                self.group.communicators[worker],
                self.parameters[worker],
                own,
                using,
            )

        self.group.run([lambda worker=worker: one(worker) for worker in range(self.size)])

    def finish(self) -> None:
        self.group.run(
            [
                lambda worker=worker: self.stages[worker].finish(
                    self.group.communicators[worker], self.parameters[worker]
                )
                for worker in range(self.size)
            ]
        )

    @property
    def weights(self) -> list[torch.Tensor]:
        """Copies of all workers' weights, in rows."""
        return [layout().gather(own, layout().empty()) for own in self.parameters]

    @property
    def shared(self) -> torch.Tensor:
        """The shared point, which is checked to be the same on all workers."""
        for stage in self.stages[1:]:
            assert torch.equal(stage.shared, self.stages[0].shared)
        return self.stages[0].shared

    def pending(self) -> list[torch.Tensor]:
        return [weights - self.shared for weights in self.weights]


def parameters() -> list[torch.nn.Parameter]:
    torch.manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape)) for shape in SHAPES]


def dense_adamw(found: list[torch.nn.Parameter], **more: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(found, lr=0.01, weight_decay=0.1, **more)


def dense_adam(found: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(found, lr=0.01, weight_decay=0.1)


def dense_nesterov(found: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(found, lr=0.01, momentum=0.9, nesterov=True, weight_decay=0.1)


def dense_damped(found: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(found, lr=0.01, momentum=0.9, dampening=0.5, weight_decay=0.1)


def dense_plain(found: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(found, lr=0.01, weight_decay=0.1)


VARIANTS = {
    "adamw": ("adam", ADAMW, dense_adamw),
    "adam": ("adam", {**ADAMW, "decoupled": 0.0}, dense_adam),
    "nesterov": ("sgd", SGD, dense_nesterov),
    "damped": ("sgd", {**SGD, "nesterov": 0.0, "dampening": 0.5}, dense_damped),
    "plain": ("sgd", {**SGD, "nesterov": 0.0, "momentum": 0.0}, dense_plain),
}


def train_densely(
    optimizer: torch.optim.Optimizer, size: int, steps: int, clip: float | None = None
) -> torch.Tensor:
    found = optimizer.param_groups[0]["params"]
    for step in range(steps):
        for parameter, *each in zip(found, *(gradients(step, worker) for worker in range(size)), strict=True):
            parameter.grad = torch.stack(each).mean(0)
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(found, clip)
        optimizer.step()
    return layout().gather(found, layout().empty())


@pytest.mark.parametrize("clip", [None, 3.0])
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("variant", VARIANTS)
def test_everything_at_full_width_is_the_dense_optimizer(variant: str, size: int, clip: float | None) -> None:
    """The stated rounding: of float32, and of 31-bit fixed point of a row's largest value."""
    rule, values, make = VARIANTS[variant]
    settings = UpdateSettings(bits=32, sample_share=1.0, sample_bits=32, clip_norm=clip)
    workers = Workers(size, settings, rule)
    for step in range(20):
        workers.step(lambda worker, step=step: gradients(step, worker), options(values))
    dense = train_densely(make(parameters()), size, 20, clip)
    torch.testing.assert_close(workers.shared, dense, rtol=0, atol=3e-6)
    assert (workers.shared - workers.weights[0]).abs().max() < 1e-7


@pytest.mark.parametrize("rule", ["adam", "sgd"])
@pytest.mark.parametrize(
    "settings",
    [UpdateSettings(), UpdateSettings(share=0.3), UpdateSettings(bits=8), UpdateSettings(bits=16, share=0.5)],
    ids=str,
)
def test_what_was_wanted_was_delivered_or_is_pending(settings: UpdateSettings, rule: Any) -> None:
    """Worker by worker: its own steps, which a twin that sends nothing takes, are delivered or pending.

    The shared point is the start and the mean of all that was delivered. So the mean of the workers' weights
    is where their mean step leads: to the rounding that ``stage`` states.
    """
    steps, size = 30, 3
    values = {**(ADAMW if rule == "adam" else SGD), "weight_decay": 0.0}
    workers, start = Workers(size, settings, rule), Workers(1, settings).shared.clone()
    wanted = [torch.zeros(start.shape, dtype=torch.float64) for _ in range(size)]
    for stage, total in zip(workers.stages, wanted, strict=True):
        watch(stage, total)
    for step in range(steps):
        workers.step(lambda worker, step=step: gradients(step, worker), options(values))
    pending = torch.stack(workers.pending()).double().mean(0)
    moved = workers.shared.double() - start.double()
    bound = 2 * steps * 2**-24 * max(float(weights.abs().max()) for weights in workers.weights)
    assert (torch.stack(wanted).mean(0) - moved - pending).abs().max() <= bound
    assert pending.abs().max() > 5 * bound  # so much waits that it is worth asking


def watch(stage: UpdateStage, total: torch.Tensor) -> None:
    """Add up the steps of a stage's rule."""
    rule: Any = stage._rule
    update = rule.update

    def watched(parts: Parts, step: Any, sample: Any, shared: torch.Tensor) -> torch.Tensor:
        before = parts.value_rows(None) - shared
        norms: torch.Tensor = update(parts, step, sample, shared)
        total.add_(parts.value_rows(None).double() - before.double())
        return norms

    rule.update = watched


@pytest.mark.parametrize("at_once", [3, 9])  # of 9 rows
@pytest.mark.parametrize("settings", [UpdateSettings(), UpdateSettings(share=0.3, clip_norm=1.0)], ids=str)
def test_after_the_last_delivery_all_weights_are_the_same(
    settings: UpdateSettings, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(updates_stage, "_AT_ONCE", at_once)
    workers = Workers(3, settings)
    for step in range(10):
        workers.step(lambda worker, step=step: gradients(step, worker), options(ADAMW))
    assert not torch.equal(workers.weights[0], workers.weights[1])
    mean = torch.stack(workers.weights).mean(0)
    workers.finish()
    assert all(torch.equal(weights, workers.shared) for weights in workers.weights)
    torch.testing.assert_close(workers.shared, mean, rtol=0, atol=1e-6)


def test_gradients_are_computed_ahead_of_the_wire() -> None:
    """A worker that has something pending has it in its weights: they are not the shared point."""
    workers = Workers(2, UpdateSettings(share=0.05))
    before = workers.weights
    workers.step(lambda worker: gradients(0, worker), options({**ADAMW, "weight_decay": 0.0}))
    for weights, earlier in zip(workers.weights, before, strict=True):
        moved = (weights != earlier).float().mean() / (layout().values / weights.numel())
        assert moved > 0.99  # everywhere, though a twentieth was sent
    sent = (workers.shared != before[0]).any(1).sum()
    assert sent == 1  # of 9 rows


def test_decay_is_of_the_shared_point_and_does_not_wait() -> None:
    """Without gradients nothing becomes pending, however little is sent, and no bits are spent on decay."""
    workers = Workers(2, UpdateSettings(share=0.01))
    start = workers.shared.clone()
    none = [torch.zeros(shape) for shape in SHAPES]
    for _ in range(5):
        workers.step(lambda _: none, options(ADAMW))
    torch.testing.assert_close(workers.shared, start * (1 - 0.01 * 0.1) ** 5, rtol=1e-6, atol=0)
    assert torch.equal(workers.weights[0], workers.shared)


def test_decay_leaves_what_is_pending_alone() -> None:
    workers, without = Workers(2, UpdateSettings(share=0.2)), Workers(2, UpdateSettings(share=0.2))
    for step in range(3):
        workers.step(lambda worker, step=step: gradients(step, worker), options(ADAMW))
        without.step(
            lambda worker, step=step: gradients(step, worker), options({**ADAMW, "weight_decay": 0.0})
        )
    assert (workers.shared - without.shared).abs().max() > 1e-4
    torch.testing.assert_close(workers.pending(), without.pending(), rtol=0, atol=2e-6)


def test_all_workers_quantise_by_one_scale_the_mean_of_theirs() -> None:
    """Of workers with magnitudes 1 and 3 the scale is 2 on both; opposite signs cancel."""
    group, place = InMemoryGroup(2), UpdateLayout(["a"], [(ROW,)])
    wanted = [torch.ones(ROW), 3 * torch.ones(ROW)]
    wanted[1][ROW // 2 :] *= -1
    points = [place.empty() for _ in wanted]

    def deliver(rank: int) -> None:
        norms = wanted[rank].abs().sum().view(1)
        pending = Pending(Parts(place, [wanted[rank]]), norms, None, points[rank], torch.ones(1))
        Signs().deliver(group.communicators[rank], pending)

    group.run([lambda rank=rank: deliver(rank) for rank in (0, 1)])
    half = torch.ones(ROW // 2)
    for point in points:
        assert torch.equal(point.flatten(), torch.cat([2 * half, 0 * half]))
    # Weights are the shared point and the rest of what was wanted: 1 - 2, 3 - 2 and -3 + 2.
    assert torch.equal(wanted[0], torch.cat([half, -half]))
    assert torch.equal(wanted[1], torch.cat([3 * half, -half]))


def whole(sample: Sample) -> torch.Tensor:
    """Return the mean gradient in all rows of a sample."""
    return torch.cat([mean for _, mean in sample.pieces()])


@pytest.mark.parametrize("share", [1.0, 0.6])
def test_pieces_of_a_sample_do_not_change_a_bit(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample is read a few rows at a time, each time the same, and scaled at most at the end."""
    group, place = InMemoryGroup(2), UpdateLayout(["weight", "bias"], [(331, 256), (7,)])
    given = [[torch.randn(shape) for shape in ((331, 256), (7,))] for _ in range(2)]

    def sampled(rows: int) -> Sample:
        monkeypatch.setattr(samples, "_PIECE_ROWS", rows)
        samplers = [Sampler(Rotation(place.rows, share, 0, 0), 4, 3, noise=True) for _ in range(2)]
        parts = [Parts(place, each, each) for each in given]
        found = group.run(
            [
                lambda rank=rank: samplers[rank].sample(group.communicators[rank], parts[rank], 5)
                for rank in range(2)
            ]
        )
        return found[0]

    once, often = sampled(100_000), sampled(64)
    assert [len(rows) for rows, _ in once.pieces()] == [len(once.rows)]
    sizes = [len(rows) for rows, _ in often.pieces()]
    assert max(sizes) == 64 and sum(sizes) == len(once.rows)
    assert torch.equal(whole(once), whole(often)) and torch.equal(whole(often), whole(often))
    assert once.noise == pytest.approx(often.noise, rel=1e-6)
    assert squared_norm(often, place) == pytest.approx(squared_norm(once, place), rel=1e-12)
    assert torch.equal(whole(often.scaled(0.3)), whole(once) * 0.3)


@pytest.mark.parametrize("size", [1, 3, 4, *effort([], [8])])
def test_samples_are_the_mean_gradient_on_average(size: int) -> None:
    """Over many roundings; and the squared norm that is estimated leaves the roundings out."""
    group, place = InMemoryGroup(size), layout()
    given = [gradients(0, worker) for worker in range(size)]
    own = [place.gather(each, place.empty()) for each in given]
    parts = [Parts(place, each, each) for each in given]
    mean = torch.stack(own).mean(0)
    samplers = [Sampler(Rotation(place.rows, 1.0, 0), 4, 3, noise=True) for _ in range(size)]
    total, norms, tries = torch.zeros_like(mean), [], 200
    for step in range(tries):
        found = group.run(
            [
                lambda rank=rank, step=step: samplers[rank].sample(
                    group.communicators[rank], parts[rank], step
                )
                for rank in range(size)
            ]
        )
        means = [whole(each) for each in found]
        assert all(torch.equal(each, means[0]) for each in means)
        assert len({each.noise for each in found}) == 1
        total += means[0]
        norms.append(squared_norm(found[0], place))
    unit = max(each.abs().max() for each in own) / steps_of(size)
    assert (total / tries - mean).abs().max() < 5 * unit / (2 * (size * tries) ** 0.5)
    assert abs(np.mean(norms) / mean.square().sum() - 1) < 0.03


def test_a_share_of_the_samples_tells_the_norm_of_all() -> None:
    workers = Workers(3, UpdateSettings(sample_share=0.4, sample_whole_steps=1, clip_norm=1.0))
    found = []
    for _ in range(40):
        workers.step(lambda worker: gradients(0, worker), options(ADAMW))
        assert len({stage.norm for stage in workers.stages}) == 1
        found.append(workers.stages[0].norm)
    mean = [torch.stack(each).mean(0) for each in zip(*(gradients(0, w) for w in range(3)), strict=True)]
    true = torch.cat([one.flatten() for one in mean]).norm()
    own = torch.cat([one.flatten() for one in gradients(0, 0)]).norm()
    assert abs(np.mean(found) / true - 1) < 0.1
    assert own > 1.3 * true  # a worker's own is no estimate of it


def test_every_worker_scales_its_gradient_by_the_same_factor_once() -> None:
    """Clipped to a hundredth of its norm, a step of SGD is a hundredth of that without."""
    given = {**SGD, "momentum": 0.0, "weight_decay": 0.0, "nesterov": 0.0}
    mean = [torch.stack(each).mean(0) for each in zip(*(gradients(0, w) for w in range(2)), strict=True)]
    norm = float(torch.cat([one.flatten() for one in mean]).norm())
    clipped = Workers(2, UpdateSettings(bits=32, sample_bits=32, clip_norm=norm / 100), "sgd")
    start = clipped.shared.clone()
    clipped.step(lambda worker: gradients(0, worker), options(given))
    expected = layout().gather([-0.01 / 100 * one for one in mean], layout().empty())
    torch.testing.assert_close(clipped.shared - start, expected, rtol=0, atol=1e-6)


def test_parameters_without_a_gradient_anywhere_make_no_step() -> None:
    """As torch skips them, decay and momentum included; one that some worker has a gradient of makes it."""
    workers, found = Workers(2, EXACT), parameters()
    dense = dense_adamw(found)
    for step in range(6):
        each = [gradients(step, worker) for worker in range(2)]
        each[1][1] = None  # worker 1 has none of b
        if step % 2:
            each[0][3] = each[1][3] = None  # nobody has any of d
        workers.step(lambda worker, each=each: each[worker], options(ADAMW))
        for index, parameter in enumerate(found):
            given = [own[index] for own in each if own[index] is not None]
            parameter.grad = sum(given) / 2 if given else None
        dense.step()
    torch.testing.assert_close(workers.shared, layout().gather(found, layout().empty()), rtol=0, atol=3e-6)


def test_groups_have_rates_of_their_own() -> None:
    workers, found = Workers(2, EXACT), parameters()
    dense = torch.optim.AdamW(
        [
            {"params": found[:2], "lr": 0.02, "weight_decay": 0.0},
            {"params": found[2:], "lr": 0.001, "betas": (0.5, 0.9)},
        ],
        weight_decay=0.1,
    )
    mixed = options(
        ADAMW,
        lr=[0.02, 0.02, 0.001, 0.001],
        weight_decay=[0.0, 0.0, 0.1, 0.1],
        beta1=[0.9, 0.9, 0.5, 0.5],
        beta2=[0.999, 0.999, 0.9, 0.9],
    )
    for step in range(10):
        each = [gradients(step, worker) for worker in range(2)]
        workers.step(lambda worker, each=each: each[worker], mixed)
        for parameter, *given in zip(found, *each, strict=True):
            parameter.grad = sum(given) / 2
        dense.step()
    torch.testing.assert_close(workers.shared, layout().gather(found, layout().empty()), rtol=0, atol=3e-6)


@pytest.mark.parametrize("rule", ["adam", "sgd"])
def test_a_restart_goes_on_bit_for_bit(rule: Any) -> None:
    settings = UpdateSettings(share=0.3, sample_whole_steps=2, clip_norm=1.0, most_pending=1.0)
    using = options(ADAMW if rule == "adam" else SGD)
    workers = Workers(3, settings, rule)

    def steps(first: int, last: int) -> None:
        for step in range(first, last):
            workers.step(lambda worker, step=step: gradients(step, worker), using)

    steps(0, 5)
    saved = [
        (clone(stage.state_dict()), [one.clone() for one in own])
        for stage, own in zip(workers.stages, workers.parameters, strict=True)
    ]
    steps(5, 9)
    expected = [*workers.weights, workers.shared.clone()]
    workers = Workers(3, settings, rule)
    for stage, parameters, (state, own) in zip(workers.stages, workers.parameters, saved, strict=True):
        stage.load_state_dict(state)
        for parameter, one in zip(parameters, own, strict=True):
            parameter.copy_(one)
    steps(5, 9)
    assert all(map(torch.equal, [*workers.weights, workers.shared], expected))
    assert workers.stages[0].share > 0.3


def clone(state: Any) -> Any:
    if isinstance(state, dict):
        return {name: clone(value) for name, value in state.items()}
    return state.clone() if isinstance(state, torch.Tensor) else state


def test_states_of_other_settings_and_parameters_are_refused() -> None:
    state = Workers(2, UpdateSettings()).stages[0].state_dict()
    with pytest.raises(ValueError, match="other settings"):
        Workers(2, UpdateSettings(share=0.5)).stages[0].load_state_dict(state)
    with pytest.raises(ValueError, match="other parameters"):
        Workers(2, UpdateSettings()).stages[0].load_state_dict({**state, "names": ["x", *NAMES[1:]]})


@pytest.mark.parametrize("rule", ["adam", "sgd"])
def test_a_failed_sum_leaves_the_step_in_the_weights_and_the_shared_point_alone(rule: Any) -> None:
    """A worker that loses its network mid-step has its own steps still, all of them pending."""

    class Failing(InMemoryGroup):
        """Its last reduction of a step fails."""

        left = 1000

        def reduce_call(self, call: Any) -> Any:
            self.left -= 1
            if self.left < 0:
                raise ConnectionError("gone")
            return super().reduce_call(call)

    values = {**(ADAMW if rule == "adam" else SGD), "weight_decay": 0.0}
    workers = Workers(1, UpdateSettings(), rule)
    workers.step(lambda _: gradients(0, 0), options(values))
    ahead, point = workers.weights[0], workers.shared.clone()
    group = Failing(1)
    workers.group = group
    before = group.left
    workers.step(lambda _: gradients(1, 0), options(values))
    used = before - group.left
    expected, moved = workers.weights[0], workers.shared.clone()
    again = Workers(1, UpdateSettings(), rule)
    again.step(lambda _: gradients(0, 0), options(values))
    again.group = Failing(1)
    again.group.left = used - 1
    with pytest.raises(ConnectionError):
        again.step(lambda _: gradients(1, 0), options(values))
    assert torch.equal(again.shared, point)
    assert not torch.equal(moved, point)
    assert not torch.equal(again.weights[0], ahead)
    torch.testing.assert_close(again.weights[0], expected, rtol=0, atol=1e-6)


def test_workers_leave_and_join() -> None:
    """Those that stay keep what is pending; one that joins begins at the shared point, with moments."""
    settings = UpdateSettings(share=0.3, sample_whole_steps=2)
    using = options({**ADAMW, "weight_decay": 0.0})
    workers = Workers(3, settings)
    for step in range(5):
        workers.step(lambda worker, step=step: gradients(step, worker), using)
    point, kept = workers.shared.clone(), workers.pending()[:2]
    fewer = Workers(4, settings)
    for worker, stage in enumerate(fewer.stages):
        source = worker if worker < 2 else 0  # workers 2 and 3 are new
        stage.load_state_dict(clone(workers.stages[source].state_dict()))
        values = workers.weights[source] if worker < 2 else point
        layout().scatter(values, fewer.parameters[worker])
    assert torch.equal(fewer.shared, point)
    assert all(map(torch.equal, fewer.pending(), [*kept, 0 * point, 0 * point]))
    wanted = [torch.zeros(point.shape, dtype=torch.float64) for _ in range(4)]
    for stage, total in zip(fewer.stages, wanted, strict=True):
        watch(stage, total)
    for step in range(5, 25):
        fewer.step(lambda worker, step=step: gradients(step, worker), using)
    moved = fewer.shared.double() - point.double()
    rest = torch.stack(fewer.pending()).double().mean(0) - sum(kept).double() / 4
    assert (torch.stack(wanted).mean(0) - moved - rest).abs().max() < 1e-5


@pytest.mark.parametrize("bits", [1, 8])
def test_harm_is_what_a_worker_can_measure_itself(bits: Any) -> None:
    """Against the weights and shared points before and after a step, of which a part is in turn."""
    workers, place = Workers(3, UpdateSettings(bits=bits, share=0.4, sample_whole_steps=1)), layout()
    using, last = options({**ADAMW, "weight_decay": 0.0}), torch.zeros(place.rows)
    for step in range(6):
        wanted = torch.zeros(place.rows, ROW, dtype=torch.float64)
        stage: Any = workers.stages[1]
        update = stage._rule.update
        watch(stage, wanted)
        point = workers.shared.clone()
        before = (workers.weights[1] - point).double()
        workers.step(lambda worker, step=step: gradients(step, worker), using)
        stage._rule.update = update
        rest = (workers.weights[1] - workers.shared).double()
        pending = before + wanted
        delivered = pending - rest
        last[(workers.shared != point).any(1)] = step
    for index in (None, 0, 3):
        rows = slice(None) if index is None else place.rows_of(index)
        harm = stage.harm(index)
        each = [
            float(one[rows].norm()) for one in (rest, wanted, pending, delivered, workers.shared.double())
        ]
        assert harm.pending == pytest.approx(each[0] / each[1], rel=1e-3)
        assert harm.distance == pytest.approx(each[0] / each[4], rel=1e-3)
        product = float((pending[rows] * delivered[rows]).sum())
        assert harm.cosine == pytest.approx(product / (each[2] * each[3]), rel=1e-3)
        assert harm.oldest == int((5 - last[rows]).max())
        lengths = place.lengths[rows]
        assert harm.age == pytest.approx(float(((5 - last[rows]) * lengths).sum() / lengths.sum()))


def test_more_waits_where_less_is_sent() -> None:
    """Whole, half and a tenth in turn; sent at full width, nothing waits."""
    found = []
    for settings in (
        UpdateSettings(bits=32),
        UpdateSettings(),
        UpdateSettings(share=0.5),
        UpdateSettings(share=0.1),
    ):
        workers = Workers(2, settings)
        for step in range(30):
            workers.step(lambda worker, step=step: gradients(step, worker), options(ADAMW))
        found.append(workers.stages[0].harm())
    pending, cosines, ages = zip(*((one.pending, one.cosine, one.age) for one in found), strict=True)
    assert list(pending) == sorted(pending)
    assert list(ages) == sorted(ages)
    assert pending[0] < 1e-3
    assert cosines[0] == pytest.approx(1)
    assert min(cosines) == cosines[-1]


def test_a_larger_share_is_sent_while_more_waits_than_may() -> None:
    """Down to a bound of harm, on average over the workers, which all send the same share; else the least."""
    harms, shares = [], []
    for bound in (1e3, 4.0, 1e-3):
        workers = Workers(2, UpdateSettings(share=0.1, most_pending=bound))
        for step in range(100):
            workers.step(lambda worker, step=step: gradients(step, worker), options(ADAMW))
            assert len({stage.share for stage in workers.stages}) == 1
            assert 0.1 <= workers.stages[0].share <= 1
        assert torch.isfinite(workers.shared).all()
        harms.append(np.mean([stage.harm().pending for stage in workers.stages]))
        shares.append(workers.stages[0].share)
    assert shares[0] == 0.1 < shares[1] < shares[2] == 1
    assert harms[0] > 1.5 * 4
    assert harms[1] == pytest.approx(4, rel=0.3)


def test_nan_on_one_worker_raises_on_all_and_changes_nothing() -> None:
    workers = Workers(2, UpdateSettings())
    before = workers.weights[0]

    def given(worker: int) -> list[torch.Tensor]:
        found = gradients(0, worker)
        if worker:
            found[2][3] = float("nan")
        return found

    with pytest.raises(NonFiniteError, match="rank 1: gradient of c"):
        workers.step(given, options(ADAMW))
    assert torch.equal(workers.weights[0], before)
    assert torch.equal(workers.shared, before)
    workers.step(lambda worker: gradients(0, worker), options(ADAMW))


def test_a_sample_weighs_as_many_steps_as_have_passed_since_the_last() -> None:
    """Gradients of 1 at step 1 and of 2 at step 11, at a decay of 0.9."""
    place = layout()
    squares = MeanSquares(place, exact=False)
    decay, rows = torch.full((len(NAMES),), 0.9, dtype=torch.float64), torch.arange(place.rows)
    for step, value in ((1, 1.0), (11, 2.0)):
        steps = torch.full((len(NAMES),), step)
        mean = torch.full((place.rows, ROW), value)
        squares.add(rows, mean, steps, torch.ones(len(NAMES), dtype=torch.bool), decay)
    expected = (0.9**10 * 0.1 * 1 + (1 - 0.9**10) * 4) / (1 - 0.9**11)
    found = squares.mean * squares.corrections.unsqueeze(1)
    torch.testing.assert_close(found, torch.full_like(found, expected))


def test_roots_are_half_of_what_noise_alone_would_have_at_least() -> None:
    """Of 4 workers, samples of zero, and own gradients of 1: half of 1 / sqrt(4). Never sampled: 1."""
    place = layout()
    given = [torch.ones(shape) for shape in SHAPES]
    step = Step(options({**ADAMW, "lr": 0.1}), torch.ones(4, dtype=torch.bool), torch.ones(4).long())
    weights = [torch.zeros(shape) for shape in SHAPES]
    sampled = torch.tensor([0, 1])
    parts = Parts(place, weights, given)
    sample = Sample(sampled, lambda: iter([(sampled, torch.zeros(2, ROW))]))
    Adam(place, 4, exact=False).update(parts, step, sample, place.empty())
    found = parts.value_rows(None)[:, 0]
    expected = torch.full((place.rows,), -0.1)
    expected[sampled] *= 4
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    "wrong", [{"share": 0.0}, {"most_pending": 0.0}, {"sample_share": 1.5}, {"bits": 2}, {"sample_bits": 8}]
)
def test_settings_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong.values())).__repr__()):
        UpdateStage(layout(), UpdateSettings(**wrong), "adam", 2)


def test_every_row_has_its_turn_in_a_period() -> None:
    for rows, share in ((10, 0.3), (10, 1.0), (7, 0.01), (1, 0.5)):
        rotation = Rotation(rows, share, seed=1, whole=2)
        assert len(rotation.turn(0)) == len(rotation.turn(1)) == rows
        for first in range(2, 5):
            turns = [rotation.turn(first + step) for step in range(rotation.period)]
            assert set(torch.cat(turns).tolist()) == set(range(rows))
            assert all(len(turn) == len(set(turn.tolist())) for turn in turns)


@pytest.mark.parametrize("most", [1, 2, 3, 4, 5, 6, 7, 8, 12, 15, 16, 40, 255, 1000, 65535])
def test_sums_of_counts_reach_into_no_other_digit(most: int) -> None:
    """The largest sums in all digits of a lane, and any; of this many workers with a count of one each."""
    lanes, count = CountLanes(most), 1001
    workers = min(most, 50)
    rng = np.random.default_rng(0)
    given = rng.integers(0, min(most // workers, 255) + 1, (workers, count)).astype(np.uint8)
    given[:, : 2 * lanes.digits] = min(most // workers, 255)
    total = sum((lanes.pack(each) for each in given), np.zeros(lanes.lanes(count), np.uint32))
    assert np.array_equal(lanes.unpack(total, count), given.sum(0))
    full = np.full(lanes.digits, most)
    lane = np.array([sum(most * lanes.base**place for place in range(lanes.digits))], np.uint64)
    assert lane[0] < 1 << 32 <= lanes.base ** (lanes.digits + 1)
    assert np.array_equal(lanes.unpack(lane.astype(np.uint32), lanes.digits), full)


def test_a_lane_holds_as_many_counts_as_its_page_says() -> None:
    """The table of ``counts``: sums up to 4, of signs of 4 workers, 13 to a lane."""
    lines = [line.split() for line in (counts.__doc__ or "").splitlines()]
    sums, digits = (next(line for line in lines if line[:1] == [word]) for word in ("sums", "digits"))
    for most, held in zip(sums[3:], digits[1:], strict=True):
        assert CountLanes(int(most)).digits == int(held)
