# SPDX-License-Identifier: Apache-2.0
"""Frames as a capture file has them, pcap or pcapng."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_ETHERNET: Final = 1  # link type
_INBOUND, _OUTBOUND = 1, 2  # directions in the flags of a pcapng frame


class CaptureError(ValueError):
    """The file cannot be read as a capture; the message names it."""


@dataclass(frozen=True, slots=True)
class RawFrame:
    """One frame of a capture.

    file: name of the capture. number: of the frame in it, from 1. time: seconds, as captured. port: the
    interface's name in the capture, when it has one. length: bytes on the link, of which ``data`` are the
    first. incoming: whether the interface received the frame (False: sent it); None when the capture does not
    say.
    """

    file: str
    number: int
    time: float
    port: str
    data: bytes
    length: int
    incoming: bool | None = None


def read_raw(path: Path) -> Iterator[RawFrame]:
    """Yield all frames in order.

    Raises:
        CaptureError: the file is no capture, is none of Ethernet frames, or cannot be opened.
    """
    from scapy.error import Scapy_Exception
    from scapy.utils import RawPcapReader

    try:
        reader = RawPcapReader(str(path))
    except (OSError, Scapy_Exception) as error:
        words = getattr(error, "strerror", None) or error
        raise CaptureError(f"{path}: {words}") from None
    with reader:
        whole = getattr(reader, "linktype", None)  # of a pcap file; in pcapng each interface has one
        for number, (data, about) in enumerate(reader, 1):
            link = getattr(about, "linktype", whole)
            if link != _ETHERNET:
                raise CaptureError(
                    f"{path}: frame {number} has link type {link}, not Ethernet (1); capture one interface "
                    "by its name: 'any' leaves the Ethernet headers out"
                )
            way = getattr(about, "direction", None)
            yield RawFrame(
                str(path),
                number,
                _time(reader, about),
                (getattr(about, "ifname", None) or b"").decode(errors="replace"),
                data,
                about.wirelen,
                way == _INBOUND if way in (_INBOUND, _OUTBOUND) else None,
            )


def _time(reader: Any, about: Any) -> float:
    if hasattr(about, "tshigh"):
        if about.tshigh is None:  # pcapng's simple packets have no time
            return 0.0
        return float((about.tshigh << 32 | about.tslow) / about.tsresol)
    return float(about.sec + about.usec / (1e9 if reader.nano else 1e6))
