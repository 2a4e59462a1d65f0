# SPDX-License-Identifier: Apache-2.0
"""Commands that run without some of root's rights."""

import sys
from enum import IntEnum
from typing import Final

_DROP: Final = """
import ctypes, os, sys
libc, dropped = ctypes.CDLL(None), [int(number) for number in sys.argv[1].split(",")]
for number in dropped:
    libc.prctl(24, number, 0, 0, 0)  # PR_CAPBSET_DROP: what is executed next cannot have it
head, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
libc.capget(head, sets)
sets[2] = sets[5] = 0  # nor inherit it
libc.capset(head, sets)
os.execvp(sys.argv[2], sys.argv[2:])
"""


class Capability(IntEnum):
    """Rights of root, as capabilities(7) numbers them."""

    NET_ADMIN = 12
    NET_RAW = 13
    SYS_ADMIN = 21
    BPF = 39


def without(*capabilities: Capability) -> list[str]:
    """Return what to put before a command that is to run without these capabilities."""
    return [sys.executable, "-ISc", _DROP, ",".join(str(int(each)) for each in capabilities)]
