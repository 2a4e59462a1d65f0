# SPDX-License-Identifier: Apache-2.0
"""``tree``: the parents that a switch sends its sums to. A job without entries ends at this switch."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from weir.controller.addresses import ip_number
from weir.controller.entries import TableEntry
from weir.wire.addresses import mac_number
from weir.wire.definition import SPINE_CLASSES

UPLINKS = "WeirIngress.tree.uplinks"
CLIMB = "WeirIngress.tree.climb"


@dataclass(frozen=True)
class Uplink:
    """The way to one parent: the own port, and the parent's aggregation address."""

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


def spread_over(spines: Sequence[str], alive: Collection[str]) -> list[str]:
    """Return the spine of each class, by name, as ``spine_of`` has it; none if there are no spines."""
    numbers = [number for number, name in enumerate(spines) if name in alive]
    return [spines[spine_of(c, len(spines), numbers)] for c in range(SPINE_CLASSES)] if spines else []


def uplinks(
    *, job_id: int, number: int, whole: bool, src_mac: str, src_ip: str, ways: Sequence[Uplink]
) -> Iterator[TableEntry]:
    """Send every class of slots to its parent, where this switch is child ``number``.

    whole: the sums are protected, whatever is in them. ways: by class.
    """
    for spine_class, spine in enumerate(ways):
        yield TableEntry(
            UPLINKS,
            (("job", job_id), ("spine_class", spine_class)),
            CLIMB,
            (
                ("port", spine.port),
                ("number", number),
                ("whole", int(whole)),
                ("src_mac", mac_number(src_mac)),
                ("src_ip", ip_number(src_ip)),
                ("dst_mac", mac_number(spine.mac)),
                ("dst_ip", ip_number(spine.ip)),
            ),
        )
