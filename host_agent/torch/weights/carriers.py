# SPDX-License-Identifier: Apache-2.0
"""Carriers of packets of weights: a port in shared memory, one over IP, or a cable with the kernel's UDP."""

import ipaddress
import os
import select
import socket
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Final, Protocol

from weir.agent_service.client import Endpoint, Membership
from weir.host_agent.flows.frames import Address
from weir.host_agent.torch.link_choice import LinkKind
from weir.host_agent.transport.datagram_batches import Batch, DatagramSocket, FramePort
from weir.host_agent.transport.frames import Addresses
from weir.host_agent.transport.frames import Endpoint as EndPoint
from weir.host_agent.transport.links import datagram_socket
from weir.host_agent.transport.tunnel_frames import FrameTunnel
from weir.host_agent.weights.packets import Datagrams
from weir.wire.definition import ECT, WEIGHTS_PORT, dscp

TRAFFIC_CLASS: Final = dscp(3) << 2 | ECT
"""That of the back layers, which wait longest: weights disturb no sums."""

_SEND_BUFFER: Final = 256 * 1024
"""Bytes that wait in the kernel, at most twice that: less than queues of this host hold, so that a slow link
makes the sender wait, and drops nothing.
"""


class Carrier(Protocol):
    """Carries packets of one member of a publisher's job. Sources and destinations are Addresses."""

    def send(self, datagrams: Datagrams) -> None:
        """Send datagrams to one member, or to all subscribers, when there is room."""

    def flush(self) -> bool:
        """Send what waits; return whether nothing does."""

    def receive(self) -> list[Batch]:
        """Return packets that came, some of them; the next call uses their memory again."""

    def wait(self, timeout_s: float) -> None:
        """Sleep until something may have come, or for so long."""

    def wake(self) -> None:
        """End another thread's ``wait``, where the carrier can."""

    def close(self) -> None:
        """Detach. Closing twice is harmless."""


class _Waiting:
    """Datagrams that wait until there is room.

    Args:
        send: takes datagrams, and returns how many bytes of them are gone.
    """

    def __init__(self, send: Callable[[Datagrams], int]) -> None:
        self._send = send
        self._waiting: deque[Datagrams] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def append(self, datagrams: Datagrams) -> None:
        """Let datagrams wait."""
        self._waiting.append(datagrams)

    def flush(self) -> bool:
        """Send what there is room for; return whether nothing waits."""
        while self._waiting:
            first = self._waiting[0]
            gone = self._send(first)
            if gone < first.payloads.size:
                self._waiting[0] = replace(first, payloads=first.payloads[gone:])
                return False
            self._waiting.popleft()
        return True


def address_of(endpoint: Endpoint) -> Address:
    """Return the address at which a member is known."""
    return Address(endpoint.ip, endpoint.udp_port)


class _FrameCarrier:
    """Frames from a member of a publisher's job, to all and to one, over its port.

    Args:
        own: the port.
    """

    def __init__(self, membership: Membership, own: FramePort | FrameTunnel) -> None:
        self._own = own
        self._host, self._switch_mac = _end(membership.host), membership.aggregation.mac
        self._to_all, _ = (each.native() for each in _listens(membership))
        self._waiting = _Waiting(self._send)

    def send(self, datagrams: Datagrams) -> None:
        """See Carrier."""
        self._waiting.append(datagrams)

    def _send(self, datagrams: Datagrams) -> int:
        to, addresses = datagrams.to, self._to_all
        if to is not None:
            assert isinstance(to, Address)
            addresses = Addresses(self._host, EndPoint(self._switch_mac, to.ip, to.port)).native()
        return self._own.send(datagrams.payloads, datagrams.size, addresses, TRAFFIC_CLASS)

    def flush(self) -> bool:
        """See Carrier."""
        return self._waiting.flush()


class MemoryCarrier(_FrameCarrier):
    """Frames over a shared-memory port."""

    def __init__(self, membership: Membership) -> None:
        assert membership.shm_dir is not None
        number, job = membership.switch_port, membership.job_id
        self._port = FramePort(membership.shm_dir, number, job, _listens(membership))
        super().__init__(membership, self._port)

    def receive(self) -> list[Batch]:
        """See Carrier."""
        return self._port.receive()

    def wait(self, timeout_s: float) -> None:
        """See Carrier."""
        self._port.wait(timeout_s)

    def wake(self) -> None:
        """See Carrier. A thread that waits for frames wakes by itself soon enough."""

    def close(self) -> None:
        """See Carrier."""
        self._port.close()


