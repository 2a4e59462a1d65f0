# SPDX-License-Identifier: Apache-2.0
"""A worker or server of a training by plan: ``python -m weir.train.placed_machine SPEC`` with RANK."""

import faulthandler
import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch._dynamo  # torch.optim imports it, which takes seconds: once for all machines
from torch.nn.functional import binary_cross_entropy_with_logits

import weir.torch
from softp4.native.files import write_atomically
from weir.host_agent.placement.samples import Integers
from weir.host_agent.torch.parameter_server.flow_server import FlowServer
from weir.host_agent.torch.parameter_server.job_group import open_store
from weir.host_agent.torch.parameter_server.serve import make_server
from weir.partition.planfile import PlanFile
from weir.train.sparse_models import TABLE, Entries, SparseModel, SparseModelName


@dataclass(frozen=True)
class PlacedSpec:
    """A training by plan, as its processes need to know it.

    folder: where the processes meet, and leave their results. batches: steps through a worker's samples.
    """

    plan: str
    folder: str
    model: SparseModelName
    epochs: int
    batches: int
    lr: float
    seed: int

    def to_json(self) -> str:
        """Return it as text."""
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class Result:
    """A worker's results. seconds: of all epochs. losses: mean of each epoch, of its own samples. sent: bytes
    to each rank. accuracy, auc: on held-out samples, or on those that are trained on where none are.
    """

    seconds: float
    losses: list[float]
    sent: dict[int, int]
    accuracy: float
    auc: float


def batches_of(placement_of_sample: Integers, rank: int, batches: int) -> list[Integers]:
    """Return a worker's samples in batches, the same in every epoch."""
    return np.array_split(np.flatnonzero(placement_of_sample == rank), batches)


def work(spec: PlacedSpec, rank: int) -> Result:
    """Train as one worker."""
    plan = PlanFile.load(Path(spec.plan))
    trained, held_out = plan.samples()
    if trained.labels is None or int(trained.labels.max()) != 1:
        raise ValueError("the samples need labels of two kinds: give two folders, or a file with labels")
    entries = Entries(trained, plan.buckets)
    torch.manual_seed(spec.seed)
    model = SparseModel(spec.model, plan.placement.of_parameter.size)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=spec.lr)
    mine = batches_of(plan.placement.of_sample, rank, spec.batches)
    machines = plan.placement.machines
    share = machines * np.array([len(batch) for batch in mine]) * spec.batches / len(trained)
    losses = []
    with weir.torch.ParameterServer(
        model,
        optimizer,
        servers=machines,
        owner=owners(model, plan.placement.of_parameter, machines),
        rank=rank,
        workers=machines,
        rendezvous=f"file://{spec.folder}/store",
    ) as servers:
        began = time.monotonic()
        for _ in range(spec.epochs):
            total = 0.0
            for number, batch in enumerate(mine):
                servers.pull(1 + number, {TABLE: entries.rows(batch)})
                optimizer.zero_grad()
                loss = binary_cross_entropy_with_logits(model(*entries.batch(batch)), entries.labels[batch])
                (loss * float(share[number])).backward()  # type: ignore[no-untyped-call]
                servers.step()
                total += float(loss.detach()) * len(batch)
            losses.append(total / max(sum(map(len, mine)), 1))
        servers.finish()
        seconds = time.monotonic() - began
        measured = Entries(held_out, plan.buckets) if len(held_out) else entries
        accuracy, auc = quality(model, measured)
        sent = servers.session.sent_bytes()
    return Result(seconds, losses, sent, accuracy, auc)


def owners(model: SparseModel, of_parameter: Integers, machines: int) -> Integers:
    """Return the machine of every unit: of the table's rows, as they are placed; of others, in turn."""
    found, turn = [], 0
    for name, parameter in model.named_parameters():
        if name == TABLE:
            found.append(of_parameter)
            continue
        count = -(-parameter.numel() // 256)
        found.append((turn + np.arange(count)) % machines)
        turn += count
    return np.concatenate(found)


@torch.no_grad()
def quality(model: SparseModel, entries: Entries) -> tuple[float, float]:
    """Return accuracy, and the area under the ROC curve: how often a sample of label 1 is above one of 0."""
    everything = np.arange(len(entries.labels))
    logits, labels = model(*entries.batch(everything)), entries.labels > 0
    accuracy = float(((logits > 0) == labels).float().mean())
    order = logits.argsort()
    ranks = torch.empty(len(logits), dtype=torch.float64)
    ranks[order] = torch.arange(1, len(logits) + 1, dtype=torch.float64)
    ones, zeros = int(labels.sum()), int((~labels).sum())
    auc = float(ranks[labels].sum() - ones * (ones + 1) / 2) / max(ones * zeros, 1)
    return accuracy, auc


def serve(spec: PlacedSpec, index: int) -> dict[int, int]:
    """Be a server; return the bytes that it sent to each rank."""
    server = make_server(open_store(f"file://{spec.folder}/store", leads=False), index)
    assert isinstance(server, FlowServer)
    server.run()
    return server.sent_bytes()


def main() -> None:
    """Be what RANK says; leave the result in the folder, or the error in the log."""
    faulthandler.enable()
    torch.set_num_threads(1)
    spec = PlacedSpec(**json.loads(sys.argv[1]))
    rank, machines = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if rank >= machines:
        result: dict[str, Any] = {"sent": serve(spec, rank - machines)}
    else:
        result = asdict(work(spec, rank))
    write_atomically(Path(spec.folder) / f"result-{rank}.json", json.dumps(result))


if __name__ == "__main__":
    main()
