# SPDX-License-Identifier: Apache-2.0
"""``admission``: the children that may touch a job's slots. The gate of every job.

A child is known by (ingress port, job, number): a worker of a leaf, a rack of a spine, a pod of a core, which
has it behind several ports. Results may come down from parents: (ingress port, job). Entries have the IPv4
address and UDP port that the sender must send from.
"""

from collections.abc import Iterable

from weir.controller.addresses import ip_number
from weir.controller.entries import TableEntry
from weir.wire.definition import UDP_PORT

WORKERS = "WeirIngress.admission.workers"
ADMIT = "WeirIngress.admission.admit"
PARENTS = "WeirIngress.admission.parents"
ACCEPT = "WeirIngress.admission.accept"
GATES = (WORKERS, PARENTS)


def bits(workers: Iterable[int]) -> int:
    """Return the mask that has the bit of each of these workers."""
    return sum(1 << worker for worker in set(workers))


def worker(
    *,
    port: int,
    job_id: int,
    number: int,
    ip: str,
    udp_port: int,
    all_children: int,
    slot_base: int,
    slot_count: int,
    group: int,
    spread: int = 0,
    rack: bool = False,
) -> TableEntry:
    """Admit child ``number`` on ``port`` to ``slot_count`` slots from ``slot_base`` on.

    ``ip``, ``udp_port``: its own. ``all_children``: mask of those that this switch waits for. ``spread``: a
    class of slots c has multicast group ``group + (c & spread)``. ``rack``: the child is a switch.
    """
    return TableEntry(
        WORKERS,
        (("port", port), ("job", job_id), ("worker", number)),
        ADMIT,
        (
            ("sender_ip", ip_number(ip)),
            ("sender_port", udp_port),
            ("slot_base", slot_base),
            ("slot_count", slot_count),
            ("worker_bit", 1 << number),
            ("all_workers", all_children),
            ("group", group),
            ("spread", spread),
            ("rack", int(rack)),
        ),
    )


def parent(
    *,
    port: int,
    job_id: int,
    number: int,
    ip: str,
    all_children: int,
    slot_base: int,
    slot_count: int,
    group: int,
    spread: int = 0,
) -> TableEntry:
    """Accept results of a job from the parent with address ``ip`` on ``port``, whose child ``number`` this
    switch is; the other values are those of the switch's own children.
    """
    return TableEntry(
        PARENTS,
        (("port", port), ("job", job_id)),
        ACCEPT,
        (
            ("sender_ip", ip_number(ip)),
            ("sender_port", UDP_PORT),
            ("slot_base", slot_base),
            ("slot_count", slot_count),
            ("own_bit", 1 << number),
            ("all_workers", all_children),
            ("group", group),
            ("spread", spread),
        ),
    )
