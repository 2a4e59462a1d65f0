# SPDX-License-Identifier: Apache-2.0
"""A vision transformer."""

import torch
from torch import Tensor, nn

from weir.train.models.gpt import Block


class VisionTransformer(nn.Module):
    """Patches of 4x4 pixels of 16x16 images, four blocks of attention, their mean: 0.2 million parameters.

    Reference: Dosovitskiy et al., "An Image is Worth 16x16 Words", ICLR 2021.
    """

    def __init__(self, patch: int = 4, width: int = 64, layers: int = 4, classes: int = 10) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, patch, patch)
        self.places = nn.Parameter(0.02 * torch.randn((16 // patch) ** 2, width))
        self.blocks = nn.Sequential(*(Block(width, 4, causal=False) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return class scores, shape (N, classes), of images, shape (N, 1, 16, 16)."""
        x = self.patches(images).flatten(2).transpose(1, 2) + self.places
        scores: Tensor = self.head(self.norm(self.blocks(x)).mean(dim=1))
        return scores
