# SPDX-License-Identifier: Apache-2.0
"""Everything that is built from one operation: reduce lanes over the workers of a group.

A `Communicator` is a group as one of its workers sees it. Over it, sums of floats agree on exponents and add
fixed-point lanes, data moves by OR, and `Collectives` has every collective of torch.distributed. An
`InMemoryGroup` is several workers in one process, without a network.

May import ``weir.host_agent.transport`` and ``weir.wire``. Knows tensors, but neither gradients nor torch's
process groups.
"""

from weir.host_agent.collectives.collectives import Collectives
from weir.host_agent.collectives.communicator import Communicator
from weir.host_agent.collectives.in_memory import InMemoryGroup
from weir.host_agent.collectives.non_finite import NonFiniteError

__all__ = ["Collectives", "Communicator", "InMemoryGroup", "NonFiniteError"]
