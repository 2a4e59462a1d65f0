# SPDX-License-Identifier: Apache-2.0
"""Errors of programs."""


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
