# SPDX-License-Identifier: Apache-2.0
"""A model of clicks like DLRM, and clicks that follow a known rule."""

import functools

import numpy as np
import torch
from torch import Tensor, nn

from weir.train.data import Dataset, Split

TABLES, ROWS, NUMBERS = 8, 512, 4
_CLICKS, _HELD_OUT = 262_144, 8192


class Dlrm(nn.Module):
    """Embeddings and a part for numbers, the products of all pairs, a part on top: 0.07 million parameters.

    Nearly all of them lie in tables, of which a step touches the rows of its batch. Reference: Naumov et al.,
    "Deep Learning Recommendation Model", arXiv 1906.00091.
    """

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.tables = nn.Embedding(TABLES * ROWS, width)
        self.bottom = nn.Sequential(nn.Linear(NUMBERS, 32), nn.ReLU(), nn.Linear(32, width), nn.ReLU())
        pairs = (TABLES + 1) * TABLES // 2
        self.top = nn.Sequential(nn.Linear(width + pairs, 64), nn.ReLU(), nn.Linear(64, 2))
        nn.init.normal_(self.tables.weight, std=0.1)
        self._pairs = torch.triu_indices(TABLES + 1, TABLES + 1, 1)

    def forward(self, samples: Tensor) -> Tensor:
        """Return scores of no click and click, shape (N, 2), of samples, see ``clicks``."""
        rows = samples[:, :TABLES].long() + ROWS * torch.arange(TABLES)
        numbers = self.bottom(samples[:, TABLES:])
        features = torch.cat((numbers[:, None], self.tables(rows)), dim=1)
        products = (features @ features.transpose(1, 2))[:, self._pairs[0], self._pairs[1]]
        scores: Tensor = self.top(torch.cat((numbers, products), dim=1))
        return scores


@functools.cache
def clicks() -> Dataset:
    """Return samples of eight categories and four numbers each, and whether they were clicked.

    Categories are Zipf-distributed. A factorization machine with random weights says how likely a click is.
    inputs: float32 (N, 12), the categories as whole numbers in [0, ROWS); targets: int64 (N), 0 or 1.
    """
    random = np.random.default_rng(0)
    count = _CLICKS + _HELD_OUT
    chance = 1 / np.arange(1, ROWS + 1)
    rows = random.choice(ROWS, (count, TABLES), p=chance / chance.sum())
    numbers = random.standard_normal((count, NUMBERS))
    hidden = random.standard_normal((TABLES, ROWS, 4))
    vectors = np.concatenate(
        (hidden[np.arange(TABLES), rows], numbers[..., None] * random.standard_normal((NUMBERS, 4))), axis=1
    )
    pairs = (vectors.sum(axis=1) ** 2 - (vectors**2).sum(axis=1)).sum(axis=1) / 2
    clicked = random.random(count) < 1 / (1 + np.exp(-0.3 * (pairs - np.median(pairs))))
    inputs = torch.from_numpy(np.concatenate((rows, numbers), axis=1).astype(np.float32))
    targets = torch.from_numpy(clicked.astype(np.int64))
    return Dataset(
        train=Split(inputs[:_CLICKS], targets[:_CLICKS]), test=Split(inputs[_CLICKS:], targets[_CLICKS:])
    )
