# SPDX-License-Identifier: Apache-2.0
"""Futures whose value C++ can read.

A future that Python completes holds a Python object. Torch's C++ takes that from a process group in Python,
with one exception: DDP's built-in FP16_COMPRESS hook reads a list of tensors as C++ has it. Only TorchScript
completes a future so from here. It does so on a thread of torch's pool, which has one for each core and which
a callback may not block: so a future of this kind is for C++ alone.
"""

import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch.futures import Future


def is_asked_by_cpp(name: str) -> bool:
    """Return whether the function that calls this was called by C++: the Python code below does not name it.

    Args:
        name: of that function.
    """
    try:
        return name not in sys._getframe(2).f_code.co_names
    except ValueError:  # one of C++'s own threads: there is no Python code below
        return True


def tensors_after(gate: Future[Any], tensors: Sequence[torch.Tensor]) -> Future[list[torch.Tensor]]:
    """Return a future of a list of tensors in C++'s form, which is done after another future, or fails so."""
    future: Future[list[torch.Tensor]] = _script()(gate, list(tensors))
    return future


@cache
def _script() -> Any:
    """Return the function that begins such a future, compiled for the first of its callers."""
    return torch.jit.CompilationUnit(_SOURCE).begin


_fork, _wait = torch.jit.fork, torch.jit.wait  # TorchScript finds names of its source here
_SOURCE = """
def after(gate: Future[int], tensors: List[Tensor]) -> List[Tensor]:
    _wait(gate)
    return tensors

def begin(gate: Future[int], tensors: List[Tensor]):
    return _fork(after, gate, tensors)
"""
