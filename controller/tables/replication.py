# SPDX-License-Identifier: Apache-2.0
"""Multicast groups: one floods broadcasts, one per job carries its results to its workers.

A job's group number follows from its first slot: jobs have disjoint slots, so groups never collide and need
no bookkeeping of their own.
"""

from collections.abc import Iterable, Mapping

from weir.controller.entries import Replica

FLOOD_GROUP = 1
_FIRST_JOB_GROUP = 2
FLOOD_RID = 0  # what egress takes for "not a multicast result"


def flood(ports: Iterable[int]) -> frozenset[Replica]:
    """Return the copies of a broadcast frame."""
    return frozenset(Replica(port, FLOOD_RID) for port in ports)


def job_group(slot_base: int) -> int:
    """Return the number of the group of the job whose slots begin at ``slot_base``."""
    return _FIRST_JOB_GROUP + slot_base


def results(ports_by_rank: Mapping[int, int]) -> frozenset[Replica]:
    """Return the copies of a result; replication id ``rank + 1`` tells egress for whom each is."""
    return frozenset(Replica(port, rank + 1) for rank, port in ports_by_rank.items())
