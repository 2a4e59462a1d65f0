# SPDX-License-Identifier: Apache-2.0
"""Updates ahead of the wire in plain torch, workers in one process: ``compress``, and what might replace it.

Each class is a scheme of N workers. ``Compress`` makes the steps of ``weir.torch.compress`` with AdamW or
Adam. The others replace one part of it. Tensors are float32[rows, ROW] of ``UpdateLayout``, or
float32[N, rows, ROW] where each worker has its own.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from weir.host_agent.compression.updates.layout import ROW, UpdateLayout
from weir.host_agent.compression.updates.moments import LEAST
from weir.host_agent.compression.updates.rotation import Rotation
from weir.host_agent.compression.updates.samples import steps_of

WHOLE_STEPS: Final = 40
SAMPLED: Final = 0.06
_BETAS: Final = (0.9, 0.999)
_EPSILON: Final = 1e-8
_AT_INTERVALS: Final = 16  # 1 / SAMPLED, about
_LOST: Final = 0.01
_HARM: Final = 6.0  # steps that may wait, where the share follows them
_SMALL: Final = 0.5  # of the scale: what a filter holds back
_RANK: Final = 4
_EASE: Final = 1.02


@dataclass(frozen=True)
class Setting:
    """Setting of a training. decay: AdamW's; share: of the values in a step, for schemes that send a part."""

    place: UpdateLayout
    shapes: tuple[torch.Size, ...]
    workers: int
    decay: float
    share: float
    seed: int


class Scheme:
    """A way to train: where workers compute their gradients, and their joint step.

    Attributes:
        shared: the shared point.
        sent: share of the values that a worker delivered in the last step.
    """

    sent = 1.0

    def __init__(self, setting: Setting, start: Tensor) -> None:
        self.of, self.shared = setting, start.clone()
        self.steps = 0
        self.random = torch.Generator().manual_seed(setting.seed)

    def weights(self, worker: int) -> Tensor:
        """Return where a worker computes its gradient."""
        return self.shared

    def end(self) -> Tensor:
        """Return the weights of all workers when all is delivered."""
        return self.shared

    def step(self, gradients: Tensor, rate: float) -> None:
        """Make a step of all workers. gradients: [N, rows, ROW]."""
        raise NotImplementedError


def _corrected(moment: Tensor, beta: float, steps: int) -> Tensor:
    return moment / (1 - beta**steps)


class Dense(Scheme):
    """AdamW of the mean gradient."""

    def __init__(self, setting: Setting, start: Tensor) -> None:
        super().__init__(setting, start)
        self.first, self.second = torch.zeros_like(start), torch.zeros_like(start)

    def step(self, gradients: Tensor, rate: float) -> None:
        """Average the gradients, and step."""
        self.steps += 1
        mean = self.estimate(gradients)
        self.first.lerp_(mean, 1 - _BETAS[0])
        self.second.lerp_(mean.square(), 1 - _BETAS[1])
        root = _corrected(self.second, _BETAS[1], self.steps).sqrt_().add_(_EPSILON)
        self.shared.mul_(1 - rate * self.of.decay)
        self.shared.sub_(_corrected(self.first, _BETAS[0], self.steps).div_(root).mul_(rate))

    def estimate(self, gradients: Tensor) -> Tensor:
        """Return the mean gradient, as all workers know it."""
        return gradients.mean(0)


class Alone(Dense):
    """The first worker by itself: the floor."""

    sent = 0.0

    def estimate(self, gradients: Tensor) -> Tensor:
        """Return the first worker's gradient."""
        return gradients[0]


class Ef21(Dense):
    """Signs of the difference between a gradient and what was sent of it before (EF21)."""

    def __init__(self, setting: Setting, start: Tensor) -> None:
        super().__init__(setting, start)
        self.known = torch.zeros(setting.workers, *start.shape)

    def estimate(self, gradients: Tensor) -> Tensor:
        """Return the mean of what is known of each worker's gradient."""
        self.known += self.coded(gradients - self.known)
        return self.known.mean(0)

    def coded(self, rest: Tensor) -> Tensor:
        """Code differences as workers send them: signs, with the mean magnitude of each row."""
        scale = rest.abs().sum(2, keepdim=True).mean(0) / self.of.place.lengths.unsqueeze(1)
        return scale * rest.sign()


