# SPDX-License-Identifier: Apache-2.0
"""Models in a DistributedDataParallel, for who averages them another way."""

import torch
from torch.nn.parallel import DistributedDataParallel


def unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    """Return the module inside a DistributedDataParallel, whose own summing of gradients ends; any other
    model as it is.
    """
    if not isinstance(model, DistributedDataParallel):
        return model
    model.require_backward_grad_sync = False
    inner: torch.nn.Module = model.module
    return inner
