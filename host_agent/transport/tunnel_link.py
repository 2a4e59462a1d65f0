# SPDX-License-Identifier: Apache-2.0
"""A link to a switch's port over an IP network: whole frames in UDP datagrams, once the port is claimed."""

import errno
import os
import socket
from typing import Final

from softp4.native.batches import batches_wanted
from weir.host_agent.transport import bindings
from weir.host_agent.transport.frames import Addresses
from weir.host_agent.transport.links import NativeLink, datagram_socket, opened, path_mtu
from weir.host_agent.transport.report import FRAME_OVERHEAD

_OUTSIDE: Final = {socket.AF_INET: 28, socket.AF_INET6: 48}
"""Bytes of IP's and UDP's headers around a frame."""

CLAIM_TIMEOUT_S: Final = 10.0


class TunnelLink(NativeLink):
    """A UDP socket to a switch's port anywhere on an IP network, which is claimed with the port's key.

    Several links of one host may hold the port at once: each has a UDP port of its own inside the frames.

    Args:
        hub: the switch's address, in numbers or a name, and the UDP port of our port there.
        key: of that port, which the controller knows.
        addresses: inside the frames.
        local_port: the socket's UDP port; None: that of the host inside the frames, which no other link of
            this machine has then.
        payload: bytes of the longest Weir packet.

    Raises:
        OSError: no path to the switch, or one for shorter packets.
        ConnectionError: the switch does not answer.
    """

    def __init__(
        self,
        hub: tuple[str, int],
        key: bytes,
        addresses: Addresses,
        *,
        local_port: int | None = None,
        payload: int = bindings.USUAL_PAYLOAD,
        timeout_s: float = CLAIM_TIMEOUT_S,
    ) -> None:
        local = addresses.host.udp_port if local_port is None else local_port
        self._socket = tunnel_socket(hub, local, payload)
        try:
            io = opened(
                bindings.library().weir_tunnel_open(
                    self._socket.fileno(), batches_wanted(), addresses.native(), key
                )
            )
        except BaseException:
            self._socket.close()
            raise
        super().__init__(io, _name(hub), "the switch cannot be reached")
        if not self._lib.weir_tunnel_claim(io, round(timeout_s * 1e9)):
            code = self._lib.weir_io_last_error(io)
            self.close()
            raise unanswered(hub, timeout_s, code)

    def close(self) -> None:
        """Detach. Closing twice is harmless."""
        super().close()
        self._socket.close()


def tunnel_socket(hub: tuple[str, int], local_port: int, payload: int) -> socket.socket:
    """Return a socket from this UDP port, or any (0), to a switch's port over IP.

    Raises:
        OSError: no path to the switch, or one for shorter packets.
    """
    family, _, _, _, address = socket.getaddrinfo(*hub, type=socket.SOCK_DGRAM)[0]
    made = datagram_socket(family)
    try:
        made.bind(("", local_port))
        made.connect(address)
        _require_mtu(made, _name(hub), payload)
    except BaseException:
        made.close()
        raise
    return made


def unanswered(hub: tuple[str, int], timeout_s: float, code: int) -> ConnectionError:
    """Return the error to raise if a switch does not answer. code: an errno that may say why, or 0."""
    return ConnectionError(
        f"the switch did not answer within {timeout_s:g} s at UDP {hub[0]}:{hub[1]}"
        + (f" ({os.strerror(code)})" if code else "")
        + ": is it running, do firewalls let UDP pass there, and did it start with the controller's secret?"
    )


def _name(hub: tuple[str, int]) -> str:
    return f"port over IP {hub[0]}:{hub[1]}"


def _require_mtu(connected: socket.socket, what: str, payload: int) -> None:
    """Raise OSError unless the path takes the longest packets, as far as is known."""
    needed = _OUTSIDE[connected.family] + FRAME_OVERHEAD + payload
    if (mtu := path_mtu(connected)) < needed:
        raise OSError(
            errno.EMSGSIZE, f"the path of {what} has an MTU of {mtu}, but packets have up to {needed} bytes"
        )
