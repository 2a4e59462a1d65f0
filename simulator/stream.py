# SPDX-License-Identifier: Apache-2.0
"""A one-way TCP stream between two hosts of a network: real frames around the machines of `simulator.tcp`."""

import struct
from collections.abc import Callable, Sequence
from typing import Protocol

from weir.simulator.clock import Clock
from weir.simulator.nic import Source
from weir.simulator.tcp import Range, Receiver, Sender, TcpConfig
from weir.wire.definition import CE, ECT

LITTLE = (16_384, 65_536, 262_144)
"""By `TcpConfig.class_by_remaining`, streams with more bytes left than the nth are n classes down."""

PROTOCOL = 6
OVERHEAD = 54  # Ethernet, IPv4 and TCP headers
_ACK, _ECE = 0x10, 0x40
_DATA_OFFSET = 0x50
_WINDOW = 0xFFFF
_TTL = 64
_IP = struct.Struct(">12sHBBHHHBBHII")  # and Ethernet
_TCP = struct.Struct(">HHIIBBHHH")
_ANSWER = struct.Struct(">IIBB")  # of the TCP header, from the sequence number on
_BLOCK = struct.Struct(">II")
_OPTIONS = 54  # where they begin in a frame
_SACK = 5
_TOS = 15
_WRAP = 1 << 32


class Port(Protocol):
    """One host's side of a connection: addresses, and a way out."""

    @property
    def mac(self) -> bytes:
        """Host's address."""

    @property
    def ip(self) -> int:
        """Host's address."""

    def send(self, frame: bytes) -> None:
        """Send a frame when its turn comes."""

    def serve(self, source: Source, queue: int) -> None:
        """Let a source send when the link is free, from one of the host's queues."""

    def open_any(self, protocol: int, handler: Callable[[bytes], None]) -> int:
        """Open a port of one's own for ``handler``, and return its number."""

    def close(self, protocol: int, port: int) -> None:
        """Close a port."""


class _Frames:
    """Makes the frames of one direction. Their data are zeros: what travels is only counted."""

    __slots__ = ("_base", "_ends", "_heads", "_ips", "_ports", "_tos")

    def __init__(self, port: Port, peer: Port, next_mac: bytes, ports: tuple[int, int], tos: int) -> None:
        self._ends = next_mac + port.mac
        self._ips = (port.ip, peer.ip)
        self._ports = ports
        self._tos = tos
        self._base = self._address_sum() + PROTOCOL + sum(ports) + _WINDOW
        self._heads: dict[int, bytes] = {}  # Ethernet and IPv4 headers, by length of what follows

    @property
    def queue(self) -> int:
        """Return which of eight queues the frames belong to."""
        return self._tos >> 5

    def data(self, sequence: int, length: int) -> bytes:
        """Return a frame with ``length`` bytes of the stream."""
        return self._make(sequence, 0, _ACK, length=length)

    def acknowledgement(self, position: int, flags: int, blocks: Sequence[Range]) -> bytes:
        """Return a frame without data that selectively acknowledges ``blocks``."""
        if not blocks:
            return self._make(0, position, flags)
        options = bytes((1, 1, _SACK, 2 + _BLOCK.size * len(blocks)))  # after two bytes of nothing
        options += b"".join(_BLOCK.pack(first % _WRAP, last % _WRAP) for first, last in blocks)
        return self._make(0, position, flags, options)

    def _make(
        self, sequence: int, acknowledgement: int, flags: int, options: bytes = b"", length: int = 0
    ) -> bytes:
        """Return a frame with correct checksums and ``length`` zeros."""
        sequence %= _WRAP
        acknowledgement %= _WRAP
        offset = _DATA_OFFSET + (len(options) << 2)  # in words, in the upper half of the byte
        total = self._base + 20 + len(options) + length + (offset << 8 | flags)
        total += (sequence >> 16) + (sequence & 0xFFFF) + (acknowledgement >> 16) + (acknowledgement & 0xFFFF)
        if options:
            total += sum(struct.unpack(f">{len(options) // 2}H", options))
        total = (total & 0xFFFF) + (total >> 16)
        total = ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF
        head = self._heads.get(len(options) + length) or self._head(len(options) + length)
        fields = (sequence, acknowledgement, offset, flags, _WINDOW, total, 0)
        return head + _TCP.pack(*self._ports, *fields) + options + bytes(length)

    def _address_sum(self) -> int:
        return sum((ip >> 16) + (ip & 0xFFFF) for ip in self._ips)

    def _head(self, length: int) -> bytes:
        total = 0x4500 + self._tos + 40 + length + 0x4000 + (_TTL << 8 | PROTOCOL) + self._address_sum()
        total = (total & 0xFFFF) + (total >> 16)
        checksum = ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF
        words = (0x0800, 0x45, self._tos, 40 + length, 0, 0x4000, _TTL, PROTOCOL, checksum)
        head = self._heads[length] = _IP.pack(self._ends, *words, *self._ips)
        return head


