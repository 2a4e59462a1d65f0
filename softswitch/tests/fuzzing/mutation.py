# SPDX-License-Identifier: Apache-2.0
"""Compiled programs, spoiled in ways that know what BMv2's JSON looks like. The same seed spoils alike."""

import copy
import random
from collections.abc import Iterator, Sequence
from typing import Any, Final

_ODD_NUMBERS: Final = (
    *(0, 1, 2, 3, 7, 8, 9, 31, 32, 33, 63, 64, 65, 127, 128, 129, 511, 512, 2047, 2048, 2049),
    *(16321, 65535, 1 << 20, (1 << 31) - 1, 1 << 31, 1 << 32, 1 << 63, 1 << 64, 1 << 200, -1, -(1 << 63)),
)
_ODD_VALUES: Final = (None, True, False, "", "0x", "-0x1", "x", 3.5, [], {}, [[]], "0x" + "f" * 600)
_DEEP: Final = (10, 100, 399, 400, 401, 3000)
_EXPRESSION: Final = "expression"

Place = tuple[Any, Any]
"""A dict or list, and a key of it."""


class Mutator:
    """Spoils programs.

    Args:
        donors: programs whose parts turn up in others.
        rng: where chance comes from.
    """

    def __init__(self, donors: Sequence[Any], rng: random.Random) -> None:
        self._donors = donors
        self._rng = rng

    def spoil(self, root: Any) -> None:
        """Make one to four changes."""
        for _ in range(self._rng.choice((1, 1, 1, 2, 2, 4))):
            self._change(root)

    def spoiled_text(self, text: bytes) -> bytes:
        """JSON text with some bytes changed, removed or doubled."""
        data = bytearray(text)
        for _ in range(self._rng.randrange(1, 5)):
            at = self._rng.randrange(len(data))
            match self._rng.randrange(4):
                case 0:
                    data[at] = self._rng.randrange(256)
                case 1:
                    del data[at : at + self._rng.choice((1, 1, 10, 1000))]
                case 2:
                    data[at:at] = data[at : at + self._rng.choice((1, 10, 1000))]
                case _:
                    data[at] ^= 1 << self._rng.randrange(8)
            if not data:
                break
        return bytes(data)

    def _change(self, root: Any) -> None:
        changes = (self._delete, self._double, self._replace, self._nest, self._swap)
        likely = (self._number, self._retarget, self._graft)
        change = self._rng.choice((*changes, *likely, *likely, *likely))
        change(root)

    # -- changes -------------------------------------------------------------------------------------

    def _delete(self, root: Any) -> None:
        node, key = self._place(root)
        del node[key]

    def _double(self, root: Any) -> None:
        node, key = self._place(root, lambda node, _: isinstance(node, list))
        node.insert(self._rng.randrange(len(node) + 1), copy.deepcopy(node[key]))

    def _replace(self, root: Any) -> None:
        node, key = self._place(root)
        node[key] = copy.deepcopy(self._rng.choice((*_ODD_VALUES, *_ODD_NUMBERS)))

    def _number(self, root: Any) -> None:
        """Choose another width, size, identifier or constant."""
        node, key = self._place(root, lambda node, key: _is_number(node[key]))
        odd = self._rng.choice(_ODD_NUMBERS)
        if self._rng.random() < 0.4:
            odd = int(str(node[key]), 16 if isinstance(node[key], str) else 10) + self._rng.choice((-1, 1, 8))
        node[key] = hex(odd) if isinstance(node[key], str) else odd

    def _retarget(self, root: Any) -> None:
        """Put another name, or the name of something else, where a name stands."""
        node, key = self._place(root, lambda node, key: isinstance(node[key], str))
        others = [n[k] for n, k in _places(root) if k == key and isinstance(n[k], str) and n[k] != node[key]]
        if others and isinstance(key, str):
            node[key] = self._rng.choice(others)
        else:
            names = [n[k] for n, k in _places(root) if isinstance(n[k], str)]
            node[key] = self._rng.choice(names)

    def _graft(self, root: Any) -> None:
        """Put a part of this or another program where one with the same key stands."""
        node, key = self._place(root, lambda node, key: isinstance(node, dict))
        donor = root if self._rng.random() < 0.7 else self._rng.choice(self._donors)
        parts = [n[k] for n, k in _places(donor) if k == key and isinstance(n, dict)]
        if parts:
            node[key] = copy.deepcopy(self._rng.choice(parts))

    def _nest(self, root: Any) -> None:
        """Nest an expression within many others."""
        node, key = self._place(root, lambda node, key: _is_operand(node[key]))
        inner = node[key]
        for _ in range(self._rng.choice(_DEEP)):
            op = self._rng.choice(("~", "-", "+", "d2b", "not"))
            left = None if op != "+" else {"type": "hexstr", "value": "0x1"}
            inner = {"type": _EXPRESSION, "value": {"op": op, "left": left, "right": inner}}
        node[key] = inner

    def _swap(self, root: Any) -> None:
        node, key = self._place(root, lambda node, _: isinstance(node, list) and len(node) > 1)
        other = self._rng.randrange(len(node))
        node[key], node[other] = node[other], node[key]

    # -- places --------------------------------------------------------------------------------------

    def _place(self, root: Any, wanted: Any = None) -> Place:
        """Return a random place, of those that are wanted if there are any: first a section, then inside of
        it.
        """
        sections = [key for key, value in root.items() if isinstance(value, dict | list) and value]
        for _ in range(20):
            if not sections:
                break
            section = self._rng.choice(sections)
            found = [(node, key) for node, key in _places(root[section]) if not wanted or wanted(node, key)]
            if found:
                return self._rng.choice(found)
        root.setdefault("spare", ["0x1", "0x2"])
        return root["spare"], 0


def _places(root: Any) -> Iterator[Place]:
    stack = [root]
    while stack:
        node = stack.pop()
        for key in list(node) if isinstance(node, dict) else range(len(node)):
            if key == "source_info":
                continue
            yield node, key
            if isinstance(node[key], dict | list):
                stack.append(node[key])


def _is_number(value: Any) -> bool:
    if isinstance(value, str):
        return (
            value.startswith("0x") and all(c in "0123456789abcdefABCDEF" for c in value[2:]) and value != "0x"
        )
    return isinstance(value, int) and not isinstance(value, bool)


def _is_operand(value: Any) -> bool:
    return isinstance(value, dict) and value.get("type") in ("field", "hexstr", _EXPRESSION, "bool")
