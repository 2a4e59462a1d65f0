# SPDX-License-Identifier: Apache-2.0
"""The slot transport alone, packet by packet."""

import dataclasses
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.host_agent.transport.answers import answer_all, combine, groups_of, packets, result
from weir.host_agent.transport import bindings
from weir.host_agent.transport.codec import Column, Packet
from weir.host_agent.transport.frames import Datagram
from weir.host_agent.transport.report import Account, Verdict
from weir.host_agent.transport.service_class import ServiceClass
from weir.host_agent.transport.slot_transport import SlotTransport, TransportConfig
from weir.wire.definition import AUDIENCE_ALL, AUDIENCE_EXCEPT, NO_BLOCK, Flag, Op, PacketType

MS = 1_000_000
JOB = 77


def transport(worker: int = 0, workers: int = 2, slots: int = 4, **more: Any) -> SlotTransport:
    """Return one that asks for nothing before a retransmission timeout, unless ``more`` says so."""
    patient = {"min_probe": 10.0, "reordering": 10.0}
    return SlotTransport(TransportConfig(JOB, worker, workers, slots, **(patient | more)))


def vector(blocks: int, block: int = 256, zero: tuple[int, ...] = ()) -> np.ndarray:
    """Return a vector whose block k holds k * 1000, k * 1000 + 1, ..., except those that are zero."""
    lanes = (np.arange(blocks)[:, None] * 1000 + np.arange(block) + 1).astype(np.uint32)
    lanes[list(zero)] = 0
    return lanes.reshape(-1)


class TestWhatIsSent:
    def test_each_slot_starts_with_its_streams_first_blocks_and_announces_the_next_ones(self) -> None:
        t = transport(slots=2)
        t.begin_reduction(Op.MAX, 256, vector(5))
        first, second = packets(t.poll(0)[0])
        assert first == Packet(
            type=PacketType.CONTRIBUTION,
            op=Op.MAX,
            block_log2=8,
            job=JOB,
            worker=0,
            slot=0,
            round=1,
            columns=(Column(0, 2),),
            groups=groups_of(vector(5)[:256]),
            flags=Flag.PROTECTED,
            count=1,
            check=first.check,
        )
        assert second.columns == (Column(1, 3),)

    def test_zero_blocks_are_skipped_but_the_first_of_a_stream_is_announced(self) -> None:
        t = transport(slots=1)
        t.begin_reduction(Op.ADD, 256, vector(6, zero=(0, 1, 3, 5)))
        (packet,) = packets(t.poll(0)[0])
        assert packet.columns == (Column(0, 2),)
        assert not packet.groups

    def test_filling_sends_requested_blocks_even_when_zero(self) -> None:
        t = transport(workers=1, slots=2, fill=True)
        t.begin_reduction(Op.ADD, 256, vector(5, zero=(0, 1, 2)))
        packets_ = answer_all(t)
        assert [packet.columns for packet in packets_[:2]] == [(Column(0, 4),), (Column(1, 3),)]
        assert all(set(packet.groups) == set(range(8)) for packet in packets_)
        report = t.report()
        assert report.entered == report.included == Account(512, int(vector(5, 256, (0, 1, 2)).sum()))
        assert report.blocks_sent == 4

    @pytest.mark.parametrize("block", [32, 64, 128])
    def test_filling_skips_small_blocks_and_leaves_half_of_the_columns_out(self, block: int) -> None:
        """So no packet has more than 128 lanes, and no result is more than 512 bytes longer than one."""
        columns, used = 256 // block, 128 // block
        t = transport(workers=1, slots=1, fill=True)
        lanes = vector(5 * used, block=block, zero=tuple(range(used)))  # the first packet's
        t.begin_reduction(Op.ADD, block, lanes)
        packets_ = answer_all(t)
        assert [len(packet.groups) for packet in packets_] == [0, 4, 4, 4, 4]
        for number, packet in enumerate(packets_):
            blocks = [column.block for column in packet.columns]
            assert blocks[:used] == list(range(number * used, (number + 1) * used))
            assert packet.columns[used:] == (Column(NO_BLOCK, NO_BLOCK),) * (columns - used)

    def test_columns_travel_fused_each_with_its_own_stream(self) -> None:
        t = transport(slots=1)
        lanes = vector(11, block=32, zero=(1, 8))
        t.begin_reduction(Op.ADD, 32, lanes)
        (packet,) = packets(t.poll(0)[0])
        nexts = (NO_BLOCK, 9, 10, *(NO_BLOCK,) * 5)  # streams of 8: block 8 is zero, 9 and 10 are not
        assert packet.columns == tuple(Column(c, nexts[c]) for c in range(8))
        assert packet.groups == {g: groups_of(lanes)[g] for g in (0, 2, 3, 4, 5, 6, 7)}

    def test_columns_without_a_first_block_ask_for_none(self) -> None:
        t = transport(slots=8)
        t.begin_reduction(Op.ADD, 64, vector(6, block=64))
        a, b = packets(t.poll(0)[0])  # two slots are enough for six blocks, four to a packet
        assert [c.block for c in (*a.columns, *b.columns)] == [0, 1, 2, 3, 4, 5, NO_BLOCK, NO_BLOCK]

    def test_the_last_block_is_padded_with_zeros(self) -> None:
        t = transport()
        t.begin_reduction(Op.ADD, 64, np.full(3, 9, np.uint32))
        (packet,) = packets(t.poll(0)[0])
        assert packet.groups == {0: (9, 9, 9, *(0,) * 29), 1: (0,) * 32}

    def test_a_barrier_is_one_round_without_lanes(self) -> None:
        t = transport(workers=1)
        t.begin_reduction(Op.ADD, 256, np.empty(0, np.uint32))
        (packet,) = answer_all(t)
        assert (packet.slot, packet.columns, packet.groups) == (0, (Column(NO_BLOCK, NO_BLOCK),), {})
        assert t.report().blocks == 0

    def test_a_round_goes_out_when_the_last_ones_result_is_in(self) -> None:
        t = transport(slots=2)
        t.begin_reduction(Op.ADD, 256, vector(4))
        first, _ = packets(t.poll(0)[0])
        t.on_packet(result(first).encode(), 1)
        (following,) = packets(t.poll(1)[0])
        assert (following.slot, following.round, following.columns) == (0, 2, (Column(2, NO_BLOCK),))

    def test_another_workers_block_is_asked_for_before_our_own_next(self) -> None:
        t = transport(slots=1)
        t.begin_reduction(Op.ADD, 256, vector(6, zero=(1, 2, 3, 4)))
        (first,) = packets(t.poll(0)[0])
        assert first.columns == (Column(0, 5),)
        t.on_packet(result(first, columns=(Column(0, 2),)).encode(), 1)
        (following,) = packets(t.poll(1)[0])
        assert following.columns == (Column(2, 5),)
        assert not following.groups

    def test_rounds_go_on_over_reduces_and_wrap(self) -> None:
        t = transport(workers=1, slots=1, first_round=0xFFFFFFFE)
        rounds = []
        for _ in range(2):
            t.begin_reduction(Op.ADD, 256, vector(2))
            rounds += [packet.round for packet in answer_all(t)]
        assert rounds == [0xFFFFFFFE, 0xFFFFFFFF, 0, 1]