class Stream:
    """Bytes from one host to another, in order, whatever the network does.

    ``on_bytes(total)`` is called at the receiving host whenever more of the stream has arrived;
    ``on_done()`` at the sending one when all that was written is acknowledged.
    """

    __slots__ = (
        "_acks",
        "_by_class",
        "_clock",
        "_ports",
        "_receiving",
        "_sending",
        "_served",
        "_wake",
        "on_bytes",
        "on_done",
        "receiver",
        "sender",
    )

    def __init__(
        self,
        clock: Clock,
        sending: Port,
        receiving: Port,
        macs: tuple[bytes, bytes],
        config: TcpConfig | None = None,
    ) -> None:
        """Open both ends. macs: where each side sends its frames to, the sending one first."""
        self._clock, self._sending, self._receiving = clock, sending, receiving
        here = sending.open_any(PROTOCOL, self.on_acknowledgement)
        there = receiving.open_any(PROTOCOL, self.on_data)
        self._ports = ports = (here, there)
        self.sender, self.receiver = Sender(config), Receiver()
        chosen = config or TcpConfig()
        ecn = ECT if self.sender.congestion.ecn else 0
        tos = chosen.dscp << 2 | ecn
        classes = len(LITTLE) + 1 if chosen.class_by_remaining else 1
        self._by_class = [
            _Frames(sending, receiving, macs[0], ports, chosen.dscp - 8 * below << 2 | ecn)
            for below in range(classes)
        ]
        self._acks = _Frames(receiving, sending, macs[1], (ports[1], ports[0]), tos)
        self.on_bytes: Callable[[int], None] | None = None
        self.on_done: Callable[[], None] | None = None
        self._served = False  # the interface will ask for a frame
        self._wake: int | None = None  # the earliest time at which a timer action is scheduled

    def write(self, length: int) -> None:
        """Send ``length`` more bytes."""
        self.sender.write(length, self._clock.now)
        self._serve()

    def close(self) -> None:
        """Close both ends: nobody listens any more."""
        self._sending.close(PROTOCOL, self._ports[0])
        self._receiving.close(PROTOCOL, self._ports[1])

    def next_frame(self, now: int) -> bytes | None:
        """Return the next frame, when the interface of the sending host asks."""
        segment = self.sender.segment(now)
        if segment is None:
            self._served = False
        self._set_timer()
        return None if segment is None else self._frames().data(*segment)

    def on_data(self, frame: bytes) -> None:
        """Take in a frame of this stream at the receiving host."""
        (total,) = struct.unpack_from(">H", frame, 16)
        (wire,) = struct.unpack_from(">I", frame, 38)
        receiver = self.receiver
        grown = receiver.on_segment(_near(wire, receiver.expected), total - 40)
        flags = _ACK | _ECE if frame[_TOS] & 3 == CE else _ACK
        self._receiving.send(self._acks.acknowledgement(receiver.expected, flags, receiver.blocks()))
        if grown and self.on_bytes is not None:
            self.on_bytes(receiver.expected)

    def on_acknowledgement(self, frame: bytes) -> None:
        """Take in an acknowledgement of this stream at the sending host."""
        _, wire, offset, flags = _ANSWER.unpack_from(frame, 38)
        sender = self.sender
        base, was_done = sender.acknowledged, sender.done
        blocks = []
        if offset > _DATA_OFFSET:
            options = frame[_OPTIONS + 4 : _OPTIONS + 2 + frame[_OPTIONS + 3]]
            blocks = [(_near(first, base), _near(last, base)) for first, last in _BLOCK.iter_unpack(options)]
        sender.on_acknowledgement(_near(wire, base), bool(flags & _ECE), self._clock.now, blocks)
        if sender.done:
            if not was_done and self.on_done is not None:
                self.on_done()
        else:
            self._serve()
            self._set_timer()

    def _frames(self) -> _Frames:
        """Return what makes data frames, in the class that they belong to now."""
        if len(self._by_class) == 1:
            return self._by_class[0]
        left = self.sender.size - self.sender.acknowledged
        return self._by_class[sum(left > little for little in LITTLE)]

    def _serve(self) -> None:
        if not self._served:
            self._served = True
            self._sending.serve(self, self._frames().queue)

    def _set_timer(self) -> None:
        """Wake up at the deadline, or when the pace allows more."""
        for time in (self.sender.deadline, self.sender.held):
            if time is not None and (self._wake is None or time < self._wake):
                self._wake = max(time, self._clock.now)
                self._clock.at(self._wake, self._on_timer)

    def _on_timer(self) -> None:
        sender, now = self.sender, self._clock.now
        if self._wake != now:
            return  # an earlier one has seen to it
        self._wake = None
        held = sender.held is not None and sender.held <= now
        if held or (sender.deadline is not None and sender.deadline <= now):
            sender.held = None
            sender.on_timer(now)
            self._serve()
        self._set_timer()


def _near(wire: int, position: int) -> int:
    """Return the position nearest to ``position`` whose sequence number is ``wire``."""
    return position + (wire - position + (_WRAP >> 1)) % _WRAP - (_WRAP >> 1)
