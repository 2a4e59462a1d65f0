# SPDX-License-Identifier: Apache-2.0
"""Models that no method was tuned for, and their data: bytes of the sources of Python's own library."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import nn
from torch.nn import functional

from weir.train.models.gpt import SHAPES, Gpt

LENGTH: Final = 64
"""Bytes that are predicted of a sequence."""

_BYTES: Final = 256
_HELD_OUT: Final = 0.1  # of the text, its end
_TRIALS: Final = 512  # sequences that a loss is measured on


class Predictor(nn.Module):
    """A model of bytes whose ``forward`` returns its loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of predicting every next byte. text: int64, batch, positions + 1."""
        return functional.cross_entropy(self.model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())


class Lstm(nn.Module):
    """Two LSTM layers between an embedding and a linear layer."""

    def __init__(self, width: int = 64, hidden: int = 160) -> None:
        super().__init__()
        self.tokens = nn.Embedding(_BYTES, width)
        self.lstm = nn.LSTM(width, hidden, num_layers=2, batch_first=True)
        self.head = nn.Linear(hidden, _BYTES)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Return scores of each next byte: batch, position, byte. text: int64, batch, positions."""
        hidden, _ = self.lstm(self.tokens(text))
        scores: torch.Tensor = self.head(hidden)
        return scores


@dataclass(frozen=True)
class Task:
    """A model with its usual training.

    Attributes:
        make: returns the model, which returns its loss.
        rate: the learning rate of AdamW at its highest.
        clip: the norm that gradients are clipped to.
    """

    make: Callable[[], nn.Module]
    rate: float
    clip: float = 1.0


TASKS: Final[Mapping[str, Task]] = {
    "gpt": Task(lambda: Predictor(Gpt(SHAPES["small"])), 1e-3),
    "lstm": Task(lambda: Predictor(Lstm()), 2e-3),
}
"""Models by name."""


def texts() -> tuple[torch.Tensor, torch.Tensor]:
    """Return what is trained on and what is held out: uint8, the same wherever the same Python runs."""
    text = bytearray()
    for path in sorted(Path(os.__file__).parent.glob("*.py")):
        text += path.read_bytes()
    whole = torch.frombuffer(text, dtype=torch.uint8)
    held_out = int(len(whole) * _HELD_OUT)
    return whole[:-held_out], whole[-held_out:]


def sequences(text: torch.Tensor, count: int, generator: torch.Generator) -> torch.Tensor:
    """Return sequences from random places of a text: int64, count, LENGTH + 1."""
    starts = torch.randint(len(text) - LENGTH, (count, 1), generator=generator)
    return text[starts + torch.arange(LENGTH + 1)].long()


@torch.no_grad()
def held_out_loss(model: nn.Module, text: torch.Tensor) -> float:
    """Return a model's loss on a held-out text: nats a byte."""
    model.eval()
    loss = float(model(sequences(text, _TRIALS, torch.Generator().manual_seed(1))))
    model.train()
    return loss
