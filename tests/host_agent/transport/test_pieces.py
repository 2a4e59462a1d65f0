# SPDX-License-Identifier: Apache-2.0
"""Pieces that do not fit a reduction are refused before anything is sent."""

from typing import Any

import numpy as np
import pytest

from tests.host_agent.transport.answers import packets
from weir.host_agent.transport.pieces import Piece, Pieces
from weir.host_agent.transport.service_class import ServiceClass
from weir.host_agent.transport.slot_transport import SlotTransport, TransportConfig
from weir.wire.definition import Op

FIRST, SECOND = np.arange(1, 301, dtype=np.uint32), np.arange(1000, 1256, dtype=np.uint32)
BUDGET = ServiceClass(budgets=np.array([9], np.uint64))


def begun(order: list[int], pieces: list[Piece], **more: Any) -> SlotTransport:
    config = {name: more.pop(name) for name in ("fill", "max_lanes") if name in more}
    transport = SlotTransport(TransportConfig(1, 0, 2, slots=4, **config))
    vector = Pieces(pieces, np.array(order, np.intp), **{k: more.pop(k) for k in ("values",) if k in more})
    transport.begin_reduction(more.pop("op", Op.ADD), 256, vector, **more)
    return transport


def test_blocks_travel_in_the_given_order_and_short_ones_are_filled_up() -> None:
    transport = begun([2, 1, 0], [Piece(FIRST.copy()), Piece(SECOND.copy())])
    sent = [np.concatenate(list(packet.groups.values())) for packet in packets(transport.poll(0)[0])]
    short = np.zeros(256, np.uint32)
    short[:44] = FIRST[256:]
    np.testing.assert_array_equal(sent, [SECOND, short, FIRST[:256]])
    assert transport.report().entered.lanes == 256 + 300


def test_workers_with_blocks_of_other_lengths_are_in_different_operations() -> None:
    checks = {
        packets(begun([0, 1], [Piece(FIRST[:first].copy()), Piece(SECOND.copy())]).poll(0)[0])[0].check
        for first in (200, 201)
    }
    assert len(checks) == 2


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"order": [0, 1]}, "an order of 2 blocks"),
        ({"pieces": [Piece(FIRST[::2].copy()), Piece(SECOND[:0])]}, "an order of 3 blocks"),
        ({"order": [0], "pieces": [Piece(SECOND[::2])]}, "contiguous"),
        ({"order": [0], "pieces": [Piece(SECOND, exponents=np.ones(1, np.uint32))]}, "1 exponents for 256"),
        ({"op": Op.MAX}, "pieces are for ADD"),
        ({"service": BUDGET}, "pieces are for ADD"),
        ({"fill": True}, "pieces are for ADD"),
        ({"max_lanes": 32}, "pieces are for ADD"),
        ({"values": 300}, "a power of two"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(wrong: dict[str, Any], words: str) -> None:
    given = {"order": [0, 1, 2], "pieces": [Piece(FIRST.copy()), Piece(SECOND.copy())], **wrong}
    with pytest.raises(ValueError, match=words):
        begun(**given)
