# SPDX-License-Identifier: Apache-2.0
"""DS-Sync's schedule: partitions, exact means, all pairs meet, racks are kept, contended workers stay out."""

import random
from collections.abc import Collection, Sequence
from fractions import Fraction
from itertools import combinations

import pytest

from weir.host_agent.torch.connection import FreeSlots
from weir.host_agent.torch.ds_sync.groups import NoSlotsError, divide
from weir.host_agent.torch.ds_sync.schedule import EXCUSED, Schedule

LARGEST = 32
SEEDS = (0, 2026)


def after(schedule: Schedule, rounds: range, values: Sequence[Fraction]) -> list[Fraction]:
    """Return what the workers have after these rounds, by exact arithmetic."""
    values = list(values)
    for number in rounds:
        groups = schedule.partition(number)
        assert sorted(rank for group in groups for rank in group.ranks) == list(range(schedule.workers))
        for group in groups:
            assert sum(group.weights) == 1
            mean = sum((w * values[r] for r, w in zip(group.ranks, group.weights, strict=True)), Fraction())
            for rank in group.ranks:
                values[rank] = mean
    return values


def assert_exact(schedule: Schedule) -> None:
    """After each cycle of the period everybody has the mean, of values that nothing else adds up for."""
    generator = random.Random(0)
    values = [Fraction(generator.getrandbits(48)) for _ in range(schedule.workers)]
    mean = sum(values, Fraction()) / schedule.workers
    for start in range(0, schedule.period, schedule.cycle):
        assert after(schedule, range(start, start + schedule.cycle), values) == [mean] * schedule.workers


def met(schedule: Schedule, rounds: range, contended: Collection[int] = ()) -> set[tuple[int, int]]:
    return {
        pair
        for number in rounds
        for group in schedule.partition(number, contended)
        for pair in combinations(group.ranks, 2)
    }


def assert_all_meet(schedule: Schedule, rounds: range, contended: Collection[int] = ()) -> None:
    assert met(schedule, rounds, contended) == set(combinations(range(schedule.workers), 2))


@pytest.mark.parametrize("workers", range(1, LARGEST + 1))
def test_a_cycle_gives_the_mean_and_a_period_lets_all_meet(workers: int) -> None:
    for seed in SEEDS:
        schedule = Schedule(workers, seed=seed)
        assert schedule.cycle == (2 if workers > 3 else 1)
        assert_exact(schedule)
        assert schedule.period <= workers
        start = 7 * schedule.period + 3
        assert_all_meet(schedule, range(start, start + schedule.period))


@pytest.mark.parametrize(("size", "levels"), [(2, 3), (2, 5), (3, 3), (4, 2), (5, 2)])
def test_a_power_of_the_group_size_has_that_many_rounds_of_plain_means(size: int, levels: int) -> None:
    schedule = Schedule(size**levels, group_size=size)
    assert schedule.cycle == levels
    assert_exact(schedule)
    for number in range(schedule.period):
        assert all(group.equal and len(group.ranks) == size for group in schedule.partition(number))
    assert_all_meet(schedule, range(schedule.period))


@pytest.mark.parametrize("size", [2, 3, 4, 6])
def test_other_numbers_take_as_many_rounds_as_the_next_power(size: int) -> None:
    for workers in (5, 7, 11, 18, 31):
        schedule = Schedule(workers, group_size=size, seed=workers)
        levels = schedule.cycle
        assert size ** (levels - 1) < workers <= size**levels
        assert_exact(schedule)
        assert max(map(len, schedule.memberships())) <= size + 1
        assert_all_meet(schedule, range(schedule.period))


def test_affine_planes_let_every_pair_meet_once_across_rows() -> None:
    """No crossing is wasted where a field makes them: as many as a row has members."""
    for workers, row in [(4, 2), (9, 3), (16, 4), (25, 5), (32, 8)]:
        schedule = Schedule(workers)
        assert schedule.period == 2 * row
        pairs = [p for g in schedule.memberships() for p in combinations(g, 2)]
        assert len(pairs) == len(set(pairs)) == workers * (workers - 1) // 2


