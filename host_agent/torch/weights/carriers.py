# SPDX-License-Identifier: Apache-2.0
"""Carriers of packets of weights: a shared-memory port of a switch on this machine, or the kernel's UDP."""

import ipaddress
import select
import socket
import struct
from collections import deque
from typing import Final, Protocol

from weir.agent_service.client import Endpoint, Membership
from weir.host_agent.flows.frames import Address, unwrap, wrap
from weir.host_agent.torch.link_choice import LinkKind
from weir.host_agent.transport.frame_port import FramePort
from weir.host_agent.transport.frames import Datagram
from weir.host_agent.transport.links import datagram_socket
from weir.wire.addresses import mac_bytes
from weir.wire.definition import ECT, WEIGHTS_PORT, dscp

TRAFFIC_CLASS: Final = dscp(3) << 2 | ECT
"""That of the back layers, which wait longest: weights disturb no sums."""

_MOST: Final = 2048
_BATCH: Final = 64


class Carrier(Protocol):
    """Carries packets of one member of a publisher's job. Sources and destinations are Addresses."""

    def send(self, payload: bytes, to: Address | None) -> None:
        """Send a payload to one member, or with None to all subscribers, when there is room."""

    def flush(self) -> bool:
        """Send what waits; return whether nothing does."""

    def receive(self) -> list[tuple[bytes, Address]]:
        """Return payloads that came, some of them, and where from."""

    def wait(self, timeout_s: float) -> None:
        """Sleep until something may have come, or for so long."""

    def close(self) -> None:
        """Detach. Closing twice is harmless."""


def address_of(endpoint: Endpoint) -> Address:
    """Return the address at which a member is known."""
    return Address(endpoint.ip, endpoint.udp_port)


class MemoryCarrier:
    """Frames over a shared-memory port."""

    def __init__(self, membership: Membership) -> None:
        assert membership.shm_dir is not None and membership.group is not None
        host, switch, group = membership.host, membership.aggregation, membership.group
        self._port = FramePort(membership.shm_dir, membership.switch_port, membership.job_id)
        self._here, self._mac = address_of(host), mac_bytes(host.mac)
        self._switch_mac = mac_bytes(switch.mac)
        self._group, self._group_mac = address_of(group), mac_bytes(group.mac)
        self._waiting: deque[bytes] = deque()

    def send(self, payload: bytes, to: Address | None) -> None:
        """See Carrier."""
        to_mac = self._group_mac if to is None else self._switch_mac
        datagram = Datagram(payload, TRAFFIC_CLASS)
        self._waiting.append(wrap(datagram, self._here, self._mac, to or self._group, to_mac))

    def flush(self) -> bool:
        """See Carrier."""
        while self._waiting:
            batch = [self._waiting[at] for at in range(min(_BATCH, len(self._waiting)))]
            sent = self._port.send(batch)
            for _ in range(sent):
                self._waiting.popleft()
            if sent < len(batch):
                return False
        return True

    def receive(self) -> list[tuple[bytes, Address]]:
        """See Carrier."""
        found = []
        for frame in self._port.receive():
            arrival = unwrap(frame, self._here, self._mac) or unwrap(frame, self._group, self._group_mac)
            if arrival is not None:
                found.append((arrival.payload, arrival.source))
        return found

    def wait(self, timeout_s: float) -> None:
        """See Carrier."""
        self._port.wait(timeout_s)

    def close(self) -> None:
        """See Carrier."""
        self._port.close()


class SocketCarrier:
    """The kernel's UDP: a socket of this member's own, and one that hears what goes to all subscribers.

    Args:
        own: bound, its port known to the controller. Taken over.
        listens: hear what goes to all.
    """

    def __init__(self, own: socket.socket, membership: Membership, *, listens: bool) -> None:
        assert membership.group is not None
        self._own, self._sockets = own, [own]
        own.setblocking(False)
        group, ip = membership.group.ip, membership.host.ip
        self._group = (group, WEIGHTS_PORT)
        own.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(ip))
        own.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, TRAFFIC_CLASS)
        self._waiting: deque[tuple[bytes, tuple[str, int]]] = deque()
        if listens:
            shared = datagram_socket(socket.AF_INET)
            self._sockets.append(shared)
            shared.setblocking(False)
            shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            shared.bind(self._group)
            request = struct.pack("4s4s", *(ipaddress.IPv4Address(each).packed for each in (group, ip)))
            shared.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, request)

    def send(self, payload: bytes, to: Address | None) -> None:
        """See Carrier."""
        self._waiting.append((payload, self._group if to is None else (to.ip, to.port)))

    def flush(self) -> bool:
        """See Carrier."""
        while self._waiting:
            payload, to = self._waiting[0]
            try:
                self._own.sendto(payload, to)
            except BlockingIOError:
                return False
            except OSError:
                pass  # as good as lost on the way
            self._waiting.popleft()
        return True

    def receive(self) -> list[tuple[bytes, Address]]:
        """See Carrier."""
        found: list[tuple[bytes, Address]] = []
        for each in self._sockets:
            for _ in range(_BATCH):
                try:
                    payload, (ip, port) = each.recvfrom(_MOST)
                except OSError:
                    break
                found.append((payload, Address(ip, port)))
        return found

    def wait(self, timeout_s: float) -> None:
        """See Carrier."""
        select.select(self._sockets, self._sockets[:1] if self._waiting else [], [], timeout_s)

    def close(self) -> None:
        """See Carrier."""
        for each in self._sockets:
            each.close()


def open_socket(wanted: LinkKind | None) -> socket.socket | None:
    """Return a member's own socket, bound to a free port; None where only shared memory will do."""
    if wanted == "shm":
        return None
    own = datagram_socket(socket.AF_INET)
    own.bind(("0.0.0.0", 0))
    return own


def choose_carrier(
    membership: Membership, wanted: LinkKind | None, own: socket.socket | None, *, listens: bool
) -> Carrier:
    """Return the carrier of a member, which takes ``own`` over.

    Raises:
        ValueError: the host has no such carrier.
        OSError: it cannot be opened.
    """
    if membership.shm_dir is not None and wanted in (None, "shm"):
        if own is not None:
            own.close()
        return MemoryCarrier(membership)
    if own is None or membership.claimed is not None:
        if own is not None:
            own.close()
        raise ValueError(
            f"host {membership.host_name!r} has no link that carries weights: they need a shared-memory port "
            "(WEIR_LINK=shm) or a cable (WEIR_LINK=udp), and ports over IP carry none yet"
        )
    return SocketCarrier(own, membership, listens=listens)
