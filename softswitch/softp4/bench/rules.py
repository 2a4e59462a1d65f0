# SPDX-License-Identifier: Apache-2.0
"""Routes, filter rules and the packets that meet them, from a seed, shaped like real ones."""

import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from softp4.state.entry import Entry, Exact, Lpm, Match, Range, Ternary

PORTS: Final = 64
TCP, UDP = 6, 17

# Share of each prefix length in a full IPv4 routing table of the 2020s, in per mille; /24 takes most.
_LENGTHS: Final = {
    8: 1, 12: 1, 13: 1, 14: 2, 15: 2, 16: 14, 17: 9, 18: 15, 19: 27, 20: 47, 21: 53, 22: 118, 23: 105,
    24: 590, 25: 2, 26: 2, 27: 2, 28: 2, 29: 2, 30: 2, 32: 3,
}  # fmt: skip

# (source length, destination length) of rules in access lists, as ClassBench's seeds have them: mostly long
# destinations, sources either anything or one host or network.
_PAIRS: Final = {
    (0, 32): 20, (0, 24): 6, (32, 32): 16, (24, 32): 12, (32, 24): 8, (24, 24): 6, (16, 32): 6, (0, 28): 4,
    (27, 32): 5, (28, 32): 4, (21, 32): 3, (26, 27): 3, (23, 32): 3, (30, 30): 2, (16, 24): 2, (8, 24): 2,
    (0, 16): 2, (24, 0): 2, (32, 0): 2, (0, 0): 1, (20, 28): 2, (25, 26): 2, (22, 30): 2, (18, 29): 1,
}  # fmt: skip
_WELL_KNOWN: Final = (
    20,
    21,
    22,
    23,
    25,
    53,
    80,
    110,
    123,
    143,
    161,
    179,
    389,
    443,
    514,
    993,
    1433,
    1521,
    3306,
    8080,
)
_RANGES: Final = ((0, 1023), (1024, 65535), (6000, 6063), (5000, 5999), (135, 139), (2000, 4999))
_EVERY: Final = (0, 65535)


@dataclass(frozen=True)
class Packet:
    """The fields that rules look at."""

    src: int
    dst: int
    protocol: int
    sport: int
    dport: int

    def frame(self, length: int) -> bytes:
        """Return an Ethernet frame of this many bytes, the IPv4 header's checksum in place."""
        head = struct.pack(
            ">BBHHHBBHII", 0x45, 0, length - 14, 0, 0, 64, self.protocol, 0, self.src, self.dst
        )
        total = sum(struct.unpack(">10H", head))
        total = (total & 0xFFFF) + (total >> 16)
        checksum = ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF
        ethernet = b"\x02\x00\x00\x00\x00\x01\x02\x00\x00\x00\x00\x02\x08\x00"
        head = head[:10] + struct.pack(">H", checksum) + head[12:]
        return (ethernet + head + struct.pack(">HH", self.sport, self.dport)).ljust(length, b"\0")


def routes(count: int, seed: int) -> list[Entry]:
    """Return distinct IPv4 prefixes with a port and a next hop each."""
    rng = random.Random(seed)
    found: dict[tuple[int, int], None] = {}
    while len(found) < count:
        (length,) = rng.choices(list(_LENGTHS), list(_LENGTHS.values()))
        found[rng.getrandbits(32) >> (32 - length) << (32 - length), length] = None
    return [
        Entry((Lpm(value, length),), "In.forward", (rng.randrange(PORTS), rng.getrandbits(47)))
        for value, length in found
    ]


def filters(count: int, seed: int) -> list[Entry]:
    """Return distinct five-tuple rules, the first the most important; they meet in few networks, as in one
    site.
    """
    rng = random.Random(seed)
    networks = [rng.getrandbits(16) << 16 for _ in range(max(4, count // 50))]
    found: dict[tuple[Match, ...], None] = {}
    while len(found) < count:
        ((source, destination),) = rng.choices(list(_PAIRS), list(_PAIRS.values()))
        key = (
            _prefix(rng.choice(networks) | rng.getrandbits(16), source),
            _prefix(rng.choice(networks) | rng.getrandbits(16), destination),
            Ternary(rng.choices((TCP, UDP), (4, 1))[0], 0xFF) if rng.random() < 0.9 else Ternary(0, 0),
            Range(*(_EVERY if rng.random() < 0.85 else rng.choice(_RANGES))),
            Range(*_destination_ports(rng)),
        )
        found[key] = None
    return [
        Entry(key, "In.forward", (rng.randrange(PORTS),), priority=count - position)
        for position, key in enumerate(found)
    ]


def flows(packets: Sequence[Packet]) -> list[Entry]:
    """Return one exact entry for each packet."""
    keys = {(p.src, p.dst, p.protocol, p.sport, p.dport): None for p in packets}
    return [Entry(tuple(map(Exact, key)), "In.forward", (key[0] % PORTS,)) for key in keys]


def _prefix(value: int, length: int) -> Ternary:
    mask = 0xFFFFFFFF >> (32 - length) << (32 - length) if length else 0
    return Ternary(value & mask, mask)


def _destination_ports(rng: random.Random) -> tuple[int, int]:
    kind = rng.random()
    if kind < 0.55:
        port = rng.choice(_WELL_KNOWN)
        return port, port
    if kind < 0.75:
        low = rng.randrange(65000)
        return rng.choice((rng.choice(_RANGES), (low, low + rng.randrange(1, 500))))
    return _EVERY


def routed(entries: Sequence[Entry], count: int, seed: int) -> list[Packet]:
    """Return packets to random addresses within the routes, each route as likely as another."""
    rng = random.Random(seed)
    return [_random_packet(rng, dst=_within(rng, rng.choice(entries).key[0])) for _ in range(count)]


def filtered(entries: Sequence[Entry], count: int, seed: int) -> list[Packet]:
    """Return packets that each match a random rule (or a more important one)."""
    rng = random.Random(seed)
    found = []
    for _ in range(count):
        src, dst, protocol, sport, dport = (_within(rng, each) for each in rng.choice(entries).key)
        protocol &= 0xFF  # of a rule for any protocol, whatever came
        found.append(Packet(src, dst, protocol if protocol in (TCP, UDP) else TCP, sport, dport))
    return found


def strangers(count: int, seed: int) -> list[Packet]:
    """Return random packets."""
    rng = random.Random(seed)
    return [_random_packet(rng, rng.getrandbits(32)) for _ in range(count)]


def _random_packet(rng: random.Random, dst: int) -> Packet:
    return Packet(rng.getrandbits(32), dst, rng.choice((TCP, UDP)), rng.getrandbits(16), rng.getrandbits(16))


def _within(rng: random.Random, match: Match) -> int:
    """Return a random value that a field matches."""
    match match:
        case Lpm(value, length):
            return value | rng.getrandbits(32) & (1 << 32 - length) - 1
        case Ternary(value, mask):
            return value | rng.getrandbits(32) & ~mask & 0xFFFFFFFF
        case Range(low, high):
            return rng.randint(low, high)
    raise ValueError(match)
