# SPDX-License-Identifier: Apache-2.0
"""What the soft switch says when it refuses something."""

from weir.p4runtime.codes import Code

__all__ = ["Code", "ControlError", "ProgramError", "UnsupportedConstruct"]


class ProgramError(ValueError):
    """The input is not a BMv2 JSON program, or one that contradicts itself. The message says where."""


class UnsupportedConstruct(ProgramError):  # noqa: N818 - it names what is refused, not what went wrong
    """The program is well formed but uses something this switch does not run.

    Args:
        construct: what is refused, in BMv2 JSON's own word (``"generate_digest"``).
        where: the part of the program that uses it (``"action MyIngress.learn"``).
    """

    def __init__(self, construct: str, where: str) -> None:
        super().__init__(f"the soft switch does not support {construct} (used in {where})")
        self.construct = construct
        self.where = where


class ControlError(Exception):
    """A control-plane call the switch refused; its state is as it was before the call."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return f"{self.code.name}: {self.message}"
