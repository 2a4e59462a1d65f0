#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""BMv2 against the soft switch in Mininet: the same training on each in turn, its time and its bytes.

    sudo python3 mininet/compare.py --workers 2 --repeat 3

Each repetition trains with every switch, one after the other, with the same seed; the table has the medians.
"""

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

SWITCHES = ("soft", "bmv2")
TRAIN = "weir train --model cnn --epochs 1 --max-steps 20 --no-reference --method topk --density 0.01"
ROWS = (
    ("training time, s", lambda run: run["training_s"], "{:.1f}"),
    ("median step, s", lambda run: run["step_s_median"], "{:.3f}"),
    ("MB up per worker", lambda run: run["per_worker"]["bytes_up"] / 1e6, "{:.2f}"),
    ("MB down per worker", lambda run: run["per_worker"]["bytes_down"] / 1e6, "{:.2f}"),
    ("packets up per worker", lambda run: run["per_worker"]["packets_up"], "{:.0f}"),
    ("accuracy, held out", lambda run: run["accuracy"], "{:.3f}"),
)


def train(switch: str, options: argparse.Namespace) -> dict:
    """Return what the summary of a training says of it."""
    script = Path(__file__).with_name("single.py")
    with tempfile.TemporaryDirectory(prefix="weir-compare.") as folder:
        command = f"{options.train} --seed {options.seed} --out {shlex.quote(folder)}/runs"
        network = ["--workers", str(options.workers), "--switch", switch, "--run", command]
        done = subprocess.run(
            [sys.executable, str(script), *network], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"{script.name} --switch {switch} ended with {done.returncode}:\n{done.stderr}")
        (summary,) = Path(folder).glob("runs/*/summary.json")
        return json.loads(summary.read_text())["runs"]["weir"]


def main() -> None:
    """Train, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=2, help="number of hosts, 1 to 32 (default 2)")
    parser.add_argument("--repeat", type=int, default=3, help="trainings with each switch (default 3)")
    parser.add_argument("--seed", type=int, default=1, help="of the first repetition (default 1)")
    parser.add_argument("--train", metavar="COMMAND", default=TRAIN, help=f"what to run (default: {TRAIN})")
    options = parser.parse_args()
    runs: dict[str, list[dict]] = {switch: [] for switch in SWITCHES}
    for _ in range(options.repeat):
        for switch in SWITCHES:
            runs[switch].append(train(switch, options))
        options.seed += 1
    print(f"{'':24}{'soft':>12}{'bmv2':>12}{'bmv2 : soft':>14}")
    for label, value, form in ROWS:
        soft, bmv2 = (statistics.median(map(value, runs[switch])) for switch in SWITCHES)
        ratio = f"{bmv2 / soft:.2f}" if soft else "-"
        print(f"{label:24}{form.format(soft):>12}{form.format(bmv2):>12}{ratio:>14}")


if __name__ == "__main__":
    main()
