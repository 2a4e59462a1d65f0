# SPDX-License-Identifier: Apache-2.0
"""The rendezvous of workers and servers that talk by flows: who is where, through the store of the job.

A server says where it is each time that it starts. Who calls it writes down where it is itself and which two
flows it opens, with random ids, and rings a bell, so that the server looks. Looking writes nothing: servers
are killed at any moment, and a store in a file does not survive half a record.
"""

import contextlib
import fcntl
import json
import os
import socket
import struct
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Final, TypeVar

from torch._C._distributed_c10d import Store, TCPStore

from softp4.native.json_text import parse_record
from weir.host_agent.torch.rendezvous import RendezvousError
from weir.host_agent.torch.store_holder import innermost

POINTS: Final = ("joined", "pushed")
"""Where workers wait for one another: before the first step, and after the last."""

_SIOCGIFADDR: Final = 0x8915  # of linux/sockios.h: an interface's IPv4 address


class StoreGoneError(RuntimeError):
    """The job's store went with the worker that held it."""


class FlowRendezvousError(RendezvousError):
    """Somebody has written into the store what this version does not read. Says who."""


@dataclass(frozen=True)
class Place:
    """A server's place. start: in nanoseconds, when it was started; another one is another process."""

    ip: str
    port: int
    start: int


@dataclass(frozen=True)
class CallOfWorker:
    """A call: where the worker is, and the ids of its flows to the server (up) and from it (down).

    server_start: of the process that is called. Flows to another one at the same port are none of its own.
    """

    worker: int
    incarnation: int
    ip: str
    port: int
    up: int
    down: int
    server_start: int


T = TypeVar("T", Place, CallOfWorker)


def _word_of(server: int) -> str:
    return f"flows/word-{server}"


def _parsed(kind: type[T], said: bytes, who: str) -> T:
    """Return what somebody has written into the store. Raises FlowRendezvousError."""
    try:
        return parse_record(kind, said)
    except ValueError as error:
        raise FlowRendezvousError(
            f"{who} wrote a value to the store that cannot be decoded ({error}): do all processes run the "
            f"same version of Weir?"
        ) from None


class FlowRendezvous:
    """The part of a job's store that servers and workers with flows use. For one thread at a time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._start = 0
        self._bell: bytes | None = None
        self._heard: dict[int, CallOfWorker] = {}

    @property
    def own_ip(self) -> str:
        """Address by which others reach this host: that of the interface GLOO_SOCKET_IFNAME, if
        torch is told one, else the one from which it reaches the store.
        """
        if interface := os.environ.get("GLOO_SOCKET_IFNAME"):
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                request = struct.pack("256s", interface.encode()[:15])
                found = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            return socket.inet_ntoa(found[20:24])
        store = innermost(self._store)
        if not isinstance(store, TCPStore):
            return "127.0.0.1"
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((store.host, store.port))
            return str(probe.getsockname()[0])

    def announce(self, server: int, place: Place) -> None:
        """Say where a server is, which is this process."""
        self._start = place.start
        self.say(server, "")
        self._store.set(f"flows/server-{server}", json.dumps(asdict(place)))

    def say(self, server: int, words: str) -> None:
        """Say what a server waits for, or why it has ended; "": nothing any more."""
        with contextlib.suppress(RuntimeError):  # then there is nobody to read it
            if words:
                self._store.set(_word_of(server), words)
            else:
                self._store.delete_key(_word_of(server))

    def word(self, server: int) -> str:
        """Return what a server has said last, or "" when there is no such word."""
        with contextlib.suppress(StoreGoneError):
            return (self._said(_word_of(server)) or b"").decode(errors="replace")
        return ""

    def whereabouts(self, server: int) -> str:
        """Return words about a server that is waited for: where it is, and what it has said."""
        place, said = self.find(server), self.word(server)
        where = [f"at {place.ip}:{place.port}"] if place is not None else [] if said else ["it has not come"]
        return "; ".join([*where, *([f"it says: {said}"] if said else [])])

    def forget_words(self, servers: int) -> None:
        """Forget what servers of an earlier job have said; for worker 0, before it says the terms."""
        for server in range(servers):
            self._store.delete_key(_word_of(server))

    def find(self, server: int) -> Place | None:
        """Return where a server is; None: it has not said so yet, or the store is gone."""
        with contextlib.suppress(StoreGoneError):
            return self._find(server)
        return None

    def _find(self, server: int) -> Place | None:
        found = self._said(f"flows/server-{server}")
        return None if found is None else _parsed(Place, found, f"parameter server {server}")

    def call(self, server: int, call: CallOfWorker) -> None:
        """Call a server. Raises StoreGoneError."""
        try:
            self._store.set(f"flows/call-{server}-{call.worker}", json.dumps(asdict(call)))
            self._store.add(f"flows/bell-{server}", 1)
        except RuntimeError as error:
            raise StoreGoneError(str(error)) from None

    def calls(self, server: int, callers: Iterable[int]) -> list[CallOfWorker]:
        """Return the calls of this process since the last time; none when the store is gone.

        callers: who may call.
        """
        with contextlib.suppress(StoreGoneError):
            return self._calls(server, callers)
        return []

    def _calls(self, server: int, callers: Iterable[int]) -> list[CallOfWorker]:
        bell = self._said(f"flows/bell-{server}")
        if bell is None or bell == self._bell:
            return []
        self._bell, found = bell, []
        for caller in callers:
            said = self._said(f"flows/call-{server}-{caller}")
            call = None if said is None else _parsed(CallOfWorker, said, f"rank {caller}")
            if call is not None and call.server_start == self._start and call != self._heard.get(caller):
                self._heard[caller] = call
                found.append(call)
        return found

    def arrive(self, where: str, worker: int) -> None:
        """Say that a worker has come to a point."""
        self._store.set(f"flows/{where}-{worker}", "1")

    def leave(self, worker: int) -> None:
        """Say that a worker must not be waited for at any point, because it has left or is dead."""
        with contextlib.suppress(RuntimeError):  # then there is nobody to read it
            self._store.set(f"flows/left-{worker}", "1")

    def rejoin(self, worker: int) -> None:
        """Take back what an earlier process of a worker has said."""
        for where in (*POINTS, "left"):
            self._store.delete_key(f"flows/{where}-{worker}")

    def missing(self, where: str, workers: int) -> list[int]:
        """Return the workers that have neither come to a point nor left. Raises StoreGoneError."""
        return [
            worker
            for worker in range(workers)
            if self._said(f"flows/{where}-{worker}") is None and self._said(f"flows/left-{worker}") is None
        ]

    def _said(self, key: str) -> bytes | None:
        """Return what somebody has said, or None. Raises StoreGoneError."""
        try:
            found: bytes | None = self._store.get(key) if self._store.check([key]) else None
        except RuntimeError as error:
            raise StoreGoneError(str(error)) from None
        return found
