# SPDX-License-Identifier: Apache-2.0
"""Multicast groups: one floods broadcasts, one per job carries its results to its workers.

A job's group number follows from its first slot: jobs have disjoint slots, so groups never collide and need
no bookkeeping of their own. That leaves a job as many numbers as slots, enough for one a class.
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


def subscribers_group(slot_base: int) -> int:
    """Return the number of the group of those who subscribe to a job that publishes: of its second slot."""
    return job_group(slot_base) + 1


def group_ip(slot_base: int) -> str:
    """Return the IPv4 multicast address of a job's subscribers, of those for local use (RFC 2365)."""
    return f"239.119.{slot_base >> 8}.{slot_base & 0xFF}"


def group_mac(slot_base: int) -> str:
    """Return the MAC address that hosts send to for ``group_ip`` (RFC 1112)."""
    return f"01:00:5e:77:{slot_base >> 8:02x}:{slot_base & 0xFF:02x}"


def results(ports: Mapping[int, int]) -> frozenset[Replica]:
    """Return the copies of a result, from the children's ports by number.

    Replication id ``number + 1`` tells egress for whom each is.
    """
    return frozenset(Replica(port, number + 1) for number, port in ports.items())
