# SPDX-License-Identifier: Apache-2.0
"""``weir bench accuracy``: final accuracy of training over Weir against plain Gloo, over several seeds.

Each seed trains the same model twice, once with all gradients summed by the switch and once by Gloo. A
method counts as equal when its mean is within half a point of the reference.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from rich.console import Console

from softp4.native.scratch import scratch_folder
from weir.bench.table import show
from weir.process.child import tied
from weir.train.config import make_config
from weir.train.words import method_words

console = Console(stderr=True)


def run(
    model: str,
    workers: int,
    epochs: int,
    method: str,
    density: float,
    seeds: int,
    plugin: Sequence[Path] = (),
) -> None:
    """Train and print, a row per seed. ConfigError for settings that cannot be."""
    config = make_config(model=model, workers=workers, epochs=epochs, method=method, density=density)
    rows = []
    differences = []
    for seed in range(1, seeds + 1):
        console.print(f"seed {seed} of {seeds} ...")
        weir, gloo, identical = train(model, workers, epochs, method, density, seed, plugin)
        differences.append(weir - gloo)
        rows.append((f"{seed}", f"{gloo:.2%}", f"{weir:.2%}", f"{100 * (weir - gloo):+.2f}", identical))
    rows.append(("mean", "", "", f"{100 * mean(differences):+.2f}", ""))
    show(
        f"Final accuracy of {model}, {workers} workers, {epochs} epochs, {method_words(config)}",
        ("seed", "Gloo", "Weir", "points", "replicas bit-identical"),
        rows,
        ["held-out data; points: Weir minus Gloo, in per cent points"],
    )


def train(
    model: str,
    workers: int,
    epochs: int,
    method: str,
    density: float,
    seed: int,
    plugin: Sequence[Path] = (),
) -> tuple[float, float, str]:
    """Return final accuracy over Weir and over Gloo, and whether all replicas agreed after every step.

    Raises RuntimeError with what ``weir train`` said when it failed.
    """
    with scratch_folder("accuracy") as folder:
        command = [sys.executable, "-m", "weir", "train", "--model", model, "--workers", str(workers)]
        command += ["--epochs", str(epochs), "--method", method, "--density", str(density)]
        command += ["--seed", str(seed), "--out", str(folder)]
        command += [word for path in plugin for word in ("--plugin", str(path))]
        done = subprocess.run(tied(command), capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"weir train failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        (summary,) = folder.glob("*/summary.json")
        runs = json.loads(summary.read_text())["runs"]
        identical = all(run["replicas"]["identical_after_every_step"] for run in runs.values())
        return (
            runs["weir"]["accuracy"],
            runs["gloo"]["accuracy"],
            "yes" if identical else "NO",
        )
