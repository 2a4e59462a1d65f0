# SPDX-License-Identifier: Apache-2.0
"""Jobs get disjoint slots, the lowest that fit, and get them all back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.slots import SlotExhaustedError, SlotPool, SlotRange


def test_first_fit_and_reuse() -> None:
    pool = SlotPool(100)
    first, second, third = pool.take(30), pool.take(30), pool.take(30)
    assert (first, second, third) == (SlotRange(0, 30), SlotRange(30, 30), SlotRange(60, 30))
    pool.give_back(second)
    assert pool.free() == (SlotRange(30, 30), SlotRange(90, 10))
    assert pool.take(10) == SlotRange(30, 10)
    assert pool.take(20) == SlotRange(40, 20)
    assert pool.used == 90


def test_exhaustion_says_what_is_free() -> None:
    pool = SlotPool(100)
    pool.take(40)
    middle = pool.take(20)
    pool.take(39)
    pool.give_back(middle)
    with pytest.raises(SlotExhaustedError) as caught:
        pool.take(21)
    assert str(caught.value) == "21 consecutive slots are wanted of 100; free are 40-59, 99 (longest run: 20)"
    assert pool.free() == (SlotRange(40, 20), SlotRange(99, 1))


def test_nothing_free() -> None:
    pool = SlotPool(4)
    pool.take(4)
    with pytest.raises(SlotExhaustedError, match="none is free"):
        pool.take(1)


def test_a_job_that_does_not_say_gets_a_share_of_what_is_left() -> None:
    pool = SlotPool(1024)
    taken = [pool.take_share(256, 16).count for _ in range(9)]
    assert taken == [256, 128, 128, 128, 64, 64, 64, 32, 32]
    pool.take(112)
    assert pool.take_share(256, 16).count == 16
    with pytest.raises(SlotExhaustedError):
        pool.take_share(256, 16)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 64)), max_size=60))
def test_ranges_never_overlap_and_nothing_is_lost(steps: list[tuple[bool, int]]) -> None:
    pool = SlotPool(256)
    held: list[SlotRange] = []
    for take, number in steps:
        if take:
            try:
                held.append(pool.take(number))
            except SlotExhaustedError as error:
                assert all(piece.count < number for piece in error.free)
        elif held:
            pool.give_back(held.pop(number % len(held)))
        slots = sorted(slot for piece in [*held, *pool.free()] for slot in range(piece.base, piece.end))
        assert slots == list(range(256))
        assert pool.used == sum(piece.count for piece in held)
