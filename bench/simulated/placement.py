# SPDX-License-Identifier: Apache-2.0
"""Savings of a partition of a sparse model, of a hash, and of both; with the accuracy.

Traffic is that of one pass over the samples (`weir.host_agent.placement.traffic`), all of them in one step
and in smaller batches: the fewer samples a step has, the less they share of what is pulled. Accuracy is that
of a logistic regression on a fifth of the samples, which was trained on the others, over the plan's
parameters; so is that of a factorisation machine.
"""

import resource
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from weir.bench.case import Run, parameter
from weir.bench.results import Column, Row, Table, share
from weir.host_agent.placement.hashing import Buckets
from weir.host_agent.placement.partitioners import PARTITIONERS
from weir.host_agent.placement.partitioners.packages import MissingPackageError
from weir.host_agent.placement.partitioners.refined import cost_of
from weir.host_agent.placement.plan import BOTH_RANDOM, Hashing, Plan, make_plan
from weir.host_agent.placement.samples import Samples, power_law, text_samples
from weir.host_agent.placement.traffic import SLACK, traffic_in_batches
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
_HELD_OUT: Final = 5  # one of this many samples is not trained on
_EPOCHS: Final = 15


@dataclass(frozen=True)
class Parameters:
    """Corpora and plans."""

    machines: tuple[int, ...] = parameter((16,), "how many machines", least=1, most=63)
    buckets: tuple[int, ...] = parameter((8, 32), "features to a parameter, where they are hashed", least=1)
    lines: int = parameter(60, "lines of text in a sample", least=1)
    samples: int = parameter(3000, "of each corpus, at most", least=100)
    batches: tuple[int, ...] = parameter((64, 16), "samples that a worker takes in a step", least=1)
    text: bool = parameter(True, "also text of packages that are installed beside Weir")
    only_time: bool = parameter(False, "place made-up samples, and say how long that takes")
    seed: int = parameter(1, "of all that is random")


@dataclass(frozen=True)
class Placed:
    """One plan. accuracy, area: of a logistic regression on held-out samples, and under its ROC curve;
    area_of_machine: that of a factorisation machine. in_batches: bytes of a pass, by samples in a step.
    """

    machines: int
    method: str
    hashing: Hashing
    share: int
    plan: Plan
    accuracy: float
    area: float
    area_of_machine: float
    in_batches: dict[int, int]


def run(parameters: Parameters, run: Run) -> Iterator[Table]:
    """Yield a table for each corpus; or how long partitions take."""
    torch.set_num_threads(1)  # steps are so small that threads would wait for each other
    if parameters.only_time:
        for machines in parameters.machines:
            yield _timed(parameters.samples, machines, parameters.seed, run)
        return
    for name, corpus in corpora(parameters).items():
        samples, held_out = split(corpus)
        yield Table(
            f"{name}: {len(samples):,} samples, {samples.width:,} features",
            (
                Column("total", byte_count, "bytes of one pass, all samples in one step"),
                Column("bottleneck", byte_count),
                *(
                    Column(_batches(size), byte_count, "of a pass in such steps, in an order drawn by lot")
                    for size in parameters.batches
                ),
                Column("accuracy", share, "of a logistic regression that tells packages apart, held out"),
                Column("AUC", lambda n: f"{n:.4f}", "area under its ROC curve"),
                Column("AUC of an FM", lambda n: f"{n:.4f}", "of a factorisation machine of 8 factors"),
                Column(
                    "seconds", lambda n: f"{n:.1f}", "a partition that a later row needs too is found once"
                ),
            ),
            tuple(_row(one) for one in plans(samples, held_out, parameters, run)),
            peers=(_words(*WAYS[0], 1),),
            notes=("1/8: of the parameters are left",),
        )


def _row(one: Placed) -> Row:
    return Row(
        _words(one.method, one.hashing, one.share),
        {
            "total": one.plan.traffic.total,
            "bottleneck": one.plan.traffic.bottleneck,
            **{_batches(size): total for size, total in one.in_batches.items()},
            "accuracy": one.accuracy,
            "AUC": one.area,
            "AUC of an FM": one.area_of_machine,
            "seconds": one.plan.seconds,
        },
        {"machines": f"{one.machines} machines"},
    )


def _batches(size: int) -> str:
    return f"{size} a step"


def _words(method: str, hashing: Hashing, share: int) -> str:
    return f"{method}, {hashing}" + (f" 1/{share}" if hashing != "none" else "")


def corpora(parameters: Parameters) -> dict[str, Samples]:
    """Return the corpora: text of installed packages, labelled by package, and a made-up one."""
    most, packages = parameters.samples, Path(sysconfig.get_paths()["purelib"])
    found = {"power law": power_law(most, 5 * most, seed=1)}
    for pair in (("numpy", "scipy"), ("sklearn", "matplotlib")) if parameters.text else ():
        folders = [packages / package for package in pair]
        if all(folder.is_dir() for folder in folders):
            found[" / ".join(pair)] = _fewer(text_samples(*folders, lines=parameters.lines), most)
    return found


def _fewer(samples: Samples, most: int) -> Samples:
    """Return at most this many of the samples, evenly chosen, with the features that they have."""
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


def plans(samples: Samples, held_out: Samples, parameters: Parameters, run: Run) -> Iterator[Placed]:
    """Yield a plan for each number of machines and way that is installed."""
    known: dict[bytes, tuple[float, float, float]] = {}  # by who shares: the rest makes no difference
    for count in parameters.machines:
        for method, hashing in WAYS:
            for part in (1,) if hashing == "none" else parameters.buckets:
                kept = samples.width // part
                try:
                    plan = make_plan(
                        samples, count, method, hashing=hashing, buckets=kept, seed=parameters.seed
                    )
                except (MissingPackageError, ValueError) as error:
                    run.say(f"left out: {error}")
                    continue
                key = b"" if plan.buckets is None else plan.buckets.of_feature.tobytes()
                if key not in known:
                    known[key] = quality(samples, held_out, plan.buckets)
                run.say(f"{count} machines: {_words(method, hashing, part)}")
                in_batches = {
                    size: traffic_in_batches(plan.samples, plan.placement, size, parameters.seed).total
                    for size in parameters.batches
                }
                yield Placed(count, method, hashing, part, plan, *known[key], in_batches)


def _timed(samples: int, machines: int, seed: int, run: Run) -> Table:
    """Return how long each way takes to place this many made-up samples of 20 features."""
    run.say(f"making {samples:,} samples")
    data = power_law(samples, max(samples // 2, 1), each=20, seed=seed)
    rows = []
    for name, partition in PARTITIONERS.items():
        run.say(f"{name}: {len(data):,} samples on {machines} machines ...")
        began, processor = time.perf_counter(), time.process_time()
        try:
            places = partition(data, machines, SLACK, seed)
        except MissingPackageError as error:
            run.say(f"left out: {error}")
            continue
        seconds = {
            "seconds": time.perf_counter() - began,
            "of processors": time.process_time() - processor,
        }
        cost = cost_of(data, places, machines, SLACK)
        rows.append(Row(name, {**seconds, "total": cost.total, "bottleneck": cost.bottleneck}))
    return Table(
        f"{samples:,} samples, {data.width:,} features, {machines} machines",
        (
            *(Column(name, lambda n: f"{n:,.1f}") for name in ("seconds", "of processors")),
            *(Column(name, byte_count) for name in ("total", "bottleneck")),
        ),
        tuple(rows),
        notes=(
            "refined begins with what metis and mtkahypar have found: their time comes on top",
            f"most memory in use: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GB",
        ),
    )
