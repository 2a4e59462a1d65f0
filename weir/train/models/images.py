# SPDX-License-Identifier: Apache-2.0
"""Models of digits: ResNet-18 with the stem for small images, a small CNN, a perceptron."""

from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional


class _Residual(nn.Module):
    """Two 3x3 convolutions beside a shortcut (He et al., "Deep Residual Learning", CVPR 2016)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class ResNet18(nn.Module):
    """ResNet-18, 11.2 million parameters, for images of 8x8 pixels and more.

    The stem is the one used for CIFAR: a 3x3 convolution and no pooling.
    """

    def __init__(self, channels: int = 1, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(channels, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU()
        )
        stages: list[nn.Module] = []
        inputs = 64
        for outputs, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            stages += [_Residual(inputs, outputs, stride), _Residual(outputs, outputs, 1)]
            inputs = outputs
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(512, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return class scores, shape (N, classes), of images, shape (N, channels, H, W)."""
        scores: Tensor = self.head(self.stages(self.stem(images)).mean(dim=(2, 3)))
        return scores


class SmallCnn(nn.Module):
    """Two convolutions and two linear layers, about 0.5 million parameters, for 16x16 images."""

    def __init__(self, channels: int = 1, classes: int = 10) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(64 * 4 * 4, 448), nn.ReLU(), nn.Linear(448, classes),
        )  # fmt: skip

    def forward(self, images: Tensor) -> Tensor:
        """Return class scores, shape (N, classes), of images, shape (N, channels, 16, 16)."""
        scores: Tensor = self.layers(images)
        return scores


class Mlp(nn.Module):
    """Four hidden layers of 128, about 84,000 parameters, for 16x16 images: the cheapest to train."""

    def __init__(self, pixels: int = 256, classes: int = 10) -> None:
        super().__init__()
        widths = (pixels, 128, 128, 128, 128)
        hidden = [
            module
            for inputs, outputs in pairwise(widths)
            for module in (nn.Linear(inputs, outputs), nn.ReLU())
        ]
        self.layers = nn.Sequential(nn.Flatten(), *hidden, nn.Linear(widths[-1], classes))

    def forward(self, images: Tensor) -> Tensor:
        """Return class scores, shape (N, classes), of images, shape (N, 1, 16, 16)."""
        scores: Tensor = self.layers(images)
        return scores
