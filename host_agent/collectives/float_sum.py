# SPDX-License-Identifier: Apache-2.0
"""Sums of floats: a maximum over shared block scales, then a sum of fixed-point lanes.

The workers first agree on one scale per block of values (MAX; in a long sparse vector only of the blocks that
a bitmap, OR, shows to be non-zero on some worker), then each turns its values into integers
of that scale, with headroom for as many workers as there are, and the network adds those (ADD). Integer
addition commutes, so every worker gets the same bits whatever the order of arrival. The error bounds are
derived in ``weir.host_agent.collectives.quantize``, ``.packing`` and ``.limbs``.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from weir.host_agent.collectives import limbs, quantize
from weir.host_agent.collectives.communicator import Audience, Communicator, fitting_block, wanted
from weir.host_agent.collectives.dtypes import LANE_BYTES, Lanes
from weir.host_agent.collectives.non_finite import (
    Namer,
    Places,
    Values,
    are_spoilt,
    check_finite,
    culprits,
    take_out,
)
from weir.host_agent.collectives.packing import LaneFormat, WholeLanes
from weir.host_agent.collectives.parts import Parts, reduce_parts
from weir.host_agent.collectives.quantize import Fixed, Floats, Rows, Sample
from weir.host_agent.transport.report import ReduceReport
from weir.host_agent.transport.service_class import LOSSLESS, ServiceClass
from weir.host_agent.transport.slot_transport import FloatScales
from weir.wire.definition import GROUP_LANES, SLOT_LANES, WIDE_LANES, Op

WORTH_ASKING: Final = 512
"""Blocks: from here on the workers may first ask which are not zero, by a bitmap."""

WORTH_A_ROUND_TRIP: Final = 1 << 14
"""Bytes that asking first must save a worker, or it does not: chosen here, 1.3 ms of 100 Mbit/s."""

WORTH_SELECTING: Final = 1 / 2
"""Of the blocks: with more, copying them out and in costs more than it saves."""

GATHERED_LANES: Final = 4096
"""Chosen here: sums of which all workers' values take no more are made by every worker itself, of all of
them. That is one round trip instead of two, of 16 packets at most.
"""

EXACT_VALUES: Final = 1024
"""Chosen here: sums of no more values are made in limbs. They are 48 packets, which travel together."""

WIDE_VALUES: Final = 64 * WIDE_LANES
"""Chosen here: sums of fewer values travel in blocks of SLOT_LANES, which spread over more slots."""

MOST_ZEROS: Final = 16
"""Chosen here: one block in this many may be zero where a sum travels in wide ones, which are skipped
whole."""

NO_NOTES: Final = np.empty(0, np.uint32)

_log = logging.getLogger(__name__)
_has_warned = False


class Vector(Protocol):
    """Float32 values to be summed, which may be on a device."""

    @property
    def size(self) -> int:
        """Return how many they are."""

    def numbers(self) -> Floats:
        """Return them in main memory."""

    def scales(self, form: LaneFormat, scale_block: int) -> Lanes:
        """Return the scale of each block, see ``LaneFormat.scales``."""

    def lanes(
        self,
        form: LaneFormat,
        rows: Rows | None,
        scales: Lanes,
        scale_block: int,
        take: Callable[[int], Fixed],
    ) -> Fixed:
        """Return lanes in main memory, see ``LaneFormat.encode``."""


class HostVector:
    """Float32 values in main memory, flat."""

    def __init__(self, values: Floats) -> None:
        self._values = values
        self.size = values.size

    def numbers(self) -> Floats:
        """Return the values themselves."""
        return self._values

    def scales(self, form: LaneFormat, scale_block: int) -> Lanes:
        """Return the scale of each block."""
        return form.scales(self._values, scale_block)

    def lanes(
        self,
        form: LaneFormat,
        rows: Rows | None,
        scales: Lanes,
        scale_block: int,
        take: Callable[[int], Fixed],
    ) -> Fixed:
        """Return lanes in memory from ``take``."""
        return form.encode(self._values, rows, scales, scale_block, take)


@dataclass(frozen=True)
class Scales:
    """The scales that all workers agreed on.

    values: one for each block. unit: values of the vector in a block. rows: the blocks that they are of,
    where the others are zero on every worker; None: all of them. apart: where the sum is not finite; None:
    nowhere.
    """

    values: Lanes
    unit: int
    rows: quantize.Rows | None = None
    apart: Places | None = None


@dataclass(frozen=True)
class Contribution:
    """One worker's part of a float32 sum: fixed-point lanes, and the scale that all workers agreed on.

    rows: which blocks of the vector the lanes and scales are of, the same on every worker; None: all of
    them. The others are zero on every worker. count: values of the vector. scale_block: values that
    share a scale. packet_block: lanes in a block of the packets, the unit of what is skipped and lost; where
    there are rows and budgets, it divides the lanes of a ``scale_block``. form: of values in lanes.
    apart: where the sum is not finite, whatever the lanes say; None: nowhere.
    """

    lanes: npt.NDArray[np.int32]
    scales: Lanes
    rows: quantize.Rows | None
    count: int
    scale_block: int
    packet_block: int
    form: LaneFormat
    apart: Places | None = None

    def add(
        self,
        communicator: Communicator,
        *,
        keep: bool,
        service: ServiceClass = LOSSLESS,
        audience: Audience | None = None,
        notes: Lanes = NO_NOTES,
    ) -> tuple["Contribution", ReduceReport]:
        """Return the sum of all workers' contributions, itself in this form, and how it was made.

        keep: leave this contribution as it is, but for blocks that no result included: those become zero.
        Otherwise its memory becomes the sum's. service: with budgets, for lanes of whole blocks only; its
        arrays are of the packets' blocks in ``lanes``. audience: of the same blocks. notes: lanes that
        travel along, and become their sum; without budgets and audiences only.
        """
        lanes = whole = self.lanes.copy() if keep else self.lanes
        if notes.size:
            padding = np.zeros(-lanes.size % self.packet_block, np.int32)
            whole = np.concatenate([lanes, padding, notes.view(np.int32)])
        report = communicator.reduce_lanes(
            whole.view(np.uint32), Op.ADD, self.packet_block, service, audience
        )
        if notes.size:
            lanes, notes[:] = whole[: lanes.size], whole[-notes.size :].view(np.uint32)
        if keep and report.given_back.blocks.size:
            give_back(self.lanes, report.given_back.blocks, self.packet_block)
        return replace(self, lanes=lanes), report

    def places(self) -> npt.NDArray[np.uint32] | None:
        """Return which packet block of the vector each one in ``lanes`` is; None: the same one."""
        if self.rows is None:
            return None
        parts = np.arange(self.form.lanes(self.scale_block) // self.packet_block, dtype=np.uint32)
        found: npt.NDArray[np.uint32] = (self.rows[:, np.newaxis] * np.uint32(parts.size) + parts).reshape(-1)
        return found

    def scales_of(self, values: int) -> Lanes:
        """Return the greatest scale of each run of this many values of the vector, whole blocks: 0 where all
        workers' are zero.
        """
        scales = self.scales
        if self.rows is not None:
            scales = np.zeros(-(-self.count // self.scale_block), np.uint32)
            scales[self.rows] = self.scales
        return np.asarray(scales.reshape(-1, values // self.scale_block).max(axis=1))

    def occupied(self) -> npt.NDArray[np.bool_]:
        """Return for each packet block in ``lanes`` whether it is sent: it is not zero here."""
        return np.asarray(self.lanes.reshape(-1, self.packet_block).any(axis=1))

    def values(self) -> npt.NDArray[np.float32]:
        """Return the vector that the lanes stand for.

        Of a worker's own contribution this is exact: lanes have no more significant bits than a float32. A
        sum is rounded once, where it has more.
        """
        vector = np.zeros(self.count, np.float32)
        self.write(vector)
        return vector

    def part(self, blocks: npt.NDArray[np.intp]) -> "Contribution":
        """Return what it says of some of its blocks of values; a copy."""
        rows = blocks.astype(np.uint32) if self.rows is None else self.rows[blocks]
        lanes = self.lanes.reshape(-1, self.form.lanes(self.scale_block))[blocks].reshape(-1)
        return replace(self, lanes=lanes, scales=self.scales[blocks], rows=rows)

    def write(self, vector: npt.NDArray[np.float32]) -> None:
        """Overwrite the blocks of ``vector`` that the lanes are of."""
        self.form.decode(self.lanes, self.rows, self.scales, self.scale_block, vector)
        if self.apart is not None:
            self.apart.write(vector)


def packet_block_of(form: LaneFormat, values: int) -> int:
    """Return the lanes of the largest blocks of packets that ``values`` of a block fill."""
    return largest_block(form.lanes(values))


def largest_block(lanes: int) -> int:
    """Return the largest block of a power of two lanes that divides this number."""
    return lanes & -lanes


def give_back(flat: npt.NDArray[Any], blocks: npt.NDArray[np.integer[Any]], packet_block: int) -> None:
    """Zero ``blocks`` of ``flat``, a whole number of blocks: what no result included is not delivered."""
    flat.reshape(-1, packet_block)[blocks] = 0


def encode(
    communicator: Communicator,
    values: Vector,
    name: Namer,
    scale_block: int,
    *,
    form: LaneFormat | None = None,
    packet_block: int | None = None,
    service: ServiceClass = LOSSLESS,
    dense: bool = False,
    deliver: bool = False,
) -> Contribution:
    """Agree with all workers on the scale of every block, and put ``values`` to it.

    Where many blocks are zero on all workers, the lanes are of the others alone. They are in memory that the
    next call takes again.

    Args:
        communicator: of all workers, which make the same call.
        values: they stay as they are, but for what ``deliver`` takes out.
        name: describes a value by flat index, for errors.
        scale_block: values that share a scale.
        form: of values in lanes, by default one in each.
        packet_block: lanes in a block of the packets, by default as many as fit the values that share a
            scale where blocks are skipped, else as many as fit a packet.
        service: the layer class of the packets; without budgets.
        dense: hardly any block is zero on all workers, so they do not ask each other which.
        deliver: NaN and infinity become zero in ``values``, which are in main memory, and stand ``apart``.

    Raises:
        NonFiniteError: some value of some worker is NaN or infinite, and ``deliver`` is false; on every
            worker.
    """
    form = form or WholeLanes(communicator.size)
    scales = agree(communicator, values, name, scale_block, form, service, dense=dense, deliver=deliver)
    return contribute(communicator, values, scales, form, packet_block)


def agree(
    communicator: Communicator,
    values: Vector,
    name: Namer,
    scale_block: int,
    form: LaneFormat,
    service: ServiceClass = LOSSLESS,
    *,
    dense: bool = False,
    notes: Lanes = NO_NOTES,
    zeros: Lanes = NO_NOTES,
    deliver: bool = False,
) -> Scales:
    """Agree with all workers on the scale of every block; see ``encode``.

    Args:
        communicator, values, name, scale_block, form, dense, deliver: as there.
        service: the layer class of the packets; without budgets.
        notes: lanes that travel along, and become their maximum over all workers.
        zeros: instead of notes; becomes how many blocks are zero on the worker with most.

    Raises:
        NonFiniteError: as there.
    """
    blocks = _Blocks(
        values.numbers, lambda: values.scales(form, scale_block), name, scale_block, form.not_finite
    )
    own = blocks.exponents()
    if zeros.size:
        zeros[0] = own.size - np.count_nonzero(own)
        notes = zeros
    rows = None if dense else _occupied(communicator, own, service)
    shared = _greatest(communicator, own, rows, service, notes)
    apart = _set_apart(communicator, blocks, shared, rows, deliver=deliver)
    if not dense and own.size >= WORTH_ASKING:
        whole = _whole(communicator, own, rows, shared)
        rows = np.flatnonzero(whole).astype(np.uint32)
        rows, shared = (rows, whole[rows]) if rows.size <= own.size * WORTH_SELECTING else (None, whole)
    return Scales(shared, scale_block, rows, apart)


def contribute(
    communicator: Communicator,
    values: Vector,
    scales: Scales,
    form: LaneFormat,
    packet_block: int | None = None,
) -> Contribution:
    """Put ``values`` to the scales that all workers agreed on; the rest: see ``encode``."""
    lanes = values.lanes(form, scales.rows, scales.values, scales.unit, communicator.scratch.take)
    if packet_block is None:
        fits = scales.rows is None
        packet_block = fitting_block(lanes.size) if fits else packet_block_of(form, scales.unit)
    return Contribution(
        lanes, scales.values, scales.rows, values.size, scales.unit, packet_block, form, scales.apart
    )


def add_in_place(
    communicator: Communicator,
    values: Floats,
    scales: Scales,
    form: WholeLanes,
    packet_block: int,
    service: ServiceClass = LOSSLESS,
) -> ReduceReport | None:
    """Replace ``values`` by their sum over all workers, without memory for lanes; None: this cannot be done.

    The sum is that of ``contribute`` and ``Contribution.add``, bit for bit. The same on every worker.

    Args:
        communicator, form, packet_block, service: as there.
        values: undefined if the network fails.
        scales: that all workers agreed on, of all blocks.
    """
    exponents = FloatScales(scales.values, scales.unit, quantize.headroom(form.workers))
    return communicator.sum_floats(values, exponents, packet_block, service)


def sum_float32(
    communicator: Communicator,
    values: npt.NDArray[np.float32],
    name: Namer,
    parts: Parts | None = None,
    block: int | None = None,
) -> None:
    """Replace a vector, or this worker's part of it, by its sum over all workers.

    Few values (GATHERED_LANES) are gathered and added here. Sums of up to EXACT_VALUES, and of all where
    ``communicator.precision`` says so, are made in limbs, others in its form. NaN and infinity are delivered
    or raise NonFiniteError on every worker, as it says. If it raises, the vector keeps its values. If the
    network fails, its values are undefined.

    block: values that share a scale and a block of packets, where each worker has other blocks and hardly any
    is zero on all of them; None: as many as fit the vector. Not together with parts.
    """
    if parts is None and _gathered(communicator, values.size):
        _sum_here(communicator, values, name)
        return
    if _in_limbs(communicator, values.size):
        wide = values.astype(np.float64)
        sum_float64(communicator, wide, name, parts)
        with np.errstate(over="ignore"):  # infinity is the sum, then
            values[:] = wide
        return
    form = communicator.precision.form(communicator.size)
    scale_block = block or (fitting_block(values.size) if parts is None else parts.block)
    whole = form if parts is None and isinstance(form, WholeLanes) else None
    may_be_wide = whole is not None and block is None and communicator.wide and values.size >= WIDE_VALUES
    most_zeros = np.zeros(int(may_be_wide), np.uint32)
    vector = HostVector(values)
    scales = agree(
        communicator,
        vector,
        name,
        scale_block,
        form,
        dense=block is not None,
        zeros=most_zeros,
        deliver=communicator.precision.delivers,
    )
    if whole is not None and scales.rows is None:
        looks = communicator.warns and not _has_warned
        looked_at = Sample(values, scales.values, scale_block, whole.workers) if looks else None
        if add_in_place(communicator, values, scales, whole, block or _sum_block(values.size, most_zeros)):
            if looked_at is not None:
                _warn_once(looked_at.coarse_block(values), scale_block, name)
            if scales.apart is not None:
                scales.apart.write(values)
            return
    packets = packet_block_of(form, block) if block is not None else None
    mine = contribute(communicator, vector, scales, form, packets)
    total = (
        mine.add(communicator, keep=False)[0] if parts is None else _sum_of_part(communicator, mine, parts)
    )
    if isinstance(form, WholeLanes) and communicator.warns and not _has_warned:
        coarse = quantize.coarse_block(
            values, total.lanes, total.rows, total.scales, scale_block, form.workers
        )
        _warn_once(coarse, scale_block, name)
    total.write(values)


def _sum_block(count: int, most_zeros: Lanes) -> int:
    """Return in which blocks a sum of this many values travels: wide ones, if they may and no worker could
    skip much in others.

    most_zeros: how many scale blocks are zero on the worker with most; empty: wide ones may not.
    """
    fitting = fitting_block(count)
    if most_zeros.size and most_zeros[0] * fitting * MOST_ZEROS <= count:
        return WIDE_LANES
    return fitting


def in_fixed_point(communicator: Communicator, count: int) -> bool:
    """Return whether ``sum_float32`` makes the whole sum of this many values by ``encode`` and ``add``."""
    return not _gathered(communicator, count) and not _in_limbs(communicator, count)


def _gathered(communicator: Communicator, count: int) -> bool:
    return count * communicator.size <= GATHERED_LANES


def _in_limbs(communicator: Communicator, count: int) -> bool:
    return communicator.precision.exact or count <= EXACT_VALUES


def _sum_of_part(communicator: Communicator, mine: Contribution, parts: Parts) -> Contribution:
    """Return the sum of this worker's part over all workers' contributions."""
    owners = parts.of_blocks(mine.count, block=mine.scale_block)
    lanes = mine.form.lanes(mine.scale_block)
    if mine.rows is None:
        block = min(largest_block(lanes * parts.unit // mine.scale_block), SLOT_LANES)
        audience = parts.of_blocks(mine.lanes.size, block=block)
    else:
        block = largest_block(lanes)
        owners = owners[mine.rows]
        audience = np.repeat(owners, lanes // block)
    total, _ = replace(mine, packet_block=block).add(communicator, keep=False, audience=audience)
    return total.part(np.flatnonzero(wanted(owners, communicator.rank)))


def _warn_once(block: int | None, scale_block: int, name: Namer) -> None:
    """Say once in a process that a sum has lost much of what float32 could hold, if it has: in this block."""
    global _has_warned  # noqa: PLW0603
    if block is None:
        return
    _has_warned = True
    _log.warning(
        "rank 0: %s: the magnitudes within a block of %d values differ so much there that many of the small "
        "values are off by more than 1 %% in the sum. If these are gradients, training tolerates it. If each "
        "value counts, as in statistics or weights, make the group with GroupOptions(exact=True), or reduce "
        "float64 tensors. (Only rank 0 warns, once, and not about sums that a backward pass issues.)",
        name(block * scale_block),
        scale_block,
    )


def sum_float64(
    communicator: Communicator, values: npt.NDArray[np.float64], name: Namer, parts: Parts | None = None
) -> None:
    """Do ``sum_float32`` for float64: three limb lanes a value, where they are not few."""
    if parts is None and 2 * values.size * communicator.size <= GATHERED_LANES:
        _sum_here(communicator, values, name)
        return
    scale_block = fitting_block(values.size) if parts is None else parts.block
    blocks = _Blocks(
        lambda: values, lambda: limbs.exponents64(values, scale_block), name, scale_block, limbs.NOT_FINITE64
    )
    exponents = blocks.exponents()
    rows = _occupied(communicator, exponents)
    shared = _greatest(communicator, exponents, rows)
    apart = _set_apart(communicator, blocks, shared, rows, deliver=communicator.precision.delivers)
    exponents = _whole(communicator, exponents, rows, shared)
    lanes = limbs.split_float64(values, exponents, scale_block, communicator.size)
    values[:] = limbs.join_float64(
        reduce_parts(communicator, lanes.reshape(-1), Op.ADD, parts, limbs.LIMBS),
        exponents,
        scale_block,
        communicator.size,
    )
    if apart is not None:
        apart.write(values)


def _sum_here(communicator: Communicator, values: npt.NDArray[np.floating[Any]], name: Namer) -> None:
    """Gather all workers' values and add them, in rank order, to what is nearest to their exact sum.

    Errors of the additions are themselves added up (Knuth's TwoSum), so the result is that of twice the
    precision of float64, rounded.
    """
    everyone = np.zeros((communicator.size, values.size), values.dtype)
    everyone[communicator.rank] = values
    communicator.reduce_vector(everyone.reshape(-1).view(np.uint32), Op.OR)
    if not communicator.precision.delivers and not np.isfinite(everyone).all():
        raise culprits(~np.isfinite(everyone), name, communicator.rank)
    with np.errstate(over="ignore", invalid="ignore"):  # infinity is the sum, then
        total, error = everyone[0].astype(np.float64), np.zeros(values.size)
        for row in everyone[1:]:
            addend, before = row.astype(np.float64), total
            total = before + addend
            of_addend = total - before
            error += (before - (total - of_addend)) + (addend - of_addend)
        values[:] = np.where(np.isfinite(total), total + error, total)
    values[np.isnan(values)] = np.nan  # whose other bits depend on the processor


def _greatest(
    communicator: Communicator,
    exponents: Lanes,
    rows: quantize.Rows | None,
    service: ServiceClass = LOSSLESS,
    notes: Lanes = NO_NOTES,
) -> Lanes:
    """Return the greatest of all workers' exponents of the blocks ``rows``, None: of all; and so for the
    notes.
    """
    mine = exponents if rows is None else exponents[rows]
    # Sparse on one worker: small blocks skip more.
    found = communicator.reduce_vector(np.concatenate([mine, notes]), Op.MAX, GROUP_LANES, service)
    shared, notes[:] = found[: mine.size], found[mine.size :]
    return shared


@dataclass(frozen=True)
class _Blocks:
    """This worker's vector in blocks that have an exponent each.

    values: returns it. exponents: returns those of its values now. name: describes a value by its index, for
    errors. size: values in a block. not_finite: the exponent of a block with NaN or infinity.
    """

    values: Callable[[], Values]
    exponents: Callable[[], Lanes]
    name: Namer
    size: int
    not_finite: int


def _set_apart(
    communicator: Communicator,
    blocks: _Blocks,
    shared: Lanes,
    rows: quantize.Rows | None,
    *,
    deliver: bool,
) -> Places | None:
    """Return where the sum is not finite, None: nowhere. There, ``take_out`` the values, and agree on the
    exponents of the rest of their blocks.

    Args:
        communicator: of all workers, which make the same call.
        blocks: this worker's.
        shared: the exponents that all workers agreed on, one for each of ``rows``; overwritten.
        rows: numbers of blocks; None: all.
        deliver: whether the sum goes on.

    Raises:
        NonFiniteError: the sum is not finite somewhere, and does not go on.
    """
    if not deliver:
        check_finite(communicator, shared, blocks.not_finite, blocks.values, blocks.name)
    if not are_spoilt(shared, blocks.not_finite):
        return None
    found = np.flatnonzero(shared >= blocks.not_finite)
    spoilt = found if rows is None else rows[found]
    places = take_out(communicator, blocks.values(), spoilt, blocks.size)
    shared[found] = communicator.reduce_vector(blocks.exponents()[spoilt], Op.MAX)
    return places


def _occupied(
    communicator: Communicator, exponents: Lanes, service: ServiceClass = LOSSLESS
) -> quantize.Rows | None:
    """Return which blocks are not zero on some worker. None, for all: of short vectors, and of those whose
    last sum of as many blocks says that a bitmap is not worth a round trip.
    """
    if exponents.size < WORTH_ASKING or not communicator.sparse.get(exponents.size, True):
        return None
    return np.flatnonzero(communicator.any_of(exponents != 0, service)).astype(np.uint32)


def _whole(communicator: Communicator, exponents: Lanes, rows: quantize.Rows | None, shared: Lanes) -> Lanes:
    """Return the exponents of all blocks, given those of ``rows``, and remember whether a bitmap of such a
    vector is worth a round trip. May overwrite ``exponents``, this worker's.
    """
    if rows is None:
        exponents = shared
    else:
        exponents[rows] = shared  # the others are zero on every worker
    if exponents.size >= WORTH_ASKING:
        communicator.sparse[exponents.size] = worth_asking(exponents != 0)
    return exponents


def worth_asking(occupied: npt.NDArray[np.bool_]) -> bool:
    """Return whether a bitmap of a vector's blocks saves more bytes of exponents than a round trip is worth.

    Exponents travel in blocks of GROUP_LANES, of which those without any are left out. occupied: which blocks
    are not zero on some worker.
    """
    groups = np.add.reduceat(occupied, np.arange(0, occupied.size, GROUP_LANES), dtype=np.intp)
    lanes = GROUP_LANES * int(np.count_nonzero(groups)) - int(groups.sum())
    return LANE_BYTES * lanes - occupied.size // 8 > WORTH_A_ROUND_TRIP
