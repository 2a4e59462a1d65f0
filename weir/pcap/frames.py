# SPDX-License-Identifier: Apache-2.0
"""Weir packets out of a capture file."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from weir.pcap.capture import CaptureError, RawFrame, read_raw
from weir.pcap.packets import Datagram, FlowPacket, SlotPacket

__all__ = ["CaptureError", "CapturedFrame", "decoded", "read_frames"]


@dataclass(frozen=True, slots=True)
class CapturedFrame:
    """One frame of the capture, or one packet of it where a device was to cut it into several.

    Of ``packet``, ``flow`` and ``problem`` at most one is set for a Weir frame, and none for any other.

    file, number, time, port, incoming: as of the ``RawFrame``. size: bytes. udp: of a Weir frame, what it is
    in. part: which of several packets of a frame it is.
    """

    file: str
    number: int
    time: float
    port: str
    size: int
    udp: Datagram | None = None
    packet: SlotPacket | None = None
    flow: FlowPacket | None = None
    problem: str | None = None
    incoming: bool | None = None
    part: int = 0

    @property
    def ends(self) -> tuple[str, str] | None:
        """Return where the frame came from and where it went, of an interface that is called ``A > B``."""
        here, arrow, there = self.port.partition(" > ")
        return (here, there) if arrow else None

    @property
    def place(self) -> str:
        """Return where the frame is: the file, its number, and the interface if that has a name."""
        return f"{self.file} #{self.number}" + (f" ({self.port})" if self.port else "")


def read_frames(path: Path) -> Iterator[CapturedFrame]:
    """Yield all frames in order. Raises CaptureError when the file is no capture or cannot be opened."""
    for raw in read_raw(path):
        yield from decoded(raw)


def decoded(raw: RawFrame) -> Iterator[CapturedFrame]:
    """Yield what an Ethernet frame says: one frame, or one for each packet of a train that is not cut yet."""
    from weir.pcap import decode  # scapy is slow to import

    udp = decode.datagram(raw.data, raw.length)
    if udp is None or not udp.whole:
        yield CapturedFrame(raw.file, raw.number, raw.time, raw.port, raw.length, udp, incoming=raw.incoming)
        return
    slots: list[SlotPacket] = []
    flows: list[FlowPacket] = []
    problem = None
    try:
        if udp.flow:
            flows = decode.flow_packets(udp.payload)
        else:
            slots = decode.slot_packets(udp.payload)
    except decode.ReadError as error:
        problem = str(error)
    for part in range(max(len(slots), len(flows), 1)):
        packet = slots[part] if slots else None
        flow = flows[part] if flows else None
        yield CapturedFrame(
            raw.file,
            raw.number,
            raw.time,
            raw.port,
            raw.length,
            udp,
            packet,
            flow,
            problem,
            raw.incoming,
            part,
        )
