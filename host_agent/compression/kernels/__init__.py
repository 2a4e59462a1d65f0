# SPDX-License-Identifier: Apache-2.0
"""Triton kernels: what torch has no operation for, on a GPU.

Triton need not be installed: a module of kernels is imported only where ``available`` says that it can run.
"""

import importlib.util
import os
from functools import cache

import torch


def interpreted() -> bool:
    """Return whether kernels run in Triton's interpreter, for tests: then main memory stands for a device."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def available(device: torch.device) -> bool:
    """Return whether kernels can run for tensors of this device: on a GPU, where there is Triton.

    In main memory only with ``TRITON_INTERPRET=1``, in Triton's interpreter: for tests.
    """
    return device.type == ("cpu" if interpreted() else "cuda") and _has_triton()


@cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None
