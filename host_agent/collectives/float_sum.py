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
from typing import Any, Final, Protocol, Self

import numpy as np
import numpy.typing as npt

from weir.host_agent.collectives import limbs, quantize
from weir.host_agent.collectives.communicator import Audience, Communicator, fitting_block, wanted
from weir.host_agent.collectives.dtypes import LANE_BYTES, Lanes, lanes_for
from weir.host_agent.collectives.packing import LaneFormat, WholeLanes
from weir.host_agent.collectives.parts import Parts, reduce
from weir.host_agent.collectives.quantize import Fixed, Floats, Rows, Sample
from weir.host_agent.transport.report import ReduceReport
from weir.host_agent.transport.service_class import LOSSLESS, ServiceClass
from weir.host_agent.transport.slot_transport import FloatScales
from weir.wire.definition import GROUP_LANES, SLOT_LANES, WIDE_LANES, Op

_LAST = np.uint32(0xFFFFFFFF)
WORTH_ASKING: Final = 512
"""Blocks: from here on the workers may first ask which are not zero, by a bitmap."""

WORTH_A_ROUND_TRIP: Final = 1 << 14
"""Bytes that asking first must save a worker, or it does not: our choice, 1.3 ms of 100 Mbit/s."""

WORTH_SELECTING: Final = 1 / 2
"""Of the blocks: with more, copying them out and in costs more than it saves."""

GATHERED_LANES: Final = 4096
"""Our choice: sums of which all workers' values take no more are made by every worker itself, of all of them.
That is one round trip instead of two, of 16 packets at most.
"""

EXACT_VALUES: Final = 1024
"""Our choice: sums of no more values are made in limbs. They are 48 packets, which travel together."""

WIDE_VALUES: Final = 64 * WIDE_LANES
"""Our choice: sums of fewer values travel in blocks of SLOT_LANES, which spread over more slots."""

MOST_ZEROS: Final = 16
"""Our choice: one block in so many may be zero where a sum travels in wide ones, which are skipped whole."""

NO_NOTES: Final = np.empty(0, np.uint32)

Namer = Callable[[int], str]

_log = logging.getLogger(__name__)
_has_warned = False


