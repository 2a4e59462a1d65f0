# SPDX-License-Identifier: Apache-2.0
"""Outer steps in virtual time: the switch's sums are those of the host code, and down is as long as up."""

import pytest

from weir.bench.simulated.outer import WAYS, Links, recorded, replayed
from weir.wire.definition import Op

VALUES = 1 << 17
SLOW = Links(up_bps=50_000_000, down_bps=200_000_000, round_trip=0.01)


@pytest.mark.parametrize("name", WAYS)
def test_each_peer_sends_its_part_once_and_gets_one_sum(name: str) -> None:
    """``replayed`` compares every lane. Headers are a tenth of what is sent at most, in whole packets."""
    parts = recorded(WAYS[name], 3, VALUES)
    found = replayed(parts, SLOW)
    assert found.down < 1.3 * found.up
    line = 8 * found.up / SLOW.up_bps
    trips = len(parts[0]) * SLOW.round_trip
    assert max(line, trips) < found.seconds < 1.5 * (line + trips)


def test_dense_values_are_sent_once_and_bits_are_fewer() -> None:
    up = {name: replayed(recorded(WAYS[name], 2, VALUES), SLOW).up for name in ("dense", "rows, 1 bit")}
    assert 4 * VALUES < up["dense"] < 1.15 * 4 * VALUES
    assert up["rows, 1 bit"] < up["dense"] / 12


def test_a_step_that_sums_wrongly_is_found() -> None:
    parts = recorded(WAYS["rows, 1 bit"], 2, VALUES)
    added = next(one for one in parts[1] if one.op is Op.ADD)
    added.mine[0] += 1
    with pytest.raises(AssertionError, match="not equal"):
        replayed(parts, SLOW)
