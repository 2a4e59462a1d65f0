# SPDX-License-Identifier: Apache-2.0
"""Datagrams in batches, in whole frames through a tunnel to a switch's port over an IP network."""

import ipaddress
import socket
from collections.abc import Sequence

from softp4.native.batches import batches_wanted
from weir.host_agent.transport import bindings
from weir.host_agent.transport.datagram_batches import Frames
from weir.host_agent.transport.frames import Addresses
from weir.host_agent.transport.tunnel_link import CLAIM_TIMEOUT_S, tunnel_socket, unanswered

_TRAFFIC_CLASS = {
    socket.AF_INET: (socket.IPPROTO_IP, socket.IP_TOS),
    socket.AF_INET6: (socket.IPPROTO_IPV6, socket.IPV6_TCLASS),
}


class FrameTunnel(Frames):
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
        lib = bindings.library()
        handle: int | None = lib.weir_tunnel_frames_open(
            self._socket.fileno(), batches_wanted(), _label(listens[0]), key
        )
        if not handle:
            self._socket.close()
            raise MemoryError("no memory for a tunnel's frames")
        functions = lib.weir_tunnel_frames_send, lib.weir_tunnel_frames_receive, lib.weir_tunnel_frames_close
        super().__init__(handle, functions, listens)
        if code := lib.weir_tunnel_frames_claim(handle, round(timeout_s * 1e9)):
            self.close()
            raise unanswered(hub, timeout_s, max(0, code))

    def fileno(self) -> int:
        """Return the socket's file, which is ready when something has come."""
        return self._socket.fileno()

    def close(self) -> None:
        """Detach. Closing twice is harmless."""
        super().close()
        self._socket.close()


def _label(own: Addresses) -> int:
    """Return the label of the claim for an address: a group, or a UDP port."""
    address = ipaddress.IPv4Address(own.host.ip)
    return int(address) if address.is_multicast else own.host.udp_port
