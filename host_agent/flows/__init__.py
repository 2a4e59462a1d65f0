# SPDX-License-Identifier: Apache-2.0
"""Flows: bounded-loss transfer of tensors between workers and a parameter server (docs/flows.md)."""

from weir.host_agent.flows.config import FlowConfig, new_flow_id
from weir.host_agent.flows.mux import FlowMux
from weir.host_agent.flows.receiver import Delivery, FlowReceiver
from weir.host_agent.flows.sender import FlowSender, Settlement
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
