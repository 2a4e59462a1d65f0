# SPDX-License-Identifier: Apache-2.0
"""The ledger: balances add up, and what does not add up is named."""

import dataclasses

import numpy as np
import pytest

from tests.host_agent.transport.answers import result
from weir.host_agent.transport.codec import Packet
from weir.host_agent.transport.ledger import ConservationError, Direction, Ledger
from weir.host_agent.transport.report import Account, ReduceReport
from weir.host_agent.transport.service_class import ServiceClass
from weir.host_agent.transport.slot_transport import SlotTransport, TransportConfig
from weir.wire.definition import Op


def report(included: bool, value: int, budget: int = 12) -> ReduceReport:
    """Of a reduce of one block of ten lanes, included in its result or given back."""
    transport = SlotTransport(TransportConfig(job=1, worker=0, workers=2, slots=1))
    service = ServiceClass(budgets=np.array([budget], np.uint64))
    transport.begin_reduction(Op.ADD, 32, np.full(10, value, np.int32), service)
    packet = Packet.decode(transport.poll(0)[0][0].payload)
    reply = result(packet) if included else result(packet, included=0, groups={})
    transport.on_packet(reply.encode(), 1)
    return transport.report()


def test_balances_are_kept_by_direction() -> None:
    ledger = Ledger()
    ledger.record(1, "a", Direction.UP, report(True, 5))
    ledger.record(2, "a", Direction.UP, report(False, -7))
    ledger.record(2, "b", Direction.UP, report(True, 1))
    ledger.record(2, "b", Direction.DOWN, report(True, 1))
    balance = ledger.total(Direction.UP)
    assert balance.postings == 3
    assert balance.entered == Account(30, -10)
    assert balance.included == Account(20, 60)
    assert balance.returned == Account(10, -70)
    assert balance.budget == 36
    assert ledger.total(Direction.DOWN).included == Account(10, 10)


def test_a_lost_lane_is_an_error_that_says_where() -> None:
    sound = report(True, 5)
    for wrong in (Account(9, 50), Account(10, 49)):
        ledger = Ledger()
        with pytest.raises(ConservationError, match=r"step 3, bucket conv1, up: entered .*lanes=10"):
            ledger.record(3, "conv1", Direction.UP, dataclasses.replace(sound, included=wrong))
        assert ledger.total(Direction.UP).postings == 0


def test_more_missing_than_the_budget_allows_is_an_error() -> None:
    ledger = Ledger()
    ledger.record(1, "a", Direction.UP, report(False, 5, budget=10))
    with pytest.raises(ConservationError, match=r"step 2, bucket a, up: account 0 misses 10 lanes of 9"):
        ledger.record(
            2, "a", Direction.UP, report(False, 5, budget=9)
        )  # the switch left out what it must not


def test_lanes_that_came_back_are_in_the_budgets_books() -> None:
    given_up = report(False, 5)
    lossless = dataclasses.replace(given_up, missing=np.empty(0, np.uint64), budgets=np.empty(0, np.uint64))
    with pytest.raises(ConservationError, match=r"returned 10 lanes, .* have 0 missing"):
        Ledger().record(1, "a", Direction.UP, lossless)
