# SPDX-License-Identifier: Apache-2.0
"""Sparse models for two labels: logistic regression, a factorisation machine, and one with a perceptron."""

from typing import Final, Literal

import numpy as np
import torch
from torch import Tensor, nn

from weir.host_agent.placement.hashing import Buckets
from weir.host_agent.placement.samples import Integers, Samples

SparseModelName = Literal["logistic", "fm", "deepfm"]
NAMES: Final[tuple[SparseModelName, ...]] = ("logistic", "fm", "deepfm")
LEARNING_RATES: Final[dict[SparseModelName, float]] = {"logistic": 0.1, "fm": 0.02, "deepfm": 0.02}
"""Of Adagrad."""

TABLE: Final = "table.weight"
"""The parameter whose rows are the features', or those of their buckets."""

FACTORS: Final = 8
_HIDDEN: Final = 32


class SparseModel(nn.Module):
    """Scores of samples whose features have a row of a table each: a weight, and factors but for logistic
    regression.

    A factorisation machine (Rendle, 2010) adds the products of all pairs of a sample's factors; DeepFM (Guo
    et al., 2017) also gives their sum to a perceptron.
    """

    def __init__(self, name: SparseModelName, rows: int) -> None:
        super().__init__()
        self.factors = 0 if name == "logistic" else FACTORS
        self.table = nn.Embedding(rows, 1 + self.factors, sparse=True)
        nn.init.normal_(self.table.weight, std=0.01)
        nn.init.zeros_(self.table.weight[:, 0].detach())
        self.bias = nn.Parameter(torch.zeros(1))
        self.deep: nn.Module | None = None
        if name == "deepfm":
            self.deep = nn.Sequential(nn.Linear(self.factors, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, 1))

    def forward(self, rows: Tensor, signs: Tensor, samples: Tensor, count: int) -> Tensor:
        """Return the logits of ``count`` samples; entry i of the others says that a sample has a row with a
        sign.
        """
        values = self.table(rows) * signs[:, None]
        sums = values.new_zeros(count, values.shape[1]).index_add(0, samples, values)
        logits: Tensor = self.bias + sums[:, 0]
        if self.factors:
            vectors = sums[:, 1:]
            squares = values.new_zeros(count).index_add(0, samples, values[:, 1:].square().sum(dim=1))
            logits = logits + (vectors.square().sum(dim=1) - squares) / 2
            if self.deep is not None:
                logits = logits + self.deep(vectors)[:, 0]
        return logits


class Entries:
    """Samples as tensors: one entry for each feature of each, or several when it has several buckets."""

    def __init__(self, samples: Samples, buckets: Buckets | None) -> None:
        hashes = 1 if buckets is None else len(buckets.of_feature)
        features = samples.features
        rows = features[None] if buckets is None else buckets.of_feature[:, features]
        self._starts = samples.starts * hashes
        self._rows = rows.T.reshape(-1)
        self._signs = torch.ones(self._rows.size)
        if buckets is not None:
            self._signs = torch.from_numpy(buckets.signs[:, features].T.reshape(-1)).float()
        labels = samples.labels
        self.labels = torch.from_numpy(labels if labels is not None else samples.starts[:-1] * 0).float()

    def rows(self, chosen: Integers) -> Integers:
        """Return the rows that some samples use."""
        return np.unique(self._rows[self._places(chosen).numpy()])

    def batch(self, chosen: Integers) -> tuple[Tensor, Tensor, Tensor, int]:
        """Return the arguments of ``SparseModel.forward`` for some samples."""
        places = self._places(chosen)
        sizes = torch.from_numpy(self._starts[chosen + 1] - self._starts[chosen])
        samples = torch.repeat_interleave(torch.arange(len(chosen)), sizes)
        return torch.from_numpy(self._rows)[places], self._signs[places], samples, len(chosen)

    def _places(self, chosen: Integers) -> Tensor:
        starts = torch.from_numpy(self._starts)
        first, sizes = starts[chosen], starts[chosen + 1] - starts[chosen]
        before = torch.cumsum(sizes, 0) - sizes
        return torch.repeat_interleave(first - before, sizes) + torch.arange(int(sizes.sum()))
