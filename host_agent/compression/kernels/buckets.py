# SPDX-License-Identifier: Apache-2.0
"""From a bucket of gradients to the vector of its parameters, and back: the twins of ``weir_spread`` and
``weir_collect`` in parts.c.

A vector is cut into runs of RUN values; each parameter begins with one.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
import triton
import triton.language as tl

from weir.host_agent.compression.transfer import shared_on_device, to_device

RUN = tl.constexpr(256)
_RUNS: Final = 8  # of one program


@triton.jit
def _places(segments, owners, run, runs):
    """Return for each run its parameter, its first value's place in that, and in the bucket; and how long the
    parameter is.
    """
    owner = tl.load(owners + run, mask=run < runs, other=0)
    segment = segments + 4 * owner
    begin = run.to(tl.int64) * RUN - tl.load(segment + 2)
    return owner, begin, tl.load(segment) + begin, tl.load(segment + 1)


@triton.jit(do_not_specialize=["divisor", "runs"])
def _spread(bucket, segments, owners, residuals, vector, largest, idle, divisor, runs, RUNS: tl.constexpr):
    run = tl.program_id(0) * RUNS + tl.arange(0, RUNS)
    owner, begin, place, length = _places(segments, owners, run, runs)
    value_of_run = tl.arange(0, RUN)[None, :]
    there = (begin[:, None] + value_of_run < length[:, None]) & (run < runs)[:, None]
    gradient = tl.load(bucket + place[:, None] + value_of_run, mask=there, other=0.0).to(tl.float32)
    gradient = tl.div_rn(gradient, divisor)
    address = tl.load(residuals + owner)
    kept = address.to(tl.pointer_type(tl.float32))[:, None] + begin[:, None] + value_of_run
    has_kept = there & (address != 0)[:, None]
    value = tl.where(has_kept, gradient + tl.load(kept, mask=has_kept, other=0.0), gradient)
    at = run.to(tl.int64)[:, None] * RUN + value_of_run
    tl.store(vector + at, value, mask=(run < runs)[:, None])
    bits = value.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    tl.store(largest + run, tl.max(bits, axis=1), mask=run < runs)
    gradient_bits = gradient.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    tl.store(idle + run, (tl.max(gradient_bits, axis=1) == 0).to(tl.int8), mask=run < runs)


@triton.jit(do_not_specialize=["runs"])
def _collect(vector, segments, owners, bucket, runs, RUNS: tl.constexpr):
    run = tl.program_id(0) * RUNS + tl.arange(0, RUNS)
    _, begin, place, length = _places(segments, owners, run, runs)
    value_of_run = tl.arange(0, RUN)[None, :]
    there = (begin[:, None] + value_of_run < length[:, None]) & (run < runs)[:, None]
    at = run.to(tl.int64)[:, None] * RUN + value_of_run
    value = tl.load(vector + at, mask=there, other=0.0)
    tl.store(bucket + place[:, None] + value_of_run, value.to(bucket.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["runs"])
def _largest(vector, largest, runs, RUNS: tl.constexpr):
    run = tl.program_id(0) * RUNS + tl.arange(0, RUNS)
    at = run.to(tl.int64)[:, None] * RUN + tl.arange(0, RUN)[None, :]
    value = tl.load(vector + at, mask=(run < runs)[:, None], other=0.0)
    bits = value.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    tl.store(largest + run, tl.max(bits, axis=1), mask=run < runs)


class Places:
    """The tables of a layout on a device: ``struct weir_segment`` of each parameter, the owner of each run.

    Args:
        segments: int64[parameters, 4], see parts.c.
        owners: the parameter of each run.
        device: where they are allocated.
    """

    def __init__(
        self, segments: npt.NDArray[np.int64], owners: npt.NDArray[np.intp], device: torch.device
    ) -> None:
        self.runs = owners.size
        self._segments = shared_on_device(segments, device)
        self._owners = shared_on_device(owners.astype(np.int32), device)

    def spread(
        self, bucket: torch.Tensor, divisor: float, residuals: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Divide a bucket and add residuals.

        Args:
            bucket: flat, of any float type.
            divisor: of its values.
            residuals: the address of each parameter's, float32; 0: it has none.

        Returns:
            The vector, float32; the bits of the largest magnitude of each run, int32; and which runs of the
            gradient are zero, bool.
        """
        device = bucket.device
        vector = torch.empty(self.runs * RUN.value, device=device)
        largest = torch.empty(self.runs, dtype=torch.int32, device=device)
        idle = torch.empty(self.runs, dtype=torch.int8, device=device)
        if self.runs:
            _spread[(triton.cdiv(self.runs, _RUNS),)](
                bucket,
                self._segments,
                self._owners,
                to_device(np.array(residuals, np.int64), device),
                vector,
                largest,
                idle,
                float(divisor),
                self.runs,
                _RUNS,
                enable_fp_fusion=False,
            )
        return vector, largest, idle.view(torch.bool)

    def collect(self, vector: torch.Tensor, bucket: torch.Tensor) -> None:
        """Overwrite a bucket by the values of a vector."""
        if self.runs:
            _collect[(triton.cdiv(self.runs, _RUNS),)](
                vector, self._segments, self._owners, bucket, self.runs, _RUNS
            )


def largest_bits(vector: torch.Tensor) -> torch.Tensor:
    """Find the bits of the largest magnitude of each run of a vector of whole runs: int32."""
    runs = vector.numel() // RUN.value
    largest = torch.empty(runs, dtype=torch.int32, device=vector.device)
    if runs:
        _largest[(triton.cdiv(runs, _RUNS),)](vector, largest, runs, _RUNS)
    return largest
