# SPDX-License-Identifier: Apache-2.0
"""Show whether large values lie together: what blocks would deliver for the bits of single elements."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

import torch

from weir.bench.dfs_cases import REPLAYED, momentum, replay_of
from weir.bench.replay import train
from weir.host_agent.compression.encodings.position_lists import PositionList
from weir.host_agent.compression.sparsifiers.dfs_blocks import energies
from weir.train.config import Model, make_config
from weir.train.task import make_task

SIZES: Final = (1, 2, 4, 16, 64, 256)
_EVERY: Final = 4


@dataclass(frozen=True)
class Runs:
    """The sum of all gradients and residuals of a training's workers, at one density.

    Attributes:
        delivered: pairs of a block size and a share of the energy: that of the best blocks of each parameter
            that take no more bits than its largest elements, positions and values.
        together: of the largest elements, the share that is followed by another one.
    """

    delivered: Sequence[Sequence[float]]
    together: float


def run(density: float, model: Model, workers: int, steps: int, seed: int) -> Runs:
    """Train densely beside DFS in blocks of one element; look at every fourth of the later steps."""
    torch.set_num_threads(1)
    module = make_task(make_config(model=model)).model
    replay = replay_of(REPLAYED["dfs without sizes"], module, workers, density)
    value_bits = replay.ranks[0].gradients.sparsifier.value_bits
    found = dict.fromkeys(SIZES, 0.0)
    whole, largest, followed = 0.0, 0, 0
    for number, (gradients, _) in enumerate(
        islice(train(model, workers, seed, momentum=momentum(model)), steps)
    ):
        if number >= steps // 3 and number % _EVERY == 0:
            own = [
                rank.gradients.compensated(replay.layout, torch.from_numpy(gradient))
                for rank, gradient in zip(replay.ranks, gradients, strict=False)
            ]
            wanted = torch.stack(own).sum(dim=0)
            whole += float(wanted.double().square().sum())
            for segment in replay.layout:
                vector = wanted[segment.in_vector]
                count = max(1, round(density * segment.length))
                chosen = torch.zeros(segment.length, dtype=torch.bool)
                chosen[torch.topk(vector.abs(), count, sorted=False).indices] = True
                largest += count
                followed += int((chosen[1:] & chosen[:-1]).sum())
                for size, energy in delivered(vector, count, value_bits).items():
                    found[size] += energy
        replay.step(gradients)
    return Runs([(size, found[size] / whole) for size in SIZES], followed / max(1, largest))


def delivered(vector: torch.Tensor, count: int, value_bits: float) -> dict[int, float]:
    """Return the energy of a parameter's best blocks of each size, for the bits of ``count`` values."""

    def bits(blocks: int, size: int) -> float:
        return PositionList.of(-(-vector.numel() // size), blocks).bits + blocks * size * value_bits

    budget, found = bits(count, 1), {}
    for size in SIZES:
        fits, beyond = 0, min(count, -(-vector.numel() // size)) + 1
        while beyond - fits > 1:
            middle = (fits + beyond) // 2
            fits, beyond = (middle, beyond) if bits(middle, size) <= budget else (fits, middle)
        held = energies(vector, size)
        found[size] = float(torch.topk(held, fits, sorted=False).values.double().sum())
    return found
