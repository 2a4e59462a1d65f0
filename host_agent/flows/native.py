# SPDX-License-Identifier: Apache-2.0
"""The native half of flows (``csrc/``), compiled on first use and bound with ctypes."""

import ctypes
import functools
from ctypes import (
    POINTER,
    Structure,
    c_char_p,
    c_double,
    c_int,
    c_int64,
    c_uint8,
    c_uint32,
    c_uint64,
)
from ctypes import c_void_p as pointer
from pathlib import Path
from typing import Final

import numpy as np

from softp4 import native
from weir.host_agent.flows.config import MAX_DATA, FlowConfig
from weir.host_agent.flows.verdict import FlowVerdict, Verdicts
from weir.host_agent.transport import bindings
from weir.wire.definition import FLOW

MAX_PACKET: Final = FLOW.size + MAX_DATA
NEVER: Final = (1 << 63) - 1
"""The time of a deadline that there is not."""

_CSRC: Final = Path(__file__).resolve().parent / "csrc"

_SECOND: Final = 1_000_000_000
_NUMBERS: Final = (
    *("flow", "worker", "chunk_lanes", "open_tensors", "max_lanes", "early_stop", "congestion"),
    "first_window",
)


class Config(Structure):
    """``weir_flow_config`` in flow.h."""

    _fields_ = (
        *((name, c_uint32) for name in _NUMBERS),
        *((name, c_int64) for name in ("initial_rto_ns", "min_probe_ns", "max_rto_ns")),
        ("max_loss", c_double),
    )


class Tensor(Structure):
    """``weir_flow_tensor`` in flow.h."""

    _fields_ = (
        *((name, pointer) for name in ("values", "magnitudes", "accounts", "droppable", "budgets")),
        *((name, c_uint32) for name in ("number", "lanes", "layer", "account_count")),
    )


class SenderCounts(Structure):
    """``weir_flow_sender_counts`` in flow.h."""

    FIELDS: Final = (
        *("packets", "bytes", "chunks", "droppable", "resent", "probes", "timeouts", "trimmed"),
        "marked",
    )
    _fields_ = tuple((name, c_uint64) for name in FIELDS)


class ReceiverCounts(Structure):
    """``weir_flow_receiver_counts`` in flow.h."""

    FIELDS: Final = ("packets", "bytes", "marked")
    _fields_ = tuple((name, c_uint64) for name in FIELDS)


class Settled(Structure):
    """``weir_flow_settled`` in flow.h."""

    _fields_ = (
        ("delivered", pointer),
        *((name, POINTER(c_uint64)) for name in ("missing", "budgets")),
        *((name, c_uint32) for name in ("number", "layer", "count", "account_count")),
        *((name, c_uint32) for name in ("resent", "trimmed", "probes", "timeouts")),
        *((name, c_uint64) for name in ("kept_lanes", "returned_lanes")),
        *((name, c_int64) for name in ("entered_sum", "kept_sum", "returned_sum", "began_ns", "ended_ns")),
    )


class Delivered(Structure):
    """``weir_flow_delivered`` in flow.h."""

    _fields_ = (
        *((name, pointer) for name in ("values", "came")),
        *((name, POINTER(c_uint64)) for name in ("missing", "budgets")),
        *((name, c_uint32) for name in ("number", "layer", "lanes", "count", "account_count")),
        ("came_lanes", c_uint64),
        ("came_sum", c_int64),
    )


