# SPDX-License-Identifier: Apache-2.0
"""The layout of parameters in rows: each fills rows of its own, and zeros fill up its last one."""

from collections.abc import Sequence
from typing import Final

import torch

ROW: Final = 256
"""Values in a row. Chosen here: a scale of 32 bits in a row of signs is an eighth of a bit to a value."""


class UpdateLayout:
    """The place of each parameter in tensors of rows.

    Attributes:
        names: of the parameters.
        rows: how many rows there are.
        owner: int64[rows], the parameter that a row is of.
        lengths: float32[rows], values of a row that are a parameter's.

    Args:
        names: the same on every worker.
        shapes: of the parameters, in this order.
    """

    def __init__(self, names: Sequence[str], shapes: Sequence[Sequence[int]]) -> None:
        self.names = tuple(names)
        self.sizes = tuple(torch.Size(shape).numel() for shape in shapes)
        counts = [-(-size // ROW) for size in self.sizes]
        self.owner = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
        self.rows = len(self.owner)
        ends = torch.tensor(counts).cumsum(0).tolist()
        self.starts = [ROW * (end - count) for end, count in zip(ends, counts, strict=True)]
        self.lengths = torch.full((self.rows,), float(ROW))
        for start, count, size in zip(self.starts, counts, self.sizes, strict=True):
            if count:
                self.lengths[start // ROW + count - 1] = size - ROW * (count - 1)

    @property
    def values(self) -> int:
        """Return how many values the parameters have."""
        return sum(self.sizes)

    def empty(self) -> torch.Tensor:
        """Return float32[rows, ROW] of zeros."""
        return torch.zeros(self.rows, ROW)

    def rows_of(self, index: int) -> slice:
        """Return the rows of a parameter."""
        first = self.starts[index] // ROW
        return slice(first, first - (-self.sizes[index] // ROW))

    def part(self, rows: torch.Tensor, index: int) -> torch.Tensor:
        """Return one parameter's values in a tensor of rows, flat; a view."""
        start = self.starts[index]
        return rows.view(-1)[start : start + self.sizes[index]]

    def split(self, vector: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the parameters' parts, flat, of a vector of all their values one after the other; views."""
        return torch.split(vector, list(self.sizes))

    def gather(self, tensors: Sequence[torch.Tensor | None], out: torch.Tensor) -> torch.Tensor:
        """Overwrite ``out`` by the parameters' tensors, None: zeros, and return it."""
        for index, tensor in enumerate(tensors):
            if tensor is None:
                self.part(out, index).zero_()
            else:
                self.part(out, index).copy_(tensor.detach().reshape(-1))
        return out

    def scatter(self, rows: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
        """Overwrite the parameters' tensors by their values in ``rows``."""
        for index, tensor in enumerate(tensors):
            tensor.copy_(self.part(rows, index).view(tensor.shape))
