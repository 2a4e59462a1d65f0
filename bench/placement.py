# SPDX-License-Identifier: Apache-2.0
"""``weir bench placement``: what a partition saves, what a hash saves, and what both do; at what accuracy.

Traffic is that of one iteration (`weir.host_agent.placement.traffic`). Accuracy is that of a logistic
regression on a fifth of the samples, which was trained on the others, over the plan's parameters; so is that
of a factorisation machine.
"""

import resource
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from rich.console import Console

from weir.bench.table import show
from weir.host_agent.placement.hashing import Buckets
from weir.host_agent.placement.partitioners import PARTITIONERS
from weir.host_agent.placement.partitioners.packages import MissingPackageError
from weir.host_agent.placement.partitioners.refined import cost_of
from weir.host_agent.placement.plan import BOTH_RANDOM, Hashing, Plan, make_plan
from weir.host_agent.placement.samples import Samples, power_law, text_samples
from weir.host_agent.placement.traffic import SLACK
from weir.report.words import byte_count
from weir.train.placed_machine import quality as measure_quality
from weir.train.sparse_models import LEARNING_RATES, Entries, SparseModel

WAYS: Final[tuple[tuple[str, Hashing], ...]] = (
    (BOTH_RANDOM, "none"),
    ("hash", "none"),
    ("greedy", "none"),
    ("metis", "none"),
    ("mtkahypar", "none"),
    ("refined", "none"),
    (BOTH_RANDOM, "plain"),
    (BOTH_RANDOM, "clustered"),
    ("mtkahypar", "plain"),
    ("refined", "plain"),
    ("refined", "compositional"),
    ("refined", "local"),
    ("refined", "clustered"),
)
_HELD_OUT: Final = 5  # every so many samples is not trained on
_EPOCHS: Final = 15


@dataclass(frozen=True)
class Row:
    """One plan for one corpus. share: features to a parameter. accuracy, area: of a logistic regression on
    held-out samples, and under its ROC curve; area_of_machine: that of a factorisation machine.
    """

    corpus: str
    machines: int
    method: str
    hashing: Hashing
    share: int
    plan: Plan
    accuracy: float
    area: float
    area_of_machine: float


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


def split(samples: Samples) -> tuple[Samples, Samples]:
    """Return the samples that are trained on and placed, and those that are held out."""
    held_out = np.arange(len(samples)) % _HELD_OUT == 0
    return samples.only(np.flatnonzero(~held_out)), samples.only(np.flatnonzero(held_out))


def quality(trained: Samples, held_out: Samples, buckets: Buckets | None) -> tuple[float, float, float]:
    """Return accuracy and area under the ROC curve of a logistic regression over a plan's parameters, and the
    latter of a factorisation machine, on samples held out.
    """
    from scipy.sparse import csr_matrix  # type: ignore[import-untyped]
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score

    def matrix(samples: Samples) -> Any:
        starts, columns, width = samples.starts, samples.features, samples.width
        values = np.ones(columns.size)
        if buckets is not None:
            hashes = len(buckets.of_feature)
            starts, width = starts * hashes, buckets.count
            values = buckets.signs[:, columns].T.reshape(-1).astype(float)
            columns = buckets.of_feature[:, columns].T.reshape(-1)
        return csr_matrix((values, columns, starts), shape=(len(samples), width))

    model = LogisticRegression(solver="liblinear", random_state=0).fit(matrix(trained), trained.labels)
    inputs = matrix(held_out)
    area = roc_auc_score(held_out.labels, model.decision_function(inputs))
    machine = _factorisation_machine(Entries(trained, buckets), len(trained), inputs.shape[1])
    _, area_of_machine = measure_quality(machine, Entries(held_out, buckets))
    return float(model.score(inputs, held_out.labels)), float(area), area_of_machine


def _factorisation_machine(entries: Entries, count: int, rows: int) -> SparseModel:
    """Return one that was trained on all entries."""
    torch.manual_seed(1)
    model = SparseModel("fm", rows)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=LEARNING_RATES["fm"])
    for _ in range(_EPOCHS):
        for batch in np.array_split(np.random.default_rng(1).permutation(count), 4):
            optimizer.zero_grad()
            scores = model(*entries.batch(batch))
            loss = torch.nn.functional.binary_cross_entropy_with_logits(scores, entries.labels[batch])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return model


