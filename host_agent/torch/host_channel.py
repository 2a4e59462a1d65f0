# SPDX-License-Identifier: Apache-2.0
"""The star in which the ranks of one host are joined: a Unix socket from each to their leader.

By it the leader hands out the shared memory, so every process that has it is on the same machine; by it a
rank that dies is noticed at once, and news of the group reach those that have no connection to the
controller. The socket's name is in the network namespace, not in a file system, and is made of the group's
secret.
"""

import contextlib
import hashlib
import json
import os
import selectors
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Protocol

from softp4.native.json_text import parse_object, parse_record
from softp4.native.ownership import peer, user_name
from weir.host_agent.torch.connection import Facts
from weir.host_agent.torch.rendezvous import RendezvousError
from weir.host_agent.transport.host_memory import HostMemory

_POLL_S: Final = 0.01
_BEAT_S: Final = 0.5
_SILENT_S: Final = 10.0  # a process that does not run for so long is lost, as to the controller


@dataclass(frozen=True)
class _News:
    """A message between ranks. what: ranks have ``left``, or the group is ``lost``."""

    what: str
    ranks: list[int]
    reason: str

    @classmethod
    def decode(cls, line: bytes) -> "_News":
        """Return the message of a line. Raises ValueError when it is none."""
        news = parse_record(cls, line)
        if news.what not in ("left", "lost") or not all(type(rank) is int for rank in news.ranks):
            raise ValueError(f"{line[:80]!r} is no message of this version")
        return news


class Listener(Protocol):
    """Hears of the group's end, from the channel's thread."""

    def lost(self, reason: str) -> None:
        """Be told that the group is broken, and why."""

    def left(self, ranks: Sequence[int], reason: str) -> None:
        """Be told that ranks left cleanly."""


class HostChannel:
    """One rank's end. ``begin`` starts to listen; ``tell`` and ``close`` may come from any thread.

    Args:
        ranks: of this host, the leader first.
        rank: this one.
        sockets: to every other rank, or from another to the leader, by rank.
        memory: what they share.
        facts: what the leader said to all.
    """

    def __init__(
        self,
        ranks: Sequence[int],
        rank: int,
        sockets: dict[int, socket.socket],
        memory: HostMemory,
        facts: Facts,
    ) -> None:
        self.memory, self.facts = memory, facts
        self._ranks, self._rank, self._sockets = ranks, rank, sockets
        self._gone: set[int] = set()
        self._ended = threading.Event()
        self._sending = threading.Lock()
        self._thread: threading.Thread | None = None

    def listen(self, listener: Listener) -> None:
        """Start to listen, in a thread."""
        self._thread = threading.Thread(target=self._serve, args=(listener,), name="weir-host", daemon=True)
        self._thread.start()

    def tell(self, what: str, ranks: Sequence[int], reason: str) -> None:
        """Say that ranks are ``left`` or the group ``lost``; the leader passes it on to all."""
        self._send(_News(what, list(ranks), reason))

    def close(self) -> None:
        """Say that this rank leaves, and detach."""
        reason = f"rank {self._rank} left"
        self.tell("left", [self._rank], reason)
        self._ended.set()
        if self._thread is not None and threading.current_thread() is not self._thread:
            self._thread.join()
        for sock in self._sockets.values():
            sock.close()
        self.memory.close()

    def _send(self, news: "_News", besides: int = -1) -> None:
        data = json.dumps(asdict(news)).encode() + b"\n"
        with self._sending:
            for rank, sock in self._sockets.items():
                if rank != besides and rank not in self._gone:
                    with contextlib.suppress(OSError):
                        sock.sendall(data)

    def _serve(self, listener: Listener) -> None:
        with selectors.DefaultSelector() as selector:
            for rank, sock in self._sockets.items():
                selector.register(sock, selectors.EVENT_READ, (rank, bytearray()))
            pulse = _Pulse(self.memory, self._ranks)
            while not self._ended.is_set():
                for key, _ in selector.select(_BEAT_S):
                    rank, received = key.data
                    if not self._hear(rank, key.fileobj, received, listener):
                        selector.unregister(key.fileobj)
                for rank in pulse.silent():
                    if rank not in self._gone:
                        self._lose(rank, f"it did not run for {_SILENT_S:g} s", listener)

    def _hear(self, rank: int, sock: Any, received: bytearray, listener: Listener) -> bool:
        """Take in what came from a rank; return whether more may come."""
        try:
            data = sock.recv(1 << 16)
        except OSError:
            data = b""
        received += data
        *lines, rest = bytes(received).split(b"\n")
        received[:] = rest
        for line in lines:
            try:
                news = _News.decode(line)
            except ValueError as error:
                if rank not in self._gone:
                    self._lose(rank, f"it sent a message that this rank cannot decode ({error})", listener)
                return False
            self._take(rank, news, listener)
        if not data and rank not in self._gone:
            self._lose(rank, "its process ended", listener)
        return bool(data)

    def _take(self, sender: int, news: "_News", listener: Listener) -> None:
        if news.what == "left":
            self._gone.update({sender} & set(news.ranks))
            listener.left(news.ranks, news.reason)
        else:
            self._gone.add(sender)
            listener.lost(news.reason)
        self._send(news, besides=sender)

    def _lose(self, rank: int, why: str, listener: Listener) -> None:
        self._gone.add(rank)
        reason = f"rank {rank}, on the host of rank {self._rank}, went away without leaving: {why}"
        listener.lost(reason)
        self._send(_News("lost", [rank], reason), besides=rank)


