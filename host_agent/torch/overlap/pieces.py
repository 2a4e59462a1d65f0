# SPDX-License-Identifier: Apache-2.0
"""The sum of a bucket in pieces: to the bit what it is in one.

The ranks agree on the scales of the whole bucket, as for any sum of floats. Then its lanes are added piece by
piece. Each piece carries some lanes more, for what the ranks tell one another meanwhile.
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from weir.host_agent.collectives.communicator import Communicator, fitting_block
from weir.host_agent.collectives.contribution import HostVector
from weir.host_agent.collectives.float_sum import in_fixed_point
from weir.host_agent.collectives.shared_scales import encode
from weir.host_agent.collectives.tensor_memory import array_of
from weir.host_agent.torch.overlap.bucket import Bucket
from weir.wire.definition import Op

_WIDENED = frozenset({torch.float16, torch.bfloat16, torch.float32})


def divisible(communicator: Communicator, values: torch.Tensor) -> bool:
    """Return whether the sum of these values is made in a way that has pieces."""
    return values.dtype in _WIDENED and in_fixed_point(communicator, values.numel())


class Pieces:
    """A bucket's lanes that are not summed yet.

    To be made in one operation of the group, together with the first piece.

    Args:
        communicator: of all ranks.
        bucket: with values for which ``divisible``.
        lanes: of a piece.

    Raises:
        NonFiniteError: some value of some rank is NaN or infinite, and the communicator's precision does not
            deliver it; on every rank.
    """

    def __init__(self, communicator: Communicator, bucket: Bucket, lanes: int) -> None:
        self._communicator, self._bucket = communicator, bucket
        self._values = bucket.values.to(torch.float32)  # itself, where it is float32
        form = communicator.precision.form(communicator.size)
        scale_block = fitting_block(self._values.numel())
        mine = encode(
            communicator,
            HostVector(array_of(self._values)),
            bucket.name,
            scale_block,
            form=form,
            service=bucket.service(0, bucket.values.numel()),
            deliver=communicator.precision.delivers,
        )
        self._apart = mine.apart
        self._mine = replace(mine, lanes=mine.lanes.copy(), apart=None)
        self._per_block = form.lanes(scale_block)
        self._at_once = max(1, lanes // self._per_block)
        self.left = -(-mine.lanes.size // self._per_block)
        """Blocks of values that are left."""
        if not self.left:  # zero on every rank
            self._write(0)

    def add_last(self, notes: npt.NDArray[np.int32]) -> None:
        """Sum the last piece that is left, and replace the notes by their sums over all ranks."""
        mine, first = self._mine, max(0, self.left - self._at_once)
        lanes = mine.lanes[first * self._per_block : self.left * self._per_block]
        both = np.concatenate([lanes, notes])
        values, block = array_of(self._values), mine.scale_block
        if mine.rows is None:
            start, end = first * block, self.left * block
        else:
            start = int(mine.rows[first]) * block if first else 0
            end = (int(mine.rows[self.left - 1]) + 1) * block
        service = self._bucket.service(start, end)
        self._communicator.reduce_lanes(both.view(np.uint32), Op.ADD, mine.packet_block, service)
        notes[:] = both[lanes.size :]
        part = replace(mine, lanes=both[: lanes.size], scales=mine.scales[first : self.left])
        if mine.rows is None:
            part.write(values[start:end])
        else:
            replace(part, rows=mine.rows[first : self.left]).write(values)
        self.left = first
        self._write(start)

    def _write(self, start: int) -> None:
        """Give the bucket its sums from ``start`` on."""
        if self._apart is not None:
            self._apart.write(array_of(self._values))
        if self._values is not self._bucket.values:
            self._bucket.values[start:] = self._values[start:].to(self._bucket.values.dtype)
        self._bucket.summed(start)
