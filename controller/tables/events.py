# SPDX-License-Identifier: Apache-2.0
"""The counters of what the program decided about packets, indexed by ``weir.wire.definition.Event``."""

from collections.abc import Sequence

from weir.wire.definition import Event

INGRESS = "WeirIngress.events"
EGRESS = "WeirEgress.events"
COUNTERS = (INGRESS, EGRESS)


def is_drop(event: Event) -> bool:
    """Return whether this event means that a packet was thrown away."""
    return event.name.startswith("DROP_")


def known(cells: Sequence[object]) -> range:
    """Return the indices of a counter whose events this version knows."""
    return range(min(len(cells), len(Event)))
