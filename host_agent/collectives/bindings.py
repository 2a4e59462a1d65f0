# SPDX-License-Identifier: Apache-2.0
"""The native half of the collectives (``csrc/``), compiled on first use and bound with ctypes."""

import ctypes
import functools
from ctypes import c_uint32, c_uint64
from ctypes import c_void_p as pointer
from pathlib import Path
from typing import Final

from softp4 import native
from weir.host_agent.transport import bindings as transport

CSRC: Final = Path(__file__).resolve().parent / "csrc"
"""Folder of the C, whose headers compression includes as well."""

SIGNATURES: Final[native.Signatures] = {
    "weir_exponents": (None, (pointer, c_uint64, c_uint32, pointer)),
    "weir_to_fixed": (c_uint64, (pointer, c_uint64, c_uint32, pointer, c_uint32, pointer)),
    "weir_from_fixed": (None, (pointer, c_uint64, c_uint32, pointer, c_uint32, pointer)),
    "weir_to_fixed_rows": (
        c_uint64,
        (pointer, c_uint64, c_uint32, pointer, c_uint64, pointer, c_uint32, pointer),
    ),
    "weir_from_fixed_rows": (
        None,
        (pointer, c_uint64, c_uint32, pointer, c_uint64, pointer, c_uint32, pointer),
    ),
    "weir_coarse_block": (
        c_uint64,
        (pointer, pointer, c_uint64, c_uint32, pointer, c_uint64, c_uint64, pointer, c_uint32, c_uint32),
    ),
    "weir_fixed_factors": (None, (pointer, c_uint64, c_uint32, pointer, pointer)),
    "weir_pack_factors": (None, (pointer, c_uint64, c_uint32, pointer, pointer)),
    "weir_largest": (None, (pointer, c_uint64, c_uint32, pointer)),
    "weir_pack": (
        c_uint64,
        (pointer, c_uint64, c_uint32, pointer, c_uint64, pointer, c_uint32, c_uint32, pointer),
    ),
    "weir_unpack": (
        None,
        (pointer, c_uint64, c_uint32, pointer, c_uint64, pointer, c_uint32, c_uint32, pointer),
    ),
    "weir_pack_counts": (None, (pointer, c_uint64, c_uint32, c_uint32, pointer)),
    "weir_unpack_counts": (None, (pointer, c_uint64, c_uint32, c_uint32, pointer)),
    "weir_split_int64": (None, (pointer, c_uint64, c_uint32, pointer)),
    "weir_join_int64": (None, (pointer, c_uint64, c_uint32, pointer)),
    "weir_exponents64": (None, (pointer, c_uint64, c_uint32, pointer)),
    "weir_split_float64": (c_uint64, (pointer, c_uint64, c_uint32, pointer, c_uint32, pointer)),
    "weir_join_float64": (None, (pointer, c_uint64, c_uint32, pointer, c_uint32, pointer)),
}


@functools.cache
def library() -> ctypes.CDLL:
    """Return the compiled library. Raises native.NoCompilerError or native.CompileError on a machine's first
    use.
    """
    return native.load_library(
        "collectives", sorted(CSRC.glob("*.c")), include=[CSRC, transport.CSRC], signatures=SIGNATURES
    )
