# SPDX-License-Identifier: Apache-2.0
"""Values that random fields get: those that the program compares with, boundaries, small ones, any."""

import random
from collections.abc import Mapping, Sequence
from typing import Any, Final

_CONSTANTS: Final = 400  # more of them tell a program apart no better

FieldName = tuple[str, str]


class Vocabulary:
    """Values for fields of one program.

    Args:
        program: its BMv2 JSON.
        rng: where chance comes from.
    """

    def __init__(self, program: Any, rng: random.Random) -> None:
        found: dict[int, None] = {}
        _collect(program, found)
        self._constants = sorted(found)[:_CONSTANTS]
        self._rng = rng
        self._fitting: dict[int, list[int]] = {}
        self._theme: Mapping[FieldName, int] = {}

    def begin(self, theme: Mapping[FieldName, int]) -> None:
        """Let these fields mostly have these values from here on: those of entries that a frame shall hit."""
        self._theme = theme

    def value(self, bits: int, field: FieldName | None = None) -> int:
        """Return a value for this many bits."""
        rng = self._rng
        full = (1 << bits) - 1
        if field is not None and field in self._theme and rng.random() < 0.85:
            return self._theme[field] & full
        chance = rng.random()
        if chance < 0.35 and (fitting := self._constants_of(bits)):
            return rng.choice(fitting)
        if chance < 0.5:
            return rng.choice((0, 1, full, full - 1, 1 << bits - 1, (1 << bits - 1) - 1)) & full
        if chance < 0.7:
            return rng.randrange(16) & full
        return rng.getrandbits(bits)

    def _constants_of(self, bits: int) -> Sequence[int]:
        if bits not in self._fitting:
            self._fitting[bits] = [value for value in self._constants if value < 1 << bits]
        return self._fitting[bits]


def _collect(node: Any, found: dict[int, None]) -> None:
    if isinstance(node, Mapping):
        if node.get("type") == "hexstr" and isinstance(node.get("value"), str):
            found[abs(int(node["value"], 16))] = None
        if "match_type" in node and isinstance(node.get("key"), str):  # of an entry that the program has
            found[int(node["key"], 16)] = None
        for key, value in node.items():
            if key != "source_info":
                _collect(value, found)
    elif isinstance(node, list):
        for value in node:
            _collect(value, found)
