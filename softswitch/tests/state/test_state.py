# SPDX-License-Identifier: Apache-2.0
"""Registers, counters, hashes, checksums and random numbers."""

import binascii
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from softp4.errors import Code, ControlError
from softp4.state.entry import Count
from softp4.switch import Switch
from tests.programs import one, pack, program, unpack

(
    WORDS,
    NARROW,
    WIDE,
    SIGNED,
    COUNT,
    CRC16,
    CRC32,
    IDENTITY,
    CSUM,
    XOR,
    RANDOM,
    INVALID,
    REMOVE,
    INTO_HEADER,
) = range(1, 15)
EXTRA = 0x80  # in `what`: a further header follows
U32 = st.integers(0, 2**32 - 1)


@pytest.fixture
def switch() -> Iterator[Switch]:
    with Switch(program("state")) as made:
        yield made


@pytest.fixture(scope="module")
def shared() -> Iterator[Switch]:
    """For tests that leave no state behind."""
    with Switch(program("state")) as made:
        yield made


def checksum(data: bytes) -> int:
    """RFC 1071, the slow way."""
    data += b"\0" * (len(data) % 2)
    total = sum(int.from_bytes(data[i : i + 2], "big") for i in range(0, len(data), 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def order(what: int, index: int, value: int, extra: bytes = b"", total: int | None = None) -> bytes:
    """Return an order with the right checksum unless another is given."""
    right = checksum(bytes([what, 0]) + pack([(index, 32), (value, 32)]) + extra)
    return pack([(what, 8), (index, 32), (value, 32), (right if total is None else total, 16)]) + extra


def ask(switch: Switch, what: int, index: int = 0, value: int = 0, extra: bytes = b"") -> int:
    answer, wrong = unpack(one(switch, order(what, index, value, extra))[:5], (32, 8))
    assert not wrong
    return answer


# -- registers -----------------------------------------------------------------------------------------


def test_registers_keep_values(switch: Switch) -> None:
    assert ask(switch, WORDS, 3, 0xFFFFFFFF) == 0
    assert ask(switch, WORDS, 3, 5) == 0xFFFFFFFF
    assert switch.register("In.words").read(3) == 5
    switch.register("In.words").write(3, 77)
    assert ask(switch, WORDS, 3) == 77
    assert [switch.register("In.words").read(i) for i in range(8)] == [0] * 8


@pytest.mark.parametrize("index", [8, 9, 0x7FFFFFFF, 0xFFFFFFFF])
def test_registers_out_of_range(switch: Switch, index: int) -> None:
    """A read leaves its destination alone (a fresh variable is 0), a write does nothing."""
    assert ask(switch, WORDS, index, 1) == 0
    assert ask(switch, INTO_HEADER, index, 0x1234) == 0x1234
    assert ask(switch, INTO_HEADER, 7, 0x1234) == 0
    assert [switch.register("In.words").read(i) for i in range(8)] == [0] * 8


def test_registers_of_odd_widths(switch: Switch) -> None:
    assert ask(switch, NARROW, 7, 0xFF) == 31
    assert switch.register("In.narrow").read(7) == 31
    assert ask(switch, WIDE, 2, 0xFFFFFFFF) == 0xFFFFFFFF
    assert ask(switch, WIDE, 2, 2) == 1
    assert switch.register("In.wide").read(2) == 0x100000001 << 64
    switch.register("In.wide").write(2, (1 << 128) - 1)
    assert ask(switch, WIDE, 2, 1) == 0
    assert ask(switch, SIGNED, 1, 3) == 0xFFFFFFFD
    assert ask(switch, SIGNED, 1, 0x7FFE) == 0x00007FFF  # -3 - 32766 wraps
    assert switch.register("In.signed").read(1) == 0x7FFF


def test_register_access_is_checked(switch: Switch) -> None:
    for call, code in [
        (lambda: switch.register("In.words").read(8), Code.OUT_OF_RANGE),
        (lambda: switch.register("In.narrow").write(0, 32), Code.OUT_OF_RANGE),
        (lambda: switch.register("In.nothing").read(0), Code.NOT_FOUND),
        (lambda: switch.counter("In.events").read(4), Code.OUT_OF_RANGE),
        (lambda: switch.counter("In.words").read(0), Code.NOT_FOUND),
    ]:
        with pytest.raises(ControlError) as caught:
            call()
        assert caught.value.code is code


# -- counters ------------------------------------------------------------------------------------------


def test_counters_count_packets_and_received_bytes(switch: Switch) -> None:
    for index in (2, 2, 3, 4, 0xFFFFFFFF):
        ask(switch, COUNT, index)
    size = len(order(COUNT, 0, 0))
    assert [switch.counter("In.events").read(i) for i in range(4)] == [
        Count(0, 0),
        Count(0, 0),
        Count(2, 2 * size),
        Count(1, size),
    ]
    switch.counter("In.events").write(2, Count(2**63, 1))
    ask(switch, COUNT, 2)
    assert switch.counter("In.events").read(2) == Count(2**63 + 1, 1 + size)


# -- hashes --------------------------------------------------------------------------------------------


def crc16(data: bytes) -> int:
    """CRC-16/ARC bit by bit."""
    crc = 0
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0xA001 if crc & 1 else 0)
    return crc


@given(U32, U32)
def test_hashes(shared: Switch, index: int, value: int) -> None:
    data = pack([(index, 32), (value, 32)])
    words = [int.from_bytes(data[i : i + 2], "big") for i in range(0, 8, 2)]
    assert ask(shared, CRC16, index, value) == crc16(data)
    assert ask(shared, CRC32, index, value) == binascii.crc32(data)
    assert ask(shared, IDENTITY, index, value) == 100 + value % 1000
    assert ask(shared, CSUM, index, value) == checksum(data)
    assert ask(shared, XOR, index, value) == words[0] ^ words[1] ^ words[2] ^ words[3]


def test_crc_check_values() -> None:
    """The catalogue's own: so that the reference above is what it says."""
    assert crc16(b"123456789") == 0xBB3D


# -- checksums -----------------------------------------------------------------------------------------


@given(U32, U32.filter(bool), st.binary(max_size=30), st.booleans())
def test_checksums(shared: Switch, index: int, value: int, payload: bytes, longer: bool) -> None:
    """Verified over the headers, written over headers and payload; an absent header takes no part."""
    what = INVALID | (EXTRA if longer else 0)
    extra = b"\x12\x34\x56\x78" if longer else b""
    right = order(what, index, value, extra)
    answer = one(shared, right + payload)
    assert answer[4] == 0
    head = bytes([what, 0]) + pack([(index, 32), (value, 32)]) + extra
    assert answer[5 + 9 : 5 + 11] == checksum(head + payload).to_bytes(2, "big")
    assert answer[5 + 11 :] == extra + payload
    spoiled = order(what, index, value, extra, total=(checksum(head) + 1) % 65536)
    assert one(shared, spoiled + payload)[4] == 1


def test_a_checksum_is_only_checked_when_its_condition_holds(shared: Switch) -> None:
    assert one(shared, order(INVALID, 1, 0, total=0x1234))[4] == 0


# -- the rest ------------------------------------------------------------------------------------------


def test_random_numbers_are_in_range_and_repeatable(switch: Switch) -> None:
    draws = [ask(switch, RANDOM, 10, 13) for _ in range(200)]
    assert set(draws) == {10, 11, 12, 13}
    with Switch(program("state")) as other:
        assert [ask(other, RANDOM, 10, 13) for _ in range(200)] == draws
    assert ask(switch, RANDOM, 5, 5) == 5
    assert ask(switch, RANDOM, 6, 5) == 0  # an empty range draws nothing
    assert len({ask(switch, RANDOM, 0, 0xFFFFFFFF) for _ in range(50)}) > 40


def test_headers_that_are_not_there_read_as_zero(switch: Switch) -> None:
    """Whatever an earlier packet left in them."""
    assert ask(switch, INVALID | EXTRA, extra=b"\xde\xad\xbe\xef") == 0xDEADBEEF
    assert ask(switch, INVALID) == 0


def test_removed_headers_are_not_emitted(switch: Switch) -> None:
    frame = order(REMOVE | EXTRA, 1, 2, b"\xde\xad\xbe\xef")
    answer = one(switch, frame + b"rest")
    assert answer[5:14] == frame[:9]
    assert answer[16:] == b"rest"
