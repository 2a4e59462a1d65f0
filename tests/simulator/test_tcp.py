# SPDX-License-Identifier: Apache-2.0
"""TCP: the machines by themselves, then over a real switch."""

import heapq
from collections.abc import Callable
from functools import partial
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.layers.inet import IP, TCP
from scapy.layers.l2 import Ether

from softp4.runtime.queueing import Queueing
from tests.harness.effort import examples
from weir.controller.qos import DEFAULT_CLASSES
from weir.controller.topology import single_switch
from weir.simulator.congestion import Algorithm, Dctcp
from weir.simulator.link import Faults
from weir.simulator.network import LinkSpec, Network
from weir.simulator.stream import OVERHEAD, Stream
from weir.simulator.tcp import MSS, Receiver, Sender, TcpConfig
from weir.wire.definition import BEST_EFFORT_DSCP

MS = 1_000_000
RATE = 1_000_000_000
GOODPUT = RATE * MSS / (MSS + OVERHEAD)  # of full segments, bits per second
ALGORITHMS: tuple[Algorithm, ...] = ("dctcp", "cubic", "bbr")
MARK_AT = DEFAULT_CLASSES[BEST_EFFORT_DSCP].mark_at


def sent(sender: Sender, now: int) -> list[tuple[int, int]]:
    segments = []
    while segment := sender.segment(now):
        segments.append(segment)
    return segments


Fate = Callable[[int, int], int | None]


