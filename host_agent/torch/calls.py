# SPDX-License-Identifier: Apache-2.0
"""The way of a call into a process group: decorators of the methods that torch calls, and its arguments."""

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import torch
import torch.distributed as dist

from weir.host_agent.collectives.reductions import Operator, PremulSum, RedOpType
from weir.host_agent.torch.arguments import Arguments, waited
from weir.host_agent.torch.observing import is_observed, observed
from weir.host_agent.torch.signatures import SIGNATURES
from weir.host_agent.torch.work import QueuedWork

Issue = Callable[..., QueuedWork]


def collective(method: Issue) -> Issue:
    """Decorate a method that issues a collective, so that it is called, checked, counted and seen as torch's.

    Where it fails, the other ranks are told. It can be called in all forms of the signature of its name, and
    gets its arguments in the first one.
    """
    name = method.__name__
    bind, check = SIGNATURES[name].bind, getattr(Arguments, name)

    @wraps(method)
    def issue(self: Any, /, *args: Any, **kwargs: Any) -> QueuedWork:
        self._issued += 1
        try:  # by hand: a context manager would cost each call microseconds
            args = waited(bind(name, args, kwargs))
            check(self._arguments, *args)
            if is_observed():
                work: QueuedWork = observed(self, name, partial(method, self), args)
                return work
            return method(self, *args)
        except Exception as error:
            self.tell(error)
            raise

    return issue


def message(method: Issue) -> Issue:
    """Decorate a method that issues a message between two ranks, so that it is seen as torch's."""

    @wraps(method)
    def issue(self: Any, /, tensors: Any, *args: Any, **kwargs: Any) -> QueuedWork:
        tensors = waited(tensors)
        if is_observed():
            call = partial(method, self, **kwargs)
            work: QueuedWork = observed(self, method.__name__, call, (tensors, *args))
            return work
        return method(self, tensors, *args, **kwargs)

    return issue


def operator_of(opts: Any) -> Operator:
    """Return the operator in torch's options. A factor on a device is waited for."""
    op: RedOpType = getattr(opts.reduceOp, "op", opts.reduceOp)
    if op == dist.ReduceOp.PREMUL_SUM:
        _, factor = opts.reduceOp.__getstate__()  # the only way to it: a number, or a tensor of one
        return PremulSum(float(factor))
    return op


def parts_of(tensor: torch.Tensor) -> torch.dtype | None:
    """Return of which complex dtype a tensor is the real and imaginary parts, if that can be seen.

    torch's functional ``reduce_scatter_tensor`` hands complex numbers over so, whatever the operator.
    """
    base = tensor._base
    in_pairs = tensor.shape[-1:] == (2,) and tensor.stride(-1) == 1
    return base.dtype if base is not None and base.is_complex() and in_pairs else None


def complex_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the sparse complex tensor of which ``dist.all_reduce`` has handed over the parts; otherwise the
    same.

    A sum has other rows, so that it is written to the tensor itself; its parts would keep the old ones.
    """
    base = tensor._base
    return base if tensor.is_sparse and base is not None and base.is_complex() else tensor
