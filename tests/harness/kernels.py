# SPDX-License-Identifier: Apache-2.0
"""Triton kernels in tests: on a GPU where there is one, elsewhere in Triton's interpreter, on the CPU.

A test that takes ``kernel_device`` has two names, with ``[interpreter]`` and ``[cuda]``; one of them is
skipped. Modules of kernels are imported in the test, or by what it calls: not at the top of its module.
"""

import importlib
import importlib.util
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import torch


@pytest.fixture(scope="module", params=["interpreter", pytest.param("cuda", marks=pytest.mark.cuda)])
def kernel_device(request: pytest.FixtureRequest) -> Iterator["torch.device"]:
    """Yield the device of tensors on which kernels run for as long as the module's tests do."""
    import torch

    if importlib.util.find_spec("triton") is None:
        pytest.skip("needs Triton")
    if request.param == "cuda":
        yield torch.device("cuda", torch.cuda.current_device())
        return
    if torch.cuda.is_available():
        pytest.skip("runs on the GPU instead")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        _make_interpreted()
        yield torch.device("cpu")


def _make_interpreted() -> None:
    """Have Triton's own functions for kernels interpreted, too.

    That is settled when they are defined, and torch's optimizers, say, may have imported them before.
    """
    language = importlib.import_module("triton.language")
    if type(language.sum).__name__ == "JITFunction":
        for name in ("standard", "random"):
            importlib.reload(importlib.import_module(f"triton.language.{name}"))
        importlib.reload(language)
