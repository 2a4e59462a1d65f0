# SPDX-License-Identifier: Apache-2.0
"""``weir bench dfs``'s trainings: the accuracy that contenders' bytes buy, all workers in one process."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

import torch

from weir.bench.dfs_cases import (
    DENSE,
    REPLAYED,
    bytes_of,
    dense_bytes,
    momentum,
    replay_of,
)
from weir.bench.replay import Gradients, train
from weir.host_agent.collectives import NonFiniteError
from weir.train.config import Model, make_config
from weir.train.task import accuracy, make_task


@dataclass(frozen=True)
class Trained:
    """One training's end. accuracy: on held-out data, 0 where it diverged. bytes: of all workers in a step,
    both ways, by contender: those that send the same elements train alike.
    """

    accuracy: float
    bytes: Mapping[str, float]


def run(model: Model, contender: str, density: float, workers: int, steps: int, seed: int) -> Trained:
    """Train; the learning rate goes down to nothing, else the end would be a matter of chance.

    contender: of REPLAYED, or DENSE.
    """
    torch.set_num_threads(1)
    how = REPLAYED.get(contender)
    task = make_task(make_config(model=model, workers=workers, seed=seed))
    replay = None if how is None else replay_of(how, task.model, workers, density)
    sent: dict[str, float] = defaultdict(float)
    done = 0

    def average(gradients: Gradients) -> torch.Tensor:
        nonlocal done
        done += 1
        if replay is None:
            sent[DENSE] += dense_bytes(gradients.shape[1], workers)
            return torch.from_numpy(gradients.mean(axis=0))
        step = replay.step(gradients)
        for name, count in bytes_of(contender, step).items():
            sent[name] += count
        return torch.cat(step.total)

    trained = train(model, workers, seed, task=task, average=average, momentum=momentum(model), decay=steps)
    try:
        for _ in islice(trained, steps + 1):  # a step is applied when the next one is asked for
            pass
        reached = accuracy(task.model, task.data.test)
    except NonFiniteError:
        reached = 0.0
    return Trained(reached, {name: total / done for name, total in sent.items()})
