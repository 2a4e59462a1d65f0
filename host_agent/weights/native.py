# SPDX-License-Identifier: Apache-2.0
"""The native half of published weights (``csrc/``), compiled on first use and bound with ctypes."""

import ctypes
import functools
from ctypes import POINTER, Structure, c_char_p, c_int, c_uint32, c_uint64
from ctypes import c_void_p as pointer
from pathlib import Path
from typing import Final

from softp4 import native
from weir.host_agent.transport import bindings as transport

_CSRC: Final = Path(__file__).resolve().parent / "csrc"

MISSING: Final = 0
THERE: Final = 1
ASKED: Final = 2
"""States of a packet of a part; asked: missing, and asked for."""


class Message(Structure):
    """``weir_message`` in packets.c."""

    _fields_ = tuple((name, c_uint32) for name in ("job", "number", "snapshot", "packets"))


class Part(Structure):
    """``weir_part`` in packets.c."""

    _fields_ = (
        *((name, pointer) for name in ("body", "there")),
        ("of", Message),
        *((name, c_uint32) for name in ("received", "duplicates", "asked", "reach", "last_but_one", "last")),
    )


SIGNATURES: Final[native.Signatures] = {
    "weir_weights_sign": (None, (c_char_p, pointer, c_uint32)),
    "weir_weights_is_signed": (c_int, (c_char_p, pointer, c_uint32)),
    "weir_weights_write": (
        c_uint64,
        (c_char_p, POINTER(Message), c_uint32, pointer, c_uint64, pointer),
    ),
    "weir_weights_gather": (c_uint32, (c_char_p, pointer, pointer, c_uint32, c_uint32, POINTER(Part))),
}


@functools.cache
def library() -> ctypes.CDLL:
    """Return the compiled library. Raises native.NoCompilerError or native.CompileError on a machine's first
    use.
    """
    return native.load_library(
        "weights",
        sorted(_CSRC.glob("*.c")),
        include=[_CSRC, transport.CSRC, native.INCLUDE],
        signatures=SIGNATURES,
    )