class Diana(Ef21):
    """Differences, rounded so that they are right on average (DIANA): a row's largest value, or nothing."""

    _pace: Final = 0.1  # of what is known

    def estimate(self, gradients: Tensor) -> Tensor:
        """Return the mean of the known gradients and of the differences that were sent now."""
        sent = self.coded(gradients - self.known)
        found = (self.known + sent).mean(0)
        self.known.add_(sent, alpha=self._pace)
        return found

    def coded(self, rest: Tensor) -> Tensor:
        """Return the largest magnitude with a sign, by chance."""
        most = rest.abs().amax(2, keepdim=True).clamp_min_(1e-30)
        chance = torch.rand(rest.shape, generator=self.random)
        return torch.where(chance < rest.abs() / most, most * rest.sign(), 0)


class Compress(Scheme):
    """compress: each worker's own step in its own weights; all values are delivered by their signs.

    Attributes:
        rounds: samples of the mean gradient are rounded, by chance, to few bits.
    """

    rounds = True

    def __init__(self, setting: Setting, start: Tensor) -> None:
        super().__init__(setting, start)
        each = (setting.workers, *start.shape)
        self.pending, self.first, self.own = torch.zeros(each), torch.zeros(each), torch.zeros(each)
        self.second, self.last = torch.zeros_like(start), torch.zeros(len(start))
        self.sampled = Rotation(len(start), SAMPLED, setting.seed + 1, WHOLE_STEPS)
        self.moved = torch.zeros(setting.workers)
        self.real = (torch.arange(ROW) < setting.place.lengths.unsqueeze(1)).float()

    def weights(self, worker: int) -> Tensor:
        """Return the worker's own weights, ahead of the wire."""
        return self.shared + self.pending[worker]

    def end(self) -> Tensor:
        """Return the shared point with all that is pending."""
        return self.shared + self.pending.mean(0)

    def step(self, gradients: Tensor, rate: float) -> None:
        """Make each worker's own step, and deliver."""
        self.steps += 1
        self.renew(gradients, self.sampled.turn(self.steps - 1))
        self.first.lerp_(gradients, 1 - _BETAS[0])
        self.own.lerp_(gradients.square(), 1 - _BETAS[1])
        step = _corrected(self.first, _BETAS[0], self.steps).div_(self.roots().add_(_EPSILON)).mul_(-rate)
        self.moved = step.flatten(1).norm(dim=1)
        self.pending += step
        self.shared.mul_(1 - rate * self.of.decay)
        self.deliver(self.chosen())

    def renew(self, gradients: Tensor, rows: Tensor) -> None:
        """Take a sample of the mean gradient into the second moments."""
        kept = (_BETAS[1] ** (self.steps - self.last[rows])).unsqueeze(1)
        mean = self.sample(gradients[:, rows])
        self.second[rows] = kept * self.second[rows] + (1 - kept) * mean.square()
        self.last[rows] = float(self.steps)

    def sample(self, own: Tensor) -> Tensor:
        """Return the mean of all workers' values of some rows, as their sum in few bits tells it."""
        if not self.rounds:
            return own.mean(0)
        unit = own.abs().amax((0, 2)).div_(steps_of(self.of.workers)).clamp_min_(1e-30).unsqueeze(1)
        return (own / unit).add_(torch.rand(own.shape, generator=self.random)).floor_().mean(0).mul_(unit)

    def mean_squares(self) -> Tensor:
        """Return the second moments of the mean gradient."""
        return self.second / (1 - _BETAS[1] ** self.last.clamp_min(1)).unsqueeze(1)

    def own_squares(self) -> Tensor:
        """Return the second moments of each worker's own gradient."""
        return _corrected(self.own, _BETAS[1], self.steps)

    def roots(self) -> Tensor:
        """Return the divisor of the first moments."""
        return torch.maximum(self.mean_squares(), self.own_squares() * (LEAST**2 / self.of.workers)).sqrt_()

    def chosen(self) -> Tensor:
        """Return which values are delivered: 1 or 0, as [1 or N, rows, ROW]."""
        return self.real.unsqueeze(0)

    def deliver(self, chosen: Tensor) -> None:
        """Move the shared point by the mean of all workers' signs, and take off what each has delivered."""
        counts = chosen.sum(2, keepdim=True).clamp_min(1)
        scale = ((self.pending.abs() * chosen).sum(2, keepdim=True) / counts).mean(0)
        self.settle(scale * self.pending.sign() * chosen, chosen)

    def settle(self, delivered: Tensor, chosen: Tensor) -> None:
        """End the step. delivered: of each worker."""
        self.pending -= delivered
        self.shared += delivered.mean(0)
        self.sent = float(chosen.mean(0).sum() / self.real.sum())


