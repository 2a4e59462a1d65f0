# SPDX-License-Identifier: Apache-2.0
"""Places in the P4 source that parts of a program come from, as far as the JSON says (`source_info`)."""

from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

from softp4.program.json import Json

_LONGEST: Final = 200  # characters kept of a fragment


@dataclass(frozen=True)
class Source:
    """A place: file name without folders, line, and what stands there."""

    file: str
    line: int
    text: str


def source_of(node: Json) -> Source | None:
    """Return the place a JSON node names; None without one, or with one that is not understood."""
    info = node.get("source_info") if isinstance(node, dict) else None
    if not isinstance(info, dict):
        return None
    file, line, text = (info.get(key) for key in ("filename", "line", "source_fragment"))
    if not isinstance(file, str) or type(line) is not int or not isinstance(text, str):
        return None
    return Source(PurePath(file).name, line, " ".join(text.split())[:_LONGEST])
