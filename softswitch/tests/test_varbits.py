# SPDX-License-Identifier: Apache-2.0
"""Varbit fields: extracted, copied, emitted, hashed, summed and counted with the length that they have."""

import json
import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from softp4.program.errors import ProgramError
from softp4.program.loader import load_program
from softp4.switch import Switch
from tests.programs import pack, program, raw

PLAIN, COPY, REMOVE, COPY_DATA, POP, PUSH, COPY_OPTION, FLOOD, AGAIN, CHECKED = range(10)
TOO_SHORT, FULL, TOO_LONG, INVALID, WRONG_SUM = 1, 3, 4, 6, 0x80
_START = 15
_COPIES = [(2, 1), (3, 2), (4, 3)]  # of group 1


@pytest.fixture(scope="module")
def switch() -> Iterator[Switch]:
    with Switch(program("varbits")) as made:
        made.multicast_groups.set(1, _COPIES)
        yield made


@dataclass(frozen=True)
class Answer:
    """Answer of the program."""

    sum: int
    hash: int
    length: int
    problem: int
    rest: bytes


def run_all(
    switch: Switch, op: int, data: bytes, *options: bytes, bits: int | None = None, rest: bytes | None = None
) -> list[Answer]:
    """Return a packet with `data` in the ragged header, of `bits` bits if that must differ."""
    bits = 8 * len(data) if bits is None else bits
    start = bytes([op, len(options)]) + bits.to_bytes(4, "big") + bytes(9)
    rest = ragged(data) + b"".join(options) + b"\x12\x34end" if rest is None else rest
    sent = switch.process(1, start + rest, now=0)
    return [
        Answer(*(int.from_bytes(f[a:b], "big") for a, b in ((6, 8), (8, 12), (12, 14), (14, 15))), f[_START:])
        for _, f in sent
    ]


def run(
    switch: Switch, op: int, data: bytes, *options: bytes, bits: int | None = None, rest: bytes | None = None
) -> Answer:
    [answer] = run_all(switch, op, data, *options, bits=bits, rest=rest)
    return answer


def ragged(data: bytes, b: int = 0x123, c: int = 0x1_2345_6789) -> bytes:
    parts = [(5, 3), *((byte, 8) for byte in data), (b, 12), (c, 33)]
    return pack(parts)


def option(data: bytes, kind: int = 1) -> bytes:
    return bytes([kind, len(data)]) + data


