# SPDX-License-Identifier: Apache-2.0
"""Externs: with wide operands, with parameters, with assertions; in the parser and the deparser, too."""

import binascii
import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from softp4.errors import Code, ControlError
from softp4.program.calculations import CrcParameters
from softp4.program.errors import ProgramError
from softp4.program.loader import Program, load_program
from softp4.program.messages import message_parts
from softp4.state.entry import Entry, Exact, Lpm, Ternary
from softp4.switch import Switch
from tests.programs import one, pack, raw, unpack
from tests.state.test_state import checksum, crc16
from tests.test_expressions import edges
from tests.tracing.test_trace import trace

(WRITE, READ, HASH, CUSTOM, CUSTOM32, ASSERT, ASSUME, TRUNCATE, LOG, EXACT, LPM, TERNARY, EXTRA, TWO) = range(
    1, 15
)
(EGRESS_ASSERT, EQUAL, RANDOM, AHEAD, PARSER_ASSERT, LOOP) = range(15, 21)
FIELDS = (8, 32, 256, 256)
DEFAULT = 0xDEAD << 240 | 0xBEEF
U256 = (1 << 256) - 1


def with_parser_assertion() -> Program:
    """Return the program with `assert(what != PARSER_ASSERT)` in its parser, which this p4c does not
    write.
    """
    root = raw("externs")
    operands = {"left": {"type": "field", "value": ["order", "what"]}}
    operands["right"] = {"type": "hexstr", "value": hex(PARSER_ASSERT)}
    condition = {"type": "expression", "value": {"op": "!=", **operands}}
    call = {"op": "assert", "parameters": [condition]}
    root["parsers"][0]["parse_states"][0]["parser_ops"].append({"op": "primitive", "parameters": [call]})
    return load_program(json.dumps(root).encode())


@pytest.fixture(scope="module")
def loaded() -> Program:
    return with_parser_assertion()


@pytest.fixture
def switch(loaded: Program) -> Iterator[Switch]:
    with Switch(loaded) as made:
        yield made


@pytest.fixture(scope="module")
def shared(loaded: Program) -> Iterator[Switch]:
    """For tests that leave no state behind."""
    with Switch(loaded) as made:
        yield made


def order(what: int, index: int = 0, value: int = 0, answer: int = 0) -> bytes:
    return pack(list(zip((what, index, value, answer), FIELDS, strict=True)))


def ask(switch: Switch, what: int, index: int = 0, value: int = 0, answer: int = 0) -> int:
    return unpack(one(switch, order(what, index, value, answer)), FIELDS)[3]


# -- registers, hashes, random numbers -----------------------------------------------------------------


def test_wide_registers(switch: Switch) -> None:
    ask(switch, WRITE, 3, U256 - 5)
    ask(switch, WRITE, 4, 1)  # beyond the array: nothing happens
    assert ask(switch, READ, 3) == U256 - 5
    assert ask(switch, READ, 0, answer=9) == 0
    assert switch.register("In.cells").read(3) == U256 - 5
    switch.register("In.cells").write(0, 1 << 255)
    assert ask(switch, READ, 0) == 1 << 255
    with pytest.raises(ControlError):
        switch.register("In.cells").write(0, 1 << 256)


@given(edges(256))
def test_wide_hashes(shared: Switch, value: int) -> None:
    assert ask(shared, HASH, 0, value) == binascii.crc32(value.to_bytes(32, "big")) + 5


def test_random_numbers_into_wide_fields(shared: Switch) -> None:
    assert {ask(shared, RANDOM) for _ in range(100)} == {10, 11, 12, 13}


def bitwise(data: bytes, bits: int, crc: CrcParameters) -> int:
    """Return a CRC by its definition (Rocksoft's model)."""
    remainder, top = crc.initial, 1 << bits - 1
    for byte in data:
        part = int(f"{byte:08b}"[::-1], 2) if crc.reflect_data else byte
        remainder ^= part << bits - 8
        for _ in range(8):
            remainder = remainder << 1 ^ (crc.polynomial if remainder & top else 0)
            remainder &= (1 << bits) - 1
    if crc.reflect_remainder:
        remainder = int(f"{remainder:0{bits}b}"[::-1], 2)
    return remainder ^ crc.final_xor


@given(st.integers(0, U256), st.integers(0, 0xFFFFFFFF))
def test_custom_crcs_begin_as_the_plain_ones(shared: Switch, value: int, index: int) -> None:
    data = pack([(value, 256), (index, 32)])
    assert ask(shared, CUSTOM, index, value) == crc16(data)
    assert ask(shared, CUSTOM32, index, value) == binascii.crc32(data)


