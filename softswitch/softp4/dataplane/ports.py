# SPDX-License-Identifier: Apache-2.0
"""The switch's ports and the native loop that runs frames through them.

Python opens, watches and closes ports; frames never pass through it, except on queue ports (the CPU port,
and files that are played back)."""

import ctypes
import errno
import os
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from enum import IntFlag
from pathlib import Path
from types import MappingProxyType
from typing import Final, Protocol

from softp4.dataplane.interfaces import interfaces, shared
from softp4.dataplane.loop_bindings import PortStatistics, Statistics, library
from softp4.native.batches import batches_wanted
from softp4.native.claims import port_key, read_secret
from softp4.native.ring import MAX_FRAME
from softp4.native.shared_memory import PORT_BYTES, no_room
from softp4.runtime.queueing import (
    Limits,
    QueueCounts,
    Queueing,
    QueueStatistics,
    queue_statistics,
)

MAX_PORT: Final = 510
"""The highest port number: v1model's have nine bits, and 511 means drop."""


class HasHandle(Protocol):
    """Holder of a C `sw_switch` that a loop can run frames through, such as a `Switch`."""

    @property
    def handle(self) -> int:
        """Return address of the C ``sw_switch``."""


class Directions(IntFlag):
    """Directions that a capture takes, as seen from the switch."""

    IN = 1
    OUT = 2
    BOTH = 3


@dataclass(frozen=True)
class PortState:
    """State of a port: what it is attached to, whether it is up, and its limits."""

    attached: str
    up: bool = True
    queueing: Queueing | None = None


@dataclass(frozen=True)
class Capture:
    """A capture that is being written: of which ports (None: of all), of what, and what ended it, if so."""

    path: Path
    ports: tuple[int, ...] | None
    directions: Directions
    error: str | None


class PortError(Exception):
    """A port could not be opened or used. The message says which and what to do."""


