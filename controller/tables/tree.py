# SPDX-License-Identifier: Apache-2.0
"""``tree``: to which spine a leaf sends the sums of its rack. A job without entries ends at the leaf."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from controller.addresses import ip_number, mac_number
from controller.entries import TableEntry
from wire.definition import SPINE_CLASSES

UPLINKS = "WeirIngress.tree.uplinks"
CLIMB = "WeirIngress.tree.climb"


@dataclass(frozen=True)
class Uplink:
    """The way to one spine: the leaf's port, and the spine's aggregation address."""

    port: int
    mac: str
    ip: str


def uplinks(
    *, job_id: int, member: int, src_mac: str, src_ip: str, spines: Sequence[Uplink]
) -> Iterator[TableEntry]:
    """Slots of class c go to spine c mod the number of ``spines``; there this leaf is number ``member``."""
    for spine_class in range(SPINE_CLASSES):
        spine = spines[spine_class % len(spines)]
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
