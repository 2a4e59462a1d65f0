# SPDX-License-Identifier: Apache-2.0
"""Parsing: how far it comes, what it extracts, and what stands in parser_error when it fails."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from softp4.switch import Switch
from tests.programs import one, pack, program, unpack

TOO_SHORT, STACK_FULL, BAD_VERSION = 1, 3, 100
ODD = (3, 13, 33, 48, 7, 72, 16)


@pytest.fixture(scope="module")
def switch() -> Iterator[Switch]:
    with Switch(program("parsing")) as made:
        yield made


@dataclass(frozen=True)
class Report:
    """Program's own account of what it saw, and the rest of the packet."""

    error: int
    labels: int
    last: int
    kind: int
    odd: int
    rest: bytes


def run(switch: Switch, frame: bytes) -> Report:
    answer = one(switch, frame)
    error, labels, last, kind, _, odd = unpack(answer[:8], (32, 8, 8, 8, 7, 1))
    return Report(error, labels, last, kind, odd, answer[8:])


def start(following: int, flags: int = 0, version: int = 4) -> bytes:
    return pack([(version, 4), (flags, 12), (following, 8)])


def labels(*values: int) -> bytes:
    """Return a label stack; the last one has the bottom bit."""
    return b"".join(pack([(v, 7), (int(i == len(values) - 1), 1)]) for i, v in enumerate(values))


def test_nothing_after_the_first_header(switch: Switch) -> None:
    assert run(switch, start(9) + b"payload") == Report(0, 0, 0, 0, 0, start(9) + b"payload")


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_a_stack_is_extracted_element_by_element(switch: Switch, count: int) -> None:
    stack = labels(*range(10, 10 + count))
    frame = start(1) + stack + b"\0rest"
    assert run(switch, frame) == Report(0, count, 9 + count, 0, 0, frame)


def test_a_stack_that_does_not_end_is_an_error(switch: Switch) -> None:
    frame = start(1) + labels(1, 2, 3, 4, 5)
    assert run(switch, frame) == Report(STACK_FULL, 4, 4, 0, 0, frame)


def test_popping_and_pushing_a_stack(switch: Switch) -> None:
    frame = start(1, flags=1) + labels(1, 2, 3) + b"\0"
    assert run(switch, frame).rest == start(1, flags=1) + labels(2, 3) + b"\0"
    frame = start(1, flags=2) + labels(1, 2) + b"\0"
    pushed = start(1, flags=2) + pack([(0x55, 7), (0, 1)]) + labels(1, 2) + b"\0"
    assert run(switch, frame).rest == pushed
    full = start(1, flags=2) + labels(1, 2, 3, 4) + b"\0"
    pushed = start(1, flags=2) + pack([(0x55, 7), (0, 1), (1, 7), (0, 1), (2, 7), (0, 1), (3, 7), (0, 1)])
    assert run(switch, full).rest == pushed + b"\0"


@given(st.tuples(*(st.integers(0, (1 << bits) - 1) for bits in ODD)))
def test_fields_on_any_bit(switch: Switch, values: tuple[int, ...]) -> None:
    frame = start(2, flags=0x801) + pack(list(zip(values, ODD, strict=True))) + b"\0"
    report = run(switch, frame)
    changed = list(values)
    changed[1] = (values[1] + 1) % (1 << 13)
    changed[2] = values[2] ^ (1 << 33) - 1
    expected = start(2, flags=0x801) + pack(list(zip(changed, ODD, strict=True))) + b"\0"
    assert report == Report(0, 0, 0, 0, 1, expected)


def test_advance_skips_bytes_that_are_not_emitted(switch: Switch) -> None:
    frame = start(2, flags=3) + b"abc" + b"\0rest"
    assert run(switch, frame) == Report(0, 0, 0, 0, 0, start(2, flags=3) + b"\0rest")
    assert run(switch, start(2, flags=4) + b"abc").error == TOO_SHORT


def test_verify_ends_parsing(switch: Switch) -> None:
    frame = start(1, version=5) + labels(1)
    assert run(switch, frame) == Report(BAD_VERSION, 0, 0, 0, 0, frame)


@pytest.mark.parametrize(("following", "kind"), [(3, 7), (0x0F, 7), (0x13, 0), (0x43, 0)])
def test_masked_selects(switch: Switch, following: int, kind: int) -> None:
    """(3 &&& 0xf3, 0): 0x0f & 0xf3 is 3 as well; 0x13 and 0x43 have other bits under the mask."""
    frame = start(following) + b"\7" + bytes(range(25)) + b"rest"
    assert run(switch, frame) == Report(0, 0, 0, kind, 0, frame)


def test_a_select_looks_at_every_field(switch: Switch) -> None:
    frame = start(3, flags=1) + b"\7" + bytes(25)
    assert run(switch, frame).kind == 0


def test_every_truncation_is_reported_and_loses_no_byte(switch: Switch) -> None:
    whole = start(1) + labels(1, 2, 3) + b"\7" + bytes(range(25))
    for length in range(3, len(whole)):
        report = run(switch, whole[:length])
        assert report.error == TOO_SHORT, length
        assert report.rest == whole[:length]
    assert run(switch, whole).error == 0


def test_a_frame_shorter_than_the_first_header(switch: Switch) -> None:
    for length in range(3):
        report = run(switch, bytes([0x40, 0, 9])[:length])
        assert (report.error, report.rest) == (TOO_SHORT, bytes([0x40, 0, 9])[:length])
