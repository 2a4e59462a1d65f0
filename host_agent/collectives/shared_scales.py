# SPDX-License-Identifier: Apache-2.0
"""Agree on one scale per block of values with all workers, and put values to it.

First, in a long sparse vector, a bitmap (OR) shows which blocks are non-zero on some worker; then the workers
agree on the greatest scale of each block (MAX). Lanes are integers of that scale.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from weir.host_agent.collectives import quantize
from weir.host_agent.collectives.communicator import Audience, Communicator, fitting_block
from weir.host_agent.collectives.contribution import (
    NO_NOTES,
    Contribution,
    Scales,
    Vector,
    packet_block_of,
)
from weir.host_agent.collectives.dtypes import LANE_BYTES, Lanes
from weir.host_agent.collectives.non_finite import (
    Namer,
    Places,
    Values,
    are_spoilt,
    check_finite,
    take_out,
)
from weir.host_agent.collectives.packing import LaneFormat, WholeLanes
from weir.host_agent.collectives.quantize import Floats
from weir.host_agent.transport.report import ReduceReport
from weir.host_agent.transport.service_class import LOSSLESS, ServiceClass
from weir.host_agent.transport.slot_transport import FloatScales
from weir.wire.definition import GROUP_LANES, Op

WORTH_ASKING: Final = 512
"""Blocks: in a vector of at least this many, the workers may first ask by a bitmap which are not zero."""

WORTH_A_ROUND_TRIP: Final = 1 << 14
"""Bytes of a worker that the bitmap must save: 1.3 ms of 100 Mbit/s. Chosen here."""

WORTH_SELECTING: Final = 1 / 2
"""Share of the blocks: if more are not zero, copying them out and in costs more than it saves."""


@dataclass(frozen=True)
class Blocks:
    """This worker's vector in blocks that have an exponent each.

    Attributes:
        values: returns the vector.
        exponents: returns the exponents of the vector's present values.
        name: describes a value by its index, for errors.
        size: values in a block.
        not_finite: exponent of a block with NaN or infinity.
    """

    values: Callable[[], Values]
    exponents: Callable[[], Lanes]
    name: Namer
    size: int
    not_finite: int


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

    If many blocks are zero on all workers, only the others have lanes. The lanes are in memory that the next
    call uses again.

    Args:
        communicator: of all workers, which make the same call.
        values: they stay as they are, but for what ``deliver`` takes out.
        name: describes a value by flat index, for errors.
        scale_block: values that share a scale.
        form: how values fill lanes; by default, one value in each.
        packet_block: lanes in a block of the packets. Default: where blocks are skipped, as many as the
            values of a scale block fill, else as many as fit a packet.
        service: layer class of the packets, without budgets.
        dense: hardly any block is zero on all workers, so no bitmap asks for them.
        deliver: NaN and infinity are taken out of ``values`` (which must be in main memory), and
            ``Contribution.apart`` has them.

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
        service: layer class of the packets, without budgets.
        notes: lanes that travel along; replaced by their maximum over all workers.
        zeros: one lane, instead of notes; replaced by the number of zero blocks on the worker that has most.

    Raises:
        NonFiniteError: as there.
    """
    blocks = Blocks(
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
    """Put ``values`` to the scales that all workers agreed on; see ``encode`` for the arguments."""
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
    audience: Audience | None = None,
) -> ReduceReport | None:
    """Replace ``values`` by their sum over all workers, without memory for lanes.

    The sum has the same bits as that of ``contribute`` and ``Contribution.add``.

    Args:
        communicator, form, packet_block, service: as there.
        values: undefined if the network fails.
        scales: the scales of all blocks that all workers agreed on.
        audience: who is given which blocks of packets. Other values are undefined afterwards.

    Returns:
        How the sum was made; None on every worker if this communicator cannot make it.
    """
    exponents = FloatScales(scales.values, scales.unit, quantize.headroom(form.workers))
    return communicator.sum_floats(values, exponents, packet_block, service, audience)


