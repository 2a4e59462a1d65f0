# SPDX-License-Identifier: Apache-2.0
"""Parameter servers for torch: the worker's door, and a server, whose optimizers are torch's own."""

from weir.host_agent.torch.parameter_server.serve import make_server
from weir.host_agent.torch.parameter_server.server import Server
from weir.host_agent.torch.parameter_server.worker import ParameterServer

__all__ = ["ParameterServer", "Server", "make_server"]
