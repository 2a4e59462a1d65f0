# SPDX-License-Identifier: Apache-2.0
"""Peers of published weights: ways to bring a trainer's message to all engines over TCP.

Rank 0 is the trainer, the next ones are the engines; the last rank of all is a host that may keep a store.
"""

import socket
import threading
from collections.abc import Sequence
from typing import Final, Protocol

import torch
import torch.distributed as dist

from weir.bench.rank import Place
from weir.host_agent.collectives.tensor_memory import byte_view

_HEAD: Final = 8
_CHUNK: Final = 1 << 18


class Peer(Protocol):
    """A way from the trainer to all engines, made on each of the hosts that take part."""

    def give(self, message: bytes) -> None:
        """On the trainer: send a message to all engines; return when it may change."""

    def take(self) -> memoryview:
        """On an engine: return the next message."""

    def close(self) -> None:
        """Let go of all connections."""


class Broadcast:
    """Gloo's broadcast, with the length before."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group

    def give(self, message: bytes) -> None:
        """See Peer."""
        dist.broadcast(torch.tensor(len(message)), 0, group=self._group)
        dist.broadcast(torch.frombuffer(bytearray(message), dtype=torch.uint8), 0, group=self._group)

    def take(self) -> memoryview:
        """See Peer."""
        dist.broadcast(length := torch.tensor(0), 0, group=self._group)
        body = torch.empty(int(length), dtype=torch.uint8)
        dist.broadcast(body, 0, group=self._group)
        return byte_view(body).data

    def close(self) -> None:
        """See Peer."""


class Chain:
    """TCP from each host to the next. Every engine forwards a message while it receives it."""

    def __init__(self, place: Place, hosts: int, addresses: Sequence[str]) -> None:
        links = _connect(place, addresses, [(rank, rank + 1) for rank in range(hosts - 1)])
        self._before, self._after = links.get(place.rank - 1), links.get(place.rank + 1)

    def give(self, message: bytes) -> None:
        """See Peer."""
        assert self._after is not None
        self._after.sendall(len(message).to_bytes(_HEAD, "big") + message)

    def take(self) -> memoryview:
        """See Peer."""
        assert self._before is not None
        return _receive(self._before, self._after)

    def close(self) -> None:
        """See Peer."""
        for each in (self._before, self._after):
            if each is not None:
                each.close()


class Store:
    """An upload to one host, from which every engine downloads when it is complete, all at once."""

    def __init__(self, place: Place, hosts: int, addresses: Sequence[str]) -> None:
        keeper = place.size - 1
        self._links = _connect(place, addresses, [(rank, keeper) for rank in range(hosts)])
        self._keeper = keeper

    def give(self, message: bytes) -> None:
        """See Peer."""
        self._links[self._keeper].sendall(len(message).to_bytes(_HEAD, "big") + message)

    def take(self) -> memoryview:
        """See Peer."""
        return _receive(self._links[self._keeper], None)

    def keep(self) -> None:
        """On the host with the store: take one upload, and serve it to all engines."""
        message = _receive(self._links[0], None)
        whole = len(message).to_bytes(_HEAD, "big") + bytes(message)
        senders = [
            threading.Thread(target=link.sendall, args=(whole,)) for rank, link in self._links.items() if rank
        ]
        for each in senders:
            each.start()
        for each in senders:
            each.join()

    def close(self) -> None:
        """See Peer."""
        for each in self._links.values():
            each.close()


def _receive(link: socket.socket, onward: socket.socket | None) -> memoryview:
    """Return a message that comes, and pass it on."""
    head = bytearray(_HEAD)
    _fill(link, memoryview(head), None)
    if onward is not None:
        onward.sendall(head)
    body = memoryview(bytearray(int.from_bytes(head, "big")))
    _fill(link, body, onward)
    return body


def _fill(link: socket.socket, memory: memoryview, onward: socket.socket | None) -> None:
    done = 0
    while done < len(memory):
        count = link.recv_into(memory[done : done + _CHUNK])
        if not count:
            raise ConnectionError("a peer has gone")
        if onward is not None:
            onward.sendall(memory[done : done + count])
        done += count


def _connect(
    place: Place, addresses: Sequence[str], pairs: Sequence[tuple[int, int]]
) -> dict[int, socket.socket]:
    """Return this host's connections, by the rank at their other end. All hosts call this at once.

    pairs: of ranks, of which the first connects to the second.
    """
    listener = socket.create_server((addresses[place.rank], 0), backlog=place.size)
    ports: list[int] = [0] * place.size
    dist.all_gather_object(ports, listener.getsockname()[1])
    found = {}
    for here, there in pairs:
        if here == place.rank:
            link = socket.create_connection((addresses[there], ports[there]))
            link.sendall(here.to_bytes(_HEAD, "big"))
            found[there] = link
    with listener:
        for _ in [here for here, there in pairs if there == place.rank]:
            link, _ = listener.accept()
            number = bytearray(_HEAD)
            _fill(link, memoryview(number), None)
            found[int.from_bytes(number, "big")] = link
    for link in found.values():
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return found
