# SPDX-License-Identifier: Apache-2.0
"""Parameter servers for torch: the worker's door, and servers, whose optimizers are torch's own."""

from weir.host_agent.torch.parameter_server.serve import make_server
from weir.host_agent.torch.parameter_server.worker import ParameterServer

__all__ = ["ParameterServer", "make_server"]
