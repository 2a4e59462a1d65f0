# SPDX-License-Identifier: Apache-2.0
"""Shared-memory ports from Python, one frame at a time: for tools and tests, not for data paths."""

import ctypes
import errno
import functools
import os
import struct
from ctypes import c_char_p, c_int, c_int64, c_uint32, c_void_p
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from softp4.native.build import Signatures, load_library

SWITCH: Final = 0
HOST: Final = 1
MAX_FRAME: Final = 4216  # SP4_MAX_FRAME in ring.h
VERSION: Final = 1  # SP4_RING_VERSION there
_MAGIC: Final = 0x57454953
_HEAD: Final = struct.Struct("=2I")  # magic, version
_HERE: Final = Path(__file__).resolve().parent


SIGNATURES: Final[Signatures] = {
    "ring_bell_open": (c_void_p, (c_char_p, c_int)),
    "ring_bell_close": (None, (c_void_p,)),
    "ring_port_open": (c_void_p, (c_char_p, c_int, c_void_p)),
    "ring_port_close": (None, (c_void_p,)),
    "ring_port_send": (c_int, (c_void_p, c_int, c_char_p, c_uint32)),
    "ring_port_receive": (c_int, (c_void_p, c_int, c_void_p, c_int64)),
}


@functools.cache
def library() -> ctypes.CDLL:
    """Return the compiled library."""
    return load_library("ring", [_HERE / "ring_api.c"], include=[_HERE], signatures=SIGNATURES)


def layout_problem(path: Path) -> str:
    """Return why a port's file is refused (EPROTO) by this version of the rings, and what to do, as text."""
    try:
        head = path.read_bytes()[: _HEAD.size]
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    magic, version = _HEAD.unpack(head) if len(head) == _HEAD.size else (0, 0)
    if magic != _MAGIC:
        return "no switch made this file: remove it, and restart the switch"
    if version != VERSION:
        return (
            f"its switch has version {version} of shared-memory ports, this process version {VERSION}: "
            "install the same release of softp4 for both, and restart the switch"
        )
    return "its file, or the switch's bell beside it, is of another size: restart the switch"


class ShmPort:
    """One end of a shared-memory port: frames in, frames out.

    ``side`` HOST attaches to a port that a switch made in ``directory``; SWITCH makes it (and the bell, if
    it is not there yet). Raises OSError when the port does not exist, or is of another version or user.
    """

    def __init__(self, directory: Path, number: int, side: int = HOST) -> None:
        self._lib = library()
        self._side = side
        bell = directory / "bell"
        self._bell = self._lib.ring_bell_open(os.fsencode(bell), int(side == SWITCH and not bell.exists()))
        if not self._bell:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(bell))
        path = directory / f"port-{number}"
        self._port = self._lib.ring_port_open(os.fsencode(path), int(side == SWITCH), self._bell)
        if not self._port:
            error = ctypes.get_errno()
            self._lib.ring_bell_close(self._bell)
            why = layout_problem(path) if error == errno.EPROTO else os.strerror(error)
            raise OSError(error, why, str(path))
        self._buffer = ctypes.create_string_buffer(MAX_FRAME)

    def send(self, frame: bytes) -> bool:
        """Send one frame; False when the ring is full or the frame longer than MAX_FRAME bytes."""
        return bool(self._lib.ring_port_send(self._port, self._side, frame, len(frame)) == 0)

    def recv(self, timeout: float = 1.0) -> bytes | None:
        """Return the next frame, or None when none came within ``timeout`` seconds."""
        n = self._lib.ring_port_receive(self._port, self._side, self._buffer, int(timeout * 1e9))
        return None if n < 0 else self._buffer.raw[:n]

    def close(self) -> None:
        """Detach; the files stay: they belong to the switch."""
        if self._port:
            self._lib.ring_port_close(self._port)
            self._lib.ring_bell_close(self._bell)
            self._port = self._bell = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: tuple[type[BaseException], BaseException, TracebackType] | None) -> None:
        self.close()
