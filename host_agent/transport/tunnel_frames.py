# SPDX-License-Identifier: Apache-2.0
"""Datagrams in batches, in whole frames through a tunnel to a switch's port over an IP network."""

import ipaddress
import socket
from collections.abc import Sequence

from softp4.native.batches import batches_wanted
from weir.host_agent.transport import bindings
from weir.host_agent.transport.arrays import address_of
from weir.host_agent.transport.datagram_batches import Arrivals, Batch, Bytes
from weir.host_agent.transport.frames import Addresses
from weir.host_agent.transport.tunnel_link import CLAIM_TIMEOUT_S, tunnel_socket, unanswered

_TRAFFIC_CLASS = {
    socket.AF_INET: (socket.IPPROTO_IP, socket.IP_TOS),
    socket.AF_INET6: (socket.IPPROTO_IPV6, socket.IPV6_TCLASS),
}


class FrameTunnel:
    """A job's part in a switch's port over IP, as ``FramePort`` is of one in shared memory.

    It claims the port for the first address where it listens: a UDP port, or a group, of which several
    tunnels may be members. For one thread at a time; ``receive`` keeps the port claimed.

    Args:
        hub: the switch's address, in numbers or a name, and the UDP port of our port there.
        key: of that port.
        listens: the addresses here to which datagrams may be sent, as the hosts of these.
        traffic_class: of all that is sent.
        local_port: of the socket; 0: any.
        send_buffer: bytes that wait in the kernel, at most twice that; None: many.

    Raises:
        OSError: no path to the switch, or one for shorter packets.
        ConnectionError: the switch does not answer.
    """

    def __init__(
        self,
        hub: tuple[str, int],
        key: bytes,
        listens: Sequence[Addresses],
        *,
        traffic_class: int,
        local_port: int = 0,
        send_buffer: int | None = None,
        timeout_s: float = CLAIM_TIMEOUT_S,
    ) -> None:
        self._socket = tunnel_socket(hub, local_port, bindings.USUAL_PAYLOAD)
        self._socket.setblocking(False)
        self._socket.setsockopt(*_TRAFFIC_CLASS[self._socket.family], traffic_class)
        if send_buffer is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        self._lib = bindings.library()
        self._handle: int | None = self._lib.weir_tunnel_frames_open(
            self._socket.fileno(), batches_wanted(), _label(listens[0]), key
        )
        self._listens = (bindings.Addresses * len(listens))(*(each.native() for each in listens))
        self._arrivals = Arrivals()
        if not self._handle:
            self._socket.close()
            raise MemoryError("no memory for a tunnel's frames")
        if code := self._lib.weir_tunnel_frames_claim(self._handle, round(timeout_s * 1e9)):
            self.close()
            raise unanswered(hub, timeout_s, max(0, code))

    def fileno(self) -> int:
        """Return the socket's file, which is ready when something has come."""
        return self._socket.fileno()

    def send(self, packets: Bytes, size: int, addresses: bindings.Addresses, traffic_class: int) -> int:
        """Send datagrams of ``size`` bytes, the last of which may be shorter, until there is no more room;
        return the bytes of those that are gone.
        """
        sent = self._lib.weir_tunnel_frames_send(
            self._handle, addresses, traffic_class, address_of(packets), packets.size, size
        )
        return int(sent)

    def receive(self) -> list[Batch]:
        """Return some of what came. The next call uses the same memory again."""
        addresses = self._arrivals.addresses
        listens = self._listens
        count = self._lib.weir_tunnel_frames_receive(self._handle, listens, len(listens), *addresses)
        return list(self._arrivals.batches(count))

    def close(self) -> None:
        """Detach. Closing twice is harmless."""
        if self._handle is not None:
            self._lib.weir_tunnel_frames_close(self._handle)
            self._handle = None
            self._socket.close()


def _label(own: Addresses) -> int:
    """Return the label of the claim for an address: a group, or a UDP port."""
    address = ipaddress.IPv4Address(own.host.ip)
    return int(address) if address.is_multicast else own.host.udp_port
