# SPDX-License-Identifier: Apache-2.0
"""From slots to packets: vectors of lanes reduced over the workers of a job, by the slot protocol.

A `SlotTransport` is the protocol without I/O (``csrc/``). A `Reducer` drives one over a link, be it shared
memory or UDP; an `OperationQueue` orders what uses a port. A `ReduceReport` tells what a reduce did, and
a `Ledger` checks that no lane was lost.

May import ``weir.wire`` and ``softp4.native``. Knows nothing of tensors, gradients or groups.
"""

from weir.host_agent.transport.counters import TransportCounters
from weir.host_agent.transport.ledger import Ledger
from weir.host_agent.transport.links import Aborted, ShmLink, TransportTimeout, UdpLink
from weir.host_agent.transport.operations import OperationQueue
from weir.host_agent.transport.reducer import Reducer, ReducerStats
from weir.host_agent.transport.report import ReduceReport
from weir.host_agent.transport.service_class import LOSSLESS, ServiceClass
from weir.host_agent.transport.slot_transport import SlotTransport, TransportConfig

__all__ = [
    "LOSSLESS",
    "Aborted",
    "Ledger",
    "OperationQueue",
    "ReduceReport",
    "Reducer",
    "ReducerStats",
    "ServiceClass",
    "ShmLink",
    "SlotTransport",
    "TransportConfig",
    "TransportCounters",
    "TransportTimeout",
    "UdpLink",
]
