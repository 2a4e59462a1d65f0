# SPDX-License-Identifier: Apache-2.0
"""``weir train --placement FILE``: a sparse model is trained where a plan has put samples and parameters.

Every machine of the plan has a worker and a server: on this machine as processes, or in a network namespace
each, behind a link to Weir's switch, whose ports count what was predicted.
"""

import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from softp4.native.scratch import scratch_folder
from weir.host_agent.collectives.tensor_memory import array_of
from weir.host_agent.parameter_server.flow_ends import frames
from weir.host_agent.parameter_server.messages import HEAD_WORDS
from weir.host_agent.parameter_server.payload import plan as plan_payload
from weir.host_agent.parameter_server.routing import Integers, ParameterInfo, Units
from weir.host_agent.torch.parameter_server.shard_optimizer import spec_of
from weir.partition.planfile import PlanFile
from weir.process.child import end, how_it_ended, log_tail
from weir.process.template import Forked, shared_template
from weir.report.words import byte_count
from weir.train.placed_machine import PlacedSpec, Result, batches_of, owners
from weir.train.running import WorkerError
from weir.train.sparse_models import LEARNING_RATES, TABLE, Entries, SparseModel, SparseModelName
from weir.train.workers import worker_environment

if TYPE_CHECKING:
    from weir.netns.lab import Lab

Bytes = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Links:
    """Bytes on each machine's link, headers included. up: sent by the machine; down: received."""

    up: Bytes
    down: Bytes

    @property
    def total(self) -> int:
        """Return what all machines sent."""
        return int(self.up.sum())

    def as_json(self) -> dict[str, list[int]]:
        """Return the bytes of each machine, in lists."""
        return {"up": self.up.tolist(), "down": self.down.tolist()}


@dataclass(frozen=True)
class Trained:
    """A training's outcome. predicted, measured: of all of it. results: of the workers."""

    predicted: Links
    measured: Links
    results: tuple[Result, ...]

    @property
    def seconds(self) -> float:
        """Return how long the epochs took the slowest worker."""
        return max(result.seconds for result in self.results)

    @property
    def losses(self) -> list[float]:
        """Mean loss of the workers' own samples, by epoch."""
        return [fmean(epoch) for epoch in zip(*(result.losses for result in self.results), strict=True)]

    def as_json(self) -> dict[str, Any]:
        """Return all figures; bytes are those on the machines' links."""
        first = self.results[0]
        return {
            "predicted": self.predicted.as_json(),
            "measured": self.measured.as_json(),
            "training_s": self.seconds,
            "losses": self.losses,
            "accuracy": first.accuracy,
            "auc": first.auc,
        }


class _Count:
    """Bytes by link, message by message."""

    def __init__(self, machines: int) -> None:
        self.up, self.down = np.zeros(machines, np.int64), np.zeros(machines, np.int64)

    def message(self, sender: int, receiver: int, words: int) -> None:
        """Count a message and what answers it, unless it stays on its machine."""
        if sender != receiver:
            there, back = frames(words)
            self.up[sender] += there
            self.down[receiver] += there
            self.up[receiver] += back
            self.down[sender] += back


