# SPDX-License-Identifier: Apache-2.0
"""A U-Net, and the scenes that it takes apart: shapes before each other, with noise."""

import functools

import numpy as np
import torch
from torch import Tensor, nn

from weir.train.data import Dataset, Split

SIZE = 32
SHAPES = 4  # disc, square, cross, ring; class 0 is what lies behind
_SCENES, _HELD_OUT, _IN_SCENE = 3584, 256, 6


class UNet(nn.Module):
    """Three levels, 16, 32 and 64 channels: 0.12 million parameters, for images of 32x32 pixels.

    Reference: Ronneberger, Fischer and Brox, "U-Net", MICCAI 2015.
    """

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.down1, self.down2 = _Pair(1, width), _Pair(width, 2 * width)
        self.bottom = _Pair(2 * width, 4 * width)
        self.widen2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2)
        self.up2 = _Pair(4 * width, 2 * width)
        self.widen1 = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.up1 = _Pair(2 * width, width)
        self.head = nn.Conv2d(width, SHAPES + 1, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Return scores of each pixel's class, shape (N, H, W, classes), of images, shape (N, 1, H, W)."""
        first = self.down1(images)
        second = self.down2(nn.functional.max_pool2d(first, 2))
        x = self.widen2(self.bottom(nn.functional.max_pool2d(second, 2)))
        x = self.widen1(self.up2(torch.cat((x, second), dim=1)))
        scores: Tensor = self.head(self.up1(torch.cat((x, first), dim=1)))
        return scores.movedim(1, -1)


class _Pair(nn.Sequential):
    """Two 3x3 convolutions, each with a norm that needs no other samples."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.ReLU(),
        )  # fmt: skip


@functools.cache
def scenes() -> Dataset:
    """Return images of six shapes each, drawn one before the other, with the shape seen at each pixel.

    inputs: float32 (N, 1, 32, 32), a shape's brightness is its own; noise of standard deviation 0.5 is added.
    targets: int64 (N, 32, 32) in [0, SHAPES].
    """
    random = np.random.default_rng(0)
    rows, columns = np.mgrid[:SIZE, :SIZE]
    images = np.zeros((_SCENES + _HELD_OUT, SIZE, SIZE), np.float32)
    targets = np.zeros(images.shape, np.int64)
    for image, target in zip(images, targets, strict=True):
        for _ in range(_IN_SCENE):
            kind = int(random.integers(SHAPES))
            y, x = np.abs(rows - random.integers(SIZE)), np.abs(columns - random.integers(SIZE))
            radius, distance = random.uniform(4, 8), np.hypot(y, x)
            inside = (
                distance <= radius,
                np.maximum(y, x) <= 0.8 * radius,
                (np.maximum(y, x) <= radius) & (np.minimum(y, x) <= 0.3 * radius),
                (distance <= radius) & (distance >= 0.55 * radius),
            )[kind]
            image[inside], target[inside] = random.uniform(0.5, 1.5), kind + 1
    images += 0.5 * random.standard_normal(images.shape, np.float32)
    inputs, classes = torch.from_numpy(images[:, None]), torch.from_numpy(targets)
    return Dataset(
        train=Split(inputs[:_SCENES], classes[:_SCENES]), test=Split(inputs[_SCENES:], classes[_SCENES:])
    )
