# SPDX-License-Identifier: Apache-2.0
"""``weir bench placement``: what a partition saves, what a hash saves, and what both do; at what accuracy.

Traffic is that of one iteration (`weir.host_agent.placement.traffic`). Accuracy is that of a logistic
regression on a fifth of the samples, which was trained on the others, over the plan's parameters.
"""

import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from rich.console import Console

from weir.bench.table import show
from weir.host_agent.placement.partitioners.packages import MissingPackageError
from weir.host_agent.placement.plan import BOTH_RANDOM, Hashing, Plan, make_plan
from weir.host_agent.placement.samples import Samples, power_law, text_samples
from weir.train.words import byte_count

WAYS: Final[tuple[tuple[str, Hashing], ...]] = (
    (BOTH_RANDOM, "none"),
    ("random", "none"),
    ("hash", "none"),
    ("greedy", "none"),
    ("metis", "none"),
    ("mtkahypar", "none"),
    ("refined", "none"),
    (BOTH_RANDOM, "plain"),
    ("mtkahypar", "plain"),
    ("refined", "plain"),
    ("refined", "local"),
)
_HELD_OUT: Final = 5  # every so many samples is not trained on


@dataclass(frozen=True)
class Row:
    """One plan for one corpus. accuracy: share of held-out samples that are classified right."""

    corpus: str
    machines: int
    method: str
    hashing: Hashing
    plan: Plan
    accuracy: float


def corpora(lines: int, most: int) -> dict[str, Samples]:
    """Return the corpora: text of installed packages, labelled by package, and a made-up one.

    lines: of text in a sample. most: samples of each; of more, every so many.
    """
    packages = Path(sysconfig.get_paths()["purelib"])
    found = {"power law": power_law(most, 5 * most, seed=1)}
    for pair in (("numpy", "scipy"), ("sklearn", "matplotlib")):
        folders = [packages / package for package in pair]
        if all(folder.is_dir() for folder in folders):
            found[" / ".join(pair)] = _fewer(text_samples(*folders, lines=lines), most)
    return found


def _fewer(samples: Samples, most: int) -> Samples:
    """Return at most so many of the samples, evenly chosen, with the features that they have."""
    chosen = np.unique(np.linspace(0, len(samples) - 1, min(most, len(samples))).astype(np.int64))
    rows = [samples[int(sample)] for sample in chosen]
    numbers, features = np.unique(np.concatenate(rows), return_inverse=True)
    renumbered = np.split(features, np.cumsum([row.size for row in rows])[:-1])
    return Samples.of(renumbered, numbers.size, None if samples.labels is None else samples.labels[chosen])


def accuracy(samples: Samples, plan: Plan) -> float:
    """Return the accuracy of a logistic regression over the plan's parameters, on samples held out.

    Raises ValueError for samples without labels.
    """
    if samples.labels is None:
        raise ValueError("samples without labels")
    from scipy.sparse import csr_matrix  # type: ignore[import-untyped]
    from sklearn.linear_model import LogisticRegression

    width = samples.width if plan.buckets is None else plan.buckets.count
    columns, values = samples.features, np.ones(samples.features.size)
    if plan.buckets is not None:
        values = plan.buckets.signs[0, columns].astype(float)
        columns = plan.buckets.of_feature[0, columns]
    matrix = csr_matrix((values, columns, samples.starts), shape=(len(samples), width))
    held_out = np.arange(len(samples)) % _HELD_OUT == 0
    model = LogisticRegression(C=0.1, solver="liblinear", random_state=0)
    model.fit(matrix[~held_out], samples.labels[~held_out])
    return float(model.score(matrix[held_out], samples.labels[held_out]))


def run(machines: tuple[int, ...], buckets: int, lines: int, most: int, seed: int) -> Iterator[Row]:
    """Yield a row for each corpus, number of machines and way that is installed.

    buckets: the features are divided by, where they are hashed.
    """
    for name, samples in corpora(lines, most).items():
        for count in machines:
            for method, hashing in WAYS:
                share = samples.width // buckets
                try:
                    plan = make_plan(samples, count, method, hashing=hashing, buckets=share, seed=seed)
                except MissingPackageError:
                    continue
                yield Row(name, count, method, hashing, plan, accuracy(samples, plan))


def measure(machines: tuple[int, ...], buckets: int, lines: int, most: int, seed: int) -> None:
    """Print a table for each corpus."""
    rows: list[Row] = []
    with Console(stderr=True).status("placing") as status:
        for row in run(machines, buckets, lines, most, seed):
            rows.append(row)
            status.update(f"{row.corpus}, {row.machines} machines: {row.method}, hashing {row.hashing}")
    notes = [
        f"A hash leaves 1/{buckets} of the parameters. Bytes of one iteration; below {BOTH_RANDOM} and none.",
        "Accuracy: of a logistic regression that tells from which of two packages a held-out sample is.",
    ]
    for corpus in dict.fromkeys(row.corpus for row in rows):
        _show(corpus, [row for row in rows if row.corpus == corpus], notes)


def _show(corpus: str, rows: list[Row], notes: list[str]) -> None:
    base = {row.machines: row.plan.traffic.total for row in rows if (row.method, row.hashing) == WAYS[0]}
    cells = [
        (
            f"{row.machines} machines: {row.method}, {row.hashing}",
            byte_count(row.plan.traffic.total),
            f"{row.plan.traffic.total / base[row.machines] - 1:+.1%}",
            byte_count(row.plan.traffic.bottleneck),
            f"{row.accuracy:.2%}",
            f"{row.plan.seconds:.1f}",
        )
        for row in rows
    ]
    samples = len(rows[0].plan.samples)
    show(
        f"{corpus}: {samples:,} samples, {rows[0].plan.samples.width:,} features",
        ("partition, hashing", "total", "saved", "bottleneck", "accuracy", "seconds"),
        cells,
        notes,
    )
