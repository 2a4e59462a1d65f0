# SPDX-License-Identifier: Apache-2.0
"""Decides how each bucket is written down: by what it is predicted to cost on the wire, in both directions.

Each parameter has a mask size of its own, or none. It follows from what was counted of this parameter in
earlier steps (``forecast``) and from the group, never from the bucket that it is in: DDP rebuilds its
buckets, and scales are per packed block. The packets' block and the levels of the mask tree follow from the
whole bucket and influence no result.

What was counted is the same on all workers: the union of what they sent is in the sum that all of them get;
how much of it each of them had they tell each other, now and then. So all decide alike, without a message.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from weir.host_agent.collectives.dtypes import LANE_BYTES
from weir.host_agent.collectives.packing import LaneFormat, WholeLanes
from weir.host_agent.collectives.tensor_memory import array_of
from weir.host_agent.compression.bucket_layout import BucketLayout, Segment
from weir.host_agent.compression.encodings import forecast, pyramid
from weir.host_agent.compression.encodings.encoding import (
    DENSE,
    MASK_SIZES,
    SCALE_BLOCK,
    Encoding,
    EncodingPlan,
)
from weir.host_agent.compression.encodings.forecast import (
    TREE_LEVELS,
    UNION_LEVELS,
    Counts,
    JobSize,
    MaskWords,
    PackedBlocks,
)
from weir.host_agent.compression.encodings.position_lists import region_of
from weir.host_agent.compression.encodings.selection import Summed
from weir.host_agent.compression.vectors import in_main_memory, sum_in_order
from weir.wire.definition import BLOCK_SIZES

MASKS: Final = (None, *MASK_SIZES)

_HYSTERESIS: Final = 0.97  # a mask that costs less than this share of the present one replaces it
_PERIODS: Final = 16, 256  # steps between two counts of a parameter: at most, and if it is tiny
_OVERHEAD: Final = 0.002  # of a parameter's bytes, for telling each other counts
_STEADY, _CHANGED = 0.05, 0.2  # relative change of the cost after which to count less often, in every step
_WATCH: Final = 4  # steps between two looks at how large the union is, which takes no message


class _Table:
    """One parameter's part of the cost of a bucket, for each mask and block; made when asked for."""

    def __init__(self, counts: Counts, job: JobSize) -> None:
        self._counts, self._job = counts, job
        self._lanes: dict[tuple[int | None, int], PackedBlocks] = {}
        self._words: dict[int, MaskWords] = {}
        self._scales: dict[int | None, float] = {}
        self._regions: dict[int, int] = {}
        self._bytes: dict[int | None, float] = {}

    def lanes(self, mask_block: int | None, packet_block: int) -> PackedBlocks:
        """Return the parameter's blocks of the packed vector."""
        key = mask_block, packet_block
        if key not in self._lanes:
            self._lanes[key] = forecast.lanes_of(self._counts, mask_block, packet_block, self._job.workers)
        return self._lanes[key]

    def scales(self, mask_block: int | None) -> float:
        """Return the parameter's exponents."""
        if mask_block not in self._scales:
            self._scales[mask_block] = forecast.scales_of(self._counts, mask_block, self._job.form)
        return self._scales[mask_block]

    def region(self, mask_block: int) -> int:
        """Return elements in a region of the parameter's scales."""
        if mask_block not in self._regions:
            self._regions[mask_block] = forecast.region_of(self._counts, mask_block, self._job.form)
        return self._regions[mask_block]

    def words(self, mask_block: int) -> MaskWords:
        """Return the parameter's words of the mask tree."""
        if mask_block not in self._words:
            self._words[mask_block] = forecast.words_of(self._counts, mask_block)
        return self._words[mask_block]

    def bytes(self, mask_block: int | None) -> float:
        """Return what the parameter adds to a bucket of the usual size, with the best block for it."""
        if mask_block not in self._bytes:
            self._bytes[mask_block] = min(
                forecast.parameter_bytes(self._counts, mask_block, packet_block, self._job)
                for packet_block in forecast.block_sizes(self._job.form)
            )
        return self._bytes[mask_block]


