# SPDX-License-Identifier: Apache-2.0
"""Tests that are written for tensors in host memory, with the tensors that they make on a GPU."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_THEIRS = ("/tests/", "/torch/nn/")


class OnDevice(TorchFunctionMode):
    """Moves tensors that tests and torch's modules make to a device, and shows numpy a copy in host memory.

    Weir's own tensors stay where Weir makes them.
    """

    def __init__(self, device: str) -> None:
        super().__init__()
        self._device = device

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a function of torch's."""
        if func is torch.Tensor.numpy and args[0].is_cuda:
            return args[0].cpu().numpy()
        made = func(*args, **(kwargs or {}))
        caller, chosen = sys._getframe(1).f_code.co_filename, (kwargs or {}).get("device")
        if func in _MAKERS and chosen is None and any(part in caller for part in _THEIRS):
            return made.to(self._device)
        return made


_MAKERS = frozenset(
    getattr(torch, name)
    for name in (
        "arange", "empty", "from_numpy", "full", "ones", "rand",
        "randint", "randn", "randperm", "tensor", "zeros",
    )
)  # fmt: skip