class AtSharedPoint(Compress):
    """Without look-ahead."""

    def weights(self, worker: int) -> Tensor:
        """Return the shared point."""
        return self.shared


class OwnSquares(Compress):
    """Each worker divides by its own second moments."""

    def roots(self) -> Tensor:
        """Return each worker's."""
        return self.own_squares().sqrt_()


class FrozenSquares(Compress):
    """Second moments stay as they are after the first steps (1-bit Adam)."""

    def renew(self, gradients: Tensor, rows: Tensor) -> None:
        """Take samples in at first."""
        if self.steps <= WHOLE_STEPS:
            super().renew(gradients, rows)


class SquaresAtIntervals(Compress):
    """All of the mean gradient is sampled every few steps (0/1 Adam), which takes as many bytes."""

    def renew(self, gradients: Tensor, rows: Tensor) -> None:
        """Take a whole sample in, if it is time."""
        if self.steps <= WHOLE_STEPS or self.steps % _AT_INTERVALS == 0:
            super().renew(gradients, torch.arange(len(self.shared)))


class KnownSquares(Compress):
    """The second moments of the mean gradient are known exactly, at no cost: a bound."""

    rounds = False

    def renew(self, gradients: Tensor, rows: Tensor) -> None:
        """Take all of it in."""
        super().renew(gradients, torch.arange(len(self.shared)))


class Filtered(Compress):
    """Values below half of their row's scale are not sent (a filter of small values)."""

    def deliver(self, chosen: Tensor) -> None:
        """Deliver the others."""
        scale = self.pending.abs().sum(2, keepdim=True).mean(0) / self.of.place.lengths.unsqueeze(1)
        super().deliver(chosen * (self.pending.abs() >= _SMALL * scale))


class Lossy(Compress):
    """A hundredth of all rows is lost on its way up and given back (a loss budget)."""

    def settle(self, delivered: Tensor, chosen: Tensor) -> None:
        """End the step with what is not lost."""
        arrives = torch.rand(self.of.workers, len(self.shared), 1, generator=self.random) >= _LOST
        super().settle(delivered * arrives, chosen * arrives)


class LowRank(Compress):
    """Each matrix of pending updates as a product of two thin ones (PowerSGD, Dion); vectors are whole."""

    def __init__(self, setting: Setting, start: Tensor) -> None:
        super().__init__(setting, start)
        self.right = [
            torch.randn(math.prod(shape[1:]), _RANK, generator=self.random) if self._thin(shape) else None
            for shape in setting.shapes
        ]

    @staticmethod
    def _thin(shape: torch.Size) -> bool:
        return len(shape) > 1 and _RANK * (shape[0] + math.prod(shape[1:])) < shape.numel()

    def deliver(self, chosen: Tensor) -> None:
        """Deliver each worker's part of the joint product; the sums of both factors are all that is sent."""
        delivered, values = torch.zeros_like(self.pending), 0
        for index, (shape, right) in enumerate(zip(self.of.shapes, self.right, strict=True)):
            parts = [self.of.place.part(one, index) for one in self.pending]
            if right is None:
                found, values = parts, values + shape.numel()
            else:
                matrices = torch.stack([one.view(shape[0], -1) for one in parts])
                left = torch.linalg.qr(matrices.mean(0) @ right).Q
                rights = matrices.transpose(1, 2) @ left
                self.right[index] = rights.mean(0)
                found, values = list(left @ rights.transpose(1, 2)), values + left.numel() + right.numel()
            for one, part in zip(delivered, found, strict=True):
                self.of.place.part(one, index).copy_(part.reshape(-1))
        self.settle(delivered, chosen)
        self.sent = values / self.of.place.values


