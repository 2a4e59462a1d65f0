# SPDX-License-Identifier: Apache-2.0
"""A dense parameter server over TCP: the peer that the training benchmarks call PS.

One process receives every worker's gradient, averages, and sends the average back to each. Buckets travel in
pieces, each answered as soon as all workers' are there, as BytePS does: pushes, sums and pulls of one bucket
overlap. Run it as ``python -m
weir.bench.training.tcp_server ADDRESS PORT WORKERS``; it ends when all workers have hung up.

On the wire: a worker says its rank, then of each piece how many bytes it has and its float32 values; the
answers look the same. All workers send the same pieces in the same order, as DDP's buckets come.
"""

import queue
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

import torch

_NUMBER: Final = struct.Struct("<Q")
_CONNECT_S: Final = 60.0

PIECE_BYTES: Final = 1 << 17
"""Of a piece: smaller ones cost the server more time, of larger ones fewer overlap."""

Sink = Callable[[torch.Tensor], None]
_Awaited = tuple[torch.futures.Future[object], int]


class _Rounds:
    """Contributions by piece; the last one to a piece makes its average and gives it to all ``sinks``."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = sinks
        self._lock = threading.Lock()
        self._open: dict[int, dict[int, torch.Tensor]] = {}

    def contribute(self, piece: int, rank: int, values: torch.Tensor) -> None:
        """Take a worker's part. The sum is made in the order of ranks: equal runs have equal bits."""
        with self._lock:
            parts = self._open.setdefault(piece, {})
            parts[rank] = values
            if len(parts) < len(self._sinks):
                return
            del self._open[piece]
        total = torch.zeros_like(values)
        for _, part in sorted(parts.items()):
            total += part
        total /= len(parts)
        for sink in self._sinks:
            sink(total)


def serve(listener: socket.socket, workers: int) -> None:
    """Serve ``workers`` connections to their end. Raises ConnectionError when one breaks within a piece."""
    connections: dict[int, socket.socket] = {}
    for _ in range(workers):
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        (rank,) = _NUMBER.unpack(_exactly(connection, _NUMBER.size))
        connections[rank] = connection
    if sorted(connections) != list(range(workers)):
        raise ConnectionError(f"{workers} workers called, as ranks {sorted(connections)}")
    senders = [_Sender(connections[rank]) for rank in range(workers)]
    rounds = _Rounds([sender.send for sender in senders])

    def read(rank: int) -> None:
        try:
            piece = 0
            while (values := _receive(connections[rank])) is not None:
                rounds.contribute(piece, rank, values)
                piece += 1
        finally:
            senders[rank].close()

    readers = [threading.Thread(target=read, args=(rank,), name=f"reader-{rank}") for rank in range(workers)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()


class Client:
    """A worker's connection: average(values) is a future of the average over all workers.

    Values are flat float32 on the CPU; answers come in the order of the questions.
    """

    def __init__(self, address: str, port: int, rank: int) -> None:
        """Connect; ConnectionError when nobody listens there within a minute."""
        self._socket = _connect(address, port)
        self._socket.sendall(_NUMBER.pack(rank))
        self._sender = _Sender(self._socket)
        self._waiting: queue.SimpleQueue[_Awaited | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, name="parameter-server")
        self._reader.start()

    def average(self, values: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        """Send the values; anyone who waits for the future gets a ConnectionError when the server is gone."""
        gate: torch.futures.Future[object] = torch.futures.Future()
        self._waiting.put((gate, len(values)))
        for piece in torch.split(values, PIECE_BYTES // values.element_size()):
            self._sender.send(piece)
        return gate.then(_opened)

    def close(self) -> None:
        """Hang up, after the last answer."""
        self._waiting.put(None)
        self._reader.join()
        self._sender.close()
        self._socket.close()

    def _read(self) -> None:
        while (awaited := self._waiting.get()) is not None:
            gate, length = awaited
            try:
                found: object = self._averages(length)
            except OSError as error:
                found = error
            gate.set_result(found)

    def _averages(self, length: int) -> torch.Tensor | None:
        """Return the next this many averages, or None when the server has hung up before them."""
        found, pieces = 0, []
        while found < length:
            if (piece := _receive(self._socket)) is None:
                return None
            pieces.append(piece)
            found += len(piece)
        return torch.cat(pieces) if pieces else torch.empty(0)


def _opened(gate: torch.futures.Future[object]) -> torch.Tensor:
    """Return what a future stands for. An exception travels as a value: DDP survives no other way."""
    found = gate.value()
    if not isinstance(found, torch.Tensor):
        raise ConnectionError(f"the parameter server is gone: {found or 'it hung up'}")
    return found


class _Sender:
    """Sends tensors one after another; nobody waits for it but ``close``."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._queue: queue.SimpleQueue[torch.Tensor | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="sender")
        self._thread.start()

    def send(self, values: torch.Tensor) -> None:
        """Queue values, which must not change any more."""
        self._queue.put(values)

    def close(self) -> None:
        """Send what is queued, then says that nothing more will come."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            while (values := self._queue.get()) is not None:
                data = values.detach().numpy().data.cast("B")
                head = _NUMBER.pack(len(data))
                sent = self._connection.sendmsg([head, data])
                while sent < len(head):
                    sent += self._connection.send(head[sent:])
                self._connection.sendall(data[sent - len(head) :])
            self._connection.shutdown(socket.SHUT_WR)
        except OSError:  # the other side is gone: anyone who reads hears of it
            return


def _receive(connection: socket.socket) -> torch.Tensor | None:
    """Return the next tensor, or None when the other side has hung up between two."""
    head = connection.recv(_NUMBER.size)
    if not head:
        return None
    head += _exactly(connection, _NUMBER.size - len(head))
    values = torch.empty(_NUMBER.unpack(head)[0] // 4)
    _fill(connection, values.numpy().data.cast("B"))
    return values


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray(size)
    _fill(connection, memoryview(data))
    return bytes(data)


def _fill(connection: socket.socket, place: memoryview) -> None:
    while place:
        if not (got := connection.recv_into(place)):
            raise ConnectionError("the connection ended in the middle of a piece")
        place = place[got:]


def _connect(address: str, port: int) -> socket.socket:
    deadline = time.monotonic() + _CONNECT_S
    while True:
        try:
            connection = socket.create_connection((address, port), timeout=_CONNECT_S)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
            continue
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection


def main() -> None:
    """Serve or time what the command line says."""
    address, port, workers = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    with socket.create_server((address, port)) as listener:
        serve(listener, workers)


if __name__ == "__main__":
    main()
