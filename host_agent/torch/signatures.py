# SPDX-License-Identifier: Apache-2.0
"""The forms in which the collectives of a group object can be called: those of torch's ``ProcessGroup``.

Torch's own code passes lists of tensors and an options object. Users also pass one tensor, and an operator, a
root or a timeout: ``group.broadcast(tensor, root=0)``, ``group.allreduce(tensor, ReduceOp.MAX)``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from functools import cached_property
from typing import Any, Final

import torch
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    GatherOptions,
    ReduceOp,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
)


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(one, torch.Tensor) for one in value)


def _is_list_of_lists(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(map(_is_list, value))


class ArgumentKind(Enum):
    """Kinds of arguments."""

    TENSOR = "a tensor"
    TENSORS = "a list of tensors"
    LISTS = "a list of lists of tensors"
    SPLITS = "a list of numbers"
    ROOT = "a rank"
    OPERATOR = "a ReduceOp"
    TIMEOUT = "a timedelta or seconds"
    OPTIONS = "options"


_DEPTHS: Final = {ArgumentKind.TENSOR: 0, ArgumentKind.TENSORS: 1, ArgumentKind.LISTS: 2}
_OPTIONAL: Final = {ArgumentKind.OPERATOR, ArgumentKind.TIMEOUT, ArgumentKind.OPTIONS}
_ACCEPTS: Final[Mapping[ArgumentKind, Callable[[Any], bool]]] = {
    ArgumentKind.TENSOR: lambda value: isinstance(value, torch.Tensor),
    ArgumentKind.TENSORS: _is_list,
    ArgumentKind.LISTS: _is_list_of_lists,
    ArgumentKind.SPLITS: lambda value: isinstance(value, list | tuple | torch.Size),
    ArgumentKind.ROOT: lambda value: isinstance(value, int),
    ArgumentKind.OPERATOR: lambda value: isinstance(value, ReduceOp | ReduceOp.RedOpType),
    ArgumentKind.TIMEOUT: lambda value: value is None or isinstance(value, timedelta | float),
}

_SETS: Final = {
    ArgumentKind.ROOT: "rootRank",
    ArgumentKind.OPERATOR: "reduceOp",
    ArgumentKind.TIMEOUT: "timeout",
}
"""Options that arguments set."""

Form = Mapping[str, ArgumentKind]


@dataclass(frozen=True)
class Signature:
    """All forms that one collective can be called in.

    Args:
        options: the class of its options.
        forms: names and kinds of the arguments. The first form is the one that ``bind`` returns.
    """

    options: type
    forms: tuple[Form, ...]

    def bind(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the arguments of a call in the first form, the options last.

        Raises:
            TypeError: they fit none of the forms.
        """
        first, count = self._usual
        plain = not kwargs and len(args) == count
        if plain and isinstance(args[-1], self.options) and isinstance(args[0], first):
            return args  # torch's own calls: not looked at further, they come often
        for form in self.forms:
            given = dict(zip(form, args, strict=False))
            if (
                len(args) <= len(form)
                and not given.keys() & kwargs.keys()
                and self._fits(form, {**given, **kwargs})
            ):
                return self._in_first_form(form, {**given, **kwargs})
        forms = "; ".join(
            f"{name}({', '.join(f'{n}: {k.value}' for n, k in form.items())})" for form in self.forms
        )
        types = ", ".join(
            [type(one).__name__ for one in args] + [f"{n}={type(v).__name__}" for n, v in kwargs.items()]
        )
        raise TypeError(f"{name}(): incompatible function arguments ({types}). It takes: {forms}")

    @cached_property
    def _usual(self) -> tuple[type, int]:
        """Class of the first argument of the first form, and number of its arguments."""
        kinds = list(self.forms[0].values())
        classes = {ArgumentKind.TENSOR: torch.Tensor, ArgumentKind.OPTIONS: self.options}
        return classes.get(kinds[0], list), len(kinds)

    def _fits(self, form: Form, given: Mapping[str, Any]) -> bool:
        if given.keys() - form.keys():
            return False
        for name, kind in form.items():
            if name not in given:
                if kind not in _OPTIONAL:
                    return False
            elif kind is ArgumentKind.OPTIONS:
                if given[name] is not None and not isinstance(given[name], self.options):
                    return False
            elif not _ACCEPTS[kind](given[name]):
                return False
        return True

    def _in_first_form(self, form: Form, given: Mapping[str, Any]) -> tuple[Any, ...]:
        options = given.get("opts") or self.options()
        found: list[Any] = []
        wanted = [kind for kind in self.forms[0].values() if kind is not ArgumentKind.OPTIONS]
        for name, kind in form.items():
            if kind in _SETS:
                if given.get(name) is not None:
                    setattr(options, _SETS[kind], given[name])
            elif kind is not ArgumentKind.OPTIONS:
                deeper = _DEPTHS.get(wanted[len(found)], 0) > _DEPTHS.get(kind, 0)
                found.append([given[name]] if deeper else given[name])
        return (*found, options)