class NonFiniteError(ArithmeticError):
    """Some worker's input to a sum held NaN or infinity. Raised on every worker; nothing was summed.

    ranks: the workers whose input it was. index: flat index of the first such element over all of them.
    """

    def __init__(self, what: str, ranks: tuple[int, ...], index: int, rank: int) -> None:
        who = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
        super().__init__(
            f"NaN or infinity on {who}: {what} (reported on rank {rank}). Nothing was summed; "
            "the group stays usable. Look for a loss that diverged or a division by zero there."
        )
        self.ranks = ranks
        self.index = index
        self._given = (what, ranks, index, rank)

    def __reduce__(self) -> tuple[type[Self], tuple[str, tuple[int, ...], int, int]]:
        """Let it cross processes whole: by default an exception is made anew from its message alone."""
        return type(self), self._given


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
class Contribution:
    """One worker's part of a float32 sum: fixed-point lanes, and the scale that all workers agreed on.

    rows: which blocks of the vector the lanes and scales are of, the same on every worker; None: all of
    them. The others are zero on every worker. count: values of the vector. scale_block: values that
    share a scale. packet_block: lanes in a block of the packets, the unit of what is skipped and lost; where
    there are rows and budgets, it divides the lanes of a ``scale_block``. form: of values in lanes.
    """

    lanes: npt.NDArray[np.int32]
    scales: Lanes
    rows: quantize.Rows | None
    count: int
    scale_block: int
    packet_block: int
    form: LaneFormat

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
        """Return the greatest scale of every so many values of the vector, whole blocks: 0 where all workers'
        are zero.
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


def packet_block_of(form: LaneFormat, values: int) -> int:
    """Return the lanes of the largest blocks of packets that ``values`` of a block fill."""
    return largest_block(form.lanes(values))


def largest_block(lanes: int) -> int:
    """Return the largest block of a power of two lanes that divides so many."""
    return lanes & -lanes


def give_back(flat: npt.NDArray[Any], blocks: npt.NDArray[np.integer[Any]], packet_block: int) -> None:
    """Zero ``blocks`` of ``flat``, a whole number of blocks: what no result included is not delivered."""
    flat.reshape(-1, packet_block)[blocks] = 0


def encode(
    communicator: Communicator,
    values: Vector,
    name: Namer,
    scale_block: int,
    service: ServiceClass = LOSSLESS,
    *,
    form: LaneFormat | None = None,
    packet_block: int | None = None,
    dense: bool = False,
    notes: Lanes = NO_NOTES,
) -> Contribution:
    """Agree with all workers on the scale of every block, and put ``values`` to it.

    Where many blocks are zero on all workers, the lanes are of the others alone. They are in memory that the
    next call takes again.

    Args:
        communicator: of all workers, which make the same call.
        values: they stay as they are.
        name: describes a value by flat index, for errors.
        scale_block: values that share a scale.
        service: the layer class of the packets; without budgets.
        form: of values in lanes, by default one in each.
        packet_block: lanes in a block of the packets, by default as many as fit the values that share a
            scale where blocks are skipped, else as many as fit a packet.
        dense: hardly any block is zero on all workers, so they do not ask each other which.
        notes: lanes that travel with the scales, and become their maximum over all workers.

    Raises:
        NonFiniteError: some value of some worker is NaN or infinite; on every worker.
    """
    form = form or WholeLanes(communicator.size)
    rows, shared = _scales(communicator, values, name, scale_block, form, service, dense, notes)
    return contribute(communicator, values, shared, rows, scale_block, form, packet_block)


def _scales(
    communicator: Communicator,
    values: Vector,
    name: Namer,
    scale_block: int,
    form: LaneFormat,
    service: ServiceClass = LOSSLESS,
    dense: bool = False,
    notes: Lanes = NO_NOTES,
    zeros: Lanes = NO_NOTES,
) -> tuple[quantize.Rows | None, Lanes]:
    """Return the blocks that are worth to be selected, None: all, and the scales that all workers agreed on
    for them; see ``encode``. zeros: instead of notes; how many blocks are zero on the worker with most.
    """
    scales = values.scales(form, scale_block)
    if zeros.size:
        zeros[0] = scales.size - np.count_nonzero(scales)
        notes = zeros
    rows = None if dense else _occupied(communicator, scales, service)
    shared = _agree(communicator, scales, rows, form.not_finite, values.numbers, name, service, notes)
    if not dense and scales.size >= WORTH_ASKING:
        whole = _whole(communicator, scales, rows, shared)
        rows = np.flatnonzero(whole).astype(np.uint32)
        rows, shared = (rows, whole[rows]) if rows.size <= scales.size * WORTH_SELECTING else (None, whole)
    return rows, shared


def contribute(
    communicator: Communicator,
    values: Vector,
    scales: Lanes,
    rows: quantize.Rows | None,
    scale_block: int,
    form: LaneFormat,
    packet_block: int | None = None,
) -> Contribution:
    """Put ``values`` to the scales that all workers agreed on, those of the blocks ``rows``; the rest: see
    ``encode``.
    """
    lanes = values.lanes(form, rows, scales, scale_block, communicator.scratch.take)
    if packet_block is None:
        packet_block = fitting_block(lanes.size) if rows is None else packet_block_of(form, scale_block)
    return Contribution(lanes, scales, rows, values.size, scale_block, packet_block, form)


def sum_float32(
    communicator: Communicator,
    values: npt.NDArray[np.float32],
    name: Namer,
    parts: Parts | None = None,
    block: int | None = None,
) -> None:
    """Replace a vector, or this worker's part of it, by its sum over all workers.

    Few values (GATHERED_LANES) are gathered and added here. Sums of up to EXACT_VALUES, and of all where
    ``communicator.precision`` says so, are made in limbs, others in its form. On errors, those of ``encode``,
    the vector keeps its values; when the network fails it may be of no use.

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
    rows, scales = _scales(
        communicator, vector, name, scale_block, form, dense=block is not None, zeros=most_zeros
    )
    if whole is not None and rows is None:
        looked_at = None if _has_warned else Sample(values, scales, scale_block, whole.workers)
        exponents = FloatScales(scales, scale_block, quantize.headroom(whole.workers))
        if communicator.sum_floats(values, exponents, block or _sum_block(values.size, most_zeros)):
            if looked_at is not None:
                _warn_once(looked_at.coarse_block(values), scale_block, name)
            return
    packets = packet_block_of(form, block) if block is not None else None
    mine = contribute(communicator, vector, scales, rows, scale_block, form, packets)
    total = (
        mine.add(communicator, keep=False)[0] if parts is None else _sum_of_part(communicator, mine, parts)
    )
    if isinstance(form, WholeLanes) and not _has_warned:
        coarse = quantize.coarse_block(
            values, total.lanes, total.rows, total.scales, scale_block, form.workers
        )
        _warn_once(coarse, scale_block, name)
    total.write(values)


def _sum_block(count: int, most_zeros: Lanes) -> int:
    """Return in which blocks a sum of so many values travels: wide ones, if they may and no worker could skip
    much in others.

    most_zeros: how many scale blocks are zero on the worker with most; empty: wide ones may not.
    """
    fitting = fitting_block(count)
    if most_zeros.size and most_zeros[0] * fitting * MOST_ZEROS <= count:
        return WIDE_LANES
    return fitting


