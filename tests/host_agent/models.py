# SPDX-License-Identifier: Apache-2.0
"""Models of which only the parameters matter."""

from collections.abc import Iterable

import torch


class Parts(torch.nn.Module):
    """Parameters of some sizes, all zero: ``parts.0``, ``parts.1``, …"""

    def __init__(self, sizes: Iterable[int | tuple[int, ...]]) -> None:
        super().__init__()
        self.parts = torch.nn.ParameterList(torch.zeros(size) for size in sizes)
