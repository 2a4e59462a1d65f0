# SPDX-License-Identifier: Apache-2.0
"""``admission``: which (ingress port, job, worker) may touch which slots. The gate of every job."""

from controller.entries import TableEntry

WORKERS = "WeirIngress.admission.workers"
ADMIT = "WeirIngress.admission.admit"


def worker(
    *, port: int, job_id: int, rank: int, size: int, slot_base: int, slot_count: int, group: int
) -> TableEntry:
    """Admit worker ``rank`` of ``size`` on ``port`` to ``slot_count`` slots from ``slot_base`` on."""
    return TableEntry(
        WORKERS,
        (("port", port), ("job", job_id), ("worker", rank)),
        ADMIT,
        (
            ("slot_base", slot_base),
            ("slot_count", slot_count),
            ("worker_bit", 1 << rank),
            ("all_workers", (1 << size) - 1),
            ("group", group),
        ),
    )
