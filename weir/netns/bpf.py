# SPDX-License-Identifier: Apache-2.0
"""Losses and priorities on a kernel's own links: a small eBPF program where an interface sends or receives.

It drops frames at random, and lets the TCP segments among the others pass the rest, or all wait together, in
queues that know priorities (``Links.prioritise``). It needs Linux 6.6 (tcx) and the machine's root.
"""

import ctypes
import os
import platform
import socket
import struct
from enum import IntEnum
from typing import Final

_SYSCALL: Final = {"x86_64": 321, "aarch64": 280, "riscv64": 280}
_PROG_LOAD, _LINK_CREATE = 5, 28
_CLASSIFIER: Final = 3  # BPF_PROG_TYPE_SCHED_CLS
_RANDOM: Final = 7  # BPF_FUNC_get_prandom_u32
_IP_PROTOCOL: Final = 14 + 9  # offset in a frame
_PRIORITY: Final = 32  # offset in struct __sk_buff
_INTERACTIVE: Final = 6  # TC_PRIO_INTERACTIVE, in the first band of pfifo_fast
_DROP, _NEXT = 2, -1  # TCX_DROP, TCX_NEXT


class Side(IntEnum):
    """Frames of an interface that a program sees (BPF_TCX_INGRESS, BPF_TCX_EGRESS)."""

    RECEIVED = 46
    SENT = 47


def disturb(interface: str, side: Side, loss: float, *, together: bool = False) -> int:
    """Lose a share of an interface's frames, in the caller's network namespace; TCP's others go first.

    together: they wait in one queue with all else.


    Returns a file that holds the program: closing it takes the program away.

    Raises:
        OSError: the kernel has no tcx, or this process may not load programs.
    """
    program = _load(loss, together)
    try:
        index = socket.if_nametoindex(interface)
        return _bpf(_LINK_CREATE, struct.pack("=IIIIQQ", program, index, side, 0, 0, 0))
    finally:
        os.close(program)


def _load(loss: float, together: bool) -> int:
    instructions = b"".join(
        (
            _instruction(0xBF, to=6, source=1),  # r6 = the frame
            _instruction(0x85, number=_RANDOM),
            _instruction(0x36, jump=2, number=min(round(loss * 2**32), 2**32 - 1)),  # if w0 >= number
            _instruction(0xB7, number=_DROP),
            _instruction(0x95),
            _instruction(0x30, number=_IP_PROTOCOL),  # r0 = that byte of the frame
            _instruction(0x55, jump=0 if together else 2, number=socket.IPPROTO_TCP),  # if r0 != number
            _instruction(0xB7, to=1, number=_INTERACTIVE),
            _instruction(0x63, to=6, source=1, jump=_PRIORITY),  # frame's priority = r1
            _instruction(0xB7, number=_NEXT),
            _instruction(0x95),
        )
    )
    code, licence = ctypes.create_string_buffer(instructions), ctypes.create_string_buffer(b"Apache-2.0")
    head = struct.pack("=II", _CLASSIFIER, len(instructions) // 8)
    return _bpf(_PROG_LOAD, head + struct.pack("=QQ", ctypes.addressof(code), ctypes.addressof(licence)))


def _instruction(code: int, *, to: int = 0, source: int = 0, jump: int = 0, number: int = 0) -> bytes:
    return struct.pack("=BBhI", code, source << 4 | to, jump, number & 0xFFFFFFFF)


def _bpf(command: int, attributes: bytes) -> int:
    if platform.machine() not in _SYSCALL:
        raise OSError(f"the number of the system call bpf(2) is unknown for {platform.machine()}")
    library, buffer = ctypes.CDLL(None, use_errno=True), ctypes.create_string_buffer(attributes)
    made: int = library.syscall(_SYSCALL[platform.machine()], command, buffer, len(attributes))
    if made < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"bpf: {os.strerror(error)}")
    return made
