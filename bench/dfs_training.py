# SPDX-License-Identifier: Apache-2.0
"""``weir bench dfs``'s trainings: the accuracy that contenders' bytes buy, all workers in one process."""

from dataclasses import dataclass
from itertools import islice

import torch

from weir.bench.dfs_cases import REPLAYED, dense_bytes, replay_of
from weir.bench.replay import Gradients, train
from weir.train.config import Model, make_config
from weir.train.task import accuracy, make_task


@dataclass(frozen=True)
class Training:
    """One training before it begins. contender: of REPLAYED, or DENSE."""

    model: Model
    contender: str
    density: float
    workers: int
    steps: int
    seed: int
    momentum: float


@dataclass(frozen=True)
class Trained:
    """One training's end: accuracy on held-out data, and bytes of all workers, both ways, in a step."""

    training: Training
    accuracy: float
    bytes: float


def run(training: Training) -> Trained:
    """Train and return what came of it."""
    torch.set_num_threads(1)
    how, workers = REPLAYED.get(training.contender), training.workers
    task = make_task(make_config(model=training.model, workers=workers, seed=training.seed))
    replay = None if how is None else replay_of(how, task.model, workers, training.density)
    sent = 0.0

    def average(gradients: Gradients) -> torch.Tensor:
        nonlocal sent
        if replay is None:
            sent += dense_bytes(gradients.shape[1], workers)
            return torch.from_numpy(gradients.mean(axis=0))
        step = replay.step(gradients)
        sent += step.counted.total
        return torch.cat(step.total)

    steps = train(
        training.model, workers, training.seed, task=task, average=average, momentum=training.momentum
    )
    for _ in islice(steps, training.steps + 1):  # a step is applied when the next one is asked for
        pass
    return Trained(training, accuracy(task.model, task.data.test), sent / training.steps)