class TestResults:
    def test_a_result_replaces_the_block_and_is_accounted_for(self) -> None:
        t = transport(slots=1)
        lanes = vector(1)
        t.begin_reduction(Op.ADD, 256, lanes)
        (packet,) = packets(t.poll(0)[0])
        sums = vector(1) + np.uint32(5)
        t.on_packet(result(packet, included=3, groups=groups_of(sums)).encode(), 1)
        assert t.done
        np.testing.assert_array_equal(lanes, sums)
        report = t.report()
        assert report.entered == report.included == Account(256, int(vector(1).sum()))
        assert report.applied == Account(256, int(sums.sum()))
        assert report.returned == Account()

    def test_lanes_of_others_come_into_a_zero_block(self) -> None:
        t = transport(slots=1)
        lanes = np.zeros(300, np.int32)
        t.begin_reduction(Op.ADD, 256, lanes)
        (packet,) = packets(t.poll(0)[0])
        t.on_packet(
            result(packet, included=2, columns=(Column(0, 1),), groups=groups_of(vector(1))).encode(), 1
        )
        (packet,) = packets(t.poll(1)[0])
        t.on_packet(result(packet, included=2, groups=groups_of(vector(1))).encode(), 1)
        assert t.done
        np.testing.assert_array_equal(lanes, np.concatenate([vector(1), vector(1)[:44]]).view(np.int32))

    def test_lanes_that_no_result_included_come_back(self) -> None:
        t = transport(slots=1)
        lanes = vector(2)[:300]
        t.begin_reduction(Op.ADD, 256, lanes)
        (packet,) = packets(t.poll(0)[0])
        others = groups_of(np.full(256, 7, np.uint32))
        t.on_packet(result(packet, included=2, groups=others).encode(), 1)
        (packet,) = packets(t.poll(1)[0])
        t.on_packet(result(packet, included=0, groups={}).encode(), 1)  # not even the others' were added
        assert t.done
        np.testing.assert_array_equal(lanes, [7] * 256 + [0] * 44)
        report = t.report()
        given_back = report.given_back
        np.testing.assert_array_equal(given_back.blocks, [0, 1])
        np.testing.assert_array_equal(given_back.lanes[0], vector(1))
        np.testing.assert_array_equal(given_back.lanes[1], [*vector(2)[256:300], *(0,) * 212])
        assert report.included == Account()
        assert report.entered == report.returned == Account(300, int(vector(2)[:300].sum()))

    def test_sums_are_of_signed_lanes(self) -> None:
        t = transport(workers=1)
        t.begin_reduction(Op.ADD, 32, np.array([-5, 3], np.int32))
        answer_all(t)
        assert t.report().entered == Account(2, -2)

    def test_a_result_that_comes_twice_changes_nothing(self) -> None:
        t = transport(slots=1)
        lanes = vector(2)
        t.begin_reduction(Op.ADD, 256, lanes)
        (packet,) = packets(t.poll(0)[0])
        reply = result(packet, groups=groups_of(np.full(256, 1, np.uint32))).encode()
        assert t.on_packet(reply, 1) == Verdict.ACCEPTED
        before = lanes.copy()
        assert t.on_packet(reply, 2) == Verdict.STALE
        np.testing.assert_array_equal(lanes, before)
        assert t.report().duplicates == 1

    def test_a_result_of_the_last_reduce_does_not_confuse_the_next(self) -> None:
        t = transport(slots=2)
        t.begin_reduction(Op.ADD, 256, vector(2))
        old = packets(t.poll(0)[0])
        for packet in old:
            t.on_packet(result(packet).encode(), 1)
        assert t.done
        lanes = vector(1)
        assert t.on_packet(result(old[0]).encode(), 2) == Verdict.STALE
        t.begin_reduction(Op.OR, 32, lanes)  # of the same slots, other operator and block size
        t.poll(2)
        for packet in old:
            assert t.on_packet(result(packet).encode(), 2) == Verdict.STALE
        np.testing.assert_array_equal(lanes, vector(1))

    def test_bytes_count_the_headers_below(self) -> None:
        t = transport(workers=1)
        t.begin_reduction(Op.ADD, 256, vector(1))
        answer_all(t)
        report = t.report()
        assert report.bytes_up == report.bytes_down == 14 + 20 + 8 + 28 + 8 + 1024


