# SPDX-License-Identifier: Apache-2.0
"""The example scripts, as a user runs them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.forked import run_ranks
from tests.harness.typed import blocks

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(script: str, *arguments: str) -> str:
    """Return what a script that must succeed prints. Ranks share the output: lines may come in any order.

    In an interpreter of its own: ``torch.multiprocessing.spawn`` starts its parent's main module again.
    """
    command = [sys.executable, EXAMPLES / script, *arguments]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_ddp_backend_starts_its_own_switch_and_learns_the_same_everywhere() -> None:
    said = run_ranks(2, EXAMPLES / "ddp_backend.py")
    found = re.findall(r"rank (\d): loss ([\d.]+) -> ([\d.]+), parameters ([0-9a-f]{8})", said)
    assert sorted(rank for rank, *_ in found) == ["0", "1"]
    assert all(float(last) < float(first) / 5 for _, first, last, _ in found)
    assert len({digest for *_, digest in found}) == 1


def test_ddp_hook_trains_sparsely_across_a_checkpoint() -> None:
    said = run_ranks(2, EXAMPLES / "ddp_hook.py", "--density", "0.1")
    found = re.findall(r"rank (\d): step 100, loss (\d+\.\d+), sent (\d+\.\d)% of the gradient", said)
    assert sorted(rank for rank, *_ in found) == ["0", "1"]
    assert all(float(loss) < 2 for _, loss, _ in found)  # it starts at 8
    assert all(float(density) < 12 for *_, density in found)


def test_local_cluster_sums_and_stops() -> None:
    said = run("local_cluster.py")
    assert sorted(re.findall(r"rank \d: sum .*?swapped \[\d+, \d+\]", said)) == [
        "rank 0: sum [0.0, 3.0, 6.0, 9.0], swapped [0, 10]",
        "rank 1: sum [0.0, 3.0, 6.0, 9.0], swapped [1, 11]",
    ]
    assert re.search(r"the switch completed [1-9]\d* rounds", said)


def test_a_method_of_ones_own_trains() -> None:
    said = run_ranks(2, EXAMPLES / "own_method.py", "--density", "0.1")
    found = re.findall(r"rank (\d): loss (\d+\.\d+), sent (\d+\.\d)% of the gradient", said)
    assert sorted(rank for rank, *_ in found) == ["0", "1"]
    assert all(float(loss) < 0.5 for _, loss, _ in found)  # it starts at 1
    assert all(9 < float(density) < 11 for *_, density in found)


def test_the_page_about_it_shows_the_script() -> None:
    page, script = EXAMPLES.parent / "docs" / "guides" / "add-a-method.md", EXAMPLES / "own_method.py"
    assert blocks(page, "python")[0] in script.read_text(encoding="utf-8")


@pytest.mark.long
def test_weights_reach_every_engine() -> None:
    said = run("weights.py", "--steps", "4")
    digests = re.findall(r"(?:trainer|engine h\d): version 5, ([0-9a-f]{16})", said)
    assert len(digests) == 3 and len(set(digests)) == 1
    assert re.search(r"trainer: \d+\.\d% of the values changed in a step, [\d,]+ bytes sent", said)