def checksum(data: bytes) -> int:
    data += bytes(len(data) % 2)
    total = sum(int.from_bytes(data[i : i + 2], "big") for i in range(0, len(data), 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


@given(st.binary(max_size=10), st.lists(st.binary(max_size=16), max_size=3))
def test_any_length_on_any_bit_goes_through(switch: Switch, data: bytes, datas: list[bytes]) -> None:
    options = [option(each) for each in datas]
    answer = run(switch, PLAIN, data, *options)
    body = ragged(data) + b"".join(options) + b"\x12\x34end"
    first = options[0] if options else b""
    assert answer.rest == body
    assert (answer.problem, answer.length) == (0, _START + len(body))
    assert answer.sum == checksum(bytes([PLAIN, len(options)]) + first + b"\x12\x34")


@pytest.mark.parametrize("size", [0, 1, 9])
def test_a_hash_is_over_what_is_there(switch: Switch, size: int) -> None:
    data = bytes(range(1, size + 1))
    answer = run(switch, PLAIN, b"abc", option(b""), option(data))
    parts = [(5, 3), *((byte, 8) for byte in b"abc"), (0x123, 12), *((each, 8) for each in data)]
    whole = pack([*parts, (0x1_2345_6789, 33)])
    assert answer.hash == zlib.crc32(whole) % 0xFFFFFFFF


def test_a_checksum_over_a_varbit_field_is_verified(switch: Switch) -> None:
    body = ragged(b"wxyz")
    right = bytes([CHECKED, 0]) + (32).to_bytes(4, "big") + checksum(body).to_bytes(2, "big") + bytes(7)
    for frame, problem in ((right + body, 0), (right + ragged(b"wxy!"), WRONG_SUM)):
        [(_, answer)] = switch.process(1, frame + b"\x12\x34", now=0)
        assert answer[14] == problem


def test_lengths_that_cannot_be(switch: Switch) -> None:
    for bits in (1, 12, 0x7FFFFFFF, 0x80000000, 0xFFFFFFF8):
        assert run(switch, PLAIN, b"abc", bits=bits).problem == INVALID, bits
    assert run(switch, PLAIN, b"abc", bits=0x7FFFFFF8).problem == TOO_SHORT
    assert run(switch, PLAIN, bytes(11)).problem == TOO_LONG
    assert run(switch, PLAIN, bytes(11), rest=ragged(bytes(11))[:-1]).problem == TOO_SHORT
    assert run(switch, PLAIN, b"", option(bytes(17))).problem == TOO_LONG
    assert run(switch, PLAIN, b"", *[option(b"")] * 4).problem == FULL


def test_what_cannot_be_extracted_stays_payload(switch: Switch) -> None:
    body = ragged(b"abc") + option(bytes(17)) + b"end"
    answer = run(switch, PLAIN, b"abc", option(b""), rest=body)
    assert (answer.problem, answer.rest) == (TOO_LONG, body)


def test_headers_are_copied_with_their_length(switch: Switch) -> None:
    for size in (0, 4, 10):
        data = bytes(range(size))
        answer = run(switch, COPY, data)
        assert answer.rest == ragged(data) + ragged(data, b=0xABC) + b"\x12\x34end"
        fresh = pack([(0, 3), *((byte, 8) for byte in data), (0, 12), (0, 33)])
        assert run(switch, COPY_DATA, data).rest == ragged(data) + fresh + b"\x12\x34end"


def test_the_packet_shrinks_by_the_length_the_field_has(switch: Switch) -> None:
    answer = run(switch, REMOVE, bytes(7))
    assert (answer.length, answer.rest) == (_START + 5, b"\x12\x34end")
    again = run(switch, AGAIN, bytes(7))
    assert (again.length, again.rest) == (_START + 18, bytes(13) + b"\x12\x34end")


def test_elements_of_a_stack_move_with_their_length(switch: Switch) -> None:
    a, b, c = option(b"a", 1), option(b"bbbb", 2), option(b"", 3)
    head, tail = ragged(b""), b"\x12\x34end"
    assert run(switch, POP, b"", a, b, c).rest == head + b + c + tail
    assert run(switch, PUSH, b"", a, b).rest == head + bytes([7, 0]) + a + b + tail
    assert run(switch, PUSH, b"", a, c, b).rest == head + bytes([7, 0]) + bytes(4) + a + c + tail
    assert run(switch, COPY_OPTION, b"", a).rest == head + tail
    assert run(switch, COPY_OPTION, b"", a, b).rest == head + b + tail


def test_replicas_may_differ_in_length(switch: Switch) -> None:
    a, b = option(b"a"), option(b"bbbb")
    head, tail = ragged(b"xy") + a[:2], b + b"\x12\x34end"
    answers = run_all(switch, FLOOD, b"xy", a, b)
    assert [each.rest for each in answers] == [head + part + tail for part in (b"a", b"bbbb", b"a")]


def test_a_loop_that_takes_nothing_from_the_packet_ends() -> None:
    root = raw("varbits")
    root["header_types"].append({"name": "bare", "id": 99, "fields": [["v", "*"]], "max_length": 4})
    root["headers"].append({"name": "bare", "id": 99, "header_type": "bare", "metadata": False})
    nothing = {"type": "expression", "value": {"type": "hexstr", "value": "0x00"}}
    extract = {"op": "extract_VL", "parameters": [{"type": "regular", "value": "bare"}, nothing]}
    again = {"type": "default", "value": None, "mask": None, "next_state": "option"}
    states = {state["name"]: state for state in root["parsers"][0]["parse_states"]}
    states["option"].update(parser_ops=[extract], transition_key=[], transitions=[again])
    with Switch(load_program(json.dumps(root).encode())) as made:
        body = ragged(b"abc") + option(b"x") + b"\x12\x34end"
        assert run(made, PLAIN, b"abc", option(b"x")).rest == body


def test_a_varbit_header_is_not_extracted_without_a_length() -> None:
    root = raw("varbits")
    states = {state["name"]: state for state in root["parsers"][0]["parse_states"]}
    [extract] = [op for op in states["option"]["parser_ops"] if op["op"] == "extract_VL"]
    extract.update(op="extract", parameters=extract["parameters"][:1])
    with pytest.raises(ProgramError, match="header type option_t has a varbit field"):
        load_program(json.dumps(root).encode())


# -- frames for comparing with BMv2 --------------------------------------------------------------------


def frames(count: int, seed: int = 1) -> list[bytes]:
    """Return frames of all kinds, of at least the first header's size."""
    rng = random.Random(seed)
    return [_frame(rng) for _ in range(count)]


def _frame(rng: random.Random) -> bytes:
    data = rng.randbytes(rng.choice((0, 1, 2, 5, 10, 10, 11, 17)))
    bits = 8 * len(data)
    if rng.random() < 0.1:
        bits = rng.choice((3, 12, 2400, 0x7FFFFFF8, 0x80000000, 0xFFFFFFF8))
    options = [option(rng.randbytes(rng.choice((0, 1, 2, 7, 16, 16, 17)))) for _ in range(rng.randrange(5))]
    start = bytes([rng.randrange(10), len(options)]) + bits.to_bytes(4, "big") + rng.randbytes(2) + bytes(7)
    body = rng.randbytes(6 + len(data)) + b"".join(options) + rng.randbytes(rng.choice((0, 1, 2, 2, 9)))
    return start + (body if rng.random() < 0.8 else body[: rng.randrange(len(body) + 1)])
