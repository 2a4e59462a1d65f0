# SPDX-License-Identifier: Apache-2.0
"""Flows: tensors between workers and a parameter server, of which a bounded part may go missing.

A flow is a `FlowSender` and a `FlowReceiver`, state machines without I/O; a `FlowMux` serves all flows of a
host on one port. What they do for a packet is native (``csrc/``). A `ParameterServer` sums what workers push,
and a `ServerClient` is a worker's side of it (docs/flows.md).

May import ``weir.host_agent.transport``, ``softp4.native`` and ``weir.wire``. Knows nothing of slots, torch
or gradients.
"""

from weir.host_agent.flows.config import FlowConfig, new_flow_id
from weir.host_agent.flows.delivery import Delivery, Settlement
from weir.host_agent.flows.mux import FlowMux
from weir.host_agent.flows.receiver import FlowReceiver
from weir.host_agent.flows.sender import FlowSender
from weir.host_agent.flows.server import Aggregate, ParameterServer, ServerConfig, WorkerFlows, bounded
from weir.host_agent.flows.verdict import FlowVerdict
from weir.host_agent.flows.worker import PullResult, ServerClient

__all__ = [
    "Aggregate",
    "Delivery",
    "FlowConfig",
    "FlowMux",
    "FlowReceiver",
    "FlowSender",
    "FlowVerdict",
    "ParameterServer",
    "PullResult",
    "ServerClient",
    "ServerConfig",
    "Settlement",
    "WorkerFlows",
    "bounded",
    "new_flow_id",
]
