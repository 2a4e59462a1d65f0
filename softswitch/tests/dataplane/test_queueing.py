# SPDX-License-Identifier: Apache-2.0
"""The traffic manager: rates, priorities, depths, and what a packet keeps while it waits."""

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from softp4.errors import Code, ControlError
from softp4.runtime.queueing import Queueing, QueueStatistics, parse_rate
from softp4.switch import Switch
from tests.harness.effort import examples
from tests.programs import pack, program, unpack

MULTICAST, DROP, CLONE_IN, CLONE_OUT, RECIRCULATE = 1, 2, 4, 8, 16
ORDER = 12  # bytes of the order header
SEEN = (8, 8, 16, 16, 48, 48, 32, 32, 32, 32, 32, 32, 32)
REPORT = sum(SEEN) // 8
SECOND = 10**9
MBIT = 10**6
PORT, OTHER = 3, 4


@dataclass(frozen=True)
class Copy:
    """A frame that left, with what its egress saw."""

    port: int
    type: int
    priority: int
    rid: int
    ingress_port: int
    arrived: int
    left: int
    enq_timestamp: int
    enq_qdepth: int
    deq_timedelta: int
    deq_qdepth: int
    inside: int
    number: int
    drawn: int
    rest: bytes


@pytest.fixture
def switch() -> Iterator[Switch]:
    with Switch(program("queues")) as made:
        yield made


def order(
    to: int = PORT, *, what: int = 0, priority: int = 0, low: int = 0, high: int = 0, length: int = 100
) -> bytes:
    """Return a frame that leaves with ``length`` bytes, the report included."""
    head = pack([(what, 8), (priority, 8), (to, 16), (low, 32), (high, 32)])
    return head + (bytes(range(256)) * 8)[: length - ORDER - REPORT]


def read(sent: list[tuple[int, bytes]]) -> list[Copy]:
    return [Copy(port, *unpack(frame[:REPORT], SEEN), frame[REPORT:]) for port, frame in sent]


def send(switch: Switch, frame: bytes, now: int = 0) -> list[Copy]:
    return read(switch.process(1, frame, now))


def run_dry(switch: Switch) -> list[tuple[int, Copy]]:
    """Let everything leave when it is due: (time, copy)."""
    left = []
    while (due := switch.deadline()) is not None:
        left += [(due, copy) for copy in read(switch.step(due))]
    return left


def counts(switch: Switch, priority: int = 0, port: int = PORT) -> QueueStatistics:
    return switch.queues(port).statistics()[priority]


# -- ports without limits --------------------------------------------------------------------------------


def test_a_port_without_limits_has_no_queue(switch: Switch) -> None:
    (copy,) = send(switch, order(), 5_000_000)
    assert (copy.enq_timestamp, copy.left) == (5000, 5000)
    assert copy.enq_qdepth == copy.deq_qdepth == copy.deq_timedelta == 0
    assert switch.deadline() is None
    assert switch.step(10**12) == []
    assert switch.queues(PORT).statistics() == (QueueStatistics(0, 0, 0, 0, 0, 0),) * 8


def test_limits_of_one_port_leave_the_others_alone(switch: Switch) -> None:
    switch.queues(OTHER).set(Queueing(rate_bps=1))
    for _ in range(5):
        (copy,) = send(switch, order(), 7_000_000)
        assert (copy.port, copy.left, copy.enq_qdepth) == (PORT, 7000, 0)


# -- rates -----------------------------------------------------------------------------------------------


def test_a_frame_leaves_when_the_line_is_free(switch: Switch) -> None:
    """The first at once, each other when the one before is out: 8 us for 100 bytes at 100 Mbit/s."""
    switch.queues(PORT).set(Queueing(rate_bps=100 * MBIT))
    assert [copy.left for copy in send(switch, order(), 1000_000)] == [1000]
    assert send(switch, order(length=200), 1001_000) == []
    assert send(switch, order(), 1002_000) == []
    assert [time for time, _ in run_dry(switch)] == [1008_000, 1024_000]
    assert switch.deadline() is None
    assert switch.step(1032_000) == []
    assert len(send(switch, order(), 1032_000)) == 1, "idle again"
    assert send(switch, order(), 1039_999) == []


def test_fractions_of_nanoseconds_add_up(switch: Switch) -> None:
    """A million bits a second and a third: no rate drifts."""
    rate = 999_999_937
    switch.queues(PORT).set(Queueing(rate_bps=rate, depth_packets=1000))
    for _ in range(1000):
        send(switch, order())
    left = run_dry(switch)
    assert left[-1][0] == 999 * 800 * SECOND // rate


