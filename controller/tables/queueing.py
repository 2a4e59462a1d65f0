# SPDX-License-Identifier: Apache-2.0
"""``queueing``: the queue of each class of packets, and the depths at which they are trimmed, marked or
dropped.

What queues did is counted by the ``per_hop_behaviours`` of ingress (trimmed, dropped, queued) and egress
(marked).
"""

from weir.controller.entries import TableEntry
from weir.controller.qos import Enqueue

CLASSES = "WeirIngress.queueing.classes"
ENQUEUE = "WeirIngress.queueing.enqueue"
PER_HOP_BEHAVIOURS = ("WeirIngress.queueing.per_hop_behaviours", "WeirEgress.marking.per_hop_behaviours")
QUEUES = 8  # of a port; counters are at Treatment * QUEUES + queue


def traffic_class(dscp: int, behaviour: Enqueue) -> TableEntry:
    """Treat packets of a DSCP so."""
    return TableEntry(
        CLASSES,
        (("dscp", dscp),),
        ENQUEUE,
        (
            ("queue", behaviour.queue),
            ("trim_at", behaviour.trim_at),
            ("mark_at", behaviour.mark_at),
            ("drop_at", behaviour.drop_at),
        ),
    )
