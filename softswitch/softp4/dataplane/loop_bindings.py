# SPDX-License-Identifier: Apache-2.0
"""The C entry points of the switch's loop (softp4/dataplane/csrc/loop.h) with Python types."""

import ctypes
import functools
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

from softp4 import native
from softp4.runtime.queueing import Limits

_HERE: Final = Path(__file__).resolve().parent
_SOURCES: Final = (
    "loop.c",
    "serve.c",
    "together.c",
    "tap.c",
    "capture.c",
    "port_shm.c",
    "port_packet.c",
    "port_udp.c",
    "claimants.c",
    "batch.c",
    "coalesce.c",
    "segment.c",
    "port_queue.c",
)


@dataclass(frozen=True)
class PortStatistics:
    """Counts of one port since it was added.

    ``rx_drops`` came in and went nowhere (ring full, port down, no program loaded), ``rx_oversize`` was
    longer than MAX_FRAME bytes, ``tx_drops`` was sent by the program but found a full queue or a port
    that is down. ``rx_batches`` came in as one frame of several packets, which the switch segmented,
    ``tx_batches`` left so.
    """

    rx_packets: int
    rx_bytes: int
    rx_drops: int
    rx_oversize: int
    tx_packets: int
    tx_bytes: int
    tx_drops: int
    rx_batches: int
    tx_batches: int


class Statistics(ctypes.Structure):
    """C ``port_stats``."""

    _fields_ = tuple((field.name, ctypes.c_uint64) for field in fields(PortStatistics))


SIGNATURES: Final[native.Signatures] = {
    "loop_new": (ctypes.c_void_p, ()),
    "loop_free": (None, (ctypes.c_void_p,)),
    "loop_run": (ctypes.c_int, (ctypes.c_void_p,)),
    "loop_stop": (None, (ctypes.c_void_p,)),
    "loop_set_switch": (ctypes.c_int, (ctypes.c_void_p, ctypes.c_void_p)),
    "loop_remove": (ctypes.c_int, (ctypes.c_void_p, ctypes.c_uint32)),
    "loop_set_up": (ctypes.c_int, (ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int)),
    "loop_get_stats": (
        ctypes.c_int,
        (ctypes.c_void_p, ctypes.c_uint32, ctypes.POINTER(Statistics)),
    ),
    "loop_set_queueing": (
        ctypes.c_int,
        (ctypes.c_void_p, ctypes.c_uint32, ctypes.POINTER(Limits), ctypes.c_int),
    ),
    "loop_get_queue_stats": (ctypes.c_int, (ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p)),
    "loop_now": (ctypes.c_uint64, (ctypes.c_void_p,)),
    "loop_unknown_port": (ctypes.c_uint64, (ctypes.c_void_p,)),
    "loop_start_capture": (
        ctypes.c_int,
        (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_uint32),
    ),
    "loop_stop_capture": (ctypes.c_int, (ctypes.c_void_p, ctypes.c_char_p)),
    "loop_capture_error": (ctypes.c_int, (ctypes.c_void_p, ctypes.c_char_p)),
    "loop_add_shm": (ctypes.c_int, (ctypes.c_void_p, ctypes.c_uint32, ctypes.c_char_p)),
    "loop_add_interface": (
        ctypes.c_int,
        (ctypes.c_void_p, ctypes.c_uint32, ctypes.c_char_p, ctypes.c_int),
    ),
    "loop_add_udp": (
        ctypes.c_int,
        (ctypes.c_void_p, ctypes.c_uint32, *(ctypes.c_char_p,) * 4, ctypes.c_int),
    ),
    "loop_add_claimed": (
        ctypes.c_int,
        (ctypes.c_void_p, ctypes.c_uint32, *(ctypes.c_char_p,) * 3, ctypes.c_int),
    ),
    "loop_add_queue": (
        ctypes.c_int,
        (ctypes.c_void_p, ctypes.c_uint32, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int),
    ),
    "loop_output_error": (ctypes.c_int, (ctypes.c_void_p, ctypes.c_uint32)),
    "loop_inject": (
        ctypes.c_int,
        (ctypes.c_void_p, ctypes.c_uint32, ctypes.c_char_p, ctypes.c_uint32, ctypes.c_int64),
    ),
    "loop_receive": (
        ctypes.c_int,
        (ctypes.c_void_p, ctypes.c_uint32, ctypes.c_char_p, ctypes.c_uint32, ctypes.c_int64),
    ),
    "loop_drain": (ctypes.c_int, (ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int64)),
}


@functools.cache
def library() -> ctypes.CDLL:
    """Return the compiled loop."""
    return native.load_library(
        "switch-loop",
        [_HERE / "csrc" / name for name in _SOURCES],
        include=[_HERE / "csrc", _HERE.parent / "runtime", native.INCLUDE],
        signatures=SIGNATURES,
    )
