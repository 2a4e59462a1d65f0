# SPDX-License-Identifier: Apache-2.0
"""Vectors that are elsewhere, on a device, and are reduced chunk by chunk: while one chunk is on the network,
the next ones come and the last ones go back.

Chunks change no bit of a result. Values share nothing but the scale of their block of SLOT_LANES, and chunks
are whole blocks. They are long enough to be summed as the whole is, not as short vectors are
(``float_sum.GATHERED_LANES``, ``float_sum.EXACT_VALUES``); packed lanes and limbs are of blocks, too.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, Protocol

import numpy as np
import torch
import torch.distributed as dist

from weir.host_agent.collectives.communicator import Communicator
from weir.host_agent.collectives.dtypes import FLOATS
from weir.host_agent.collectives.float_sum import Namer, check_finite
from weir.host_agent.collectives.reductions import RedOpType, check_supported, reduce
from weir.wire.definition import SLOT_LANES, Op

CHUNK_VALUES: Final = 1 << 20
"""The most values of a chunk; vectors of no more travel whole. A multiple of SLOT_LANES, and at least 16384,
so that half a chunk is no short vector.

Each chunk costs the round trips of a reduction of its own. Larger ones cost fewer of them, smaller ones leave
less copying at both ends that nothing runs beside.
"""

_SUMS: Final = frozenset({dist.ReduceOp.SUM, dist.ReduceOp.AVG})


class Remote(Protocol):
    """A flat vector somewhere else, of which parts can be had, and overwritten.

    Attributes:
        dtype: of its values.
        count: how many values it has.
    """

    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def count(self) -> int: ...

    def bounds(self) -> Callable[[], torch.Tensor]:
        """Begin to look for the least and the greatest value; the call returned waits for them, a tensor.

        Both are NaN where some value is.
        """

    def fetch(self, part: slice) -> Callable[[], torch.Tensor]:
        """Begin to copy a part; the call returned waits for the copy, which may be overwritten.

        The copy's dtype may be wider.
        """

    def replace(self, part: slice, copy: torch.Tensor, result: torch.Tensor) -> None:
        """Begin to overwrite a part by its reduction; ``copy`` is what was fetched of it.

        result: of the copy's dtype, in its memory or in other.
        """


def in_chunks(count: int) -> bool:
    """Return whether vectors of so many values travel in several chunks."""
    return count > CHUNK_VALUES


def chunks_of(count: int) -> list[slice]:
    """Return the chunks of a vector of so many values: as few as there can be, of about the same length."""
    parts = max(1, -(-count // CHUNK_VALUES))
    blocks = -(-count // SLOT_LANES)
    ends = [min(count, (index + 1) * blocks // parts * SLOT_LANES) for index in range(parts)]
    return [slice(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]


def reduce_in_chunks(communicator: Communicator, vector: Remote, op: RedOpType, name: Namer) -> None:
    """Replace a vector by its reduction over all workers, all of which have theirs elsewhere.

    Raises:
        TypeError: the operator is not defined for the dtype.
        NonFiniteError: a float sum meets NaN or infinity. Then the vector has kept its values.
    """
    check_supported(op, vector.dtype)
    chunks = chunks_of(vector.count)
    is_float_sum = op in _SUMS and vector.dtype in FLOATS
    bounds = vector.bounds() if is_float_sum else None
    coming = deque(vector.fetch(chunk) for chunk in chunks)
    if bounds is not None:
        _check_all_finite(communicator, bounds(), coming, name)
    for chunk in chunks:
        copy = coming.popleft()()
        vector.replace(chunk, copy, reduce(communicator, copy, op, _from(name, chunk.start)))


def _check_all_finite(
    communicator: Communicator,
    bounds: torch.Tensor,
    coming: Iterable[Callable[[], torch.Tensor]],
    name: Namer,
) -> None:
    """Raise NonFiniteError, before anything is overwritten, where some worker has a NaN or an infinity.

    bounds: see ``Remote.bounds``; coming: all chunks, of which the error tells the first such value.
    """
    spoilt = np.array([not bool(torch.isfinite(bounds).all())], np.uint32)
    communicator.reduce(spoilt, Op.MAX)
    check_finite(communicator, spoilt, 1, lambda: torch.cat([copy() for copy in coming]).numpy(), name)


def _from(name: Namer, start: int) -> Namer:
    """Return what names the elements of a chunk."""
    return lambda element: name(start + element)
