# SPDX-License-Identifier: Apache-2.0
"""Switch offloads of network interfaces off, as ``ethtool -K`` does: ``python offloads.py INTERFACE...``.

A switch in user space sees packets as the kernel hands them over: with offloads on, their checksums are not
filled in and several segments arrive as one. The standard library only, so that any Python can run it.
"""

import contextlib
import ctypes
import fcntl
import socket
import struct
import sys
from collections.abc import Iterable
from typing import Final

_SIOCETHTOOL: Final = 0x8946
_SET: Final = {"rx": 0x15, "tx": 0x17, "sg": 0x19, "tso": 0x1F, "gso": 0x24, "gro": 0x2C}  # ETHTOOL_S...
ALL: Final = tuple(_SET)
BUT_UDP: Final = ("rx", "tso", "gso", "gro")
"""All but those that GSO batches of UDP datagrams need."""


def offloads_off(interface: str, kinds: Iterable[str] = ALL) -> None:
    """Switch offloads of ``interface`` off, in the caller's network namespace.

    Args:
        interface: its name.
        kinds: of "rx" and "tx" checksums, "sg", "tso", "gso" and "gro"; all of them if left out.

    Raises:
        OSError: there is no such interface.
    """
    socket.if_nametoindex(interface)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for kind in kinds:
            value = bytearray(struct.pack("II", _SET[kind], 0))
            address = (ctypes.c_char * len(value)).from_buffer(value)
            request = struct.pack("16sP", interface.encode(), ctypes.addressof(address))
            with contextlib.suppress(OSError):  # a kernel without this offload has it off already
                fcntl.ioctl(control, _SIOCETHTOOL, request)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        offloads_off(name)
