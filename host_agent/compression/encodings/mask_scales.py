# SPDX-License-Identifier: Apache-2.0
"""Scales of what a mask selects, agreed on together with the mask: a round trip less than after it.

Before the workers know what is selected they know where it may lie. So a parameter has *regions* of equal
size, and each a shared exponent: the greatest of any worker's values there, of which each worker sends a
code. A run of UNIT selected values in the packed vector takes the greatest exponent of the regions that it
has values of. That is never less than its own values need, so nothing overflows, and few values share it.

The codes are unary, so that the OR operator, which unites the masks, takes their maximum: k ones for step k
of STEPS. Step 0 is a region of zeros. Steps 2 to STEPS - 1 are exponents in a row, the lowest of which is
*predicted* for each parameter from its last sum. Step 1 is all exponents below, and step STEPS all above: of
such regions, which all workers see alike, they exchange the exponents themselves (MAX). Hence exponents are
always the true ones, and predictions change how many reductions there are, never a bit of a sum. A parameter
without a prediction has all its regions in step 1.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from weir.host_agent.collectives import quantize
from weir.host_agent.collectives.communicator import Communicator
from weir.host_agent.collectives.dtypes import LANE_BYTES, Lanes
from weir.host_agent.collectives.float_sum import Namer, check_finite
from weir.host_agent.compression.bucket_layout import BucketLayout
from weir.host_agent.compression.encodings.encoding import SCALE_BLOCK, EncodingPlan
from weir.host_agent.compression.encodings.selection import Selection
from weir.host_agent.transport import engine
from weir.host_agent.transport.service_class import LOSSLESS, ServiceClass
from weir.wire.definition import GROUP_LANES, Op

UNIT: Final = GROUP_LANES
"""Values of a packed vector that share a scale."""

STEPS: Final = 16
CODES_IN_LANE: Final = LANE_BYTES * 8 // STEPS
_ABOVE: Final = 2
"""Our choice: how many times a parameter's largest value may double from one sum to the next."""

_UNKNOWN: Final = quantize.NOT_FINITE + 1
_CODES: Final = np.array([(1 << step) - 1 for step in range(STEPS + 1)], np.uint16)

REGION_SIZES: Final = tuple(SCALE_BLOCK << log2 for log2 in range(6))
"""Elements in a region: of 256 to 8,192."""

FULL: Final = 64
"""Our choice: a region has no more selected values, on average of those that have any, if it is not the least
one. So scales are shared by fewer values than SCALE_BLOCK, in most places, at 2 bytes for each region."""


def region_size(selected: int, occupied: Callable[[int], int]) -> int:
    """Return how many elements a parameter's regions have.

    Args:
        selected: values of the parameter that travel.
        occupied: returns how many blocks of so many elements have any of them.
    """
    fitting = (size for size in reversed(REGION_SIZES) if selected <= FULL * occupied(size))
    return next(fitting, SCALE_BLOCK)


class Predictions:
    """The lowest exponent that a parameter's codes tell apart, by its name; the same on all workers."""

    def __init__(self) -> None:
        self._lowest: dict[str, int] = {}

    def lowest(self, names: tuple[str, ...]) -> npt.NDArray[np.int32]:
        """Return step 2 of each parameter; of one that is not known, beyond all exponents."""
        return np.array([self._lowest.get(name, _UNKNOWN) for name in names], np.int32)

    def learn(self, names: tuple[str, ...], greatest: npt.NDArray[np.uint32]) -> None:
        """Take note of the greatest exponents of parameters; 0, of one that was all zero, says nothing."""
        for name, exponent in zip(names, greatest.tolist(), strict=True):
            if exponent:
                self._lowest[name] = exponent + _ABOVE - (STEPS - 3)

    def clear(self) -> None:
        """Forget everything."""
        self._lowest.clear()

    def known(self, names: tuple[str, ...]) -> tuple[int, ...]:
        """Return what must be the same on all workers before a bucket is summed."""
        return tuple(self._lowest.get(name, 0) for name in names)


