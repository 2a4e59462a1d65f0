# SPDX-License-Identifier: Apache-2.0
"""Weights from one trainer to many engines: publisher and subscriber without I/O, and versions of weights."""

from weir.host_agent.weights.packets import Verdict
from weir.host_agent.weights.publisher import Publisher
from weir.host_agent.weights.subscriber import Subscriber

__all__ = ["Publisher", "Subscriber", "Verdict"]
