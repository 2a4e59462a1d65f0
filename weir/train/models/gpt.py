# SPDX-License-Identifier: Apache-2.0
"""GPT-2 in plain torch, from 0.4 million parameters for bytes to the published 124 and 355 million."""

from dataclasses import dataclass
from typing import Final

import torch
from torch import nn
from torch.nn import functional


@dataclass(frozen=True)
class Shape:
    """The sizes of a model. context: the longest sequence."""

    vocabulary: int = 50257
    context: int = 1024
    layers: int = 12
    width: int = 768
    heads: int = 12


SHAPES: Final = {
    "gpt2": Shape(),
    "gpt2-medium": Shape(layers=24, width=1024, heads=16),
    "small": Shape(256, 64, layers=3, width=96, heads=4),
    "medium": Shape(256, 64, layers=6, width=384, heads=6),
    "tiny": Shape(512, 64, 2, 64, 2),
}
"""Models by name: GPT-2 small and medium, two of bytes (0.37 and 10.8 million parameters), one for tests."""


class Block(nn.Module):
    """Attention and a feed-forward part, each behind a norm and beside a residual connection.

    Args:
        causal: a position sees none of those behind it.
    """

    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self._heads, self._causal = heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the activations behind the block: batch, position, width."""
        parts = self.qkv(self.norm1(x)).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (self._heads, -1)).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=self._causal)
        x = x + self.proj(mixed.transpose(1, 2).flatten(2))
        more: torch.Tensor = self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))
        return x + more


class Gpt(nn.Module):
    """GPT-2, whose output layer is its embedding."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.places = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.ModuleList(Block(shape.width, shape.heads, causal=True) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        for name, weight in self.named_parameters():
            if weight.dim() > 1:
                deep = name.endswith(("proj.weight", "down.weight"))
                nn.init.normal_(weight, std=0.02 / ((2 * shape.layers) ** 0.5 if deep else 1))
            elif name.endswith("bias"):
                nn.init.zeros_(weight)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Return scores of each next token, shape (N, T, vocabulary), of tokens, shape (N, T), int64."""
        x = self.tokens(text) + self.places.weight[: text.shape[1]]
        for block in self.blocks:
            x = block(x)
        return functional.linear(self.norm(x), self.tokens.weight)