class _SocketsCarrier:
    """Receives from sockets, and sleeps until one is ready or another thread calls ``wake``."""

    _waiting: _Waiting

    def __init__(self) -> None:
        self._ends: list[DatagramSocket | FrameTunnel] = []  # the first one sends
        self._woken = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def receive(self) -> list[Batch]:
        """See Carrier."""
        return [batch for each in self._ends for batch in each.receive()]

    def wait(self, timeout_s: float) -> None:
        """See Carrier."""
        files = [each.fileno() for each in self._ends]
        ready, _, _ = select.select([*files, self._woken], files[:1] if self._waiting else [], [], timeout_s)
        if self._woken in ready:
            os.eventfd_read(self._woken)

    def wake(self) -> None:
        """See Carrier."""
        os.eventfd_write(self._woken, 1)

    def close(self) -> None:
        """See Carrier."""
        for each in self._ends:
            each.close()
        if self._woken >= 0:
            os.close(self._woken)
            self._woken = -1


class TunnelCarrier(_SocketsCarrier, _FrameCarrier):
    """Frames through a tunnel to a port over IP, and through another one what goes to all subscribers.

    Args:
        listens: hear what goes to all.
    """

    def __init__(self, membership: Membership, *, listens: bool) -> None:
        claimed = membership.claimed
        assert claimed is not None
        own, group = _listens(membership)
        hub = claimed.host, claimed.udp_port
        tunnel = FrameTunnel(
            hub,
            claimed.key,
            [own, group] if listens else [own],
            traffic_class=TRAFFIC_CLASS,
            local_port=membership.host.udp_port,
            send_buffer=_SEND_BUFFER,
        )
        _SocketsCarrier.__init__(self)
        _FrameCarrier.__init__(self, membership, tunnel)
        self._ends.append(tunnel)
        if listens:
            try:
                self._ends.append(FrameTunnel(hub, claimed.key, [group], traffic_class=TRAFFIC_CLASS))
            except BaseException:
                self.close()
                raise


class SocketCarrier(_SocketsCarrier):
    """The kernel's UDP: a socket of this member's own, and one that hears what goes to all subscribers.

    Args:
        own: bound, its port known to the controller. Taken over.
        listens: hear what goes to all.
    """

    def __init__(self, own: socket.socket, membership: Membership, *, listens: bool) -> None:
        super().__init__()
        assert membership.group is not None
        self._own, self._sockets = own, [own]
        group, ip = membership.group.ip, membership.host.ip
        self._group = (group, WEIGHTS_PORT)
        own.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(ip))
        own.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, TRAFFIC_CLASS)
        own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        self._waiting = _Waiting(self._send)
        if listens:
            shared = datagram_socket(socket.AF_INET)
            self._sockets.append(shared)
            shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            shared.bind(self._group)
            request = struct.pack("4s4s", *(ipaddress.IPv4Address(each).packed for each in (group, ip)))
            shared.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, request)
        self._datagrams = DatagramSocket(own)
        self._ends = [self._datagrams, *map(DatagramSocket, self._sockets[1:])]

    def send(self, datagrams: Datagrams) -> None:
        """See Carrier."""
        self._waiting.append(datagrams)

    def _send(self, datagrams: Datagrams) -> int:
        to = self._group
        if datagrams.to is not None:
            assert isinstance(datagrams.to, Address)
            to = datagrams.to
        return self._datagrams.send(datagrams.payloads, datagrams.size, to)

    def flush(self) -> bool:
        """See Carrier."""
        return self._waiting.flush()

    def close(self) -> None:
        """See Carrier."""
        super().close()
        for each in self._sockets:
            each.close()


def _end(endpoint: Endpoint) -> EndPoint:
    """Return an address as the transport has it."""
    return EndPoint(endpoint.mac, endpoint.ip, endpoint.udp_port)


def _listens(membership: Membership) -> tuple[Addresses, Addresses]:
    """Return where datagrams come to, as the hosts of these: a member's own address, and the group's."""
    assert membership.group is not None
    here, group = _end(membership.host), _end(membership.group)
    return Addresses(here, group), Addresses(group, here)


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
    if own is None:
        raise ValueError(
            f"WEIR_LINK is shm, but host {membership.host_name!r} has no shared-memory port in the "
            "controller's topology: give it one (shm: DIRECTORY), or leave WEIR_LINK unset"
        )
    if membership.claimed is not None and wanted in (None, "ip"):
        own.close()  # its UDP port is the tunnel's
        return TunnelCarrier(membership, listens=listens)
    return SocketCarrier(own, membership, listens=listens)
