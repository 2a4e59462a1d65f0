# SPDX-License-Identifier: Apache-2.0
"""Lists of positions: the code, its length, what several workers make of it, and what that costs."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from weir.bench.gradients.replay import Replay
from weir.host_agent.collectives.dtypes import Lanes, pack_bits, set_bits
from weir.host_agent.collectives.in_memory import InMemoryGroup
from weir.host_agent.collectives.non_finite import NonFiniteError
from weir.host_agent.compression.encodings.position_lists import PositionList, Region, gather
from weir.host_agent.transport.service_class import LOSSLESS


def drawn(blocks: int, count: int, seed: int) -> Lanes:
    """Return the mask of ``count`` blocks drawn from this many."""
    flags = np.zeros(blocks, np.bool_)
    flags[np.random.default_rng(seed).choice(blocks, count, replace=False)] = True
    return pack_bits(flags)


@st.composite
def parameters(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """Draw of some parameters: blocks, capacity, and how many are chosen."""
    found = []
    for _ in range(draw(st.integers(1, 4))):
        blocks = draw(st.integers(1, 3000))
        capacity = draw(st.integers(0, blocks))
        found.append((blocks, capacity, draw(st.integers(0, capacity))))
    return found


@given(of=parameters(), seed=st.integers(0, 5))
def test_lists_give_back_the_masks(of: list[tuple[int, int, int]], seed: int) -> None:
    region = Region([PositionList.of(blocks, capacity) for blocks, capacity, _ in of])
    masks = [drawn(blocks, count, seed) for blocks, _, count in of]
    lanes, back = np.zeros(region.lanes, np.uint32), [np.zeros_like(mask) for mask in masks]
    region.lists(masks).write(lanes)
    assert not lanes[region.words :].any()
    region.lists(back).read([lanes])
    for mask, read in zip(masks, back, strict=True):
        assert np.array_equal(mask, read)


@given(of=parameters(), seed=st.integers(0, 50))
def test_whatever_is_in_the_lanes_no_block_is_set_that_there_is_not(
    of: list[tuple[int, int, int]], seed: int
) -> None:
    region = Region([PositionList.of(blocks, capacity) for blocks, capacity, _ in of])
    lanes = np.random.default_rng(seed).integers(0, 2**32, region.lanes, np.uint32)
    masks = [np.zeros(-(-blocks // 32) + 1, np.uint32) for blocks, _, _ in of]
    region.lists(masks).read([lanes])
    for mask, (blocks, capacity, _) in zip(masks, of, strict=True):
        assert not set_bits(mask)[blocks:].any()
        assert np.count_nonzero(set_bits(mask)) <= capacity


@pytest.mark.parametrize("blocks", [1000, 2**20])
@pytest.mark.parametrize("share", [0.001, 0.01, 0.1])
def test_a_list_is_hardly_longer_than_it_has_to_be(blocks: int, share: float) -> None:
    capacity = round(share * blocks)
    least = (
        math.lgamma(blocks + 1) - math.lgamma(capacity + 1) - math.lgamma(blocks - capacity + 1)
    ) / math.log(2)
    assert least <= PositionList.of(blocks, capacity).bits <= least + 0.6 * capacity + 16


def united(
    masks: list[list[Lanes]], capacities: list[int], blocks: list[int]
) -> list[tuple[bool, list[Lanes]]]:
    """Return what each worker has after all have gathered, and whether lists sufficed."""
    region = Region([PositionList.of(n, capacity) for n, capacity in zip(blocks, capacities, strict=True)])
    group = InMemoryGroup(len(masks))
    sufficed = group.run(
        [
            partial(gather, communicator, region, own, len(masks), LOSSLESS)
            for communicator, own in zip(group.communicators, masks, strict=True)
        ]
    )
    return list(zip(sufficed, masks, strict=True))


def test_all_workers_have_what_any_has_chosen() -> None:
    masks = [[drawn(1000, 10, rank), drawn(33, 2, rank)] for rank in range(3)]
    union = [np.bitwise_or.reduce([own[at] for own in masks]) for at in (0, 1)]
    copies = [[mask.copy() for mask in own] for own in masks]
    for sufficed, own in united(copies, [10, 5], [1000, 33]):
        assert sufficed
        assert all(np.array_equal(mine, every) for mine, every in zip(own, union, strict=True))


def test_who_has_more_than_the_capacity_makes_all_take_the_tree() -> None:
    masks = [[drawn(1000, 10 + (rank == 1), rank)] for rank in range(3)]
    before = [own[0].copy() for own in masks]
    for (sufficed, own), mine in zip(united(masks, [10], [1000]), before, strict=True):
        assert not sufficed
        assert np.array_equal(own[0], mine)


def test_what_is_not_finite_reaches_all_workers_however_small_the_quota() -> None:
    module = torch.nn.Linear(200, 100, bias=False)
    replay = Replay(module, "dfs", 3, 0.001)
    gradients = np.random.default_rng(1).standard_normal((3, 20_000)).astype(np.float32)
    for _ in range(3):
        assert replay.step(gradients).plan.capacities is not None
    gradients[1, :5] = np.nan
    with pytest.raises(NonFiniteError, match="rank 1"):
        replay.step(gradients)
