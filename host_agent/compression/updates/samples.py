# SPDX-License-Identifier: Apache-2.0
"""Samples of the mean gradient: some rows at a time, in few bits, for anyone who needs its size only.

*Few bits.* The workers agree on the largest magnitude a of each row (MAX). With some m >= 1, a worker's value
x becomes one of the two integers beside m x / a, by chance, so that its mean is m x / a (stochastic
rounding). Plus m it is a count from 0 to 2 m, and the switch adds the counts of all workers
(``collectives.counts``); m is the largest with which a lane holds 8, or 1. The rounding adds variance to the
mean. Each worker knows that of its own values; the sum of all, where it is asked for, is ``noise``.

*Full width.* The values in whole lanes, whose mean is that of the gradients.
"""

from typing import Final, Literal, NamedTuple

import numpy as np
import torch

from weir.host_agent.collectives.communicator import Communicator
from weir.host_agent.collectives.counts import CountLanes
from weir.host_agent.collectives.tensor_memory import array_of
from weir.host_agent.compression import bindings
from weir.host_agent.compression.updates.delivery import FixedPoint, sum_whole
from weir.host_agent.compression.updates.layout import UpdateLayout
from weir.host_agent.compression.updates.parts import Parts, pointer
from weir.host_agent.compression.updates.rotation import Rotation
from weir.host_agent.transport.arrays import address_of
from weir.wire.definition import Op

SampleBits = Literal[4, 32]
SAMPLE_BITS: Final[tuple[SampleBits, ...]] = (4, 32)
"""4: few. 32: full width."""

_MOST_IN_EIGHTH: Final = 15  # the greatest sums of which a lane holds 8
_PRIME: Final = 1_000_003  # so that every seed, worker and step has draws of its own


class Sample(NamedTuple):
    """Some rows of the mean gradient, the same on all workers.

    rows: which, ascending. mean: float32[rows, ROW]. noise: of the sum of its squares, the part that rounding
    added; 0 where it was not asked for.
    """

    rows: torch.Tensor
    mean: torch.Tensor
    noise: float


class Sampler:
    """One worker's part in samples.

    Args:
        rotation: which rows are sampled when.
        bits: of a value: 4, or 32 for its full width.
        seed: of the rounding, which is another on every worker.
        noise: the workers tell each other how much the rounding adds, which takes two round trips.
    """

    def __init__(self, rotation: Rotation, bits: SampleBits, seed: int, *, noise: bool) -> None:
        if bits not in SAMPLE_BITS:
            raise ValueError(f"{bits!r} bits to a sample: there are {', '.join(map(str, SAMPLE_BITS))}")
        self._rotation, self._bits, self._seed, self._noise = rotation, bits, seed, noise

    def sample(self, communicator: Communicator, parts: Parts, step: int) -> Sample:
        """Return the step's rows of the mean gradient. parts: of this worker, whose gradients are finite."""
        rows = self._rotation.turn(step)
        own = parts.gradient_rows(rows)
        if self._bits == 32:
            return Sample(rows, FixedPoint(32, communicator.size).mean(communicator, own)[1], 0.0)
        return self._in_few_bits(communicator, rows, own, step)

    def _in_few_bits(
        self, communicator: Communicator, rows: torch.Tensor, own: torch.Tensor, step: int
    ) -> Sample:
        workers = communicator.size
        most = steps_of(workers)
        largest = torch.linalg.vector_norm(own, torch.inf, 1)
        # Magnitudes sort as their bits do.
        communicator.reduce_vector(array_of(largest).view(np.uint32), Op.MAX)
        unit = largest / most
        seed = ((self._seed * _PRIME + communicator.rank) * _PRIME + step) % (1 << 64)
        counts = np.empty(own.numel(), np.uint8)
        added: float = bindings.library().weir_updates_round(
            pointer(own), len(rows), pointer(unit), most, seed, address_of(counts)
        )
        form, mean, unit = CountLanes(2 * most * workers), own, unit / workers
        lanes = communicator.reduce_vector(form.pack(counts), Op.ADD)
        bindings.library().weir_updates_mean(
            address_of(lanes), len(rows), pointer(unit), most * workers, form.base, form.digits, pointer(mean)
        )
        if not self._noise:
            return Sample(rows, mean, 0.0)
        noise = sum_whole(communicator, torch.tensor([added], dtype=torch.float32))
        return Sample(rows, mean, float(noise) / workers**2)


def steps_of(workers: int) -> int:
    """Return m for this many workers: the greatest magnitude of one worker's integers."""
    return max(1, _MOST_IN_EIGHTH // (2 * workers))


def squared_norm(sample: Sample, layout: UpdateLayout) -> float:
    """Return the squared norm of the whole mean gradient as a sample of it says."""
    square = float(torch.linalg.vector_norm(sample.mean, dtype=torch.float64)) ** 2 - sample.noise
    share = float(layout.lengths[sample.rows].sum()) / layout.values
    return max(0.0, square) / share
