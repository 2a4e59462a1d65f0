# SPDX-License-Identifier: Apache-2.0
"""The native half of the transport (``csrc/``), compiled on first use and bound with ctypes."""

import ctypes
import functools
import struct
from ctypes import (
    POINTER,
    Structure,
    c_char_p,
    c_int,
    c_int32,
    c_int64,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
)
from ctypes import c_void_p as pointer
from pathlib import Path
from typing import Final

from softp4 import native
from weir.host_agent.transport.counters import COUNTERS
from weir.host_agent.transport.report import Verdict
from weir.wire.definition import COLUMN, KEY_BYTES, MAX_COLUMNS, SLOT_LANES, WEIR, WIDE_LANES

USUAL_PAYLOAD: Final = WEIR.size + COLUMN.size * MAX_COLUMNS + 4 * SLOT_LANES
"""Bytes of the longest Weir packet that is not wide, from the Weir header on."""

MAX_PAYLOAD: Final = WEIR.size + COLUMN.size + 4 * WIDE_LANES
"""Bytes of a wide one."""

CSRC: Final = Path(__file__).resolve().parent / "csrc"
"""Folder of the C, whose headers collectives and flows include as well."""


_CONFIG: Final = (
    "job",
    "worker",
    "workers",
    "path",
    "slots",
    "first_round",
    "fill",
    "congestion",
    "max_lanes",
    "wide",
    "keep",
)

_FROM_VERDICTS: Final = {
    "duplicates": Verdict.STALE,
    "repeats_asked": Verdict.REPEAT,
    "results_trimmed": Verdict.TRIMMED,
}

_TIMES: Final = ("initial_rto_ns", "min_rto_ns", "max_rto_ns", "min_probe_ns", "reordering_ns")


class Config(Structure):
    """``weir_config`` in transport.h."""

    _fields_ = (
        *((name, c_uint32) for name in _CONFIG),
        *((name, c_int64) for name in _TIMES),
        ("key", c_uint8 * KEY_BYTES),
    )


class ServiceClass(Structure):
    """``weir_service_class`` in transport.h."""

    _fields_ = (
        ("layer", c_uint32),
        *((name, pointer) for name in ("magnitudes", "accounts", "budgets")),
        *((name, c_uint32) for name in ("budget_count", "account_rows")),
    )


class Floats(Structure):
    """``weir_floats`` in transport.h."""

    _fields_ = (("exponents", pointer), ("values_log2", c_uint32), ("headroom", c_uint32))


class LossAccount(Structure):
    """``weir_account`` in transport.h."""

    FIELDS: Final = ("limit", "reserved", "missing")
    _fields_ = tuple((name, c_uint64) for name in FIELDS)


class Report(Structure):
    """``weir_report`` in transport.h: what is counted there, and the verdicts from which the rest follows."""

    COUNTS: Final = tuple(name for name in COUNTERS if name not in _FROM_VERDICTS)
    FROM_VERDICTS: Final = _FROM_VERDICTS
    ACCOUNTS: Final = ("entered", "included", "returned", "applied")
    _fields_ = (
        *((name, c_uint64) for name in COUNTS),
        *((f"{name}_{what}", c_uint64) for name in ACCOUNTS for what in ("lanes", "sum")),
        ("verdicts", c_uint64 * len(Verdict)),
    )
    WORDS: Final = struct.Struct(f"={len(COUNTS)}Q{'Qq' * len(ACCOUNTS)}{len(Verdict)}Q")
    """All of it at once, sums with their signs: reading field by field takes longer than a short reduce."""


class Addresses(Structure):
    """``weir_addresses`` in frame.h."""

    _fields_ = (
        *((name, c_uint8 * 6) for name in ("host_mac", "switch_mac")),
        *((name, c_uint32) for name in ("host_ip", "switch_ip")),
        *((name, c_uint16) for name in ("host_port", "switch_port")),
    )


