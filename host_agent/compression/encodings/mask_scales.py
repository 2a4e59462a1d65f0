# SPDX-License-Identifier: Apache-2.0
"""Scales of what a mask selects, agreed on together with the mask: a round trip less than after it.

Before the workers know what is selected they know where it may lie. So a parameter has *regions* of equal
size, and each a shared *level*: the greatest of any worker's values there, of which each worker sends a code.
A unit of selected values in the packed vector takes the greatest level of the regions that it has values of.
That is never less than its own values need, so nothing overflows.

Of whole lanes, levels are exponents. Of packed lanes, whose few bits make one of them worth much, they are
fourths of binades: a scale is at most 5/4 of the largest magnitude.

The codes are unary, so that the OR operator, which unites the masks, takes their maximum: k ones for step k
of as many as a code has bits. Step 0 is a region of zeros. Steps from 2 to the last but one are levels in a
row, the lowest of which is *predicted* for each parameter from its last sum. Step 1 is all levels below, and
the last step all above: of such regions, which all workers see alike, they exchange the levels themselves
(MAX), unless nothing of them travels. Hence levels that are used are always the true ones, and predictions
change how many reductions there are, never a bit of a sum.
A parameter without a prediction has all its regions in step 1.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from weir.host_agent.collectives.communicator import Communicator
from weir.host_agent.collectives.dtypes import LANE_BYTES, Lanes
from weir.host_agent.collectives.non_finite import Namer, check_finite
from weir.host_agent.collectives.packing import LaneFormat
from weir.host_agent.collectives.tensor_memory import array_of
from weir.host_agent.compression import bindings
from weir.host_agent.compression.bucket_layout import BucketLayout
from weir.host_agent.compression.encodings.encoding import SCALE_BLOCK, EncodingPlan
from weir.host_agent.compression.packed_vector import packed_vector
from weir.host_agent.compression.vectors import in_main_memory
from weir.host_agent.transport.arrays import address_of, contiguous
from weir.host_agent.transport.service_class import LOSSLESS, ServiceClass
from weir.wire.definition import GROUP_LANES, Op

_BEYOND: Final = 1 << 16
"""The lowest level of a parameter without a prediction: beyond all levels."""

REGION_SIZES: Final = tuple(SCALE_BLOCK << log2 for log2 in range(6))
"""Elements in a region: of 256 to 8,192."""

_MANTISSA_BITS: Final = 23  # of a float32


@dataclass(frozen=True)
class Steps:
    """The levels that scales of a form of lanes have, and how many values share one.

    Attributes:
        code: of a region; one bit for a step.
        fine: bits of the mantissa that a level has, after the exponent.
        above: levels above the last sum's that have steps. Chosen here: two binades, which a parameter's
            largest value rarely grows by from one sum to the next.
        unit: values of a packed vector that share a scale.
        full: chosen here: a region has no more selected values, on average of those that have any, if it is
            not the least one.
    """

    code: type[np.unsignedinteger[Any]]
    fine: int
    above: int
    unit: int
    full: int

    @property
    def count(self) -> int:
        """Last step."""
        return np.dtype(self.code).itemsize * 8

    @property
    def codes_in_lane(self) -> int:
        """Return how many codes a lane holds."""
        return LANE_BYTES // np.dtype(self.code).itemsize

    def region_size(self, selected: int, occupied: Callable[[int], int]) -> int:
        """Return how many elements a parameter's regions have.

        Args:
            selected: values of the parameter that travel.
            occupied: returns how many blocks of this many elements have any of them.
        """
        fitting = (size for size in reversed(REGION_SIZES) if selected <= self.full * occupied(size))
        return next(fitting, SCALE_BLOCK)

    def scales(self, levels: Lanes) -> Lanes:
        """Return the greatest scale of each level."""
        if not self.fine:
            return levels
        return np.where(levels == 0, 0, (levels << self.dropped) - 1).astype(np.uint32)

    @property
    def dropped(self) -> int:
        """Lower bits of a scale that a level does not have."""
        return _MANTISSA_BITS - self.fine if self.fine else 0


WHOLE: Final = Steps(np.uint16, fine=0, above=2, unit=GROUP_LANES, full=64)
"""Scales are shared by fewer values than SCALE_BLOCK, in most places, at 2 bytes for each region."""


def steps_of(form: LaneFormat) -> Steps:
    """Return the steps for scales of this form of lanes."""
    if form.fields == 1:
        return WHOLE
    group = GROUP_LANES * form.fields
    unit = SCALE_BLOCK if SCALE_BLOCK % group else group
    return Steps(np.uint32, fine=2, above=8, unit=unit, full=unit)


class Predictions:
    """The lowest level that a parameter's codes tell apart, by its name; the same on all workers."""

    def __init__(self) -> None:
        self._lowest: dict[str, int] = {}

    def lowest(self, names: tuple[str, ...]) -> npt.NDArray[np.int32]:
        """Return step 2 of each parameter; of one that is not known, beyond all levels."""
        return np.array([self._lowest.get(name, _BEYOND) for name in names], np.int32)

    def learn(self, names: tuple[str, ...], greatest: Lanes, steps: Steps = WHOLE) -> None:
        """Take note of the greatest levels of parameters; 0, of one that was all zero, says nothing."""
        for name, level in zip(names, greatest.tolist(), strict=True):
            if level:
                self._lowest[name] = level + steps.above - (steps.count - 3)

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
        return cls._of(tuple((s.name, s.length, plan.regions.get(s.name, SCALE_BLOCK)) for s in layout))

    @classmethod
    @functools.lru_cache(maxsize=256)
    def _of(cls, parameters: tuple[tuple[str, int, int], ...]) -> "Regions":
        """Return those of parameters: name, elements, elements in a region. The same from step to step."""
        counts, sizes = [], []
        for _, length, size in parameters:
            wide = size // SCALE_BLOCK
            whole, rest = divmod(-(-length // SCALE_BLOCK), wide)
            counts.append(whole + (rest > 0))
            sizes += [wide] * whole + [rest] * (rest > 0)
        names = tuple(name for name, _, _ in parameters)
        return cls(names, np.array(counts, np.intp), np.array(sizes, np.intp))

    @cached_property
    def starts(self) -> npt.NDArray[np.intp]:
        """First block of each region."""
        return np.cumsum(self.sizes) - self.sizes

    def largest(self, values: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
        """Return the greatest value of each region's blocks."""
        return np.maximum.reduceat(values, self.starts) if values.size else values

    def of_parameters(self, values: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
        """Return the greatest of the regions' values by parameter, 0 where there are no regions."""
        found = np.zeros(self.counts.size, np.uint32)
        some = self.counts > 0
        if values.size:
            found[some] = np.maximum.reduceat(values, (np.cumsum(self.counts) - self.counts)[some])
        return found


class MaskScales:
    """One bucket's scales as one worker knows them, before and after the workers have agreed.

    Args:
        plan, layout: of the bucket.
        vector: what of it this worker may send: float32, the whole vector, on any device.
        predictions: of all parameters.
        form: of values in lanes.
        largest: magnitude of each block of SCALE_BLOCK of the vector, if it is known.

    Attributes:
        codes: lanes for the workers to OR.
    """

    def __init__(
        self,
        plan: EncodingPlan,
        layout: BucketLayout,
        vector: torch.Tensor,
        predictions: Predictions,
        form: LaneFormat,
        largest: npt.NDArray[np.float32] | None = None,
    ) -> None:
        self._layout, self._vector, self._predictions = layout, vector, predictions
        self._form, self.steps = form, steps_of(form)
        self._regions = Regions.of(plan, layout)
        self._lowest = predictions.lowest(self._regions.names)
        scales = _scales(vector, form) if largest is None else form.scales(largest, 1)
        count, codes = self._regions.sizes.size, self.steps.codes_in_lane
        self._own, self.codes = np.empty(count, np.uint32), np.zeros(-(-count // codes), np.uint32)
        bindings.library().weir_region_codes(
            self._native,
            contiguous(scales, "scales", np.uint32),
            address_of(self._own),
            address_of(self.codes),
        )

    @property
    def _native(self) -> bindings.Regions:
        """Regions as the C side sees them."""
        regions = self._regions
        return bindings.Regions(
            regions.counts.size,
            address_of(regions.counts),
            address_of(regions.sizes),
            address_of(self._lowest),
            self.steps.dropped,
            self.steps.count,
        )

    def settle(
        self,
        communicator: Communicator,
        codes: Lanes,
        name: Namer,
        service: ServiceClass = LOSSLESS,
        selected: Callable[[], npt.NDArray[np.bool_]] | None = None,
    ) -> npt.NDArray[np.uint32]:
        """Return the scale of every block of SCALE_BLOCK of the whole vector, that of its region.

        Args:
            communicator: of all workers.
            codes: of all workers.
            name: describes an element of the vector, for errors.
            service: without budgets.
            selected: returns the blocks of SCALE_BLOCK of which something travels, the same on all workers;
                the scales of other regions are useless. None: all.

        Raises:
            NonFiniteError: some value of some worker is NaN or infinite; on every worker.
        """
        shared, unsure = np.empty_like(self._own), np.empty(self._own.size, np.bool_)
        some = bindings.library().weir_region_levels(
            self._native,
            contiguous(codes, "codes", np.uint32),
            address_of(shared),
            address_of(unsure),
        )
        if some and selected is not None:
            shared[unsure & (shared < self._lowest.repeat(self._regions.counts))] = 0  # says nothing
            unsure &= self._regions.largest(selected().astype(np.uint32)) > 0
        if some and unsure.any():
            shared[unsure] = communicator.reduce_vector(self._own[unsure], Op.MAX, GROUP_LANES, service)
        scales = self.steps.scales(shared)
        check_finite(
            communicator, scales, self._form.not_finite, lambda: array_of(in_main_memory(self._vector)), name
        )
        self._predictions.learn(self._regions.names, self._regions.of_parameters(shared), self.steps)
        return np.repeat(scales, self._regions.sizes)


def _scales(vector: torch.Tensor, form: LaneFormat) -> Lanes:
    """Return the scales of blocks of SCALE_BLOCK, whole ones, of a vector on any device."""
    return packed_vector(vector).scales(form, SCALE_BLOCK)
