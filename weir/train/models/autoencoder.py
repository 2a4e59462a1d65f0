# SPDX-License-Identifier: Apache-2.0
"""An autoencoder of digits."""

from torch import Tensor, nn


class Autoencoder(nn.Module):
    """Three layers down to 16 numbers and three up again: 0.33 million parameters, for 16x16 images."""

    def __init__(self, pixels: int = 256, width: int = 384, code: int = 16) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(pixels, width), nn.GELU(), nn.Linear(width, 160), nn.GELU(), nn.Linear(160, code)
        )
        self.decoder = nn.Sequential(
            nn.Linear(code, 160), nn.GELU(), nn.Linear(160, width), nn.GELU(), nn.Linear(width, pixels)
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return images of the same shape, (N, 1, 16, 16), made of 16 numbers each."""
        restored: Tensor = self.decoder(self.encoder(images.flatten(1)))
        return restored.view_as(images)