class Blocks(Compress):
    """A share of the values in blocks that all workers send: those of the best rank.

    Args:
        size: values in a block.
        rank: makes of pending values, ages of blocks and this scheme the ranks of blocks.
    """

    def __init__(self, setting: Setting, start: Tensor, size: int, rank: "Rank") -> None:
        super().__init__(setting, start)
        self.size, self._rank = size, rank
        self.count = -(-start.numel() // size)
        self.age = torch.rand(self.count, generator=self.random)  # ties in an order of their own
        self.share = setting.share

    def chosen(self) -> Tensor:
        """Return the best blocks."""
        self.age += 1
        best = self._rank(self).topk(max(1, round(self.share * self.count))).indices
        self.age[best] -= self.age[best].floor()
        marks = torch.zeros(self.count)
        marks[best] = 1
        values = marks.repeat_interleave(self.size)[: self.shared.numel()]
        return values.view(1, *self.shared.shape) * self.real

    def energies(self, pending: Tensor) -> Tensor:
        """Return the energy of each block."""
        padded = torch.zeros(self.count * self.size)
        padded[: pending.numel()] = pending.reshape(-1).square()
        return padded.view(self.count, self.size).sum(1)


Rank = Callable[[Blocks], Tensor]


def in_rotation(blocks: Blocks) -> Tensor:
    """Return ages: blocks in rotation."""
    return blocks.age


def by_energy_and_age(blocks: Blocks) -> Tensor:
    """Return the energy of all workers' pending values, times age."""
    return sum(map(blocks.energies, blocks.pending), torch.zeros(())) * blocks.age


def by_agreement(blocks: Blocks) -> Tensor:
    """Return the energy of the mean of what is pending, which no worker knows: a bound."""
    return blocks.energies(blocks.pending.mean(0))


def by_owner(blocks: Blocks) -> Tensor:
    """Return the energy of the worker whose turn a block is, times age (ExDyna's exclusive partitions)."""
    owner = (torch.arange(blocks.count) + blocks.steps) % blocks.of.workers
    each = torch.stack([blocks.energies(one) for one in blocks.pending])
    return each[owner, torch.arange(blocks.count)] * blocks.age


def by_layer(blocks: Blocks) -> Tensor:
    """Return ages times the root of the layer's energy a value: layers have rates of their own."""
    place, energy = blocks.of.place, blocks.pending.square().sum((0, 2))
    layers = torch.zeros(len(place.names)).index_add(0, place.owner, energy)
    counts = torch.zeros(len(place.names)).index_add(0, place.owner, place.lengths)
    return blocks.age * (layers / counts).sqrt()[place.owner]


class ByHarm(Blocks):
    """The share follows the harm: it grows while more steps wait than it may, and falls otherwise."""

    def chosen(self) -> Tensor:
        """Adapt the share, and return the best blocks."""
        harm = float((self.pending.flatten(1).norm(dim=1) / self.moved.clamp_min(1e-30)).mean())
        self.share = min(1.0, max(0.05, self.share * (_EASE if harm > _HARM else 1 / _EASE)))
        return super().chosen()


class Masked(Blocks):
    """The momentum of delivered values ends (factor masking, as in Deep Gradient Compression)."""

    def settle(self, delivered: Tensor, chosen: Tensor) -> None:
        """End the step, and their momentum."""
        super().settle(delivered, chosen)
        self.first *= 1 - chosen


def blocks(size: int, rank: Rank, kind: type[Blocks] = Blocks) -> Callable[[Setting, Tensor], Scheme]:
    """Return a maker of schemes with blocks."""
    return lambda setting, start: kind(setting, start, size, rank)


SCHEMES: Final[dict[str, Callable[[Setting, Tensor], Scheme]]] = {
    "dense": Dense,
    "alone": Alone,
    "compress": Compress,
    "at-shared-point": AtSharedPoint,
    "own-squares": OwnSquares,
    "frozen-squares": FrozenSquares,
    "squares-at-intervals": SquaresAtIntervals,
    "known-squares": KnownSquares,
    "ef21": Ef21,
    "diana": Diana,
    "low-rank": LowRank,
    "filtered": Filtered,
    "lossy": Lossy,
    **{f"rotation-{size}": blocks(size, in_rotation) for size in (16, ROW, 4096)},
    **{f"energy-{size}": blocks(size, by_energy_and_age) for size in (16, ROW, 4096)},
    **{f"agreement-{size}": blocks(size, by_agreement) for size in (1, 16, ROW)},
    "owner-256": blocks(ROW, by_owner),
    "layer-256": blocks(ROW, by_layer),
    "harm-256": blocks(ROW, in_rotation, ByHarm),
    "masked-256": blocks(ROW, in_rotation, Masked),
}
"""Schemes by name."""
