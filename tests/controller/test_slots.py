# SPDX-License-Identifier: Apache-2.0
"""Jobs get disjoint slots, the lowest that fit, and get them all back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.controller.slots import SlotExhaustedError, SlotPool, SlotRange, take, take_share


def test_first_fit_and_reuse() -> None:
    pool = SlotPool(100)
    first, second, third = take([pool], 30), take([pool], 30), take([pool], 30)
    assert (first, second, third) == (SlotRange(0, 30), SlotRange(30, 30), SlotRange(60, 30))
    pool.give_back(second)
    assert pool.free() == (SlotRange(30, 30), SlotRange(90, 10))
    assert take([pool], 10) == SlotRange(30, 10)
    assert take([pool], 20) == SlotRange(40, 20)
    assert pool.used == 90


def test_exhaustion_says_what_is_free() -> None:
    pool = SlotPool(100)
    take([pool], 40)
    middle = take([pool], 20)
    take([pool], 39)
    pool.give_back(middle)
    with pytest.raises(SlotExhaustedError) as caught:
        take([pool], 21)
    assert str(caught.value) == "21 consecutive slots are wanted of 100; 21 are free (longest run: 20)"
    assert caught.value.free == pool.free() == (SlotRange(40, 20), SlotRange(99, 1))


def test_nothing_free() -> None:
    pool = SlotPool(4)
    take([pool], 4)
    with pytest.raises(SlotExhaustedError, match="none is free"):
        take([pool], 1)


def test_a_job_that_does_not_say_gets_a_share_of_what_is_left() -> None:
    pool = SlotPool(1024)
    taken = [take_share([pool], 256, 16).count for _ in range(9)]
    assert taken == [256, 128, 128, 128, 64, 64, 64, 32, 32]
    take([pool], 112)
    assert take_share([pool], 256, 16).count == 16
    with pytest.raises(SlotExhaustedError):
        take_share([pool], 256, 16)


def test_slots_that_must_be_a_power_of_two_lie_at_a_multiple_of_it() -> None:
    pool = SlotPool(100)
    take([pool], 10)
    assert take([pool], 20, aligned=True) == SlotRange(32, 32)
    assert take([pool], 1, aligned=True) == SlotRange(10, 1)
    assert take_share([pool], 256, 16, aligned=True) == SlotRange(16, 16)
    with pytest.raises(SlotExhaustedError, match="64 consecutive slots are wanted"):
        take([pool], 33, aligned=True)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 64)), max_size=60))
def test_ranges_never_overlap_and_nothing_is_lost(steps: list[tuple[bool, int]]) -> None:
    pool = SlotPool(256)
    held: list[SlotRange] = []
    for more, number in steps:
        if more:
            try:
                held.append(take([pool], number))
            except SlotExhaustedError as error:
                assert all(piece.count < number for piece in error.free)
        elif held:
            pool.give_back(held.pop(number % len(held)))
        slots = sorted(slot for piece in [*held, *pool.free()] for slot in range(piece.base, piece.end))
        assert slots == list(range(256))
        assert pool.used == sum(piece.count for piece in held)


def test_switches_of_one_job_give_it_the_same_slots() -> None:
    left, right = SlotPool(100), SlotPool(80)
    assert take([left], 10) == SlotRange(0, 10)
    assert take([right], 30) == SlotRange(0, 30)
    both = take([left, right], 20)
    assert both == SlotRange(30, 20)
    assert take([left], 20) == SlotRange(10, 20)
    with pytest.raises(SlotExhaustedError, match=r"31 consecutive slots are wanted of 80; 30 are free"):
        take([left, right], 31)
    left.give_back(both)
    assert take([left], 10) == SlotRange(30, 10)
    assert take_share([left, right], 256, 4) == SlotRange(50, 4)


_SPANS = st.lists(st.tuples(st.sets(st.integers(0, 3), min_size=1), st.integers(0, 48)), max_size=40)


@given(_SPANS)
def test_ranges_over_several_switches_never_overlap_on_any(steps: list[tuple[set[int], int]]) -> None:
    pools = [SlotPool(64 + 16 * number) for number in range(4)]
    held: list[tuple[set[int], SlotRange]] = []
    for switches, number in steps:
        mine = [pools[switch] for switch in switches]
        if number:
            before = [pool.free() for pool in pools]
            try:
                held.append((switches, take(mine, number)))
            except SlotExhaustedError:
                assert [pool.free() for pool in pools] == before
        elif held:
            there, piece = held.pop(0)
            for switch in there:
                pools[switch].give_back(piece)
        for switch, pool in enumerate(pools):
            taken = [piece for there, piece in held if switch in there]
            slots = sorted(slot for piece in [*taken, *pool.free()] for slot in range(piece.base, piece.end))
            assert slots == list(range(pool.total))
