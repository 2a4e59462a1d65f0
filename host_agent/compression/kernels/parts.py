# SPDX-License-Identifier: Apache-2.0
"""Between a whole vector and the packed one of what is selected: the twins of ``weir_parts_*`` in parts.c.

Each program has some runs of the packed vector, and finds the place of each of their values in the whole one.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
import triton
import triton.language as tl

from weir.host_agent.compression.kernels.buckets import RUN
from weir.host_agent.compression.transfer import to_device

_RUNS: Final = 4  # of one program


@triton.jit
def _sources(parts, owners, starts, run, runs):
    """Return for each value of runs of the packed vector its place in its parameter, whether there is one,
    and the row of the part.
    """
    owner = tl.load(owners + run, mask=run < runs, other=0)
    part = parts + 7 * owner
    first = run.to(tl.int64) * RUN - tl.load(part + 5)
    at = first[:, None] + tl.arange(0, RUN)[None, :]
    begin = tl.load(part)[:, None]
    blocks = tl.load(part + 1)[:, None]
    log2 = tl.load(part + 2)[:, None]
    length = tl.load(part + 4)[:, None]
    block = at >> log2
    masked = begin >= 0
    selected = (run < runs)[:, None] & (block < blocks) & masked
    start = tl.load(starts + begin + block, mask=selected, other=0).to(tl.int64)
    place = tl.where(masked, start + (at - (block << log2)), at)
    there = (selected | ((run < runs)[:, None] & (begin < 0))) & (place < length)
    return place, there, part


@triton.jit(do_not_specialize=["runs"])
def _pack(parts, owners, starts, vector, packed, runs, RUNS: tl.constexpr):
    run = tl.program_id(0) * RUNS + tl.arange(0, RUNS)
    place, there, part = _sources(parts, owners, starts, run, runs)
    value = tl.load(vector + tl.load(part + 3)[:, None] + place, mask=there, other=0.0)
    at = run.to(tl.int64)[:, None] * RUN + tl.arange(0, RUN)[None, :]
    tl.store(packed + at, value, mask=(run < runs)[:, None])


@triton.jit(do_not_specialize=["runs"])
def _subtract(parts, owners, starts, packed, vector, runs, RUNS: tl.constexpr):
    run = tl.program_id(0) * RUNS + tl.arange(0, RUNS)
    place, there, part = _sources(parts, owners, starts, run, runs)
    at = run.to(tl.int64)[:, None] * RUN + tl.arange(0, RUN)[None, :]
    own = vector + tl.load(part + 3)[:, None] + place
    tl.store(
        own, tl.load(own, mask=there, other=0.0) - tl.load(packed + at, mask=there, other=0.0), mask=there
    )


@triton.jit(do_not_specialize=["runs"])
def _unpack(parts, owners, starts, packed, target, runs, COLUMN: tl.constexpr, RUNS: tl.constexpr):
    run = tl.program_id(0) * RUNS + tl.arange(0, RUNS)
    place, there, part = _sources(parts, owners, starts, run, runs)
    at = run.to(tl.int64)[:, None] * RUN + tl.arange(0, RUN)[None, :]
    value = tl.load(packed + at, mask=there, other=0.0).to(target.dtype.element_ty)
    tl.store(target + tl.load(part + COLUMN)[:, None] + place, value, mask=there)


class Places:
    """The tables of a selection on a device.

    Args:
        parts: int64[parameters, 7]: the first of its ``starts``, -1 where all of it is selected; how many
            blocks; the logarithm of their size; where it begins in the whole vector; its length; where it
            begins in the packed vector, and in the bucket.
        starts: first values of the blocks, in their parameters.
        owners: the parameter of each run of the packed vector.
        device: where they are allocated.
    """

    def __init__(
        self,
        parts: npt.NDArray[np.int64],
        starts: npt.NDArray[np.uint32],
        owners: npt.NDArray[np.intp],
        device: torch.device,
    ) -> None:
        self.runs = owners.size
        self._grid = (triton.cdiv(self.runs, _RUNS),)
        self._tables: tuple[Any, ...] = (
            to_device(np.ascontiguousarray(parts, np.int64), device),
            to_device(owners.astype(np.int32), device),
            to_device(starts, device),
        )

    def pack(self, vector: torch.Tensor, packed: torch.Tensor) -> None:
        """Overwrite the packed vector by what is selected."""
        if self.runs:
            _pack[self._grid](*self._tables, vector, packed, self.runs, _RUNS)

    def subtract(self, packed: torch.Tensor, vector: torch.Tensor) -> None:
        """Subtract the packed vector's values from those that are selected."""
        if self.runs:
            _subtract[self._grid](*self._tables, packed, vector, self.runs, _RUNS)

    def unpack(self, packed: torch.Tensor, vector: torch.Tensor) -> None:
        """Overwrite a whole vector by the packed one's values, and zeros elsewhere."""
        self._unpack(packed, vector, 3)

    def collect(self, packed: torch.Tensor, bucket: torch.Tensor) -> None:
        """Overwrite a bucket, of any float type, likewise."""
        self._unpack(packed, bucket, 6)

    def _unpack(self, packed: torch.Tensor, target: torch.Tensor, column: int) -> None:
        target.zero_()
        if self.runs:
            _unpack[self._grid](*self._tables, packed, target, self.runs, column, _RUNS)
