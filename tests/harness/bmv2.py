# SPDX-License-Identifier: Apache-2.0
"""BMv2's `simple_switch_grpc` as a test target: a process in a network namespace of its own.

Each port is a veth pair, one end BMv2's, the other a raw socket of ours. What a frame causes is complete when
a marker frame, sent after it and flooded to every port, has come out of all of them: BMv2 keeps the order per
port. So nothing here waits for time to pass.
"""

import contextlib
import os
import queue
import select
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.harness.keys import Count, Key
from tests.harness.p4runtime import P4Runtime
from tests.harness.target import CPU_PORT, EVENTS, P4INFO, PORTS, PROGRAM, Sent, Target
from weir.netns import Namespace
from weir.wire.definition import Event

_PROBE: Final = 9  # the port that markers come in by
_MARKER: Final = bytes.fromhex("02ffffffffff 02fffffffffe 88b5") + bytes(46)
_MARKER_GROUP: Final = 4000  # BMv2 has groups below 4096
_TIMEOUT: Final = 30.0  # seconds until a switch that does not answer counts as broken


class Bmv2Target(Target):
    """A running `simple_switch_grpc`. Needs root."""

    name = "bmv2"
    shortest_frame = 14  # the kernel's raw sockets refuse less than an Ethernet header
    headroom = 512

    def __init__(self) -> None:
        self._cleanup = contextlib.ExitStack()
        self._folder = Path(tempfile.mkdtemp(prefix="weir-bmv2-"))
        self._cleanup.callback(shutil.rmtree, self._folder, ignore_errors=True)
        self._overhead = Count(0, 0)  # what markers add to the FORWARDED event
        try:
            self._make_namespace()
            self._sockets = self._namespace.call(self._open_sockets)
            for port in self._sockets.values():
                self._cleanup.callback(port.close)
            address = self._start()
            self._control = P4Runtime(address, os.getpid(), P4INFO, PROGRAM, self._alive)
            self._cleanup.callback(self._control.close)
            self.reset()
        except BaseException:
            self.close()
            raise

    def _make_namespace(self) -> None:
        self._namespace = self._cleanup.enter_context(Namespace())
        for port in (*PORTS, _PROBE):
            self._namespace.links.add_veth(f"sw{port}", f"host{port}")
            for end in ("sw", "host"):
                self._namespace.links.set(f"{end}{port}", up=True)

    def _open_sockets(self) -> dict[int, socket.socket]:
        made = {}
        for port in (*PORTS, _PROBE):
            made[port] = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(3))  # ETH_P_ALL
            made[port].bind((f"host{port}", 0))
            made[port].setblocking(False)
        return made

    def _start(self) -> str:
        address = f"unix:{self._folder}/grpc"
        ports = [arg for port in (*PORTS, _PROBE) for arg in ("-i", f"{port}@sw{port}")]
        options = ["--no-p4", "--device-id", str(os.getpid())]
        target = ["--grpc-server-addr", address, "--cpu-port", str(CPU_PORT), "--priority-queues", "8"]
        self._log = (self._folder / "log").open("w+")
        self._cleanup.callback(self._log.close)
        command = ["simple_switch_grpc", *ports, *options, "--", *target]
        self._process = subprocess.Popen(
            [*self._namespace.prefix, *command],
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        self._cleanup.callback(self._stop)
        return address

    def _stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _alive(self) -> None:
        """Raise with BMv2's last words when it has died."""
        if (status := self._process.poll()) is not None:
            self._log.seek(0)
            raise RuntimeError(f"simple_switch_grpc exited with {status}: {self._log.read()[-2000:]}")

    def send(self, port: int, frame: bytes) -> list[Sent]:
        self._sockets[port].send(frame)
        return self._flush()

    def packet_out(self, port: int, frame: bytes) -> list[Sent]:
        self._control.packet_out(port, frame)
        for mark in (*PORTS, CPU_PORT):  # packet-outs keep their order among themselves
            self._control.packet_out(mark, _MARKER)
            self._overhead += Count(1, len(_MARKER) + 2)
        return self._collect()

    def _flush(self) -> list[Sent]:
        """Send a marker behind everything that is on its way, and gather what comes out before it."""
        self._sockets[_PROBE].send(_MARKER)
        self._overhead += Count(1, len(_MARKER))
        return self._collect()

    def _collect(self) -> list[Sent]:
        seen: list[Sent] = []
        waiting = {self._sockets[port].fileno(): port for port in PORTS}
        deadline = time.monotonic() + _TIMEOUT
        while waiting:
            ready, _, _ = select.select(list(waiting), [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                self._alive()
                raise RuntimeError(f"BMv2 sent no marker to ports {sorted(waiting.values())}")
            for handle in ready:
                port = waiting[handle]
                frame = self._sockets[port].recv(4096)
                if frame == _MARKER:
                    del waiting[handle]
                else:
                    seen.append(Sent(port, frame))
        seen += [Sent(CPU_PORT, frame) for frame in self._packet_ins(deadline)]
        return sorted(seen)

    def _packet_ins(self, deadline: float) -> list[bytes]:
        """Return the packet-ins up to the marker's."""
        frames: list[bytes] = []
        while True:
            try:
                frame = self._control.packet_in(max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                self._alive()
                raise RuntimeError("BMv2 sent no marker to the controller") from None
            if frame[2:] == _MARKER:
                return frames
            frames.append(frame)

    def insert(
        self, table: str, key: Sequence[Key], action: str, args: Sequence[int] = (), priority: int = 0
    ) -> None:
        self._control.insert(table, key, action, args, priority)

    def modify(self, table: str, key: Sequence[Key], action: str, args: Sequence[int] = ()) -> None:
        self._control.modify(table, key, action, args)

    def set_default(self, table: str, action: str, args: Sequence[int] = ()) -> None:
        self._control.set_default(table, action, args)

    def set_group(self, group: int, replicas: Sequence[tuple[int, int]]) -> None:
        self._control.set_group(group, replicas)

    def counter(self, name: str, index: int) -> Count:
        count = self._control.counter(name, index)
        if (name, index) == (EVENTS, Event.FORWARDED):
            return count - self._overhead
        return count

    def entry_counter(self, table: str, key: Sequence[Key]) -> Count:
        return self._control.entry_counter(table, key)

    def reset(self) -> None:
        self._control.clear()
        self._control.set_group(_MARKER_GROUP, [(port, 0) for port in (*PORTS, CPU_PORT)])
        marker_mac, marker_src = (int.from_bytes(_MARKER[at : at + 6], "big") for at in (0, 6))
        for port in (*PORTS, _PROBE):
            self._control.insert(
                "WeirIngress.sources.stations", (port, marker_src), "WeirIngress.sources.trust", ()
            )
        self._control.insert(
            "WeirIngress.forwarding.l2", (marker_mac,), "WeirIngress.forwarding.flood", (_MARKER_GROUP,)
        )
        self._flush()

    def close(self) -> None:
        self._cleanup.close()
