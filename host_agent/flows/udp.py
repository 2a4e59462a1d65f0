# SPDX-License-Identifier: Apache-2.0
"""Flows over the kernel's UDP: one socket for all flows of a process, traffic classes both ways.

Example::

    with UdpFlows(("0.0.0.0", FLOW_PORT)) as flows:
        client.attach(flows.mux, Address("10.0.1.254"))
        number = client.push(gradient, service, previous=parameters)
        flows.drive(lambda: client.idle, timeout_s=10)
        (result,) = client.results()
"""

import errno
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from weir.host_agent.flows.frames import Address
from weir.host_agent.flows.mux import FlowMux
from weir.host_agent.transport.links import SOCKET_BUFFER, Aborted, TransportTimeout
from weir.wire.definition import FLOW_PORT

_BATCH: Final = 32
"""Packets sent before arrivals are looked at again: how long an urgent packet waits for less urgent ones."""

_SLICE_S: Final = 0.05
_LONGEST: Final = 0xFFFF
_TOS_MESSAGE: Final = (socket.IPPROTO_IP, socket.IP_TOS)
_TOS_SPACE: Final = socket.CMSG_SPACE(4)  # Linux gives a byte, others an int
_RETRY_S: Final = 0.001

# Errors that say something about one packet's way, not about the socket: the packet counts as lost.
_LOST: Final = {errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN}


class UdpFlows:
    """A UDP socket bound to ``bind`` (address, port; port 0 takes a free one), and the flows behind it.

    A network trims only chunks to FLOW_PORT. Raises OSError when the address cannot be had.
    """

    def __init__(self, bind: tuple[str, int] = ("0.0.0.0", FLOW_PORT)) -> None:
        self.mux: FlowMux[Address] = FlowMux()
        self.lost_errors = 0
        """Packets that the kernel could not send just then, or was told could not be delivered."""
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self._socket.setblocking(False)
            for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
                self._socket.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER)
            self._socket.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
            self._socket.bind(bind)
        except OSError as error:
            self.close()
            what = os.strerror(error.errno or 0)
            raise OSError(error.errno, f"cannot serve flows on UDP {bind[0]}:{bind[1]}: {what}") from error

    @property
    def address(self) -> Address:
        """Return where the socket is bound."""
        ip, port = self._socket.getsockname()
        return Address(ip, port)

    def drive(
        self,
        until: Callable[[], bool],
        timeout_s: float,
        abort: threading.Event | None = None,
        react: Callable[[], object] | None = None,
    ) -> None:
        """Move packets until ``until()``.

        react: called whenever packets arrived, before what follows from them is sent.
        Raises TransportTimeout when nothing arrives for ``timeout_s`` seconds, Aborted soon after ``abort``
        is set, OSError when the socket fails. The flows stay as they are, and may be driven on.
        """
        heard = time.monotonic()
        while not until():
            if abort is not None and abort.is_set():
                raise Aborted("driving flows was aborted")
            wait_s = self._send()
            if until():
                return
            if self._receive(wait_s):
                heard = time.monotonic()
                if react is not None:
                    react()
            elif time.monotonic() - heard >= timeout_s:
                raise TransportTimeout(self._explain(timeout_s))

    def linger(self, seconds: float, react: Callable[[], object] | None = None) -> None:
        """Go on answering until every peer knows how its tensors ended, or for so many seconds.

        A receiver is only ever asked: ending right after a delivery would leave its sender without an answer.
        """
        end = time.monotonic() + seconds
        while not self.mux.settled and time.monotonic() < end:
            wait_s = self._send()
            if self._receive(min(wait_s, max(0.0, end - time.monotonic()))) and react is not None:
                react()

    def wake(self) -> None:
        """Make ``drive`` ask ``until`` at once, from any thread, for instance to submit what is new."""
        self._waker.send(b"w")

    def close(self) -> None:
        """Close the socket. Closing twice is harmless."""
        for each in (self._socket, self._woken, self._waker):
            each.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _send(self) -> float:
        """Send a batch; return how long to wait for arrivals before the next, in seconds."""
        packets, deadline = self.mux.poll(time.monotonic_ns(), _BATCH)
        for peer, (payload, traffic_class) in packets:
            ancillary = [(*_TOS_MESSAGE, struct.pack("i", traffic_class))]
            try:
                self._socket.sendmsg([payload], ancillary, 0, peer)
            except OSError as error:
                self._on_send_error(error)
        if deadline is None:
            return _SLICE_S
        return min(max(deadline - time.monotonic_ns(), 0) / 1e9, _SLICE_S)

    def _on_send_error(self, error: OSError) -> None:
        """Count a packet that did not go as lost: its sender's timer knows what to do."""
        self.lost_errors += 1
        if error.errno in {errno.EAGAIN, errno.ENOBUFS}:
            select.select([], [self._socket], [], _RETRY_S)
        elif error.errno not in _LOST:
            raise OSError(
                error.errno, f"cannot send a flow packet: {os.strerror(error.errno or 0)}"
            ) from error

    def _receive(self, wait_s: float) -> bool:
        """Take in what is there, waiting at most so long for a first packet; return whether one came."""
        ready = select.select([self._socket, self._woken], [], [], wait_s)[0]
        if self._woken in ready:
            self._woken.recv(_LONGEST)
        if self._socket not in ready:
            return False
        arrived = False
        for _ in range(_BATCH):
            try:
                payload, ancillary, _, source = self._socket.recvmsg(_LONGEST, _TOS_SPACE)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno not in _LOST:
                    raise
                self.lost_errors += 1
                continue
            traffic_class = next(
                (
                    data[0]
                    for level, kind, data in ancillary
                    if (level, kind) == (socket.IPPROTO_IP, socket.IP_TOS)
                ),
                0,
            )
            self.mux.on_packet(payload, time.monotonic_ns(), traffic_class, Address(*source))
            arrived = True
        return arrived

    def _explain(self, timeout_s: float) -> str:
        waiting = (
            ", ".join(self.mux.waiting()) or "no flow here has anything under way: the other end is silent"
        )
        refused = ", ".join(f"{n} {verdict.name}" for verdict, n in self.mux.refused().items())
        return (
            f"nothing arrived for {timeout_s:g} s on UDP {self.address.ip}:{self.address.port}: {waiting}"
            + (f"; refused: {refused}" if refused else "")
            + (f"; {self.lost_errors} packets could not be sent" if self.lost_errors else "")
        )
