# SPDX-License-Identifier: Apache-2.0
"""NaN and infinity in sums of floats, which have no fixed point.

The maximum over scales shows every worker in which blocks some worker has one. In these blocks alone the
workers then tell each other the places, two bits to a value, by OR: one where some worker has plus infinity,
one where some has minus infinity, both where some has NaN. So the bits say what IEEE 754 makes of the sum:
both are NaN, also where infinities of either sign meet. The rest of the block is summed as if zeros stood at
these places. Or every worker raises, and says whose values they are.
"""

from collections.abc import Callable
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from weir.host_agent.collectives.communicator import Communicator
from weir.host_agent.collectives.dtypes import Lanes
from weir.wire.definition import Op

Namer = Callable[[int], str]
Values = npt.NDArray[np.floating[Any]]

_LAST = np.uint32(0xFFFFFFFF)


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
        """Let it cross processes whole: by default an exception is made again from its message alone."""
        return type(self), self._given


class Places:
    """The places of a vector where its sum is not finite, the same on every worker.

    Args:
        indexes: of these values.
        sums: float32, what they are.
    """

    def __init__(self, indexes: npt.NDArray[np.intp], sums: npt.NDArray[np.float32]) -> None:
        self._indexes, self._sums = indexes, sums

    def write(self, values: Values) -> None:
        """Overwrite these values of the sum."""
        values[self._indexes] = self._sums


def take_out(
    communicator: Communicator, values: Values, blocks: npt.NDArray[np.integer[Any]], block: int
) -> Places:
    """Zero this worker's NaNs and infinities, and return where all workers have some.

    Args:
        communicator: of all workers, which make the same call.
        values: flat; overwritten.
        blocks: in which some worker has NaN or infinity, ascending.
        block: values in one of them.
    """
    mine = np.flatnonzero(~np.isfinite(values))
    places = np.searchsorted(blocks, mine // block) * block + mine % block
    bits = np.zeros((2, blocks.size * block), np.bool_)
    bits[0, places] = ~(values[mine] < 0)
    bits[1, places] = ~(values[mine] > 0)
    values[mine] = 0
    plus, minus = communicator.any_of(bits)
    places = np.flatnonzero(plus | minus)
    sums = np.where(plus[places], np.where(minus[places], np.nan, np.inf), -np.inf).astype(np.float32)
    return Places(blocks[places // block].astype(np.intp) * block + places % block, sums)


def are_spoilt(shared: Lanes, not_finite: int) -> bool:
    """Return whether some worker has NaN or infinity: the workers agreed on an exponent ``not_finite``."""
    return shared.size > 0 and int(shared.max()) >= not_finite


def check_finite(
    communicator: Communicator,
    shared: Lanes,
    not_finite: int,
    values: Callable[[], Values],
    name: Namer,
) -> None:
    """Raise NonFiniteError when one of the exponents, the same on all workers, is ``not_finite``.

    values: returns this worker's, which ``name`` describes by index.
    """
    if are_spoilt(shared, not_finite):
        raise _blame(communicator, values(), name)


def culprits(spoilt: npt.NDArray[np.bool_], name: Namer, rank: int) -> NonFiniteError:
    """Return the error that names whose values are not finite, by rank, and the first of them."""
    ranks = tuple(int(found) for found in np.flatnonzero(spoilt.any(axis=1)))
    index = int(np.flatnonzero(spoilt.any(axis=0))[0])
    return NonFiniteError(name(index), ranks, index, rank)


def _blame(communicator: Communicator, values: Values, name: Namer) -> NonFiniteError:
    """Find out together whose input was not finite and where it starts."""
    mine = np.flatnonzero(~np.isfinite(values))
    first = np.array([_LAST - np.uint32(mine[0]) if mine.size else 0], dtype=np.uint32)
    index = int(_LAST - communicator.reduce_vector(first, Op.MAX)[0])
    spoilt = np.zeros(communicator.size, np.bool_)
    spoilt[communicator.rank] = mine.size > 0
    ranks = np.flatnonzero(communicator.any_of(spoilt))
    return NonFiniteError(name(index), tuple(ranks.tolist()), index, communicator.rank)