_TIME: Final = c_int64
_CLASS: Final = POINTER(c_uint8)
SIGNATURES: Final[native.Signatures] = {
    "weir_flow_sender_new": (pointer, (POINTER(Config),)),
    "weir_flow_sender_free": (None, (pointer,)),
    "weir_flow_sender_submit": (c_int, (pointer, POINTER(Tensor))),
    "weir_flow_sender_receive": (c_int, (pointer, c_char_p, c_uint32, _TIME)),
    "weir_flow_sender_urgency": (c_int, (pointer, _TIME)),
    "weir_flow_sender_next": (c_uint32, (pointer, _TIME, pointer, _CLASS)),
    "weir_flow_sender_deadline": (c_int64, (pointer,)),
    "weir_flow_sender_waiting": (c_uint32, (pointer, POINTER(c_uint32), c_uint32)),
    "weir_flow_sender_knows": (c_int, (pointer, c_uint32)),
    "weir_flow_sender_idle": (c_int, (pointer,)),
    "weir_flow_sender_settled": (c_int, (pointer, POINTER(Settled))),
    "weir_flow_sender_counted": (POINTER(SenderCounts), (pointer,)),
    "weir_flow_sender_verdicts": (POINTER(c_uint64), (pointer,)),
    "weir_flow_sender_window": (c_uint32, (pointer, POINTER(c_uint32))),
    "weir_flow_receiver_new": (pointer, (POINTER(Config),)),
    "weir_flow_receiver_free": (None, (pointer,)),
    "weir_flow_receiver_receive": (c_int, (pointer, c_char_p, c_uint32, c_uint8)),
    "weir_flow_receiver_has_answer": (c_int, (pointer,)),
    "weir_flow_receiver_next": (c_uint32, (pointer, pointer)),
    "weir_flow_receiver_is_settled": (c_int, (pointer,)),
    "weir_flow_receiver_delivered": (c_int, (pointer, POINTER(Delivered))),
    "weir_flow_receiver_counted": (POINTER(ReceiverCounts), (pointer,)),
    "weir_flow_receiver_verdicts": (POINTER(c_uint64), (pointer,)),
    "weir_flow_free": (None, (pointer,)),
    "weir_flow_mux_new": (pointer, ()),
    "weir_flow_mux_free": (None, (pointer,)),
    "weir_flow_mux_add": (c_int, (pointer, c_uint32, c_uint64, pointer, pointer)),
    "weir_flow_mux_remove": (None, (pointer, c_uint32)),
    "weir_flow_mux_receive": (c_int, (pointer, c_char_p, c_uint32, _TIME, c_uint8, c_uint64)),
    "weir_flow_mux_ended": (c_int, (pointer,)),
    "weir_flow_mux_urgency": (c_int, (pointer, _TIME)),
    "weir_flow_mux_next": (c_uint32, (pointer, _TIME, pointer, _CLASS, POINTER(c_uint64))),
    "weir_flow_mux_deadline": (c_int64, (pointer,)),
    "weir_flow_mux_verdicts": (POINTER(c_uint64), (pointer,)),
    "weir_flow_udp_open": (pointer, (c_int, c_int)),
    "weir_flow_udp_close": (None, (pointer,)),
    "weir_flow_udp_send": (c_int, (pointer, pointer, c_uint32)),
    "weir_flow_udp_receive": (c_int, (pointer, pointer, c_int, c_int64)),
    "weir_flow_udp_lost": (c_uint64, (pointer,)),
}


@functools.cache
def library() -> ctypes.CDLL:
    """Return the compiled library. Raises native.NoCompilerError or native.CompileError on a machine's first
    use.
    """
    return native.load_library(
        "flows", sorted(_CSRC.glob("*.c")), include=[_CSRC, bindings.CSRC], signatures=SIGNATURES
    )


def handle(made: int | None, what: str) -> int:
    """Return a native object's address. Raises MemoryError when there is none."""
    if not made:
        raise MemoryError(f"no memory for {what}")
    return made


def config_of(config: FlowConfig) -> Config:
    """Return the C side's view of a flow's settings."""
    return Config(
        *(int(getattr(config, name)) for name in _NUMBERS),
        *(round(each * _SECOND) for each in (config.initial_rto, config.min_probe, config.max_rto)),
        config.max_loss,
    )


def verdicts_of(counts: "ctypes._Pointer[c_uint64]") -> Verdicts:
    """Return how many packets met each fate."""
    return Verdicts({verdict: counts[verdict] for verdict in FlowVerdict if counts[verdict]})


def bits_of(address: int, count: int) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    """Return a copy of this many bytes that are 0 or 1."""
    return np.frombuffer(ctypes.string_at(address, count), np.bool_).copy()
