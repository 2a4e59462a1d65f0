# SPDX-License-Identifier: Apache-2.0
"""``spraying``: the paths over which packets to other racks are spread, packet by packet."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from weir.controller.entries import TableEntry
from weir.wire.addresses import mac_number
from weir.wire.definition import SprayMode

GROUPS = "WeirIngress.spraying.groups"
CHOOSE = "WeirIngress.spraying.choose"
PATHS = "WeirIngress.spraying.paths"
TAKE = "WeirIngress.spraying.take"
UP_GROUP = 1  # a leaf's or spine's way to other racks; a core has a group for each pod from here on
COMPARED = 4  # paths whose queues LEAST_LOADED looks at


@dataclass(frozen=True)
class Path:
    """One of several equal ways: the port, and the MAC address there."""

    port: int
    mac: str


def spread(
    group: int, mode: SprayMode, src_mac: str, paths: Sequence[Path], places: int, first: int = 0
) -> Iterator[TableEntry]:
    """Spread packets of ``group`` over ``paths``, whose entries begin at ``first``.

    ``places`` entries are written, whatever the number of paths; those left over repeat them. So a path that
    goes away or comes back modifies entries and removes none, and at no moment does a choice find nothing.
    """
    ports = [path.port for path in paths[:COMPARED]]
    ports += [0] * (COMPARED - len(ports))
    yield TableEntry(
        GROUPS,
        (("group", group),),
        CHOOSE,
        (
            ("mode", int(mode)),
            ("base", first),
            ("count", len(paths)),
            *((f"port{number}", port) for number, port in enumerate(ports)),
        ),
    )
    for index in range(places):
        path = paths[index % len(paths)]
        yield TableEntry(
            PATHS,
            (("index", first + index),),
            TAKE,
            (("port", path.port), ("src_mac", mac_number(src_mac)), ("dst_mac", mac_number(path.mac))),
        )