def _replaced(**changes: Any) -> Callable[[bytes], bytes]:
    return lambda reply: dataclasses.replace(Packet.decode(reply), **changes).encode()


def _byte(at: int, value: int) -> Callable[[bytes], bytes]:
    return lambda reply: reply[:at] + bytes([value]) + reply[at + 1 :]


MALFORMED: list[tuple[Verdict, Callable[[bytes], bytes]]] = [
    (Verdict.SHORT, lambda reply: b""),
    (Verdict.SHORT, lambda reply: reply[:27]),
    (Verdict.BAD_VERSION, _byte(0, 0x12)),
    (Verdict.BAD_TYPE, _replaced(type=PacketType.CONTRIBUTION)),
    (Verdict.BAD_FLAGS, _byte(1, 0x40)),
    (Verdict.BAD_FLAGS, _byte(1, Flag.TRIMMED)),  # but there are lanes
    (Verdict.BAD_CLASS, _byte(9, 0x60)),
    (Verdict.BAD_CLASS, _byte(9, 0x04)),
    (Verdict.WRONG_JOB, _replaced(job=JOB + 1)),
    (Verdict.WRONG_WORKER, _replaced(worker=0)),
    (Verdict.BAD_SLOT, _replaced(slot=4)),
    (Verdict.BAD_ROUND, _replaced(round=2)),
    (Verdict.BAD_ROUND, _replaced(round=0x70000000)),
    (Verdict.BAD_OP, _replaced(op=Op.OR)),
    (Verdict.BAD_BLOCK_SIZE, _byte(2, 0x18)),
    (Verdict.BAD_LENGTH, lambda reply: reply[:-1]),
    (Verdict.BAD_LENGTH, lambda reply: reply + b"\0"),
    (Verdict.BAD_LENGTH, _byte(3, 0x0F)),
    (Verdict.BAD_LENGTH, lambda reply: reply[:28]),
    (Verdict.BAD_COLUMN, _replaced(columns=(Column(2, 8), Column(1, NO_BLOCK)))),
    (Verdict.BAD_NEXT, _replaced(columns=(Column(0, 9), Column(1, NO_BLOCK)))),  # another stream's
    (Verdict.BAD_NEXT, _replaced(columns=(Column(0, NO_BLOCK), Column(1, NO_BLOCK)))),  # we offered 8
    (Verdict.BAD_NEXT, _replaced(columns=(Column(0, 0), Column(1, NO_BLOCK)))),  # does not advance
    (Verdict.BAD_NEXT, _replaced(columns=(Column(0, 8), Column(1, 17)))),  # beyond the end
    (Verdict.BAD_GROUPS, lambda reply: _byte(3, 0x0F)(reply[: -4 * 128])),  # ours is included: where?
    (Verdict.BAD_GROUPS, lambda reply: _byte(3, 0x7F)(reply[:-128])),  # half a column
    (Verdict.BAD_INCLUDED, _replaced(included=0xF)),  # more than they say they are
    (Verdict.BAD_INCLUDED, _replaced(count=200)),  # more than there are
    (Verdict.BAD_INCLUDED, _replaced(included=0, count=0)),  # lanes of nobody
    (Verdict.BAD_AUDIENCE, _replaced(audience=1)),
    (
        Verdict.BAD_AUDIENCE,
        lambda reply: _byte(1, Flag.ELSEWHERE)(_byte(3, 0)(reply[:-1024])),
    ),  # we want them
]


