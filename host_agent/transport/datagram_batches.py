# SPDX-License-Identifier: Apache-2.0
"""Datagrams in batches, for protocols whose packets others make and read: over a UDP socket, and in whole
frames over a shared-memory port.
"""

import ipaddress
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from softp4.native.batches import batches_wanted
from weir.host_agent.transport import bindings
from weir.host_agent.transport.arrays import address_of
from weir.host_agent.transport.frames import Addresses
from weir.host_agent.transport.memory_port import MemoryPort

_ARRIVING_BYTES: Final = 1 << 24  # hardly any of it is ever touched, as in csrc/arrivals.h, like the next two
_MOST_ARRIVALS: Final = 2048
_ARRIVAL: Final = np.dtype([("source", np.uint64), ("at", np.uint32), ("length", np.uint32)])

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Batch:
    """Payloads of datagrams that came from one address.

    memory: they are in it until more are received. places: uint32, of each one where it begins, and its
    length. source: dotted address, and port.
    """

    memory: Bytes
    places: npt.NDArray[np.uint32]
    source: tuple[str, int]

    @property
    def count(self) -> int:
        """Number of datagrams."""
        return len(self.places)

    @property
    def nbytes(self) -> int:
        """Bytes of all payloads."""
        return int(self.places[:, 1].sum())

    def payload(self, index: int) -> bytes:
        """Return a copy of one payload."""
        at, length = self.places[index].tolist()
        return self.memory[at : at + length].tobytes()


def batch_of(payloads: Sequence[bytes], source: tuple[str, int]) -> Batch:
    """Return a batch of these payloads."""
    lengths = np.array([len(payload) for payload in payloads], np.uint32)
    starts = np.concatenate([np.zeros(1, np.uint32), lengths.cumsum(dtype=np.uint32)[:-1]])
    memory = np.frombuffer(bytearray(b"".join(payloads)), np.uint8)
    return Batch(memory, np.stack([starts, lengths], 1), source)


class _Arrivals:
    """Memory for what comes."""

    def __init__(self) -> None:
        self._memory = np.empty(_ARRIVING_BYTES, np.uint8)
        self._table = np.empty(_MOST_ARRIVALS, _ARRIVAL)
        self.addresses: Final = address_of(self._memory), address_of(self._table)

    def batches(self, count: int) -> Iterator[Batch]:
        """Yield what came, in order, a batch for each address that it came from."""
        if not count:
            return
        sources = self._table["source"][:count]
        places = np.stack([self._table["at"][:count], self._table["length"][:count]], 1)
        ends = [*(np.flatnonzero(sources[1:] != sources[:-1]) + 1).tolist(), count]
        for start, end in zip([0, *ends[:-1]], ends, strict=True):
            source = int(sources[start])
            address = str(ipaddress.IPv4Address(source >> 16)), source & 0xFFFF
            yield Batch(self._memory, places[start:end], address)


class DatagramSocket:
    """A bound UDP socket that sends and receives batches. It does not block; the caller closes it."""

    def __init__(self, own: socket.socket) -> None:
        own.setblocking(False)
        self._lib = bindings.library()
        self._handle: int | None = self._lib.weir_datagrams_open(own.fileno(), batches_wanted())
        if not self._handle:
            raise MemoryError("no memory for a socket's datagrams")
        self._arrivals = _Arrivals()
        self._own = own

    def fileno(self) -> int:
        """Return the socket's file, which is ready when something has come."""
        return self._own.fileno()

    def send(self, packets: Bytes, size: int, to: tuple[str, int]) -> int:
        """Send datagrams of ``size`` bytes, the last of which may be shorter; return the bytes of those that
        are gone. Those that the kernel cannot deliver count as gone.
        """
        peer = int(ipaddress.IPv4Address(to[0])) << 16 | to[1]
        sent = self._lib.weir_datagrams_send(self._handle, address_of(packets), packets.size, size, peer)
        return int(sent)

    def receive(self) -> list[Batch]:
        """Return received packets, not always all. The next call overwrites them."""
        count = self._lib.weir_datagrams_receive(self._handle, *self._arrivals.addresses)
        return list(self._arrivals.batches(count))

    def close(self) -> None:
        """Let go of the socket. Closing twice is harmless."""
        if self._handle is not None:
            self._lib.weir_datagrams_close(self._handle)
            self._handle = None


class Frames:
    """Datagrams in whole frames, through a native handle.

    Args:
        handle: of the way that they take. None: closed.
        functions: to send, to receive and to close it.
        listens: the addresses here to which datagrams may be sent, as the hosts of these.
    """

    def __init__(
        self, handle: int | None, functions: Sequence[Callable[..., int]], listens: Sequence[Addresses]
    ) -> None:
        self._handle = handle
        self._send, self._receive, self._close = functions
        self._listens = (bindings.Addresses * len(listens))(*(each.native() for each in listens))
        self._arrivals = _Arrivals()

    def send(self, packets: Bytes, size: int, addresses: bindings.Addresses, traffic_class: int) -> int:
        """Send datagrams of ``size`` bytes, the last of which may be shorter, until there is no more room;
        return the bytes of those that are gone.
        """
        return self._send(self._handle, addresses, traffic_class, address_of(packets), packets.size, size)

    def receive(self) -> list[Batch]:
        """Return received packets, not always all. The next call overwrites them."""
        count = self._receive(self._handle, self._listens, len(self._listens), *self._arrivals.addresses)
        return list(self._arrivals.batches(count))

    def close(self) -> None:
        """Detach. Closing twice is harmless."""
        if self._handle is not None:
            self._close(self._handle)
            self._handle = None


class FramePort(Frames):
    """A job's part in a host port of a switch's directory. For one thread at a time.

    Args:
        directory, number: of the port.
        job: whose datagrams come here; links of this process may use the port for other jobs.
        listens: the addresses here to which datagrams may be sent, as the hosts of these.

    Raises OSError when the port cannot be opened, saying why.
    """

    def __init__(self, directory: Path | str, number: int, job: int, listens: Sequence[Addresses]) -> None:
        self._port = MemoryPort(directory, number)
        self._lib = lib = bindings.library()
        handle: int | None = lib.weir_frames_open(self._port.handle, job)
        if not handle:
            self._port.close()
            raise MemoryError(f"no memory for frames of port {number} in {directory}")
        super().__init__(
            handle, (lib.weir_frames_send, lib.weir_frames_receive, lib.weir_frames_close), listens
        )

    def wait(self, timeout_s: float) -> None:
        """Sleep until a frame may be there, or for so long."""
        self._lib.weir_frames_wait(self._handle, round(timeout_s * 1e9))

    def close(self) -> None:
        """Detach. Closing twice is harmless."""
        if self._handle is not None:
            super().close()
            self._port.close()
