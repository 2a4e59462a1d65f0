# SPDX-License-Identifier: Apache-2.0
"""Dense sums in wide packets, over a switch on this machine: the same bits in a quarter of the packets."""

from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.host_agent.torch.worlds import World
from weir.host_agent.collectives.float_sum import WIDE_VALUES
from weir.host_agent.transport.counters import TransportCounters

SIZE = 3


def summed(count: int, zeros: float, wide: bool) -> tuple[bool, bytes, TransportCounters]:
    """Return whether wide packets are allowed, a sum, and what a rank counted for it.

    zeros: share of the blocks that are zero on rank 1. wide: or else they are not sent, allowed or not.
    """
    connection: Any = dist.group.WORLD.connection  # type: ignore[union-attr]
    values = torch.randn(count, generator=torch.Generator().manual_seed(dist.get_rank()))
    if dist.get_rank() == 1:
        values[: int(zeros * count)] = 0
    allowed, connection.wide = connection.wide, connection.wide and wide
    before = connection.stats
    dist.all_reduce(values)
    after, connection.wide = connection.stats, allowed
    return allowed, values.numpy().tobytes(), after - before


def repeats(counted: TransportCounters) -> int:
    """Return how many packets a rank sent more than once: on a busy machine answers come late."""
    return counted.packets_up - counted.rounds


@pytest.mark.parametrize("count", [WIDE_VALUES, 5 * WIDE_VALUES + 1234])
def test_dense_sums_take_fewer_packets_and_keep_their_bits(world: World, count: int) -> None:
    wide, narrow = (world.run(summed, count, 0.0, wide) for wide in (True, False))
    assert all(allowed for allowed, *_ in wide)
    assert len({result for _, result, _ in (*wide, *narrow)}) == 1
    for (_, _, few), (_, _, many) in zip(wide, narrow, strict=True):
        assert few.rounds < 0.3 * many.rounds
        if not repeats(few) + repeats(many):
            assert 0.94 < few.bytes_up / many.bytes_up < 0.96  # headers


@pytest.mark.parametrize(("count", "zeros"), [(WIDE_VALUES - 1, 0.0), (4 * WIDE_VALUES, 0.3)])
def test_short_and_sparse_vectors_do_not_travel_so(world: World, count: int, zeros: float) -> None:
    """One rank's zeros are enough: it alone would send what it can skip. To find out takes a packet."""
    asked, unasked = (world.run(summed, count, zeros, wide) for wide in (True, False))
    for (_, one, many), (_, other, few) in zip(asked, unasked, strict=True):
        assert one == other
        assert few.rounds <= many.rounds <= few.rounds + 2
