# SPDX-License-Identifier: Apache-2.0
"""The bytes that a worker's process puts on the wire, measured in Weir's links and the kernel's TCP."""

import contextlib
import os
import socket
import stat
import struct
from pathlib import Path
from typing import Final, Protocol

from weir.train.messages import WireCounters
from weir.wire.definition import COLUMN, SLOT_LANES, WEIR

# Ethernet 14, IPv4 20, TCP 20 and its timestamp option 12 (RFC 7323), which Linux always negotiates.
TCP_HEADERS: Final = 14 + 20 + 20 + 12
_UDP_HEADERS: Final = 14 + 20 + 8  # Ethernet, IPv4, UDP
_FULL_FRAME: Final = 14 + 1500  # of Ethernet, as a token bucket counts it
_FULL_PACKET: Final = _UDP_HEADERS + WEIR.size + COLUMN.size + 4 * SLOT_LANES
TCP_PAYLOAD: Final = (_FULL_FRAME - TCP_HEADERS) / _FULL_FRAME
"""Share of a line's rate that full TCP segments leave for payload."""

WEIR_PAYLOAD: Final = 4 * SLOT_LANES / _FULL_PACKET
"""Share of a line's rate that Weir's full packets leave for values."""

_BYTES_ACKED: Final = 120  # offsets in struct tcp_info of linux/tcp.h, append-only since Linux 4.2
_BYTES_RECEIVED: Final = 128
_SEGS_OUT: Final = 136
_SEGS_IN: Final = 140
_TOTAL_RETRANS: Final = 100
_TCP_INFO_SIZE: Final = 192


class Meter(Protocol):
    """Counts a worker's traffic since the process started."""

    source: str  # where the numbers come from, for the report

    def read(self) -> WireCounters:
        """Return the totals now."""


class TcpMeter:
    """All TCP connections this process holds, as the kernel counts them (TCP_INFO), but for its listeners.

    Loopback carries segments of up to 64 KiB, so that the share of headers is smaller than on Ethernet:
    the figure flatters TCP. Connections closed between two readings keep what was read last.
    """

    source = "measured: the kernel's TCP_INFO of this process's connections, headers from Ethernet up"

    def __init__(self) -> None:
        self._seen: dict[int, WireCounters] = {}

    def read(self) -> WireCounters:
        """Return the totals now, in bytes and segments, acknowledgements included."""
        for inode, connection in _connections():
            self._seen[inode] = connection
        return sum(self._seen.values(), WireCounters())


def _connections() -> list[tuple[int, WireCounters]]:
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            descriptor = int(entry.name)
            status = os.fstat(descriptor)
            if stat.S_ISSOCK(status.st_mode) and (traffic := _tcp_traffic(descriptor)) is not None:
                found.append((status.st_ino, traffic))
    return found


def _tcp_traffic(descriptor: int) -> WireCounters | None:
    """Return totals of one connection, or None when the socket is no connected TCP socket."""
    with socket.socket(fileno=os.dup(descriptor)) as probe:
        if probe.family not in (socket.AF_INET, socket.AF_INET6) or probe.type != socket.SOCK_STREAM:
            return None
        probe.getpeername()  # a listener has none: OSError
        info = probe.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_SIZE)
    if len(info) < _SEGS_IN + 4:
        return None
    acked, received, out, into = struct.unpack_from("=QQII", info, _BYTES_ACKED)
    (again,) = struct.unpack_from("=I", info, _TOTAL_RETRANS)
    return WireCounters(
        bytes_up=acked + TCP_HEADERS * out,
        bytes_down=received + TCP_HEADERS * into,
        packets_up=out,
        packets_down=into,
        retransmissions=again,
    )


def dense_bytes(parameters: int) -> int:
    """Return bytes one worker sends (and receives) per step when Weir leaves no block out; calculated.

    ``parameters`` float32 values as full packets of 256 lanes, and as many shared exponents as there are
    blocks of 256, with all headers.
    """
    exponents = -(-parameters // SLOT_LANES)
    return (-(-parameters // SLOT_LANES) + -(-exponents // SLOT_LANES)) * _FULL_PACKET
