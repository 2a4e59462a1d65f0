# SPDX-License-Identifier: Apache-2.0
"""The compiled program for Tofino, executed, decides as the one for v1model does; and faults in it are found.

The cases are those of ``test_tna.py`` and ``test_tna_hosts.py``, which are collected here once more, with the
assembly in the place of the translated source.
"""

import random
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from tests.harness.bfa.assembly import UnknownLineError
from tests.harness.bfa.pipeline import load
from tests.harness.effort import effort
from tests.harness.lab import Lab
from tests.harness.soft import SoftTarget
from tests.harness.target import Sent
from tests.harness.tofino import BfaTarget, assembly
from tests.p4src import test_tna
from tests.p4src.test_tna import (
    PLACES,
    Draw,
    install,
    marked_rounds,
    test_a_round_that_ends_with_another_operation_says_so,  # noqa: F401
    test_all_marks_of_children_and_parents_go_where_they_go,  # noqa: F401
    test_arp_is_answered_and_other_frames_go_by_mac_address,  # noqa: F401
    test_every_event_of_the_slots_is_among_those_compared,  # noqa: F401
    test_it_decides_as_the_program_for_v1model,  # noqa: F401
    test_one_lane_group_of_a_sum_is_one_with_zeros_above,  # noqa: F401
    test_questions_of_workers_and_wrong_checksums_are_refused,  # noqa: F401
    test_several_columns_or_more_lane_groups_are_refused,  # noqa: F401
    test_what_no_slot_packet_says_is_refused,  # noqa: F401
    test_whoever_asks_again_gets_the_lanes_only_if_they_are_for_it,  # noqa: F401
)
from tests.p4src.test_tna_hosts import (
    test_blocks_for_one_or_all_but_one_reach_them,  # noqa: F401
    test_planners_know_what_narrow_packets_cost,  # noqa: F401
    test_sums_are_exact_and_zero_groups_are_skipped,  # noqa: F401
    test_what_is_given_up_comes_back_where_it_was,  # noqa: F401
)
from tests.p4src.test_tna_second_pass import (
    test_a_result_is_of_its_round_whatever_comes_between,  # noqa: F401
    test_a_result_that_waited_for_two_rounds_is_stale,  # noqa: F401
    test_answers_from_the_parents_result_stay_its_when_it_comes_again,  # noqa: F401
    test_every_packet_is_counted_once,  # noqa: F401
    test_it_passes_by_the_port_of_its_own_pipe,  # noqa: F401
    test_packets_in_any_order_and_passes_at_any_time_leave_sums_whole,  # noqa: F401
    test_partial_sums_do_not_take_half_of_the_parents_result,  # noqa: F401
    test_partial_sums_pass_where_the_parents_result_is_elsewhere,  # noqa: F401
    test_slots_that_were_given_to_another_job_meanwhile_say_nothing,  # noqa: F401
    test_what_has_one_lane_group_passes_once,  # noqa: F401
)
from weir.controller.entries import TableEntry
from weir.controller.tables import tofino
from weir.wire.definition import CE, GROUP_LANES, Op

ECT = 2
LIMIT = 100


@pytest.fixture(scope="module")
def programs() -> Iterator[tuple[SoftTarget, BfaTarget]]:
    """Yield the program for v1model, and the compiled one."""
    both = SoftTarget(), BfaTarget()
    yield both
    for target in both:
        target.close()


@pytest.fixture
def rack(tna: Lab) -> Lab:
    """Return the same, for workers that reduce through it."""
    return tna


@pytest.fixture
def lab(programs: tuple[SoftTarget, BfaTarget]) -> Lab:
    """Return it with sums of 64 lanes, for what comes between two passes."""
    programs[1].lanes = 2 * GROUP_LANES
    return Lab(programs[1])


@pytest.mark.parametrize("groups", effort([2], [1, 2]), indirect=True)
def test_every_child_of_a_full_spine_counts_is_asked_and_gets_its_copy(
    targets: tuple[SoftTarget, BfaTarget],
    groups: int,
) -> None:
    test_tna.test_every_child_of_a_full_switch_counts_is_asked_and_gets_its_copy(targets, groups, "spine")


