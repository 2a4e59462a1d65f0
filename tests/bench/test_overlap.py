# SPDX-License-Identifier: Apache-2.0
"""The benchmark of LayersFirst: the slowest rank counts, and a run in which nothing overlapped is none."""

import copy
from dataclasses import replace

import pytest
import torch

from weir.bench.collectives.overlap import (
    AFTER,
    DDP,
    FIRST,
    Parameters,
    Spec,
    Turns,
    rows_of,
    wait_as_for_a_device,
)
from weir.bench.ranks import Links
from weir.bench.results import Column, Row, Table
from weir.train.models import make_model

SPEC = Spec("lm", 0.0, Parameters(), 2)
LINKS = Links("10mbit", 2, 10_000_000, lambda _rank: ([], {}), ())
SECONDS = {AFTER: [4.0, 4.0], DDP: [2.0, 2.0], FIRST: [1.0, 1.5], "compute": [0.5, 0.5]}
RANK = Turns(SECONDS, overlapped=3, overtaken=2)


def first(*ranks: Turns) -> Row:
    """Return the row of LayersFirst."""
    return next(row for row in rows_of(ranks, SPEC, LINKS) if row.contender == FIRST)


def test_the_slowest_rank_counts_in_every_turn() -> None:
    other = copy.deepcopy(RANK)
    other.seconds[FIRST] = [1.8, 1.0]
    row = first(RANK, other)
    assert row.values["ms"] == [1800, 1500] and row.floor == 500
    assert row.middle("saved of DDP") == pytest.approx((0.1 + 0.25) / 2)
    assert row.middle("saved of after") == pytest.approx((0.55 + 0.625) / 2)


@pytest.mark.parametrize("what", ["overlapped", "passed"])
def test_a_mechanism_that_did_nothing_is_named(what: str) -> None:
    none = {"overlapped": "overlapped", "passed": "overtaken"}[what]
    for rank, said in ((RANK, []), (replace(RANK, **{none: 0}), [f"lm, 10mbit, LayersFirst: no {what}"])):
        assert Table("", (Column("ms"),), (first(rank),)).idle == said


def test_a_devices_time_is_dealt_out_by_multiplications(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr("weir.bench.collectives.overlap.time.sleep", waited.append)
    model = make_model("cnn")
    wait_as_for_a_device(model, torch.zeros(2, 1, 16, 16), 3.0)
    model(torch.zeros(2, 1, 16, 16, requires_grad=True)).sum().backward()
    assert sum(waited[:4]) == pytest.approx(1.0)
    assert sum(waited) == pytest.approx(3.0)
    assert waited[1] == max(waited[:4])  # the second convolution has most of the work
