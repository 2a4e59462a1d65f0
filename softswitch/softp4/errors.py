# SPDX-License-Identifier: Apache-2.0
"""Refusals that the control plane is told of."""

from softp4.p4runtime.codes import Code

__all__ = ["Code", "ControlError"]


class ControlError(Exception):
    """A control-plane call the switch refused; its state is as it was before the call."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return f"{self.code.name}: {self.message}"