class Path:
    """A sender and a receiver half a millisecond apart; every copy of a segment goes through ``fate``.

    fate: (start, which copy, from 0) -> by how much it is late, or None when it is lost.
    """

    def __init__(
        self,
        config: TcpConfig | None = None,
        fate: Callable[[int, int], int | None] = lambda _start, _copy: 0,
    ) -> None:
        self.sender, self.receiver = Sender(config), Receiver()
        self._fate = fate
        self._copies: dict[int, int] = {}
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._number = 0
        self.now = 0
        self.most_at_once = 0  # bytes in flight

    def run(self) -> int:
        """Until all is acknowledged; when that was."""
        sender = self.sender
        while not sender.done:
            self._send()
            times = [time for time in (sender.deadline, sender.held) if time is not None]
            if self._events:
                times.append(self._events[0][0])
            self.now = max(self.now, min(times))
            if self._events and self._events[0][0] == self.now:
                heapq.heappop(self._events)[2]()
            else:
                sender.on_timer(self.now)
        return self.now

    def _send(self) -> None:
        while segment := self.sender.segment(self.now):
            self.most_at_once = max(self.most_at_once, self.sender.in_flight)
            copy = self._copies.get(segment[0], 0)
            self._copies[segment[0]] = copy + 1
            late = self._fate(segment[0], copy)
            if late is not None:
                self._after(MS // 2 + late, partial(self._arrive, *segment))

    def _arrive(self, start: int, length: int) -> None:
        self.receiver.on_segment(start, length)
        self._after(MS // 2, partial(self._acknowledge, self.receiver.expected, self.receiver.blocks()))

    def _acknowledge(self, position: int, blocks: list[tuple[int, int]]) -> None:
        self.sender.on_acknowledgement(position, False, self.now, blocks)

    def _after(self, delay: int, action: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (self.now + delay, self._number, action))


def late(segment: int) -> Fate:
    """Return the first copy of that one comes three milliseconds late."""
    return lambda start, copy: 3 * MS if start // MSS == segment and not copy else 0


def losing(*segments: int, copies: int = 1) -> Fate:
    """Return the first copies of these segments, by number, are lost."""
    return lambda start, copy: None if start // MSS in segments and copy < copies else 0


def test_the_first_window_has_ten_segments_and_each_acknowledgement_lets_two_more_out() -> None:
    sender = Sender()
    sender.write(100 * MSS, 0)
    assert sent(sender, 0) == [(i * MSS, MSS) for i in range(10)]
    sender.on_acknowledgement(MSS, False, MS)
    assert sent(sender, MS) == [(10 * MSS, MSS), (11 * MSS, MSS)]


def test_a_window_that_is_not_used_does_not_grow() -> None:
    sender = Sender()
    sender.write(2 * MSS, 0)
    sent(sender, 0)
    before = sender.congestion.window
    sender.on_acknowledgement(2 * MSS, False, MS)
    assert sender.congestion.window == before


def test_a_receiver_reports_what_grew_last_first_and_duplicates_before_it() -> None:
    receiver = Receiver()
    for start in (2, 6, 4, 10):
        assert not receiver.on_segment(start, 1)
    assert receiver.blocks() == [(10, 11), (4, 5), (6, 7)]
    receiver.on_segment(3, 1)
    assert receiver.blocks() == [(2, 5), (10, 11), (6, 7)]
    receiver.on_segment(10, 1)
    assert receiver.blocks() == [(10, 11), (2, 5), (10, 11)]
    assert receiver.on_segment(0, 2)
    assert receiver.expected == 5
    assert receiver.blocks() == [(10, 11), (6, 7)]
    assert not receiver.on_segment(0, 2)
    assert receiver.blocks()[0] == (0, 2)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_lost_segment_of_a_long_stream_is_repeated_once_and_without_a_timer(algorithm: Algorithm) -> None:
    path = Path(TcpConfig(algorithm=algorithm), losing(30))
    path.sender.write(100 * MSS, 0)
    path.run()
    assert path.receiver.expected == 100 * MSS
    assert (path.sender.retransmissions, path.sender.timeouts, path.sender.probes) == (1, 0, 0)


@pytest.mark.parametrize(("algorithm", "share"), [("dctcp", 0.5), ("cubic", 0.7)])
def test_a_loss_cuts_the_window_once_and_recovery_ends_there(algorithm: Algorithm, share: float) -> None:
    sender = Sender(TcpConfig(algorithm=algorithm))
    sender.write(100 * MSS, 0)
    sent(sender, 0)
    for end in (4, 5, 6, 7, 8, 9, 10):  # segments 0 to 2 are lost
        sender.on_acknowledgement(0, False, MS, [(3 * MSS, end * MSS)])
        sent(sender, MS)
    assert sender.in_flight <= 10 * MSS * share + MSS
    sender.on_acknowledgement(sender.next, False, 2 * MS)
    assert 0 <= sender.congestion.window - 10 * MSS * share <= MSS


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_many_losses_of_one_window_are_repaired_in_about_a_round_trip(algorithm: Algorithm) -> None:
    config = TcpConfig(algorithm=algorithm)
    clean = Path(config)
    clean.sender.write(60 * MSS, 0)
    path = Path(config, losing(11, 13, 14, 17, 20, 21, 25))
    path.sender.write(60 * MSS, 0)
    assert path.run() - clean.run() <= 3 * MS
    assert (path.sender.retransmissions, path.sender.timeouts) == (7, 0)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_copy_that_is_lost_again_is_repeated_without_a_timer(algorithm: Algorithm) -> None:
    path = Path(TcpConfig(algorithm=algorithm), losing(12, copies=3))
    path.sender.write(200 * MSS, 0)
    path.run()
    assert (path.sender.retransmissions, path.sender.timeouts) == (3, 0)


def test_a_lost_tail_is_probed_for_before_the_timer() -> None:
    path = Path(TcpConfig(min_rto=200 * MS), losing(28, 29))
    path.sender.write(30 * MSS, 0)
    assert path.run() < 10 * MS
    assert (path.sender.probes, path.sender.timeouts) == (1, 0)
    assert path.sender.retransmissions == 2
    assert path.sender.congestion.window < 15 * MSS  # a probe that mends tells of a loss, too


def test_a_probe_that_was_not_needed_costs_no_window() -> None:
    path = Path(TcpConfig(min_rto=200 * MS), late(29))
    path.sender.write(30 * MSS, 0)
    path.run()
    before = path.sender.congestion.window
    path.sender.write(30 * MSS, path.now)
    path.run()
    assert path.sender.probes == path.sender.retransmissions == 1
    assert path.sender.congestion.window >= before


def test_a_lost_probe_waits_for_the_timer_which_backs_off() -> None:
    path = Path(TcpConfig(min_rto=10 * MS), losing(9, copies=4))
    path.sender.write(10 * MSS, 0)
    assert path.run() > (10 + 20 + 40) * MS
    assert (path.sender.probes, path.sender.timeouts) == (1, 3)
    assert path.sender.deadline is None


def test_segments_that_are_a_little_late_are_not_taken_for_lost() -> None:
    """Sprayed over paths that differ by a fifth of a round-trip time."""
    random = Random(1)
    path = Path(None, lambda _start, _copy: random.randrange(MS // 5))
    path.sender.write(3000 * MSS, 0)
    path.run()
    assert path.sender.timeouts == 0
    assert path.sender.retransmissions < 10


def test_a_cut_for_a_segment_that_was_only_late_is_taken_back() -> None:
    path = Path(None, late(30))
    path.sender.write(300 * MSS, 0)
    path.run()
    assert (path.sender.retransmissions, path.sender.timeouts) == (1, 0)
    assert path.sender.congestion.window > 60 * MSS  # there was no cut before, so slow start goes on


def test_reordering_window_grows_where_segments_are_often_later_than_thought() -> None:
    random = Random(1)
    path = Path(None, lambda _start, _copy: random.randrange(2 * MS) if random.random() < 0.1 else 0)
    path.sender.write(5000 * MSS, 0)
    path.run()
    assert path.sender.timeouts == 0
    assert path.sender.retransmissions < 250


def test_the_window_is_cut_by_half_of_alpha_once_per_window() -> None:
    sender = Sender()
    sender.write(1000 * MSS, 0)
    sent(sender, 0)
    before = sender.congestion.window
    sender.on_acknowledgement(MSS, True, MS)
    assert sender.congestion.window == before / 2
    sender.on_acknowledgement(2 * MSS, True, MS)
    assert sender.congestion.window == before / 2  # still the window that was cut
    assert sender.timeouts == 0


def test_alpha_follows_the_share_of_marked_bytes() -> None:
    sender = Sender()
    sender.write(100_000 * MSS, 0)
    position = 0
    for step in range(2000):  # every fourth acknowledgement is marked
        sent(sender, step)
        position += MSS
        sender.on_acknowledgement(position, step % 4 == 0, step)
    assert isinstance(sender.congestion, Dctcp)
    assert sender.congestion.alpha == pytest.approx(0.25, abs=0.1)


def test_marks_do_not_keep_a_window_below_two_segments() -> None:
    sender = Sender()
    sender.write(1000 * MSS, 0)
    position = 0
    for step in range(200):
        sent(sender, step)
        position += MSS
        sender.on_acknowledgement(position, True, step)
    assert sender.congestion.window == 2 * MSS


@settings(max_examples=examples(300))
@given(
    seed=st.integers(0, 2**32),
    loss=st.sampled_from([0.0, 0.05, 0.3]),
    length=st.integers(1, 100 * MSS),
    algorithm=st.sampled_from(ALGORITHMS),
)
def test_a_stream_always_arrives(seed: int, loss: float, length: int, algorithm: Algorithm) -> None:
    """Loss, duplication and reordering of segments and acknowledgements alike."""
    random, sender, receiver = Random(seed), Sender(TcpConfig(algorithm=algorithm)), Receiver()
    sender.write(length, 0)
    events: list[tuple[int, int, int, int | list[tuple[int, int]]]] = []
    now = number = 0

    def carry(first: int, second: int | list[tuple[int, int]]) -> None:
        """A segment's start and length, or what is acknowledged."""
        nonlocal number
        for _ in range(2 if random.random() < 0.1 else 1):
            if random.random() >= loss:
                number += 1
                heapq.heappush(events, (now + random.randrange(MS), number, first, second))

    for _ in range(100_000):
        while segment := sender.segment(now):
            carry(*segment)
        if sender.done:
            break
        times = [time for time in (sender.deadline, sender.held) if time is not None]
        if not events or (times and min(times) < events[0][0]):
            assert times, "nothing under way and no timer"
            now = max(now, min(times))
            sender.on_timer(now)
            continue
        now, _, first, second = heapq.heappop(events)
        if isinstance(second, int):
            receiver.on_segment(first, second)
            carry(receiver.expected, receiver.blocks())
        else:
            sender.on_acknowledgement(first, random.random() < 0.2, now, second)
    assert sender.done
    assert receiver.expected == length


def bottleneck(
    senders: int, *, seed: int = 1, loss: float = 0.0, depth: int = 64, algorithm: Algorithm = "dctcp"
) -> tuple[Network, list[Stream]]:
    """Streams from hosts h1, h2, ... to the last host, which all begin at once and do not end."""
    topology = single_switch(senders + 1, "127.0.0.1:1", target="soft")
    link = LinkSpec(RATE, Faults(delay=5_000, loss=loss))
    network = Network(topology, seed=seed, link=link, queueing=Queueing(depth_packets=depth))
    config = TcpConfig(algorithm=algorithm)
    streams = [network.stream(f"h{i + 1}", f"h{senders + 1}", config) for i in range(senders)]
    for stream in streams:
        stream.write(1 << 40)
    return network, streams


def rates(network: Network, streams: list[Stream], seconds: float) -> list[float]:
    """Return bits per second that each stream delivered in that time from now."""
    before = [stream.receiver.expected for stream in streams]
    network.run_for(seconds)
    return [(s.receiver.expected - b) * 8 / seconds for s, b in zip(streams, before, strict=True)]


@pytest.mark.parametrize(("algorithm", "share"), [("dctcp", 0.99), ("cubic", 0.99), ("bbr", 0.97)])
def test_one_stream_fills_a_clean_link(algorithm: Algorithm, share: float) -> None:
    network, streams = bottleneck(1, algorithm=algorithm)
    with network:
        network.run_for(0.01)
        (rate,) = rates(network, streams, 0.03)
    assert rate > share * GOODPUT


def test_bbr_fills_links_that_lose_and_no_queue() -> None:
    network, streams = bottleneck(1, loss=0.02, algorithm="bbr")
    with network:
        network.run_for(0.01)
        (rate,) = rates(network, streams, 0.05)
        (queue,) = network.nodes["s1"].switch.queues(2).statistics()[:1]
    assert rate > 0.85 * GOODPUT
    assert queue.dropped_packets == 0


def test_streams_share_a_bottleneck_fairly_and_leave_none_of_it() -> None:
    network, streams = bottleneck(4)
    with network:
        network.run_for(0.05)
        got = rates(network, streams, 0.4)
    assert sum(got) > 0.97 * GOODPUT
    jain = sum(got) ** 2 / (len(got) * sum(rate**2 for rate in got))
    assert jain > 0.95


def test_the_queue_stays_near_the_mark_threshold() -> None:
    network, _ = bottleneck(2)
    depths = []
    with network:
        network.run_for(0.02)
        switch = network.nodes["s1"].switch
        for _ in range(2000):
            network.run_for(0.00005)
            depths.append(switch.queues(3).statistics()[0].depth_packets)
        dropped = sum(queue.dropped_packets for queue in switch.queues(3).statistics())
    assert dropped == 0
    assert MARK_AT / 4 < sum(depths) / len(depths) < 1.5 * MARK_AT
    assert max(depths) < 2.5 * MARK_AT


def test_loss_costs_little_and_no_byte() -> None:
    network, streams = bottleneck(2, loss=0.002)
    with network:
        network.run_for(0.01)
        assert sum(rates(network, streams, 0.2)) > 0.9 * GOODPUT
        assert all(stream.sender.retransmissions for stream in streams)


def test_a_burst_that_overflows_the_queue_arrives_all_the_same() -> None:
    topology = single_switch(17, "127.0.0.1:1", target="soft")
    with Network(topology, seed=1, queueing=Queueing(depth_packets=32)) as network:
        streams = [network.stream(f"h{i}", "h17") for i in range(1, 17)]
        for stream in streams:
            stream.write(64_000)
        network.run(lambda: all(stream.sender.done for stream in streams), limit=5)
        assert [stream.receiver.expected for stream in streams] == [64_000] * 16
        assert sum(stream.sender.retransmissions for stream in streams) > 0


def test_frames_are_what_any_receiver_would_accept() -> None:
    topology = single_switch(2, "127.0.0.1:1", target="soft")
    link = LinkSpec(RATE, Faults(delay=5_000, loss=0.05))
    with Network(topology, seed=1, link=link) as network:
        frames: list[bytes] = []
        for ends in (("h1", "s1"), ("h2", "s1")):
            network.link(*ends).tap = lambda _time, frame: frames.append(frame)
        stream = network.stream("h1", "h2")
        stream.write(100 * MSS + 100)
        network.run(lambda: stream.sender.done, limit=1)
    blocks = set()
    for frame in frames:
        packet = Ether(frame)
        again = Ether(frame)
        del again[IP].chksum, again[TCP].chksum
        again = Ether(bytes(again))
        assert (packet[IP].chksum, packet[TCP].chksum) == (again[IP].chksum, again[TCP].chksum)
        assert packet[IP].len == len(frame) - 14
        edges = dict(packet[TCP].options).get("SAck", ())
        assert all(first < last for first, last in zip(edges[::2], edges[1::2], strict=True))
        blocks.add(len(edges) // 2)
    assert {0, 1} <= blocks
    assert {len(frame) for frame in frames} >= {OVERHEAD, OVERHEAD + 12, OVERHEAD + 100, OVERHEAD + MSS}
