# SPDX-License-Identifier: Apache-2.0
"""The example scripts, as a user runs them."""

import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(*command: str) -> list[str]:
    """Output lines of a command that must succeed, sorted: ranks print in any order."""
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=240, check=False, cwd=EXAMPLES
    )
    assert done.returncode == 0, done.stderr
    return sorted(done.stdout.splitlines())


def torchrun(ranks: int, script: str, *arguments: str) -> list[str]:
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks))
    return run(*launcher, script, *arguments)


def test_ddp_backend_starts_its_own_switch_and_learns_the_same_everywhere() -> None:
    lines = torchrun(2, "ddp_backend.py", "--steps", "60")
    found = [re.fullmatch(r"rank (\d): loss ([\d.]+) -> ([\d.]+), parameters (\w+)", line) for line in lines]
    ranks, first, last, digests = zip(*(match.groups() for match in found if match), strict=True)
    assert ranks == ("0", "1")
    assert all(float(after) < float(before) / 5 for before, after in zip(first, last, strict=True))
    assert len(set(digests)) == 1


def test_ddp_hook_trains_sparsely_across_a_checkpoint() -> None:
    lines = torchrun(2, "ddp_hook.py", "--steps", "60", "--density", "0.1")
    found = [re.fullmatch(r"rank (\d): step 60, loss ([\d.]+), sent ([\d.]+)% .*", line) for line in lines]
    ranks, losses, densities = zip(*(match.groups() for match in found if match), strict=True)
    assert ranks == ("0", "1")
    assert max(map(float, losses)) < 0.1
    assert max(map(float, densities)) < 12


def test_local_cluster_sums_and_stops() -> None:
    report, *ranks = run("local_cluster.py")
    assert ranks == [
        "rank 0: sum [0.0, 3.0, 6.0, 9.0], swapped [0, 10]",
        "rank 1: sum [0.0, 3.0, 6.0, 9.0], swapped [1, 11]",
    ]
    assert re.fullmatch(r"packets the switch took in, by host: {'h1': \d+, 'h2': \d+}", report)
