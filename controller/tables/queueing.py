# SPDX-License-Identifier: Apache-2.0
"""``queueing``: the queue of each class of packets, and the depths at which they are trimmed, marked or
dropped.

What queues did is counted by the ``treatments`` of ingress (trimmed, dropped, queued) and egress (marked).
"""

from weir.controller.entries import TableEntry
from weir.controller.qos import Enqueue

CLASSES = "WeirIngress.queueing.classes"
ENQUEUE = "WeirIngress.queueing.enqueue"
TREATMENTS = ("WeirIngress.queueing.treatments", "WeirEgress.marking.treatments")
QUEUES = 8  # of a port; counters are at Treatment * QUEUES + queue


def traffic_class(dscp: int, treatment: Enqueue) -> TableEntry:
    """Treat packets of a DSCP so."""
    return TableEntry(
        CLASSES,
        (("dscp", dscp),),
        ENQUEUE,
        (
            ("queue", treatment.queue),
            ("trim_at", treatment.trim_at),
            ("mark_at", treatment.mark_at),
            ("drop_at", treatment.drop_at),
        ),
    )
