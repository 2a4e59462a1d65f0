# SPDX-License-Identifier: Apache-2.0
"""Asynchronous and stale servers over real links: what is switched on acts, within budgets."""

from pathlib import Path
from typing import Any

import pytest

from tests.harness.effort import effort
from tests.weir.test_train import summary, train

FLOWS = ("--mode", "ps", "--method", "dense", "--set", "servers=2", "--workers", "4", "--no-reference")
LINKS = ("--hosts", "namespaces", "--topology", "leaf-spine-2x2", "--links", "50mbit", "--model", "mlp")
STEPS = effort(3, 6)
SHORT = ("--epochs", "1", "--max-steps", str(STEPS))


def run(out: Path, *options: str) -> tuple[dict[str, Any], str]:
    status, output = train(out, *FLOWS, *LINKS, *SHORT, *options)
    assert status == 0, output
    return summary(out), output


@pytest.mark.root
def test_asynchronous_pushes_are_trimmed_within_their_budget(tmp_path: Path) -> None:
    disturbed = ("--set", "background=incast", "--set", "background_load=0.6", "--set", "loss=0.01")
    told, output = run(tmp_path, "--consistency", "async", "--loss-budget", "0.1", *disturbed)
    weir = told["runs"]["weir"]
    network, delivery = weir["network"], weir["delivery"]
    assert weir["steps"] == STEPS and weir["replicas"]["identical_at_end"], output
    assert min(network[name] for name in ("trims", "marks", "lost", "background")) > 0, network
    assert 0 < delivery["missing"] <= delivery["budget"] <= 0.1 * delivery["lanes"]
    assert told["idle"] == [] and "did nothing" not in output


@pytest.mark.root
@pytest.mark.long
def test_stale_pushes_lose_nothing_without_a_budget_and_idle_mechanisms_are_named(tmp_path: Path) -> None:
    told, output = run(tmp_path, "--consistency", "ssp:2", "--set", "loss=0.02")
    weir = told["runs"]["weir"]
    assert weir["replicas"]["identical_at_end"], output
    assert weir["network"]["lost"] > 0 and weir["per_worker"]["retransmissions"] > 0
    assert weir["delivery"]["missing"] == weir["network"]["trims"] == 0
    assert told["idle"] == []
