# SPDX-License-Identifier: Apache-2.0
"""What the client scripts have in common: their arguments, and frames to and from a switch's ports."""

import socket
import sys
from pathlib import Path

TIMEOUT = 30.0  # seconds until a switch that does not answer counts as broken
STATION = 0x020000000001
_ALL = 3  # ETH_P_ALL


class Lab:
    """ADDRESS P4INFO PROGRAM, and what leads to each port from 1 on.

    That is the UDP ports of a tunnel's ends, SWITCH:HOST, for the soft switch; an interface for BMv2.
    """

    def __init__(self) -> None:
        address, p4info, program, *ports = sys.argv[1:]
        self.address, self.p4info, self.program = address, Path(p4info), Path(program)
        self.bmv2 = ":" not in ports[0]
        self._hosts = {number: _end(each) for number, each in enumerate(ports, start=1)}

    def send(self, port: int, frame: bytes) -> None:
        """Let a frame come in at a port."""
        self._hosts[port].send(frame)

    def receive(self, port: int) -> bytes:
        """Return the next frame that left at a port."""
        return self._hosts[port].recv(4096)


def _end(port: str) -> socket.socket:
    switch, tunnel, host = port.partition(":")
    if tunnel:
        end = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        end.bind(("127.0.0.1", int(host)))
        end.connect(("127.0.0.1", int(switch)))
    else:
        end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL))
        end.bind((port, 0))
    end.settimeout(TIMEOUT)
    return end


def frame(dst: int, kind: int = 0x1234) -> bytes:
    """Return an Ethernet frame for the program `control`."""
    return dst.to_bytes(6, "big") + bytes(6) + kind.to_bytes(2, "big") + bytes(range(46))


def expect(found: object, wanted: object) -> None:
    """An assertion that says what was found."""
    if found != wanted:
        raise SystemExit(f"found    {found!r}\nexpected {wanted!r}")
