# SPDX-License-Identifier: Apache-2.0
"""The texts in a program that are meant for people: formats of log_msg, places of assertions."""

from typing import Final

from softp4.program.errors import ProgramError
from softp4.program.json import Json

_LONGEST: Final = 160


def message_parts(text: str, where: str) -> tuple[str, ...]:
    """Return a format cut at its placeholders, which are whatever stands in braces; a backslash escapes a
    brace.
    """
    parts: list[str] = []
    current = ""
    at = 0
    while at < len(text):
        if text[at] == "\\" and text[at + 1 : at + 2] in ("{", "}"):
            current += text[at + 1]
            at += 2
        elif text[at] == "{":
            end = _closing(text, at)
            if end < 0:
                raise ProgramError(f"{where}: a brace that is not closed in {text!r:.60}")
            parts.append(current)
            current = ""
            at = end + 1
        else:
            current += text[at]
            at += 1
    return (*parts, current)


def _closing(text: str, at: int) -> int:
    end = text.find("}", at)
    while end > 0 and text[end - 1] == "\\":
        end = text.find("}", end + 1)
    return end


def assertion_place(node: Json, where: str) -> str:
    """Return where an assertion is: its text in the source if the compiler says so, and what uses it."""
    source = node.get("source_info")
    if not isinstance(source, dict):
        return where
    text = " ".join(str(source.get("source_fragment", "")).split())
    return f"{text:.{_LONGEST}} ({where}, line {source.get('line', '?')})"