@given(
    st.integers(0, U256),
    st.builds(
        CrcParameters,
        *(st.integers(0, 0xFFFF) for _ in range(3)),
        st.booleans(),
        st.booleans(),
    ),
)
def test_custom_crcs_change(loaded: Program, shared: Switch, value: int, crc: CrcParameters) -> None:
    data = pack([(value, 256), (7, 32)])
    with Switch(loaded) as other:
        other.crcs.set("calc_0", crc)
        assert other.crcs.all()["calc_0"] == crc
        assert ask(other, CUSTOM, 7, value) == bitwise(data, 16, crc)
        assert ask(other, CUSTOM32, 7, value) == binascii.crc32(data)  # each has its own
    assert ask(shared, CUSTOM, 7, value) == crc16(data)


def test_crc_parameters_are_checked(switch: Switch) -> None:
    for name, crc, code in [
        ("calc_9", CrcParameters(1), Code.NOT_FOUND),
        ("calc", CrcParameters(1), Code.INVALID_ARGUMENT),
        ("calc_0", CrcParameters(0x10000), Code.OUT_OF_RANGE),
        ("calc_0", CrcParameters(1, initial=-1), Code.OUT_OF_RANGE),
    ]:
        with pytest.raises(ControlError) as caught:
            switch.crcs.set(name, crc)
        assert caught.value.code is code
    assert switch.crcs.all()["calc_0"] == CrcParameters(0x8005, 0, 0, True, True)


# -- assertions, messages, truncation ------------------------------------------------------------------


def test_a_failed_assertion_ends_the_packet(switch: Switch) -> None:
    assert ask(switch, ASSERT, 6) == 2
    assert ask(switch, ASSUME, 0, 1, 2) == 2
    for frame in [
        order(ASSERT, 7),
        order(ASSUME, 0, 2, 2),
        order(ASSUME, 0, U256, 0),
        order(EGRESS_ASSERT, 7),
        order(PARSER_ASSERT),
    ]:
        assert switch.process(1, frame, 0) == []
    assert switch.statistics().packets_dropped == 5
    assert switch.assertion_failures() == {
        "action In.failing, assert": 1,
        "action In.assuming, assume": 2,
        "action externs190, assert": 1,
        "action In.looping: a loop without end": 0,
        "parser state start, primitive, assert": 1,
    }
    assert ask(switch, EGRESS_ASSERT, 6) == 0


def test_loops_end(switch: Switch) -> None:
    """p4c's for loops jump backwards; one that goes on for ever ends its packet."""
    for turns in (0, 1, 5, 1000):
        assert ask(switch, LOOP, turns, 1 << 250 | 3, 7) == (7 + turns * (1 << 250 | 3)) & U256
    assert switch.process(1, order(LOOP, 0xFFFFFFFF), 0) == []
    assert switch.assertion_failures()["action In.looping: a loop without end"] == 1
    assert switch.statistics().packets_dropped == 1


def test_messages_change_nothing(switch: Switch) -> None:
    assert one(switch, order(LOG, 5, U256)) == order(LOG, 5, U256)


def test_message_formats() -> None:
    assert message_parts("a {} and {x}.", "") == ("a ", " and ", ".")
    assert message_parts("{}", "") == ("", "")
    assert message_parts(r"\{}\}", "") == ("{}}",)
    with pytest.raises(ProgramError, match="not closed"):
        message_parts("a {", "")


def test_a_message_needs_as_many_values_as_placeholders() -> None:
    root = raw("externs")
    call = root["deparsers"][0]["primitives"][0]
    call["parameters"][0]["value"] = "{} {}"
    with pytest.raises(ProgramError, match="2 placeholders for 1 values"):
        load_program(json.dumps(root).encode())


@pytest.mark.parametrize("length", [1, 20, 69, 74, 75, 1000])
def test_truncation(shared: Switch, length: int) -> None:
    frame = order(TRUNCATE, length) + b"payload"
    assert one(shared, frame) == frame[:length]


# -- keys and action parameters ------------------------------------------------------------------------


def test_wide_exact_keys_and_parameters(switch: Switch) -> None:
    wide = 0x0123456789 << 200 | 0xABCDEF
    switch.table("In.exact_").insert(Entry((Exact(wide), Exact(3)), "In.answer", (U256 - 1,)))
    switch.table("In.exact_").insert(Entry((Exact(wide), Exact(4)), "In.add", ((1 << 136) - 1, 255)))
    assert ask(switch, EXACT, 3, wide) == U256 - 1
    assert ask(switch, EXACT, 4, wide) == wide + (1 << 136) - 1 + 255
    for other in (wide ^ 1, wide ^ 1 << 255, wide ^ 1 << 128, wide ^ 1 << 64):
        assert ask(switch, EXACT, 3, other) == DEFAULT