_T, _TS, _LS = ArgumentKind.TENSOR, ArgumentKind.TENSORS, ArgumentKind.LISTS
_OPTS: Final = {"opts": ArgumentKind.OPTIONS}
_OP: Final = {"op": ArgumentKind.OPERATOR, "timeout": ArgumentKind.TIMEOUT}
_FROM: Final = {"root": ArgumentKind.ROOT, "timeout": ArgumentKind.TIMEOUT}
_ALONE: Final[Form] = {"tensors": _T, **_OPTS}
_SINGLE: Final[Form] = {"output": _T, "input": _T, **_OPTS}
_COALESCED: Final[Form] = {"outputs": _TS, "inputs": _TS, **_OPTS}
_SPLIT: Final[Form] = {
    "output": _T,
    "input": _T,
    "output_split_sizes": ArgumentKind.SPLITS,
    "input_split_sizes": ArgumentKind.SPLITS,
}

SIGNATURES: Final[Mapping[str, Signature]] = {
    "allreduce": Signature(
        AllreduceOptions, ({"tensors": _TS, **_OPTS}, {"tensors": _TS, **_OP}, {"tensor": _T, **_OP}, _ALONE)
    ),
    "allreduce_coalesced": Signature(AllreduceCoalescedOptions, ({"tensors": _TS, **_OPTS},)),
    "broadcast": Signature(BroadcastOptions, ({"tensors": _TS, **_OPTS}, {"tensor": _T, **_FROM}, _ALONE)),
    "reduce": Signature(
        ReduceOptions, ({"tensors": _TS, **_OPTS}, {"tensor": _T, "root": ArgumentKind.ROOT, **_OP}, _ALONE)
    ),
    "reduce_scatter": Signature(
        ReduceScatterOptions,
        (
            {"output_tensors": _TS, "input_tensors": _LS, **_OPTS},
            {"output": _T, "input": _TS, **_OP},
        ),
    ),
    "reduce_scatter_single": Signature(
        ReduceScatterOptions, ({"outputTensor": _T, "inputTensor": _T, **_OPTS},)
    ),
    "reduce_scatter_single_coalesced": Signature(ReduceScatterOptions, (_COALESCED,)),
    "allgather": Signature(
        AllgatherOptions,
        (
            {"output_tensors": _LS, "input_tensors": _TS, **_OPTS},
            {"output_tensors": _TS, "input_tensor": _T, "timeout": ArgumentKind.TIMEOUT},
        ),
    ),
    "allgather_coalesced": Signature(AllgatherOptions, ({"output_lists": _LS, "input_list": _TS, **_OPTS},)),
    "all_gather_single": Signature(AllgatherOptions, (_SINGLE,)),
    "all_gather_single_coalesced": Signature(AllgatherOptions, (_COALESCED,)),
    "gather": Signature(
        GatherOptions,
        (
            {"output_tensors": _LS, "input_tensors": _TS, **_OPTS},
            {"output_tensors": _TS, "input_tensor": _T, **_FROM},
        ),
    ),
    "scatter": Signature(
        ScatterOptions,
        (
            {"output_tensors": _TS, "input_tensors": _LS, **_OPTS},
            {"output_tensor": _T, "input_tensors": _TS, **_FROM},
        ),
    ),
    "alltoall": Signature(AllToAllOptions, ({"output_tensors": _TS, "input_tensors": _TS, **_OPTS},)),
    "all_to_all_single": Signature(
        AllToAllOptions, ({**_SPLIT, **_OPTS}, {**_SPLIT, "timeout": ArgumentKind.TIMEOUT})
    ),
    "barrier": Signature(BarrierOptions, (_OPTS, {"timeout": ArgumentKind.TIMEOUT})),
}
"""By the names of the group's methods."""
