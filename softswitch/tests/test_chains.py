# SPDX-License-Identifier: Apache-2.0
"""Rows of tests that are passed by when all that are left fail, against the same steps one by one."""

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softp4.codegen.module import generate
from softp4.switch import Switch
from tests.harness.effort import examples
from tests.programs import one, pack, program, unpack

QUIET, BLOCKS, LOUD = 1, 2, 3
ROW, PLACES = 20, 64
M32 = 2**32 - 1
few = st.one_of(
    st.integers(0, M32),
    st.builds(lambda bits: sum(1 << bit for bit in bits), st.sets(st.integers(0, ROW - 1), max_size=3)),
)


@pytest.fixture(scope="module")
def switch() -> Iterator[Switch]:
    with Switch(program("chains")) as made:
        yield made


def bits(mask: int) -> list[int]:
    """Return the steps of a row that a mask names."""
    return [step for step in range(ROW) if mask >> step & 1]


@given(base=st.integers(0, PLACES), first=few, second=few)
@settings(max_examples=examples(300), deadline=None)
def test_steps_of_which_some_are_asked_for(switch: Switch, base: int, first: int, second: int) -> None:
    for place in range(PLACES):
        switch.register("places").write(place, 0)
    answer = one(switch, pack([(QUIET, 8), (base, 32), (first, 32), (second, 32)]))
    assert unpack(answer, (32, 32, 32)) == [len(bits(first)), 0, 0]
    wanted = {base + step: step + 101 for step in bits(second)} | {
        base + step: step + 1 for step in bits(first)
    }
    found = {place: switch.register("places").read(place) for place in range(PLACES)}
    assert found == {place: wanted.get(place, 0) for place in range(PLACES)}


@given(values=st.lists(st.integers(0, M32), max_size=ROW))
@settings(max_examples=examples(100), deadline=None)
def test_headers_of_which_the_first_are_there(switch: Switch, values: list[int]) -> None:
    head = [(len(values) << 2 | BLOCKS, 8), (0, 32), (0, 32), (0, 32)]
    answer = one(switch, pack([*head, *((value, 32) for value in values)]))
    assert unpack(answer[:12], (32, 32, 32)) == [0, 0, sum(values) & M32]


@given(first=few)
@settings(max_examples=examples(300), deadline=None)
def test_what_steps_leave_behind_whether_asked_for_or_not(switch: Switch, first: int) -> None:
    answer = one(switch, pack([(LOUD, 8), (0, 32), (first, 32), (0, 32)]))
    hits = sum(step * (step + 1) // 2 for step in bits(first))
    assert unpack(answer, (32, 32, 32)) == [hits, ROW * (ROW - 1) // 2, 0]


def test_what_is_left_is_asked_at_once_every_eight_tests() -> None:
    """Check what the speed of such programs rests on; not where it would leave something out."""
    code = generate(program("chains"))
    skips = [line.strip() for line in code.splitlines() if line.strip().startswith("if (!(((")]
    asked = [int(line.partition("& 0x")[2].partition("ull")[0], 16) for line in skips if "ull)))" in line]
    from_bit = [(mask & -mask).bit_length() - 1 for mask in asked]
    assert from_bit[:4] == [4, 8, 12, 16], "two tests a step"
    assert len(asked) == 5, "and once among the headers"
