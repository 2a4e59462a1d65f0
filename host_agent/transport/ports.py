# SPDX-License-Identifier: Apache-2.0
"""This process's places on the network: a link, and the thread that uses it.

A shared-memory port has one reader and one writer, so all process groups of a process share its link and
take turns. Their operations go through one queue, in the order the process issued them.
"""

import os
import threading
from dataclasses import dataclass, field
from typing import Literal

from weir.agent_service.client import Membership
from weir.host_agent.torch.work import OperationQueue
from weir.host_agent.transport.frames import Addresses, Endpoint
from weir.host_agent.transport.links import Link, ShmLink, UdpLink
from weir.host_agent.transport.slot_transport import SlotTransport

LinkKind = Literal["shm", "udp"]

_ANY_ADDRESS = ("0.0.0.0", 0)


@dataclass
class Port:
    """A link, its queue of operations, and how many groups use them."""

    link: Link
    operations: OperationQueue
    key: tuple[str, int] | None
    turn: threading.Lock = field(default_factory=threading.Lock)
    users: int = 0


class PortShare:
    """One group's share of a port: a Link whose end is ``release``. With the last share goes the port."""

    def __init__(self, port: Port) -> None:
        self._port = port
        self._released = False

    @property
    def operations(self) -> OperationQueue:
        """Return where the group's operations are queued."""
        return self._port.operations

    def drive(self, transport: SlotTransport, timeout_s: float, abort: threading.Event) -> None:
        """See Link.drive. Waits for other groups' turns first."""
        with self._port.turn:
            self._port.link.drive(transport, timeout_s, abort)

    def close(self) -> None:
        """Nothing: what uses the share as a link may close it while the port's thread waits for that user."""

    def release(self) -> None:
        """Give the share up; the last one waits for queued operations. Doing so twice is harmless."""
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
_shared: dict[tuple[str, int], Port] = {}


def wanted_link() -> LinkKind | None:
    """Return what WEIR_LINK asks for; None when it leaves the choice to us."""
    wanted = os.environ.get("WEIR_LINK") or None
    if wanted not in (None, "shm", "udp"):
        raise ValueError(f"WEIR_LINK is {wanted!r}: it must be shm or udp, or be unset")
    return wanted  # type: ignore[return-value]


def bind_udp(wanted: LinkKind | None) -> UdpLink | None:
    """Return a socket whose port can be told to the controller on joining, unless only shared memory will
    do.
    """
    return None if wanted == "shm" else UdpLink(_ANY_ADDRESS)


def share_port(membership: Membership, wanted: LinkKind | None, udp: UdpLink | None) -> PortShare:
    """Return the link for a membership: the host's shared-memory port when it has one, else ``udp``.

    Takes ``udp`` over: it is closed when it is not used.
    """
    if membership.shm_dir is not None and wanted != "udp":
        if udp is not None:
            udp.close()
        return _share_memory(membership)
    if udp is None:
        raise ValueError(
            f"WEIR_LINK is shm, but host {membership.host_name!r} has no shared-memory port in the "
            "controller's topology: give it one (shm: DIRECTORY), or set WEIR_LINK=udp"
        )
    udp.connect((membership.aggregation.ip, membership.aggregation.udp_port))
    return PortShare(Port(udp, OperationQueue(f"weir-{membership.job_id}"), None, users=1))


def _share_memory(membership: Membership) -> PortShare:
    key = (str(membership.shm_dir), membership.switch_port)
    with _lock:
        port = _shared.get(key)
        if port is None:
            link = ShmLink(*key, _addresses(membership))
            operations = OperationQueue(f"weir-port-{membership.switch_port}")
            port = _shared[key] = Port(link, operations, key)
        port.users += 1
    return PortShare(port)


def _addresses(membership: Membership) -> Addresses:
    host, switch = membership.host, membership.aggregation
    return Addresses(
        Endpoint(host.mac, host.ip, host.udp_port), Endpoint(switch.mac, switch.ip, switch.udp_port)
    )
