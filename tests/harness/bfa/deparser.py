# SPDX-License-Identifier: Apache-2.0
"""A deparser: which containers leave, checksums between them, and what the traffic manager is told."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from tests.harness.bfa.assembly import Items, Section, Text, UnknownLineError
from tests.harness.bfa.containers import DEPARSER, Names, Slice, Values, width_of

_TOLD: Final = ("egress_unicast_port", "icos", "qid", "meter_color", "drop_ctl")


@dataclass(frozen=True)
class Mirrored:
    """What must be copied: to which session, and what is put in front."""

    session: int
    front: bytes


@dataclass
class Deparsed:
    """A packet as it leaves ingress or egress; of what was never written, nothing is told."""

    frame: bytes
    told: dict[str, int] = field(default_factory=dict)
    mirrored: Mirrored | None = None


class Deparser:
    """The deparser of ingress or egress."""

    def __init__(self, section: Section, names: Names) -> None:
        self._names = names
        self._emits: list[tuple[Slice, Callable[[Values], bytes]]] = []
        self._sums: dict[str, list[tuple[str, bool]]] = {}
        for match, key, node in section.take(r"partial_checksum (\d+)"):
            self._sums[match[1]] = self._covered(key, node)
        checksums: dict[str, list[str]] = {}
        for match, key, node in section.take(r"full_checksum (\d+)"):
            checksums[match[1]] = self._parts(key, node)
        dictionary = section.section("dictionary")
        if dictionary is None:
            raise UnknownLineError(f"line {section.line}: a deparser without a dictionary")
        for match, key, node in dictionary.each(
            Text, "a bit that says whether it leaves was expected", r"(?:full_checksum (\d+)|T?[BHW]\d+)"
        ):
            valid = self._slice(node)
            if valid.width != 1:
                node.refuse("one bit was expected")
            emit = _sum(self._sums, checksums[match[1]]) if match[1] else _container(key.value)
            self._emits.append((valid, emit))
        dictionary.done()
        self._told: dict[str, Slice] = {}
        for name in _TOLD:
            if isinstance(text := section.get(name), Text):
                self._told[name] = self._slice(text)
        groups = section.items("egress_multicast_group_0").texts()
        if groups:
            self._told["group"] = self._slice(groups[0])
        self._select: Slice | None = None
        self._mirrors: dict[int, list[Slice]] = {}
        if (mirror := section.section("mirror")) is not None:
            self._select = self._slice(mirror.text("select"))
            for match, _, node in mirror.each(Items, "a session and containers were expected", r"(\d+)"):
                self._mirrors[int(match[1])] = [self._slice(text) for text in node.texts()]
            mirror.done()
        section.done()

    def _slice(self, text: Text) -> Slice:
        return self._names.slice(text, DEPARSER)

    def _covered(self, key: Text, node: object) -> list[tuple[str, bool]]:
        """Return the containers of a sum; a byte is swapped if it is the upper of its 16 bits."""
        covered = []
        for one in node.values if isinstance(node, Items) else ():
            if not isinstance(one, Section):
                key.refuse("containers were expected")
            for _, container, how in one.each(Section, "how it is added was expected", r"T?[BHW]\d+"):
                swapped = "swap" in how and how.text("swap").value == "1"
                if swapped and width_of(container.value) != 8:
                    container.refuse("only bytes are swapped")
                covered.append((container.value, swapped))
                how.done()
            one.done()
        return covered

    def _parts(self, key: Text, node: object) -> list[str]:
        parts = []
        for one in node.values if isinstance(node, Items) else ():
            if not isinstance(one, Section):
                key.refuse("partial sums were expected")
            for match, name, how in one.take(r"partial_checksum (\d+)"):
                if match[1] not in self._sums or not isinstance(how, Section):
                    name.refuse("there is no such sum")
                how.done()
                parts.append(match[1])
            one.done()
        return parts

    def deparse(self, values: Values, payload: bytes) -> Deparsed:
        """Return the packet, and what is told of it."""
        frame = b"".join(emit(values) for valid, emit in self._emits if valid.read(values))
        told = {name: place.read(values) for name, place in self._told.items() if place.container in values}
        deparsed = Deparsed(frame + payload, told)
        if self._select is not None and (chosen := self._select.read(values)):
            if chosen not in self._mirrors:
                raise UnknownLineError(f"there is no mirror {chosen}")
            session, *front = self._mirrors[chosen]
            data = b"".join(_container(place.container)(values) for place in front)
            deparsed.mirrored = Mirrored(session.read(values), data)
        return deparsed


def _container(name: str) -> Callable[[Values], bytes]:
    size = width_of(name) // 8
    return lambda values: values.get(name, 0).to_bytes(size, "big")


def _sum(sums: dict[str, list[tuple[str, bool]]], parts: list[str]) -> Callable[[Values], bytes]:
    covered = [one for part in parts for one in sums[part]]

    def checksum(values: Values) -> bytes:
        total = 0
        for container, swapped in covered:
            total += values.get(container, 0) << (8 if swapped else 0)
        while total >> 16:
            total = (total & 0xFFFF) + (total >> 16)
        return (total ^ 0xFFFF).to_bytes(2, "big")

    return checksum