class TestAudiences:
    """Blocks of 256 lanes, one to a packet, of which this worker, 1 of 3, wants some."""

    def begun(self, audiences: list[int], op: Op = Op.ADD) -> tuple[SlotTransport, np.ndarray, list[Packet]]:
        t = transport(worker=1, workers=3)
        lanes = vector(len(audiences), block=256)
        t.begin_reduction(op, 256, lanes, audiences=np.array(audiences, np.uint16))
        return t, lanes, packets(t.poll(0)[0])

    def test_packets_name_them(self) -> None:
        codes = [0, 1, AUDIENCE_EXCEPT | 1, AUDIENCE_EXCEPT | 2]
        assert [packet.audience for packet in self.begun(codes)[2]] == codes

    def test_workers_that_mean_others_are_in_different_operations(self) -> None:
        checks = {self.begun(codes)[2][0].check for codes in ([0, 1], [0, 2], [1, 0], [0, 0])}
        assert len(checks) == 4

    def test_packets_of_several_blocks_are_for_all_unless_these_agree(self) -> None:
        t = transport(worker=1, workers=3)
        t.begin_reduction(
            Op.ADD, 64, vector(12, block=64), audiences=np.repeat([2, 0, 2], 4).astype(np.uint16)
        )
        assert [packet.audience for packet in packets(t.poll(0)[0])] == [2, 0, 2]
        t = transport(worker=1, workers=3)
        t.begin_reduction(Op.ADD, 64, vector(4, block=64), audiences=np.array([2, 2, 0, 2], np.uint16))
        assert [packet.audience for packet in packets(t.poll(0)[0])] == [AUDIENCE_ALL]

    @pytest.mark.parametrize("op", Op)
    def test_what_we_alone_want_is_not_sent_and_combined_here(self, op: Op) -> None:
        t, lanes, (packet,) = self.begun([1], op)
        own, others = lanes.copy(), vector(1, block=256)[::-1].copy()
        assert not packet.groups
        t.on_packet(result(packet, groups=groups_of(others), included=0b101).encode(), 0)
        assert t.done
        assert np.array_equal(lanes, combine(op, [own, others]))

    def test_it_stays_where_nobody_else_has_any(self) -> None:
        t, lanes, (packet,) = self.begun([1])
        own = lanes.copy()
        t.on_packet(result(packet).encode(), 0)
        assert t.done and np.array_equal(lanes, own)

    def test_a_switch_that_makes_packets_little_longer_gets_none_of_our_zeros(self) -> None:
        t = transport(worker=1, workers=3, fill=True)
        lanes = np.zeros(256, np.uint32)
        t.begin_reduction(Op.ADD, 256, lanes, audiences=np.array([AUDIENCE_EXCEPT], np.uint16))
        sent = packets(t.poll(0)[0])
        assert [(packet.block_log2, dict(packet.groups)) for packet in sent] == [(7, {}), (7, {})]

    @pytest.mark.parametrize("audience", [0, AUDIENCE_EXCEPT | 1])
    def test_lanes_that_went_elsewhere_advance_the_slot(self, audience: int) -> None:
        t, lanes, (packet,) = self.begun([audience])
        own = lanes.copy()
        reply = result(packet, groups={}, included=0b111, flags=Flag.PROTECTED | Flag.ELSEWHERE)
        assert t.on_packet(reply.encode(), 0) is Verdict.ACCEPTED
        assert t.done and np.array_equal(lanes, own)
        assert t.report().included == t.report().entered

    def test_there_must_be_one_for_each_block_and_no_budget(self) -> None:
        t = transport(worker=1, workers=3)
        with pytest.raises(ValueError, match="2 audiences for 1 blocks"):
            t.begin_reduction(Op.ADD, 256, vector(1, block=256), audiences=np.zeros(2, np.uint16))
        lossy = ServiceClass(budgets=np.array([256], np.uint64))
        with pytest.raises(ValueError, match="loss budgets are for results that all workers want"):
            t.begin_reduction(Op.ADD, 256, vector(1, block=256), lossy, audiences=np.zeros(1, np.uint16))


