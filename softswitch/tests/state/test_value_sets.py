# SPDX-License-Identifier: Apache-2.0
"""Parser value sets, in the switch and over P4Runtime; and what a parser looks at, skips and reports."""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from softp4.device import Device
from softp4.errors import Code, ControlError
from softp4.p4runtime.schema import p4runtime_pb2 as p4rt
from softp4.program.loader import load_program
from softp4.state.entry import Exact, Lpm, Match, Optional, Range, Ternary
from softp4.switch import Switch
from tests.p4rt.p4rt_client import Controller
from tests.programs import FOLDER, pack, program, raw, unpack

IN_OPS, IN_PAIRS, IN_RANGE, LOOK, TAKE, SKIP = 1, 2, 4, 8, 16, 32
TOO_SHORT, NO_MATCH, INVALID, WRONG_SUM = 1, 2, 6, 0x80
_REPORT = (8, 8, 32, 16, 16, 16, 16, 8, 8, 16, 16, 8)
_SIZE = sum(_REPORT) // 8
ADDRESS = 0x00112233445566778899AABBCCDDEEFF
OPS, PAIRS = "Parse.ops", "Parse.pairs"


@pytest.fixture(scope="module")
def module_switch() -> Iterator[Switch]:
    with Switch(program("value_sets")) as made:
        made.multicast_groups.set(1, [(2, 1), (3, 2)])
        yield made


@pytest.fixture
def switch(module_switch: Switch) -> Switch:
    """With empty value sets."""
    for name in module_switch.program.value_sets:
        module_switch.value_set(name).set([])
    return module_switch


@dataclass(frozen=True)
class Report:
    """Program's own account of what it saw."""

    path: int
    problem: int
    ahead: int
    ingress_port: int
    egress_port: int
    length_in: int
    length_out: int
    type_in: int
    type_out: int
    rid: int
    group: int
    timely: int


def reports(switch: Switch, frame: bytes, now: int = 10**9) -> list[tuple[Report, bytes]]:
    sent = switch.process(7, frame, now)
    return [(Report(*unpack(data[:_SIZE], _REPORT)), data[_SIZE:]) for _, data in sent]


def path(switch: Switch, op: int, x: int = 0, y: int = 0, rest: bytes = b"") -> int:
    [(report, _)] = reports(switch, start(op, x, y) + rest)
    return report.path


def start(op: int, x: int = 0, y: int = 0) -> bytes:
    return bytes([op, x]) + y.to_bytes(2, "big")


def record(version: int = 4, address: int = 1, port: int = 3, rest: int = 0) -> bytes:
    return pack([(version, 4), (address, 128), (port, 9), (rest, 35)])


# -- value sets ----------------------------------------------------------------------------------------


def test_a_value_set_is_empty_at_first(switch: Switch) -> None:
    assert switch.value_set(OPS).members() == ()
    assert path(switch, 1) == 0


def test_members_take_effect_and_are_replaced(switch: Switch) -> None:
    switch.value_set(OPS).set([(Exact(1),), (Exact(9),)])
    assert [path(switch, op) for op in (0, 1, 8, 9)] == [0, IN_OPS, 0, IN_OPS]
    switch.value_set(OPS).set([(Exact(8),)])
    assert [path(switch, op) for op in (0, 1, 8, 9)] == [0, 0, IN_OPS, 0]
    assert switch.value_set(OPS).members() == ((Exact(8),),)


def test_every_field_of_a_member_counts_without_its_padding(switch: Switch) -> None:
    switch.value_set(OPS).set([(Exact(1),)])
    switch.value_set(PAIRS).set([(Exact(0x12), Exact(0x345)), (Exact(0x13), Exact(0))])
    both = IN_OPS | IN_PAIRS | LOOK
    ahead = record()
    assert path(switch, 1, 0x12, 0x345, ahead) == both
    assert path(switch, 1, 0x12, 0xF345, ahead) == both, "the key has 12 bits"
    assert path(switch, 1, 0x13, 0, ahead) == both
    for x, y in ((0x12, 0x344), (0x13, 0x345), (0x02, 0x345)):
        assert path(switch, 1, x, y, ahead) == IN_OPS


