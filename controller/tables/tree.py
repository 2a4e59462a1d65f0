# SPDX-License-Identifier: Apache-2.0
"""``tree``: the spines that a leaf sends the sums of its rack to. A job without entries ends at the leaf."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from weir.controller.addresses import ip_number
from weir.controller.entries import TableEntry
from weir.wire.addresses import mac_number
from weir.wire.definition import SPINE_CLASSES

UPLINKS = "WeirIngress.tree.uplinks"
CLIMB = "WeirIngress.tree.climb"


@dataclass(frozen=True)
class Uplink:
    """The way to one spine: the leaf's port, and the spine's aggregation address."""

    port: int
    mac: str
    ip: str


def spine_of(spine_class: int, spines: int, alive: Collection[int]) -> int:
    """Return the spine of a class of slots: number c mod S of ``spines``, if it is among those that are
    ``alive``.

    The classes of the others are spread over these. A spine that goes takes no other's classes with it: each
    class has its own order of spines, and is at the first one that is alive.
    """
    first, turn = spine_class % spines, spine_class // spines
    rest = [(first + step) % spines for step in range(1, spines)]
    turn %= max(len(rest), 1)
    return next(spine for spine in (first, *rest[turn:], *rest[:turn]) if spine in alive)


def uplinks(
    *, job_id: int, member: int, src_mac: str, src_ip: str, spines: int, ways: Mapping[int, Uplink]
) -> Iterator[TableEntry]:
    """Send every class of slots to its spine, as ``spine_of`` has it; there this leaf is number ``member``.

    ``ways``: to those that are alive, by their number among all ``spines``.
    """
    for spine_class in range(SPINE_CLASSES):
        spine = ways[spine_of(spine_class, spines, ways.keys())]
        yield TableEntry(
            UPLINKS,
            (("job", job_id), ("spine_class", spine_class)),
            CLIMB,
            (
                ("port", spine.port),
                ("member", member),
                ("src_mac", mac_number(src_mac)),
                ("src_ip", ip_number(src_ip)),
                ("dst_mac", mac_number(spine.mac)),
                ("dst_ip", ip_number(spine.ip)),
            ),
        )
