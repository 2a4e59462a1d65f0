# SPDX-License-Identifier: Apache-2.0
"""What a table sees of the packet: bytes of containers on the input crossbar, and hash bits made of them."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tests.harness.bfa.assembly import Section, Text, UnknownLineError, arguments, bounds
from tests.harness.bfa.containers import Names, Slice, Values

_GROUP: Final = re.compile(r"(exact|ternary|byte) group (\d+)")
_XOR: Final = re.compile(r"slice\(stripe\(xor\((0x[0-9a-f]+), \{(.*)\}\)\), 0\.\.(\d+)\)")
_HALF: Final = 64  # bits of one hash table's share of an exact group
_UNIT: Final = 16  # bits of one hash distribution unit; three units share a hash group
_UNITS: Final = 3

Group = tuple[str, int]


@dataclass(frozen=True)
class _HashBits:
    """Some bits of a hash: each an XOR of bits of the packet."""

    lo: int
    inputs: tuple[
        tuple[Slice, int], ...
    ]  # with the bit of the hash, from `lo`, that the slice's first one is in
    width: int

    def value(self, values: Values) -> int:
        total = 0
        for place, shift in self.inputs:
            total ^= place.read(values) << shift
        folded = 0
        while total:
            folded ^= total & (1 << self.width) - 1
            total >>= self.width
        return folded << self.lo


class Crossbar:
    """The ``input_xbar`` of one table."""

    def __init__(self, section: Section | None, names: Names, stage: int) -> None:
        self._names, self._stage = names, stage
        self.groups: dict[Group, list[tuple[int, Slice]]] = {}
        self._hashes: dict[int, list[_HashBits]] = {}
        self._members: dict[int, list[int]] = {}
        if section is None:
            return
        for match, _, node in section.each(Section, "containers were expected", _GROUP.pattern):
            self._group((match[1], int(match[2])), node)
        for match, _, node in section.each(Section, "hash bits were expected", r"hash (\d+)"):
            self._hash(int(match[1]), node)
        for match, _, node in section.each(Section, "tables of hash bits were expected", r"hash group (\d+)"):
            self._members[int(match[1])] = [int(text.value) for text in node.items("table").texts()]
            node.not_modelled("seed")  # spreads an exact table's entries over its memories
            node.done()
        section.done()

    def _group(self, group: Group, node: Section) -> None:
        for match, _, text in node.each(Text, "a container was expected", r"(\d+)"):
            place = self._names.slice(text, self._stage)
            if int(match[1]) % 8 != place.lo % 8:
                text.refuse("the crossbar moves bytes, not bits")
            self.groups.setdefault(group, []).append((int(match[1]), place))
        node.done()

    def _hash(self, table: int, node: Section) -> None:
        for match, _, text in node.each(Text, "a hash function was expected", r"(\d+(?:\.\.\d+)?)"):
            low, high = bounds(match[1])
            if text.value.startswith("random("):
                continue  # where an exact table's entries lie; they are found by their keys here
            inputs, width = self._function(text, high - low + 1)
            for place, _ in inputs:
                self._check(text, table, place)
            self._hashes.setdefault(table, []).append(_HashBits(low, inputs, width))
        node.done()

    def _function(self, text: Text, width: int) -> tuple[tuple[tuple[Slice, int], ...], int]:
        match = _XOR.fullmatch(text.value)
        if match is None:
            place = self._names.slice(text, self._stage)
            if place.width != width:
                text.refuse(f"not {width} bits")
            return ((place, 0),), width
        if int(match[1], 16) != width or int(match[3]) + 1 != width:
            text.refuse(f"not {width} bits")
        inputs = []
        for part in arguments(match[2]):
            shift, _, name = part.partition(": ")
            inputs.append((self._names.slice(Text(name, text.line), self._stage), int(shift)))
        return tuple(inputs), width

    def _check(self, text: Text, table: int, place: Slice) -> None:
        """Hash table 2n is of the lower half of exact group n, 2n + 1 of its upper half."""
        half = range(_HALF * (table % 2), _HALF * (table % 2) + _HALF)
        there: set[tuple[str, int]] = set()
        for at, held in self.groups.get(("exact", table // 2), ()):
            if at in half:
                there |= held.bits()
        if not place.bits() <= there:
            text.refuse(f"{place} is not on the half of the crossbar that hash {table} sees")

    def bits(self, groups: list[Group] | None = None) -> set[tuple[str, int]]:
        """Return the containers' bits on the crossbar, or on some groups of it."""
        chosen = self.groups.keys() if groups is None else groups
        return {bit for group in chosen for _, place in self.groups.get(group, ()) for bit in place.bits()}

    def unit(self, number: int, section: Section) -> Callable[[Values], int]:
        """Return the function of a hash distribution unit: an address, in bits or in entries by its shift."""
        group, shift = int(section.text("hash").value), int(section.text("shift").value)
        mask = int(section.text("mask").value, 16)
        section.done()
        if group not in self._members:
            raise UnknownLineError(f"line {section.line}: no hash group {group} on this table's crossbar")
        low = number % _UNITS * _UNIT
        function = self.hash(group)
        return lambda values: ((function(values) >> low & (1 << _UNIT) - 1) & mask) << shift

    def hash(self, group: int) -> Callable[[Values], int]:
        """Return the function of a whole hash group."""
        parts = [part for table in self._members[group] for part in self._hashes.get(table, ())]

        def value(values: Values) -> int:
            total = 0
            for part in parts:
                total ^= part.value(values)
            return total

        return value

    def only_hash(self) -> Callable[[Values], int]:
        """Return the function of the one hash group."""
        if len(self._members) != 1:
            raise UnknownLineError("one hash group was expected")
        return self.hash(next(iter(self._members)))

    def raw(self, first: int, count: int) -> Callable[[Values], bytes]:
        """Return the function of some bytes of the one exact group: containers' bytes, whole, as they are."""
        moved: list[tuple[int, str, int]] = []  # byte there, container, its byte
        if len(self.groups) != 1:
            raise UnknownLineError("one group on the crossbar was expected")
        (((kind, _), places),) = self.groups.items()
        if kind != "exact":
            raise UnknownLineError("an exact group was expected")
        for at, place in places:
            for byte in range(place.lo // 8, place.hi // 8 + 1):
                there = at // 8 + byte - place.lo // 8 - first
                if not 0 <= there < count:
                    raise UnknownLineError(f"{place} is beside the bytes that are read")
                moved.append((there, place.container, byte))

        def value(values: Values) -> bytes:
            data = bytearray(count)
            for there, container, byte in moved:
                data[there] = values.get(container, 0) >> 8 * byte & 0xFF
            return bytes(data)

        return value