def run(
    machines: tuple[int, ...], shares: tuple[int, ...], lines: int, most: int, seed: int
) -> Iterator[Row]:
    """Yield a row for each corpus, number of machines and way that is installed.

    shares: features to a parameter, where they are hashed: a row for each.
    """
    for name, corpus in corpora(lines, most).items():
        samples, held_out = split(corpus)
        known: dict[bytes, tuple[float, float, float]] = {}  # by who shares: the rest makes no difference
        for count in machines:
            for method, hashing in WAYS:
                for share in (1,) if hashing == "none" else shares:
                    kept = samples.width // share
                    try:
                        plan = make_plan(samples, count, method, hashing=hashing, buckets=kept, seed=seed)
                    except (MissingPackageError, ValueError) as error:
                        Console(stderr=True).print(f"left out: {error}", highlight=False)
                        continue
                    key = b"" if plan.buckets is None else plan.buckets.of_feature.tobytes()
                    if key not in known:
                        known[key] = quality(samples, held_out, plan.buckets)
                    yield Row(name, count, method, hashing, share, plan, *known[key])


def measure(machines: tuple[int, ...], shares: tuple[int, ...], lines: int, most: int, seed: int) -> None:
    """Print a table for each corpus."""
    torch.set_num_threads(1)  # steps are so small that threads would wait for each other
    notes = [
        f"1/8: of the parameters are left. Bytes of one iteration; saved: of {BOTH_RANDOM}, none.",
        "Accuracy and area under the ROC curve (AUC): of a logistic regression that tells from which of two "
        "packages a held-out sample is; AUC of an FM: of a factorisation machine of 8 factors.",
        "Seconds: a partition that a later row needs too is found once.",
    ]
    for corpus, found in groupby(_told(run(machines, shares, lines, most, seed)), lambda row: row.corpus):
        _show(corpus, list(found), notes)


def _told(rows: Iterator[Row]) -> Iterator[Row]:
    """Yield rows, and say on standard error what was done."""
    console = Console(stderr=True)
    for row in rows:
        console.print(f"{row.corpus}, {row.machines} machines: {_way(row)}", highlight=False)
        yield row


def _way(row: Row) -> str:
    return f"{row.method}, {row.hashing}" + (f" 1/{row.share}" if row.hashing != "none" else "")


def _show(corpus: str, rows: list[Row], notes: list[str]) -> None:
    base = {row.machines: row.plan.traffic.total for row in rows if (row.method, row.hashing) == WAYS[0]}
    cells = [
        (
            f"{row.machines} machines: {_way(row)}",
            byte_count(row.plan.traffic.total),
            f"{row.plan.traffic.total / base[row.machines] - 1:+.1%}",
            byte_count(row.plan.traffic.bottleneck),
            f"{row.accuracy:.1%}",
            f"{row.area:.4f}",
            f"{row.area_of_machine:.4f}",
            f"{row.plan.seconds:.1f}",
        )
        for row in rows
    ]
    samples = len(rows[0].plan.samples)
    show(
        f"{corpus}: {samples:,} samples, {rows[0].plan.samples.width:,} features",
        ("partition, hashing", "total", "saved", "bottleneck", "accuracy", "AUC", "AUC of an FM", "seconds"),
        cells,
        notes,
    )


def time_partitions(samples: int, machines: int, seed: int) -> None:
    """Print how long each way takes to place so many made-up samples of 20 features."""
    console = Console(stderr=True, highlight=False)
    console.print(f"making {samples:,} samples")
    data = power_law(samples, max(samples // 2, 1), each=20, seed=seed)
    rows = []
    for name, partition in PARTITIONERS.items():
        console.print(f"{name}: {len(data):,} samples on {machines} machines ...")
        began, processor = time.perf_counter(), time.process_time()
        try:
            places = partition(data, machines, SLACK, seed)
        except MissingPackageError as error:
            console.print(f"left out: {error}")
            continue
        seconds, processor = time.perf_counter() - began, time.process_time() - processor
        cost = cost_of(data, places, machines, SLACK)
        total, bottleneck = byte_count(cost.total), byte_count(cost.bottleneck)
        rows.append((name, f"{seconds:,.1f}", f"{processor:,.1f}", total, bottleneck))
        console.print(f"{name}: {seconds:,.1f} s; {total} an iteration")
    show(
        f"{samples:,} samples, {data.width:,} features, {machines} machines",
        ("partition", "seconds", "of processors", "total", "bottleneck"),
        rows,
        [
            "refined begins with what metis and mtkahypar have found: their time comes on top.",
            f"Most memory in use: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GB.",
        ],
    )