def test_every_bit_of_the_key_counts_unless_the_program_masks_it(switch: Switch) -> None:
    switch.value_set(OPS).set([(Exact(0xF1),)])
    assert [op for op in range(256) if path(switch, op) & IN_OPS] == [0xF1]
    root = raw("value_sets")
    states = {state["name"]: state for state in root["parsers"][0]["parse_states"]}
    [case] = [each for each in states["start"]["transitions"] if each["value"] == OPS]
    case["mask"] = "0x8f"
    with Switch(load_program(json.dumps(root).encode())) as masked:
        masked.value_set(OPS).set([(Exact(0xF1),)])
        found = [op for op in range(256) if path(masked, op) & IN_OPS]
    assert found == [0x81 | high << 4 for high in range(8)]


@pytest.mark.parametrize(
    ("match", "inside", "outside"),
    [
        (Ternary(0x120, 0xFF0), [0x120, 0x12F], [0x130, 0x020]),
        (Lpm(0x800, 1), [0x800, 0xFFF], [0x7FF]),
        (Lpm(0, 0), [0, 0xFFF], []),
        (Range(3, 0x77), [3, 4, 0x40, 0x77], [2, 0x78, 0xFFF]),
        (Range(0, 0xFFF), [0, 0xFFF], []),
        (Optional(5), [5], [4, 6]),
        (Optional(None), [0, 5, 0xFFF], []),
    ],
)
def test_all_kinds_of_matches(switch: Switch, match: Match, inside: list[int], outside: list[int]) -> None:
    switch.value_set(OPS).set([(Exact(1),)])
    switch.value_set(PAIRS).set([(Exact(1), Exact(0xABC)), (Exact(2), match)])
    for y in inside:
        assert path(switch, 1, 2, y, record()) & IN_PAIRS, y
    for y in outside:
        assert not path(switch, 1, 2, y, record()) & IN_PAIRS, y


def refused(switch: Switch, name: str, members: list[tuple[Match, ...]]) -> Code:
    before = switch.value_set(name).members() if name in switch.program.value_sets else ()
    with pytest.raises(ControlError) as caught:
        switch.value_set(name).set(members)
    assert name in switch.program.value_sets or caught.value.code == Code.NOT_FOUND
    if before:
        assert switch.value_set(name).members() == before
    return caught.value.code


def test_wrong_members_are_refused_and_change_nothing(switch: Switch) -> None:
    switch.value_set(OPS).set([(Exact(1),)])
    assert refused(switch, OPS, [(Exact(256),)]) == Code.INVALID_ARGUMENT
    assert refused(switch, OPS, [(Exact(1), Exact(1))]) == Code.INVALID_ARGUMENT
    assert refused(switch, OPS, [(Range(5, 4),)]) == Code.INVALID_ARGUMENT
    assert refused(switch, OPS, [(Ternary(0x15, 0xF0),), (Ternary(0x1F, 0xF0),)]) == Code.ALREADY_EXISTS
    assert refused(switch, OPS, [(Exact(i),) for i in range(5)]) == Code.RESOURCE_EXHAUSTED
    assert refused(switch, "Parse.nothing", []) == Code.NOT_FOUND
    assert path(switch, 1) == IN_OPS


# -- over P4Runtime ------------------------------------------------------------------------------------


@pytest.fixture
def controller(device: Device) -> Iterator[Controller]:
    assert device.address is not None
    made = Controller(device.address)
    made.push(FOLDER / "value_sets.json", FOLDER / "value_sets.p4info.txtpb")
    yield made
    made.close()


