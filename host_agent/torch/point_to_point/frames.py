# SPDX-License-Identifier: Apache-2.0
"""The frames that two ranks exchange on the connection that the sender of messages opens.

The sender offers a message, the receiver accepts it when a receive fits it, then the bytes follow. So nothing
waits in a receiver's memory, and both sides learn of a receive that does not fit.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Self

_HELLO = struct.Struct("!4sI16s")
_FRAME = struct.Struct("!BIqQ16s")
_MAGIC = b"WPP1"

HELLO_BYTES = _HELLO.size
FRAME_BYTES = _FRAME.size
SECRET_BYTES = 16


class FrameKind(IntEnum):
    """Kinds of frames."""

    OFFER = 1  # sender: there is a message of this tag, size and dtype
    ACCEPT = 2  # receiver: send it
    REFUSE = 3  # receiver: it does not fit; ``size`` bytes of UTF-8 follow that say why
    DATA = 4  # sender: the ``size`` bytes of the message follow


@dataclass(frozen=True)
class Hello:
    """The first bytes of a connection: who opens it, and the secret that the other side published."""

    rank: int
    secret: bytes

    def encode(self) -> bytes:
        """Return its bytes."""
        return _HELLO.pack(_MAGIC, self.rank, self.secret)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Return what ``encode`` wrote; ValueError when it did not write this."""
        if len(data) != HELLO_BYTES:
            raise ValueError(f"a greeting has {HELLO_BYTES} bytes, not {len(data)}")
        magic, rank, secret = _HELLO.unpack(data)
        if magic != _MAGIC:
            raise ValueError("not a greeting of this version")
        return cls(rank, secret)


@dataclass(frozen=True)
class Frame:
    """One frame. number: the message's, counted by its sender. dtype: torch's name, "float32"."""

    kind: FrameKind
    number: int
    tag: int = 0
    size: int = 0
    dtype: str = ""

    def encode(self) -> bytes:
        """Return its bytes."""
        return _FRAME.pack(self.kind, self.number, self.tag, self.size, self.dtype.encode("ascii"))

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Return what ``encode`` wrote; ValueError for another size, and a kind that there is not."""
        if len(data) != FRAME_BYTES:
            raise ValueError(f"a frame has {FRAME_BYTES} bytes, not {len(data)}")
        kind, number, tag, size, dtype = _FRAME.unpack(data)
        return cls(FrameKind(kind), number, tag, size, dtype.rstrip(b"\0").decode("ascii"))
