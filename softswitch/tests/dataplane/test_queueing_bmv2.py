# SPDX-License-Identifier: Apache-2.0
"""Queues of a running BMv2 and of the soft switch: the same frames, the same depths, the same drops.

Rates are packets per second, which is all BMv2 knows, and one queue is compared at a time, because its queues
do not share the port's rate. Frames go in while the first one still keeps the others waiting.
"""

import contextlib
import os
import socket
import struct
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from softp4.runtime.queueing import Queueing
from softp4.switch import Switch
from tests.dataplane.test_queueing import SECOND, Copy, order, read, run_dry
from tests.harness.netns import Namespace
from tests.p4rt.p4rt_client import TIMEOUT
from tests.programs import FOLDER, program

pytestmark = [pytest.mark.root, pytest.mark.bmv2]

IN, OUT, FREE = 1, 2, 3
THRIFT = 9090


class Bmv2:
    """A `simple_switch_grpc` that runs the program `queues`, in a namespace of its own."""

    def __init__(self, folder: Path, cleanup: contextlib.ExitStack) -> None:
        self._namespace = cleanup.enter_context(Namespace())
        for port in (IN, OUT, FREE):
            self._namespace.add_veth(f"sw{port}", f"host{port}")
        self._sockets = self._namespace.call(self._open)
        for each in self._sockets.values():
            cleanup.callback(each.close)
        ports = [word for port in (IN, OUT, FREE) for word in ("-i", f"{port}@sw{port}")]
        options = ["--thrift-port", str(THRIFT), "--device-id", str(os.getpid())]
        target = ["--priority-queues", "8", "--grpc-server-addr", f"unix:{folder}/grpc"]
        self._process = cleanup.enter_context(
            subprocess.Popen(
                [
                    *self._namespace.prefix,
                    "simple_switch_grpc",
                    *ports,
                    *options,
                    str(FOLDER / "queues.json"),
                    "--",
                    *target,
                ],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        )
        cleanup.callback(self._process.terminate)

    @staticmethod
    def _open() -> dict[int, socket.socket]:
        made = {}
        for port in (IN, OUT, FREE):
            made[port] = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(3))  # ETH_P_ALL
            made[port].bind((f"host{port}", 0))
            made[port].settimeout(TIMEOUT)
        return made

    def limit(self, rate_pps: int, depth: int) -> None:
        """Limit port OUT, once the switch is there."""
        deadline = time.monotonic() + TIMEOUT
        while True:
            try:
                self._namespace.call(lambda: _limit(rate_pps, depth))
                return
            except ConnectionError:
                assert self._process.poll() is None, "BMv2 ended"
                assert time.monotonic() < deadline, "BMv2 does not get ready"
                time.sleep(0.1)

    def send(self, frame: bytes) -> None:
        self._sockets[IN].send(frame)

    def receive(self, count: int, port: int = OUT) -> list[Copy]:
        return read([(port, self._sockets[port].recv(4096)) for _ in range(count)])

    def passed(self) -> None:
        """Wait until everything sent so far is through ingress: a frame for another port is."""
        self.send(order(FREE))
        self.receive(1, FREE)


def _limit(rate_pps: int, depth: int) -> None:
    """Limit port OUT by BMv2's Thrift service: two calls of (port, value), each answered with status 0."""
    with socket.create_connection(("127.0.0.1", THRIFT), timeout=TIMEOUT) as connection:
        for what, kind, value in (("depth", "i", depth), ("rate", "q", rate_pps)):
            name = f"simple_switch:set_egress_queue_{what}".encode()
            code = {"i": 8, "q": 10}[kind]  # Thrift's i32 and i64
            arguments = struct.pack(f">BHiBH{kind}B", 8, 1, OUT, code, 2, value, 0)
            header = struct.pack(">II", 0x80010001, len(name)) + name + struct.pack(">I", 1)
            connection.sendall(header + arguments)
            answer = connection.makefile("rb").read(len(header) - len("simple_switch:") + 8)
            assert answer[-8:] == struct.pack(">BHiB", 8, 0, 0, 0), answer


