# SPDX-License-Identifier: Apache-2.0
"""A host's place in a network: addresses, an interface, and who gets what arrives."""

import ipaddress
from collections.abc import Callable

from weir.controller.wiring import Host
from weir.simulator.nic import Nic, Source
from weir.wire.addresses import mac_bytes

UDP = 17
_IPV4 = b"\x08\x00"
_FIRST_PORT = 20_000  # of those given out here; above the fixed ones


class Station:
    """One host on one link. Programs open ports (protocol and number) and get the frames for them."""

    __slots__ = ("_handlers", "_nic", "_port", "host", "ip", "mac")

    def __init__(self, host: Host, nic: Nic) -> None:
        self.host = host
        self.mac = mac_bytes(host.mac)
        self.ip = int(ipaddress.IPv4Address(host.ip))
        self._nic = nic
        self._handlers: dict[int, Callable[[bytes], None]] = {}
        self._port = _FIRST_PORT

    def open(self, protocol: int, port: int, handler: Callable[[bytes], None]) -> None:
        """Give frames of ``protocol`` for ``port`` to ``handler``."""
        key = protocol << 16 | port
        if key in self._handlers:
            raise ValueError(f"port {port} of protocol {protocol} is in use on host {self.host.name}")
        self._handlers[key] = handler

    def open_any(self, protocol: int, handler: Callable[[bytes], None]) -> int:
        """Open a port that has not been used for long, and return its number."""
        while True:
            self._port = self._port + 1 if self._port < 0xFFFF else _FIRST_PORT
            if protocol << 16 | self._port not in self._handlers:
                self.open(protocol, self._port, handler)
                return self._port

    def close(self, protocol: int, port: int) -> None:
        """Close a port: frames for it are for nobody from now on."""
        del self._handlers[protocol << 16 | port]

    def send(self, frame: bytes) -> None:
        """Send a frame when its turn comes."""
        self._nic.send(frame)

    def serve(self, source: Source, queue: int) -> None:
        """Let a source of frames send when the link is free, and its queue's turn has come."""
        self._nic.serve(source, queue)

    def receive(self, frame: bytes) -> None:
        """Give a frame that arrived from the link to anyone who has its port."""
        handler = None
        if frame[12:14] == _IPV4 and frame[14] == 0x45 and len(frame) >= 38:
            handler = self._handlers.get(frame[23] << 16 | frame[36] << 8 | frame[37])
        if handler is not None:  # else a late one of a program that has ended
            handler(frame)
