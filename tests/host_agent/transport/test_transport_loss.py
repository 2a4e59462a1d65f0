# SPDX-License-Identifier: Apache-2.0
"""What the transport gives up, protects, repeats and asks for, packet by packet: the test is the switch."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.host_agent.transport.answers import answer_all, groups_of, packets, result
from weir.host_agent.transport.codec import Column, Packet
from weir.host_agent.transport.frames import Datagram
from weir.host_agent.transport.report import Account, Verdict
from weir.host_agent.transport.service_class import ServiceClass
from weir.host_agent.transport.slot_transport import Congestion, SlotTransport, TransportConfig
from weir.wire.definition import ECT, LAYER_CLASSES, NOT_ECT, RELIABLE_DSCP, Flag, Op, PacketType, dscp

MS = 1_000_000
RELIABLE = RELIABLE_DSCP << 2 | ECT
PROBE = (Flag.PROTECTED | Flag.TRIMMED | Flag.ANSWER, RELIABLE)
SHED, KEPT = (Flag(0), dscp(0, 0) << 2 | NOT_ECT), (Flag.PROTECTED, dscp(0) << 2 | ECT)


def transport(slots: int = 4, **more: Any) -> SlotTransport:
    """Return one that asks for nothing before a retransmission timeout, unless ``more`` says so."""
    patient = {"min_probe": 10.0, "reordering": 10.0}
    return SlotTransport(TransportConfig(job=7, worker=0, workers=2, slots=slots, **(patient | more)))


def begun(
    blocks: int, budgets: Sequence[int], accounts: Sequence[int] | None = None, slots: int = 4, **more: Any
) -> SlotTransport:
    """Return a transport with a reduce of blocks of 256 ones."""
    t = transport(slots, **more)
    t.begin_reduction(Op.ADD, 256, np.ones(blocks * 256, np.uint32), service(budgets, accounts))
    return t


def service(budgets: Sequence[int], accounts: Sequence[int] | None = None) -> ServiceClass:
    return ServiceClass(
        accounts=None if accounts is None else np.array(accounts, np.uint16),
        budgets=np.array(budgets, np.uint64),
    )


def treatment(datagram: Datagram) -> tuple[Flag, int]:
    return Packet.decode(datagram.payload).flags, datagram.traffic_class


def send(t: SlotTransport, now: int = 0) -> list[Datagram]:
    return t.poll(now)[0]


def answer(t: SlotTransport, datagram: Datagram, now: int = 0, **changes: Any) -> Verdict:
    """Send the round's result; ``included=0, groups={}`` leaves the transport's lanes out."""
    return t.on_packet(result(Packet.decode(datagram.payload), **changes).encode(), now)


def leave_out(t: SlotTransport, datagram: Datagram, now: int = 0) -> Verdict:
    return answer(t, datagram, now, included=0, groups={})


def ask(t: SlotTransport, datagram: Datagram, now: int = 0, **changes: Any) -> Verdict:
    """Ask to repeat what this datagram said."""
    packet = result(Packet.decode(datagram.payload), type=PacketType.REPEAT, included=0, groups={})
    return t.on_packet(Packet(**{**packet.__dict__, **changes}).encode(), now)


class TestClasses:
    @pytest.mark.parametrize("layer", range(LAYER_CLASSES))
    def test_lanes_travel_in_their_layers_class(self, layer: int) -> None:
        t = transport()
        t.begin_reduction(Op.ADD, 256, np.ones(256, np.uint32), ServiceClass(layer=layer))
        (datagram,) = send(t)
        assert treatment(datagram) == (Flag.PROTECTED, dscp(layer) << 2 | ECT)
        assert Packet.decode(datagram.payload).layer == layer

    def test_a_packet_says_the_greatest_magnitude_of_the_blocks_that_it_carries(self) -> None:
        t, lanes = transport(), np.ones(8 * 64, np.uint32)
        lanes[64:128] = 0  # block 1
        t.begin_reduction(
            Op.ADD, 64, lanes, ServiceClass(magnitudes=np.array([1, 2, 0, 1, 0, 0, 0, 0], np.uint8))
        )
        assert [packet.magnitude for packet in packets(send(t))] == [1, 0]

    @pytest.mark.parametrize("op", Op)
    def test_packets_without_lanes_are_reliable(self, op: Op) -> None:
        t = transport()
        t.begin_reduction(op, 256, np.zeros(256, np.uint32), ServiceClass(layer=3))
        (datagram,) = send(t)
        assert treatment(datagram) == (Flag(0), RELIABLE)

    def test_what_is_sent_again_is_reliable(self) -> None:
        t = transport(initial_rto=0.1)
        t.begin_reduction(Op.ADD, 256, np.ones(256, np.uint32), ServiceClass(layer=3))
        (first,), (again,) = send(t), send(t, 100 * MS)
        assert treatment(again) == (Flag.PROTECTED, RELIABLE)
        assert again.payload == first.payload


class TestBudget:
    def test_without_one_everything_is_protected(self) -> None:
        assert [treatment(d) for d in send(begun(4, []))] == [KEPT] * 4
        assert [treatment(d) for d in send(begun(4, [0]))] == [KEPT] * 4

    def test_packets_may_be_shed_as_long_as_there_is_room_for_all_of_them_to_be(self) -> None:
        t = begun(6, [2 * 256 + 255])
        first, second, *rest = send(t)
        assert [treatment(d) for d in (first, second, *rest)] == [SHED, SHED, KEPT, KEPT]
        answer(t, first)  # it arrived: room again
        leave_out(t, second)  # it did not: gone for good
        assert [treatment(d) for d in send(t)] == [SHED, KEPT]
        assert t.report().missing.tolist() == [256]

    def test_accounts_are_apart(self) -> None:
        t = begun(4, [256, 0, 256], accounts=[0, 1, 2, 2])
        assert [treatment(d) for d in send(t)] == [SHED, KEPT, SHED, KEPT]

    def test_a_packet_needs_room_for_each_of_its_columns(self) -> None:
        t = transport()
        lanes = np.ones(6 * 128, np.uint32)
        t.begin_reduction(Op.ADD, 128, lanes, service([128, 128, 256], accounts=[0, 0, 0, 1, 2, 2]))
        assert [treatment(d) for d in send(t)] == [KEPT, SHED, SHED]  # 0 twice; 0 and 1; 2 twice

    def test_what_is_reserved_for_half_a_packet_is_handed_back(self) -> None:
        t = transport()
        lanes = np.ones(4 * 128, np.uint32)
        t.begin_reduction(Op.ADD, 128, lanes, service([128, 0, 0], accounts=[0, 1, 2, 0]))
        lanes[256:384] = 0
        assert [treatment(d) for d in send(t)] == [KEPT, KEPT]
        t = transport()
        lanes[:] = 1
        lanes[256:384] = 0  # block 2, the only one of account 2
        t.begin_reduction(Op.ADD, 128, lanes, service([128, 0, 0], accounts=[0, 1, 2, 0]))
        assert [treatment(d) for d in send(t)] == [KEPT, SHED]

    def test_blocks_of_zeros_and_lanes_beyond_the_end_are_free(self) -> None:
        t = transport(fill=True)
        lanes = np.ones(2 * 256 - 100, np.uint32)
        lanes[:256] = 0
        t.begin_reduction(Op.ADD, 256, lanes, service([156]))
        zeros, last = send(t)
        assert [treatment(zeros), treatment(last)] == [SHED, SHED]
        leave_out(t, zeros)
        leave_out(t, last)
        report = t.report()
        assert report.missing.tolist() == [156]
        assert report.returned == Account(156, 156)
        assert report.trimmed == 1

    def test_books_are_new_with_each_reduce(self) -> None:
        t = begun(1, [256])
        leave_out(t, *send(t))
        assert t.report().missing.tolist() == [256]
        t.begin_reduction(Op.ADD, 256, np.ones(256, np.uint32), service([256, 7]))
        assert t.report().missing.tolist() == [0, 0]
        assert t.report().budgets.tolist() == [256, 7]

    @pytest.mark.parametrize(
        ("op", "blocks", "wrong", "message"),
        [
            (Op.MAX, 2, {"budgets": [1]}, "MAX is always lossless"),
            (Op.OR, 2, {"budgets": [0]}, "OR is always lossless"),
            (Op.ADD, 0, {"budgets": [1]}, "a barrier is always lossless"),
            (Op.ADD, 2, {"budgets": [1], "accounts": [0]}, "1 accounts for 2 blocks"),
            (Op.ADD, 2, {"budgets": [1], "accounts": [0, 1]}, "account 1: there are 1"),
            (Op.ADD, 2, {"magnitudes": [0, 0, 0]}, "3 magnitudes for 2 blocks"),
            (Op.ADD, 2, {"magnitudes": [0, 3]}, "magnitude class 3: there are 3"),
            (Op.ADD, 2, {"layer": 4}, r"layer class 4 is not in 0\.\.3"),
        ],
    )
    def test_service_classes_that_do_not_fit(
        self, op: Op, blocks: int, wrong: dict[str, Any], message: str
    ) -> None:
        dtypes = {"budgets": np.uint64, "accounts": np.uint16, "magnitudes": np.uint8}
        with pytest.raises(ValueError, match=message):
            transport().begin_reduction(
                op,
                256,
                np.ones(256 * blocks, np.uint32),
                ServiceClass(**{k: np.array(v, dtypes[k]) if k in dtypes else v for k, v in wrong.items()}),
            )

    def test_arrays_of_the_wrong_kind(self) -> None:
        with pytest.raises(TypeError, match="budgets must be a numpy array of uint64, not int64"):
            ServiceClass(budgets=np.array([1]))


class TestRelease:
    def test_what_may_go_missing_is_released_when_its_timer_fires(self) -> None:
        t = begun(1, [256], initial_rto=0.1)
        (first,) = send(t)
        for now in (100 * MS, 300 * MS):
            (release,) = send(t, now)
            assert treatment(release) == (Flag(0), RELIABLE)
            packet, original = Packet.decode(release.payload), Packet.decode(first.payload)
            assert not packet.groups
            assert (packet.slot, packet.round, packet.columns) == (0, 1, original.columns)
        leave_out(t, first, 400 * MS)
        report = t.report()
        assert (report.timeouts, report.releases, report.retransmissions, report.trimmed) == (2, 2, 0, 1)
        assert report.missing.tolist() == [256]
        assert report.given_back.blocks.tolist() == [0]

    def test_a_release_that_came_too_late_costs_nothing(self) -> None:
        t = begun(2, [256], slots=1, initial_rto=0.1)
        (first,) = send(t)
        send(t, 100 * MS)
        answer(t, first, 110 * MS)  # the first packet had arrived
        (following,) = send(t, 110 * MS)
        assert treatment(following) == SHED
        assert t.report().missing.tolist() == [0]

    def test_a_protected_packet_is_released_once_there_is_room(self) -> None:
        t = begun(3, [256], initial_rto=0.1)
        shed, kept, other = send(t)
        assert treatment(kept) == KEPT
        answer(t, shed, 0)
        (release, again) = send(t, 100 * MS)
        assert treatment(release) == (Flag(0), RELIABLE)
        assert again.payload == other.payload  # no room for two
        assert treatment(again) == (Flag.PROTECTED, RELIABLE)
        report = t.report()
        assert (report.timeouts, report.releases, report.retransmissions) == (2, 1, 1)

    def test_until_a_first_result_only_one_slot_is_released(self) -> None:
        t = begun(4, [4 * 256], initial_rto=0.1)
        send(t)
        assert [packet.slot for packet in packets(send(t, 100 * MS))] == [0]

    def test_nothing_is_released_without_a_budget(self) -> None:
        for budgets in ([], [255]):
            t = begun(1, budgets, initial_rto=0.1)
            (first,), (again,) = send(t), send(t, 100 * MS)
            assert again.payload == first.payload
            assert (t.report().releases, t.report().retransmissions) == (0, 1)


class TestRepeat:
    def test_lanes_that_are_asked_for_go_out_at_once_and_protected(self) -> None:
        t = begun(2, [], initial_rto=0.1)
        first, _ = send(t)
        assert ask(t, first, MS) == Verdict.REPEAT
        (again,) = send(t, MS)
        assert again.payload == first.payload
        assert treatment(again) == (Flag.PROTECTED, RELIABLE)
        assert send(t, 2 * MS) == []
        report = t.report()
        assert (report.repeats_asked, report.retransmissions, report.timeouts) == (1, 1, 0)
        assert not report.refused

    def test_they_are_given_up_no_more_in_that_round(self) -> None:
        t = begun(1, [256], initial_rto=0.1)
        (first,) = send(t)
        ask(t, first, MS)
        for now in (MS, 101 * MS):
            (again,) = send(t, now)
            assert treatment(again) == (Flag.PROTECTED, RELIABLE)
            assert Packet.decode(again.payload).groups
        assert (t.report().timeouts, t.report().releases) == (1, 0)

    def test_but_stay_reserved_for_an_earlier_packet_may_still_count_without_them(self) -> None:
        t = begun(3, [256])
        first, second, _ = send(t)
        ask(t, first)
        send(t)
        ask(t, second)  # protected: there was no room, and there is none now
        send(t)
        leave_out(t, first)
        report = t.report()
        assert report.missing.tolist() == [256] == report.budgets.tolist()

    def test_who_has_no_lanes_stays_silent(self) -> None:
        t = transport()
        t.begin_reduction(Op.ADD, 256, np.zeros(256, np.uint32))
        (first,) = send(t)
        assert ask(t, first) == Verdict.REPEAT
        assert send(t) == []

    def test_questions_that_do_not_fit_are_refused(self) -> None:
        t = begun(8, [])
        first, second, *_ = send(t)
        answer(t, first)
        assert ask(t, first) == Verdict.STALE
        assert ask(t, second, round=2) == Verdict.BAD_ROUND
        assert ask(t, second, columns=(Column(3, 5),)) == Verdict.BAD_COLUMN
        assert ask(t, second, groups=groups_of(np.ones(256, np.uint32))) == Verdict.BAD_GROUPS
        assert ask(t, second, worker=1) == Verdict.WRONG_WORKER
        assert [packet.round for packet in packets(send(t))] == [2]  # of the answered slot, and no other


class TestTrimmedResults:
    def trimmed(self, t: SlotTransport, datagram: Datagram, now: int = 0) -> Verdict:
        return answer(t, datagram, now, groups={}, flags=Flag.TRIMMED)

    def test_they_are_asked_for_at_once_by_a_small_packet(self) -> None:
        t = begun(1, [], initial_rto=0.1)
        (first,) = send(t)
        assert self.trimmed(t, first, MS) == Verdict.TRIMMED
        (again,) = send(t, MS)
        assert treatment(again) == PROBE
        assert not Packet.decode(again.payload).groups
        assert not t.done
        assert answer(t, first, 2 * MS) == Verdict.ACCEPTED
        assert t.done
        report = t.report()
        assert (report.results_trimmed, report.probes, report.retransmissions) == (1, 1, 0)
        assert (report.timeouts, report.releases, report.trimmed) == (0, 0, 0)
        assert report.included == report.entered

    def test_with_lanes_where_the_switch_cannot_lengthen_packets(self) -> None:
        t = begun(1, [], fill=True)
        (first,) = send(t)
        self.trimmed(t, first)
        (again,) = send(t)
        assert again.payload == first.payload

    def test_an_answer_that_is_late_measures_nothing(self) -> None:
        t = begun(3, [], slots=1)
        (first,) = send(t)
        answer(t, first, 10 * MS)
        (second,) = send(t, 10 * MS)
        answer(t, second, 40 * MS)  # the first that nobody can have been late for: 30 ms
        before = t.rto
        (third,) = send(t, 40 * MS)
        self.trimmed(t, third, 41 * MS)
        send(t, 41 * MS)
        answer(t, third, 42 * MS)
        assert t.rto == before == 0.09

    def test_they_tell_that_every_worker_is_there(self) -> None:
        t = begun(3, [], initial_rto=0.1)
        first, *_ = send(t)
        self.trimmed(t, first, 50 * MS)
        send(t, 50 * MS)
        assert [p.slot for p in packets(send(t, 150 * MS))] == [0, 1, 2]


class TestTimeout:
    """How long the retransmission timeout is."""

    def measured(self, slots: int) -> tuple[SlotTransport, list[Datagram]]:
        """Return one whose rounds took 10 ms, and what it sent after the last of them, at 30 ms."""
        t = begun(40 * slots, [], slots=slots)
        for now in (0, 10, 20):
            for datagram in send(t, now * MS):
                answer(t, datagram, (now + 10) * MS)
        return t, send(t, 30 * MS)

    def test_packets_that_are_lost_together_do_not_lengthen_it(self) -> None:
        t, lost = self.measured(32)
        arrives = lost[-1:]
        for now in range(40, 70, 10):
            for datagram in arrives:
                answer(t, datagram, now * MS)
            arrives = send(t, now * MS)
        before, now = t.rto, 30 * MS + round(t.rto * 1e9)
        assert len(send(t, now)) >= len(lost) - 1 == 31
        for datagram in lost[:-1]:
            now += MS // 10
            answer(t, datagram, now)
        assert t.rto == before

    def test_nor_do_results_that_a_switch_sends_again(self) -> None:
        """A burst of others in a full queue loses the results of all slots."""
        t, lost = self.measured(32)
        before, now = t.rto, 30 * MS + round(t.rto * 1e9)
        assert len(send(t, now)) == len(lost)
        for datagram in lost:
            now += MS // 10
            t.on_packet(result(Packet.decode(datagram.payload)).encode(), now, RELIABLE)
        assert t.rto == before

    def test_rounds_that_are_slow_one_after_the_other_lengthen_it(self) -> None:
        t, sent = self.measured(4)
        before, now = t.rto, 30 * MS
        for _ in range(10):
            send(t, now + round(t.rto * 1e9))
            now += 200 * MS
            for datagram in sent:
                answer(t, datagram, now)
            sent = send(t, now)
        assert t.rto > 2 * before


class TestEarly:
    """Asking, or giving up, long before the retransmission timeout."""

    def early(self, blocks: int, budgets: Sequence[int], slots: int = 4, **more: Any) -> SlotTransport:
        return begun(blocks, budgets, slots=slots, **({"min_probe": 0.002, "reordering": 0.001} | more))

    def measured(self, t: SlotTransport, rounds: int = 10) -> tuple[int, list[Datagram]]:
        """Answer this many rounds of every slot after 0.1 ms each; the time then, and what was sent last."""
        now, sent = 0, send(t)
        for _ in range(rounds):
            now += MS // 10
            for datagram in sent:
                answer(t, datagram, now)
            sent = send(t, now)
        assert len(sent) == t.config.slots
        return now, sent

    def test_it_asks_ever_more_rarely_until_the_retransmission_timeout(self) -> None:
        t = self.early(100, [], slots=1)
        now, _ = self.measured(t)
        start = now
        story = []
        for _ in range(7):
            sent: list[Datagram] = []
            while not sent:  # a deadline may be that of a packet that was answered
                deadline = t.poll(now)[1]
                assert deadline is not None
                sent = send(t, now := deadline)
            story += [((now - start) // MS, treatment(datagram)) for datagram in sent]
        lanes = (Flag.PROTECTED, RELIABLE)
        assert story == [
            *((at, PROBE) for at in (2, 6, 14, 30, 62)),
            *((at, lanes) for at in (112, 212)),
        ]
        report = t.report()
        assert (report.probes, report.timeouts, report.retransmissions) == (5, 2, 2)

    def test_lanes_that_are_missing_go_out_when_the_answer_is_there(self) -> None:
        t = self.early(100, [], slots=1)
        now, _ = self.measured(t)
        (probe,) = send(t, now + 2 * MS)
        assert not Packet.decode(probe.payload).groups
        ask(t, probe, now + 2 * MS)
        (again,) = send(t, now + 2 * MS)
        assert treatment(again) == (Flag.PROTECTED, RELIABLE)
        assert treatment(*send(t, now + 4 * MS)) == PROBE  # the path is alive: as patient as at first
        assert t.report().timeouts == 0

    def test_what_may_go_missing_is_released(self) -> None:
        t = self.early(100, [256], slots=1)
        now, _ = self.measured(t)
        assert [treatment(d) for d in send(t, now + 2 * MS)] == [(Flag.ANSWER, RELIABLE)]
        assert (t.report().releases, t.report().probes, t.report().timeouts) == (1, 0, 0)

    def overtake(self, t: SlotTransport, lost: int = 2) -> list[tuple[float, Datagram]]:
        """Answer all but slot ``lost``, every half a millisecond: what else was sent, and after how long."""
        start, sent = self.measured(t)
        others = [d for d in sent if Packet.decode(d.payload).slot != lost]
        extra = []
        for tick in range(1, 30):
            now = start + tick * MS // 2
            for datagram in others:
                answer(t, datagram, now)
            sent = send(t, now)
            others = [d for d in sent if Packet.decode(d.payload).slot != lost]
            extra += [(tick / 2, d) for d in sent if d not in others]
        return extra

    def test_what_was_overtaken_is_asked_for_at_once(self) -> None:
        t = self.early(900, [], slots=20, min_probe=0.04)
        story = [(ms, treatment(datagram)) for ms, datagram in self.overtake(t)]
        assert story == [(2.0, PROBE)]  # an answer to what was sent more than 1 ms later came
        assert (t.report().probes, t.report().timeouts) == (1, 0)

    def test_or_released(self) -> None:
        t = self.early(900, [256 * 900], slots=20, min_probe=0.04)
        story = [(ms, treatment(datagram)) for ms, datagram in self.overtake(t)]
        assert story == [(2.0, (Flag.ANSWER, RELIABLE))]
        assert (t.report().releases, t.report().probes) == (1, 0)

    def test_packets_sent_within_the_reordering_window_tell_nothing_of_each_other(self) -> None:
        assert self.overtake(self.early(900, [], slots=20, min_probe=0.04, reordering=0.03)) == []

    def test_nor_do_packets_that_take_different_ways(self) -> None:
        assert self.overtake(self.early(900, [], slots=16, min_probe=0.04)) == []  # slot 18 is not there

    def test_of_those_it_takes_longer(self) -> None:
        t = self.early(900, [], slots=16)
        assert next(ms for ms, _ in self.overtake(t)) == 3.0  # sent more than 2 ms later

    def test_as_long_as_answers_come_it_does_not_ask(self) -> None:
        """A first window may take longer than all that was measured before."""
        t = self.early(1200, [], slots=100)
        now, sent = self.measured(t)
        for datagram in sent:  # 30 ms of them
            now += 3 * MS // 10
            answer(t, datagram, now)
            assert all(Packet.decode(d.payload).round > 11 for d in send(t, now))
        assert t.report().probes == 0

    def test_silence_is_broken_by_a_few(self) -> None:
        t = self.early(1200, [], slots=100)
        now, _ = self.measured(t)
        assert [treatment(d) for d in send(t, now + 2 * MS)] == [PROBE] * 8

    def test_a_switch_that_cannot_lengthen_packets_is_not_asked(self) -> None:
        assert self.overtake(self.early(900, [], slots=20, fill=True)) == []

    def test_answers_that_come_twice_make_it_patient(self) -> None:
        t = self.early(4000, [], slots=1)
        now, (waiting,) = self.measured(t)
        waits = []
        for _ in range(7):
            start, sent = now, list[Datagram]()
            while not sent:
                deadline = t.poll(now)[1]
                assert deadline is not None
                sent = send(t, now := deadline)
            waits.append((now - start) // MS)
            answer(t, waiting, now)
            answer(t, waiting, now)  # the switch answers the probe, too
            (waiting,) = send(t, now)
        assert waits == [2, 4, 8, 12, 12, 12, 12]  # no more than a quarter of the retransmission timeout
        assert t.report().timeouts == 0
        for pause in (MS // 10, *(500 * MS, MS // 10) * 3):  # quiet
            now += pause
            answer(t, waiting, now)
            (waiting,) = send(t, now)
        assert [treatment(d) for d in send(t, now + 2 * MS)] == [PROBE]

    def test_until_a_first_result_only_one_slot_asks(self) -> None:
        t = self.early(4, [])
        for datagram in send(t):
            answer(t, datagram, MS // 10)
        t.begin_reduction(Op.ADD, 256, np.ones(4 * 256, np.uint32))
        assert len(send(t, MS)) == 4
        (probe,) = send(t, 4 * MS)
        assert (Packet.decode(probe.payload).slot, treatment(probe)) == (0, PROBE)


class TestWindow:
    def open(self, t: SlotTransport, now: int = 0) -> list[tuple[int, int]]:
        return [(packet.round, packet.slot) for packet in packets(send(t, now))]

    def test_the_first_mark_halves_it_and_once_per_window(self) -> None:
        t = begun(80, [], slots=8)
        sent = send(t)
        assert (len(sent), t.window) == (8, 8)
        for i, datagram in enumerate(sent):
            answer(t, datagram, flags=Flag.CONGESTED)
            assert t.window == 4, f"after {i + 1} results"
        assert self.open(t) == [(2, slot) for slot in range(4)]
        assert t.report().marked == 8

    def test_a_mark_in_the_ip_header_counts_alike(self) -> None:
        t = begun(80, [], slots=8)
        first, *_ = send(t)
        t.on_packet(result(Packet.decode(first.payload)).encode(), 0, traffic_class=dscp(0) << 2 | 3)
        assert (t.window, t.report().marked) == (4, 1)

    def test_the_cut_follows_the_share_of_marks(self) -> None:
        t = begun(64 * 200, [], slots=64)
        sent = send(t)
        for _ in range(60):  # windows without marks: alpha falls by 1/16 each
            for datagram in sent:
                answer(t, datagram)
            sent = send(t)
            assert len(sent) == 64
        answer(t, sent[0], flags=Flag.CONGESTED)
        assert t.window == int(64 * (1 - (15 / 16) ** 60 / 2)) == 63

    def test_it_opens_by_one_per_window_without_marks(self) -> None:
        t = begun(8 * 50, [], slots=8)
        for datagram in send(t):
            answer(t, datagram, flags=Flag.CONGESTED)
        sizes = []
        for _ in range(6):
            for datagram in send(t):
                answer(t, datagram)
            sizes.append(t.window)
        assert sizes == [5, 6, 7, 8, 8, 8]

    def test_but_not_when_it_did_not_bind(self) -> None:
        t = begun(8, [], slots=8)
        for datagram in send(t):
            answer(t, datagram, flags=Flag.CONGESTED)
        assert t.done
        for _ in range(50):
            t.begin_reduction(Op.ADD, 256, np.empty(0, np.uint32))
            answer_all(t)
        assert t.window == 4

    def test_at_least_three_slots_are_open(self) -> None:
        """As many bytes as the two segments to which marks close a DCTCP stream (RFC 8257)."""
        for slots, least in ((16, 3), (2, 2)):
            t = begun(200, [], slots=slots)
            while not t.done:
                for datagram in send(t):
                    answer(t, datagram, flags=Flag.CONGESTED)
            assert t.window == least

    def test_slots_that_waited_go_out_in_order(self) -> None:
        t = begun(32, [], slots=8)
        sent = send(t)
        for slot in (5, 2, 7, 0, 1):
            answer(t, sent[slot], flags=Flag.CONGESTED)
        assert self.open(t) == [(2, 0)]  # 3, 4 and 6 are open; 4 may be
        answer(t, sent[6])
        assert self.open(t) == [(2, 1)]
        answer(t, sent[3])
        answer(t, sent[4])
        assert self.open(t) == [(2, 2), (2, 3)]

    def test_what_is_before_everything_open_may_always_go(self) -> None:
        t = begun(24, [], slots=6)
        first, *others = send(t)
        for other in others:
            answer(t, other)
        assert self.open(t) == [(2, slot) for slot in range(1, 6)]
        answer(t, first, flags=Flag.CONGESTED)
        assert t.window == 3
        assert self.open(t) == [(2, 0)]  # though round 2 of the others fills the window

    def test_a_loss_alone_is_no_sign_of_congestion_but_two_of_a_packet_are(self) -> None:
        t = begun(80, [], slots=8, initial_rto=0.1, min_rto=0.1)
        answer(t, send(t)[0])
        now = 0
        for window in (8, 4, 4, 4):  # once per window, however many time out
            deadline = t.poll(now)[1]
            assert deadline is not None
            send(t, now := deadline)
            assert t.window == window

    def test_a_late_worker_is_no_sign_of_congestion(self) -> None:
        t = begun(80, [], slots=8, initial_rto=0.1)
        now = 0
        for _ in range(5):
            deadline = t.poll(now)[1]
            assert deadline is not None
            send(t, now := deadline)
        assert (t.window, t.report().timeouts) == (8, 5)

    def test_repeats_need_no_room(self) -> None:
        t = begun(80, [], slots=8)
        sent = send(t)
        answer(t, sent[0], flags=Flag.CONGESTED)
        for datagram in sent[1:]:
            ask(t, datagram)
        assert self.open(t) == [(1, slot) for slot in range(1, 8)]

    def test_it_can_be_switched_off(self) -> None:
        t = begun(80, [], slots=8, congestion=Congestion.NONE)
        for datagram in send(t):
            answer(t, datagram, flags=Flag.CONGESTED)
        assert (t.window, len(send(t)), t.report().marked) == (8, 8, 8)
