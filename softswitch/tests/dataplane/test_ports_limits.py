# SPDX-License-Identifier: Apache-2.0
"""Limited ports in real time. What is asserted is program time, which frames carry, and what arrives."""

import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from softp4.dataplane.ports import PortError, PortLoop
from softp4.native.ring import ShmPort
from softp4.runtime.queueing import Queueing, QueueStatistics
from softp4.switch import Switch
from tests.dataplane.test_queueing import Copy, order, read
from tests.p4rt.p4rt_client import TIMEOUT
from tests.programs import program

IN, OUT, FREE = 1, 2, 3
MBIT = 10**6
NEVER = Queueing(rate_bps=1)  # a frame in a quarter of an hour


@pytest.fixture
def loop() -> Iterator[PortLoop]:
    """Yield a running loop with three ports over a switch that sends frames where they say."""
    with Switch(program("queues")) as switch, PortLoop() as made:
        for number in (IN, OUT, FREE):
            made.add_queue(number, "queue")
        made.set_switch(switch)
        made.start()
        yield made


def take(loop: PortLoop, port: int = OUT) -> Copy:
    frame = loop.receive(port, TIMEOUT)
    assert frame is not None, "no frame"
    (copy,) = read([(port, frame)])
    return copy


def test_frames_leave_one_by_one_without_any_coming_in(loop: PortLoop) -> None:
    """The loop wakes for what is due: 1000 bytes at 10 Mbit/s are 800 us."""
    loop.set_queueing(OUT, NEVER)
    for _ in range(20):
        loop.inject(IN, order(OUT, length=1000))
    loop.drain(IN, TIMEOUT)
    loop.set_queueing(OUT, Queueing(rate_bps=10 * MBIT))
    copies = [take(loop) for _ in range(20)]
    assert [copy.number for copy in copies] == list(range(1, 21))
    for before, after in pairwise(copies[1:]):
        assert 799 <= after.left - before.left <= 801
    assert loop.queue_statistics(OUT)[0] == QueueStatistics(20, 20_000, 0, 0, 0, 0)


def test_shared_memory_alone_wakes_in_time_too(tmp_path: Path) -> None:
    with Switch(program("queues")) as switch, PortLoop() as loop:
        for number in (IN, OUT):
            loop.add_shm(number, tmp_path)
        loop.set_queueing(OUT, Queueing(rate_bps=10 * MBIT))
        loop.set_switch(switch)
        loop.start()
        with ShmPort(tmp_path, IN) as source, ShmPort(tmp_path, OUT) as sink:
            for round_ in range(3):
                for _ in range(10):
                    assert source.send(order(OUT, length=500))
                for _ in range(10):
                    assert sink.recv(TIMEOUT) is not None, f"round {round_}"


def test_the_more_important_leave_first(loop: PortLoop) -> None:
    loop.set_queueing(OUT, NEVER)
    for priority in (0, 0, 4, 7, 1):
        loop.inject(IN, order(OUT, priority=priority))
    assert take(loop).priority == 0
    loop.drain(IN, TIMEOUT)
    loop.set_queueing(OUT, Queueing(rate_bps=100 * MBIT))
    assert [take(loop).priority for _ in range(4)] == [7, 4, 1, 0]


def test_full_queues_drop_and_count(loop: PortLoop) -> None:
    loop.set_queueing(OUT, Queueing(rate_bps=1, depth_packets=3))
    for _ in range(10):
        loop.inject(IN, order(OUT))
    loop.drain(IN, TIMEOUT)
    stats = loop.queue_statistics(OUT)[0]
    assert (stats.packets, stats.depth_packets, stats.dropped_packets) == (1, 3, 6)


def test_other_ports_do_not_wait(loop: PortLoop) -> None:
    loop.set_queueing(OUT, NEVER)
    for _ in range(20):
        loop.inject(IN, order(OUT))
        loop.inject(IN, order(FREE))
        assert take(loop, FREE).deq_timedelta == 0


def test_frames_come_in_no_faster_than_the_line(loop: PortLoop) -> None:
    """1000 bytes at 10 Mbit/s, sent by a host in one go: the rest waits outside, and none is lost."""
    loop.set_rate(IN, 10 * MBIT)
    frame = order(OUT).ljust(1000, b"\0")
    for _ in range(20):
        loop.inject(IN, frame)
    arrived = [take(loop).arrived for _ in range(20)]
    assert all(time >= arrived[0] + 800 * number - 1 for number, time in enumerate(arrived))
    assert loop.queue_statistics(IN) == (QueueStatistics(0, 0, 0, 0, 0, 0),) * 8


