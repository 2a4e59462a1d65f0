# SPDX-License-Identifier: Apache-2.0
"""The latency benchmark: every size is measured with both contenders, and set beside Gloo."""

import json
from pathlib import Path

import pytest

from weir.bench.collectives.latency import Latency, ratio, run, summarize
from weir.bench.latency_worker import COLLECTIVES, LatencySpec


def test_every_size_is_measured_over_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run([2], [1, 3], [], LatencySpec((), repeats=2, calls=2), tmp_path / "out.json")
    results = json.loads((tmp_path / "out.json").read_text())["results"]
    assert [(one["size"], one["contender"]) for one in results] == [
        (size, name) for size in (1024, 3072) for name in ("gloo", "weir")
    ]
    for one in results:
        assert len(one["seconds"]) == 2 and min(one["seconds"]) > 0 and one["worker"] > 0
    assert "2 workers, memory, all_reduce, 3 KB Weir" in capsys.readouterr().out


def test_other_collectives_are_measured_too(tmp_path: Path) -> None:
    chosen = tuple(COLLECTIVES)
    spec = LatencySpec((), repeats=1, calls=1, collectives=chosen)
    run([2], [1 / 64], [], spec, tmp_path / "out.json")
    results = json.loads((tmp_path / "out.json").read_text())["results"]
    assert [one["collective"] for one in results] == [name for name in chosen for _ in ("gloo", "weir")]
    assert all(one["size"] == 16 and one["x_gloo"] > 0 for one in results)


def test_a_turn_takes_as_long_as_its_slowest_rank() -> None:
    first = {"4096": {"gloo": [[3.0, 1.0, 0.0], [4.0, 1.0, 0.0]], "weir": [[1.0, 1.0, 5.0], [1.0, 1.0, 7.0]]}}
    second = {
        "4096": {"gloo": [[2.0, 3.0, 0.0], [8.0, 3.0, 0.0]], "weir": [[2.0, 2.0, 0.0], [1.0, 3.0, 0.0]]}
    }
    gloo, weir = summarize("memory", [{"reduce": first}, {"reduce": second}])
    assert gloo == Latency("memory", 2, "reduce", 4096, "gloo", [3.0, 8.0], 2.0, 0.0)
    assert weir == Latency("memory", 2, "reduce", 4096, "weir", [2.0, 1.0], 1.5, 6.0)
    assert ratio(weir, [gloo, weir]) == pytest.approx(5.5 / 1.5)