def in_fixed_point(communicator: Communicator, count: int) -> bool:
    """Return whether ``sum_float32`` makes the whole sum of so many values by ``encode`` and ``add``."""
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
        "%s: values that are summed in blocks of %d differ so much there that many of the small ones are off "
        "by more than 1 %%. Where that matters, make the group with GroupOptions(exact=True), or reduce "
        "float64 tensors. (Said once.)",
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
    exponents = limbs.exponents64(values, scale_block)
    rows = _occupied(communicator, exponents)
    shared = _agree(communicator, exponents, rows, limbs.NOT_FINITE64, lambda: values, name)
    exponents = _whole(communicator, exponents, rows, shared)
    lanes = limbs.split_float64(values, exponents, scale_block, communicator.size)
    values[:] = limbs.join_float64(
        reduce(communicator, lanes.reshape(-1), Op.ADD, parts, limbs.LIMBS),
        exponents,
        scale_block,
        communicator.size,
    )


def _sum_here(communicator: Communicator, values: npt.NDArray[np.floating[Any]], name: Namer) -> None:
    """Gather all workers' values and add them, in rank order, to what is nearest to their exact sum.

    Errors of the additions are themselves added up (Knuth's TwoSum), so the result is that of twice the
    precision of float64, rounded.
    """
    everyone = np.zeros((communicator.size, values.size), values.dtype)
    everyone[communicator.rank] = values
    communicator.reduce(everyone.reshape(-1).view(np.uint32), Op.OR)
    if not np.isfinite(everyone).all():
        raise _culprits(~np.isfinite(everyone), name, communicator.rank)
    with np.errstate(over="ignore", invalid="ignore"):  # infinity is the sum, then
        total, error = everyone[0].astype(np.float64), np.zeros(values.size)
        for row in everyone[1:]:
            addend, before = row.astype(np.float64), total
            total = before + addend
            of_addend = total - before
            error += (before - (total - of_addend)) + (addend - of_addend)
        values[:] = np.where(np.isfinite(total), total + error, total)


def _culprits(spoilt: npt.NDArray[np.bool_], name: Namer, rank: int) -> NonFiniteError:
    """Return the error that names whose values are not finite, by rank, and the first of them."""
    ranks = tuple(int(found) for found in np.flatnonzero(spoilt.any(axis=1)))
    index = int(np.flatnonzero(spoilt.any(axis=0))[0])
    return NonFiniteError(name(index), ranks, index, rank)


def _agree(
    communicator: Communicator,
    exponents: Lanes,
    rows: quantize.Rows | None,
    not_finite: int,
    values: Callable[[], npt.NDArray[np.floating[Any]]],
    name: Namer,
    service: ServiceClass = LOSSLESS,
    notes: Lanes = NO_NOTES,
) -> Lanes:
    """Return the greatest of all workers' exponents of the blocks ``rows``, None: of all; and so for the
    notes.

    NonFiniteError when one of those is ``not_finite``.
    """
    mine = exponents if rows is None else exponents[rows]
    # Sparse on one worker: small blocks skip more.
    found = communicator.reduce(np.concatenate([mine, notes]), Op.MAX, GROUP_LANES, service)
    shared, notes[:] = found[: mine.size], found[mine.size :]
    check_finite(communicator, shared, not_finite, values, name)
    return shared


def check_finite(
    communicator: Communicator,
    shared: Lanes,
    not_finite: int,
    values: Callable[[], npt.NDArray[np.floating[Any]]],
    name: Namer,
) -> None:
    """Raise NonFiniteError when one of the exponents, the same on all workers, is ``not_finite``.

    values: returns this worker's, which ``name`` describes by index.
    """
    if shared.size and int(shared.max()) >= not_finite:
        raise _blame(communicator, values(), name)


def _occupied(
    communicator: Communicator, exponents: Lanes, service: ServiceClass = LOSSLESS
) -> quantize.Rows | None:
    """Return which blocks are not zero on some worker. None, for all: of short vectors, and of those whose
    last sum of as many blocks says that a bitmap is not worth a round trip.
    """
    if exponents.size < WORTH_ASKING or not communicator.sparse.get(exponents.size, True):
        return None
    padded = np.zeros(lanes_for(-(-exponents.size // 8)), np.uint32)
    bits = np.packbits(exponents != 0)
    padded.view(np.uint8)[: bits.size] = bits
    communicator.reduce(padded, Op.OR, service=service)
    found = np.unpackbits(padded.view(np.uint8), count=exponents.size)
    return np.flatnonzero(found).astype(np.uint32)


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


def _blame(communicator: Communicator, values: npt.NDArray[np.floating[Any]], name: Namer) -> NonFiniteError:
    """Find out together whose input was not finite and where it starts."""
    mine = np.flatnonzero(~np.isfinite(values))
    first = np.array([_LAST - np.uint32(mine[0]) if mine.size else 0], dtype=np.uint32)
    index = int(_LAST - communicator.reduce(first, Op.MAX)[0])
    culprits = np.zeros(-(-communicator.size // 32), np.uint32)
    if mine.size:
        culprits[communicator.rank // 32] = 1 << communicator.rank % 32
    found = np.unpackbits(communicator.reduce(culprits, Op.OR).view(np.uint8), bitorder="little")
    ranks = tuple(np.flatnonzero(found).tolist())
    return NonFiniteError(name(index), ranks, index, communicator.rank)
