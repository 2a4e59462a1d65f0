# SPDX-License-Identifier: Apache-2.0
"""Models for tests: one of which only the parameters matter, and a small one to train."""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional


class Parts(torch.nn.Module):
    """Parameters of some sizes, all zero: ``parts.0``, ``parts.1``, …"""

    def __init__(self, sizes: Iterable[int | tuple[int, ...]]) -> None:
        super().__init__()
        self.parts = torch.nn.ParameterList(torch.zeros(size) for size in sizes)


class Model(nn.Module):
    """A tied weight, one that is frozen, one that is never used, and statistics of batch normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 24)
        self.middle = nn.Linear(24, 24)
        self.norm = nn.BatchNorm1d(24)
        self.frozen = nn.Linear(24, 24)
        self.unused = nn.Linear(24, 24)
        self.frozen.requires_grad_(False)
        self.head = nn.Linear(24, 50, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(torch.tanh(self.middle(self.embedding(tokens))))
        return self.head(hidden + self.frozen(hidden))


def batch(step: int, rank: int | None = None) -> torch.Tensor:
    rank = dist.get_rank() if rank is None else rank
    return torch.randint(50, (32,), generator=torch.Generator().manual_seed(100 * step + rank))


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(model(tokens), (7 * tokens + 3) % 50)


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([one.detach().flatten() for one in model.parameters()])
