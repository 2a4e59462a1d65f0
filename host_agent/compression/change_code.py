# SPDX-License-Identifier: Apache-2.0
"""Changes between two versions of a vector, in as few bytes as one of four forms takes.

The vector is cut into pieces, each with the shortest form for what changed in it:

======  ==================================================================================================
NONE    nothing changed
LIST    positions in Elias-Fano's code (``encodings.position_lists``), then the values
MASK    a bit for each value, then those that changed
ALL     every value changed: the values
DENSE   the new piece as it is
======  ==================================================================================================

Values are written as distances from the old ones in Rice's code (csrc/deltas.c), or as they are where that is
shorter. So a piece never takes more than DENSE and a header of ten bytes.

    changes = find(old, new)
    before = take(old, changes)
    code = write(changes.on_host(), before, new, counts)
    apply(replica, read(code, replica))
"""

import struct
from collections import Counter
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from weir.host_agent.collectives.dtypes import WORD_BITS
from weir.host_agent.collectives.tensor_memory import byte_view
from weir.host_agent.compression import bindings
from weir.host_agent.compression.changes import Changes
from weir.host_agent.compression.encodings.position_lists import PositionList
from weir.host_agent.compression.encodings.shared_mask import words_for
from weir.host_agent.transport.arrays import address_of

PIECE: Final = 1 << 18
"""Values of a piece: whole words of the mask."""

_HEAD: Final = struct.Struct("<BBII")  # form, divisor, changes, bytes of the values
_AS_THEY_ARE: Final = 255  # instead of a divisor, also in csrc/deltas.c
_WORD_BYTES: Final = WORD_BITS // 8

Bytes = npt.NDArray[np.uint8]


class Form(IntEnum):
    """Form of a piece."""

    NONE = 0
    LIST = 1
    MASK = 2
    ALL = 3
    DENSE = 4


class CodeError(ValueError):
    """Bytes that are no changes of such a vector."""