def test_a_late_loop_lets_frames_in_as_one_in_time_does(loop: PortLoop) -> None:
    """Each at its line's time, and in the order of these times over all lines: 8 and 16 us a frame, in which
    no loop comes round.
    """
    gaps = {IN: 8, FREE: 16}
    for port in gaps:
        loop.set_rate(port, 1)
        for _ in range(100):
            loop.inject(port, order(OUT).ljust(1000, b"\0"))
    for port, gap in gaps.items():
        loop.set_rate(port, 8000 * MBIT // gap)
    copies = [take(loop) for _ in range(200)]
    late = [copy.arrived for copy in copies[2:]]  # without those that came in at the first rate
    assert late == sorted(late)
    for port, gap in gaps.items():
        arrived = [copy.arrived for copy in copies if copy.ingress_port == port][1:]
        assert all(abs(time - arrived[0] - gap * number) <= 1 for number, time in enumerate(arrived))


def test_a_frame_far_from_due_keeps_nobody_waiting(tmp_path: Path) -> None:
    """Not even right after many frames for which the loop napped."""
    with Switch(program("queues")) as switch, PortLoop() as loop:
        loop.add_queue(OUT, "queue")
        for number in (IN, FREE):
            loop.add_shm(number, tmp_path)
        loop.set_switch(switch)
        loop.start()
        with ShmPort(tmp_path, IN) as source, ShmPort(tmp_path, FREE) as sink:
            loop.set_queueing(OUT, NEVER)
            loop.set_queueing(FREE, Queueing(rate_bps=1, depth_packets=200))
            for to in (OUT, OUT, *[FREE] * 200):
                assert source.send(order(to, length=1000))
            while loop.queue_statistics(FREE)[0].depth_packets < 199:
                time.sleep(0.001)
            loop.set_queueing(FREE, Queueing(rate_bps=1000 * MBIT, depth_packets=200))
            for _ in range(200):
                assert sink.recv(TIMEOUT) is not None
            assert source.send(order(FREE))
            assert sink.recv(TIMEOUT) is not None


def test_a_host_that_sends_too_fast_sees_its_ring_full(tmp_path: Path) -> None:
    with Switch(program("queues")) as switch, PortLoop() as loop:
        for number in (IN, OUT):
            loop.add_shm(number, tmp_path)
        loop.set_queueing(IN, NEVER)
        loop.set_switch(switch)
        loop.start()
        with ShmPort(tmp_path, IN) as source, ShmPort(tmp_path, OUT) as sink:
            source.send(order(OUT))
            assert sink.recv(TIMEOUT) is not None
            sent = 0
            while source.send(order(OUT)):
                sent += 1
            assert sent > 512
            loop.set_queueing(IN, None)
            for _ in range(512):
                assert sink.recv(TIMEOUT) is not None


def test_a_port_that_may_not_let_in_costs_no_time(loop: PortLoop) -> None:
    """Nor does one whose frames wait to leave."""
    loop.set_queueing(IN, NEVER)
    loop.set_queueing(OUT, NEVER)
    for _ in range(5):
        loop.inject(IN, order(OUT))
        loop.inject(FREE, order(OUT))
    assert take(loop).deq_timedelta == 0
    before = time.process_time()
    assert loop.receive(OUT, 0.5) is None
    assert time.process_time() - before < 0.25, "the loop spins"


def test_lifting_limits_lets_everything_go(loop: PortLoop) -> None:
    loop.set_queueing(OUT, NEVER)
    for _ in range(30):
        loop.inject(IN, order(OUT))
    loop.drain(IN, TIMEOUT)
    loop.set_queueing(OUT, None)
    assert [take(loop).number for _ in range(30)] == list(range(1, 31))
    loop.inject(IN, order(OUT))
    assert take(loop).enq_qdepth == 0


def test_another_program_takes_over_the_limits_and_nothing_stays_behind(loop: PortLoop) -> None:
    loop.set_queueing(OUT, NEVER)
    for _ in range(5):
        loop.inject(IN, order(OUT))
    loop.drain(IN, TIMEOUT)
    with Switch(program("queues")) as other:
        loop.set_switch(other)
        assert [take(loop).number for _ in range(5)] == [1, 2, 3, 4, 5], "what waited in the old one"
        for _ in range(3):
            loop.inject(IN, order(OUT))
        loop.drain(IN, TIMEOUT)
        assert take(loop).number == 1
        assert loop.queue_statistics(OUT)[0].depth_packets == 2
        loop.set_switch(None)
        assert [take(loop).number for _ in range(2)] == [2, 3]
        assert loop.queue_statistics(OUT)[0].depth_packets == 0


def test_a_port_that_goes_sends_what_waits(loop: PortLoop, tmp_path: Path) -> None:
    capture = tmp_path / "out.pcapng"
    loop.add_queue(9, "file", capture)
    loop.set_queueing(9, NEVER)
    for _ in range(5):
        loop.inject(IN, order(9))
    loop.drain(IN, TIMEOUT)
    size = capture.stat().st_size
    loop.remove(9)
    assert capture.stat().st_size > size
    assert loop.unknown_port_drops() == 0
    loop.add_queue(9, "again")
    loop.inject(IN, order(9))
    assert take(loop, 9).enq_qdepth == 0, "a new port has no limits"


def test_a_port_that_is_down_drops_what_waits_when_it_is_due(loop: PortLoop) -> None:
    loop.set_queueing(OUT, NEVER)
    for _ in range(3):
        loop.inject(IN, order(OUT))
    loop.drain(IN, TIMEOUT)
    take(loop)
    loop.set_up(OUT, False)
    loop.set_queueing(OUT, None)
    assert loop.statistics(OUT).tx_drops == 2


def test_errors(loop: PortLoop) -> None:
    for call in (lambda: loop.set_queueing(9, NEVER), lambda: loop.queue_statistics(9)):
        with pytest.raises(PortError, match="there is no such port: 9"):
            call()
