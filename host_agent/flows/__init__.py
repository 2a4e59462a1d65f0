# SPDX-License-Identifier: Apache-2.0
"""Flows: tensors between workers and a parameter server, of which a bounded part may go missing.

A flow is a `FlowSender` and a `FlowReceiver`, state machines without I/O; a `FlowMux` serves all flows of a
host on one port. What they do for a packet is native (``csrc/``). See flows.md; what parameter servers
say through flows is in ``weir.host_agent.parameter_server``.

May import ``weir.host_agent.transport``, ``softp4.native`` and ``weir.wire``. Knows nothing of slots, torch
or gradients.
"""

from weir.host_agent.flows.config import FlowConfig, new_flow_id
from weir.host_agent.flows.delivery import Delivery, Settlement
from weir.host_agent.flows.mux import FlowMux
from weir.host_agent.flows.receiver import FlowReceiver
from weir.host_agent.flows.sender import FlowSender
from weir.host_agent.flows.verdict import FlowVerdict

__all__ = [
    "Delivery",
    "FlowConfig",
    "FlowMux",
    "FlowReceiver",
    "FlowSender",
    "FlowVerdict",
    "Settlement",
    "new_flow_id",
]