def agree_on_all(communicator: Communicator, blocks: Blocks, *, deliver: bool) -> tuple[Lanes, Places | None]:
    """Agree with all workers on the exponent of every block.

    Args:
        communicator: of all workers, which make the same call.
        blocks: this worker's.
        deliver: NaN and infinity are taken out of the values.

    Returns:
        The exponents, and where the sum is not finite; None: nowhere.

    Raises:
        NonFiniteError: some value of some worker is NaN or infinite, and ``deliver`` is false; on every
            worker.
    """
    exponents = blocks.exponents()
    rows = _occupied(communicator, exponents)
    shared = _greatest(communicator, exponents, rows)
    apart = _set_apart(communicator, blocks, shared, rows, deliver=deliver)
    return _whole(communicator, exponents, rows, shared), apart


def _greatest(
    communicator: Communicator,
    exponents: Lanes,
    rows: quantize.Rows | None,
    service: ServiceClass = LOSSLESS,
    notes: Lanes = NO_NOTES,
) -> Lanes:
    """Return the greatest exponents, over all workers, of the blocks ``rows`` (None: of all blocks).

    ``notes`` are replaced by their maximum over all workers.
    """
    mine = exponents if rows is None else exponents[rows]
    # One worker's exponents may be sparse: small blocks skip more of them.
    found = communicator.reduce_vector(np.concatenate([mine, notes]), Op.MAX, GROUP_LANES, service)
    shared, notes[:] = found[: mine.size], found[mine.size :]
    return shared


def _set_apart(
    communicator: Communicator,
    blocks: Blocks,
    shared: Lanes,
    rows: quantize.Rows | None,
    *,
    deliver: bool,
) -> Places | None:
    """Take values out where the sum is not finite, and agree on the exponents of what is left there.

    Args:
        communicator: of all workers, which make the same call.
        blocks: this worker's.
        shared: the exponents that all workers agreed on, one for each of ``rows``; overwritten.
        rows: numbers of blocks; None: all.
        deliver: whether the sum goes on without these values.

    Returns:
        Where the sum is not finite; None: nowhere.

    Raises:
        NonFiniteError: the sum is not finite somewhere, and ``deliver`` is false.
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
    """Return which blocks are not zero on some worker; None: assume that all are.

    Short vectors are not asked for, nor vectors of a length whose last sum showed that a bitmap does not save
    the time of its round trip.
    """
    if exponents.size < WORTH_ASKING or not communicator.sparse.get(exponents.size, True):
        return None
    return np.flatnonzero(communicator.any_of(exponents != 0, service)).astype(np.uint32)


def _whole(communicator: Communicator, exponents: Lanes, rows: quantize.Rows | None, shared: Lanes) -> Lanes:
    """Return the exponents of all blocks, given those of ``rows``.

    Remembers whether a bitmap of such a vector is worth a round trip. May overwrite ``exponents``, which are
    this worker's.
    """
    if rows is None:
        exponents = shared
    else:
        exponents[rows] = shared  # the others are zero on every worker
    if exponents.size >= WORTH_ASKING:
        communicator.sparse[exponents.size] = worth_asking(exponents != 0)
    return exponents


def worth_asking(occupied: npt.NDArray[np.bool_]) -> bool:
    """Return whether a bitmap of a vector's blocks saves enough bytes of exponents to pay for a round trip.

    Exponents travel in blocks of GROUP_LANES; empty ones are skipped.

    Args:
        occupied: for each block, whether it is not zero on some worker.
    """
    groups = np.add.reduceat(occupied, np.arange(0, occupied.size, GROUP_LANES), dtype=np.intp)
    lanes = GROUP_LANES * int(np.count_nonzero(groups)) - int(groups.sum())
    return LANE_BYTES * lanes - occupied.size // 8 > WORTH_A_ROUND_TRIP
