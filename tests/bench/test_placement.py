# SPDX-License-Identifier: Apache-2.0
"""``weir bench placement``: a row for every way, what partitions cost in it, and how long they take."""

import pytest
from typer.testing import CliRunner

from weir.bench import placement
from weir.cli import app
from weir.host_agent.placement.samples import power_law


def bench(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["bench", "placement", *arguments], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    return done.output


def test_every_way_has_a_row_and_what_is_compressed_and_placed_travels_least(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(placement, "corpora", lambda *_: {"power law": power_law(200, 800, seed=1)})
    rows = list(placement.run((4,), (8,), lines=1, most=200, seed=1))
    assert {(row.method, row.hashing) for row in rows} >= {
        way for way in placement.WAYS if way[0] not in ("metis", "mtkahypar")
    }
    costs = {(row.method, row.hashing): row.plan.traffic.total for row in rows}
    assert costs["refined", "clustered"] < 0.5 * costs["refined", "plain"]
    assert costs["refined", "none"] < 0.9 * min(costs["hash", "none"], costs["greedy", "none"])
    assert all(row.area > 0.8 for row in rows if row.hashing == "none")


def test_partitions_are_timed() -> None:
    output = bench("--only-time", "--samples", "300", "--machines", "4")
    for method in ("random", "hash", "greedy", "refined"):
        assert f"│ {method} " in output and f"{method}: 300 samples on 4 machines" in output
    assert "GB" in output
