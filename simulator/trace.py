# SPDX-License-Identifier: Apache-2.0
"""Packet traces of links in virtual time, as pcapng files with nanoseconds (Wireshark, ``weir pcap``)."""

import struct
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from weir.simulator.link import Link

_SECTION, _INTERFACE, _PACKET = 0x0A0D0D0A, 1, 6
_BYTE_ORDER = 0x1A2B3C4D
_ETHERNET = 1
_NAME, _TSRESOL = 2, 9  # options of an interface
_NANOSECONDS = 9


class Trace:
    """Writes down every frame that is sent on the links it is attached to, also those that a link then loses.

    Example::

        with Trace(Path("run.pcapng")) as trace:
            trace.attach("leaf1 > spine1", network.link("leaf1", "spine1"))
            network.run(...)
    """

    def __init__(self, path: Path) -> None:
        self._file: BinaryIO = path.open("wb")
        self._interfaces = 0
        self._links: list[Link] = []
        self._block(_SECTION, struct.pack("<IHHq", _BYTE_ORDER, 1, 0, -1))

    def attach(self, name: str, link: Link) -> None:
        """Record ``link`` as an interface called ``name``. A link is in one trace at a time."""
        if link.tap is not None:
            raise ValueError(f"link {name} is being traced already")
        number = self._interfaces
        self._interfaces += 1
        options = _option(_NAME, name.encode()) + _option(_TSRESOL, bytes([_NANOSECONDS])) + _option(0, b"")
        self._block(_INTERFACE, struct.pack("<HHI", _ETHERNET, 0, 0) + options)

        def record(time: int, frame: bytes) -> None:
            head = struct.pack("<5I", number, time >> 32, time & 0xFFFFFFFF, len(frame), len(frame))
            self._block(_PACKET, head + _padded(frame))

        link.tap = record
        self._links.append(link)

    def attach_all(self, links: Mapping[tuple[str, str], Link]) -> None:
        """Record links by (from, to), as `Network.links` has them, as interfaces called ``from > to``."""
        for ends, link in links.items():
            self.attach(" > ".join(ends), link)

    def close(self) -> None:
        """Detach from all links and finish the file."""
        for link in self._links:
            link.tap = None
        self._links.clear()
        self._file.close()

    def _block(self, kind: int, body: bytes) -> None:
        length = struct.pack("<I", 12 + len(body))
        self._file.write(struct.pack("<I", kind) + length + body + length)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


def _option(code: int, value: bytes) -> bytes:
    return struct.pack("<HH", code, len(value)) + _padded(value)