class PortLoop:
    """A set of ports, and one thread that runs every frame of theirs through a switch.

    Ports are numbered 0 to MAX_PORT. They, and the switch, can be changed while the loop runs. Frames that
    arrive while there is no switch are counted and dropped.

    Example::

        loop = PortLoop()
        loop.add_interface(1, "veth1")
        loop.add_shm(2, Path("/dev/shm/lab"))
        loop.set_switch(switch)
        loop.start()
        ...
        loop.close()
    """

    def __init__(self) -> None:
        self._library = library()
        self._loop: int | None = self._library.loop_new()
        if not self._loop:
            raise OSError(ctypes.get_errno(), "the switch's loop could not be made")
        self._changing = threading.RLock()  # of what follows: one change at a time
        self._ports: dict[int, PortState] = {}
        self._interfaces: dict[int, int] = {}  # of ports that are interfaces, their numbers in the kernel
        self._captures: dict[Path, tuple[tuple[int, ...] | None, Directions]] = {}
        self._thread: threading.Thread | None = None

    # -- life --------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start serving, in a thread of its own."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._library.loop_run, args=(self._handle,), name="switch"
            )
            self._thread.start()

    def close(self) -> None:
        """Stop serving and close every port; shared-memory files are removed. Twice is harmless."""
        if self._loop is None:
            return
        self._library.loop_stop(self._loop)
        if self._thread is not None:
            self._thread.join()
        self._library.loop_free(self._loop)
        self._loop = None

    def __enter__(self) -> "PortLoop":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def set_switch(self, switch: HasHandle | None) -> None:
        """Run frames through ``switch`` from now on. When this returns, no frame is in the old one.

        Ports keep their limits; what waits in the old switch's queues leaves at once. Raises PortError when a
        port is limited and the new switch has no queues.
        """
        result = self._library.loop_set_switch(self._handle, switch.handle if switch is not None else None)
        if result < 0:
            raise PortError(f"the switch's ports cannot be limited: {os.strerror(-result)}")

    @property
    def _handle(self) -> int:
        if self._loop is None:
            raise PortError("the switch's ports are closed")
        return self._loop

    # -- ports -------------------------------------------------------------------------------------

    def add_shm(self, number: int, directory: Path) -> None:
        """Make shared-memory port ``number`` in ``directory``, for a host on this machine to attach to.

        One loop serves one directory. Raises PortError.
        """
        full = {}
        if directory.is_dir():
            full[errno.ENOSPC] = no_room(directory, "it", PORT_BYTES)
        self._add("loop_add_shm", number, f"shm in {directory}", os.fsencode(directory), reasons=full)

    def add_interface(self, number: int, interface: str) -> None:
        """Attach port ``number`` to a network interface (AF_PACKET). Needs CAP_NET_RAW. Raises PortError.

        GSO batches of UDP datagrams that come in are segmented; like frames leave as batches, unless
        SOFTP4_BATCHES is off.
        """
        what = f"interface {interface!r}"
        with self._changing:
            index = self._of_its_own(number, what, interface)
            self._add("loop_add_interface", number, what, interface.encode(), int(batches_wanted()))
            self._interfaces[number] = index

    def _of_its_own(self, number: int, what: str, interface: str) -> int:
        """Return the number of an interface that becomes a port. Raises PortError.

        That is when another port has it, or one that leads to the same network.
        """
        try:
            index, known = socket.if_nametoindex(interface), interfaces()
        except OSError:
            return 0  # opening it says why
        for port, taken in self._interfaces.items():
            common = shared(index, taken, known)
            if port != number and common is not None:
                raise PortError(
                    f"port {number}, {what}: port {port} is {self._ports[port].attached}, and {common}. "
                    f"Frames would arrive twice, and flooded frames would return to their sender. Give "
                    f"each port its own network card, or a tunnel (VXLAN, for example)"
                )
        return index

    def add_udp(self, number: int, local: tuple[str, int], peer: tuple[str, int]) -> None:
        """Make port ``number`` this end of a UDP tunnel: each frame is one datagram.

        Only what comes from ``peer`` is received. An empty local host is every address of this machine.
        Frames of one length leave as batches, unless SOFTP4_BATCHES is off. Raises PortError.
        """
        what = f"udp {_address(local)} to {_address(peer)}"
        try:
            family, there = _resolve(*peer)
            _, here = _resolve(*local, family)
        except OSError as error:
            raise PortError(f"port {number}, {what}: {error.strerror or error}") from error
        numbers = (part.encode() for end in (here, there) for part in end)
        self._add("loop_add_udp", number, what, *numbers, int(batches_wanted()))

    def add_claimed(self, number: int, local: tuple[str, int], secret: Path) -> None:
        """Make port ``number`` the end of a UDP tunnel to anyone who proves that it has the port's key.

        Its other end may be anywhere that IP reaches, also behind a translation of addresses, and may move
        (``softp4.native.claims``). An empty local host is every address of this machine, IPv6 and IPv4.

        Args:
            secret: the file of the switch's secret, of which the port's key is made.

        Raises:
            PortError: the address cannot be had, or the file not read.
        """
        what = f"claimed by key at udp {_address(local)}"
        try:
            key = port_key(read_secret(secret), number)
            _, here = _resolve(*local, 0 if local[0] or not socket.has_dualstack_ipv6() else socket.AF_INET6)
        except (OSError, ValueError) as error:
            raise PortError(f"port {number}, {what}: {error}") from error
        numbers = (part.encode() for part in here)
        self._add("loop_add_claimed", number, what, *numbers, key, int(batches_wanted()))

    def add_queue(self, number: int, name: str, output: Path | None = None, *, pcapng: bool = True) -> None:
        """Make port ``number`` one whose frames ``inject`` puts in and ``receive`` takes out.

        With ``output``, frames sent to it go to that file instead, pcapng or pcap. Raises PortError.
        """
        path = None if output is None else os.fsencode(output)
        what = name if output is None else f"output file {output}"
        self._add("loop_add_queue", number, what, name.encode(), path, int(pcapng))

    def _add(
        self,
        function: str,
        number: int,
        what: str,
        *arguments: bytes | int | None,
        reasons: Mapping[int, str] = MappingProxyType({}),
    ) -> int:
        if not 0 <= number <= MAX_PORT:
            raise PortError(f"port {number}: port numbers are 0 to {MAX_PORT}")
        with self._changing:
            result: int = getattr(self._library, function)(self._handle, number, *arguments)
            if result < 0:
                reason = reasons.get(-result) or _reason(-result, number, self._ports)
                raise PortError(f"port {number}, {what}: {reason}")
            self._ports[number] = PortState(what)
        return result

    def remove(self, number: int) -> None:
        """Close a port. Raises PortError when it does not exist."""
        with self._changing:
            self._check(self._library.loop_remove(self._handle, number), number)
            del self._ports[number]
            self._interfaces.pop(number, None)

    def set_up(self, number: int, up: bool) -> None:
        """Bring a port up or down; one that is down drops and counts what comes and goes."""
        with self._changing:
            self._check(self._library.loop_set_up(self._handle, number, int(up)), number)
            self._ports[number] = replace(self._ports[number], up=up)

    def set_queueing(self, number: int, queueing: Queueing | None, *, both_ways: bool = True) -> None:
        """Limit a port from now on, under this switch and any that follows; None lifts all limits.

        ``queueing`` holds for what the program sends: the switch's traffic manager queues it. With
        ``both_ways`` its rates hold for what comes in, too: frames wait outside, as in a network card. What
        waits stays. Raises PortError.
        """
        limits = None if queueing is None else ctypes.byref(Limits.of(queueing))
        with self._changing:
            result = self._library.loop_set_queueing(self._handle, number, limits, int(both_ways))
            self._check(result, number)
            self._ports[number] = replace(self._ports[number], queueing=queueing)

    def set_rate(self, number: int, rate_bps: int) -> None:
        """Make a port as fast as a line of ``rate_bps`` bit/s, both ways, with BMv2's queue depths."""
        self.set_queueing(number, Queueing(rate_bps=rate_bps))

    def queue_statistics(self, number: int) -> tuple[QueueStatistics, ...]:
        """Return what each of a port's eight queues has seen under the switch that runs now, by priority."""
        counts = QueueCounts()
        self._check(self._library.loop_get_queue_stats(self._handle, number, counts), number)
        return queue_statistics(counts)

    def waiting(self) -> int:
        """Return how many frames wait in the queues of all ports."""
        with self._changing:
            counts = [self.queue_statistics(port) for port in self._ports]
        return sum(queue.depth_packets for queues in counts for queue in queues)

    def ports(self) -> dict[int, str]:
        """Return what each port is attached to, by number."""
        return {number: state.attached for number, state in self.states().items()}

    def states(self) -> dict[int, PortState]:
        """Return what each port is attached to, whether it is up, and its limits, by number."""
        with self._changing:
            return dict(sorted(self._ports.items()))

    def statistics(self, number: int) -> PortStatistics:
        """Return what a port has seen. Raises PortError when it does not exist."""
        raw = Statistics()
        self._check(self._library.loop_get_stats(self._handle, number, ctypes.byref(raw)), number)
        return PortStatistics(*(getattr(raw, field.name) for field in fields(PortStatistics)))

    def now(self) -> int:
        """Return the time that frames come in at, in nanoseconds: what `Switch.process` would be told."""
        return int(self._library.loop_now(self._handle))

    def unknown_port_drops(self) -> int:
        """Return how many frames the program sent to a port that is not there."""
        return int(self._library.loop_unknown_port(self._handle))

    # -- frames, one by one --------------------------------------------------------------------------

    def inject(self, number: int, frame: bytes, timeout: float = 1.0) -> None:
        """Let ``frame`` come in on a queue port. Raises PortError when it stays full for ``timeout`` s."""
        result = self._library.loop_inject(self._handle, number, frame, len(frame), int(timeout * 1e9))
        if result == -errno.EMSGSIZE:
            raise PortError(f"port {number}: a frame of {len(frame)} bytes is longer than {MAX_FRAME}")
        if result == -errno.ETIMEDOUT:
            raise PortError(f"port {number}: the switch took no frame for {timeout} s")
        self._check(result, number)

    def receive(self, number: int, timeout: float = 1.0) -> bytes | None:
        """Return the next frame that the program sent to a queue port; None when none came in ``timeout``
        s.
        """
        room = ctypes.create_string_buffer(MAX_FRAME)
        result = self._library.loop_receive(self._handle, number, room, MAX_FRAME, int(timeout * 1e9))
        if result == -errno.ETIMEDOUT:
            return None
        self._check(result, number)
        return room.raw[:result]

    def drain(self, number: int, timeout: float = 1.0) -> bool:
        """Wait until the program has taken every injected frame; False when ``timeout`` s were not enough."""
        result = self._library.loop_drain(self._handle, number, int(timeout * 1e9))
        if result == -errno.ETIMEDOUT:
            return False
        self._check(result, number)
        return True

    # -- capture -----------------------------------------------------------------------------------

    def capture(
        self,
        path: Path,
        ports: Iterable[int] | None = None,
        directions: Directions = Directions.BOTH,
        *,
        pcapng: bool = True,
    ) -> None:
        """Write every frame of some ports to a file from now on; None: of all, also of later ones.

        Several captures can go on at a time, each into a file of its own. A pcapng file says which port and
        which way; without ``pcapng`` it is pcap, which does not. Raises PortError.
        """
        chosen = None if ports is None else tuple(dict.fromkeys(ports))
        numbers = (ctypes.c_uint32 * len(chosen or ()))(*(chosen or ()))
        if chosen is not None and (not chosen or not all(0 <= port <= MAX_PORT for port in chosen)):
            raise PortError(f"capture file {path}: port numbers are 0 to {MAX_PORT}")
        with self._changing:
            result = self._library.loop_start_capture(
                self._handle, os.fsencode(path), int(pcapng), len(numbers), numbers, int(directions)
            )
            if result == -errno.EEXIST:
                raise PortError(f"capture file {path}: is being written already")
            if result < 0:
                raise PortError(f"capture file {path}: {os.strerror(-result)}")
            self._captures[path] = chosen, directions

    def stop_capture(self, path: Path) -> None:
        """Complete and close a capture file. Raises PortError when it was not written, or not all of it."""
        with self._changing:
            result = self._library.loop_stop_capture(self._handle, os.fsencode(path))
            if result == -errno.ENOENT:
                raise PortError(f"capture file {path}: is not being written")
            del self._captures[path]
            if result < 0:
                raise PortError(f"capture file {path} is not complete: {os.strerror(-result)}")

    def close_files(self) -> None:
        """Close all capture files, and look whether queue ports' output files have all that was sent there.

        Raises PortError when one is not complete, after all have been closed.
        """
        problems = []
        with self._changing:
            for path in list(self._captures):
                try:
                    self.stop_capture(path)
                except PortError as error:
                    problems.append(str(error))
            for number, state in self._ports.items():
                if (result := self._library.loop_output_error(self._handle, number)) > 0:
                    problems.append(
                        f"port {number}, {state.attached}, is not complete: {os.strerror(result)}"
                    )
        if problems:
            raise PortError("; ".join(problems))

    def captures(self) -> list[Capture]:
        """Return what is being captured."""
        with self._changing:
            return [
                Capture(path, ports, directions, self._capture_error(path))
                for path, (ports, directions) in self._captures.items()
            ]

    def _capture_error(self, path: Path) -> str | None:
        number = self._library.loop_capture_error(self._handle, os.fsencode(path))
        return os.strerror(number) if number > 0 else None

    def _check(self, result: int, number: int) -> None:
        if result == -errno.ENODEV:
            raise PortError(f"there is no such port: {number}")
        if result < 0:
            raise PortError(f"port {number}: {os.strerror(-result)}")


