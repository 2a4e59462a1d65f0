# SPDX-License-Identifier: Apache-2.0
"""Final accuracy of training over Weir against plain Gloo, over several seeds.

Each seed trains the same model twice, once with all gradients summed by the switch and once by Gloo. A
method counts as equal when its mean is within half a point of the reference.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import mean

from softp4.native.scratch import scratch_folder
from weir.bench.case import Run, parameter
from weir.bench.results import Column, Row, Table
from weir.process.child import ChildError, tied
from weir.train.config import PRESETS, make_config
from weir.train.words import method_words


@dataclass(frozen=True)
class Parameters:
    """The training."""

    model: str = parameter("cnn", "that is trained", choices=PRESETS)
    workers: int = parameter(4, "workers", least=1, most=32)
    epochs: int = parameter(4, "passes over the data", least=1)
    max_steps: int | None = parameter(None, "of each epoch at most", least=1)
    method: str = parameter("dense", "a method: weir methods lists them")
    density: float = parameter(0.05, "of methods that send a share", above=0, most=1)


def run(parameters: Parameters, run: Run) -> Iterator[Table]:
    """Train over Weir and over Gloo from every seed."""
    config = make_config(**vars(parameters), plugin=run.plugins)
    rows = []
    differences = []
    for seed in run.seeds:
        run.say(f"seed {seed} of {len(run.seeds)} ...")
        weir, gloo, identical = train(parameters, seed, run)
        differences.append(100 * (weir - gloo))
        values = {"points": differences[-1], "Gloo": gloo, "Weir": weir, "replicas alike": identical}
        rows.append(Row(f"seed {seed}", values))
    yield Table(
        f"Final accuracy of {config.model}, {config.workers} workers, {config.epochs} epochs, "
        f"{method_words(config)}",
        (
            Column("points", lambda n: f"{n:+.2f}", "Weir minus Gloo, in per cent points"),
            *(Column(name, lambda n: f"{n:.2%}", "on held-out data") for name in ("Gloo", "Weir")),
            Column("replicas alike", note="bit-identical after every step"),
        ),
        (*rows, Row("mean", {"points": mean(differences)})),
        better="more",
    )


def train(parameters: Parameters, seed: int, run: Run) -> tuple[float, float, bool]:
    """Return final accuracy over Weir and over Gloo, and whether all replicas agreed after every step.

    Raises ChildError with what ``weir train`` said when it failed.
    """
    with scratch_folder("weir-accuracy") as folder:
        command = [sys.executable, "-m", "weir", "train", "--seed", str(seed), "--out", str(folder)]
        for name, value in vars(parameters).items():
            command += [f"--{name.replace('_', '-')}", str(value)] if value is not None else []
        command += [word for path in run.plugins for word in ("--plugin", str(path))]
        done = subprocess.run(tied(command), capture_output=True, text=True, check=False)
        if done.returncode:
            raise ChildError(f"weir train failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        (summary,) = folder.glob("*/summary.json")
        runs = json.loads(summary.read_text())["runs"]
        identical = all(run["replicas"]["identical_after_every_step"] for run in runs.values())
        return runs["weir"]["accuracy"], runs["gloo"]["accuracy"], identical
