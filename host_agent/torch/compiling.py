# SPDX-License-Identifier: Apache-2.0
"""The backend beside ``torch.compile``: Dynamo leaves its functions as they are.

While a compiled function runs, Dynamo looks at every Python frame that begins on the thread. A Python group
has such frames where C++ calls it: a DDP reducer calls ``broadcast``, a compiled collective ``allreduce``,
and ``backward()`` a communication hook. Dynamo would trace them, and fail, as it refuses to look into a
process group. So each function that torch calls is marked: Dynamo skips it, and all that it calls.

``torch.compiler.disable`` does the same, but imports Dynamo, which takes seconds that a program without
``torch.compile`` does not have to pay.
"""

from collections.abc import Iterator
from types import FunctionType
from typing import Any, TypeVar

from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy

_Target = TypeVar("_Target", bound=Any)

_SKIP = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)


def never_compiled(target: _Target) -> _Target:
    """Mark a function, or all functions of a class, as code that Dynamo skips with all that it calls.

    Returns:
        ``target`` itself: nothing is wrapped, and calls take no longer.

    Example::

        @never_compiled
        class Group(dist.ProcessGroup): ...
    """
    for function in _functions(target):
        set_code_exec_strategy(function.__code__, _SKIP)
    return target


def _functions(target: Any) -> Iterator[FunctionType]:
    if isinstance(target, FunctionType):
        yield target
    elif isinstance(target, property):
        yield from _functions(target.fget)
    elif isinstance(target, type):
        for member in vars(target).values():
            if isinstance(member, FunctionType | property):
                yield from _functions(member)