def test_all_ranks_derive_the_same_groups_and_seeds_other_ones() -> None:
    def groups(seed: int) -> tuple[object, ...]:
        schedule = Schedule(12, seed=seed)
        return tuple(group.ranks for number in range(20) for group in schedule.partition(number))

    assert groups(5) == groups(5)
    assert len({groups(seed) for seed in range(8)}) == 8
    # The same with every version of Python: ranks may differ in that.
    assert [group.ranks for group in Schedule(6, seed=3).partition(0)] == [(0, 3, 4), (1, 2, 5)]


@pytest.mark.parametrize(
    "racks", ["aaaabbbb", "abababab", "aaaaabbbcccc", "aaaaaaab", "aabbccddee", "aabbb"], ids=str
)
@pytest.mark.parametrize("size", [None, 2])
def test_only_the_last_round_of_a_cycle_leaves_a_rack(racks: str, size: int | None) -> None:
    schedule = Schedule(len(racks), racks=racks, local_rounds=3, group_size=size)
    for number in range(schedule.period):
        crossing = number % schedule.cycle == schedule.cycle - 1
        for group in schedule.partition(number):
            there = {racks[rank] for rank in group.ranks}
            assert there == set(racks) if crossing else len(there) == 1
    if size is None:
        assert schedule.cycle == 3 + 1
        first = {frozenset(group.ranks) for group in schedule.partition(0)}
        assert first == {frozenset(i for i, r in enumerate(racks) if r == rack) for rack in racks}
    assert_exact(schedule)
    assert_all_meet(schedule, range(5, 5 + schedule.period))


def test_racks_that_divide_nothing_are_none() -> None:
    assert Schedule(4, racks="aaaa").partition(0) == Schedule(4, racks="abcd").partition(0)


@pytest.mark.parametrize("workers", [5, 8, 16])
def test_contended_workers_stay_alone_but_not_for_ever(workers: int) -> None:
    schedule = Schedule(workers)
    contended = {1, 4}
    for number in range(EXCUSED * schedule.period):
        groups = schedule.partition(number, contended)
        assert sorted(rank for group in groups for rank in group.ranks) == list(range(workers))
        assert all(sum(group.weights) == 1 for group in groups)
        assert {group.ranks for group in groups if contended & set(group.ranks)} == {(1,), (4,)}
        known = {(rank,) for rank in range(workers)}.union(schedule.memberships(candidates=contended))
        assert {group.ranks for group in groups} <= known
    for start in (0, 5):
        assert_all_meet(schedule, range(start, start + schedule.longest_wait), contended)


def test_fewer_shuffles_need_fewer_groups() -> None:
    grid = Schedule(16, shuffles=1)
    assert len(grid.memberships()) == 8
    assert grid.period == grid.cycle == 2
    assert_exact(grid)


def test_senseless_arguments_are_refused() -> None:
    for arguments in [
        {"workers": 0},
        {"workers": 4, "group_size": 1},
        {"workers": 4, "racks": "ab"},
        {"workers": 4, "local_rounds": 0},
        {"workers": 4, "shuffles": 0},
    ]:
        with pytest.raises(ValueError, match=r"must|two|racks|least"):
            Schedule(**arguments)  # type: ignore[arg-type]


def test_slots_are_divided_so_that_all_groups_fit_and_others_too() -> None:
    schedule = Schedule(32)
    everywhere = [{"s1"} for _ in schedule.memberships()]
    assert divide([FreeSlots("s1", 768)], everywhere) == 8
    assert divide([FreeSlots("s1", 1 << 20)], [{"s1"}]) == 256
    with pytest.raises(NoSlotsError, match=r"switch s1 has 60 free slots, but DS-Sync needs 68 groups"):
        divide([FreeSlots("s1", 60)], everywhere)


def test_groups_that_span_racks_need_slots_on_the_spines_and_the_others_do_not() -> None:
    def slots(leaf: int, spine: int) -> int:
        free = [FreeSlots("l1", leaf), FreeSlots("l2", 1024), FreeSlots("s1", spine, spine=True)]
        return divide([*free, FreeSlots("l3", 0)], [{"l1"}, {"l2"}, {"l1", "l2"}, {"l1", "l2"}])

    assert slots(leaf=1024, spine=64) == 16
    assert slots(leaf=64, spine=1024) == 16
    with pytest.raises(NoSlotsError, match="switch s1"):
        slots(leaf=64, spine=1)
