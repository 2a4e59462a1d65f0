# SPDX-License-Identifier: Apache-2.0
"""GPT-2 in plain torch, and text to train it on: the modules of Python's own standard library."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import nn
from torch.nn import functional

_LEAST_BYTES: Final = 4_000_000  # of text, unless the library has less


@dataclass(frozen=True)
class Shape:
    """The sizes of a model. context: the longest sequence."""

    vocabulary: int = 50257
    context: int = 1024
    layers: int = 12
    width: int = 768
    heads: int = 12


SHAPES: Final = {"gpt2": Shape(), "tiny": Shape(512, 64, 2, 64, 2)}
"""Models by name; the second one is for tests."""


class _Block(nn.Module):
    """Attention and a feed-forward part, each behind a norm and beside a residual connection."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self._heads = shape.heads
        self.norm1, self.norm2 = nn.LayerNorm(shape.width), nn.LayerNorm(shape.width)
        self.qkv = nn.Linear(shape.width, 3 * shape.width)
        self.proj = nn.Linear(shape.width, shape.width)
        self.up, self.down = nn.Linear(shape.width, 4 * shape.width), nn.Linear(4 * shape.width, shape.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the activations behind the block: batch, position, width."""
        parts = self.qkv(self.norm1(x)).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (self._heads, -1)).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).flatten(2))
        more: torch.Tensor = self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))
        return x + more


class Gpt(nn.Module):
    """GPT-2, whose output layer is its embedding; ``forward`` returns the loss."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.places = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.ModuleList(_Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                deep = name.endswith(("proj.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.02 / ((2 * shape.layers) ** 0.5 if deep else 1))
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of predicting every next token. text: int64, batch, positions + 1."""
        given, wanted = text[:, :-1], text[:, 1:]
        x = self.tokens(given) + self.places.weight[: given.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = functional.linear(self.norm(x), self.tokens.weight)
        return functional.cross_entropy(logits.flatten(0, 1), wanted.flatten())


def parameter_count(shape: Shape) -> int:
    """Return how many parameters a model has."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in Gpt(shape).parameters())


def read_tokens(vocabulary: int) -> torch.Tensor:
    """Return a text as int64 tokens, one for each two bytes, the same wherever the same Python runs."""
    text = bytearray()
    for path in sorted(Path(os.__file__).parent.glob("*.py")):
        text += path.read_bytes()
        if len(text) >= _LEAST_BYTES:
            break
    pairs = torch.frombuffer(text[: len(text) // 2 * 2], dtype=torch.uint8).to(torch.int64).view(-1, 2)
    return (pairs[:, 0] * 256 + pairs[:, 1]) % vocabulary


def batches(tokens: torch.Tensor, rank: int, steps: int, batch: int, length: int) -> torch.Tensor:
    """Return a rank's batches: step, sequence, position + 1."""
    generator = torch.Generator().manual_seed(1 + rank)
    starts = torch.randint(len(tokens) - length, (steps, batch), generator=generator)
    return tokens[starts[..., None] + torch.arange(length + 1)]