def test_packets_per_second_count_what_egress_drops(switch: Switch) -> None:
    switch.queues(PORT).set(Queueing(rate_pps=1000))
    assert send(switch, order(what=DROP)) == []
    send(switch, order(length=1000))
    send(switch, order())
    assert [time for time, _ in run_dry(switch)] == [SECOND // 1000, 2 * SECOND // 1000]


def test_what_egress_drops_takes_no_time_on_the_line(switch: Switch) -> None:
    switch.queues(PORT).set(Queueing(rate_bps=MBIT))
    assert send(switch, order(what=DROP)) == []
    assert len(send(switch, order())) == 1
    assert counts(switch).packets == 1


def test_a_burst_leaves_at_once_after_a_pause(switch: Switch) -> None:
    switch.queues(PORT).set(Queueing(rate_bps=8 * MBIT, burst_bytes=300))  # 1 us a byte
    left = [len(send(switch, order())) for _ in range(6)]
    assert left == [1, 1, 1, 1, 0, 0], "one, and 300 bytes ahead"
    assert [time for time, _ in run_dry(switch)] == [100_000, 200_000]
    assert len(send(switch, order(), SECOND)) == 1, "the bucket is no larger after a long pause"
    assert [len(send(switch, order(), SECOND)) for _ in range(4)] == [1, 1, 1, 0]


def test_both_rates_hold(switch: Switch) -> None:
    switch.queues(PORT).set(Queueing(rate_bps=8 * MBIT, rate_pps=5000))  # 1 us a byte, 200 us a packet
    for length in (100, 500, 100):
        send(switch, order(length=length))
    assert [time for time, _ in run_dry(switch)] == [200_000, 700_000]


# -- queues ----------------------------------------------------------------------------------------------


def test_higher_priorities_go_first_and_each_in_order(switch: Switch) -> None:
    switch.queues(PORT).set(Queueing(rate_bps=MBIT))
    send(switch, order())
    for priority in (0, 7, 3, 7, 0, 5, 3):
        send(switch, order(priority=priority))
    left = [copy for _, copy in run_dry(switch)]
    assert [copy.priority for copy in left] == [7, 7, 5, 3, 3, 0, 0]
    assert [copy.number for copy in left] == [3, 5, 7, 4, 8, 2, 6]


def test_a_full_queue_drops_and_counts_and_others_do_not_care(switch: Switch) -> None:
    switch.queues(PORT).set(Queueing(rate_bps=1000, depth_packets=2))
    for priority in (0, 0, 0, 0, 1, 1, 1, 1):
        send(switch, order(priority=priority))
    arrived = 100 - REPORT
    assert counts(switch, 0) == QueueStatistics(1, 100, 2, 2 * arrived, 1, arrived)
    assert counts(switch, 1) == QueueStatistics(0, 0, 2, 2 * arrived, 2, 2 * arrived)
    assert switch.statistics().packets_dropped == 3
    assert len(run_dry(switch)) == 4
    assert counts(switch, 0) == QueueStatistics(3, 300, 0, 0, 1, arrived)


def test_depth_in_bytes(switch: Switch) -> None:
    switch.queues(PORT).set(Queueing(rate_bps=1000, depth_bytes=150))
    for length in (100, 150, 150, 60, 92):  # without the report: 54, 104, 104, 14, 46
        send(switch, order(length=length))
    assert (counts(switch).dropped_packets, counts(switch).dropped_bytes) == (2, 150)
    assert (counts(switch).depth_packets, counts(switch).depth_bytes) == (2, 118)


def test_what_a_packet_learns_about_its_queue(switch: Switch) -> None:
    switch.queues(PORT).set(Queueing(rate_pps=1000))
    first = send(switch, order(priority=2), 10_000_000)
    for now in (10_100_000, 10_200_000, 10_300_000):
        send(switch, order(priority=2), now)
    send(switch, order(priority=1), 10_400_000)
    copies = first + [copy for _, copy in run_dry(switch)]
    assert [copy.enq_timestamp for copy in copies] == [10_000, 10_100, 10_200, 10_300, 10_400]
    assert [copy.enq_qdepth for copy in copies] == [0, 0, 1, 2, 0]
    assert [copy.deq_timedelta for copy in copies] == [0, 900, 1800, 2700, 3600]
    assert [copy.deq_qdepth for copy in copies] == [0, 2, 1, 0, 0]
    assert [copy.left for copy in copies] == [10_000, 11_000, 12_000, 13_000, 14_000]
    assert [copy.arrived for copy in copies] == [copy.enq_timestamp for copy in copies]
    assert {copy.ingress_port for copy in copies} == {1}


def test_ingress_and_egress_share_registers(switch: Switch) -> None:
    """So a program can count what it has let in and what has not left yet."""
    switch.queues(PORT).set(Queueing(rate_bps=MBIT))
    for _ in range(4):
        send(switch, order())
    assert switch.register("inside").read(PORT) == 3
    assert [copy.inside for _, copy in run_dry(switch)] == [2, 1, 0]
    assert switch.register("inside").read(PORT) == 0


def test_a_packet_that_waits_keeps_itself(switch: Switch) -> None:
    """Headers, metadata and payload, whatever passes in the meantime."""
    switch.queues(PORT).set(Queueing(rate_bps=10_000))
    rng = random.Random(1)
    frames = []
    for number in range(40):
        frame = order(priority=number % 8, length=58) + rng.randbytes(rng.randrange(1500))
        frames.append(frame)
        first = switch.process(1, frame, 0)
        switch.process(1, order(OTHER) + rng.randbytes(1500), 0)
        assert len(first) == (number == 0)
    left = [copy for _, copy in run_dry(switch)]
    assert len(left) == 39
    assert all(copy.rest == frames[(copy.number - 1) // 2] for copy in left)


# -- what is made of packets -----------------------------------------------------------------------------


def test_replicas_wait_each_for_its_port(switch: Switch) -> None:
    switch.queues(PORT).set(Queueing(rate_pps=10))
    switch.queues(OTHER).set(Queueing(rate_pps=1000))
    switch.multicast_groups.set(9, [(PORT, 1), (5, 2), (OTHER, 3)])
    frame = order(9, what=MULTICAST, priority=4)
    assert sorted((copy.port, copy.rid) for copy in send(switch, frame)) == [(PORT, 1), (OTHER, 3), (5, 2)]
    assert [(copy.port, copy.rid) for copy in send(switch, frame)] == [(5, 2)]
    left = run_dry(switch)
    assert [(time, copy.port, copy.rid) for time, copy in left] == [
        (SECOND // 1000, OTHER, 3),
        (SECOND // 10, PORT, 1),
    ]
    assert all(copy.rest == frame and copy.type == 5 for _, copy in left)


@pytest.mark.parametrize("kind, instance", [(CLONE_IN, 1), (CLONE_OUT, 2)])
def test_clones_wait_too(switch: Switch, kind: int, instance: int) -> None:
    """In the queue that their own priority says: a clone's is 0, it is not on the field list."""
    switch.clone_sessions.set(1, [(PORT, 6)])
    switch.queues(PORT).set(Queueing(rate_pps=1000))
    frame = order(OTHER, what=kind, priority=5)
    assert sorted((copy.port, copy.type) for copy in send(switch, frame)) == [(PORT, instance), (OTHER, 0)]
    assert [copy.port for copy in send(switch, frame)] == [OTHER]
    assert counts(switch, 0).depth_packets == 1
    ((_, copy),) = run_dry(switch)
    assert (copy.type, copy.rid, copy.number, copy.rest) == (instance, 6, 2, frame)


def test_a_packet_from_a_queue_can_be_recirculated(switch: Switch) -> None:
    switch.queues(PORT).set(Queueing(rate_pps=1000))
    assert send(switch, order(what=RECIRCULATE, priority=6)) == [], "back in the queue"
    assert counts(switch, 6).depth_packets == 1
    ((time, copy),) = run_dry(switch)
    assert (time, copy.rest) == (SECOND // 1000, order(priority=6))


def test_what_recirculates_forever_through_a_queue_ends() -> None:
    with Switch(program("traffic")) as switch:
        switch.clone_sessions.set(3, [(1, 1)])
        for limits in (Queueing(), Queueing(rate_pps=10**9)):
            switch.queues(1).set(limits)
            assert switch.process(5, pack([(10, 8), (2, 16), (0, 8)]), 0) == []
        while (due := switch.deadline()) is not None:
            assert switch.step(due) == []
        assert switch.statistics().packets_dropped == 2


def test_what_goes_round_and_multiplies_leaves_the_switch_to_others_in_between() -> None:
    """Clones of recirculated packets, of which egress sends none: all of them are always due at once."""
    with Switch(program("traffic")) as switch:
        for port in range(4):
            switch.queues(port).set(Queueing())
        switch.clone_sessions.set(3, [(port, 1) for port in range(4)])
        assert switch.process(5, pack([(10, 8), (3, 16), (0, 8)]), 0) == []
        dropped = []
        for _ in range(3):
            assert switch.step(0) == []
            assert switch.deadline() is not None, "they are not through"
            dropped.append(switch.statistics().packets_dropped)
        assert dropped[0] < dropped[1] < dropped[2] < 10**6, "every step does a part of it"
        switch.clone_sessions.set(3, [])
        steps = 0
        while switch.deadline() is not None:  # those that are left go round until they have done so too often
            assert switch.step(0) == []
            steps += 1
        assert steps < 1000


def test_a_port_that_loses_its_limits_while_packets_multiply_holds_no_more_and_more() -> None:
    with Switch(program("traffic")) as switch:
        switch.queues(1).set(Queueing())
        switch.clone_sessions.set(3, [(1, 1), (1, 2)])
        assert switch.process(5, pack([(10, 8), (3, 16), (0, 8)]), 0) == []
        switch.queues(1).set(None)
        for _ in range(10):
            assert switch.step(0) == []
            assert counts(switch, port=1).depth_packets <= 1024


def test_what_passes_an_earlier_packet_of_a_lower_priority_is_counted(switch: Switch) -> None:
    """Not what came at the same time or earlier, nor what has only its own queue's packets beside it."""
    switch.queues(PORT).set(Queueing(rate_pps=1))
    switch.queues(OTHER).set(Queueing(rate_pps=1))
    send(switch, order())  # leaves at once
    send(switch, order(OTHER), 0)
    send(switch, order(OTHER), 0)
    send(switch, order(priority=2), 1)
    send(switch, order(priority=5), 1)
    send(switch, order(priority=5), 2)
    send(switch, order(priority=2), 3)
    run_dry(switch)
    overtaking = [each.overtaking_packets for each in switch.queues(PORT).statistics()]
    assert overtaking == [0, 0, 0, 0, 0, 1, 0, 0]
    assert not any(each.overtaking_packets for each in switch.queues(OTHER).statistics())


def test_times_due_at_once_go_by_port_number(switch: Switch) -> None:
    for port in (7, 2, 5):
        switch.queues(port).set(Queueing(rate_pps=100))
    for port in (5, 7, 2, 5, 7, 2):
        send(switch, order(port))
    assert [port for port, _ in switch.step(SECOND)] == [2, 5, 7]


# -- time ------------------------------------------------------------------------------------------------


def test_a_late_step_changes_nothing_but_the_moment(switch: Switch) -> None:
    """Every frame sees the time at which it was due; frames that come late see their own."""
    with Switch(program("queues")) as late:
        for each in (switch, late):
            each.queues(PORT).set(Queueing(rate_pps=1000))
            for priority in (1, 2, 3):
                each.process(1, order(priority=priority), 0)
        timely = [copy for _, copy in run_dry(switch)]
        assert read(late.process(1, order(OTHER), SECOND))[:2] == timely
        assert [copy.left for copy in timely] == [1000, 2000]


def test_process_first_sends_what_is_due(switch: Switch) -> None:
    switch.queues(PORT).set(Queueing(rate_pps=1000))
    for _ in range(3):
        send(switch, order())
    assert [copy.number for copy in send(switch, order(OTHER), 1_500_000)] == [2, 4]
    assert [copy.number for copy in send(switch, bytes(5000), 3_000_000)] == [3], "too long, itself"


# -- changing limits -------------------------------------------------------------------------------------


def test_another_rate_holds_at_once_for_what_waits(switch: Switch) -> None:
    switch.queues(PORT).set(Queueing(rate_bps=800))  # a second for a frame
    for _ in range(4):
        send(switch, order())
    assert switch.deadline() == SECOND
    switch.step(SECOND // 2)
    switch.queues(PORT).set(Queueing(rate_bps=8000))
    assert [time for time, _ in run_dry(switch)] == [SECOND // 2 + SECOND * i // 20 for i in (1, 3, 5)]


def test_lower_depths_keep_what_waits(switch: Switch) -> None:
    switch.queues(PORT).set(Queueing(rate_bps=800))
    for _ in range(5):
        send(switch, order())
    switch.queues(PORT).set(Queueing(rate_bps=800, depth_packets=0))
    send(switch, order())
    assert (counts(switch).depth_packets, counts(switch).dropped_packets) == (4, 1)
    assert len(run_dry(switch)) == 4


def test_without_limits_what_waits_leaves_before_what_comes(switch: Switch) -> None:
    switch.queues(PORT).set(Queueing(rate_bps=1))
    for _ in range(3):
        send(switch, order(), 5000)
    switch.queues(PORT).clear()
    assert switch.deadline() == 5000
    assert [copy.number for copy in send(switch, order(), 6000)] == [2, 3, 4]
    assert switch.deadline() is None
    switch.queues(PORT).clear()
    assert switch.queues(PORT).statistics() == (QueueStatistics(0, 0, 0, 0, 0, 0),) * 8


def test_a_switch_goes_with_all_that_waits() -> None:
    with Switch(program("queues")) as switch:
        switch.queues(PORT).set(Queueing(rate_bps=1))
        for _ in range(10):
            send(switch, order())


def test_refusals(switch: Switch) -> None:
    for port in (-1, 512):
        with pytest.raises(ControlError, match="ports are 0 to 511") as caught:
            switch.queues(port).set(Queueing())
        assert caught.value.code is Code.INVALID_ARGUMENT
    for bad in ({"rate_bps": 0}, {"rate_pps": 0}, {"burst_bytes": -1}, {"depth_packets": 2**32}):
        with pytest.raises(ValueError, match=f"{next(iter(bad))} is"):
            Queueing(**bad)


def test_rates_in_words() -> None:
    words = {"100mbit": 10**8, "2.5Gbit": 25 * 10**8, "64kbit/s": 64_000, "9600bit": 9600, "1 bit": None}
    words |= {
        "mbit": None,
        "-1mbit": None,
        "0": None,
        "100": None,
        "2.5": None,
        "0bit": None,
        "1mbyte": None,
        "10000000gbit": None,
    }
    for text, rate in words.items():
        if rate is not None:
            assert parse_rate(text) == rate
        else:
            with pytest.raises(ValueError, match="is no rate"):
                parse_rate(text)


# -- random numbers --------------------------------------------------------------------------------------


def test_random_numbers_lie_between_bounds_a_packet_brings(switch: Switch) -> None:
    for low, high in [(0, 0), (7, 7), (10, 13), (0, 2**32 - 1), (2**32 - 2, 2**32 - 1)]:
        drawn = [send(switch, order(low=low, high=high))[0].drawn for _ in range(300)]
        assert all(low <= number <= high for number in drawn)
        assert len(set(drawn)) >= min(high - low + 1, 250)


def test_switches_draw_by_their_seed() -> None:
    def draw(seed: int) -> list[int]:
        with Switch(program("queues"), seed=seed) as switch:
            return [send(switch, order(high=2**32 - 1))[0].drawn for _ in range(20)]

    assert draw(1) == draw(1)
    assert len({number for seed in range(8) for number in draw(seed)}) == 160


# -- against a model -------------------------------------------------------------------------------------


class Model:
    """Strict priorities and one rate, from the words of softp4/runtime/queueing.py."""

    def __init__(self, rate: int, depth: int) -> None:
        self.rate, self.depth = rate, depth
        self.queues: list[deque[tuple[int, int]]] = [deque() for _ in range(8)]
        self.free = 0
        self.left: list[tuple[int, int]] = []  # (microseconds, number)

    def step(self, now: int) -> None:
        # In parts of a nanosecond; a packet leaves in the one in which the line becomes free.
        while self.free // self.rate <= now:
            queue = next((each for each in reversed(self.queues) if each), None)
            if queue is None:
                return
            number, length = queue.popleft()
            self.left.append((self.free // self.rate // 1000, number))
            self.free += length * 8 * SECOND

    def arrive(self, now: int, priority: int, number: int, length: int) -> None:
        self.step(now)
        if len(self.queues[priority]) < self.depth:
            if not any(self.queues):
                self.free = max(self.free, now * self.rate)
            self.queues[priority].append((number, length))
        self.step(now)


arrivals = st.lists(
    st.tuples(st.integers(0, 40_000), st.integers(0, 7), st.integers(58, 1500)), min_size=1, max_size=80
)


@settings(max_examples=examples(150))
@given(arrivals, st.integers(10**6, 10**10), st.integers(1, 10))
@example([(0, 0, 381), (0, 0, 58), (519, 0, 58)], 5_861_538_462, 1)  # the first takes 519.99999996 ns
def test_any_arrivals_leave_as_the_model_says(
    steps: list[tuple[int, int, int]], rate: int, depth: int
) -> None:
    model = Model(rate, depth)
    now = 0
    with Switch(program("queues")) as switch:
        switch.queues(PORT).set(Queueing(rate_bps=rate, depth_packets=depth))
        left = []
        for number, (pause, priority, length) in enumerate(steps, 1):
            now += pause
            model.arrive(now, priority, number, length)
            left += send(switch, order(priority=priority, length=58) + bytes(length - 58), now)
        left += [copy for _, copy in run_dry(switch)]
        model.step(10**12)
        assert [(copy.left, copy.number) for copy in left] == model.left
        dropped = sum(each.dropped_packets for each in switch.queues(PORT).statistics())
        assert dropped == len(steps) - len(left)
