# SPDX-License-Identifier: Apache-2.0
"""What the client scripts have in common: their arguments, and frames to and from UDP tunnel ports."""

import socket
import sys
from pathlib import Path

PATIENCE = 30.0  # seconds until a switch that does not answer counts as broken
STATION = 0x020000000001


class Lab:
    """ADDRESS P4INFO PROGRAM, and for each port from 1 on the UDP ports of the switch and of the host."""

    def __init__(self) -> None:
        address, p4info, program, *ports = sys.argv[1:]
        self.address, self.p4info, self.program = address, Path(p4info), Path(program)
        self._hosts: dict[int, tuple[socket.socket, int]] = {}
        for number, (switch, host) in enumerate(zip(ports[::2], ports[1::2], strict=True), start=1):
            end = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            end.bind(("127.0.0.1", int(host)))
            end.settimeout(PATIENCE)
            self._hosts[number] = end, int(switch)

    def send(self, port: int, frame: bytes) -> None:
        """Let a frame come in at a port."""
        end, switch = self._hosts[port]
        end.sendto(frame, ("127.0.0.1", switch))

    def receive(self, port: int) -> bytes:
        """Return the next frame that left at a port."""
        return self._hosts[port][0].recv(4096)


def frame(dst: int, kind: int = 0x1234) -> bytes:
    """Return an Ethernet frame for the program `control`."""
    return dst.to_bytes(6, "big") + bytes(6) + kind.to_bytes(2, "big") + bytes(range(46))


def expect(found: object, wanted: object) -> None:
    """An assertion that says what was found."""
    if found != wanted:
        raise SystemExit(f"found    {found!r}\nexpected {wanted!r}")