def predict(plan: PlanFile, model: SparseModelName, batches: int, epochs: int) -> Links:
    """Return what training will put on each machine's link, from the plan alone.

    Before the first step the whole model goes to the servers, and to all workers. At every step a worker
    pushes the gradients of the rows that its batch used, and gets the values of those that the next one uses,
    as far as they have changed since it has seen them; a batch's rows are named once. After the last step it
    gets all that has changed, and asks twice more.
    """
    entries = Entries(plan.samples()[0], plan.buckets)
    machines, steps = plan.placement.machines, epochs * batches
    made = SparseModel(model, plan.placement.of_parameter.size)
    parameters = dict(made.named_parameters())
    units = Units.of(
        [
            ParameterInfo(name, tuple(one.shape), row=made.table.embedding_dim if name == TABLE else 0)
            for name, one in parameters.items()
        ]
    )
    owner = owners(made, plan.placement.of_parameter, machines)
    table = list(parameters).index(TABLE)
    others, first = np.flatnonzero(units.of_parameter != table), int(units.firsts[table])
    begun = np.concatenate([array_of(one.detach()).reshape(-1) for one in parameters.values()]) != 0
    groups = spec_of(torch.optim.Adagrad(made.parameters())).groups
    settings = -(-len(json.dumps(groups)) // 4)
    count = _Count(machines)
    used = [
        [
            np.sort(np.concatenate([others, first + entries.rows(batch)]))
            for batch in batches_of(plan.placement.of_sample, worker, batches)
        ]
        for worker in range(machines)
    ]
    pushed = np.full(len(units), -1)  # the step in which each was pushed last
    seen = np.full((machines, len(units)), -1)

    def payload(chosen: npt.NDArray[np.bool_], of: Integers) -> int:
        """Return the words of a payload of some units, of which the chosen ones are sent."""
        return plan_payload(np.repeat(chosen, units.sizes[of])).words if of.size else 0

    for server in range(machines):
        own = np.flatnonzero(owner == server)
        listed, model_words = units.encode(own).size, plan_payload(begun[units.elements(own)]).words
        count.message(0, server, HEAD_WORDS + listed + payload(own >= 0, own))
        for worker in range(machines):
            for sender, receiver in ((worker, server), (server, worker), (worker, server)):
                count.message(sender, receiver, HEAD_WORDS)  # it comes, where the clocks are, and it goes
            count.message(server, worker, HEAD_WORDS + listed + model_words)
    for step in range(steps + 1):
        last = step == steps
        if step:
            for rows in used:
                pushed[rows[(step - 1) % batches]] = step
        for worker in range(machines):
            wanted = np.arange(len(units)) if last else used[worker][step % batches]
            due = used[worker][(step - 1) % batches] if step else wanted[:0]
            changed = pushed[wanted] > seen[worker, wanted]
            seen[worker, wanted] = step
            for server in range(machines):
                mine, mine_due = wanted[owner[wanted] == server], due[owner[due] == server]
                named = units.encode(mine).size
                up = HEAD_WORDS + payload(mine_due >= 0, mine_due)
                up += named if step < min(batches, steps) else 0
                up += 0 if step else settings + units.encode(due).size
                count.message(worker, server, up)
                down = payload(changed[owner[wanted] == server], mine) + (named if last else 0)
                count.message(server, worker, HEAD_WORDS + down)
                for _ in range(2 if last else 0):
                    count.message(worker, server, HEAD_WORDS)
                    count.message(server, worker, HEAD_WORDS + named + payload(mine < 0, mine))
    return Links(count.up, count.down)


def train_placed(
    file: Path,
    model: SparseModelName,
    *,
    epochs: int = 3,
    batch_size: int | None = None,
    lr: float | None = None,
    seed: int = 1,
    namespaces: bool = False,
    links: str | None = None,
) -> Trained:
    """Train a sparse model by the plan in a file.

    Args:
        file: of ``weir partition --plan``.
        model: which one.
        epochs, lr, seed: of the training, with Adagrad; None: the model's own learning rate.
        batch_size: samples per worker and step, about; None: all of them.
        namespaces: every machine is a namespace behind a link; otherwise all are processes here.
        links: the rate of these links, such as "100mbit".

    Raises:
        PlacementError: the file is no plan.
        WorkerError: a process failed; says which, and how.
        NamespaceError: there are none available.
    """
    plan = PlanFile.load(file)
    machines = plan.placement.machines
    batches = max(1, round(plan.placement.of_sample.size / machines / batch_size)) if batch_size else 1
    predicted = predict(plan, model, batches, epochs)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(scratch_folder("weir-placed"))
        lab: Lab | None = None
        if namespaces:
            from weir.netns.cluster import network_cluster

            lab = stack.enter_context(network_cluster(machines, rate=links)).lab
        spec = PlacedSpec(
            str(file.resolve()), str(folder), model, epochs, batches, lr or LEARNING_RATES[model], seed
        )
        before = None if lab is None else _counters(lab, machines)
        results = _run(spec, folder, machines, lab)
        measured = _sent(results, machines)
        if lab is not None and before is not None:
            after = _counters(lab, machines)
            measured = Links(after.up - before.up, after.down - before.down)
    workers = tuple(Result(**result) for result in results[:machines])
    return Trained(predicted, measured, workers)


def _run(spec: PlacedSpec, folder: Path, machines: int, lab: "Lab | None") -> list[dict[str, Any]]:
    """Run all processes to their end, and return what they left."""
    common = worker_environment() | (lab.environment() if lab is not None else {})
    processes: list[Forked] = []
    logs = [folder / f"log-{rank}" for rank in range(2 * machines)]
    template = shared_template("weir.train.placed_machine", worker_environment(), logs[0])
    try:
        for rank, log in enumerate(logs):
            environment = {**common, "RANK": str(rank), "WORLD_SIZE": str(machines)}
            prefix = () if lab is None else lab.at_worker(rank % machines)
            processes.append(template.fork([spec.to_json()], log=log, environment=environment, prefix=prefix))
        while any(process.poll() is None for process in processes):
            for rank, process in enumerate(processes):
                if status := process.poll():
                    what = f"worker {rank}" if rank < machines else f"server {rank - machines}"
                    why = f"{how_it_ended(status)}\n{log_tail(logs[rank])}"
                    raise WorkerError(f"{what} failed: {why}")
            time.sleep(0.05)
    finally:
        end(processes)
    return [json.loads((folder / f"result-{rank}.json").read_text()) for rank in range(2 * machines)]


def _sent(results: Sequence[dict[str, Any]], machines: int) -> Links:
    """Return what all processes sent to other machines, as their sockets count it."""
    up, down = np.zeros(machines, np.int64), np.zeros(machines, np.int64)
    for rank, result in enumerate(results):
        for other, count in result["sent"].items():
            if int(other) % machines != rank % machines:
                up[rank % machines] += count
                down[int(other) % machines] += count
    return Links(up, down)


def _counters(lab: "Lab", machines: int) -> Links:
    """Return what the switch's ports have taken in from each machine, and sent to it."""
    lines = lab.switch.call(partial(Path("/proc/thread-self/net/dev").read_text)).splitlines()
    counted = {name.strip(): rest.split() for name, _, rest in (line.partition(":") for line in lines)}
    rows = [counted[lab.interfaces[lab.hosts.index(lab.plan.workers[rank])]] for rank in range(machines)]
    return Links(np.array([int(row[0]) for row in rows]), np.array([int(row[8]) for row in rows]))


def report(trained: Trained) -> RenderableType:
    """Return a table of the links, predicted and measured, and what the training came to."""
    table = Table("machine", "sends, predicted", "measured", "", "receives, predicted", "measured", "")
    for column in table.columns[1:]:
        column.justify = "right"
    for machine, cells in enumerate(_rows(trained)):
        table.add_row(str(machine), *cells)
    first, losses = trained.results[0], trained.losses
    foot = Text(
        f"{len(losses)} epochs in {trained.seconds:.1f} s; loss {losses[0]:.3f} -> {losses[-1]:.3f}; "
        f"accuracy {first.accuracy:.2%}, AUC {first.auc:.4f}; "
        f"{byte_count(trained.measured.total)} on the links"
    )
    return Group(table, foot)


def _rows(trained: Trained) -> Iterator[list[str]]:
    pairs = [(trained.predicted.up, trained.measured.up), (trained.predicted.down, trained.measured.down)]
    for machine in range(trained.predicted.up.size):
        cells = []
        for predicted, measured in pairs:
            said, found = int(predicted[machine]), int(measured[machine])
            off = f"{found / said - 1:+.1%}" if said else ""
            cells += [byte_count(said), byte_count(found), off]
        yield cells


def show(file: Path, trained: Trained, console: Console) -> None:
    """Print the report."""
    console.print(f"trained by {file}", highlight=False)
    console.print(report(trained))
