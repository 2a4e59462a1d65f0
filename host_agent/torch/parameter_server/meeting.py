# SPDX-License-Identifier: Apache-2.0
"""The meeting of workers and servers that talk by flows: who is where, through the store of the job.

A server says where it is each time that it starts. A worker calls it: it writes down where it is itself and
which two flows it opens, with random ids, and counts the call, so that the server sees that there is one.
"""

import fcntl
import json
import os
import socket
import struct
from dataclasses import asdict, dataclass
from typing import Final

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

_SIOCGIFADDR: Final = 0x8915  # of linux/sockios.h: an interface's IPv4 address


@dataclass(frozen=True)
class Place:
    """A server's place. start: in nanoseconds, when it was started; another one is another process."""

    ip: str
    port: int
    start: int


@dataclass(frozen=True)
class CallOfWorker:
    """A worker's call: where it is, and the ids of its flows to the server (up) and from it (down)."""

    worker: int
    incarnation: int
    ip: str
    port: int
    up: int
    down: int


class Meeting:
    """The part of a job's store that servers and workers with flows use. For one thread at a time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._heard: dict[int, int] = {}

    @property
    def own_ip(self) -> str:
        """Return the address by which others reach this host: that of the interface GLOO_SOCKET_IFNAME, if
        torch is told one, else the one from which it reaches the store.
        """
        if interface := os.environ.get("GLOO_SOCKET_IFNAME"):
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                request = struct.pack("256s", interface.encode()[:15])
                found = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            return socket.inet_ntoa(found[20:24])
        store = self._store
        while isinstance(store, PrefixStore):
            store = store.underlying_store
        if not isinstance(store, TCPStore):
            return "127.0.0.1"
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((store.host, store.port))
            return str(probe.getsockname()[0])

    def announce(self, server: int, place: Place) -> None:
        """Say where a server is."""
        self._store.set(f"flows/server-{server}", json.dumps(asdict(place)))

    def find(self, server: int) -> Place | None:
        """Return where a server is; None: it has not said so yet."""
        key = f"flows/server-{server}"
        if not self._store.check([key]):
            return None
        return Place(**json.loads(self._store.get(key)))

    def call(self, server: int, call: CallOfWorker) -> None:
        """Call a server."""
        number = self._store.add(f"flows/calls-{server}", 1)
        self._store.set(f"flows/call-{server}-{number}", json.dumps(asdict(call)))

    def calls(self, server: int) -> list[CallOfWorker]:
        """Return the calls since the last time, of a new process all."""
        last, found = self._store.add(f"flows/calls-{server}", 0), []
        heard = self._heard.setdefault(server, 0)
        while heard < last and self._store.check([f"flows/call-{server}-{heard + 1}"]):
            heard += 1
            found.append(CallOfWorker(**json.loads(self._store.get(f"flows/call-{server}-{heard}"))))
        self._heard[server] = heard
        return found

    def arrive(self, where: str) -> int:
        """Count this process among those that have come to a point, and return how many have."""
        return int(self._store.add(f"flows/point-{where}", 1))

    def arrived(self, where: str) -> int:
        """Return how many have come there."""
        return int(self._store.add(f"flows/point-{where}", 0))
