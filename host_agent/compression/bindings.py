# SPDX-License-Identifier: Apache-2.0
"""The native half of compression (``csrc/``), compiled on first use and bound with ctypes."""

import ctypes
import functools
from ctypes import POINTER, Structure, c_double, c_float, c_int, c_uint32, c_uint64
from ctypes import c_void_p as pointer
from pathlib import Path
from typing import Final

from softp4 import native
from weir.host_agent.collectives import bindings as collectives

_CSRC: Final = Path(__file__).resolve().parent / "csrc"


class Regions(Structure):
    """``weir_regions`` in regions.c."""

    _fields_ = (
        ("parameters", c_uint64),
        *((name, pointer) for name in ("counts", "sizes", "lowest")),
        *((name, c_uint32) for name in ("drop", "bits")),
    )


SIGNATURES: Final[native.Signatures] = {
    "weir_mask_write": (c_uint64, (pointer, c_uint64, c_uint32, pointer)),
    "weir_pyramid": (None, (pointer, c_uint64, c_uint32, pointer)),
    "weir_part_pyramid": (None, (pointer, pointer, c_uint32, pointer)),
    "weir_mask_mark": (None, (pointer, c_uint64, pointer, c_uint64)),
    "weir_masks_count": (None, (pointer, c_uint64, pointer)),
    "weir_masks_starts": (None, (pointer, c_uint64, pointer)),
    "weir_parts_pack": (None, (pointer, c_uint64, pointer, pointer)),
    "weir_parts_unpack": (None, (pointer, c_uint64, pointer, pointer, c_uint64)),
    "weir_parts_collect": (None, (pointer, c_uint64, pointer, pointer, pointer)),
    "weir_parts_subtract": (None, (pointer, c_uint64, pointer, pointer)),
    "weir_parts_union": (None, (pointer, c_uint64, pointer, pointer, c_uint64)),
    "weir_parts_largest": (None, (pointer, c_uint64, pointer, c_uint64, c_uint64, pointer)),
    "weir_spread": (
        None,
        (pointer, c_uint64, pointer, c_float, pointer, pointer, c_uint64, pointer),
    ),
    "weir_nonzero": (c_uint64, (pointer, c_uint64)),
    "weir_collect": (None, (pointer, c_uint64, pointer, pointer)),
    "weir_region_codes": (None, (POINTER(Regions), pointer, pointer, pointer)),
    "weir_region_levels": (c_uint64, (POINTER(Regions), pointer, pointer, pointer)),
    "weir_find_gradients": (None, (pointer, c_uint64, pointer, c_float, c_uint64, pointer)),
    "weir_positions_write": (c_int, (pointer, c_uint64, pointer)),
    "weir_positions_read": (None, (pointer, c_uint64, pointer)),
    "weir_ranked": (c_float, (pointer, c_uint64, c_uint64, c_uint64, pointer)),
    "weir_worthiest": (c_uint64, (pointer, c_uint64, c_uint64, pointer, pointer, c_uint64)),
    "weir_choose": (None, (pointer, c_uint64, pointer, pointer, pointer, c_uint64)),
    "weir_marginals": (None, (pointer, c_uint64, c_uint64, pointer, pointer)),
    "weir_copy_blocks": (None, (pointer, c_uint64, c_uint64, pointer, c_uint64, pointer)),
    "weir_energies": (None, (pointer, c_uint64, c_uint32, pointer)),
    "weir_changes_find": (c_uint64, (pointer, pointer, c_uint64, c_uint32, c_int, pointer)),
    "weir_changes_renew": (c_uint64, (pointer, pointer, c_uint64, c_uint32, *[pointer] * 3)),
    "weir_changes_count": (c_uint64, (pointer, c_uint64)),
    "weir_changes_take": (None, (pointer, c_uint64, c_uint32, pointer, pointer)),
    "weir_changes_put": (None, (pointer, c_uint64, c_uint32, pointer, pointer)),
    "weir_deltas_divisor": (c_uint32, (pointer, pointer, c_uint64, c_uint32)),
    "weir_deltas_write": (c_uint64, (pointer, pointer, c_uint64, c_uint32, c_uint32, pointer, c_uint64)),
    "weir_deltas_read": (c_int, (pointer, c_uint64, pointer, c_uint64, c_uint32, c_uint32, pointer)),
    "weir_updates_spoilt": (None, (pointer, c_uint64, pointer)),
    "weir_updates_take": (None, (pointer, pointer, c_uint64, c_int, pointer)),
    "weir_updates_adam": (None, (pointer, c_uint64, *[pointer] * 7)),
    "weir_updates_sgd": (None, (pointer, c_uint64, *[pointer] * 4)),
    "weir_updates_sgd_decay": (None, (pointer, c_uint64, *[pointer] * 3)),
    "weir_updates_squares": (None, (pointer, pointer, c_uint64, pointer, pointer, pointer)),
    "weir_updates_round": (c_double, (pointer, c_uint64, c_uint64, pointer, c_float, c_uint64, pointer)),
    "weir_updates_mean": (None, (pointer, c_uint64, pointer, c_float, c_uint32, c_uint32, pointer)),
    "weir_updates_signs": (None, (pointer, pointer, c_uint64, c_uint32, c_uint32, pointer)),
    "weir_updates_settle": (
        None,
        (pointer, c_uint64, pointer, pointer, c_uint64, pointer, pointer, pointer),
    ),
    "weir_updates_settle_signs": (
        None,
        (
            *(pointer, c_uint64, pointer, pointer, c_uint64, pointer, pointer),
            *(c_uint32, c_uint32, c_uint32, pointer),
        ),
    ),
}


@functools.cache
def library() -> ctypes.CDLL:
    """Return the compiled library. Raises native.NoCompilerError or native.CompileError on a machine's first
    use.
    """
    return native.load_library(
        "compression", sorted(_CSRC.glob("*.c")), include=[_CSRC, collectives.CSRC], signatures=SIGNATURES
    )
