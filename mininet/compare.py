#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""BMv2 beside the soft switch in Mininet: the same training on each in turn, its time and its bytes.

    sudo python3 mininet/compare.py --workers 2 --repeat 3
    sudo python3 mininet/compare.py --network all --links all --repeat 1 --audit --train "weir train"

Each repetition trains on every network with every switch, one after the other, with the same seed; the table
has the medians. The last columns: the accuracy on held-out data and a checksum of the parameters, which no
switch, topology or loss changes where nothing may go missing; the accuracy of the same training over Gloo's
TCP in that network (--reference); how many breaches of the protocol an audit of captures of every port finds
(--audit). Captures cost time, so take times from a run without.
"""

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from p4switch import tied, weir

SWITCHES = ("soft", "bmv2")
TRAIN = "weir train --model cnn --epochs 1 --max-steps 20 --method topk --density 0.01"
LINKS = {
    "free": [],
    "loss": ["--loss", "0.01"],
    "slow": ["--rate", "50mbit"],
    "congested": ["--rate", "50mbit", "--background-load", "0.6"],
}
COLUMNS = (
    ("time s", lambda run: run["training_s"], "{:.1f}"),
    ("step ms", lambda run: 1000 * run["step_s_median"], "{:.0f}"),
    ("MB up", lambda run: run["per_worker"]["bytes_up"] / 1e6, "{:.2f}"),
    ("MB down", lambda run: run["per_worker"]["bytes_down"] / 1e6, "{:.2f}"),
    ("packets up", lambda run: run["per_worker"]["packets_up"], "{:.0f}"),
    ("again", lambda run: run["per_worker"]["retransmissions"], "{:.0f}"),
    ("marked", lambda run: run["delivery"]["marked"], "{:.0f}"),
)


def networks(workers: int) -> dict[str, tuple[str, list[str], str]]:
    """Return script, options and what is added to the training, by the network's name."""
    half = str(workers // 2)
    one = ["--workers", str(workers + 1), "--servers", "1"]
    return {
        "rack": ("single.py", ["--workers", str(workers)], ""),
        "two-racks": ("leaf_spine.py", ["--racks", "2", "--spines", "1", "--hosts", half], ""),
        "leaf-spine": ("leaf_spine.py", ["--racks", "2", "--spines", "2", "--hosts", half], ""),
        "server": ("single.py", one, " --mode ps"),
    }


def train(
    network: tuple[str, list[str], str],
    switch: str,
    links: list[str],
    seed: int,
    options: argparse.Namespace,
) -> dict:
    """Return what the summary of a training says of it, the accuracy of its reference, and of the audit."""
    script, shape, more = network
    with tempfile.TemporaryDirectory(prefix="weir-compare.") as folder:
        command = f"{options.train}{more} --seed {seed} --out {shlex.quote(folder)}/runs"
        command += " --reference" if options.reference else " --no-reference"
        captures = ["--pcap", f"{folder}/pcap"] if options.audit else []
        start = [sys.executable, str(Path(__file__).with_name(script))]
        done = subprocess.run(
            tied([*start, *shape, *links, *captures, "--switch", switch, "--run", command]),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            said = done.stdout + done.stderr
            raise SystemExit(f"{script} --switch {switch} ended with {done.returncode}:\n{said}")
        (summary,) = Path(folder).glob("runs/*/summary.json")
        runs = json.loads(summary.read_text())["runs"]
        return {
            **runs["weir"],
            "reference": runs["gloo"]["accuracy"] if options.reference else None,
            "audit": audit(Path(folder) / "pcap") if options.audit else None,
        }


def audit(captures: Path) -> str:
    """Return the last line of what `weir pcap audit` says: frames, and findings."""
    files = map(str, sorted(captures.iterdir()))
    done = subprocess.run([weir(), "pcap", "audit", *files], capture_output=True, text=True, check=False)
    return (done.stdout.strip() or done.stderr.strip()).splitlines()[-1]


def row(names: tuple[str, str, str], cells: list[str], rest: str) -> None:
    network, links, switch = names
    print(
        f"{network:12}{links:11}{switch:12}" + "".join(f"{cell:>11}" for cell in cells) + f"  {rest}",
        flush=True,
    )


def report(names: tuple[str, str], runs: dict[str, list[dict]]) -> None:
    """Print a row for each switch, and what BMv2 takes of what the soft switch takes."""
    median = {
        switch: [statistics.median(value(run) for run in runs[switch]) for _, value, _ in COLUMNS]
        for switch in runs
    }
    for switch, values in median.items():
        last, several = runs[switch][-1], runs[switch]
        words = [
            f"{statistics.median(run['accuracy'] for run in several):.3f}",
            last["replicas"]["checksum"][:8],
        ]
        if last["reference"] is not None:
            words.append(f"Gloo {statistics.median(run['reference'] for run in several):.3f}")
        words += [last["audit"]] if last["audit"] else []
        row(
            (*names, switch),
            [form.format(v) for v, (_, _, form) in zip(values, COLUMNS, strict=True)],
            "  ".join(words),
        )
    if len(median) == 2:
        ratios = [f"{b / s:.2f}" if s else "-" for s, b in zip(*median.values(), strict=True)]
        row((*names, "bmv2 : soft"), ratios, "")


def main() -> None:
    """Train, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    how = ", ".join(f"{name}: {' '.join(given) or 'no limit'}" for name, given in LINKS.items())
    parser.add_argument("--workers", type=int, default=2, help="number of workers, even, 2 to 30 (default 2)")
    parser.add_argument(
        "--network", nargs="+", choices=[*networks(2), "all"], default=["rack"], help="default: rack"
    )
    parser.add_argument(
        "--links", nargs="+", choices=[*LINKS, "all"], default=["free"], help=f"{how} (default free)"
    )
    parser.add_argument("--switch", nargs="+", choices=SWITCHES, default=SWITCHES, help="default: both")
    parser.add_argument("--repeat", type=int, default=3, help="trainings with each switch (default 3)")
    parser.add_argument("--seed", type=int, default=1, help="of the first repetition (default 1)")
    parser.add_argument(
        "--train", metavar="COMMAND", default=TRAIN, help=f"command to run (default: {TRAIN})"
    )
    parser.add_argument("--reference", action="store_true", help="train over Gloo, too")
    parser.add_argument("--audit", action="store_true", help="capture every port, and check the packets")
    options = parser.parse_args()
    if options.workers % 2 or not 2 <= options.workers <= 30:
        parser.error("--workers: an even number from 2 to 30")
    made = networks(options.workers)
    header = [title for title, _, _ in COLUMNS]
    row(("network", "links", "switch"), header, "accuracy, parameters")
    for network in made if "all" in options.network else options.network:
        for links in LINKS if "all" in options.links else options.links:
            runs: dict[str, list[dict]] = {switch: [] for switch in options.switch}
            for repetition in range(options.repeat):
                for switch in options.switch:
                    runs[switch].append(
                        train(made[network], switch, LINKS[links], options.seed + repetition, options)
                    )
            report((network, links), runs)


if __name__ == "__main__":
    main()
