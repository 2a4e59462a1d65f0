# SPDX-License-Identifier: Apache-2.0
"""One training run of several workers in one process, with loss injected at the source.

Every worker computes the gradient of its own share of the data with the same parameters, as replicas do. What
is sent, what is lost and what is kept for the next step is decided by the code that the DDP hook runs
(``weir.host_agent.compression.local_gradients``); only the network is missing: blocks are lost by a coin, and
what is left is summed in memory.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from weir.host_agent.collectives.float_sum import give_back
from weir.host_agent.compression.bucket_layout import BucketLayout
from weir.host_agent.compression.classes import LayerClasses, Magnitudes
from weir.host_agent.compression.local_gradients import LocalGradients, Outgoing
from weir.host_agent.compression.loss_policy import LossPolicy
from weir.host_agent.compression.sparsifiers import create_sparsifier
from weir.train.config import PRESETS, TrainConfig
from weir.train.data import learning_rate, share
from weir.train.task import Task, accuracy, make_task, mean_loss


@dataclass(frozen=True)
class Trial:
    """A run to make.

    train: model, data, sizes, seed, method. losses: the share of blocks that each worker loses in each
    step, by class. error_feedback: lost blocks are sent again with the next step.
    """

    train: TrainConfig
    losses: LossPolicy
    error_feedback: bool = True


@dataclass(frozen=True)
class Outcome:
    """accuracy: on held-out data, 0 to 1. lost: share of all blocks that were lost."""

    accuracy: float
    lost: float


class _Worker:
    """A rank: what it keeps between steps, and its coin."""

    def __init__(self, trial: Trial, module: torch.nn.Module, rank: int) -> None:
        train = trial.train
        self._gradients = LocalGradients(
            create_sparsifier(train.method, train.sparsifier_options),
            trial.losses,
            error_feedback=trial.error_feedback,
        )
        self._gradients.join(module, rank, train.workers)
        self._losses, self._layers = trial.losses, LayerClasses.of(module)
        self._coin = np.random.default_rng((train.seed, rank))
        self.blocks = self.lost = 0

    def prepare(self, layout: BucketLayout, bucket: torch.Tensor) -> Outgoing:
        """Return what this worker would send of its gradient."""
        return self._gradients.prepare(layout, bucket)

    @property
    def fills_union(self) -> bool:
        """Return whether what any worker has chosen is sent by all of them."""
        return self._gradients.sparsifier.fills_union

    def deliver(self, outgoing: Outgoing, union: torch.Tensor | None) -> torch.Tensor:
        """Return what of this gradient the sum includes. union: the elements that all workers send, if they
        do.
        """
        layout = outgoing.layout
        delivered = outgoing.sent.clone() if union is None else outgoing.compensated * union
        magnitudes = self._gradients.classify(layout, delivered)
        if magnitudes is not None:
            lost = self._lost(layout, magnitudes)
            give_back(delivered.numpy(), lost, layout.block)
            self.lost += lost.size
        self._gradients.settle(outgoing, outgoing.compensated - delivered, magnitudes)
        self.blocks += layout.length // layout.block
        return delivered

    def observe(self, layout: BucketLayout, total: torch.Tensor, union: torch.Tensor | None) -> None:
        """What the step's sum was."""
        self._gradients.observe(layout, total, union)
        self._gradients.end_step()

    def _lost(self, layout: BucketLayout, magnitudes: Magnitudes) -> npt.NDArray[np.intp]:
        """Return the same draws whatever the shares: what is lost with a small share is lost with a larger
        one.
        """
        shares = self._losses.shares(layout, self._layers, magnitudes.classes)
        return np.flatnonzero(self._coin.random(shares.size) < shares)


class _Training:
    """All workers on one set of parameters."""

    def __init__(self, trial: Trial, task: Task) -> None:
        self.config, self.task = trial.train, task
        self.workers = [_Worker(trial, task.model, rank) for rank in range(self.config.workers)]
        named = [(name, p) for name, p in task.model.named_parameters() if p.requires_grad]
        self.parameters = [parameter for _, parameter in named]
        self.layout = BucketLayout.of(0, [name for name, _ in named], self.parameters, self.config.block)
        self.optimizer = torch.optim.SGD(self.parameters, lr=self.config.lr)

    def run(self) -> None:
        """All epochs."""
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
                rate = learning_rate(config.lr, step, steps, warm_up=max(1, steps // 10))
                self._one_step(list(batches), rate)
                step += 1

    def _one_step(self, batches: list[torch.Tensor], rate: float) -> None:
        train, outgoing = self.task.data.train, []
        for worker, batch in zip(self.workers, batches, strict=True):
            self.optimizer.zero_grad()
            mean_loss(self.task.model(train.inputs[batch]), train.targets[batch]).backward()  # type: ignore[no-untyped-call]
            outgoing.append(worker.prepare(self.layout, self._bucket()))
        union = None
        if self.workers[0].fills_union:
            union = torch.stack([one.sent != 0 for one in outgoing]).any(dim=0)
        total = torch.zeros(self.layout.length)
        for worker, one in zip(self.workers, outgoing, strict=True):
            total += worker.deliver(one, union)
        for worker in self.workers:
            worker.observe(self.layout, total, union)
        for segment, parameter in zip(self.layout, self.parameters, strict=True):
            parameter.grad = total[segment.in_vector].view_as(parameter)
        if (limit := PRESETS[self.config.model].clip) is not None:
            torch.nn.utils.clip_grad_norm_(self.parameters, limit)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()

    def _bucket(self) -> torch.Tensor:
        grads = [p.grad if p.grad is not None else torch.zeros_like(p) for p in self.parameters]
        return torch.cat([grad.flatten() for grad in grads])


def run(trial: Trial) -> Outcome:
    """Train from the seed's parameters to the end, and measures."""
    training = _Training(trial, make_task(trial.train))
    training.run()
    blocks = sum(worker.blocks for worker in training.workers)
    return Outcome(
        accuracy=accuracy(training.task.model, training.task.data.test),
        lost=sum(worker.lost for worker in training.workers) / max(blocks, 1),
    )