def value_set(
    controller: Controller, name: str, *members: dict[int, int | tuple[int, int]]
) -> p4rt.ValueSetEntry:
    """Return an entry with members given by field number: a value, or a value and a mask."""
    info = controller.session.p4info()
    [number] = [each.preamble.id for each in info.value_sets if each.preamble.name == name]
    entry = p4rt.ValueSetEntry(value_set_id=number)
    for member in members:
        message = entry.members.add()
        for field, value in member.items():
            match = message.match.add(field_id=field)
            if isinstance(value, tuple):
                match.ternary.value, match.ternary.mask = (
                    each.to_bytes(2, "big").lstrip(b"\0") for each in value
                )
            else:
                match.exact.value = value.to_bytes(2, "big").lstrip(b"\0")
    return entry


def test_value_sets_are_written_and_read_alike(device: Device, controller: Controller) -> None:
    ops = value_set(controller, OPS, {1: 1}, {1: 9})
    pairs = value_set(controller, PAIRS, {1: 5, 2: 0x123}, {1: 6, 2: 0xFFF})
    controller.write("MODIFY", value_set_entry=ops)
    controller.write("MODIFY", value_set_entry=pairs)
    assert controller.read(value_set_entry=p4rt.ValueSetEntry(value_set_id=ops.value_set_id)) == [ops]
    found = {each.value_set_id: each for each in controller.read(value_set_entry=p4rt.ValueSetEntry())}
    assert (found[ops.value_set_id], found[pairs.value_set_id], len(found)) == (ops, pairs, 3)
    controller.write("MODIFY", value_set_entry=value_set(controller, OPS))
    assert controller.read(value_set_entry=p4rt.ValueSetEntry(value_set_id=ops.value_set_id)) == [
        p4rt.ValueSetEntry(value_set_id=ops.value_set_id)
    ]


def test_value_sets_that_cannot_be(controller: Controller) -> None:
    ops = value_set(controller, OPS, {1: 1})
    controller.write("MODIFY", value_set_entry=ops)
    for kind, entry, code in (
        ("INSERT", ops, "INVALID_ARGUMENT"),
        ("DELETE", ops, "INVALID_ARGUMENT"),
        ("MODIFY", value_set(controller, OPS, {1: 1}, {1: 1}), "ALREADY_EXISTS"),
        ("MODIFY", value_set(controller, OPS, *({1: i} for i in range(1, 6))), "RESOURCE_EXHAUSTED"),
        ("MODIFY", value_set(controller, OPS, {1: 256}), "INVALID_ARGUMENT"),
        ("MODIFY", value_set(controller, OPS, {}), "INVALID_ARGUMENT"),
        ("MODIFY", value_set(controller, OPS, {2: 1}), "INVALID_ARGUMENT"),
        ("MODIFY", value_set(controller, OPS, {1: (1, 1)}), "INVALID_ARGUMENT"),
        ("MODIFY", p4rt.ValueSetEntry(value_set_id=1), "NOT_FOUND"),
    ):
        assert controller.refused(kind, value_set_entry=entry)[0] == code, (kind, entry)
    assert controller.read(value_set_entry=p4rt.ValueSetEntry(value_set_id=ops.value_set_id)) == [ops]


# -- looking ahead, advancing, verifying ---------------------------------------------------------------


def test_a_whole_header_is_looked_at_and_not_taken(switch: Switch) -> None:
    frame = start(0x80) + record(address=1, port=0x155, rest=0x7_8765_4321)
    [(report, rest)] = reports(switch, frame)
    assert (report.path, rest) == (LOOK, frame)
    assert report.ahead == 1 ^ 0x155 ^ (0x7_8765_4321 >> 3)


def test_a_select_on_more_than_128_bits(switch: Switch) -> None:
    assert path(switch, 0x80, rest=record(address=ADDRESS, port=0x155)) == LOOK | TAKE
    other = ADDRESS ^ 0xFFFFFF << 32
    assert path(switch, 0x80, rest=record(address=other, port=0x55)) == LOOK | TAKE, "not under the mask"
    assert path(switch, 0x80, rest=record(address=ADDRESS ^ 1, port=0x55)) == LOOK | SKIP
    assert path(switch, 0x80, rest=record(address=ADDRESS, port=0x54)) == LOOK | SKIP


