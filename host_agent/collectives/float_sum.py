# SPDX-License-Identifier: Apache-2.0
"""Sums of floats: a maximum over shared block scales, then a sum of fixed-point lanes.

The workers first agree on one scale per block of values (``shared_scales``). Then each worker turns its
values into integers of that scale, with headroom for the number of workers (``contribution``), and the
network adds them (ADD). Integer addition commutes, so every worker gets the same bits in whatever order
packets arrive. The error bounds are derived in ``quantize``, ``packing`` and ``limbs``.
"""

import logging
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from weir.host_agent.collectives import limbs, quantize
from weir.host_agent.collectives.communicator import Communicator, fitting_block, wanted
from weir.host_agent.collectives.contribution import (
    Contribution,
    HostVector,
    largest_block,
    packet_block_of,
)
from weir.host_agent.collectives.dtypes import Lanes
from weir.host_agent.collectives.non_finite import Namer, culprits
from weir.host_agent.collectives.packing import WholeLanes
from weir.host_agent.collectives.parts import Parts, reduce_parts
from weir.host_agent.collectives.quantize import Sample
from weir.host_agent.collectives.shared_scales import (
    Blocks,
    add_in_place,
    agree,
    agree_on_all,
    contribute,
)
from weir.wire.definition import SLOT_LANES, WIDE_LANES, Op

GATHERED_LANES: Final = 4096
"""Sums of at most this many lanes, over all workers, are gathered, and each worker adds them itself. This
takes one round trip instead of two, and at most 16 packets. Chosen here.
"""

EXACT_VALUES: Final = 1024
"""Sums of at most this many values are made in limbs. Their 48 packets travel together. Chosen here."""

WIDE_VALUES: Final = 64 * WIDE_LANES
"""Sums of fewer values travel in blocks of SLOT_LANES, which spread over more slots. Chosen here."""

MOST_ZEROS: Final = 16
"""A sum travels in wide blocks, which are skipped whole, only if at most one block in this many is zero.
Chosen here.
"""

_log = logging.getLogger(__name__)
_has_warned = False


def sum_float32(
    communicator: Communicator,
    values: npt.NDArray[np.float32],
    name: Namer,
    parts: Parts | None = None,
    block: int | None = None,
) -> None:
    """Replace a vector, or this worker's part of it, by its sum over all workers.

    A few values (GATHERED_LANES) are gathered and added by each worker. Up to EXACT_VALUES, or any number if
    ``communicator.precision`` is exact, are summed in limbs; others in that precision's form.

    Args:
        communicator: of all workers, which make the same call.
        values: keep their values if this raises NonFiniteError; undefined if the network fails.
        name: describes a value by its index, for errors.
        parts: the part of each worker; None: all get the whole sum.
        block: values that share a scale and a block of packets, for vectors in which workers have different
            blocks and hardly any block is zero on all of them. None: as many as fit the vector. Not with
            parts.

    Raises:
        NonFiniteError: some value of some worker is NaN or infinite, and ``communicator.precision`` does not
            deliver it; on every worker.
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
    """Return the lanes of a packet's block for a sum of this many values.

    Blocks are wide if no worker could skip much in smaller ones.

    Args:
        count: values of the vector.
        most_zeros: number of zero scale blocks on the worker that has most; empty: blocks may not be wide.
    """
    fitting = fitting_block(count)
    if most_zeros.size and most_zeros[0] * fitting * MOST_ZEROS <= count:
        return WIDE_LANES
    return fitting


def in_fixed_point(communicator: Communicator, count: int) -> bool:
    """Return whether ``sum_float32`` sums this many values in fixed-point lanes."""
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
    """Warn, once in a process, that a sum is coarse in this block; None: in none."""
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
    """Do the same as ``sum_float32`` for float64, in three limbs a value unless they are few."""
    if parts is None and 2 * values.size * communicator.size <= GATHERED_LANES:
        _sum_here(communicator, values, name)
        return
    scale_block = fitting_block(values.size) if parts is None else parts.block
    blocks = Blocks(
        lambda: values, lambda: limbs.exponents64(values, scale_block), name, scale_block, limbs.NOT_FINITE64
    )
    exponents, apart = agree_on_all(communicator, blocks, deliver=communicator.precision.delivers)
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
    """Gather all workers' values and add them in rank order.

    The errors of the additions are added up, too (Knuth's TwoSum), so the result is that of twice the
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
