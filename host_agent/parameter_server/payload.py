# SPDX-License-Identifier: Apache-2.0
"""Sparse payloads: some elements of a vector of 32-bit words, written down in the form that costs least.

The forms are those of the encodings (``compression.encodings``) for one who needs not agree with others:

- dense: all words.
- tree: a mask over blocks of m elements, as a tree of 1 to 3 levels; of each level but the top one only words
  that are not zero. Then the blocks.
- list: how far each block is from the one before, in 16 bits if all gaps allow it, else in 32. Then the
  blocks.

What each would take follows exactly from the pyramid of blocks that are not empty, so the smallest is chosen
without trying. A block that is sent is sent whole: with m > 1 elements travel that nobody chose, and
``Plan.covered`` says which.

In words, little-endian as hosts are: form | log2 m << 8 | levels << 16; the vector's length; how many blocks
a list has; then mask or list; then values. The last block ends where the vector does.
"""

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from weir.host_agent.collectives.dtypes import pack_bits, set_bits
from weir.host_agent.compression.encodings.cost import WORD, Occupancy
from weir.host_agent.compression.encodings.encoding import MASK_SIZES
from weir.host_agent.compression.encodings.shared_mask import MOST_LEVELS
from weir.host_agent.parameter_server.value_filter import Bits

Words = npt.NDArray[np.uint32]

HEAD_WORDS: Final = 3
_GAP_LIMIT: Final = 1 << 16


class PayloadError(ValueError):
    """A payload is not one that this module writes. Says what is wrong with it."""


class Form(IntEnum):
    """The form of a payload."""

    DENSE = 0
    TREE = 1
    LIST = 2
    WIDE_LIST = 3


@dataclass(frozen=True)
class Plan:
    """The form in which the chosen elements of one vector are written down.

    words: of the payload, exactly. block: elements to a bit of the mask, or to an entry of the list. levels:
    of the mask tree; 0 in other forms. chosen: the blocks that are sent.
    """

    form: Form
    block: int
    levels: int
    words: int
    length: int
    chosen: Bits

    @property
    def bytes(self) -> int:
        """Size of the payload."""
        return 4 * self.words

    @cached_property
    def covered(self) -> Bits:
        """Return which elements are sent: the chosen ones, and what is in a block with them."""
        return _spread(self.chosen, self.block, self.length)