def test_looking_beyond_the_packet_and_verifying(switch: Switch) -> None:
    [(report, rest)] = reports(switch, start(0x80) + record()[:-1])
    assert (report.problem, report.ahead, rest) == (TOO_SHORT, 0, start(0x80) + record()[:-1])
    [(report, _)] = reports(switch, start(0x80) + record(version=15))
    assert report.problem == NO_MATCH


@pytest.mark.parametrize(("x", "problem", "gone"), [(16, 0, 2), (12, INVALID, 0), (80, TOO_SHORT, 0)])
def test_advancing_by_what_the_packet_says(switch: Switch, x: int, problem: int, gone: int) -> None:
    switch.value_set("Parse.nobody").set([(Exact(0xC0),)])
    [(report, rest)] = reports(switch, start(0xC0, x) + b"abcdefgh")
    assert (report.path, report.problem, rest) == (SKIP, problem, start(0xC0, x) + b"abcdefgh"[gone:])


def test_ranges_in_a_select(switch: Switch) -> None:
    for op, inside in ((0x0F, False), (0x10, True), (0x2D, True), (0x2E, False)):
        assert path(switch, op, 0, 0x50) == (IN_RANGE if inside else 0)
    for x, y, inside in ((3, 0x100, True), (77, 0x1FF, True), (78, 0x100, False), (3, 0x200, False)):
        assert bool(path(switch, 0x10, x, y, bytes(10)) & SKIP) == inside


# -- standard metadata ---------------------------------------------------------------------------------


def test_standard_metadata_of_one_packet(switch: Switch) -> None:
    [(report, _)] = reports(switch, start(0) + bytes(60))
    assert report == Report(0, 0, 0, 7, 2, 64, 64 + _SIZE, 0, 0, 0, 0, 7)


def test_standard_metadata_of_replicas(switch: Switch) -> None:
    found = [report for report, _ in reports(switch, start(0, 6) + bytes(60))]
    assert [(each.egress_port, each.rid) for each in found] == [(2, 1), (3, 2)]
    assert {(each.type_in, each.type_out, each.group, each.timely) for each in found} == {(0, 5, 1, 7)}


def test_a_wrong_checksum_is_reported(switch: Switch) -> None:
    for y, problem in ((0xFFFF - 0x0102, 0), (0, WRONG_SUM)):
        [(report, _)] = reports(switch, start(1, 2, y))
        assert report.problem == problem


# -- frames for comparing with BMv2 --------------------------------------------------------------------

SETS = {OPS: ((8,), [(1,), (0x90,), (7,)]), PAIRS: ((8, 12), [(5, 0x123), (6, 9), (200, 0xFFF)])}


def frames(count: int, seed: int = 1) -> list[bytes]:
    """Return frames of all kinds, of at least the first header's size."""
    rng = random.Random(seed)
    return [_frame(rng) for _ in range(count)]


def _frame(rng: random.Random) -> bytes:
    op = rng.choice((1, 3, 7, 0x10, 0x11, 0x2C, 0x2D, 0x2E, 0x80, 0x90, 0xBF, 0xC0))
    pairs = [*SETS[PAIRS][1], (3, 0x100), (5, 1), (8, 0x101), (16, 9), (77, 0x1FF), (78, 0x1F0), (255, 9)]
    x, y = rng.choice(pairs)
    y = rng.choice((y, y | 0x7000, 0xFFFF - (op << 8 | x)))
    address = rng.choice((1, ADDRESS, ADDRESS ^ 0xFFFFFF << 32, rng.randrange(1 << 128)))
    fields = rng.choice((4, 6, 15)), address, rng.choice((0x55, 0x155, 3)), rng.randrange(1 << 35)
    frame = start(op, x, y) + record(*fields) + rng.randbytes(rng.randrange(12))
    return frame if rng.random() < 0.8 else frame[: rng.randrange(4, len(frame) + 1)]
