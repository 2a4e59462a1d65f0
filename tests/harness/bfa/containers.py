# SPDX-License-Identifier: Apache-2.0
"""The containers that carry a packet's fields: which bits of which one a name means in a stage."""

import re
from dataclasses import dataclass, field
from functools import cache
from typing import Final

from tests.harness.bfa.assembly import Section, Text, UnknownLineError, bounds

_WIDTHS: Final = {"B": 8, "H": 16, "W": 32}
_CONTAINER: Final = re.compile(r"T?([BHW])\d+")
PART: Final = re.compile(r"(.*)\.(\d+)-(\d+)")  # some bits of a field that lies in pieces
_SLICED: Final = re.compile(r"(.+?)\((\d+(?:\.\.\d+)?)\)")
DEPARSER: Final = 12  # names of the deparser are those of the stage behind the last

Values = dict[str, int]
"""What valid containers hold. One that nobody wrote is not valid, and reads as 0."""


@cache
def is_container(name: str) -> bool:
    """Return whether this is a container's name."""
    return _CONTAINER.fullmatch(name) is not None


@cache
def width_of(container: str) -> int:
    """Return a container's bits."""
    match = _CONTAINER.fullmatch(container)
    if match is None:
        raise UnknownLineError(f"{container} is no container")
    return _WIDTHS[match[1]]


@dataclass(frozen=True)
class Slice:
    """Bits ``lo`` to ``hi`` of a container."""

    container: str
    lo: int
    hi: int
    _mask: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_mask", (1 << self.width) - 1)

    @property
    def width(self) -> int:
        """Return how many bits it has."""
        return self.hi - self.lo + 1

    @property
    def whole(self) -> bool:
        """Return whether it is all of its container."""
        return self.width == width_of(self.container)

    def read(self, values: Values) -> int:
        """Return what it holds."""
        return values.get(self.container, 0) >> self.lo & self._mask

    def bits(self) -> set[tuple[str, int]]:
        """Return its bits one by one."""
        return {(self.container, bit) for bit in range(self.lo, self.hi + 1)}

    def part(self, lo: int, hi: int) -> "Slice":
        """Return some of its bits."""
        if hi < lo or self.lo + hi > self.hi:
            raise UnknownLineError(f"{self} has no bits {lo} to {hi}")
        return Slice(self.container, self.lo + lo, self.lo + hi)


def sliced(text: str) -> tuple[str, tuple[int, int] | None]:
    """Return the name and the bounds of ``name(3..7)``."""
    match = _SLICED.fullmatch(text)
    return (match[1], bounds(match[2])) if match else (text, None)


class Names:
    """The ``phv`` section of ingress or egress."""

    def __init__(self, section: Section) -> None:
        section.not_modelled("context_json")  # who else lives there, for debuggers
        self._places: dict[str, list[tuple[int, int, Slice]]] = {}
        self._parts: dict[str, list[str]] = {}
        for _, name, node in section.take():
            if isinstance(node, Text):
                self._add(name, 0, DEPARSER, node)
            elif isinstance(node, Section):
                for match, _, place in node.each(Text, "a container was expected", r"stage ([\d.]+)"):
                    self._add(name, *bounds(match[1]), place)
                node.done()
            else:
                name.refuse("a container was expected")

    def _add(self, name: Text, first: int, last: int, place: Text) -> None:
        container, part = sliced(place.value)
        if not is_container(container):
            place.refuse("no container")
        low, high = part or (0, width_of(container) - 1)
        self._places.setdefault(name.value, []).append((first, last, Slice(container, low, high)))
        if match := PART.fullmatch(name.value):
            self._parts.setdefault(match[1], []).append(name.value)

    def find(self, text: str, stage: int) -> Slice | None:
        """Return what a name or a container, with bounds or without, means; None if there is none."""
        name, part = sliced(text)
        if is_container(name):
            found = Slice(name, 0, width_of(name) - 1)
        else:
            places = [place for first, last, place in self._places.get(name, ()) if first <= stage <= last]
            if not places:
                return None
            found = places[0]
        return found.part(*part) if part else found

    def slice(self, text: Text, stage: int) -> Slice:
        """Return the same; what is not there is refused."""
        found = self.find(text.value, stage)
        if found is None:
            text.refuse(f"in no container in stage {stage}")
        return found

    def field(self, name: Text, stage: int, low: int, high: int) -> list[tuple[int, Slice]]:
        """Return where some bits of a field are: (their place among them, slice), for each piece."""
        pieces = []
        for part in (name.value, *self._parts.get(name.value, ())):
            place = self.find(part, stage)
            if place is None:
                continue
            match = PART.fullmatch(part) if part != name.value else None
            first = int(match[2]) if match else 0
            begin, end = max(low, first), min(high, first + place.width - 1)
            if begin <= end:
                pieces.append((begin - low, place.part(begin - first, end - first)))
        if sum(piece.width for _, piece in pieces) != high - low + 1:
            name.refuse(f"not whole in containers in stage {stage}")
        return pieces
