# SPDX-License-Identifier: Apache-2.0
"""Vectors in several pieces: sums for some workers alone, in wide packets and others, under faults."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from softp4.switch import Switch
from tests.simulator.rack import Rack
from tests.simulator.reductions import drawn, network_faults
from weir.host_agent.collectives import quantize
from weir.host_agent.transport.pieces import Piece, Pieces, Use
from weir.host_agent.transport.slot_transport import Congestion
from weir.p4src import WIDE_PROGRAM
from weir.simulator.entries import aggregation
from weir.simulator.host import Work
from weir.wire.definition import AUDIENCE_EXCEPT, SLOT_LANES, WIDE_LANES, Op

WORKERS, VALUES = 3, SLOT_LANES
HEADROOM = quantize.headroom(WORKERS)


@pytest.fixture(scope="module")
def wide_switch() -> Iterator[Switch]:
    with Switch(WIDE_PROGRAM) as switch:
        table, entry = aggregation()
        switch.table(table).insert(entry)
        yield switch


@dataclass(frozen=True)
class Run:
    """A piece of the vector, which one worker alone wants, or one worker says to all others.

    Attributes:
        memory: one row a worker.
        uses: one a worker.
        audience: as packets have it.
        expected: what this piece of each worker that wants it holds in the end.
        exponents: of values.
    """

    memory: npt.NDArray[Any]
    uses: list[Use]
    audience: int
    expected: npt.NDArray[Any]
    exponents: npt.NDArray[np.uint32] | None = None


def zeros_of(rng: np.random.Generator, size: int, share: float) -> npt.NDArray[np.bool_]:
    """Return which of this many numbers are in blocks that no worker has."""
    return np.repeat(rng.random(-(-size // VALUES)) < share, VALUES)[:size]


def pushed(rng: np.random.Generator, size: int, receiver: int, zeros: float = 0.2) -> Run:
    """Values that the others sum for one, which contributes nothing."""
    made = rng.standard_normal((WORKERS, size)).astype(np.float32)
    made[:, zeros_of(rng, size, zeros)] = 0
    made[receiver] = 0
    exponents = np.max([quantize.exponents(one, VALUES) for one in made], axis=0)
    lanes = [quantize.to_fixed(one, exponents, VALUES, WORKERS).astype(np.int64) for one in made]
    total = quantize.from_fixed(np.sum(lanes, axis=0).astype(np.int32), exponents, VALUES, WORKERS)
    uses = [Use.SILENT if worker == receiver else Use.SUM for worker in range(WORKERS)]
    return Run(made, uses, receiver, np.tile(total, (WORKERS, 1)), exponents)


def said(rng: np.random.Generator, size: int, sender: int, use: Use, zeros: float = 0.2) -> Run:
    """Words of one for all others: in place of what these hold, or as changes of it."""
    words = rng.integers(0, 2**32, size, dtype=np.uint32)
    words[zeros_of(rng, size, zeros)] = 0
    memory = np.zeros((WORKERS, size), np.uint32)
    if use is Use.CHANGE:
        memory[:] = rng.integers(0, 2**32, memory.shape, dtype=np.uint32)
    expected = memory ^ words
    memory[sender] = words
    uses = [Use.SUM if worker == sender else use for worker in range(WORKERS)]
    return Run(memory, uses, sender | AUDIENCE_EXCEPT, expected)


def some_runs(seed: int) -> list[Run]:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 6 * WIDE_LANES, rng.integers(1, 6)).tolist()
    return [
        pushed(rng, size, int(rng.integers(WORKERS)))
        if rng.random() < 0.5
        else said(rng, size, int(rng.integers(WORKERS)), Use(int(rng.integers(1, 3))))
        for size in sizes
    ]


def reduced(rack: Rack, runs: list[Run], block: int, seed: int) -> None:
    """Reduce runs in place, in blocks of this size and any order."""
    counts = [-(-run.memory.shape[1] // block) for run in runs]
    order = np.random.default_rng(seed).permutation(sum(counts))
    audiences = np.repeat(np.array([run.audience for run in runs], np.uint16), counts)[order]
    work = []
    for worker in range(WORKERS):
        pieces = [Piece(run.memory[worker], run.uses[worker], run.exponents) for run in runs]
        work.append(Work(Op.ADD, block, Pieces(pieces, order, VALUES, HEADROOM), audiences=audiences))
    rack.submit(work)
    rack.run()


@drawn(100)
@given(
    slots=st.integers(1, 20),
    seed=st.integers(0, 2**32 - 1),
    up=network_faults,
    down=network_faults,
    congestion=st.sampled_from(Congestion),
)
def test_whoever_wants_a_piece_gets_exactly_its_sum(
    wide_switch: Switch, job_ids: Iterator[int], **shape: Any
) -> None:
    """Under loss, duplication, reordering, delay and trimming; wide packets bring the same bits."""
    note(f"{shape!r}")
    with Rack(wide_switch, job=next(job_ids), workers=WORKERS, wide=True, **shape) as rack:
        for block in (WIDE_LANES, SLOT_LANES):
            runs = some_runs(shape["seed"])
            reduced(rack, runs, block, shape["seed"])
            for run in runs:
                named = run.audience & ~AUDIENCE_EXCEPT
                for worker in range(WORKERS):
                    if (worker == named) is not bool(run.audience & AUDIENCE_EXCEPT):
                        np.testing.assert_array_equal(run.memory[worker], run.expected[worker])
        for host in rack.hosts:
            for report in host.reports:
                assert report.entered == report.included
                assert not report.returned.lanes and not report.refused


def test_pieces_in_wide_packets_are_a_quarter_as_many(wide_switch: Switch, job_ids: Iterator[int]) -> None:
    """A worker that has nothing to say, or gets nothing, sends or gets headers of 78 bytes."""
    rng, frames = np.random.default_rng(1), {}
    for block in (SLOT_LANES, WIDE_LANES):
        sent: list[int] = []
        runs = [pushed(rng, 32 * WIDE_LANES, 2, 0), said(rng, 32 * WIDE_LANES, 2, Use.CHANGE, 0)]
        with Rack(wide_switch, job=next(job_ids), workers=WORKERS, slots=8, seed=1, wide=True) as rack:
            rack.up[0].tap = lambda _time, frame, sent=sent: sent.append(len(frame))
            reduced(rack, runs, block, 0)
        assert set(sent) == {78, 78 + 4 * block}
        frames[block] = len(sent)
    assert frames[WIDE_LANES] < 0.27 * frames[SLOT_LANES]
