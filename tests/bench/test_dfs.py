# SPDX-License-Identifier: Apache-2.0
"""DFS beside its peers: what is compared at equal energy, and one model's curves."""

import pytest
import torch

from weir.bench.gradients.contenders import (
    BASELINE,
    PLANNED,
    Curves,
    Point,
    bytes_at,
    delivered,
    measure,
    saving,
    together,
    trained,
)
from weir.bench.gradients.dfs import finer, saving_at_equal_accuracy, verdict
from weir.bench.gradients.replay import recordings


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


def test_dfs_costs_less_than_its_peers_for_more_energy() -> None:
    with recordings():
        one = measure("mlp", 2, 6, 1, 0.02)
    points = {name: Point(*point) for name, point in one.points.items()}
    assert sum(count for _, count in one.sizes) == 4 * 83_722, (
        "every element is in a block of some size, in each step that counts"
    )
    assert points["dfs"].bytes < points[PLANNED].bytes < points[BASELINE].bytes
    assert points["dfs"].energy > points[PLANNED].energy
    for name in ("lists of pairs", "bitmaps", BASELINE):
        assert points[f"packed {name}"].bytes < points[name].bytes
        assert points[f"packed {name}"].energy == points[PLANNED].energy
    assert points["dfs"].bytes < points["dfs without lists"].bytes
    assert points["dfs"].bytes < points["dfs without packed lanes"].bytes


def test_blocks_hold_less_than_single_elements_where_large_values_are_scattered() -> None:
    with recordings():
        found = together(0.02, "mlp", 2, 9, 1)
    (_, single), *others = found.delivered
    assert 0 < single < 1
    assert all(0 < share < single for size, share in others if size <= 16)


def test_blocks_hold_more_where_large_values_lie_together() -> None:
    scattered, gathered = torch.randn(64 * 256), torch.zeros(64 * 256)
    gathered[1024:1280] = torch.randn(256)
    assert delivered(scattered, 256, 10)[256] < 0.2 * delivered(scattered, 256, 10)[1]
    assert delivered(gathered, 150, 10)[256] > 1.01 * delivered(gathered, 150, 10)[1]


def test_bytes_are_compared_where_dfs_is_as_accurate() -> None:
    means = {
        ("dfs", 0.01): (10.0, 0.900),
        ("dfs", 0.1): (50.0, 0.950),
        ("peer", 0.01): (40.0, 0.904),
        ("peer", 0.1): (100.0, 0.951),
        ("dense", 1.0): (1000.0, 0.97),
    }
    assert saving_at_equal_accuracy(means, "peer", 0.01) == pytest.approx(0.75)
    assert saving_at_equal_accuracy(means, "peer", 0.1) == pytest.approx(0.5)
    assert saving_at_equal_accuracy(means, "dense", 1.0) is None


def test_the_verdict_names_every_cell_in_which_dfs_is_dearer() -> None:
    words = verdict(
        {
            ("mlp", 2, "dense", 1.0): 0.9,
            ("mlp", 8, "dense", 1.0): -0.1,
            ("mlp", 8, "block top-k", 0.01): None,
            ("mlp", 8, PLANNED, 0.01): 0.5,
            ("mlp", 8, "dfs", 0.01): 0.0,
        }
    )
    assert "in 1 of 3 cells" in words and "50% below" in words
    assert "mlp, 8 workers, 100.0%, dense; mlp, 8 workers, 1.0%, block top-k" in words


def test_dfs_is_trained_between_the_densities_of_its_peers() -> None:
    assert finer([0.03, 0.003]) == [0.0006, 0.001, 0.0017, 0.003, 0.0095, 0.03]


def test_a_training_counts_what_all_that_send_the_same_elements_send() -> None:
    one = trained("mlp", "top-k planned", 0.02, 2, 20, 1)
    assert 0.1 < one.accuracy < 1
    assert one.bytes["OmniReduce-256"] > one.bytes["top-k planned"] > 0
    assert "lists of pairs" in one.bytes
