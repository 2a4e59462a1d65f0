# SPDX-License-Identifier: Apache-2.0
"""Values to lanes and back, on a device: twins of ``weir_pack`` in packed.c, ``weir_to_fixed`` in quantize.c.

The factors and quanta of the blocks come from the C code, so that no arithmetic on scales is written twice.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import torch
import triton
import triton.language as tl

from weir.host_agent.collectives.packing import LaneFormat, PackedLanes, Scales
from weir.host_agent.collectives.quantize import Rows
from weir.host_agent.compression.transfer import to_device

_TILE: Final = 1024  # lanes, or values, of one program


@triton.jit
def _rounded(x):
    """Round to nearest, ties to even: 2^23 has no bits left for fractions."""
    size = tl.abs(x)
    whole = tl.where(size < 8388608.0, (size + 8388608.0) - 8388608.0, size)
    return tl.where(x < 0, -whole, whole)


@triton.jit(do_not_specialize=["count", "total"])
def _encode(
    values, rows, factors, lanes, count, total, BLOCK: tl.constexpr, LANES: tl.constexpr,
    FIELDS: tl.constexpr, HAS_ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    there = at < total
    block = at // LANES
    lane = at - block * LANES
    first = tl.load(factors + 2 * block, mask=there, other=0.0)
    second = tl.load(factors + 2 * block + 1, mask=there, other=0.0)
    row = block
    if HAS_ROWS:
        row = tl.load(rows + block, mask=there, other=0).to(tl.int64)
    group = lane // 32
    found = tl.zeros([TILE], tl.int32)
    for field in tl.static_range(FIELDS):
        value = group * (32 * FIELDS) + field * 32 + (lane - group * 32)
        own = row * BLOCK + value
        inside = there & (value < BLOCK) & (own < count)
        x = tl.load(values + own, mask=inside, other=0.0)
        found += _rounded(x * first * second).to(tl.int32) << (field * (32 // FIELDS))
    tl.store(lanes + at, found, mask=there)


@triton.jit(do_not_specialize=["count", "total", "most"])
def _decode(
    lanes, rows, quanta, values, count, total, most, BLOCK: tl.constexpr, LANES: tl.constexpr,
    FIELDS: tl.constexpr, BIAS: tl.constexpr, HAS_ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    there = at < total
    block = at // BLOCK
    value = at - block * BLOCK
    row = block
    if HAS_ROWS:
        row = tl.load(rows + block, mask=there, other=0).to(tl.int64)
    own = row * BLOCK + value
    there = there & (own < count)
    group = value // (32 * FIELDS)
    within = value - group * (32 * FIELDS)
    lane = tl.load(lanes + block * LANES + group * 32 + within % 32, mask=there, other=0)
    quantum = tl.load(quanta + block, mask=there, other=0.0)
    if FIELDS == 1:
        found = (lane.to(tl.float64) * quantum).to(tl.float32)
    else:
        WIDTH: tl.constexpr = 32 // FIELDS
        HALF: tl.constexpr = 1 << (WIDTH - 1)
        moved = (lane.to(tl.uint32, bitcast=True) + BIAS) >> (within // 32 * WIDTH).to(tl.uint32)
        whole = (moved & (2 * HALF - 1)).to(tl.int32) - HALF
        exact = whole.to(tl.float64) * quantum
        LARGEST: tl.constexpr = (
            3.4028234663852886e38  # of a float32, which one worker's value stands for at most
        )
        single = tl.abs(whole) <= most
        exact = tl.where(single & (exact > LARGEST), LARGEST, exact)
        exact = tl.where(single & (exact < -LARGEST), -LARGEST, exact)
        found = exact.to(tl.float32)
    tl.store(values + own, found, mask=there)


@dataclass(frozen=True)
class Blocks:
    """The blocks of a vector that become lanes, and their scales, on a device.

    Args:
        form: of values in lanes.
        rows: which blocks; None: all.
        scales: of these blocks, which all workers agreed on.
        size: values in a block.
        device: where they are allocated.
    """

    form: LaneFormat
    rows: Rows | None
    scales: Scales
    size: int
    device: torch.device

    @cached_property
    def _tables(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Rows, factors and quanta."""
        rows = np.zeros(1, np.uint32) if self.rows is None else self.rows
        factors, quanta = self.form.factors(self.scales)
        return to_device(rows, self.device), to_device(factors, self.device), to_device(quanta, self.device)

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        """Put values to the scales, none of which is less than they need.

        Args:
            values: the whole vector, flat float32.

        Returns:
            int32 lanes, as many as ``form.encode`` makes.
        """
        each = self.form.lanes(self.size)
        whole = self.form.fields == 1 and self.rows is None  # the last block may be shorter
        count = values.numel() if whole else self.scales.size * each
        lanes = torch.empty(count, dtype=torch.int32, device=self.device)
        if count:
            rows, factors, _ = self._tables
            _encode[(triton.cdiv(count, _TILE),)](
                values,
                rows,
                factors,
                lanes,
                values.numel(),
                count,
                self.size,
                each,
                self.form.fields,
                self.rows is not None,
                _TILE,
                enable_fp_fusion=False,
            )
        return lanes

    def decode(self, lanes: torch.Tensor, values: torch.Tensor) -> None:
        """Overwrite the blocks of ``values`` by what (sums of) lanes stand for."""
        if not self.scales.size:
            return
        fields, count = self.form.fields, self.scales.size * self.size
        rows, _, quanta = self._tables
        _decode[(triton.cdiv(count, _TILE),)](
            lanes,
            rows,
            quanta,
            values,
            values.numel(),
            count,
            self.form.steps if isinstance(self.form, PackedLanes) else 0,
            self.size,
            self.form.lanes(self.size),
            fields,
            sum(1 << (32 // fields) * (field + 1) - 1 for field in range(fields)),  # the bias, see packing.py
            self.rows is not None,
            _TILE,
            enable_fp_fusion=False,
        )
