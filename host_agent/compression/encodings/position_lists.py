# SPDX-License-Identifier: Apache-2.0
"""Lists of positions: each worker writes down which blocks it has chosen, and all of them read all lists.

A mask is the same size up and down, whatever a worker has in it. A list goes up once, in lanes that are its
worker's alone, and is as long as what that worker chose; down go the lists of all. Where few blocks are
chosen that is less than the mask that they make up. How many blocks a worker chooses of each parameter at
most, its *capacity*, is known to all, so everybody knows where each list lies.

A list is in Elias-Fano's code (Elias, "Efficient Storage and Retrieval by Content and Address of Static
Files", JACM 1974; Fano 1971): of n blocks and k positions, the lower l bits of each as they are, and the
upper ones as the places of k ones among k + n / 2^l bits. That is at most 0.56 bits a position above the
least that any code could take whatever the positions, and always of one length.

Should a worker have more than the capacity (a method sends what is not finite whatever its quota), it says so
in the first word of its region, and all go on with the mask tree.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from weir.host_agent.collectives.communicator import Communicator
from weir.host_agent.collectives.dtypes import Lanes
from weir.host_agent.compression import bindings
from weir.host_agent.compression.bucket_layout import BucketLayout
from weir.host_agent.compression.encodings.encoding import Encoding
from weir.host_agent.compression.encodings.shared_mask import NO_LANES
from weir.host_agent.transport.arrays import address_of, contiguous
from weir.host_agent.transport.service_class import ServiceClass
from weir.wire.definition import GROUP_LANES, SLOT_LANES, Op

_WORD: Final = 32
_COMPLETE, _OVERFLOW = np.uint32(1), np.uint32(3)  # a region's first word


@dataclass(frozen=True)
class PositionList:
    """The form of one parameter's list. blocks: of its mask; capacity: positions; low: bits l of the code."""

    blocks: int
    capacity: int
    low: int

    @classmethod
    @functools.lru_cache(maxsize=4096)
    def of(cls, blocks: int, capacity: int) -> "PositionList":
        """Return the shortest form for this many blocks and positions."""
        capacity = min(capacity, blocks)
        if not capacity:
            return cls(blocks, 0, 0)
        guess = (blocks // capacity).bit_length() - 1
        forms = (cls(blocks, capacity, low) for low in range(max(0, guess - 1), guess + 2))
        return min(forms, key=lambda form: form.bits)

    @property
    def bits(self) -> int:
        """Return how many bits it takes."""
        return self.capacity * (self.low + 1) + (self.blocks >> self.low) + 1 if self.capacity else 0


class Region:
    """The lanes of one worker: a word that says whether the lists are complete, then the lists of a bucket.

    Args:
        forms: of each parameter that has a mask.
    """

    def __init__(self, forms: Sequence[PositionList]) -> None:
        self.forms = tuple(forms)
        self.words = 1 + -(-sum(form.bits for form in forms) // _WORD)
        self.lanes, self.packet_block = _sizes(self.words)

    def lists(self, masks: Sequence[Lanes]) -> "Lists":
        """Return the lists of a bucket's masks, to be written or read."""
        rows, at = [], _WORD
        for form, mask in zip(self.forms, masks, strict=True):
            if mask.size < -(-form.blocks // _WORD):
                raise ValueError(f"a mask of {form.blocks} blocks does not have {mask.size} words")
            address = contiguous(mask, "mask", np.uint32)
            rows.append((at, form.capacity, form.low, form.blocks, address))
            at += form.bits
        return Lists(np.array(rows, np.uint64), tuple(masks))


@dataclass(frozen=True)
class Lists:
    """The lists of a bucket, and the masks that they are of.

    rows: each as ``struct weir_list``, in positions.c.
    """

    rows: npt.NDArray[np.uint64]
    masks: tuple[Lanes, ...]

    def write(self, lanes: Lanes) -> None:
        """Write the lists of one worker's masks to its lanes, which are zero."""
        words = contiguous(lanes, "lanes", np.uint32)
        complete = bindings.library().weir_positions_write(address_of(self.rows), len(self.rows), words)
        lanes[0] = _COMPLETE if complete else _OVERFLOW

    def read(self, workers: Sequence[Lanes]) -> None:
        """Set in the masks what some workers' lists say, given their lanes."""
        rows = address_of(self.rows)
        for lanes in workers:
            bindings.library().weir_positions_read(
                rows, len(self.rows), contiguous(lanes, "lanes", np.uint32)
            )


def gather(
    communicator: Communicator,
    region: Region,
    masks: Sequence[Lanes],
    workers: int,
    service: ServiceClass,
    piggybacks: Lanes = NO_LANES,
) -> bool:
    """Set in each worker's masks what any worker has set in its own; return False if lists did not suffice.

    The masks are then as they were. workers: ranks with a choice of their own, the first ones. piggybacks:
    lanes that travel along; become the OR of all workers'.
    """
    together = np.zeros(workers * region.lanes + piggybacks.size, np.uint32)
    own, behind = np.split(together, [workers * region.lanes])
    lanes, behind[:] = own.reshape(workers, region.lanes), piggybacks
    lists = region.lists(masks)
    if communicator.rank < workers:
        lists.write(lanes[communicator.rank])
    communicator.reduce_vector(together, Op.OR, region.packet_block, service)
    piggybacks[:] = behind
    if (lanes[:, 0] != _COMPLETE).any():
        return False
    lists.read([theirs for rank, theirs in enumerate(lanes) if rank != communicator.rank])
    return True


def region_of(
    layout: BucketLayout, encodings: Mapping[str, Encoding], capacities: Mapping[str, int]
) -> Region:
    """Return the region for the lists of a bucket's parameters that have a mask."""
    forms = []
    for segment in layout:
        mask_block = encodings[segment.name].mask_block
        if mask_block is not None:
            forms.append(PositionList.of(-(-segment.length // mask_block), capacities[segment.name]))
    return Region(forms)


def _sizes(words: int) -> tuple[int, int]:
    """Return the lanes of a region, and of a block of its packets: large blocks, unless they lengthen it."""
    block = SLOT_LANES
    while block > GROUP_LANES and -words % block > words // 16:
        block //= 2
    return -(-words // block) * block, block