@pytest.fixture
def bmv2(tmp_path: Path) -> Iterator[Bmv2]:
    with contextlib.ExitStack() as cleanup:
        yield Bmv2(tmp_path, cleanup)


def through_soft(first: Sequence[bytes], then: Sequence[bytes], limits: Queueing) -> list[Copy]:
    """Return what leaves port OUT: ``first`` one by one, each when the line is free, then the others in a
    burst.
    """
    assert limits.rate_pps is not None
    pause = SECOND // limits.rate_pps
    with Switch(program("queues")) as switch:
        switch.queues(OUT).set(limits)
        left = [
            copy for turn, frame in enumerate(first) for copy in read(switch.process(IN, frame, turn * pause))
        ]
        for frame in (*then, order(FREE)):
            switch.process(IN, frame, (len(first) - 1) * pause + 1)
        return left + [copy for _, copy in run_dry(switch)]


def through_bmv2(
    switch: Bmv2, first: Sequence[bytes], then: Sequence[bytes], limits: Queueing, count: int
) -> list[Copy]:
    assert limits.rate_pps is not None
    switch.limit(limits.rate_pps, limits.depth_packets)
    left = []
    for frame in first:
        switch.send(frame)
        left += switch.receive(1)
    for frame in then:
        switch.send(frame)
    switch.passed()
    return left + switch.receive(count - len(first))


def timeless(copies: Sequence[Copy]) -> list[Copy]:
    """Return all but what clocks say."""
    return [replace(copy, arrived=0, left=0, enq_timestamp=0, deq_timedelta=0) for copy in copies]


LIMITS = Queueing(rate_pps=1, depth_packets=3)


def test_one_queue_that_overflows(bmv2: Bmv2) -> None:
    """Depths found and left, drops, registers that both pipelines use: all the same."""
    first, burst = [order(OUT)], [order(OUT, length=60 + number) for number in range(6)]
    soft = through_soft(first, burst, LIMITS)
    assert [(copy.enq_qdepth, copy.deq_qdepth) for copy in soft] == [(0, 0), (0, 2), (1, 1), (2, 0)]
    theirs = through_bmv2(bmv2, first, burst, LIMITS, len(soft))
    assert timeless(theirs) == timeless(soft)
    for copies in (soft, theirs):
        assert copies[-1].deq_timedelta > 1_000_000, "microseconds, for the last of the queue"


def test_priorities_are_queues_of_their_own(bmv2: Bmv2) -> None:
    """Each has its own depth, and its packets count only what is in it."""
    first = [order(OUT, priority=priority) for priority in (2, 5, 7)]
    burst = [order(OUT, priority=priority) for priority in (2, 5, 2, 7, 5, 2, 5, 2, 5, 2, 5)]
    soft = through_soft(first, burst, LIMITS)
    assert [copy.priority for copy in soft] == [2, 5, 7, 7, 5, 5, 5, 2, 2, 2]
    theirs = through_bmv2(bmv2, first, burst, LIMITS, len(soft))
    for priority in (2, 5, 7):

        def depths(copies: Sequence[Copy], mine: int = priority) -> list[tuple[int, int]]:
            return [(copy.enq_qdepth, copy.deq_qdepth) for copy in copies if copy.priority == mine]

        assert depths(theirs) == depths(soft), priority


def test_random_numbers_between_bounds_of_the_packet(bmv2: Bmv2) -> None:
    bmv2.limit(10**6, 64)
    for low, high in [(0, 0), (7, 7), (10, 13), (0, 2**32 - 1)]:
        for _ in range(20):
            bmv2.send(order(OUT, low=low, high=high))
            (copy,) = bmv2.receive(1)
            assert low <= copy.drawn <= high