SIGNATURES: Final[native.Signatures] = {
    "weir_transport_new": (pointer, (POINTER(Config),)),
    "weir_transport_free": (None, (pointer,)),
    "weir_transport_begin": (
        c_int,
        (
            *(pointer, c_uint32, c_uint32, pointer, c_uint64, pointer),
            *(POINTER(ServiceClass), POINTER(Floats), pointer, c_uint32),
        ),
    ),
    "weir_transport_restore": (None, (pointer,)),
    "weir_transport_send": (c_uint32, (pointer, c_int64, pointer, POINTER(c_uint8))),
    "weir_transport_receive": (c_int, (pointer, c_char_p, c_uint32, c_uint8, c_int64)),
    "weir_transport_done": (c_int, (pointer,)),
    "weir_transport_disagrees": (c_int, (pointer,)),
    "weir_transport_deadline": (c_int64, (pointer,)),
    "weir_transport_rto": (c_int64, (pointer,)),
    "weir_transport_coalescing": (c_int64, (pointer, c_uint32)),
    "weir_transport_round_trip": (c_int64, (pointer,)),
    "weir_transport_window": (c_uint32, (pointer,)),
    "weir_transport_accounts": (c_uint32, (pointer, POINTER(POINTER(LossAccount)))),
    "weir_transport_report": (POINTER(Report), (pointer,)),
    "weir_transport_waiting": (c_uint32, (pointer, POINTER(c_uint32), POINTER(c_uint32), c_uint32)),
    "weir_transport_returned": (
        c_uint64,
        (pointer, POINTER(POINTER(c_uint32)), POINTER(POINTER(c_uint32))),
    ),
    "weir_drive": (c_int, (pointer, pointer, c_int64)),
    "weir_drive_rest": (c_int64, (pointer, pointer)),
    "weir_shared_open": (pointer, (c_char_p, c_char_p)),
    "weir_shared_close": (None, (pointer,)),
    "weir_shm_spin_ns": (c_int64, ()),
    "weir_shm_open": (pointer, (pointer, POINTER(Addresses))),
    "weir_frames_open": (pointer, (pointer, c_uint32)),
    "weir_frames_close": (None, (pointer,)),
    "weir_frames_send": (c_uint64, (pointer, POINTER(Addresses), c_uint8, pointer, c_uint64, c_uint32)),
    "weir_frames_receive": (c_uint32, (pointer, POINTER(Addresses), c_uint32, pointer, pointer)),
    "weir_frames_wait": (None, (pointer, c_int64)),
    "weir_tunnel_frames_open": (pointer, (c_int, c_int, c_uint32, c_char_p)),
    "weir_tunnel_frames_close": (None, (pointer,)),
    "weir_tunnel_frames_claim": (c_int, (pointer, c_int64)),
    "weir_tunnel_frames_send": (
        c_uint64,
        (pointer, POINTER(Addresses), c_uint8, pointer, c_uint64, c_uint32),
    ),
    "weir_tunnel_frames_receive": (c_uint32, (pointer, POINTER(Addresses), c_uint32, pointer, pointer)),
    "weir_datagrams_open": (pointer, (c_int, c_int)),
    "weir_datagrams_close": (None, (pointer,)),
    "weir_datagrams_send": (c_uint64, (pointer, pointer, c_uint64, c_uint32, c_uint64)),
    "weir_datagrams_receive": (c_uint32, (pointer, pointer, pointer)),
    "weir_udp_open": (pointer, (c_int, c_int)),
    "weir_tunnel_open": (pointer, (c_int, c_int, POINTER(Addresses), c_char_p)),
    "weir_tunnel_claim": (c_int, (pointer, c_int64)),
    "weir_io_leave": (None, (pointer,)),
    "weir_io_last_error": (c_int, (pointer,)),
    "weir_io_close": (None, (pointer,)),
    "weir_frame_wrap": (c_uint32, (POINTER(Addresses), c_char_p, c_uint32, c_uint8, pointer)),
    "weir_frame_unwrap": (c_int32, (POINTER(Addresses), c_char_p, c_uint32, POINTER(c_uint8))),
    "weir_host_tell": (None, (pointer, pointer, c_uint32)),
    "weir_host_wait": (c_int, (pointer, pointer, c_uint32, c_uint32, c_uint32, c_int64)),
    "weir_host_put": (c_uint64, (pointer, c_uint64, c_uint32, pointer, pointer, POINTER(c_uint64))),
    "weir_host_reduce": (
        None,
        (pointer, pointer, c_uint32, c_uint32, c_uint64, c_uint32, c_uint64, c_uint64, pointer),
    ),
    "weir_host_take": (
        c_uint64,
        (pointer, pointer, pointer, pointer, c_uint64, c_uint32, pointer, POINTER(c_uint64)),
    ),
    "weir_host_included": (
        c_uint64,
        (pointer, pointer, pointer, c_uint64, c_uint32, POINTER(c_uint64)),
    ),
}


@functools.cache
def library() -> ctypes.CDLL:
    """Return the compiled library. Raises native.NoCompilerError or native.CompileError on a machine's first
    use.
    """
    return native.load_library(
        "transport", sorted(CSRC.glob("*.c")), include=[CSRC, native.INCLUDE], signatures=SIGNATURES
    )
