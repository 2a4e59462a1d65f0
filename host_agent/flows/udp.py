# SPDX-License-Identifier: Apache-2.0
"""Flows over the kernel's UDP: one socket for all flows of a process, traffic classes both ways.

Example::

    with UdpFlows(("0.0.0.0", FLOW_PORT)) as flows:
        client.attach(flows.mux, Address("10.0.1.254"))
        number = client.push(gradient, service, previous=parameters)
        flows.drive(lambda: client.idle, timeout_s=10)
        (result,) = client.results()
"""

import contextlib
import errno
import os
import socket
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from softp4.native.batches import batches_wanted
from weir.host_agent.flows import native
from weir.host_agent.flows.frames import Address
from weir.host_agent.flows.mux import FlowMux
from weir.host_agent.transport.links import SOCKET_BUFFER, Aborted, TransportTimeout
from weir.wire.definition import FLOW_PORT

_BATCH: Final = 32
"""Packets sent before arrivals are looked at again: how long an urgent packet waits for less urgent ones."""

_WAKE_BYTES: Final = 4096
_SLICE_NS: Final = 50_000_000
_SECOND: Final = 1_000_000_000


class UdpFlows:
    """A UDP socket bound to ``bind`` (address, port; port 0 takes a free one), and the flows behind it.

    Switches spray and trim only where one end has FLOW_PORT. Raises OSError when the address cannot be had.
    """

    def __init__(self, bind: tuple[str, int] = ("0.0.0.0", FLOW_PORT)) -> None:
        self.mux = FlowMux()
        self._library = native.library()
        self._carrier: int | None = None
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self._socket.setblocking(False)
            for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
                self._socket.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER)
            self._socket.bind(bind)
            self._carrier = self._library.weir_flow_udp_open(self._socket.fileno(), batches_wanted())
        except OSError as error:
            self.close()
            what = os.strerror(error.errno or 0)
            raise OSError(error.errno, f"cannot serve flows on UDP {bind[0]}:{bind[1]}: {what}") from error

    @classmethod
    def at(cls, ip: str) -> Self:
        """Return a socket at FLOW_PORT of an address; at any other port if that one is taken. Raises OSError
        when the address cannot be had.
        """
        try:
            return cls((ip, FLOW_PORT))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
        return cls((ip, 0))

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
            self._send()
            if until():
                return
            if self._receive():
                heard = time.monotonic()
                if react is not None:
                    react()
            elif time.monotonic() - heard >= timeout_s:
                raise TransportTimeout(self._explain(timeout_s))

    def linger(self, seconds: float, react: Callable[[], object] | None = None) -> None:
        """Go on answering until every peer knows how its tensors ended, or for this many seconds.

        A receiver is only ever asked: ending right after a delivery would leave its sender without an answer.
        """
        end = time.monotonic() + seconds
        while not self.mux.settled and time.monotonic() < end:
            self._send()
            if self._receive(round(max(0.0, end - time.monotonic()) * _SECOND)) and react is not None:
                react()

    def wake(self) -> None:
        """Make ``drive`` ask ``until`` at once, from any thread, for instance to submit what is new."""
        self._waker.send(b"w")

    def close(self) -> None:
        """Close the socket. Closing twice is harmless."""
        if self._carrier is not None:
            self._library.weir_flow_udp_close(self._carrier)
            self._carrier = None
        for each in (self._socket, self._woken, self._waker):
            each.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def lost_errors(self) -> int:
        """Return how many packets the kernel could not send just then, or was told could not be delivered."""
        return int(self._library.weir_flow_udp_lost(self._carrier)) if self._carrier is not None else 0

    def _send(self) -> None:
        """Send a batch."""
        sent = self._library.weir_flow_udp_send(self._carrier, self.mux.handle, _BATCH)
        if sent < 0:
            raise OSError(-sent, f"cannot send a flow packet: {os.strerror(-sent)}")

    def _receive(self, most_ns: int = _SLICE_NS) -> bool:
        """Take in what is there, waiting for a first packet until there is something to send, or at most so
        long; return whether one came.
        """
        came = self._library.weir_flow_udp_receive(
            self._carrier, self.mux.handle, self._woken.fileno(), min(most_ns, _SLICE_NS)
        )
        if came < 0:
            raise OSError(-came, f"cannot take in flow packets: {os.strerror(-came)}")
        with contextlib.suppress(BlockingIOError):
            self._woken.recv(_WAKE_BYTES)
        return bool(came)

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
