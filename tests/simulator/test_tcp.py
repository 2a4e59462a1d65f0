# SPDX-License-Identifier: Apache-2.0
"""DCTCP: the machines by themselves, then over a real switch."""

import heapq
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.layers.inet import IP, TCP
from scapy.layers.l2 import Ether

from controller.qos import DEFAULT_CLASSES
from controller.topology import single_switch
from simulator.clock import SECOND
from simulator.link import Faults
from simulator.network import LinkSpec, Network
from simulator.stream import OVERHEAD, Stream
from simulator.tcp import MSS, Receiver, Sender, TcpConfig
from softswitch.queueing import Queueing
from wire.definition import BEST_EFFORT_DSCP

MS = 1_000_000
RATE = 1_000_000_000
GOODPUT = RATE * MSS / (MSS + OVERHEAD)  # of full segments, bits per second
MARK_AT = DEFAULT_CLASSES[BEST_EFFORT_DSCP].mark_at


def sent(sender: Sender, now: int) -> list[tuple[int, int]]:
    segments = []
    while segment := sender.segment(now):
        segments.append(segment)
    return segments


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
    before = sender.window
    sender.on_acknowledgement(2 * MSS, False, MS)
    assert sender.window == before


def test_three_duplicates_repeat_the_lost_segment_and_halve_the_window() -> None:
    sender, receiver = Sender(), Receiver()
    sender.write(10 * MSS, 0)
    segments = sent(sender, 0)
    for start, length in segments[1:4]:
        assert not receiver.on_segment(start, length)
        assert sent(sender, MS) == []
        sender.on_acknowledgement(receiver.expected, False, MS)
    assert sent(sender, MS) == [(0, MSS)]
    receiver.on_segment(0, MSS)
    for start, length in segments[4:]:
        receiver.on_segment(start, length)
    assert receiver.expected == 10 * MSS
    sender.on_acknowledgement(receiver.expected, False, 2 * MS)
    assert sender.done
    assert (sender.retransmissions, sender.timeouts) == (1, 0)
    assert sender.ssthresh == 5 * MSS


def test_a_partial_acknowledgement_repeats_the_next_hole_without_a_timer() -> None:
    sender, receiver = Sender(), Receiver()
    sender.write(10 * MSS, 0)
    lost = {0, 4 * MSS}
    for start, length in sent(sender, 0):
        if start not in lost:
            receiver.on_segment(start, length)
            sender.on_acknowledgement(receiver.expected, False, MS)
    repeated = []
    for _ in range(2):
        (segment,) = sent(sender, MS)
        repeated.append(segment)
        receiver.on_segment(*segment)
        sender.on_acknowledgement(receiver.expected, False, MS)
    assert repeated == [(0, MSS), (4 * MSS, MSS)]
    assert sender.done
    assert sender.timeouts == 0


def test_a_lost_tail_waits_for_the_timer_which_backs_off() -> None:
    config = TcpConfig(min_rto=10 * MS)
    sender = Sender(config)
    sender.write(MSS, 0)
    assert sent(sender, 0) == [(0, MSS)]
    for expected in (10, 30, 70):
        assert sender.deadline == expected * MS
        sender.on_timer(sender.deadline - 1)
        assert sent(sender, sender.deadline - 1) == []
        now = sender.deadline
        sender.on_timer(now)
        assert sent(sender, now) == [(0, MSS)]
    sender.on_acknowledgement(MSS, False, 71 * MS)
    assert sender.done
    assert sender.deadline is None
    assert sender.timeouts == 3


def test_the_window_is_cut_by_half_of_alpha_once_per_window() -> None:
    sender = Sender()
    sender.write(1000 * MSS, 0)
    sent(sender, 0)
    assert sender.alpha == 1.0
    before = sender.window
    sender.on_acknowledgement(MSS, True, MS)
    assert sender.window == before / 2
    sender.on_acknowledgement(2 * MSS, True, MS)
    assert sender.window == before / 2  # still the window that was cut
    assert sender.timeouts == 0


