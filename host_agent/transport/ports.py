# SPDX-License-Identifier: Apache-2.0
"""A group's way to the network: a link of its own, and the queue of the operations that use it.

Groups of a process wait for nothing of one another. Where their links share a port, the links see to that.
"""

from weir.host_agent.transport.links import Link, ShmLink
from weir.host_agent.transport.operations import OperationQueue
from weir.host_agent.transport.slot_transport import Congestion
from weir.host_agent.transport.tunnel_link import TunnelLink


class Port:
    """A link and a queue of operations, both owned from now on.

    Args:
        link: the group's.
        name: of the queue's thread.

    Attributes:
        link: so.
        operations: the queue of all that is done on the link.
    """

    def __init__(self, link: Link, name: str) -> None:
        self.link = link
        self.operations = OperationQueue(name)

    @property
    def outlives_switch(self) -> bool:
        """Return whether this leads to a switch that restarts: a port in shared memory ends with it."""
        return not isinstance(self.link, ShmLink)

    @property
    def congestion(self) -> Congestion:
        """Return what narrows windows here: over an IP network, others share the path."""
        return Congestion.PATH if isinstance(self.link, TunnelLink) else Congestion.MARKS

    def release(self) -> None:
        """Wait for queued operations, then detach. Releasing twice is harmless."""
        self.operations.close()
        self.link.close()
