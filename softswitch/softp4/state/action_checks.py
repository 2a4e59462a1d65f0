# SPDX-License-Identifier: Apache-2.0
"""Checks of the arguments that the control plane gives an action."""

from collections.abc import Sequence

from softp4.errors import Code, ControlError
from softp4.program.types import Action


def check_args(action: Action, args: Sequence[int]) -> None:
    """Raise ControlError unless there is one argument for each parameter, and each fits."""
    if len(args) != len(action.params):
        raise ControlError(
            Code.INVALID_ARGUMENT, f"{action.name} takes {len(action.params)} arguments, not {len(args)}"
        )
    for value, param in zip(args, action.params, strict=True):
        if not 0 <= value < 1 << param.bits:
            raise ControlError(
                Code.OUT_OF_RANGE, f"{action.name}, {param.name}: {value} does not fit {param.bits} bits"
            )
