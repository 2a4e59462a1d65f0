# SPDX-License-Identifier: Apache-2.0
"""Model, data, loss and metric of one run, put together: what a worker trains and measures."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from weir.train.config import Data, TrainConfig
from weir.train.data import (
    Dataset,
    Split,
    digits,
    library_bytes,
    library_pairs,
    modules,
    restored_digits,
    stdlib,
)
from weir.train.models import make_model
from weir.train.models.dlrm import clicks
from weir.train.models.gnn import graphs
from weir.train.models.unet import scenes

_EVALUATION_BATCH = 64

_MOMENTUM = 0.9

_CLOSE = 0.25  # a value that is so close to its target counts as right

_DATA: Final[dict[Data, Callable[[], Dataset]]] = {
    "digits": digits,
    "stdlib": stdlib,
    "modules": modules,
    "bytes": library_bytes,
    "byte-pairs": library_pairs,
    "scenes": scenes,
    "graphs": graphs,
    "clicks": clicks,
    "restored-digits": restored_digits,
}


class DivergedError(ArithmeticError):
    """The loss is no number any more."""


@dataclass(frozen=True)
class Task:
    """A model with its data. The model is the same on every rank and in every run of one seed."""

    model: nn.Module
    data: Dataset


def make_task(config: TrainConfig) -> Task:
    """Build model and data; seeds torch first, so that equal seeds make equal parameters."""
    torch.manual_seed(config.seed)
    return Task(make_model(config.model), _DATA[config.data]())


def make_optimizer(config: TrainConfig, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Return the optimizer that the model is trained by."""
    match config.trained_by:
        case "sgd":
            return torch.optim.SGD(parameters, lr=config.lr)
        case "momentum":
            return torch.optim.SGD(parameters, lr=config.lr, momentum=_MOMENTUM)
        case "adam":
            return torch.optim.Adam(parameters, lr=config.lr)
        case "adamw":
            return torch.optim.AdamW(parameters, lr=config.lr)


def mean_loss(scores: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy over all targets, images or words; class scores are the last dimension.

    Of targets that are no classes, but values: the mean squared error.
    """
    if targets.is_floating_point():
        return functional.mse_loss(scores, targets)
    return functional.cross_entropy(scores.flatten(0, -2), targets.flatten())


def average_buffers(model: nn.Module) -> None:
    """Give every rank the mean of all ranks' floating-point buffers (the statistics of BatchNorm)."""
    buffers = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
    if not buffers:
        return
    flat = torch.cat([buffer.flatten() for buffer in buffers]) / dist.get_world_size()
    dist.all_reduce(flat)
    for buffer, part in zip(buffers, torch.split(flat, [b.numel() for b in buffers]), strict=True):
        buffer.copy_(part.view_as(buffer))


@torch.no_grad()
def _measure(model: nn.Module, inputs: Tensor, targets: Tensor) -> tuple[float, int]:
    """Return the loss of all answers, summed, and how many of them are right; leaves the model in training
    mode.
    """
    model.eval()
    loss, right = 0.0, 0
    for start in range(0, len(inputs), _EVALUATION_BATCH):
        scores = model(inputs[start : start + _EVALUATION_BATCH])
        answers = targets[start : start + _EVALUATION_BATCH]
        loss += float(mean_loss(scores, answers)) * answers.numel()
        right += int(_right(scores, answers).sum())
    model.train()
    return loss, right


def _right(scores: Tensor, answers: Tensor) -> Tensor:
    """Return which answers are right: classes that are, values that are close to their targets."""
    if answers.is_floating_point():
        return (scores - answers).abs() < _CLOSE
    return scores.argmax(-1) == answers


def measured(model: nn.Module, held_out: Split) -> tuple[float, float]:
    """Return mean loss and share of right answers on the held-out set, found in this process alone."""
    loss, right = _measure(model, held_out.inputs, held_out.targets)
    return loss / held_out.targets.numel(), right / held_out.targets.numel()


def accuracy(model: nn.Module, held_out: Split) -> float:
    """Return the share of right answers on the held-out set, found in this process alone."""
    return measured(model, held_out)[1]


def evaluate(model: nn.Module, held_out: Split, rank: int, workers: int) -> tuple[float, float]:
    """Return mean loss and share of right answers on the held-out set, of which each rank does a part.

    Raises:
        DivergedError: the loss is NaN or infinite.
    """
    targets = held_out.targets[rank::workers]
    loss, right = _measure(model, held_out.inputs[rank::workers], targets)
    if not math.isfinite(loss):
        raise DivergedError("training diverged: the loss on held-out data is no number")
    # Whole numbers are summed exactly by every backend: the loss travels in millionths.
    totals = torch.tensor([round(loss * 1e6), right, targets.numel()], dtype=torch.int64)
    dist.all_reduce(totals)
    return float(totals[0]) / 1e6 / float(totals[2]), float(totals[1]) / float(totals[2])