def test_alpha_follows_the_share_of_marked_bytes() -> None:
    sender = Sender()
    sender.write(100_000 * MSS, 0)
    position = 0
    for step in range(2000):  # every fourth acknowledgement is marked
        sent(sender, step)
        position += MSS
        sender.on_acknowledgement(position, step % 4 == 0, step)
    assert sender.alpha == pytest.approx(0.25, abs=0.1)


def test_marks_do_not_keep_a_window_below_two_segments() -> None:
    sender = Sender()
    sender.write(1000 * MSS, 0)
    position = 0
    for step in range(200):
        sent(sender, step)
        position += MSS
        sender.on_acknowledgement(position, True, step)
    assert sender.window == 2 * MSS


@settings(deadline=None, max_examples=300)
@given(seed=st.integers(0, 2**32), loss=st.sampled_from([0.0, 0.05, 0.3]), length=st.integers(1, 100 * MSS))
def test_a_stream_always_arrives(seed: int, loss: float, length: int) -> None:
    """Loss, duplication and reordering of segments and acknowledgements alike."""
    random, sender, receiver = Random(seed), Sender(), Receiver()
    sender.write(length, 0)
    events: list[tuple[int, int, int, int]] = []  # (time, number, start or acknowledged, length or 0)
    now = number = 0

    def carry(first: int, second: int) -> None:
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
        if not events or (sender.deadline is not None and sender.deadline < events[0][0]):
            assert sender.deadline is not None, "nothing under way and no timer"
            now = max(now, sender.deadline)
            sender.on_timer(now)
            continue
        now, _, first, second = heapq.heappop(events)
        if second:
            receiver.on_segment(first, second)
            carry(receiver.expected, 0)
        else:
            sender.on_acknowledgement(first, random.random() < 0.2, now)
    assert sender.done
    assert receiver.expected == length


def bottleneck(
    senders: int, *, seed: int = 1, loss: float = 0.0, depth: int = 64
) -> tuple[Network, list[Stream]]:
    """Streams from hosts h1, h2, ... to the last host, which all begin at once and do not end."""
    topology = single_switch(senders + 1, "127.0.0.1:1", target="soft")
    link = LinkSpec(RATE, Faults(delay=5_000, loss=loss))
    network = Network(topology, seed=seed, link=link, queueing=Queueing(depth_packets=depth))
    streams = [network.stream(f"h{i + 1}", f"h{senders + 1}") for i in range(senders)]
    for stream in streams:
        stream.write(1 << 40)
    return network, streams


def rates(network: Network, streams: list[Stream], seconds: float) -> list[float]:
    """Bits per second that each stream delivered in that time from now."""
    before = [stream.receiver.expected for stream in streams]
    network.run_for(seconds)
    return [(s.receiver.expected - b) * 8 / seconds for s, b in zip(streams, before, strict=True)]


def test_one_stream_fills_a_clean_link() -> None:
    network, streams = bottleneck(1)
    with network:
        network.run_for(0.005)
        (rate,) = rates(network, streams, 0.05)
    assert rate > 0.99 * GOODPUT


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
            depths.append(switch.queue_statistics(3)[0].depth_packets)
        dropped = sum(queue.dropped_packets for queue in switch.queue_statistics(3))
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
    with Network(topology, seed=1) as network:
        frames: list[bytes] = []
        for ends in (("h1", "s1"), ("h2", "s1")):
            network.link(*ends).tap = lambda _time, frame: frames.append(frame)
        stream = network.stream("h1", "h2")
        stream.write(MSS + 100)
        network.run(lambda: stream.sender.done, limit=1)
    assert {len(frame) for frame in frames} == {OVERHEAD, OVERHEAD + 100, OVERHEAD + MSS}
    for frame in frames:
        packet = Ether(frame)
        again = Ether(frame)
        del again[IP].chksum, again[TCP].chksum
        again = Ether(bytes(again))
        assert (packet[IP].chksum, packet[TCP].chksum) == (again[IP].chksum, again[TCP].chksum)
        assert packet[IP].len == len(frame) - 14
    assert network.clock.now < SECOND
