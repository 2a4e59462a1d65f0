# SPDX-License-Identifier: Apache-2.0
"""Flows: bounded-loss transfer of tensors between workers and a parameter server (docs/flows.md)."""

from host_agent.flows.config import FlowConfig
from host_agent.flows.mux import FlowMux
from host_agent.flows.receiver import Delivery, FlowReceiver
from host_agent.flows.sender import FlowSender, Settlement
from host_agent.flows.server import ParameterServer, ServerConfig
from host_agent.flows.verdict import FlowVerdict
from host_agent.flows.worker import PullResult, ServerClient

__all__ = [
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
]
