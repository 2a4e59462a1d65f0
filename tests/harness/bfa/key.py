# SPDX-License-Identifier: Apache-2.0
"""The key of a table: fields, wherever their bits are, joined to one number."""

from collections.abc import Iterable
from dataclasses import dataclass

from tests.harness.bfa.assembly import Section, UnknownLineError
from tests.harness.bfa.containers import Names, Slice, Values


@dataclass(frozen=True)
class KeyField:
    """One field of a table's key."""

    name: str  # as entries have it
    field: str
    width: int
    shift: int  # of it in the whole key
    pieces: tuple[tuple[int, Slice], ...]


class Key:
    """The fields of a table's key, joined to one number."""

    def __init__(self, section: Section | None, names: Names, stage: int) -> None:
        self.fields: list[KeyField] = []
        shift = 0
        if section is None:
            return
        for _, name, node in section.each(Section, "a key's field was expected"):
            width, kind = int(node.text("size").value), node.text("type").value
            start = int(node.text("start_bit").value) if "start_bit" in node else 0
            called = node.text("key_name").value if "key_name" in node else name.value
            node.not_modelled("full_size")
            node.done()
            if kind not in ("exact", "ternary"):
                name.refuse(f"unknown match of kind {kind}")
            pieces = tuple(names.field(name, stage, start, start + width - 1))
            self.fields.append(KeyField(called, name.value, width, shift, pieces))
            shift += width
        self._places = [(one.shift + at, place) for one in self.fields for at, place in one.pieces]

    def bits(self) -> set[tuple[str, int]]:
        """Return the containers' bits that are compared."""
        return {bit for one in self.fields for _, place in one.pieces for bit in place.bits()}

    def value(self, values: Values) -> int:
        """Return the packet's key."""
        key = 0
        for at, place in self._places:
            key |= place.read(values) << at
        return key

    def join(self, parts: Iterable[tuple[int, int | None]]) -> tuple[int, int]:
        """Return value and mask of an entry, from those of its fields; None is all of a field."""
        value = mask = 0
        for one, (part, wanted) in zip(self.fields, parts, strict=True):
            whole = (1 << one.width) - 1
            # Masks of parts of a field are written as wide as the field.
            compared = whole if wanted is None else wanted & whole
            if part & ~compared:
                raise UnknownLineError(f"{one.name}: {part:#x} with mask {compared:#x} is no key")
            value, mask = value | part << one.shift, mask | compared << one.shift
        return value, mask
