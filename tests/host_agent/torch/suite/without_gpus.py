# SPDX-License-Identifier: Apache-2.0
"""Torch's tests that ask for a GPU a rank, most of them of DDP, with all tensors in host memory instead.

What a test says about the devices themselves then fails, on any backend.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode
from torch.testing._internal import common_distributed


def ask_for_no_gpus() -> None:
    """Let the decorators of tests made from now on, in this process, ask for no GPU."""

    def every_test(*_: object) -> Callable[[Any], Any]:
        return lambda test: test

    common_distributed.skip_if_lt_x_gpu = every_test
    common_distributed.skip_if_no_gpu = lambda test: test


@contextlib.contextmanager
def everything_on_the_host() -> Iterator[None]:
    """Put what is moved to a GPU in the block, or made there, in host memory."""
    with contextlib.ExitStack() as stack:
        for name in ("set_device", "synchronize", "manual_seed", "current_device"):
            stack.enter_context(mock.patch.object(torch.cuda, name, lambda *_, **__: None))
        for kind in (torch.Tensor, torch.nn.Module):
            stack.enter_context(mock.patch.object(kind, "cuda", lambda self, *_, **__: self))
        moved, made = torch.nn.Module.to, DistributedDataParallel.__init__

        def to_host(self: Any, *a: Any, **k: Any) -> Any:
            return self if (a and _is_gpu(a[0])) or _is_gpu(k.get("device")) else moved(self, *a, **k)

        def on_host(
            self: Any, module: Any, device_ids: object = None, output_device: object = None, *a: Any, **k: Any
        ) -> None:
            made(self, module, None, None, *a, **k)

        stack.enter_context(mock.patch.object(torch.nn.Module, "to", to_host))
        stack.enter_context(mock.patch.object(DistributedDataParallel, "__init__", on_host))
        stack.enter_context(_OnHost())
        yield


class _OnHost(TorchFunctionMode):
    """Gives torch's functions the host for every GPU that they are asked for."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a function of torch's."""
        named = dict(kwargs or {})
        if _is_gpu(named.get("device")):
            named["device"] = "cpu"
        if func is torch.Tensor.to and len(args) > 1 and _is_gpu(args[1]):
            args = [args[0], "cpu", *args[2:]]
        return func(*args, **named)


def _is_gpu(device: object) -> bool:
    return type(device) is int or (isinstance(device, (str, torch.device)) and "cuda" in str(device))
