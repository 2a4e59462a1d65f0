# SPDX-License-Identifier: Apache-2.0
"""Vectors that are elsewhere, on a device, and go chunk by chunk: while one chunk is on the network, the next
ones come and the last ones go back.

Chunks change no bit of a result. Values share nothing but the scale of their block of SLOT_LANES, and chunks
are whole blocks. They are long enough to be summed as the whole is, not as short vectors are
(``float_sum.GATHERED_LANES``, ``float_sum.EXACT_VALUES``); packed lanes and limbs are of blocks, too.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import torch

from weir.host_agent.collectives.communicator import Communicator
from weir.host_agent.collectives.dtypes import FLOATS
from weir.host_agent.collectives.non_finite import Namer, check_finite
from weir.host_agent.collectives.reductions import Operator, addends, check_supported, is_sum
from weir.host_agent.collectives.tensor_memory import array_of
from weir.wire.definition import SLOT_LANES, Op

CHUNK_VALUES: Final = 1 << 22
"""The most values of a chunk; vectors of no more travel whole. A multiple of SLOT_LANES, and at least 16384,
so that half a chunk is no short vector.

Each chunk costs the round trips of a reduction of its own. Larger ones cost fewer of them, smaller ones leave
less copying at both ends that nothing runs beside.
"""

Combine = Callable[[list[torch.Tensor], int], torch.Tensor]
"""Returns the reduction of one chunk of each vector, given the index of their first elements; may overwrite
the chunks.
"""

Move = Callable[[list[torch.Tensor], list[torch.Tensor]], None]
"""Overwrites the first list, one chunk of each vector that is received, by means of those that are sent."""


class Remote(Protocol):
    """A flat vector somewhere else, of which parts can be had, and overwritten.

    Attributes:
        tensor: what it is the values of; for its dtype and shape alone.
        dtype: of the values.
        count: how many there are.
    """

    @property
    def tensor(self) -> torch.Tensor: ...
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

    def room(self, part: slice) -> torch.Tensor:
        """Return memory for a part, of any content."""

    def replace(self, part: slice, copy: torch.Tensor, result: torch.Tensor) -> None:
        """Begin to overwrite a part by ``result``.

        Args:
            part: of the vector.
            copy: from ``fetch`` or ``room``, of such a part, and free for use.
            result: of the copy's dtype, in its memory or in other.
        """


def in_chunks(count: int) -> bool:
    """Return whether a vector of this length travels in several chunks."""
    return count > CHUNK_VALUES


def chunks_of(count: int) -> list[slice]:
    """Return the chunks of a vector of this length: as few as there can be, of about the same length."""
    parts = max(1, -(-count // CHUNK_VALUES))
    blocks = -(-count // SLOT_LANES)
    ends = [min(count, (index + 1) * blocks // parts * SLOT_LANES) for index in range(parts)]
    return [slice(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]


def reduce_in_chunks(
    communicator: Communicator,
    inputs: Sequence[Remote],
    output: Remote | None,
    op: Operator,
    combine: Combine,
    name: Namer,
) -> None:
    """Reduce vectors over all workers, all of which have theirs elsewhere.

    Args:
        communicator: of all workers.
        inputs: vectors of one dtype and length.
        output: is overwritten by the result, where this worker wants it; may be one of the inputs.
        op: how values are combined.
        combine: combines them so.
        name: describes an element by its index in the inputs, one after another.

    Raises:
        TypeError: the operator is not defined for the dtype.
        NonFiniteError: a float sum meets NaN or infinity, and the communicator's precision does not deliver
            them. Then the output has kept its values.
    """
    check_supported(op, inputs[0].tensor.dtype)
    is_float_sum = is_sum(op) and inputs[0].dtype in FLOATS
    may_raise = is_float_sum and not communicator.precision.delivers
    bounds = [vector.bounds() for vector in inputs] if may_raise else []
    chunks = chunks_of(inputs[0].count)
    coming = deque([vector.fetch(chunk) for vector in inputs] for chunk in chunks)
    if bounds:
        _check_all_finite(communicator, [bound() for bound in bounds], coming, op, name)
    for chunk in chunks:
        copies = [copy() for copy in coming.popleft()]
        result = combine(copies, chunk.start)
        if output is not None:
            output.replace(chunk, copies[0], result)


def move_in_chunks(inputs: Sequence[Remote], outputs: Sequence[Remote], move: Move) -> None:
    """Move vectors between workers, all of which have theirs elsewhere.

    Args:
        inputs: that this worker sends.
        outputs: that it receives; all vectors are of one length.
        move: moves them.
    """
    chunks = chunks_of([*inputs, *outputs][0].count)
    coming = deque([vector.fetch(chunk) for vector in inputs] for chunk in chunks)
    for chunk in chunks:
        rooms = [vector.room(chunk) for vector in outputs]
        move(rooms, [copy() for copy in coming.popleft()])
        for vector, room in zip(outputs, rooms, strict=True):
            vector.replace(chunk, room, room)


def _check_all_finite(
    communicator: Communicator,
    bounds: Sequence[torch.Tensor],
    coming: Iterable[list[Callable[[], torch.Tensor]]],
    op: Operator,
    name: Namer,
) -> None:
    """Raise NonFiniteError, before anything is overwritten, where some worker has a NaN or an infinity, or
    its factor makes one.

    bounds: of each vector, see ``Remote.bounds``. coming: all chunks, of which the error tells the first such
    value.
    """
    spoilt = np.array([not bool(torch.isfinite(addends(torch.stack(list(bounds)), op)).all())], np.uint32)
    communicator.reduce_vector(spoilt, Op.MAX)

    def values() -> npt.NDArray[np.floating[Any]]:
        vectors = zip(*coming, strict=True)
        return array_of(addends(torch.cat([copy() for chunks in vectors for copy in chunks]), op))

    check_finite(communicator, spoilt, 1, values, name)
