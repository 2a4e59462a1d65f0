# SPDX-License-Identifier: Apache-2.0
"""Carriers of a worker's packets: a shared-memory port of a switch on this machine, or a UDP socket.

The loop that moves packets is native and runs without the interpreter lock, in slices; between two of them
Python looks whether to give up, and delivers signals.
"""

import ctypes
import errno
import os
import socket
import threading
import time
from enum import IntEnum
from pathlib import Path
from typing import Final, Protocol

from softp4.native.batches import batches_wanted
from weir.host_agent.transport import bindings
from weir.host_agent.transport.frames import Addresses
from weir.host_agent.transport.memory_port import MemoryPort
from weir.host_agent.transport.report import ReduceReport, Verdict
from weir.host_agent.transport.slot_transport import NEVER, SlotTransport

SLICE_S: Final = 0.1
_SLICE_NS: Final = round(SLICE_S * 1e9)
SOCKET_BUFFER: Final = 4 << 20
"""Asked of the kernel for a whole window of packets; it grants what net.core.rmem_max allows."""

_SHOWN_SLOTS: Final = 4
_PMTUDISC_DO: Final = 2  # this one and the next two are missing in the socket module
_MTU_DISCOVER: Final = {socket.AF_INET: (socket.IPPROTO_IP, 10), socket.AF_INET6: (socket.IPPROTO_IPV6, 23)}
_MTU: Final = {socket.AF_INET: (socket.IPPROTO_IP, 14), socket.AF_INET6: (socket.IPPROTO_IPV6, 24)}
_HEADERS: Final = 28  # of IPv4 and UDP


class TransportTimeout(TimeoutError):  # noqa: N818 - what callers know it as
    """No round completed for too long. The message says who waits for what, and what was seen last."""

    def __str__(self) -> str:
        """Return the message, as text that programs look for."""
        return f"timed out: {super().__str__()}"


class Aborted(RuntimeError):  # noqa: N818
    """A reduce was given up because its abort event was set."""


class DisagreementError(RuntimeError):
    """The workers are in different operations, or in different reductions of one.

    Every worker is told when all have begun; nothing of a result was applied.
    """


class _DriveResult(IntEnum):
    DONE = 0
    RUNNING = 1
    ERROR = 2
    DISAGREE = 3


class Link(Protocol):
    """Carries one transport's packets at a time."""

    def drive(self, transport: SlotTransport, timeout_s: float, abort: threading.Event) -> None:
        """Run the transport's reduce until it is done. For one thread at a time.

        Raises TransportTimeout when no round completes for ``timeout_s`` seconds, Aborted within
        SLICE_S or so after ``abort`` is set, OSError when the carrier fails, DisagreementError when the
        workers are in different operations. The transport cannot be used again after any of them: the
        workers' rounds differ.
        """

    def rest(self, transport: SlotTransport) -> float | None:
        """Send what a transport whose reduce is done repeats for others that may lack a result of it.

        Returns after how many seconds to call again; None: never. OSError when the carrier fails.
        """

    def close(self) -> None:
        """Detach. Closing twice is harmless."""