def _begun() -> tuple[SlotTransport, np.ndarray, list[Datagram]]:
    """Return worker 1 of 3 with everything sent: nine blocks of 128, two columns, four slots."""
    t = transport(worker=1, workers=3)
    lanes = vector(9, block=128)
    t.begin_reduction(Op.ADD, 128, lanes)
    return t, lanes, t.poll(0)[0]


class TestRefusals:
    def test_verdicts_are_the_engines(self) -> None:
        header = (Path(bindings.__file__).parent / "csrc" / "transport.h").read_text()
        (body,) = re.findall(r"enum weir_verdict \{(.*?)WEIR_VERDICTS", header, re.DOTALL)
        assert re.findall(r"^\s+WEIR_(\w+),", body, re.MULTILINE) == [v.name for v in Verdict]

    @pytest.mark.parametrize(("verdict", "spoil"), MALFORMED)
    def test_what_does_not_fit_is_refused_by_name_and_touches_nothing(
        self, verdict: Verdict, spoil: Callable[[bytes], bytes]
    ) -> None:
        t, lanes, sent = _begun()
        before = lanes.copy()
        reply = result(packets(sent)[0]).encode()
        assert t.on_packet(spoil(reply), 1) == verdict
        assert t.report().refused == {verdict: 1}
        np.testing.assert_array_equal(lanes, before)
        assert t.poll(1)[0] == []
        assert t.on_packet(reply, 1) == Verdict.ACCEPTED

    @pytest.mark.parametrize(
        "shape",
        [
            {},
            {"op": Op.OR},
            {"block_log2": 5, "columns": (Column(),) * 8},
            {"layer": 3, "magnitude": 1},
            {"included": 0xF},
            {"columns": (Column(2, 9), Column(1))},
        ],
        ids=str,
    )
    def test_that_workers_disagree_is_heard_whatever_shape_it_has(self, shape: dict[str, Any]) -> None:
        t, lanes, sent = _begun()
        before, packet = lanes.copy(), packets(sent)[0]
        told = result(packet, flags=Flag.PROTECTED | Flag.DISAGREE, groups={}, **shape)
        assert not t.disagrees
        assert t.on_packet(told.encode(), 1) == Verdict.DISAGREE
        assert t.disagrees and not t.done
        np.testing.assert_array_equal(lanes, before)

    def test_a_result_that_no_switch_can_have_sent_is_refused(self) -> None:
        """Of contributions with different checks the result says that they disagree; and ours is in it."""
        t, lanes, sent = _begun()
        before, packet = lanes.copy(), packets(sent)[0]
        assert t.on_packet(result(packet, check=packet.check ^ 1).encode(), 1) == Verdict.BAD_CHECK
        assert not t.disagrees
        np.testing.assert_array_equal(lanes, before)

    def test_results_of_an_earlier_run_change_no_sum_of_the_next(self) -> None:
        """All that they say can be the same again: job, rounds, operations; but for what the key makes."""

        def run(key: bytes, before: list[bytes]) -> list[bytes]:
            t, answers = transport(slots=2, key=key), []
            for step in range(3):
                lanes = vector(5)
                t.begin_reduction(Op.ADD, 256, lanes, operation=step)
                while not t.done:
                    for packet in packets(t.poll(step)[0]):
                        verdicts = {t.on_packet(answer, step) for answer in before}
                        assert verdicts <= {Verdict.STALE, Verdict.BAD_ROUND, Verdict.BAD_CHECK}
                        total = dict.fromkeys(packet.groups, (key[0],) * 32)
                        answers.append(result(packet, groups=total).encode())
                        assert t.on_packet(answers[-1], step) == Verdict.ACCEPTED
                assert set(lanes) == {key[0]}
                assert (Verdict.BAD_CHECK in t.report().refused) == bool(before)
            return answers

        run(b"a second secret.", run(b"the first secret", []))

    def test_an_old_disagreement_is_stale(self) -> None:
        t = transport(slots=1)
        t.begin_reduction(Op.ADD, 256, vector(1))
        (packet,) = packets(t.poll(0)[0])
        t.on_packet(result(packet).encode(), 1)
        told = result(packet, flags=Flag.PROTECTED | Flag.DISAGREE, groups={}).encode()
        t.begin_reduction(Op.ADD, 256, vector(1))
        t.poll(2)
        assert t.on_packet(told, 3) == Verdict.STALE
        assert not t.disagrees

    def test_fingerprints_are_of_all_that_workers_must_agree_on(self) -> None:
        def check(*before: int, op: Op = Op.ADD, block: int = 64, lanes: int = 70, operation: int = 5) -> int:
            t = transport(workers=1)
            for count in before:
                t.begin_reduction(Op.ADD, 256, vector(1)[:count])
                answer_all(t)
            t.begin_reduction(op, block, vector(1)[:lanes], operation=operation)
            return packets(t.poll(0)[0])[0].check

        same = [check(), check(), check()]
        others = [
            check(op=Op.MAX), check(block=32), check(lanes=71), check(lanes=5), check(lanes=0),
            check(operation=6), check(operation=0), check(9), check(9, 9),
        ]  # fmt: skip
        assert len({*same, *others}) == 1 + len(others)
        assert check(9) == check(10)  # how many came before counts, not what they were

    def test_a_result_before_the_packet_it_answers_is_refused(self) -> None:
        t = transport()
        t.begin_reduction(Op.ADD, 256, vector(1))
        early = Packet(PacketType.RESULT, Op.ADD, 8, JOB, 0, 0, 1, (Column(0),))
        assert t.on_packet(early.encode(), 0) == Verdict.BAD_ROUND

    @given(
        st.integers(0, 3),
        st.lists(st.tuples(st.integers(0, 600), st.integers(0, 255)), max_size=4),
        st.data(),
    )
    def test_spoilt_results_are_refused_or_are_results(
        self, slot: int, pokes: list[tuple[int, int]], data: st.DataObject
    ) -> None:
        t, lanes, sent = _begun()
        before = lanes.copy()
        reply = bytearray(result(packets(sent)[slot]).encode())
        for at, value in pokes:
            reply[at % len(reply)] = value
        cut = data.draw(st.integers(0, len(reply)))
        payload = data.draw(st.sampled_from([bytes(reply), bytes(reply[:cut]), bytes(reply) + b"x"]))
        verdict = t.on_packet(payload, 1)
        if verdict == Verdict.ACCEPTED:
            assert Packet.decode(payload).type == PacketType.RESULT
            block = 256 * slot
            before[block : block + 256] = lanes[block : block + 256]
        np.testing.assert_array_equal(lanes, before)

    @given(st.binary(max_size=1200))
    def test_noise_is_refused(self, noise: bytes) -> None:
        t, lanes, _ = _begun()
        before = lanes.copy()
        assert t.on_packet(noise, 1).refused
        np.testing.assert_array_equal(lanes, before)