@dataclass(frozen=True)
class Regions:
    """The regions of a bucket's parameters, in the order of its vector.

    Attributes:
        names: of the parameters.
        counts: regions of each.
        sizes: of each region, in blocks of SCALE_BLOCK.
    """

    names: tuple[str, ...]
    counts: npt.NDArray[np.intp]
    sizes: npt.NDArray[np.intp]

    @classmethod
    def of(cls, plan: EncodingPlan, layout: BucketLayout) -> "Regions":
        """Return those that a plan says."""
        counts, sizes = [], []
        for segment in layout:
            blocks = -(-segment.length // SCALE_BLOCK)
            wide = plan.regions.get(segment.name, SCALE_BLOCK) // SCALE_BLOCK
            whole, rest = divmod(blocks, wide)
            counts.append(whole + (rest > 0))
            sizes += [wide] * whole + [rest] * (rest > 0)
        return cls(tuple(s.name for s in layout), np.array(counts, np.intp), np.array(sizes, np.intp))

    @cached_property
    def starts(self) -> npt.NDArray[np.intp]:
        """Return the first block of each region."""
        return np.cumsum(self.sizes) - self.sizes

    def of_parameters(self, values: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
        """Return the greatest of the regions' values by parameter, 0 where there are no regions."""
        found = np.zeros(self.counts.size, np.uint32)
        some = self.counts > 0
        if values.size:
            found[some] = np.maximum.reduceat(values, (np.cumsum(self.counts) - self.counts)[some])
        return found


class MaskScales:
    """One bucket's exponents as one worker knows them, before and after the workers have agreed.

    Args:
        plan, layout: of the bucket.
        vector: what of it this worker may send: float32, the whole vector, on any device.
        predictions: of all parameters.

    Attributes:
        codes: lanes for the workers to OR.
    """

    def __init__(
        self, plan: EncodingPlan, layout: BucketLayout, vector: torch.Tensor, predictions: Predictions
    ) -> None:
        self._layout, self._vector, self._predictions = layout, vector, predictions
        self._regions = Regions.of(plan, layout)
        blocks = _exponents(vector)
        self._own = np.maximum.reduceat(blocks, self._regions.starts) if blocks.size else blocks
        self._lowest = np.repeat(predictions.lowest(self._regions.names), self._regions.counts)
        above = self._own.astype(np.int32) - self._lowest
        steps = np.where(self._own == 0, 0, np.clip(above + 2, 1, STEPS))
        padded = np.zeros(-(-steps.size // CODES_IN_LANE) * CODES_IN_LANE, np.uint16)
        padded[: steps.size] = _CODES[steps]
        self.codes: Lanes = padded.view(np.uint32)

    def settle(
        self, communicator: Communicator, codes: Lanes, name: Namer, service: ServiceClass = LOSSLESS
    ) -> npt.NDArray[np.uint32]:
        """Return the exponent of every block of SCALE_BLOCK of the whole vector, that of its region.

        Args:
            communicator: of all workers.
            codes: of all workers.
            name: describes an element of the vector, for errors.
            service: without budgets.

        Raises:
            NonFiniteError: some value of some worker is NaN or infinite; on every worker.
        """
        ones = codes.view(np.uint16)[: self._own.size].astype(np.float32) + 1
        steps = np.frexp(ones)[1] - 1
        shared = np.where(steps == 0, 0, self._lowest + steps - 2).astype(np.uint32)
        unsure = np.flatnonzero((steps == 1) | (steps == STEPS))
        if unsure.size:
            shared[unsure] = communicator.reduce(self._own[unsure], Op.MAX, GROUP_LANES, service)
        check_finite(communicator, shared, quantize.NOT_FINITE, lambda: self._vector.cpu().numpy(), name)
        self._predictions.learn(self._regions.names, self._regions.of_parameters(shared))
        return np.repeat(shared, self._regions.sizes)


def _exponents(vector: torch.Tensor) -> npt.NDArray[np.uint32]:
    """Return the exponents of blocks of SCALE_BLOCK, whole ones, of a vector on any device."""
    if vector.device.type == "cpu":
        return quantize.exponents(vector.numpy(), SCALE_BLOCK)
    largest = vector.view(-1, SCALE_BLOCK).abs().amax(dim=1).cpu()
    return quantize.exponents(largest.numpy(), 1)


def of_packed(selection: Selection, exponents: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Return the exponent of each UNIT of a packed vector: the greatest of the blocks that it has values of.

    exponents: of the blocks of SCALE_BLOCK of the whole vector.
    """
    units = np.zeros(selection.layout.length // UNIT, np.uint32)
    for part in selection.parts:
        first = part.source.vector_start // SCALE_BLOCK
        own = exponents[first : first - (-part.source.length // SCALE_BLOCK)]
        place = units[part.target.vector_start // UNIT :]
        if part.words is None:
            place[: own.size * (SCALE_BLOCK // UNIT)] = np.repeat(own, SCALE_BLOCK // UNIT)
        else:
            engine.library().weir_mask_largest(
                own.ctypes.data,
                SCALE_BLOCK,
                part.mask_block,
                part.words.ctypes.data,
                part.words.size,
                UNIT,
                place.ctypes.data,
            )
    return units