class NativeLink:
    """A carrier in C, and how to wait for it.

    Args:
        io: the C's.
        what: the words for it, in messages.
        hint: what is wrong, perhaps, where nothing comes back.
    """

    def __init__(self, io: int, what: str, hint: str) -> None:
        self._lib = bindings.library()
        self._io: int | None = io
        self._what, self._hint = what, hint
        self._driven = threading.Lock()

    def drive(self, transport: SlotTransport, timeout_s: float, abort: threading.Event) -> None:
        """See Link.drive."""
        if self._io is None:
            raise ValueError(f"{self._what} is closed")
        if not self._driven.acquire(blocking=False):
            raise RuntimeError(f"{self._what} is in use by another thread: submit to an OperationQueue")
        try:
            self._drive(transport, timeout_s, abort)
        except BaseException:
            self._lib.weir_io_leave(self._io)
            raise
        finally:
            transport.waiting_since = None
            self._driven.release()

    def rest(self, transport: SlotTransport) -> float | None:
        """See Link.rest."""
        if self._io is None or not self._driven.acquire(blocking=False):
            return None
        try:
            due: int = self._lib.weir_drive_rest(self._io, transport.handle)
        finally:
            self._driven.release()
        if due < 0:
            raise OSError(-due, f"{os.strerror(-due)} on {self._what}")
        return None if due == NEVER else due / 1e9

    def _drive(self, transport: SlotTransport, timeout_s: float, abort: threading.Event) -> None:
        rounds, since = -1, 0.0
        while not abort.is_set():
            result = self._lib.weir_drive(self._io, transport.handle, _SLICE_NS)
            if result == _DriveResult.DONE:
                return
            if result == _DriveResult.ERROR:
                raise self._failure(transport.config.wide)
            if result == _DriveResult.DISAGREE:
                job = transport.config.job
                raise DisagreementError(f"the workers of job {job} are in different operations")
            if transport.rounds != rounds:
                rounds = transport.rounds
                transport.waiting_since = since = time.monotonic()
            elif time.monotonic() - since >= timeout_s:
                raise TransportTimeout(self._explain(transport, timeout_s))
        raise Aborted("the reduce was aborted")

    def close(self) -> None:
        """Detach. Closing twice is harmless."""
        if self._io is not None:
            self._lib.weir_io_close(self._io)
            self._io = None

    def _failure(self, wide: bool) -> OSError:
        code = ctypes.get_errno()
        hint = ""
        if code == errno.EMSGSIZE:
            longest = _HEADERS + (bindings.MAX_PAYLOAD if wide else bindings.USUAL_PAYLOAD)
            hint = f": the path's MTU must hold {longest} bytes; smaller blocks do not help"
        return OSError(code, f"{os.strerror(code)} on {self._what}{hint}")

    def _explain(self, transport: SlotTransport, timeout_s: float) -> str:
        config, waiting, report = transport.config, transport.waiting(), transport.report()
        slots = ", ".join(f"{slot} (round {number})" for slot, number in waiting[:_SHOWN_SLOTS])
        more = f" and {len(waiting) - _SHOWN_SLOTS} more" if len(waiting) > _SHOWN_SLOTS else ""
        error = self._lib.weir_io_last_error(self._io)
        return (
            f"no round completed within the timeout of {timeout_s:g} s on {self._what}: "
            f"worker {config.worker} of {config.workers} in job {config.job} waits for results of slot "
            f"{slots}{more}; "
            f"{report.packets_up} packets sent ({report.retransmissions} of them repeats), "
            f"{_seen(report)}. {_suspicion(report, self._hint)}"
            + (f" Last socket error: {os.strerror(error)}." if error else "")
        )


def _seen(report: ReduceReport) -> str:
    refused = ", ".join(f"{n} {verdict.name}" for verdict, n in report.refused.items())
    return f"{report.rounds} results applied, {report.duplicates} duplicates" + (
        f", refused: {refused}" if refused else ""
    )


def _suspicion(report: ReduceReport, hint: str) -> str:
    """Return what to look at first, from what came in."""
    if Verdict.BAD_CHECK in report.refused:
        return "Results came that were not made with this job's key: somebody forges or repeats them."
    if report.refused.keys() - {Verdict.NOT_OURS, Verdict.WRONG_JOB}:
        return "Results came that do not fit: do all workers reduce the same vectors in the same order?"
    if report.rounds or report.duplicates:
        return "The switch answered before, so a worker is missing: look for one that died or hangs."
    return (
        f"Nothing came back at all: {hint}, the job is not admitted there (see the switch's counters in "
        "`weir status`), or another worker never began this reduce."
    )


