# SPDX-License-Identifier: Apache-2.0
"""The metric of dense synchronous training by steps: found in one process, without a network.

Several workers' gradients are averaged in memory. Anyone who sums them over a network, densely and without
loss, takes the same steps but for rounding; how long these take is another question.
"""

from collections.abc import Iterator

import torch

from weir.train.config import PRESETS, TrainConfig
from weir.train.data import learning_rate, share
from weir.train.task import make_optimizer, make_task, mean_loss, measured


def dense_curve(config: TrainConfig) -> Iterator[tuple[int, float]]:
    """Return (steps taken, the model's metric on held-out data), after each epoch and every
    ``config.evaluate_every`` steps.

    Like DDP's replicas, every worker has statistics of BatchNorm of its own, and all get the mean at each
    evaluation.
    """
    task = make_task(config)
    model, train = task.model, task.data.train
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = make_optimizer(config, parameters)
    statistics = [_statistics(model) for _ in range(config.workers)]
    done = 0
    for epoch in range(1, config.epochs + 1):
        ranks = [
            share(len(train), rank, config.workers, config.batch_size, config.seed, epoch)[: config.max_steps]
            for rank in range(config.workers)
        ]
        steps = config.epochs * len(ranks[0])
        for number, batches in enumerate(zip(*ranks, strict=True), 1):
            optimizer.zero_grad()
            for rank, batch in enumerate(batches):
                model.load_state_dict(statistics[rank], strict=False)
                loss = mean_loss(model(train.inputs[batch]), train.targets[batch])
                (loss / config.workers).backward()  # type: ignore[no-untyped-call]
                statistics[rank] = _statistics(model)
            if (limit := config.max_norm) is not None:
                torch.nn.utils.clip_grad_norm_(parameters, limit)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(config.lr, done, steps)
            optimizer.step()
            done += 1
            every = config.evaluate_every
            if number == len(ranks[0]) or (every is not None and done % every == 0):
                statistics = [_mean(statistics)] * config.workers
                model.load_state_dict(statistics[0], strict=False)
                held_out = measured(model, task.data.test)
                yield done, held_out[0 if PRESETS[config.model].metric == "loss" else 1]


def _statistics(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: buffer.clone() for name, buffer in model.named_buffers() if buffer.is_floating_point()}


def _mean(all_ranks: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {name: torch.stack([own[name] for own in all_ranks]).mean(dim=0) for name in all_ranks[0]}
