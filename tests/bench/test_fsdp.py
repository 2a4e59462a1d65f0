# SPDX-License-Identifier: Apache-2.0
"""The benchmark of sharded training: both contenders step to the same parameters, and both are timed."""

import json
from pathlib import Path

import pytest

from weir.bench.collectives.fsdp import run


@pytest.mark.root
def test_contenders_train_the_same_model_over_shaped_links(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The ranks themselves refuse to print anything when parameters differ."""
    run(2, 64, ["1gbit"], 2, [32, 16], tmp_path / "fsdp.json")
    seconds = json.loads((tmp_path / "fsdp.json").read_text())["seconds"]["1gbit"]
    assert {name: len(steps) for name, steps in seconds.items()} == {"gloo": 2, "weir": 2, "weir-16": 2}
    assert min(step for steps in seconds.values() for step in steps) > 0
    shown = capsys.readouterr().out
    assert "1gbit Gloo" in shown and "1gbit Weir 16" in shown
