# SPDX-License-Identifier: Apache-2.0
"""``weir bench dfs``: what is compared at equal energy, and one model's curves."""

from pathlib import Path

import pytest

from weir.bench.dfs_cases import BASELINE, PLANNED, Curves, Point, bytes_at, measure, saving
from weir.bench.replay import record


def test_bytes_are_drawn_out_between_two_energies_and_never_beyond() -> None:
    points = [Point(400, 0.4), Point(100, 0.1)]
    assert bytes_at(points, 0.2) == pytest.approx(200)
    assert bytes_at(points, 0.1) == pytest.approx(100)
    assert bytes_at(points, 0.4) == pytest.approx(400)
    assert bytes_at(points, 0.05) is None and bytes_at(points, 0.5) is None


def test_savings_are_at_the_same_energy() -> None:
    curves = Curves("mlp", 2, 1, {"a": [Point(10, 0.1), Point(40, 0.4)], "b": [Point(80, 0.2)]})
    assert saving(curves, "a", "b", 0.2) == pytest.approx(0.75)
    assert saving(curves, "a", "b", 0.3) is None


def test_dfs_costs_less_than_its_peers_for_more_energy(tmp_path: Path) -> None:
    points, sizes = measure(record(tmp_path / "recorded", "mlp", 2, 6), 2, 0.02)
    assert sum(sizes.values()) == 4 * 83_722, (
        "every element is in a block of some size, in each step that counts"
    )
    assert points["dfs"].bytes < points[PLANNED].bytes < points[BASELINE].bytes
    assert points["dfs"].energy > points[PLANNED].energy
    assert points["dfs"].bytes < points["dfs without lists"].bytes
    assert points["dfs"].bytes < points["dfs without packed lanes"].bytes
