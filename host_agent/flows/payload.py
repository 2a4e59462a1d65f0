# SPDX-License-Identifier: Apache-2.0
"""Bytes as a tensor: what a flow carries are 32-bit lanes, whatever they mean.

The first lane is the number of bytes, all others are the bytes in the order in which they travel, and zeros
to fill the last. Lanes that stand for bytes must not be calculated with: some are no numbers.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

_LANE: Final = 4
MAX_BYTES: Final = 0xFFFFFFFF


def pack_bytes(data: bytes | bytearray | memoryview) -> npt.NDArray[np.float32]:
    """Return the lanes of some bytes. Raises ValueError when they are more than ``MAX_BYTES``."""
    given = np.frombuffer(data, np.uint8)
    if given.size > MAX_BYTES:
        raise ValueError(f"{given.size} bytes: at most {MAX_BYTES} go into one tensor")
    filled = np.zeros(_LANE * (1 + -(-given.size // _LANE)), np.uint8)
    filled[:_LANE] = np.frombuffer(given.size.to_bytes(_LANE, "big"), np.uint8)
    filled[_LANE : _LANE + given.size] = given
    return filled.view(">u4").astype(np.uint32).view(np.float32)


def unpack_bytes(lanes: npt.NDArray[np.float32], what: str) -> bytes:
    """Return the bytes that lanes stand for. Raises ValueError, naming ``what``, when they are no bytes."""
    words = lanes.view(np.uint32)
    size = int(words[0]) if words.size else -1
    if -(-size // _LANE) != words.size - 1:
        raise ValueError(f"{what} has {words.size} lanes, which are no bytes: was it sent as such?")
    return words[1:].astype(">u4").tobytes()[:size]