def test_wide_prefixes(switch: Switch) -> None:
    for length in (0, 1, 64, 65, 129, 160):
        value = (1 << length) - 1 << 160 - length
        switch.table("In.lpm_").insert(Entry((Lpm(value, length),), "In.answer", (length + 1,)))
    for ones, length in [(0, 0), (1, 1), (63, 1), (64, 64), (128, 65), (129, 129), (159, 129), (160, 160)]:
        assert ask(switch, LPM, 0, (1 << ones) - 1 << 160 - ones) == length + 1


def test_wide_ternary_keys(switch: Switch) -> None:
    high, low = 0xFF << 248, 0xFF
    switch.table("In.ternary_").insert(
        Entry((Ternary(0x12 << 248, high), Ternary(0, 0)), "In.answer", (1,), priority=1)
    )
    switch.table("In.ternary_").insert(
        Entry((Ternary(0x34, low), Ternary(5, 0xF)), "In.answer", (2,), priority=2)
    )
    assert ask(switch, TERNARY, 0, 0x12 << 248 | 0x34) == 1
    assert ask(switch, TERNARY, 0x15, 0x12 << 248 | 0x34) == 2
    assert ask(switch, TERNARY, 0x15, 0x34) == 2
    assert ask(switch, TERNARY, 0x15, 0x33) == 0


# -- parser, checksums, deparser -----------------------------------------------------------------------


def extra(wide: int, total: int | None = None) -> bytes:
    data = pack([(wide, 272)])
    return data + pack([(checksum(data) if total is None else total, 16)])


@pytest.mark.parametrize(
    ("wide", "follows"),
    [
        (1 << 256 | 2, True),
        (1 << 256 | 3, False),
        (2, False),
        (1 << 271, True),
        (1 << 271 | 1, False),
        (1 << 271 | 1 << 100 | 2, True),
        (1 << 270, False),
    ],
)
def test_wide_select_keys(shared: Switch, wide: int, follows: bool) -> None:
    """The first header is written twice, the second in between when there is one."""
    first, second = extra(wide), extra(5)
    answer = one(shared, order(EXTRA) + first + second + b"tail")
    rest = b"tail" if follows else second + b"tail"
    assert unpack(answer[:69], FIELDS) == [EXTRA, 0, 0, 2 if follows else 1]
    assert answer[69:105] == first
    if follows:
        total = checksum(second[:34] + b"\x12\x34" + rest)
        assert answer[105:] == second[:34] + total.to_bytes(2, "big") + first + rest
    else:
        assert answer[105:] == first + rest


@given(edges(256), st.booleans())
def test_checksums_over_wide_fields(shared: Switch, wide: int, right: bool) -> None:
    first = extra(wide) if right else extra(wide, checksum(pack([(wide, 272)])) ^ 1)
    for checked in (0, 1):
        answer = one(shared, order(EXTRA, checked) + first)
        assert unpack(answer[:69], FIELDS)[1] == int(not right and checked == 1)


def test_wide_lookahead(shared: Switch) -> None:
    assert unpack(one(shared, order(AHEAD) + bytes(range(32)))[:69], FIELDS)[3] == int.from_bytes(
        range(32), "big"
    )
    short = one(shared, order(AHEAD, answer=7) + bytes(31))  # the parser stops there
    assert unpack(short[:69], FIELDS)[3] == 0


def test_equality_of_headers(shared: Switch) -> None:
    for a, b in [((5, 1), (5, 1)), ((5, 1), (5, 2)), ((5, 1), (5 | 1 << 200, 1))]:
        answer = one(shared, order(EQUAL) + extra(*a) + extra(*b))
        assert unpack(answer[:69], FIELDS)[3] == int(a == b)


def test_a_trace_shows_messages_and_assertions(switch: Switch) -> None:
    shown = trace(switch, order(LOG, 5, U256))
    assert f"parsed order {LOG}" in shown
    assert f"value {U256} of 5" in shown
    assert "no operands" in shown
    shown = trace(switch, order(ASSERT, 7))
    assert "action In.failing, assert: " in shown
    assert "FAILS" in shown
    assert "dropped: an assertion failed" in shown


def test_primitives_of_p4_14() -> None:
    """Check what BMv2 still has of them."""
    root = raw("externs")
    looping = next(each for each in root["actions"] if each["name"] == "In.looping")
    answer, value, index = (
        {"type": "field", "value": ["order", name]} for name in ("answer", "value", "index")
    )
    looping["primitives"] = [
        {"op": "shift_left", "parameters": [answer, value, index]},
        {"op": "subtract", "parameters": [answer, answer, value]},
        {"op": "bit_xor", "parameters": [answer, answer, index]},
        {"op": "add_to_field", "parameters": [answer, {"type": "hexstr", "value": "0x5"}]},
    ]
    with Switch(load_program(json.dumps(root).encode())) as switch:
        for number in (0, 3, U256):
            assert ask(switch, LOOP, 9, number) == ((number << 9) - number & U256 ^ 9) + 5 & U256
