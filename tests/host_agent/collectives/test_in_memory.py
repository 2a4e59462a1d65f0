# SPDX-License-Identifier: Apache-2.0
"""Reductions in memory: the switch's own arithmetic, the same reports, losses where they are asked for."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.host_agent.transport.racks import on_every_worker, shm_rack
from weir.host_agent.collectives.communicator import Communicator
from weir.host_agent.collectives.in_memory import InMemoryGroup, OutOfStepError
from weir.host_agent.transport.report import ReduceReport
from weir.host_agent.transport.service_class import ServiceClass
from weir.wire.definition import Op

NO_REPEATS = dict.fromkeys(("initial_rto", "min_rto", "max_rto", "min_probe"), 60.0)
SIZE = 3
CALLS = [(Op.ADD, 64, 1000), (Op.MAX, 32, 77), (Op.OR, 256, 5000), (Op.ADD, 256, 512), (Op.ADD, 32, 1)]


def contribution(rank: int, length: int) -> np.ndarray:
    """Return lanes of which half the runs of 50 are zero; sums of the rest wrap around."""
    rng = np.random.default_rng((rank, length))
    lanes = rng.integers(0, 1 << 32, length, dtype=np.uint32)
    lanes[(np.arange(length) // 50 + rank) % 2 == 0] = 0
    return lanes


def reduced(reduce: Callable[..., ReduceReport], rank: int) -> list[tuple[np.ndarray, ReduceReport]]:
    """Return the results and reports of all CALLS, and of a barrier."""
    found = []
    for op, block, length in CALLS:
        lanes = contribution(rank, length)
        found.append((lanes, reduce(lanes, op, block)))
    empty = np.empty(0, np.uint32)  # a barrier
    found.append((empty, reduce(empty, Op.ADD)))
    return found


def in_memory(group: InMemoryGroup, work: Callable[[Communicator], Any]) -> list[Any]:
    return group.run([partial(work, c) for c in group.communicators])


def test_results_and_accounts_are_those_of_the_switch(tmp_path: Path) -> None:
    with shm_rack(tmp_path, workers=SIZE, timers=NO_REPEATS) as rack:
        switched = on_every_worker(rack, lambda r: reduced(r.reduce_blocks, r.config.worker))
    for own, real in zip(
        in_memory(InMemoryGroup(SIZE), lambda c: reduced(c.reduce_lanes, c.rank)), switched, strict=True
    ):
        for (lanes, report), (expected, reported) in zip(own, real, strict=True):
            np.testing.assert_array_equal(lanes, expected)
            for name in ("op", "lanes", "block", "blocks", "blocks_sent", "entered", "included", "returned"):
                assert getattr(report, name) == getattr(reported, name), name
            assert report.applied == reported.applied
            assert report.missing.size == reported.missing.size == 0


def test_what_is_lost_is_given_back_and_the_rest_is_summed() -> None:
    def loss(rank: int, service: ServiceClass, blocks: int) -> np.ndarray:
        return np.arange(blocks) == rank

    def work(communicator: Communicator) -> tuple[np.ndarray, ReduceReport]:
        accounts, budgets = np.array([0, 0, 1, 1], np.uint16), np.zeros(2, np.uint64)
        lanes = np.full(128, communicator.rank + 1, np.uint32)
        communicator.reduce_lanes(np.ones(128, np.uint32), Op.ADD, 32)  # without a budget nothing is lost
        return lanes, communicator.reduce_lanes(
            lanes, Op.ADD, 32, ServiceClass(accounts=accounts, budgets=budgets)
        )

    for rank, (lanes, report) in enumerate(in_memory(InMemoryGroup(SIZE, loss), work)):
        assert [int(lane) for lane in lanes[::32]] == [5, 4, 3, 6]
        assert report.given_back.blocks.tolist() == [rank]
        assert (report.given_back.lanes == rank + 1).all()
        assert (report.entered.lanes, report.included.lanes, report.returned.lanes) == (128, 96, 32)
        assert report.returned.total == 32 * (rank + 1)
        assert report.missing.tolist() == [[32, 0], [32, 0], [0, 32]][rank]
        assert report.budgets.tolist() == [64, 64]


def test_workers_take_turns_in_the_order_of_their_ranks() -> None:
    said = []

    def work(communicator: Communicator) -> None:
        for number in range(2):
            said.append((number, communicator.rank))
            communicator.barrier()

    in_memory(InMemoryGroup(SIZE), work)
    assert said == [(number, rank) for number in range(2) for rank in range(SIZE)]


def test_an_error_of_one_ends_all() -> None:
    def work(communicator: Communicator) -> None:
        communicator.barrier()
        if communicator.rank == 1:
            raise ZeroDivisionError("so it goes")
        communicator.barrier()

    group = InMemoryGroup(SIZE)
    with pytest.raises(ZeroDivisionError, match="so it goes"):
        in_memory(group, work)
    assert len(in_memory(group, lambda c: reduced(c.reduce_lanes, c.rank))) == SIZE


@pytest.mark.parametrize("op", [Op.MAX, Op.ADD])
def test_workers_that_reduce_different_things_are_told(op: Op) -> None:
    def work(communicator: Communicator) -> None:
        communicator.reduce_lanes(
            np.zeros(4 + communicator.rank if op is Op.ADD else 4, np.uint32),
            op if communicator.rank else Op.ADD,
        )

    with pytest.raises(OutOfStepError, match="not all workers have begun"):
        in_memory(InMemoryGroup(SIZE), work)