class _Pulse:
    """Notices ranks of a host whose processes do not run: stopped ones, for example."""

    def __init__(self, memory: HostMemory, ranks: Sequence[int]) -> None:
        self._memory, self._ranks = memory, ranks
        now = time.monotonic()
        self._heard = [(memory.beats(place), now) for place in range(memory.size)]
        self._looked = now

    def silent(self) -> list[int]:
        """Return the ranks that have not run for long; to be called every half second."""
        self._memory.beat()
        now = time.monotonic()
        pause = max(now - self._looked - 2 * _BEAT_S, 0.0)  # this process did not run either
        self._looked = now
        found = []
        for place, (before, since) in enumerate(self._heard):
            beats = self._memory.beats(place)
            self._heard[place] = (beats, now) if beats != before else (beats, since + pause)
            if now - self._heard[place][1] >= _SILENT_S:
                found.append(self._ranks[place])
        return found


@contextlib.contextmanager
def gathered(name: str, ranks: Sequence[int], timeout_s: float) -> Iterator[dict[int, socket.socket]]:
    """Yield sockets to the other ranks of this host; for the leader. They are closed if the block raises.

    Args:
        name: a secret of the group.
        ranks: of this host.
        timeout_s: how long to wait for them.

    Raises:
        RendezvousError: some did not come.
    """
    found: dict[int, socket.socket] = {}
    limit = time.monotonic() + timeout_s
    with contextlib.ExitStack() as undo:
        listener = undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        listener.bind(_address(name, ranks[0]))
        listener.listen(len(ranks))
        while missing := set(ranks[1:]) - found.keys():
            listener.settimeout(max(limit - time.monotonic(), 0.001))
            try:
                sock = listener.accept()[0]
            except TimeoutError:
                names = ", ".join(f"rank {rank}" for rank in sorted(missing))
                raise RendezvousError(
                    f"{names} of this host did not come within {timeout_s:g} s "
                    f"to share memory with rank {ranks[0]}"
                ) from None
            undo.callback(sock.close)
            if (rank := _introduced(sock, missing, limit)) is not None:
                found[rank] = sock
        try:
            yield found
        except BaseException as error:
            data = json.dumps({"failed": str(error)}).encode() + b"\n"
            for sock in found.values():
                with contextlib.suppress(OSError):
                    sock.sendall(data)
            raise
        listener.close()
        undo.pop_all()


def welcome(sockets: dict[int, socket.socket], ranks: Sequence[int], facts: Facts) -> HostChannel:
    """Make the shared memory, hand it to the other ranks with ``facts``, and return the leader's end."""
    fd = HostMemory.create(len(ranks))
    data = json.dumps(asdict(facts)).encode() + b"\n"
    for sock in sockets.values():
        sock.settimeout(None)
        socket.send_fds(sock, [data], [fd])
    return HostChannel(ranks, ranks[0], sockets, HostMemory(fd, 0, len(ranks)), facts)


def attend(name: str, ranks: Sequence[int], rank: int, timeout_s: float) -> HostChannel:
    """Find the leader and return this rank's end, when the leader has joined the job.

    Raises:
        RendezvousError: it could not, and why; or it did not say in time.
    """
    limit = time.monotonic() + timeout_s
    with contextlib.ExitStack() as undo:
        sock = undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        _connect(sock, _address(name, ranks[0]), limit, ranks[0])
        sock.sendall(json.dumps({"rank": rank}).encode() + b"\n")
        sock.settimeout(max(limit - time.monotonic(), 0.001))
        try:
            data, fds, _, _ = socket.recv_fds(sock, 1 << 16, 1)
        except TimeoutError:
            data, fds = b"", []
        if not data:
            raise RendezvousError(
                f"rank {ranks[0]}, which sends for this host's ranks, did not join the job "
                f"within {timeout_s:g} s"
            )
        leader = f"rank {ranks[0]}, which sends for this host's ranks,"
        try:
            if "failed" in (said := parse_object(data)):
                raise RendezvousError(f"{leader} could not join the job: {said['failed']}")
            facts = parse_record(Facts, data)
        except ValueError as error:
            raise RendezvousError(f"{leader} has another version of Weir: {error}") from None
        if not fds:
            raise RendezvousError(f"{leader} sent no memory to share")
        memory = HostMemory(fds[0], list(ranks).index(rank), len(ranks))
        sock.settimeout(None)
        undo.pop_all()
    return HostChannel(ranks, rank, {ranks[0]: sock}, memory, facts)


def _connect(sock: socket.socket, address: bytes, limit: float, leader: int) -> None:
    while True:
        try:
            sock.connect(address)
        except ConnectionRefusedError:
            if time.monotonic() >= limit:
                raise RendezvousError(
                    f"rank {leader}, which sends for this host's ranks, cannot be reached: does it run?"
                ) from None
            time.sleep(_POLL_S)
        else:
            break
    if (user := peer(sock)) != os.getuid():
        raise RendezvousError(f"the socket of rank {leader} belongs to {user_name(user)}")


def _introduced(sock: socket.socket, missing: set[int], limit: float) -> int | None:
    """Return which of the missing ranks is at the other end; None when it is somebody else.

    limit: when to give up waiting for words, by ``time.monotonic``. Other users are not waited for.
    """
    try:
        if peer(sock) != os.getuid():
            return None
        sock.settimeout(max(min(_SILENT_S, limit - time.monotonic()), 0.001))
        rank = parse_object(sock.recv(1 << 10))["rank"]
    except (OSError, ValueError, KeyError):
        return None
    return rank if isinstance(rank, int) and rank in missing else None


def _address(name: str, leader: int) -> bytes:
    return b"\0weir-" + hashlib.sha256(f"{name} {leader}".encode()).hexdigest().encode()
