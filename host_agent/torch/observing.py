# SPDX-License-Identifier: Apache-2.0
"""Collectives of the group as torch's profiler and dispatch modes see those of other backends.

Why this is made here. A backend in C++ is called by a ``ProcessGroup`` of torch's through an operator,
``torch.ops.c10d.allreduce_`` and so on; profilers and modes watch operators. Torch 2.13 lets Python subclass
``ProcessGroup``, but not ``Backend`` (which has no constructor), so a group in Python is called past the
operators. A class between in C++ would have to be built for every version of torch; kernels of our own for
torch's operators would slow down and change other backends' groups. So where somebody watches, and only
there, a collective passes through what watches. Where nobody does, that costs two checks of 0.1 microseconds.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import torch
import torch.distributed as dist
from torch._C import DispatchKey, _len_torch_dispatch_stack
from torch._C._autograd import _profiler_enabled
from torch._C._distributed_c10d import FakeWork, Work
from torch._C._profiler import _RecordFunctionFast
from torch._ops import OpOverload
from torch.autograd.profiler import record_function
from torch.utils._python_dispatch import _pop_mode_temporarily

from weir.host_agent.torch.work import QueuedWork

OPERATORS: Final = {
    "allreduce": ("allreduce_", "all_reduce"),
    "allreduce_coalesced": ("allreduce_coalesced_", "all_reduce"),
    "reduce": ("reduce_", "reduce"),
    "reduce_scatter": ("reduce_scatter_", "reduce_scatter"),
    "reduce_scatter_single": ("_reduce_scatter_base_", "reduce_scatter"),
    "reduce_scatter_single_coalesced": ("reduce_scatter_tensor_coalesced_", "reduce_scatter"),
    "broadcast": ("broadcast_", "broadcast"),
    "allgather": ("allgather_", "all_gather"),
    "allgather_coalesced": ("allgather_coalesced_", "all_gather"),
    "all_gather_single": ("_allgather_base_", "all_gather"),
    "all_gather_single_coalesced": ("allgather_into_tensor_coalesced_", "all_gather"),
    "gather": ("gather_", "gather"),
    "scatter": ("scatter_", "scatter"),
    "alltoall": ("alltoall_", "all_to_all"),
    "all_to_all_single": ("alltoall_base_", "all_to_all"),
    "barrier": ("barrier", "barrier"),
    "send": ("send", "send"),
    "recv": ("recv_", "recv"),
    "recv_anysource": ("recv_any_source_", "recv_any_source"),
}
"""Torch's operator, and the operation's name in profiles, by the name of the group's method."""

Issue = Callable[..., QueuedWork]


def is_observed() -> bool:
    """Return whether a profiler or a dispatch mode watches this thread."""
    return _profiler_enabled() or _len_torch_dispatch_stack() > 0


def observed(group: dist.ProcessGroup, method: str, issue: Issue, args: tuple[Any, ...]) -> Any:
    """Issue a collective under the eyes of anyone who watches this thread.

    A profile gets two events: torch's operator, while the call is issued, with the sizes of all its tensors;
    and one named after the backend, which lasts until the operation is done.

    Args:
        group: that it is of.
        method: the group's method.
        issue: issues it, called with ``args`` or what a mode puts in their place.
        args: in the method's first form, see ``Signature``.
    """
    operator, title = OPERATORS[method]
    if not _profiler_enabled():
        return _dispatched(group, operator, issue, args)
    with _RecordFunctionFast(f"c10d::{operator}", list(_tensors_in(args)), {}):
        span = record_function(f"{group.name()}:{title}")
        span.__enter__()  # type: ignore[no-untyped-call]
        try:
            work = _dispatched(group, operator, issue, args)
            if isinstance(work, QueuedWork):
                work.profiled = span._call_end_callbacks_on_future(work.future())
            else:  # a mode made it
                span._call_end_callbacks_on_future(work.get_future())
        except BaseException:
            span.__exit__(None, None, None)
            raise
        return work


class _Seen(OpOverload[..., Any]):
    """An operator of torch's, for modes to look at, that runs something else."""

    def __init__(self, seen: Any, run: Callable[..., Any]) -> None:
        super().__init__(seen._overloadpacket, run, seen._op_dk, seen._schema, seen._tags)
        self._seen = seen

    def __eq__(self, other: object) -> bool:
        return other is self or other is self._seen

    def __hash__(self) -> int:
        return hash(self._seen)


def _dispatched(group: dist.ProcessGroup, operator: str, issue: Issue, args: tuple[Any, ...]) -> Any:
    """Issue a collective behind the dispatch modes of this thread, as the operator that it stands for."""
    if not _len_torch_dispatch_stack() or torch._C._dispatch_tls_is_dispatch_key_excluded(DispatchKey.Python):
        return issue(*args)
    seen = getattr(torch.ops.c10d, operator).default
    count = _count_of_tensors(seen._schema)
    made: list[Work] = []

    def run(*given: Any, **options: Any) -> Any:
        if _len_torch_dispatch_stack():
            with _pop_mode_temporarily() as mode:
                return mode.__torch_dispatch__(watched, (), given, options)
        tensors = () if operator == "barrier" else given[:count]
        is_fake = any(one.is_meta for one in _tensors_in(tensors))  # then a mode asks for shapes alone
        work: Work = FakeWork() if is_fake else issue(*tensors, *args[len(tensors) :])
        made.append(work)
        return (given[0], work.boxed()) if len(seen._schema.returns) > 1 else work.boxed()

    watched = _Seen(seen, run)
    result = run(*_arguments(seen._schema, group, args))
    if made:
        return made[0]
    work = result[1] if isinstance(result, tuple) else result  # a mode made it instead
    return work if isinstance(work, Work) else Work.unbox(work)


def _count_of_tensors(schema: Any) -> int:
    return sum(str(one.type) in ("Tensor", "List[Tensor]", "List[List[Tensor]]") for one in schema.arguments)


def _arguments(schema: Any, group: dist.ProcessGroup, args: tuple[Any, ...]) -> list[Any]:
    """Return a call's arguments as an operator takes them."""
    options = args[-1]
    rest = iter(args)
    return [_argument(argument.name, group, options, rest) for argument in schema.arguments]


def _argument(name: str, group: dist.ProcessGroup, options: Any, rest: Iterator[Any]) -> Any:
    match name:
        case "process_group":
            return group.boxed()
        case "reduce_op":
            return options.reduceOp
        case "root_rank":
            return options.rootRank
        case "root_tensor":
            return options.rootTensor
        case "sparse_indices":
            return None
        case "async_op":
            return options.asyncOp
        case "timeout":
            return int(options.timeout.total_seconds() * 1000)
        case "device_ids":
            return list(options.device_ids)
        case "tensor":  # of a barrier, by which torch finds the device
            return torch.empty(1)
        case _:
            return next(rest)


def _tensors_in(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, Sequence) and not isinstance(value, str):
            yield from _tensors_in(value)
