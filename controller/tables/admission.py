# SPDX-License-Identifier: Apache-2.0
"""``admission``: the workers that may touch a job's slots. The gate of every job.

A worker is known by (ingress port, job, worker); at a spine a whole rack is one worker. At a leaf, results
may come down from spines: (ingress port, job).
"""

from collections.abc import Iterable

from weir.controller.entries import TableEntry

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
    rank: int,
    all_workers: int,
    slot_base: int,
    slot_count: int,
    group: int,
    rack: bool = False,
) -> TableEntry:
    """Admit worker ``rank`` on ``port`` to ``slot_count`` slots from ``slot_base`` on.

    ``all_workers``: mask of those that this switch waits for. ``rack``: the worker is a leaf.
    """
    return TableEntry(
        WORKERS,
        (("port", port), ("job", job_id), ("worker", rank)),
        ADMIT,
        (
            ("slot_base", slot_base),
            ("slot_count", slot_count),
            ("worker_bit", 1 << rank),
            ("all_workers", all_workers),
            ("group", group),
            ("rack", int(rack)),
        ),
    )


def parent(
    *, port: int, job_id: int, all_workers: int, slot_base: int, slot_count: int, group: int
) -> TableEntry:
    """Accept results of a job from the spine on ``port``; the other values are those of the leaf's own
    workers.
    """
    return TableEntry(
        PARENTS,
        (("port", port), ("job", job_id)),
        ACCEPT,
        (
            ("slot_base", slot_base),
            ("slot_count", slot_count),
            ("all_workers", all_workers),
            ("group", group),
        ),
    )
