# SPDX-License-Identifier: Apache-2.0
"""The GPU benchmark on the CPU: every case at small sizes with two ranks, and what becomes of failures."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch

from weir.bench.gpu import Plan, run
from weir.bench.gpu_allreduce import CONTENDERS, AllreduceItem
from weir.bench.gpu_copy import CopyItem
from weir.bench.gpu_exchange import SPARSIFIERS, buckets
from weir.bench.gpu_model import SHAPES, Gpt, batches, parameter_count, read_tokens
from weir.bench.gpu_ranks import Outcome, outcomes
from weir.bench.gpu_tables import brief, complete, rows_of
from weir.bench.gpu_train import WAYS, TrainItem
from weir.bench.gpu_worker import decode, encode

SMALL = Plan(
    device="cpu",
    workers=2,
    elements=(100_000,),
    repeats=2,
    threads=(1,),
    model="tiny",
    batch=2,
    length=16,
    steps=3,
    warmup=3,
    ways=("alone", "gloo", "gloo-fp16", "powersgd-2", "weir", "weir-16", "dfs"),
    copy_bytes=1_000_000,
)

Rows: TypeAlias = list[dict[str, Any]]


def measured(plan: Plan, out: Path) -> Rows:
    """Return the results in the file, those of failures left out of none."""
    run(plan, out)
    written = json.loads(out.read_text())
    assert written["machine"]["workers"] == plan.workers
    found: Rows = written["results"]
    assert not [row["failed"] for row in found if "failed" in row]
    assert all(row["command"] == written["command"] for row in found)
    return found


def test_every_case_is_measured_and_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = measured(SMALL, tmp_path / "runs" / "gpu.json")
    copies, sums, exchanges, trained = (
        [row for row in rows if row["case"] == case] for case in ("copy", "allreduce", "exchange", "train")
    )
    check_copies(copies)
    check_sums(sums)
    check_exchanges(exchanges)
    check_training(trained)
    shown = capsys.readouterr().out
    assert "0.4 MB Weir local cpu" in shown and "off by" not in shown
    assert "topk-block local cpu" in shown and "Gloo, PowerSGD rank 2" in shown


def check_copies(rows: Rows) -> None:
    assert [row["ranks"] for row in rows] == [1, 2]
    assert all(rate > 0 for row in rows for rate in row["rates"].values())


def check_sums(rows: Rows) -> None:
    assert all(row["right"] and len(row["seconds"]) == 2 for row in rows)
    assert [(row["bytes"], row["contender"]) for row in rows] == [
        (size, contender) for size in (400_000,) for contender in CONTENDERS
    ]
    assert {row["x_gloo"] for row in rows if row["contender"] == "gloo"} == {1.0}


def check_exchanges(rows: Rows) -> None:
    found = {(row["sparsifier"], row["local"]): row for row in rows}
    assert set(found) == {(name, local) for name in SPARSIFIERS for local in (False, True)}
    dense, sparse = found["dense", False], found["dfs", False]
    assert dense["elements"] == parameter_count(SHAPES["tiny"]) < dense["bytes_up"] / 4
    assert sparse["bytes_up"] < dense["bytes_up"] / 10


def check_training(rows: Rows) -> None:
    found = {row["way"]: row for row in rows}
    assert tuple(found) == SMALL.ways
    assert all(len(row["losses"]) == 6 and len(row["seconds"]) == 3 for row in rows)
    for way in ("gloo-fp16", "weir", "weir-16"):  # the same seed and text, and sums that are about right
        assert found[way]["losses"] == pytest.approx(found["gloo"]["losses"], abs=0.01)
    assert found["alone"]["losses"] != found["gloo"]["losses"]
    assert found["weir"]["bytes_up"] > 4 * parameter_count(SHAPES["tiny"]) > 0 == found["gloo"]["bytes_up"]


def test_what_fails_is_told_and_the_rest_is_measured() -> None:
    """The first ranks end with an error, the second ones with the time; the switch has two threads."""
    good = AllreduceItem("cpu", 100_000, ("gloo", "weir"), 1, 1.0, threads=2)
    bad = replace(good, contenders=("gloo", "unheard"))
    slow = TrainItem("cpu", "alone", "tiny", 8, 64, 1_000_000, 0, 1.0)
    first, second, third, last = outcomes([good, bad, good, slow], 2, 2, 6.0)
    assert [row["right"] for each in (first, third) for row in rows_of(each)] == [True] * 4
    assert not second.ranks and "KeyError: 'unheard'" in second.error
    (row,) = rows_of(second)
    assert brief(row).startswith("all-reduce of 0.4 MB, cpu, 2 threads failed: rank ")
    assert last.error.startswith("took more than 6 s\nrank 0:")
    assert "gpu_train.py" in last.error  # where it stood


def test_ranks_that_cannot_be_started_are_not_tried_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "nonsense")
    found = list(outcomes([CopyItem("cpu", True, 1000, 1)] * 4, 1, 1, 30.0))
    assert len(found) == 4 and not any(each.ranks for each in found)
    assert found[0].error.startswith("rank 0 failed (exit status 1):")
    assert [each.error for each in found[2:]] == ["not tried: no ranks could be started"] * 2


def test_items_come_out_as_they_went_in() -> None:
    items = SMALL.items(1)
    assert decode(encode(items)) == items


def test_what_is_in_host_memory_comes_last_and_is_compared_with_gloo_on_the_gpu() -> None:
    items = replace(SMALL, device="cuda").items(1)
    devices = [item.device for item in items]
    assert set(devices) == {"cuda", "cpu"} and devices == sorted(devices, reverse=True)
    assert {item.case for item in items if item.device == "cpu"} == {"allreduce", "exchange"}
    contenders = ("gloo", "weir")

    def taken(device: str, gloo: float, weir: float) -> Outcome:
        rank = {"seconds": {"gloo": [gloo], "weir": [weir]}, "errors": {"gloo": 0.0, "weir": 1.0}}
        return Outcome(AllreduceItem(device, 1_000_000, contenders, 1, 1.0), [rank, rank])

    copy = {"seconds": {way: [0.5] for way in ("down", "up", "both")}}
    rows = [
        row
        for outcome in (
            Outcome(CopyItem("cuda", True, 8_000_000, 1), [copy, copy]),
            taken("cuda", 4.0, 2.0),
            taken("cpu", 2.0, 1.0),
        )
        for row in rows_of(outcome)
    ]
    complete(rows)
    _, *sums = rows
    assert [row["x_gloo"] for row in sums] == [1, 2, 1, 2]
    assert [row["x_gloo_cuda"] for row in sums] == [1, 2, 2, 4]
    assert [row.get("of_copies") for row in sums] == [4e6 / 4 / 16e6, 4e6 / 2 / 16e6, None, None]
    assert [row["right"] for row in sums] == [True, False, True, False]


def test_gpt2_has_as_many_parameters_as_published_and_buckets_as_of_ddp() -> None:
    assert parameter_count(SHAPES["gpt2"]) == 124_439_808
    with torch.device("meta"):
        layouts = list(buckets(list(Gpt(SHAPES["gpt2"]).named_parameters())))
    assert sum(layout.elements for layout in layouts) == 124_439_808
    assert [layout.index for layout in layouts] == list(range(len(layouts)))
    assert all(4 * layout.elements >= 25 * 2**20 for layout in layouts[1:-1])


def test_a_text_is_the_same_for_all_and_ranks_have_batches_of_their_own() -> None:
    tokens = read_tokens(512)
    assert len(tokens) > 1_000_000 and int(tokens.max()) < 512
    first, again, other = (batches(tokens, rank, 2, 3, 16) for rank in (0, 0, 1))
    assert first.shape == (2, 3, 17)
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_every_way_is_compared_with_gloo_and_with_nothing() -> None:
    assert list(WAYS)[:2] == ["alone", "gloo"]


def test_switches_of_more_threads_sum_large_tensors_only() -> None:
    plan = replace(SMALL, device="cuda", elements=(16_000, 1_000_000, 4_000_000))
    items = [item for item in plan.items(2) if isinstance(item, AllreduceItem)]
    assert [(item.elements, item.contenders) for item in items] == [
        (1_000_000, ("gloo", "weir")),
        (4_000_000, ("gloo", "weir")),
    ]
    assert all(item.threads == 2 and item.device == "cuda" for item in items)