@pytest.mark.parametrize("depth", [0, LIMIT - 1, LIMIT, 2 * LIMIT])
@pytest.mark.parametrize("ecn", [0, ECT])
def test_packets_are_marked_by_the_depth_of_their_queue_alone(tna: Lab, depth: int, ecn: int) -> None:
    """And by nothing that lies beside it in its container, as the time stamp does."""
    target = tna.target
    assert isinstance(target, BfaTarget)
    limit = TableEntry(tofino.MARKS, (("queue", 0),), tofino.LIMIT, (("depth", LIMIT),))
    target.change("INSERT", limit)
    target.insert("WeirIngress.forwarding.l2", (2,), "forward", (3,))
    frame = Ether(src="02:00:00:00:00:01", dst="00:00:00:00:00:02") / IP(dst="10.9.9.9", tos=ecn) / UDP()
    target.chip.depth = depth
    try:
        sent = {out.frame for _ in range(20) for out in tna.send(1, bytes(frame))}
    finally:
        target.chip.depth = 0
    marked = depth >= LIMIT and ecn == ECT
    expected = frame.copy()
    expected[IP].tos = CE if marked else ecn
    assert sent == {bytes(expected)}


class Recording(BfaTarget):
    """The compiled program, and all that it was told and did."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[Callable[..., Any], Sequence[Any], list[Sent] | None]] = []

    def send(self, port: int, frame: bytes) -> list[Sent]:
        sent = super().send(port, frame)
        self.steps.append((BfaTarget.send, (port, frame), sent))
        return sent

    def change(self, verb: str, entry: TableEntry) -> None:
        super().change(verb, entry)
        self.steps.append((BfaTarget.change, (verb, entry), None))

    def zero(self, register: str, cell: int) -> None:
        super().zero(register, cell)
        self.steps.append((BfaTarget.zero, (register, cell), None))

    def set_group(self, group: int, replicas: Sequence[tuple[int, int]]) -> None:
        super().set_group(group, replicas)
        self.steps.append((BfaTarget.set_group, (group, replicas), None))

    def reset(self) -> None:
        super().reset()
        self.steps.append((BfaTarget.reset, (), None))


@cache
def recorded() -> Recording:
    """Return packets of all places, and what came out."""
    target = Recording()
    for lanes in (GROUP_LANES, 2 * GROUP_LANES):
        target.lanes, both = lanes, lanes // GROUP_LANES
        for place, workers, op in zip(PLACES, (3, 1, 3, 2), (*Op, Op.ADD), strict=True):
            draw = Draw(random.Random(place), place, workers, op if both == 1 else Op.ADD, both)
            at = install(target, place, workers, 0xE0000000)
            for _ in range(effort(15, 240)):
                draw.send(at)
    at = install(target, "leaf", 1, 0xE0000001)
    for packet in marked_rounds(both):
        packet.send(at)
    return target


def difference(text: str) -> str:
    """Return how a program differs from the one that was recorded; empty if it does not."""
    try:
        target = BfaTarget(text)
        for number, (step, given, sent) in enumerate(recorded().steps):
            done = step(target, *given)
            if sent is not None and done != sent:
                return f"step {number}"
    except UnknownLineError as error:
        return f"refused: {error}"
    counted, wanted = (one.program.ingress.counters for one in (target, recorded()))
    return "" if counted == wanted else "events"


def test_the_same_program_does_the_same() -> None:
    assert difference(assembly()) == ""


# What is wrong: the line as it is, as it must be, and how many equal lines stand before it.
FAULTS: dict[str, tuple[str, str, int]] = {
    "a lane is joined, not added": (r"- add lo, lo, phv_lo", r"- or lo, lo, phv_lo", 9),
    "another comparison": (r"- grt\.u lo, phv_lo, -lo", r"- neq lo, phv_lo, -lo", 2),
    "another constant of an ALU": (r"lo, lo, -268435456", r"lo, lo, -1", 0),
    "an ALU says its word of before": (r"- output alu_lo", r"- output mem_lo", 5),
    "a predicate turned round": (r"and \(cmphi & !cmplo\), hi", r"and (cmphi & cmplo), hi", 0),
    "the wrong half of a pair": (r"- output mem_hi", r"- output mem_lo", 0),
    "predicates read beside their bits": (r"slots\.rounds\(4\.\.7\)", r"slots.rounds(0..3)", 0),
    "another source": (r"set hdr\.weir\.check, meta\.check", r"set hdr.weir.check, meta.missing", 0),
    "a destination in another container": (r"set W\d+\(0\.\.31\), column", r"set hdr.weir.round, column", 0),
    "another operation": (r"- and (W\d+, W\d+, W\d+)", r"- or \1", 0),
    "another constant": (r"- set hdr\.bridge\.role, 2", r"- set hdr.bridge.role, 3", 0),
    "a mask that covers less": (r"\$constant1: 511", r"$constant1: 3", 0),
    "two fields in one container": (
        r"(  hdr\.weir\.job: )(W\d+)((?:.*\n)*?  hdr\.weir\.round: )W\d+",
        r"\1\2\3\2",
        0,
    ),
    "two lanes in one container": (r"(  hdr\.lanes\.l0: )(W\d+)(\n  hdr\.lanes\.l1: )W\d+", r"\1\2\3\2", 0),
    "a gateway that compares less": (r"0b1([*1]+:\n +run_table)", r"0b*\1", 0),
    "another row of a gateway": (r"0x03(:\n +next:)", r"0x02\1", 0),
    "another table after a miss": (r"(next_table_miss:) +admission_workers", r"\1 validation_formats", 0),
    "a hash without the round's bit": (r"\{ 13: hdr\.weir\.round\(0\) \}", r"{ 13: hdr.weir.slot(0) }", 0),
    "an index of fewer bits": (r"mask: 0xffff, shift: 6", r"mask: 0x1fff, shift: 6", 0),
    "a lane of other bytes": (r"8\.\.11: (W\d+  # ingress::hdr\.lanes\.l0)", r"9..12: \1", 0),
    "another packet is parsed": (r"0x2483:", r"0x2484:", 0),
    "a checksum that covers less": (r"12\.\.15, 16\.\.19 \]", r"12..15, 16..18 ]", 0),
    "a header left out": (r"(    B\d+: B\d+)\(\d\)(  # ingress::hdr\.weir\.flags)", r"\1(6)\2", 0),
    "the other byte of a checksum": (r"(- B\d+:) \{ swap: 1 \}(  # egress::hdr\.ipv4\.ttl)", r"\1 { }\2", 0),
    "another session": (r"(- H\d+)\(0\.\.9\)(.*egress::meta\.session)", r"\1(0..8)\2", 0),
    "another row of a constant table": (r'value: "0x5"', r'value: "0x6"', 0),
}


def planted(before: str, after: str, nth: int) -> str:
    """Return the program with one place changed."""
    text = assembly()
    places = list(re.finditer(before, text))
    assert len(places) > nth, before
    place = places[nth]
    return text[: place.start()] + place.expand(after) + text[place.end() :]


@pytest.mark.parametrize("fault", list(FAULTS)[:: effort(5, 1)])
def test_a_fault_in_the_assembly_is_found(fault: str) -> None:
    assert difference(planted(*FAULTS[fault]))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("- add lo, lo, phv_lo", "- nand lo, lo, phv_lo"),
        ("- ssubu W", "- saddu W"),
        ("    home_row: 13", "    home_rows: 13"),
        (r"        shift: (\d+)", r"        shift: \1\n        clot: 1"),
        ("- set meta.fields_known, 1", "- set meta.fields_unknown, 1"),
    ],
)
def test_a_line_that_is_not_known_is_refused_by_its_number(before: str, after: str) -> None:
    text = planted(before, after, 0)
    changed = zip(assembly().splitlines(), text.splitlines(), strict=False)
    line = next(number for number, (one, other) in enumerate(changed, 1) if one != other)
    with pytest.raises(UnknownLineError, match=f"line {line}: "):
        load(text)