class ShmLink(NativeLink):
    """A host port in a switch's directory of shared-memory ports, which other links of this process may use
    at the same time, in threads of their own, for other jobs.

    Raises OSError when the port cannot be opened, saying why.
    """

    def __init__(self, directory: Path | str, port: int, addresses: Addresses) -> None:
        self._port = MemoryPort(directory, port)
        io = bindings.library().weir_shm_open(self._port.handle, addresses.native())
        if not io:
            self._port.close()
            raise MemoryError(f"no memory for a link to port {port} in {directory}")
        super().__init__(
            io, f"shared-memory port {Path(directory) / f'port-{port}'}", "the switch does not run"
        )

    def close(self) -> None:
        """Detach. Closing twice is harmless."""
        if self._io is not None:
            super().close()
            self._port.close()


def datagram_socket(family: int) -> socket.socket:
    """Return a socket with large buffers whose packets are not cut into fragments on their way.

    Switches do not put fragments together: a packet that is too long for the path is an error.
    """
    made = socket.socket(family, socket.SOCK_DGRAM)
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        made.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER)
    made.setsockopt(*_MTU_DISCOVER[made.family], _PMTUDISC_DO)
    return made


def opened(io: int | None) -> int:
    """Return the carrier that C made of a socket. Raises OSError: it made none."""
    if not io:
        code = ctypes.get_errno()
        raise OSError(code, f"cannot use a UDP socket: {os.strerror(code)}")
    return io


def path_mtu(connected: socket.socket) -> int:
    """Return the longest packet of a connected socket's path, with IP's header, as far as known."""
    return connected.getsockopt(*_MTU[connected.family])


class UdpLink(NativeLink):
    """A kernel UDP socket bound to ``bind`` (address, port; port 0 takes a free one) and connected to
    the aggregation address, now or later with ``connect``.

    batches: let the kernel segment and coalesce GSO/GRO batches where it can; None: unless SOFTP4_BATCHES is
    off.
    """

    def __init__(
        self,
        bind: tuple[str, int],
        aggregator: tuple[str, int] | None = None,
        *,
        batches: bool | None = None,
    ) -> None:
        self._socket = datagram_socket(socket.AF_INET)
        try:
            self._bind(bind)
            if aggregator is not None:
                self.connect(aggregator)
            allowed = batches_wanted() if batches is None else batches
            io = opened(bindings.library().weir_udp_open(self._socket.fileno(), allowed))
        except BaseException:
            self._socket.close()
            raise
        super().__init__(
            io, f"UDP {bind[0]}:{self.port}", "the aggregation address cannot be reached from this host"
        )

    def _bind(self, bind: tuple[str, int]) -> None:
        try:
            self._socket.bind(bind)
        except OSError as error:
            raise OSError(
                error.errno, f"cannot bind UDP {bind[0]}:{bind[1]}: {os.strerror(error.errno or 0)}"
            ) from error

    @property
    def port(self) -> int:
        """Return the UDP port that results must be sent to."""
        port: int = self._socket.getsockname()[1]
        return port

    def connect(self, aggregator: tuple[str, int], payload: int = bindings.USUAL_PAYLOAD) -> None:
        """Send to this address and port, and receive from nowhere else. payload: bytes of the longest one.

        Raises OSError when there is no way there, or packets are too long for it, as far as is known.
        """
        try:
            self._socket.connect(aggregator)
        except OSError as error:
            why = os.strerror(error.errno or 0)
            raise OSError(
                error.errno,
                f"this host has no route to the switch's aggregation address {aggregator[0]}: {why}; give an "
                "interface of this host an address in the same subnet (ip address add ADDRESS/24 dev IFACE), "
                f"or a route there (ip route add {aggregator[0]}/32 dev IFACE)",
            ) from error
        mtu = path_mtu(self._socket)
        if mtu < _HEADERS + payload:
            raise OSError(
                errno.EMSGSIZE,
                f"the path to {aggregator[0]} has an MTU of {mtu}, but packets have up to "
                f"{_HEADERS + payload} bytes",
            )

    def close(self) -> None:
        """Close the socket. Closing twice is harmless."""
        super().close()
        self._socket.close()