def write(changes: Changes, before: torch.Tensor, new: torch.Tensor, forms: Counter[Form]) -> bytes:
    """Return the code of changes.

    Args:
        changes: in main memory.
        before: the old values at their places, in main memory.
        new: the new version, on any device.
        forms: counts the pieces of each form.
    """
    mask, size, length = byte_view(changes.mask).view(np.uint32), new.element_size(), new.numel()
    flat, old, values = new.detach().view(-1), byte_view(before), byte_view(changes.values)
    out, done = [], 0
    for start in range(0, length, PIECE):
        piece = min(PIECE, length - start)
        words = mask[start // WORD_BITS :][: words_for(piece, 1)]
        count = int(bindings.library().weir_changes_count(address_of(words), words.size))
        ours = slice(done * size, (done + count) * size)
        done += count
        form, parts = _piece(words, piece, count, old[ours], values[ours], size)
        if form is not Form.NONE and sum(map(len, parts)) > _HEAD.size + piece * size:
            dense = byte_view(flat[start : start + piece].cpu())
            form, parts = Form.DENSE, [_HEAD.pack(Form.DENSE, _AS_THEY_ARE, count, dense.size), dense.data]
        forms[form] += 1
        out += parts
    return b"".join(out)


def _piece(
    words: npt.NDArray[np.uint32], length: int, count: int, old: Bytes, values: Bytes, size: int
) -> tuple[Form, list[bytes | memoryview]]:
    """Return the shortest sparse form of a piece, and its parts."""
    if not count:
        return Form.NONE, [bytes((Form.NONE,))]
    divisor, coded = _coded(old, values, count, size)
    listed = PositionList.of(length, count)
    if count == length:
        form, places = Form.ALL, b""
    elif listed.bits < length:
        form, places = Form.LIST, _listed(listed, words)
    else:
        form, places = Form.MASK, words.tobytes()
    return form, [_HEAD.pack(form, divisor, count, len(coded)), places, coded]


def _coded(old: Bytes, values: Bytes, count: int, size: int) -> tuple[int, memoryview]:
    """Return the divisor's logarithm and the code of new values, given the old ones."""
    library, ends = bindings.library(), (address_of(old), address_of(values))
    divisor = int(library.weir_deltas_divisor(*ends, count, size))
    if divisor == _AS_THEY_ARE:
        return divisor, values.data
    room = np.empty(values.size, np.uint8)
    taken = library.weir_deltas_write(*ends, count, size, divisor, address_of(room), room.size)
    return (divisor, room[:taken].data) if taken else (_AS_THEY_ARE, values.data)


def _listed(form: PositionList, words: npt.NDArray[np.uint32]) -> bytes:
    lanes = np.zeros(-(-form.bits // WORD_BITS), np.uint32)
    row = _row(form, words)
    bindings.library().weir_positions_write(address_of(row), 1, address_of(lanes))
    return lanes.tobytes()


def _row(form: PositionList, words: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint64]:
    """Return the C's view of a list and its mask, which the caller keeps."""
    return np.array([(0, form.capacity, form.low, form.blocks, address_of(words))], np.uint64)


def read(code: memoryview, vector: torch.Tensor) -> Changes:
    """Return the changes that make the new version of a vector from this old one.

    Args:
        code: of ``write``.
        vector: the old version, contiguous, in main memory.

    Raises:
        CodeError: the code is not that of changes of such a vector.
    """
    size, length, reader = vector.element_size(), vector.numel(), _Reader(code)
    mask = np.zeros(words_for(length, 1), np.uint32)
    flat = byte_view(vector)
    values = []
    for start in range(0, length, PIECE):
        piece = min(PIECE, length - start)
        words = mask[start // WORD_BITS :][: words_for(piece, 1)]
        values.append(_read_piece(reader, words, flat[start * size :][: piece * size], piece, size))
    if reader.left:
        raise CodeError(f"{reader.left} bytes behind the changes")
    together = torch.empty(sum(part.size for part in values) // size, dtype=vector.dtype)
    np.concatenate([np.empty(0, np.uint8), *values], out=byte_view(together))
    return Changes(torch.from_numpy(mask), together.numel(), together)


def _read_piece(
    reader: "_Reader", words: npt.NDArray[np.uint32], old: Bytes, length: int, size: int
) -> Bytes:
    """Set a piece's bits in its mask, and return the new values."""
    library = bindings.library()
    form = reader.byte()
    if form == Form.NONE:
        return np.empty(0, np.uint8)
    divisor, count, taken = reader.head()
    if form not in tuple(Form) or not 0 < count <= length:
        raise CodeError(f"form {form}, {count} changes in {length} values")
    if form == Form.DENSE:
        return _read_dense(reader.take(length * size), words, length, taken == length * size)
    if form == Form.LIST:
        listed = PositionList.of(length, count)
        lanes = np.frombuffer(reader.take(-(-listed.bits // WORD_BITS) * _WORD_BYTES), np.uint32).copy()
        row = _row(listed, words)
        library.weir_positions_read(address_of(row), 1, address_of(lanes))
    elif form == Form.MASK:
        words[:] = np.frombuffer(reader.take(words.nbytes), np.uint32)
    else:
        _set_all(words, length)
    if library.weir_changes_count(address_of(words), words.size) != count or _beyond(words, length):
        raise CodeError(f"positions that are not {count} of {length}")
    coded = np.frombuffer(reader.take(taken), np.uint8).copy()
    if divisor == _AS_THEY_ARE:
        if coded.size != count * size:
            raise CodeError(f"{coded.size} bytes for {count} values of {size}")
        return coded
    before, after = np.empty(count * size, np.uint8), np.empty(count * size, np.uint8)
    library.weir_changes_take(address_of(words), words.size, size, address_of(old), address_of(before))
    ends = address_of(before), count, size, divisor, address_of(after)
    if not library.weir_deltas_read(address_of(coded), coded.size, *ends):
        raise CodeError(f"{coded.size} bytes are not {count} values")
    return after


def _read_dense(data: memoryview, words: npt.NDArray[np.uint32], length: int, fits: bool) -> Bytes:
    if not fits:
        raise CodeError("a whole piece of another length")
    _set_all(words, length)
    return np.frombuffer(data, np.uint8).copy()


def _set_all(words: npt.NDArray[np.uint32], length: int) -> None:
    words[:] = 0xFFFFFFFF
    if rest := length % WORD_BITS:
        words[-1] = (1 << rest) - 1


def _beyond(words: npt.NDArray[np.uint32], length: int) -> int:
    """Return the bits of a mask that are no values'."""
    return int(words[-1]) >> (length - 1) % WORD_BITS + 1


class _Reader:
    """Bytes that are taken one part after another. Raises CodeError where they end too early."""

    def __init__(self, code: memoryview) -> None:
        self._code, self._at = code, 0

    @property
    def left(self) -> int:
        """Bytes that are left."""
        return len(self._code) - self._at

    def take(self, count: int) -> memoryview:
        if count > self.left:
            raise CodeError(f"{count} bytes are missing at byte {self._at} of {len(self._code)}")
        self._at += count
        return self._code[self._at - count : self._at]

    def byte(self) -> int:
        """Return the next byte."""
        return self.take(1)[0]

    def head(self) -> tuple[int, int, int]:
        """Return the divisor, the number of changes and the bytes of values, behind the form."""
        self._at -= 1
        _, divisor, count, taken = _HEAD.unpack(self.take(_HEAD.size))
        return divisor, count, taken
