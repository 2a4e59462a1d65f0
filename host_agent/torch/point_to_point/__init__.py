# SPDX-License-Identifier: Apache-2.0
"""Point-to-point messages between the ranks of a group: host to host over TCP, past the switch's program."""

from weir.host_agent.torch.point_to_point.messenger import MessageError
from weir.host_agent.torch.point_to_point.tensors import PointToPoint

__all__ = ["MessageError", "PointToPoint"]
