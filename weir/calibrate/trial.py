# SPDX-License-Identifier: Apache-2.0
"""One training run of several workers in one process, with loss injected at the source.

Every worker computes the gradient of its own share of the data with the same parameters, as replicas do, and
takes the step that the DDP hook takes (``weir.host_agent.compression.exchange``). Only the network is
missing: lanes are summed in memory, and of each worker's blocks some are lost by a coin.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from weir.host_agent.collectives.communicator import Communicator
from weir.host_agent.collectives.in_memory import InMemoryGroup
from weir.host_agent.compression.bucket_layout import BucketLayout
from weir.host_agent.compression.classes import LayerClasses
from weir.host_agent.compression.encodings import SCALE_BLOCK
from weir.host_agent.compression.exchange import GradientExchange
from weir.host_agent.compression.loss_policy import LossPolicy
from weir.host_agent.compression.sparsifiers import create_sparsifier
from weir.host_agent.transport.service_class import ServiceClass
from weir.train.config import TrainConfig
from weir.train.data import learning_rate, share
from weir.train.task import Task, accuracy, make_task, mean_loss

_SLOTS = 256  # of the switch that is not there: as many as ``weir train`` gets


@dataclass(frozen=True)
class Trial:
    """A run to make.

    train: model, data, sizes, seed, method. losses: the share of blocks that each worker loses in each
    step, by class. error_feedback: lost blocks are sent again with the next step. momentum: of SGD.
    """

    train: TrainConfig
    losses: LossPolicy
    error_feedback: bool = True
    momentum: float = 0.0


@dataclass(frozen=True)
class TrialOutcome:
    """The end of a run. accuracy: on held-out data, 0 to 1. lost: share of all blocks that were lost."""

    accuracy: float
    lost: float


class _Worker:
    """A rank: its step, and its coin."""

    def __init__(self, trial: Trial, module: torch.nn.Module, communicator: Communicator) -> None:
        train = trial.train
        sparsifier = create_sparsifier(train.method, train.sparsifier_options)
        # What is lost, and what is classed, is a block of the packets.
        own = sparsifier.encoding if sparsifier.mask_block is not None or sparsifier.fills_union else None
        self.exchange = GradientExchange(
            sparsifier,
            trial.losses,
            encoding=own or f"blocks:{train.block}",
            error_feedback=trial.error_feedback,
        )
        self.exchange.join(module, communicator, _SLOTS)
        self._seed = train.seed, communicator.rank
        self.blocks = self.lost = 0

    def step(self, layout: BucketLayout, bucket: torch.Tensor) -> None:
        """Overwrite the gradients by their average over all workers of what was not lost."""
        self.exchange.exchange_bucket(layout, bucket)

    def lose(self, shares: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
        """Return which blocks are lost, each with its own chance.

        Draws are the same in a step whatever the shares: what is lost with a small share is lost with a
        larger one.
        """
        coin = np.random.default_rng((*self._seed, self.exchange.step))
        lost: npt.NDArray[np.bool_] = coin.random(shares.size) < shares
        self.blocks += lost.size
        self.lost += int(np.count_nonzero(lost))
        return lost


class _Training:
    """All workers on one set of parameters."""

    def __init__(self, trial: Trial, task: Task) -> None:
        self.config, self.task = trial.train, task
        named = [(name, p) for name, p in task.model.named_parameters() if p.requires_grad]
        self.parameters = [parameter for _, parameter in named]
        self.layout = BucketLayout.of(0, [name for name, _ in named], self.parameters, SCALE_BLOCK)
        self._shares = trial.losses.shares(self.layout, LayerClasses.of(task.model))
        self._group = InMemoryGroup(self.config.workers, self._lost)
        self.workers = [
            _Worker(trial, task.model, communicator) for communicator in self._group.communicators
        ]
        self.optimizer = torch.optim.SGD(self.parameters, lr=self.config.lr, momentum=trial.momentum)

    def _lost(self, rank: int, service: ServiceClass, blocks: int) -> npt.NDArray[np.bool_]:
        """Toss a worker's coin for each of its blocks."""
        assert service.accounts is not None, "every block has the account of its parameter and class"
        return self.workers[rank].lose(self._shares[service.accounts])

    def run(self) -> None:
        """Train all epochs."""
        config, samples = self.config, len(self.task.data.train)
        step = 0
        for epoch in range(1, config.epochs + 1):
            ranks = [
                share(samples, rank, config.workers, config.batch_size, config.seed, epoch)[
                    : config.max_steps
                ]
                for rank in range(config.workers)
            ]
            steps = config.epochs * len(ranks[0])
            for batches in zip(*ranks, strict=True):
                rate = learning_rate(config.lr, step, steps)
                self._one_step(list(batches), rate)
                step += 1

    def _one_step(self, batches: list[torch.Tensor], rate: float) -> None:
        train, buckets = self.task.data.train, []
        for batch in batches:
            self.optimizer.zero_grad()
            mean_loss(self.task.model(train.inputs[batch]), train.targets[batch]).backward()  # type: ignore[no-untyped-call]
            buckets.append(self._bucket())
        with torch.no_grad():
            self._group.run(
                [
                    partial(worker.step, self.layout, bucket)
                    for worker, bucket in zip(self.workers, buckets, strict=True)
                ]
            )
        for segment, parameter in zip(self.layout, self.parameters, strict=True):
            parameter.grad = buckets[0][segment.in_bucket].view_as(parameter)
        if (limit := self.config.max_norm) is not None:
            torch.nn.utils.clip_grad_norm_(self.parameters, limit)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()

    def _bucket(self) -> torch.Tensor:
        grads = [p.grad if p.grad is not None else torch.zeros_like(p) for p in self.parameters]
        return torch.cat([grad.flatten() for grad in grads])


def run(trial: Trial) -> TrialOutcome:
    """Train from the seed's parameters to the end, and measure."""
    training = _Training(trial, make_task(trial.train))
    training.run()
    blocks = sum(worker.blocks for worker in training.workers)
    return TrialOutcome(
        accuracy=accuracy(training.task.model, training.task.data.test),
        lost=sum(worker.lost for worker in training.workers) / max(blocks, 1),
    )
