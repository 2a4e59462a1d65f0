# SPDX-License-Identifier: Apache-2.0
"""Block sizes, fused columns with their look-ahead, and the three operators."""

from collections.abc import Callable
from functools import reduce
from typing import Any

import pytest

from tests.harness.lab import Lab, group_of
from weir.wire.definition import MAX_BLOCK_LOG2, MIN_BLOCK_LOG2, NO_BLOCK, SLOT_LANES, Op, columns

SIZES = range(MIN_BLOCK_LOG2, MAX_BLOCK_LOG2 + 1)


@pytest.mark.parametrize("block_log2", SIZES)
def test_every_column_has_its_own_minimum(lab: Lab, block_log2: int) -> None:
    """Columns differ in which worker is first, in ties, and in who has no further block."""
    job = lab.job(3)
    count = columns(block_log2)
    nexts = [[(column * 7 + worker * 5) % 11 for column in range(count)] for worker in range(3)]
    nexts[0][0], nexts[1][0], nexts[2][0] = NO_BLOCK, 0, NO_BLOCK
    nexts[0][-1] = nexts[1][-1] = nexts[2][-1] = NO_BLOCK - 1 if count > 1 else 0
    blocks = [100 + column for column in range(count)]
    fields: dict[str, Any] = {"block_log2": block_log2, "blocks": blocks}
    assert job.send(0, nexts=nexts[0], **fields) == []
    assert job.send(1, nexts=nexts[1], **fields) == []
    least = [min(column) for column in zip(*nexts, strict=True)]
    assert job.send(2, nexts=nexts[2], **fields) == job.results(nexts=least, included=0, **fields)
    for worker in range(3):
        answer = job.result(worker, nexts=least, included=0, again=True, **fields)
        assert job.send(worker, nexts=nexts[worker], **fields) == [answer]


def test_a_column_that_nobody_continues_has_no_next(lab: Lab) -> None:
    job = lab.job(2)
    assert job.send(0, nexts=[NO_BLOCK]) == []
    assert job.send(1, nexts=[NO_BLOCK]) == job.results(nexts=[NO_BLOCK], included=0)


def test_minima_start_anew_in_every_round(lab: Lab) -> None:
    job = lab.job(2)
    for round, (mine, yours) in enumerate([(3, 1), (9, 7), (NO_BLOCK, 20), (NO_BLOCK, NO_BLOCK)], start=1):
        assert job.send(0, round=round, nexts=[mine]) == []
        assert job.send(1, round=round, nexts=[yours]) == job.results(
            round=round, nexts=[min(mine, yours)], included=0
        )


def test_neighbouring_cells_keep_their_columns_and_lanes_apart(lab: Lab) -> None:
    """All versions of all slots under way at once, each with every column and lane group in use."""
    job = lab.job(2, slots=4)
    cells = [(slot, round) for slot in range(4) for round in (1, 2)]

    def packet(slot: int, round: int) -> dict[str, Any]:
        mark = slot << 8 | round << 4
        lanes = {g: group_of((mark | g) << 8) for g in range(8)}
        nexts = [mark | column for column in range(8)]
        return {"slot": slot, "round": round, "block_log2": 5, "lanes": lanes, "nexts": nexts}

    for cell in cells:
        assert job.send(0, **packet(*cell)) == []
    for cell in reversed(cells):
        mine = packet(*cell)
        doubled = {g: [2 * lane for lane in lanes] for g, lanes in mine["lanes"].items()}
        sent = job.send(1, **{**mine, "nexts": [NO_BLOCK] * 8})
        assert sent == job.results(**{**mine, "lanes": doubled})


@pytest.mark.parametrize("block_log2", SIZES)
def test_columns_carry_the_blocks_of_those_who_have_them(lab: Lab, block_log2: int) -> None:
    """Worker w has the columns whose number has bit w set; worker 2 has all and is last."""
    job = lab.job(3)
    count = columns(block_log2)
    per_column = (SLOT_LANES // count) // 32
    fields = {"block_log2": block_log2, "blocks": list(range(count)), "nexts": [NO_BLOCK] * count}

    def lanes(worker: int) -> dict[int, list[int]]:
        mine = [c for c in range(count) if worker == 2 or c >> worker & 1]
        return {g: group_of(worker << 16 | g << 8) for c in mine for g in _groups(c, per_column)}

    parts = [lanes(worker) for worker in range(3)]
    total = {
        g: [sum(values) for values in zip(*(part[g] for part in parts if g in part), strict=True)]
        for g in range(8)
    }
    included = sum(1 << worker for worker in range(3) if parts[worker])
    assert job.send(1, lanes=parts[1], **fields) == []
    assert job.send(0, lanes=parts[0], **fields) == []
    assert job.send(2, lanes=parts[2], **fields) == job.results(lanes=total, included=included, **fields)


def _groups(column: int, per_column: int) -> range:
    return range(column * per_column, (column + 1) * per_column)


OPERATORS: list[tuple[Op, Callable[[int, int], int]]] = [
    (Op.ADD, lambda a, b: (a + b) % 2**32),
    (Op.MAX, max),
    (Op.OR, lambda a, b: a | b),
]
CORNERS = [0, 1, 2, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 2, 2**32 - 1]


@pytest.mark.parametrize(("op", "combine"), OPERATORS, ids=[op.name for op, _ in OPERATORS])
def test_operators_on_corner_values(lab: Lab, op: Op, combine: Callable[[int, int], int]) -> None:
    """Every pair of corner values meets in some lane; a third worker leaves the group out, and a fourth
    group is only one worker's."""
    job = lab.job(3)
    left = [a for a in CORNERS for _ in CORNERS]
    right = [b for _ in CORNERS for b in CORNERS]
    mine = {0: left[:32], 7: left[32:], 3: [2**32 - 1] * 32}
    yours = {0: right[:32], 7: right[32:]}
    both = [combine(a, b) for a, b in zip(left, right, strict=True)]
    assert job.send(0, op=op, lanes=mine) == []
    assert job.send(1, op=op) == []
    expected = {0: both[:32], 3: [2**32 - 1] * 32, 7: both[32:]}
    assert job.send(2, op=op, lanes=yours) == job.results(op=op, lanes=expected, included=0b101)


@pytest.mark.parametrize(("op", "combine"), OPERATORS, ids=[op.name for op, _ in OPERATORS])
def test_operators_in_every_lane(lab: Lab, op: Op, combine: Callable[[int, int], int]) -> None:
    """All 256 lanes, three workers, values without pattern."""
    job = lab.job(3)
    values = [
        [(worker * 0x9E3779B9 + lane * 0x85EBCA6B) * 0xC2B2AE35 % 2**32 for lane in range(256)]
        for worker in range(3)
    ]
    parts = [{g: value[32 * g : 32 * g + 32] for g in range(8)} for value in values]
    total = [reduce(combine, lanes) for lanes in zip(*values, strict=True)]
    expected = {g: total[32 * g : 32 * g + 32] for g in range(8)}
    assert job.send(1, op=op, lanes=parts[1]) == []
    assert job.send(2, op=op, lanes=parts[2]) == []
    assert job.send(0, op=op, lanes=parts[0]) == job.results(op=op, lanes=expected)
