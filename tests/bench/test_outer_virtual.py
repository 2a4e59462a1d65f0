# SPDX-License-Identifier: Apache-2.0
"""Outer steps in virtual time: the switch's sums are those of the host code, and down is as long as up."""

import pytest

from weir.bench.simulated.outer import WAYS, part_bytes, recorded, replayed
from weir.bench.simulated.outer_links import Links
from weir.bench.simulated.outer_peers import fetched, ring
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


@pytest.mark.parametrize("name", ["rows, 1 bit", "chunk-topk, 1.56 %, 16 bits"])
def test_a_part_alone_is_no_longer_than_in_a_sum(name: str) -> None:
    """A sum of two peers takes two bits a sign, and one set of positions for both."""
    up = replayed(recorded(WAYS[name], 2, VALUES), SLOW).up
    assert up / 3 < part_bytes(WAYS[name], VALUES) < up


@pytest.mark.parametrize("peers", [2, 5])
def test_peers_that_fetch_upload_once_and_get_all_others(peers: int) -> None:
    """Headers, and acknowledgements of what comes the other way, are a tenth at most."""
    part = 100_000
    found = fetched(peers, part, SLOW)
    assert 1.03 * part < found.up < 1.1 * part * (1 + (peers - 1) / 20)
    assert 1.03 * (peers - 1) * part < found.down < 1.15 * (peers - 1) * part
    line = 8 * found.up / SLOW.up_bps + 8 * part / SLOW.down_bps
    assert line + 2 * SLOW.round_trip / 2 < found.seconds < line + 8 * SLOW.round_trip


def test_a_ring_sends_nearly_twice_the_values() -> None:
    peers, size = 4, 1_000_000
    found = ring(peers, size, SLOW)
    sent = 2 * size * (peers - 1) / peers
    assert 1.03 * sent < min(found.up, found.down) <= max(found.up, found.down) < 1.2 * sent
    trips = 2 * (peers - 1) * SLOW.round_trip / 2  # one way each
    assert found.seconds > 8 * found.up / SLOW.up_bps * 0.9 + trips * 0.5
