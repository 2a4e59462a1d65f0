# SPDX-License-Identifier: Apache-2.0
"""UDP payloads, as state machines hand them out, and the headers around them where links carry frames."""

import ctypes
import ipaddress
from dataclasses import dataclass
from typing import Final, NamedTuple

from weir.host_agent.transport import bindings
from weir.host_agent.transport.report import FRAME_OVERHEAD
from weir.wire.addresses import mac_bytes
from weir.wire.definition import ECT, RELIABLE_DSCP, UDP_PORT

RELIABLE_CLASS: Final = RELIABLE_DSCP << 2 | ECT
"""Traffic class of what is small or sent again."""


class Datagram(NamedTuple):
    """payload: of one UDP packet. traffic_class: DSCP << 2 | ECN, the second byte of the IPv4 header."""

    payload: bytes
    traffic_class: int


@dataclass(frozen=True)
class Endpoint:
    """One side's address of a job's traffic. mac: six octets in hexadecimal, colons between; ip: dotted."""

    mac: str
    ip: str
    udp_port: int = UDP_PORT

    def __post_init__(self) -> None:
        mac_bytes(self.mac)
        ipaddress.IPv4Address(self.ip)
        if not 1 <= self.udp_port <= 0xFFFF:
            raise ValueError(f"{self.udp_port} is no UDP port")


@dataclass(frozen=True)
class Addresses:
    """Both ends of a worker's traffic: the worker's host, and the switch's aggregation address."""

    host: Endpoint
    switch: Endpoint

    def native(self) -> bindings.Addresses:
        """Return the C side's view of them."""
        macs = (mac_bytes(end.mac) for end in (self.host, self.switch))
        return bindings.Addresses(
            *((ctypes.c_uint8 * 6)(*mac) for mac in macs),
            *(int(ipaddress.IPv4Address(end.ip)) for end in (self.host, self.switch)),
            *(end.udp_port for end in (self.host, self.switch)),
        )


class Framer:
    """Puts a worker's payloads into frames to the switch, and takes the switch's out of theirs."""

    def __init__(self, addresses: Addresses) -> None:
        self._lib = bindings.library()
        self._addresses = addresses.native()
        self._out = ctypes.create_string_buffer(FRAME_OVERHEAD + bindings.MAX_PAYLOAD)
        self._traffic_class = ctypes.c_uint8()

    def wrap(self, payload: bytes, traffic_class: int) -> bytes:
        """Return the frame that carries ``payload`` (at most bindings.MAX_PAYLOAD bytes) to the switch.

        traffic_class: DSCP << 2 | ECN.
        """
        if len(payload) > bindings.MAX_PAYLOAD:
            raise ValueError(f"a payload of {len(payload)} bytes: the longest is {bindings.MAX_PAYLOAD}")
        length = self._lib.weir_frame_wrap(self._addresses, payload, len(payload), traffic_class, self._out)
        return self._out.raw[:length]

    def unwrap(self, frame: bytes) -> Datagram | None:
        """Return what a frame from the switch to this worker carries; None when the frame is anything
        else.
        """
        length = self._lib.weir_frame_unwrap(self._addresses, frame, len(frame), self._traffic_class)
        if length < 0:
            return None
        return Datagram(frame[FRAME_OVERHEAD : FRAME_OVERHEAD + length], self._traffic_class.value)
