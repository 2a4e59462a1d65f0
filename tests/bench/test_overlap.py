# SPDX-License-Identifier: Apache-2.0
"""The benchmark of LayersFirst: the slowest rank counts, and a run in which nothing overlapped is none."""

from dataclasses import replace

import pytest
import torch

from weir.bench.collectives.overlap import NothingOverlappedError, judged
from weir.bench.overlap_worker import OverlapSpec, Turns, wait_as_for_a_device
from weir.train.models import make_model

SPEC = OverlapSpec("lm", 8, 5, 2, 0.0, 4096, 0.0)
RANK = Turns([4.0, 4.0], [2.0, 2.0], [1.0, 1.5], [0.5, 0.5], overlapped=3, overtaken=2, same=True)


def test_the_slowest_rank_counts_in_every_turn() -> None:
    measured = judged(SPEC, "10mbit", [RANK, replace(RANK, first=[1.8, 1.0])])
    assert measured.turns.first == [1.8, 1.5]
    assert measured.saved(measured.turns.alone) == pytest.approx((0.1 + 0.25) / 2)
    assert measured.saved(measured.turns.after) == pytest.approx((0.55 + 0.625) / 2)


def test_a_mechanism_that_did_nothing_fails_the_run() -> None:
    with pytest.raises(NothingOverlappedError, match="every forward pass began when all was summed"):
        judged(SPEC, "10mbit", [replace(RANK, overlapped=0)])
    with pytest.raises(NothingOverlappedError, match="no piece of a front layer was summed before others"):
        judged(SPEC, "10mbit", [replace(RANK, overtaken=0)])
    with pytest.raises(AssertionError, match="parameters differ"):
        judged(SPEC, "10mbit", [RANK, replace(RANK, same=False)])


def test_a_devices_time_is_dealt_out_by_multiplications(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr("weir.bench.overlap_worker.time.sleep", waited.append)
    model = make_model("cnn")
    wait_as_for_a_device(model, torch.zeros(2, 1, 16, 16), 3.0)
    model(torch.zeros(2, 1, 16, 16, requires_grad=True)).sum().backward()
    assert sum(waited[:4]) == pytest.approx(1.0)
    assert sum(waited) == pytest.approx(3.0)
    assert waited[1] == max(waited[:4])  # the second convolution has most of the work
