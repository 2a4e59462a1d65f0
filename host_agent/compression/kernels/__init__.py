# SPDX-License-Identifier: Apache-2.0
"""Triton kernels: what torch has no operation for, on a GPU.

Triton need not be installed: a module of kernels is imported only where ``available`` says that it can run.
"""

import importlib.util
import os

import torch


def available(device: torch.device) -> bool:
    """Return whether kernels can run for tensors of this device: on a GPU, where there is Triton.

    In main memory only with ``TRITON_INTERPRET=1``, in Triton's interpreter: for tests.
    """
    if device.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        return False
    return device.type in {"cpu", "cuda"} and importlib.util.find_spec("triton") is not None
