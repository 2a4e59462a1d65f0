# SPDX-License-Identifier: Apache-2.0
"""Racks: which part of a placement goes to which machine, so that little passes the spines.

Bytes between machines of one rack pass two links, from host to leaf and back; between racks four, through a
spine. Parts are all of one size to the partition, so they may change places: what they say to each other
decides who shares a rack.
"""

import numpy as np

from weir.host_agent.placement.samples import Integers
from weir.host_agent.placement.traffic import Placement, PlacementError

HOPS_WITHIN, HOPS_BETWEEN = 2, 4
_STARTS = 16


def rack_of(machines: int, racks: int) -> Integers:
    """Return the rack of each machine: equal shares, in order.

    Raises:
        PlacementError: they do not come out even.
    """
    if racks < 1 or machines % racks:
        raise PlacementError(f"{machines} machines do not fill {racks} racks evenly")
    return np.arange(machines) // (machines // racks)


def hops(links: Integers, racks: int) -> int:
    """Return the bytes on all links of a leaf-spine network. links: bytes from machine to machine."""
    rack = rack_of(len(links), racks)
    between = int(links[rack[:, None] != rack].sum())
    return HOPS_WITHIN * (int(links.sum()) - between) + HOPS_BETWEEN * between


def _exchanged(part_at: Integers, both: Integers, rack: Integers) -> Integers:
    """Return the part on each machine when no exchange saves anything more. both: bytes between two parts."""
    racks = range(int(rack.max()) + 1)
    part_at = part_at.copy()
    while True:
        pair = both[np.ix_(part_at, part_at)]
        near = np.stack([pair[:, rack == r].sum(axis=1) for r in racks], axis=1)
        here = near[np.arange(len(rack)), rack]
        gain = near[:, rack] + near[:, rack].T - here[:, None] - here[None] - 2 * pair
        gain[rack[:, None] == rack] = 0
        one, other = np.unravel_index(int(np.argmax(gain)), gain.shape)
        if gain[one, other] <= 0:
            return part_at
        part_at[[one, other]] = part_at[[other, one]]


def _kept(part_at: Integers, both: Integers, rack: Integers) -> int:
    """Return the bytes that stay within racks."""
    return int(both[np.ix_(part_at, part_at)][rack[:, None] == rack].sum())


def in_racks(placement: Placement, links: Integers, racks: int) -> Placement:
    """Return the placement with its parts on other machines, so that fewer bytes pass the spines.

    Two parts change places as long as that saves something: with up to 63 machines there are few pairs. The
    best end of several beginnings is taken (chosen here: 16), the parts as they are being one.
    """
    rack, both = rack_of(placement.machines, racks), (links + links.T).astype(np.int64)
    random = np.random.default_rng(0)
    starts = [
        np.arange(placement.machines),
        *(random.permutation(placement.machines) for _ in range(_STARTS - 1)),
    ]
    part_at = max(
        (_exchanged(start, both, rack) for start in starts), key=lambda found: _kept(found, both, rack)
    )
    machine_of = np.argsort(part_at)
    return Placement(placement.machines, machine_of[placement.of_sample], machine_of[placement.of_parameter])
