# SPDX-License-Identifier: Apache-2.0
"""This process's ports on the network: a link, and the queue of the operations that use it.

A shared-memory port has one reader and one writer, so all groups of a process share its link. Their
operations go through the port's queue, in the order in which the process issued them.
"""

import threading
from dataclasses import dataclass
from pathlib import Path

from weir.host_agent.transport.frames import Addresses
from weir.host_agent.transport.links import Link, ShmLink, UdpLink
from weir.host_agent.transport.operations import OperationQueue
from weir.host_agent.transport.slot_transport import SlotTransport


@dataclass
class _Port:
    """A link, its queue of operations, and how many groups use them."""

    link: Link
    operations: OperationQueue
    key: tuple[str, int] | None
    users: int = 0


class PortShare:
    """One group's share of a port: a Link whose end is ``release``. With the last share goes the port."""

    def __init__(self, port: _Port, addresses: Addresses | None = None) -> None:
        self._port = port
        self._addresses = addresses
        self._released = False

    @property
    def operations(self) -> OperationQueue:
        """Return the queue of all operations on the port."""
        return self._port.operations

    @property
    def outlives_switch(self) -> bool:
        """Return whether this leads to a switch that starts anew: a port in shared memory ends with it."""
        return not isinstance(self._port.link, ShmLink)

    def drive(self, transport: SlotTransport, timeout_s: float, abort: threading.Event) -> None:
        """See Link.drive. To be called from operations of the port's queue."""
        if self._addresses is not None and isinstance(self._port.link, ShmLink):
            self._port.link.readdress(self._addresses)  # groups have joined with addresses of their own
        self._port.link.drive(transport, timeout_s, abort)

    def rest(self, transport: SlotTransport) -> float | None:
        """See Link.rest. To be called from the port's queue."""
        return self._port.link.rest(transport)

    def close(self) -> None:
        """Do nothing: a reducer closes its link, while other groups may use the port."""

    def release(self) -> None:
        """Give the share up; the last one waits for queued operations. Releasing twice is harmless."""
        with _lock:
            if self._released:
                return
            self._released = True
            self._port.users -= 1
            if self._port.users:
                return
            if self._port.key is not None:
                del _shared[self._port.key]
        self._port.operations.close()
        self._port.link.close()


_lock = threading.Lock()
_shared: dict[tuple[str, int], _Port] = {}


def share_memory(directory: Path | str, number: int, addresses: Addresses) -> PortShare:
    """Return a share of a switch's shared-memory port, which is opened for the first of its users.

    Raises:
        OSError: the port cannot be opened; the message says why.
    """
    key = str(directory), number
    with _lock:
        port = _shared.get(key)
        if port is None:
            link = ShmLink(*key, addresses)
            port = _shared[key] = _Port(link, OperationQueue(f"weir-port-{number}"), key)
        port.users += 1
    return PortShare(port, addresses)


def own_socket(link: UdpLink, name: str) -> PortShare:
    """Return the only share of a port on a connected socket, which goes with it."""
    return PortShare(_Port(link, OperationQueue(name), None, users=1))
