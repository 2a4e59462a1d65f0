# SPDX-License-Identifier: Apache-2.0
"""Ports as named on the command line: ``N=KIND[,OPTION...]``."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from softp4.dataplane.ports import MAX_PORT
from softp4.runtime.queueing import Queueing, parse_rate

KINDS: Final = (
    "N=IFACE, N=shm, N=udp:HOST:PORT:PEERHOST:PEERPORT, N=claim:HOST:PORT:SECRETFILE or N=pcap:IN,OUT"
)
OPTIONS: Final = "rate=RATE, pps=PACKETS, burst=BYTES, depth=PACKETS, depth_bytes=BYTES"

_HOST: Final = r"(\[[^\]]+\]|[^:]*)"
_TUNNEL: Final = re.compile(rf"udp:{_HOST}:(\d+):{_HOST}:(\d+)")
_CLAIM: Final = re.compile(rf"claim:{_HOST}:(\d+):(.+)")


@dataclass(frozen=True)
class Interface:
    """A network interface, by AF_PACKET."""

    name: str


@dataclass(frozen=True)
class Shm:
    """A shared-memory port for a process of this machine."""


@dataclass(frozen=True)
class Tunnel:
    """One end of a UDP tunnel: (host, port) of this end, where an empty host is any, and of the other."""

    local: tuple[str, int]
    peer: tuple[str, int]


@dataclass(frozen=True)
class Claimed:
    """One end of a UDP tunnel to anyone who proves that it has the port's key, which a secret's file "
    "gives."""

    local: tuple[str, int]
    secret: Path


@dataclass(frozen=True)
class Pcap:
    """A capture file to play and one to write, as pcapng or pcap; either may be missing."""

    source: Path | None
    sink: Path | None
    pcapng: bool = True


@dataclass(frozen=True)
class PortSpec:
    """One ``--port``."""

    number: int
    kind: Interface | Shm | Tunnel | Claimed | Pcap
    queueing: Queueing | None = None


def parse_port(text: str) -> PortSpec:
    """Raise ValueError, saying what is expected."""
    number, equals, rest = text.partition("=")
    if not equals or not rest or not number.isdecimal() or int(number) > MAX_PORT:
        raise ValueError(f"{text!r}: expected {KINDS} with N from 0 to {MAX_PORT}")
    target, *words = rest.split(",")
    pairs = [word.partition("=") for word in words]
    while pairs and pairs[0][0] not in _OPTIONS:  # a file name may contain commas
        target += "," + "".join(pairs.pop(0))
    try:
        kind = _kind(target)
        return PortSpec(int(number), kind, parse_limits((p[0], p[2]) for p in pairs) if pairs else None)
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}") from error


def _kind(text: str) -> Interface | Shm | Tunnel | Claimed | Pcap:
    if text == "shm":
        return Shm()
    if text.startswith("pcap:"):
        source, _, sink = text.removeprefix("pcap:").partition(",")
        if not source and not sink:
            raise ValueError("expected N=pcap:IN,OUT with at least one file")
        return Pcap(Path(source) if source else None, Path(sink) if sink else None)
    if text.startswith("udp:"):
        match = _TUNNEL.fullmatch(text)
        if match is None or not match[3] or int(match[2]) > 0xFFFF or not 0 < int(match[4]) <= 0xFFFF:
            raise ValueError("expected N=udp:HOST:PORT:PEERHOST:PEERPORT, IPv6 addresses in brackets")
        return Tunnel((match[1].strip("[]"), int(match[2])), (match[3].strip("[]"), int(match[4])))
    if text.startswith("claim:"):
        match = _CLAIM.fullmatch(text)
        if match is None or not 0 < int(match[2]) <= 0xFFFF:
            raise ValueError("expected N=claim:HOST:PORT:SECRETFILE, IPv6 addresses in brackets")
        return Claimed((match[1].strip("[]"), int(match[2])), Path(match[3]))
    if not text or "," in text:
        raise ValueError(f"expected {KINDS}; options are {OPTIONS}")
    return Interface(text)


_OPTIONS: Final[dict[str, tuple[str, Callable[[str], int]]]] = {
    "rate": ("rate_bps", parse_rate),
    "pps": ("rate_pps", int),
    "burst": ("burst_bytes", int),
    "depth": ("depth_packets", int),
    "depth_bytes": ("depth_bytes", int),
}


def parse_limits(pairs: Iterable[tuple[str, str]]) -> Queueing:
    """Return limits from options and their values. Raises ValueError, saying what is expected."""
    limits: dict[str, int] = {}
    for name, value in pairs:
        if name not in _OPTIONS:
            raise ValueError(f"there is no option {name!r}; options are {OPTIONS}")
        field, parse = _OPTIONS[name]
        try:
            limits[field] = parse(value)
        except ValueError as error:
            raise ValueError(error if parse is parse_rate else f"{name}={value} is no number") from error
    return Queueing(**limits)
