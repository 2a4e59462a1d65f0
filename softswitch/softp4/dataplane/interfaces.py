# SPDX-License-Identifier: Apache-2.0
"""Network interfaces that lead to one and the same network: no two of them may be ports of one switch.

A frame from there would come in by both, and a flooded one would go out again where it came from, with its
sender's address, until nobody on that network finds anybody else.
"""

import socket
import struct
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

_GET_LINK, _DONE, _ERROR = 18, 3, 2
_REQUEST_DUMP: Final = 0x301
_NAME, _LOWER, _MASTER, _INFO, _LOWER_ELSEWHERE = 3, 5, 10, 18, 37  # IFLA_...
_KIND: Final = 1  # IFLA_INFO_KIND
_NESTED: Final = 0x8000

_STACKED: Final = frozenset(("vlan", "macvlan", "macvtap", "ipvlan", "ipvtap"))
"""Kinds whose frames go through another interface as they are, but for a VLAN tag. A tunnel's do not."""
_SHARING: Final = _STACKED - {"vlan"}
_GATHERING: Final = frozenset(("bridge", "bond", "team"))
"""Kinds that make one network of their members."""


@dataclass(frozen=True)
class Interface:
    """An interface of this network namespace.

    Attributes:
        kind: the kernel's word for a virtual interface, such as "vlan"; "" for a network card.
        lower: number of the interface beneath it, where it has one here; of a veth its other end.
        master: number of the bridge, bond or such that it is a member of; 0: of none.
    """

    index: int
    name: str
    kind: str
    lower: int
    master: int


def interfaces() -> dict[int, Interface]:
    """Return all interfaces of the caller's network namespace, by number. Raises OSError."""
    found: dict[int, Interface] = {}
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        kernel.send(struct.pack("=IHHII16x", 32, _GET_LINK, _REQUEST_DUMP, 1, 0))
        while True:
            answer = kernel.recv(1 << 18)
            while answer:
                length, kind, *_ = struct.unpack_from("=IHHII", answer)
                if kind in (_DONE, _ERROR):
                    return found
                each = _interface(answer[16:length])
                found[each.index] = each
                answer = answer[length + -length % 4 :]


def shared(one: int, other: int, known: Mapping[int, Interface]) -> str | None:
    """Return as text what two interfaces, by their numbers, have in common; None: nothing."""
    if one == other:
        return "it is the same interface"
    for upper, lower in ((one, other), (other, one)):
        if lower in _beneath(upper, known):
            return f"{_name(upper, known)} sends and receives by {_name(lower, known)}"
    a, b = known.get(one), known.get(other)
    if a is None or b is None:
        return None
    if a.kind in _SHARING and b.kind in _SHARING and a.lower == b.lower != 0:
        return f"both send and receive by {_name(a.lower, known)}"
    master = known.get(a.master)
    if master is not None and a.master == b.master and master.kind in _GATHERING:
        return f"both are members of {master.kind} {_name(a.master, known)}"
    return None


def _beneath(index: int, known: Mapping[int, Interface]) -> set[int]:
    """Return the numbers of the interfaces that an interface's frames go through."""
    found: set[int] = set()
    waiting = [index]
    while waiting:
        upper = known.get(waiting.pop())
        if upper is None:
            continue
        below = {upper.lower} if upper.kind in _STACKED and upper.lower else set()
        if upper.kind in _GATHERING:
            below |= {each.index for each in known.values() if each.master == upper.index}
        waiting += below - found
        found |= below
    return found


def _name(index: int, known: Mapping[int, Interface]) -> str:
    return known[index].name if index in known else f"interface {index}"


def _interface(data: bytes) -> Interface:
    (index,) = struct.unpack_from("=4xi", data)
    found = dict(_attributes(data[16:]))
    kind = dict(_attributes(found.get(_INFO, b""))).get(_KIND, b"")
    lower = 0 if _LOWER_ELSEWHERE in found else _number(found.get(_LOWER))
    return Interface(index, _text(found.get(_NAME, b"")), _text(kind), lower, _number(found.get(_MASTER)))


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= 4:
        length, kind = struct.unpack_from("=HH", data)
        yield kind & ~_NESTED, data[4:length]
        data = data[max(length + -length % 4, 4) :]


def _text(value: bytes) -> str:
    return value.rstrip(b"\0").decode(errors="replace")


def _number(value: bytes | None) -> int:
    return 0 if value is None else int.from_bytes(value, sys.byteorder)