class _Parameter(NamedTuple):
    """The counts of a parameter, and what was decided of it.

    mask_block: the one it has, or is to have next. wait: steps until it is counted again; period: from then
    to the next time.
    """

    counts: Counts
    mask_block: int | None
    period: int
    wait: int


class Planner:
    """Plans buckets, and learns from their sums. Equal on all workers as long as its calls are.

    One step: ``plan``, ``count`` and ``observe`` for every bucket, then ``end_step``. A step that failed may
    be repeated: only ``end_step`` changes what ``plan`` answers, and a parameter that is observed again
    replaces what was observed before.
    """

    def __init__(self, workers: int, slots: int) -> None:
        self._parameters: dict[str, _Parameter] = {}
        self._observed: dict[str, Counts] = {}
        self._watched: dict[str, int] = {}
        self._tables: dict[str, _Table] = {}
        self._plans: dict[tuple[object, ...], EncodingPlan] = {}
        self._waiting: dict[str, int] = {}  # parameters that are not counted in this step, and for how long
        self._fixed: Mapping[str, Encoding] = {}
        self.resize(workers, slots)

    def resize(self, workers: int, slots: int, form: LaneFormat | None = None, *, max_lanes: int = 0) -> None:
        """Take the group's size, its job's slots, the form of values in lanes, by default one in each, and
        how many lanes of ADD a packet has, if not any number.

        Masks stay until the next step has ended.
        """
        self._workers, self._slots, self._form = workers, slots, form or WholeLanes(workers)
        self._max_lanes = max_lanes
        self._retabulate(self._parameters)

    # ------------------------------------------------------------------------------------------------- a step

    def plan(
        self, layout: BucketLayout, fixed: Mapping[str, Encoding], packet_block: int | None
    ) -> EncodingPlan:
        """Return how to write down a bucket.

        A parameter that was never counted is sent whole.

        Args:
            layout: of the bucket.
            fixed: encodings that are not to be chosen here, by parameter.
            packet_block: if that is fixed, too; else None.
        """
        self._fixed = {**self._fixed, **fixed}
        key = (tuple((s.name, s.length, fixed.get(s.name)) for s in layout), packet_block)
        if key not in self._plans:
            self._plans[key] = self._plan(layout, fixed, packet_block)
        return self._plans[key]

    def count(self, layout: BucketLayout, packed: torch.Tensor) -> npt.NDArray[np.uint32]:
        """Return what the workers are to know of this one's packed vector, often nothing; of one length on
        all.
        """
        due = self._due(layout)
        if not due:
            return np.empty(0, np.uint32)
        there = in_main_memory(packed)
        counts = torch.cat([pyramid.counts(there[segment.in_vector]) for segment in due])
        return array_of(counts).astype(np.uint32)

    def tally(self, summed: Summed) -> npt.NDArray[np.uint32]:
        """Return what ``observe`` is to know of a bucket's sum: for each parameter that is due how many
        blocks of each size are not zero, for each that is watched how many elements; often nothing.
        """
        parts, whole = summed.selection.parts, summed.selection.whole  # in main memory
        due, watched = set(self._due(whole)), set(self._watched_of(whole))
        found = [
            pyramid.counts_of_part(summed, index, UNION_LEVELS)
            for index, part in enumerate(parts)
            if part.source in due
        ]
        found += [
            torch.count_nonzero(summed.packed[part.in_packed]).reshape(1)
            for part in parts
            if part.source in watched
        ]
        return array_of(torch.cat(found)).astype(np.uint32) if found else np.empty(0, np.uint32)

    def observe(
        self,
        layout: BucketLayout,
        plan: EncodingPlan,
        tally: npt.NDArray[np.uint32],
        counts: npt.NDArray[np.uint32],
    ) -> None:
        """Take note of the ``tally`` of a bucket's sum, and what each worker counted: [workers, k]."""
        due = self._due(layout)
        of_due, of_watched = np.split(tally, [len(due) * UNION_LEVELS])
        for segment, size in zip(self._watched_of(layout), of_watched.tolist(), strict=True):
            self._watched[segment.name] = size
        if not due:
            return
        unions = of_due.reshape(len(due), UNION_LEVELS).tolist()
        sums = counts.sum(axis=0, dtype=np.int64).reshape(len(due), pyramid.LEVELS)
        for segment, union, counted in zip(due, unions, sums.tolist(), strict=True):
            mask_block = plan.encodings[segment.name].mask_block
            self._observed[segment.name] = self._counts(segment, mask_block, union, counted, len(counts))

    def end_step(self) -> None:
        """End a step, of which every bucket has been observed."""
        before = self._tables
        parameters = {
            name: known._replace(wait=0 if self._has_changed(name) else known.wait - 1)
            for name, known in self._parameters.items()
        }
        for name, counts in self._observed.items():
            known = parameters.get(name)
            parameters[name] = known._replace(counts=counts) if known else _Parameter(counts, None, 1, 0)
        self._parameters = parameters
        if self._observed:
            self._retabulate(self._observed)
        for name in self._observed:
            self._parameters[name] = self._decided(name, before.get(name))
        self._observed, self._watched = {}, {}
        self._note_waits()

    # ---------------------------------------------------------------------------------------------- the state

    def state_dict(self) -> dict[str, Any]:
        """Return what plans depend on, by parameter: plain values, equal on all workers."""
        return {
            name: {**parameter._asdict(), "counts": asdict(parameter.counts)}
            for name, parameter in self._parameters.items()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what ``state_dict`` gave, maybe in a group of another size."""
        self._parameters = {name: _restored(known) for name, known in state.items()}
        self._observed, self._watched = {}, {}
        self._note_waits()
        self._retabulate(self._parameters)

    # ------------------------------------------------------------------------------------------- observations

    def _note_waits(self) -> None:
        self._waiting = {name: known.wait for name, known in self._parameters.items() if known.wait > 0}

    def _due(self, layout: BucketLayout) -> list[Segment]:
        return [segment for segment in layout if segment.name not in self._waiting]

    def _watched_of(self, layout: BucketLayout) -> list[Segment]:
        """Return the parameters of which, between two counts of everything, the union's elements are
        counted.
        """
        return [
            segment for segment in layout if (wait := self._waiting.get(segment.name)) and wait % _WATCH == 0
        ]

    def _has_changed(self, name: str) -> bool:
        """Return whether a union is another by so much that it is worth to count again."""
        if name not in self._watched:
            return False
        known = self._parameters[name].counts.union[0]
        difference = abs(self._watched[name] - known)
        worth = 2 * self._workers * LANE_BYTES * difference > self._counting_bytes
        return difference > _CHANGED * known and worth

    @property
    def _counting_bytes(self) -> int:
        """Return what it costs, about, that all workers tell each other the counts of one parameter."""
        return pyramid.LEVELS * LANE_BYTES * self._workers * (self._workers + 1)

    def _counts(
        self, segment: Segment, mask_block: int | None, union: list[int], counted: list[int], workers: int
    ) -> Counts:
        """Return the counts that follow from the union's and from those of all workers' packed vectors."""
        known = self._parameters.get(segment.name)
        fine = pyramid.LEVELS if mask_block is None else mask_block.bit_length()
        shares = [_share(n, workers * blocks) for n, blocks in zip(counted[:fine], union[:fine], strict=True)]
        for level in range(fine, pyramid.LEVELS):
            # Not counted: as before, or as if each worker's elements were anywhere in the union.
            anywhere = forecast.at_least_one(shares[fine - 1], union[fine - 1] / max(1, union[level]))
            before = known.counts.shares[level] if known else anywhere
            shares.append(min(max(before, shares[-1]), max(anywhere, shares[-1])))
        packed = []
        for packet_block in BLOCK_SIZES:
            level = packet_block.bit_length() - 1
            if mask_block is None or packet_block <= mask_block:
                packed.append(shares[level])
            else:
                lanes = union[mask_block.bit_length() - 1] * mask_block
                packed.append(_share(counted[level], workers * -(-lanes // packet_block)))
        return Counts(segment.length, tuple(union), tuple(shares), mask_block, tuple(packed))

    # ---------------------------------------------------------------------------------------------- decisions

    @property
    def _job(self) -> JobSize:
        elements = sum(parameter.counts.length for parameter in self._parameters.values())
        return JobSize(self._workers, self._slots, elements, self._form, self._max_lanes)

    def _retabulate(self, names: Mapping[str, object]) -> None:
        job = self._job
        fresh = {name: _Table(self._parameters[name].counts, job) for name in names}
        self._tables = {**self._tables, **fresh} if len(fresh) < len(self._parameters) else fresh
        self._plans = {}

    def _decided(self, name: str, before: _Table | None) -> _Parameter:
        """Return a parameter that was just counted: its mask, and when to count it again."""
        parameter, table = self._parameters[name], self._tables[name]
        if name in self._fixed:
            mask_block = self._fixed[name].mask_block
        else:
            mask_block = parameter.mask_block
            best = min(reversed(MASKS), key=table.bytes)  # of equals, the coarsest
            if table.bytes(best) < _HYSTERESIS * table.bytes(mask_block):
                mask_block = best
        period = 1
        if before is not None:
            change = abs(table.bytes(mask_block) - before.bytes(mask_block)) / max(
                before.bytes(mask_block), 1.0
            )
            period = 1 if change > _CHANGED else parameter.period * (2 if change <= _STEADY else 1)
        most, tiny = _PERIODS
        worth = int(self._counting_bytes / (_OVERHEAD * max(table.bytes(mask_block), 1.0))) + 1
        period = max(min(period, most), min(worth, tiny))
        return parameter._replace(mask_block=mask_block, period=period, wait=period - 1)

    # ------------------------------------------------------------------------------------------------- a plan

    def _plan(
        self, layout: BucketLayout, fixed: Mapping[str, Encoding], packet_block: int | None
    ) -> EncodingPlan:
        encodings = {segment.name: fixed.get(segment.name) or self._encoding(segment) for segment in layout}
        tables = [self._table(segment) for segment in layout]
        mask_blocks = [encodings[segment.name].mask_block for segment in layout]
        blocks = forecast.block_sizes(self._form) if packet_block is None else (packet_block,)
        total, tree, chosen, levels = self._cheapest(tables, mask_blocks, blocks)
        predicted = total / self._workers
        if any(segment.name not in self._parameters for segment in layout):
            reason = "not counted yet"
        else:
            reason = f"{_names(mask_blocks)}: {_megabytes(predicted)} up and down predicted"
            if not all(segment.name in fixed for segment in layout):
                reason += self._alternatives(tables)
        regions = {
            name: self._tables[name].region(encoding.mask_block)
            for name, encoding in encodings.items()
            if encoding.mask_block is not None and name in self._tables
        }
        return EncodingPlan(encodings, chosen, levels, reason, predicted, regions, tree / self._workers)

    def in_lists(
        self, layout: BucketLayout, plan: EncodingPlan, capacities: Mapping[str, int]
    ) -> EncodingPlan:
        """Return the plan with lists of positions, if they cost less than its mask tree; otherwise as it is.

        capacities: blocks that each worker chooses at most, by parameter with a mask.
        """
        region = region_of(layout, plan.encodings, capacities)
        lists = forecast.lists_bytes(region, self._job) / self._workers
        if lists >= plan.tree + forecast.waiting_bytes(plan.levels, self._job) / self._workers:
            return plan
        return replace(plan, capacities=capacities, predicted=plan.predicted - plan.tree + lists)

    def _alternatives(self, tables: list[_Table]) -> str:
        """Return why: what it would cost otherwise."""
        others = {
            mask_block: self._cheapest(tables, [mask_block] * len(tables), forecast.block_sizes(self._form))[
                0
            ]
            / self._workers
            for mask_block in MASKS
        }
        best = min((mask_block for mask_block in MASK_SIZES), key=lambda mask_block: others[mask_block])
        return f", dense {_megabytes(others[None])}, best of one size {best}: {_megabytes(others[best])}"

    def _encoding(self, segment: Segment) -> Encoding:
        known = self._parameters.get(segment.name)
        return DENSE if known is None else Encoding(known.mask_block)

    def _table(self, segment: Segment) -> _Table:
        """Return a parameter's table; where it was never counted, as if everything were sent."""
        return self._tables.get(segment.name) or _Table(_everything(segment.length), self._job)

    def _cheapest(
        self, tables: list[_Table], mask_blocks: list[int | None], blocks: tuple[int, ...]
    ) -> tuple[float, float, int, int]:
        """Return bytes of all workers both ways, those of the mask tree, and the block and levels to have
        them with.
        """
        parts = list(zip(tables, mask_blocks, strict=True))
        job, total, tree, levels = self._job, 0.0, 0.0, 1
        scales = sum_in_order(table.scales(mask_block) for table, mask_block in parts)
        if any(mask_block is not None for mask_block in mask_blocks):
            words = MaskWords.sum(
                table.words(mask_block) for table, mask_block in parts if mask_block is not None
            )
            levels = min(
                TREE_LEVELS,
                key=lambda n: forecast.tree_bytes(words, n, job, scales) + forecast.waiting_bytes(n, job),
            )
            total = forecast.tree_bytes(words, levels, job, scales)
            tree = forecast.tree_bytes(words, levels, job)
        else:
            total = forecast.bitmap_bytes(
                sum_in_order(table.lanes(None, SCALE_BLOCK).blocks for table in tables), job
            )
            total += forecast.scales_bytes(scales, job)
        lanes, packet_block = min(
            (
                forecast.lanes_bytes(
                    PackedBlocks.sum(t.lanes(mask_block, packet_block) for t, mask_block in parts),
                    packet_block,
                    job,
                ),
                packet_block,
            )
            for packet_block in blocks
        )
        return total + lanes, tree, packet_block, levels


def _restored(state: Mapping[str, Any]) -> _Parameter:
    counts = state["counts"]
    union, shares, packed = (tuple(counts[what]) for what in ("union", "shares", "packed"))
    known = Counts(counts["length"], union, shares, _mask_block(counts), packed)
    return _Parameter(known, _mask_block(state), state["period"], state["wait"])


def _mask_block(state: Mapping[str, Any]) -> int | None:
    """Return a saved mask block, also of a state saved when it was called a mask."""
    found: int | None = state["mask_block"] if "mask_block" in state else state["mask"]
    return found


def _share(n: int, of: int) -> float:
    return min(1.0, n / of) if of else 0.0


def _everything(length: int) -> Counts:
    """Count of a parameter of which every worker sends everything."""
    union = tuple(-(-length >> level) for level in range(UNION_LEVELS))
    return Counts(length, union, (1.0,) * pyramid.LEVELS, None, (1.0,) * len(BLOCK_SIZES))


def _names(mask_blocks: list[int | None]) -> str:
    counted = Counter(mask_blocks)
    names = {
        mask_block: "dense" if mask_block is None else f"blocks of {mask_block}" for mask_block in counted
    }
    if len(names) == 1:
        return names[mask_blocks[0]]
    return ", ".join(f"{names[mask_block]} ({n})" for mask_block, n in counted.most_common())


def _megabytes(count: float) -> str:
    return f"{count / 1e6:.3g} MB"