def _resolve(host: str, port: int, family: int = 0) -> tuple[int, tuple[str, str]]:
    """Return the family of an address, and the address in numbers; no host: every one. Raises OSError."""
    found = socket.getaddrinfo(host or None, port, family, socket.SOCK_DGRAM, flags=socket.AI_PASSIVE)
    return found[0][0], (str(found[0][4][0]), str(found[0][4][1]))


def _address(end: tuple[str, int]) -> str:
    host, port = end
    return f"[{host}]:{port}" if ":" in host else f"{host or '*'}:{port}"


def _reason(number: int, port: int, ports: Mapping[int, PortState]) -> str:
    """Return what an errno of opening a port means to the person who asked for it."""
    explain: dict[int, Callable[[], str]] = {
        errno.EEXIST: lambda: (
            f"port {port} is already {ports[port].attached}"
            if port in ports
            else "the file already exists: another switch serves this directory"
        ),
        errno.ENODEV: lambda: "there is no such network interface",
        errno.ENXIO: lambda: "there is no such network interface",
        errno.EPERM: lambda: "not allowed: run as root, or give Python CAP_NET_RAW",
        errno.EXDEV: lambda: "all shared-memory ports of a switch are in one directory",
    }
    return explain.get(number, lambda: os.strerror(number))()
