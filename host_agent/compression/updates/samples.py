# SPDX-License-Identifier: Apache-2.0
"""Samples of the mean gradient: some rows at a time, in few bits, for anyone who needs its size only.

*Few bits.* The workers agree on the largest magnitude a of each row (MAX). With some m >= 1, a worker's value
x becomes one of the two integers beside m x / a, by chance, so that its mean is m x / a (stochastic
rounding). Plus m it is a count from 0 to 2 m, and the switch adds the counts of all workers
(``collectives.counts``); m is the largest with which a lane holds 8, or 1. The rounding adds variance to the
mean. Each worker knows that of its own values; the sum of all, where it is asked for, is ``noise``.

*In pieces.* Only the sums of counts are kept, and read a piece of the rows at a time. Rounding draws by row
and column, so that the pieces do not change a bit.

*Full width.* The values in whole lanes, whose mean is that of the gradients.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
import torch

from weir.host_agent.collectives.communicator import Communicator
from weir.host_agent.collectives.counts import CHUNK, CountLanes
from weir.host_agent.collectives.tensor_memory import array_of
from weir.host_agent.compression import bindings
from weir.host_agent.compression.updates.delivery import FixedPoint, sum_whole
from weir.host_agent.compression.updates.layout import ROW, UpdateLayout
from weir.host_agent.compression.updates.parts import Parts, pointer
from weir.host_agent.compression.updates.rotation import Rotation
from weir.host_agent.transport.arrays import address_of
from weir.wire.definition import Op

SampleBits = Literal[4, 32]
SAMPLE_BITS: Final[tuple[SampleBits, ...]] = (4, 32)
"""4: few. 32: full width."""

_MOST_IN_EIGHTH: Final = 15  # the greatest sums of which a lane holds 8
_PRIME: Final = 1_000_003  # so that every seed, worker and step has draws of its own


_PIECE_ROWS: Final = 64 * CHUNK // ROW  # 4 MB of floats at a time; whole chunks of counts


Piece = tuple[torch.Tensor, torch.Tensor]
"""Some rows, ascending, and the mean gradient there: float32[rows, ROW], which is the reader's."""


@dataclass(frozen=True)
class Sample:
    """Some rows of the mean gradient, the same on all workers.

    Attributes:
        rows: which, ascending.
        make: makes the pieces, before ``factor``, once more.
        noise: of the sum of the squares, the part that rounding added; 0 where it was not asked for.
        factor: of all values.
    """

    rows: torch.Tensor
    make: Callable[[], Iterator[Piece]]
    noise: float = 0.0
    factor: float = 1.0

    def pieces(self) -> Iterator[Piece]:
        """Yield the rows in pieces: a sample of the whole model is never whole in memory."""
        for rows, mean in self.make():
            yield rows, mean.mul_(self.factor)

    def scaled(self, factor: float) -> "Sample":
        """Return the sample of a gradient that is multiplied by a factor."""
        return replace(self, factor=factor * self.factor)


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
        if self._bits == 32:
            mean = FixedPoint(32, communicator.size).mean(communicator, parts.gradient_rows(rows))[1]
            return Sample(rows, lambda: iter([(rows, mean.clone())]))
        return self._in_few_bits(communicator, rows, parts, step)

    def _in_few_bits(self, communicator: Communicator, rows: torch.Tensor, parts: Parts, step: int) -> Sample:
        workers = communicator.size
        most = steps_of(workers)
        pieces = [slice(start, start + _PIECE_ROWS) for start in range(0, len(rows), _PIECE_ROWS)]
        largest = torch.empty(len(rows))
        for piece in pieces:
            torch.linalg.vector_norm(parts.gradient_rows(rows[piece]), torch.inf, 1, out=largest[piece])
        # Magnitudes sort as their bits do.
        communicator.reduce_vector(array_of(largest).view(np.uint32), Op.MAX)
        unit = largest / most
        seed = ((self._seed * _PRIME + communicator.rank) * _PRIME + step) % (1 << 64)
        form, added = CountLanes(2 * most * workers), 0.0
        lanes = np.empty(form.lanes(rows.numel() * ROW), np.uint32)
        for piece in pieces:
            own = parts.gradient_rows(rows[piece])
            counts = np.empty(own.numel(), np.uint8)
            added += bindings.library().weir_updates_round(
                pointer(own), piece.start, len(own), pointer(unit[piece]), most, seed, address_of(counts)
            )
            form.pack_into(counts, lanes[form.lanes(piece.start * ROW) :])
        communicator.reduce_vector(lanes, Op.ADD)
        unit /= workers

        def means() -> Iterator[Piece]:
            for piece in pieces:
                mean = torch.empty(len(rows[piece]), ROW)
                bindings.library().weir_updates_mean(
                    address_of(lanes[form.lanes(piece.start * ROW) :]),
                    len(mean),
                    pointer(unit[piece]),
                    most * workers,
                    form.base,
                    form.digits,
                    pointer(mean),
                )
                yield rows[piece], mean

        if not self._noise:
            return Sample(rows, means)
        noise = sum_whole(communicator, torch.tensor([added], dtype=torch.float32))
        return Sample(rows, means, float(noise) / workers**2)


def steps_of(workers: int) -> int:
    """Return m for this many workers: the greatest magnitude of one worker's integers."""
    return max(1, _MOST_IN_EIGHTH // (2 * workers))


def squared_norm(sample: Sample, layout: UpdateLayout) -> float:
    """Return the squared norm of the whole mean gradient as a sample of it says."""
    norms = (torch.linalg.vector_norm(mean, dtype=torch.float64) for _, mean in sample.pieces())
    square = sum(float(norm) ** 2 for norm in norms) - sample.noise
    share = float(layout.lengths[sample.rows].sum()) / layout.values
    return max(0.0, square) / share