class TestTimers:
    def test_until_a_first_result_only_one_slot_asks_again(self) -> None:
        t = transport(initial_rto=0.1, min_rto=0.01, max_rto=0.4)
        t.begin_reduction(Op.ADD, 256, vector(4))
        sent, deadline = t.poll(0)
        assert len(sent) == 4
        times = []
        for _ in range(4):
            assert deadline is not None
            assert t.poll(deadline - 1)[0] == []
            now = deadline
            again, deadline = t.poll(now)
            assert packets(again) == packets(sent[:1])
            times.append(now // MS)
        assert times == [100, 300, 700, 1100]  # doubled, up to the maximum
        assert t.report().retransmissions == 4

    def test_after_a_first_result_every_slot_has_its_timer(self) -> None:
        t = transport(initial_rto=0.1, min_rto=0.01)
        t.begin_reduction(Op.ADD, 256, vector(4))
        sent, _ = t.poll(0)
        t.on_packet(result(*packets(sent[:1])).encode(), 20 * MS)
        assert t.poll(119 * MS)[0] == []
        assert packets(t.poll(120 * MS)[0]) == packets(sent[1:])

    @pytest.mark.parametrize(("keep", "budget"), [(True, 0), (False, 0), (True, 512)])
    def test_after_a_silence_the_last_lossless_rounds_that_are_over_are_repeated(
        self, keep: bool, budget: int
    ) -> None:
        t = transport(slots=2, keep=keep)
        budgets = np.array([budget] if budget else [], np.uint64)
        t.begin_reduction(Op.ADD, 256, vector(2), ServiceClass(layer=0, budgets=budgets))
        last = answer_all(t)
        t.begin_reduction(Op.ADD, 256, vector(1))
        times, now, repeated = [], 0, []
        while now < 20_000 * MS:
            sent, deadline = t.poll(now)
            old = [packet for packet in packets(sent) if packet.round == 1]
            if old:
                times.append(now // MS)
                repeated += old
            assert deadline is not None
            now = deadline
        assert repeated == last * len(times)
        assert t.report().replays == 2 * len(times)
        assert times == ([1400, 3400, 7400, 15400] if keep and not budget else [])  # ever less often

    def rounds(self, t: SlotTransport, now: int, times: Iterable[int]) -> int:
        """Return rounds of the only slot, each answered so long after its packet; the time after all of
        them.
        """
        for time in times:
            sent, deadline = t.poll(now)
            (packet,) = packets(sent)
            now += time
            while deadline is not None and deadline < now:
                deadline = t.poll(deadline)[1]
            t.on_packet(result(packet).encode(), now)
        return now

    def test_the_timeout_follows_round_trips(self) -> None:
        t = transport(workers=1, slots=1, initial_rto=0.2, min_rto=0.001)
        t.begin_reduction(Op.ADD, 256, vector(40))
        self.rounds(t, 0, [10 * MS] * 39)
        assert 0.010 <= t.rto <= 0.021  # no variation: the timeout closes in on twice the round trip

    def test_rounds_that_last_as_long_as_somebodys_timeout_are_not_measured(self) -> None:
        t = transport(workers=2, slots=1, initial_rto=0.2, min_rto=0.05)
        t.begin_reduction(Op.ADD, 256, vector(331))
        now = self.rounds(t, 0, [MS] * 30)
        for _ in range(100):
            now = self.rounds(t, now, [MS, MS, int(0.9 * t.rto * 1e9)])
        assert t.rto == 0.051
        assert t.report().timeouts == 0

    def test_a_network_that_became_slower_than_the_timeout_is_learned(self) -> None:
        t = transport(workers=2, slots=1, initial_rto=0.2, min_rto=0.01)
        t.begin_reduction(Op.ADD, 256, vector(200))
        now = self.rounds(t, 0, [MS] * 50)
        assert t.rto == 0.011
        now = self.rounds(t, now, [70 * MS] * 100)
        before = t.report().timeouts
        self.rounds(t, now, [70 * MS] * 40)
        assert t.rto > 0.07
        assert t.report().timeouts == before

    def test_results_may_lie_for_half_the_time_that_packets_spend_in_queues(self) -> None:
        t = transport(workers=2, slots=1, min_rto=0.05)
        t.begin_reduction(Op.ADD, 256, vector(100))
        assert t.coalescing(256) == 0  # nobody has been heard
        now = self.rounds(t, 0, [3 * MS] * 40)
        assert t.coalescing(256) == 0  # no queue: every wait would make the round longer
        now = self.rounds(t, now, [9 * MS] * 59)
        assert 0.0029 < t.coalescing(256) <= 0.003
        self.rounds(t, now, [9 * MS])
        assert t.done and t.coalescing(256) == 0

    def test_nothing_waits_once_the_last_round_of_a_slot_is_over(self) -> None:
        t = transport(workers=2, slots=2)
        t.begin_reduction(Op.ADD, 256, vector(41))
        now = 0
        for time in [MS] + [5 * MS] * 18:
            sent, _ = t.poll(now)
            now += time
            for packet in packets(sent):
                t.on_packet(result(packet).encode(), now)
        assert t.coalescing(256) > 0.001
        first, last = packets(t.poll(now)[0])
        assert t.coalescing(1) == pytest.approx(t.coalescing(2) / 2)  # two are under way
        t.on_packet(result(last).encode(), now + 5 * MS)
        assert not t.done and t.coalescing(256) == 0
        t.on_packet(result(first).encode(), now + 5 * MS)

    def test_answers_to_repeats_are_not_measured(self) -> None:
        t = transport(workers=1, slots=1, min_rto=0.01)
        t.begin_reduction(Op.ADD, 256, vector(5))
        self.rounds(t, 0, [20 * MS, 20 * MS, int(1.5 * 60 * MS)])
        before = t.rto
        assert t.report().timeouts == 1
        self.rounds(t, 1000 * MS, [int(1.5 * t.rto * 1e9)])
        assert t.rto == before

    def test_waiting_for_a_late_worker_is_not_measured(self) -> None:
        t = transport(workers=2, slots=1)
        for waits in ([150 * MS], [150 * MS, 2 * MS], [190 * MS, 2 * MS], [190 * MS]):
            t.begin_reduction(Op.ADD, 256, vector(len(waits)))
            self.rounds(t, 0, waits)
        assert 0.052 <= t.rto < 0.053

    def test_an_outage_of_half_a_minute_is_over_within_the_maximum_timeout(self) -> None:
        t = transport(slots=2, max_rto=1.0)
        t.begin_reduction(Op.ADD, 256, vector(4))
        first, _ = packets(t.poll(0)[0])
        t.on_packet(result(first).encode(), MS)
        _, deadline = t.poll(MS)
        lost = 0
        while deadline is not None and deadline < 30_000 * MS:
            again, deadline = t.poll(deadline)
            lost += len(again)
        assert deadline is not None
        assert deadline < 31_000 * MS
        assert lost < 80  # backed off meanwhile

    def test_when_done_there_is_nothing_to_wait_for(self) -> None:
        t = transport(workers=1)
        t.begin_reduction(Op.ADD, 256, vector(3))
        answer_all(t)
        assert t.poll(10**12) == ([], None)


class TestMisuse:
    @pytest.mark.parametrize(
        ("lanes", "block", "error", "message"),
        [
            (np.zeros(4, np.float32), 256, TypeError, "uint32 or int32, not float32"),
            ([1, 2], 256, TypeError, "not list"),
            (np.zeros((4, 4), np.uint32)[:, :2], 256, ValueError, "C-contiguous"),
            (np.zeros(4, np.uint32), 48, ValueError, "32, 64, 128, 256 lanes, not 48"),
        ],
    )
    def test_lanes_of_the_wrong_kind(
        self, lanes: Any, block: int, error: type[Exception], message: str
    ) -> None:
        with pytest.raises(error, match=message):
            transport().begin_reduction(Op.ADD, block, lanes)

    def test_read_only_lanes(self) -> None:
        lanes = np.zeros(4, np.uint32)
        lanes.flags.writeable = False
        with pytest.raises(ValueError, match="read-only"):
            transport().begin_reduction(Op.ADD, 256, lanes)

    def test_two_reduces_at_once(self) -> None:
        t = transport()
        t.begin_reduction(Op.ADD, 256, vector(1))
        with pytest.raises(RuntimeError, match="in progress"):
            t.begin_reduction(Op.ADD, 256, vector(1))

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"workers": 32769}, "1 to 32768 workers, not 32769"),
            ({"worker": 32, "workers": 1024}, r"worker 32 is not in 0\.\.31"),
            ({"worker": 2}, r"worker 2 is not in 0\.\.1"),
            ({"slots": 0}, "slots, not 0"),
            ({"min_rto": 0.3}, "timeouts"),
            ({"job": -1}, "32-bit"),
        ],
    )
    def test_impossible_configurations(self, changes: dict[str, Any], message: str) -> None:
        fields = {"job": 1, "worker": 0, "workers": 2, "slots": 1} | changes
        with pytest.raises(ValueError, match=message):
            TransportConfig(**fields)

    def test_a_closed_transport_says_so(self) -> None:
        t = transport()
        t.close()
        t.close()
        with pytest.raises(ValueError, match="closed"):
            t.begin_reduction(Op.ADD, 256, vector(1))