def plan(chosen: Bits, blocks: tuple[int, ...] = MASK_SIZES) -> Plan:
    """Return the cheapest way to send these elements of a vector. blocks: sizes of block to consider."""
    if chosen.ndim != 1 or not 0 < chosen.size < 1 << 32:
        raise ValueError(f"a payload is of a vector of 1 to 2^32 - 1 elements, not of shape {chosen.shape}")
    length = chosen.size
    occupancy = Occupancy(np.ascontiguousarray(chosen)[np.newaxis])
    best = HEAD_WORDS + length, Form.DENSE, 1, 0
    for block in blocks:
        found = np.flatnonzero(occupancy.at(block)[0])
        values = _elements(found, block, length)
        if HEAD_WORDS + values >= best[0]:
            continue  # as coarser blocks have more, unless they end the vector
        gaps = np.diff(found, prepend=0)
        narrow = not found.size or int(gaps.max()) < _GAP_LIMIT
        form, index = (Form.LIST, -(-found.size // 2)) if narrow else (Form.WIDE_LIST, found.size)
        best = min(best, (HEAD_WORDS + index + values, form, block, 0))
        for levels in range(1, MOST_LEVELS + 1):
            mask = _tree_words(occupancy, block, levels)
            best = min(best, (HEAD_WORDS + mask + values, Form.TREE, block, levels))
    words, form, block, levels = best
    blocks_chosen = np.ones(length, np.bool_) if form is Form.DENSE else occupancy.at(block)[0]
    return Plan(form, block, levels, words, length, blocks_chosen)


def encode(plan: Plan, vector: Words) -> Words:
    """Write down the covered elements of a vector, in ``plan.words`` words."""
    if vector.shape != (plan.length,) or vector.dtype != np.uint32:
        raise ValueError(f"the plan is for {plan.length} words, not for {vector.dtype} {vector.shape}")
    return np.concatenate([encode_places(plan), vector[plan.covered]])


def encode_places(plan: Plan) -> Words:
    """Write down which elements are covered, without their values."""
    count = np.count_nonzero(plan.chosen) if plan.form in (Form.LIST, Form.WIDE_LIST) else 0
    head = np.array(
        [plan.form | (plan.block.bit_length() - 1) << 8 | plan.levels << 16, plan.length, count], np.uint32
    )
    return np.concatenate([head, *([] if plan.form is Form.DENSE else _index(plan))])


@dataclass(frozen=True)
class Patch:
    """A payload, read: ``values`` of the elements ``places`` (bool) of a vector of ``length`` words."""

    length: int
    places: Bits
    values: Words

    def onto(self, vector: Words) -> None:
        """Overwrite these elements of a vector."""
        vector[self.places] = self.values

    def dense(self) -> Words:
        """Return the vector with these elements, and zeros elsewhere."""
        vector = np.zeros(self.length, np.uint32)
        self.onto(vector)
        return vector


def decode(payload: Words, length: int) -> Patch:
    """Return what a payload of a vector of ``length`` words says. Raises PayloadError."""
    places, values = _read(payload, length)
    if values.size != np.count_nonzero(places):
        raise PayloadError(f"{values.size} values came for {np.count_nonzero(places)} elements")
    return Patch(length, places, values)


def decode_places(payload: Words, length: int) -> Bits:
    """Return which elements ``encode_places`` wrote down. Raises PayloadError."""
    places, values = _read(payload, length)
    if values.size:
        raise PayloadError(f"{values.size} values came where there are none")
    return places


def _read(payload: Words, length: int) -> tuple[Bits, Words]:
    """Return which elements a payload is of, and what follows."""
    if payload.size < HEAD_WORDS:
        raise PayloadError(f"a payload of {payload.size} words is too short for its head")
    kind, said, count = map(int, payload[:HEAD_WORDS])
    form, log2, levels, rest = kind & 0xFF, kind >> 8 & 0xFF, kind >> 16 & 0xFF, kind >> 24
    if said != length:
        raise PayloadError(f"the payload is for a vector of {said} words, not {length}")
    if form > max(Form) or rest or 1 << log2 not in MASK_SIZES:
        raise PayloadError(f"payloads of kind {kind:#010x} are not known here: versions differ, or damage")
    body = payload[HEAD_WORDS:]
    blocks = -(-length // (1 << log2))
    if form == Form.DENSE:
        chosen, taken = np.ones(length, np.bool_), 0
        if log2 or levels or count:
            raise PayloadError("a dense payload has neither blocks nor levels")
    elif form == Form.TREE:
        if not 1 <= levels <= MOST_LEVELS or count:
            raise PayloadError(f"a mask of {levels} levels and {count} entries is not known here")
        chosen, taken = _read_tree(body, blocks, levels)
    else:
        if levels:
            raise PayloadError("a list has no levels")
        chosen, taken = _read_list(body, blocks, count, wide=form == Form.WIDE_LIST)
    return _spread(chosen, 1 << log2, length), body[taken:]


def _elements(found: npt.NDArray[np.intp], block: int, length: int) -> int:
    """Return how many elements these blocks have: the vector's last one may be partial."""
    ends = found.size and found[-1] == -(-length // block) - 1
    return int(found.size) * block - (-length % block if ends else 0)


def _spread(chosen: Bits, block: int, length: int) -> Bits:
    return chosen if block == 1 else np.repeat(chosen, block)[:length]


def _tree_words(occupancy: Occupancy, block: int, levels: int) -> int:
    """Return words of a mask tree: its top level whole, of the others what is not zero."""
    top = -(-occupancy.length // block)
    for _ in range(levels):
        top = -(-top // WORD)
    below = (np.count_nonzero(occupancy.at(block * WORD**level)) for level in range(1, levels))
    return int(top + sum(below))


def _index(plan: Plan) -> list[Words]:
    """Return the mask or the list of a plan's blocks."""
    if plan.form is Form.TREE:
        return _tree(plan.chosen, plan.levels)
    gaps = np.diff(np.flatnonzero(plan.chosen), prepend=0)
    if plan.form is Form.WIDE_LIST:
        return [gaps.astype(np.uint32)]
    return [np.pad(gaps, (0, gaps.size % 2)).astype(np.uint16).view(np.uint32)]


def _tree(chosen: Bits, levels: int) -> list[Words]:
    """Return the levels of a mask, top first."""
    lowest = pack_bits(chosen)
    if levels == 1:
        return [lowest]
    return [*_tree(lowest != 0, levels - 1), lowest[lowest != 0]]


def _read_tree(body: Words, blocks: int, levels: int) -> tuple[Bits, int]:
    """Return which blocks a mask has set, and how many words it took."""
    size = -(-blocks // WORD)
    if levels == 1:
        lowest, taken = body[:size], min(size, body.size)
        if taken < size:
            raise PayloadError(f"a mask of {size} words ends after {taken}")
    else:
        occupied, above = _read_tree(body, size, levels - 1)
        lowest, count = np.zeros(size, np.uint32), np.count_nonzero(occupied)
        taken = above + int(count)
        if taken > body.size:
            raise PayloadError(f"a mask of {taken} words ends after {body.size}")
        lowest[occupied] = body[above:taken]
        if np.any(lowest[occupied] == 0):
            raise PayloadError("a level of a mask promises a word that is zero")
    bits = set_bits(np.ascontiguousarray(lowest))
    if bits[blocks:].any():
        raise PayloadError(f"a mask has bits behind the last of {blocks} blocks")
    return bits[:blocks], taken


def _read_list(body: Words, blocks: int, count: int, *, wide: bool) -> tuple[Bits, int]:
    """Return which blocks a list names, and how many words it took."""
    taken = count if wide else -(-count // 2)
    if taken > body.size:
        raise PayloadError(f"a list of {taken} words ends after {body.size}")
    entries = body[:taken] if wide else np.ascontiguousarray(body[:taken]).view(np.uint16)
    gaps = entries[:count].astype(np.int64)
    if entries[count:].any() or not gaps[1:].all():
        raise PayloadError("a list names a block twice")
    found = np.cumsum(gaps)
    if count and found[-1] >= blocks:
        raise PayloadError(f"a list names block {found[-1]} of {blocks}")
    chosen = np.zeros(blocks, np.bool_)
    chosen[found] = True
    return chosen, taken
