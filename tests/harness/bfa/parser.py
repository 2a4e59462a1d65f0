# SPDX-License-Identifier: Apache-2.0
"""A parser: states that compare what was loaded, take bytes into containers, and load what comes next."""

from dataclasses import dataclass, field
from typing import Final

from tests.harness.bfa.assembly import Section, Text, UnknownLineError, bounds, pattern
from tests.harness.bfa.containers import Names, Slice, Values, is_container, width_of

_REGISTERS: Final = {"byte0": 8, "byte1": 8, "half": 16}
_END: Final = "end"
_MOST_STATES: Final = 64  # of a packet: more is a loop


class TooShortError(Exception):
    """The packet ends where the parser needs more of it; the chip drops it."""


@dataclass(frozen=True)
class _Checksum:
    """The check of a ones' complement sum, whose outcome is one bit: 1 if it is wrong."""

    covered: tuple[int, ...]
    dest: Slice

    def wrong(self, data: bytes) -> int:
        total = sum(data[at] << (0 if at & 1 else 8) for at in self.covered)
        while total >> 16:
            total = (total & 0xFFFF) + (total >> 16)
        return int(total != 0xFFFF)


@dataclass
class _Row:
    """What a state does if what was loaded matches."""

    value: int
    mask: int
    next: str
    shift: int = 0
    needed: int = 0
    extracts: list[tuple[int, str]] = field(default_factory=list)
    constants: list[tuple[str, int]] = field(default_factory=list)
    checksums: list[_Checksum] = field(default_factory=list)
    loads: list[tuple[str, int]] = field(default_factory=list)


@dataclass
class _State:
    key: list[str]
    rows: list[_Row] = field(default_factory=list)


class Parser:
    """The parser of ingress or egress."""

    def __init__(self, section: Section, names: Names) -> None:
        self._names = names
        self._start = section.text("start").value
        self._zeroed = [text.value for text in section.items("init_zero").texts()]
        self._joined = {text.value for text in section.items("bitwise_or").texts()}
        # Lengths that the chip reports, and which metadata it puts in front: given by the caller.
        section.not_modelled("hdr_len_adj", "meta_opt")
        self._states: dict[str, _State] = {}
        states = section.section("states")
        if states is None:
            raise UnknownLineError(f"line {section.line}: a parser without states")
        for _, name, node in states.each(Section, "a state was expected"):
            self._states[name.value] = self._state(node)
        section.done()

    def _state(self, section: Section) -> _State:
        state = _State([text.value for text in section.items("match").texts()])
        for name in state.key:
            if name not in _REGISTERS:
                raise UnknownLineError(f"line {section.line}: unknown match register {name}")
        width = sum(_REGISTERS[name] for name in state.key)
        for _, key, node in section.take():
            value, mask, bits = pattern(key)
            if not isinstance(node, Section) or bits > width:
                key.refuse("a row of the state was expected")
            state.rows.append(self._row(node, value, mask))
        return state

    def _row(self, section: Section, value: int, mask: int) -> _Row:
        row = _Row(value, mask, section.text("next").value)
        row.needed = int(section.text("buf_req").value)
        if "shift" in section:
            row.shift = int(section.text("shift").value)
        section.not_modelled("intr_md")  # of the metadata in front, again
        if (loads := section.section("load")) is not None:
            for _, register, node in loads.each(Text, "bytes were expected", "|".join(_REGISTERS)):
                first, last = bounds(node.value)
                if 8 * (last - first + 1) != _REGISTERS[register.value]:
                    node.refuse("not as many bytes as the register has")
                row.loads.append((register.value, first))
            loads.done()
        for _, _, node in section.each(Section, "a checksum was expected", r"checksum \d+"):
            row.checksums.append(self._checksum(node))
        for match, key, node in section.take(r"([\d.]+)"):
            first, last = bounds(match[1])
            if not isinstance(node, Text) or 8 * (last - first + 1) != width_of(node.value):
                key.refuse("a container of as many bytes was expected")
            row.extracts.append((first, node.value))
        for _, key, node in section.each(Text, "a constant was expected", r"T?[BHW]\d+"):
            row.constants.append((key.value, int(node.value)))
        section.done()
        return row

    def _checksum(self, section: Section) -> _Checksum:
        for key, known in (("type", "VERIFY"), ("swap", "0"), ("start", "1"), ("end", "1")):
            if (text := section.text(key)).value != known:
                text.refuse(f"a checksum whose {key} is not {known}")
        # A byte may be named twice: what counts is a mask of bytes.
        covered = {
            at
            for text in section.items("mask").texts()
            for first, last in (bounds(text.value),)
            for at in range(first, last + 1)
        }
        dest = self._names.slice(section.text("dest"), 0)
        if dest.width != 1:
            raise UnknownLineError(f"line {section.line}: a checksum's outcome is one bit")
        section.done()
        return _Checksum(tuple(sorted(covered)), dest)

    def parse(self, data: bytes) -> tuple[Values, bytes]:
        """Return the containers, and the payload.

        Raises:
            TooShortError: the packet ends within what a state needs.
        """
        values: Values = dict.fromkeys(self._zeroed, 0)
        written: set[str] = set()
        loaded = dict.fromkeys(_REGISTERS, 0)
        at, name = 0, self._start
        for _ in range(_MOST_STATES):
            row = self._matching(name, loaded)
            window = data[at:]
            if len(window) < max(row.needed, row.shift):
                raise TooShortError
            for first, container in row.extracts:
                piece = window[first : first + width_of(container) // 8]
                self._write(values, written, container, int.from_bytes(piece, "big"))
            for container, constant in row.constants:
                self._write(values, written, container, constant)
            for checksum in row.checksums:
                dest = checksum.dest
                values[dest.container] = values.get(dest.container, 0) | checksum.wrong(window) << dest.lo
            for register, first in row.loads:
                size = _REGISTERS[register] // 8
                loaded[register] = int.from_bytes(window[first : first + size], "big")
            at += row.shift
            name = row.next
            if name == _END:
                return values, data[at:]
        raise UnknownLineError(f"the parser does not come to an end: {name}")

    def _matching(self, name: str, loaded: dict[str, int]) -> _Row:
        state = self._states.get(name)
        if state is None:
            raise UnknownLineError(f"there is no state {name}")
        key = 0
        for register in state.key:
            key = key << _REGISTERS[register] | loaded[register]
        for row in state.rows:
            if key & row.mask == row.value:
                return row
        raise UnknownLineError(f"state {name} says nothing of {key:#x}")

    def _write(self, values: Values, written: set[str], container: str, value: int) -> None:
        if not is_container(container):
            raise UnknownLineError(f"{container} is no container")
        if container in written and container not in self._joined:
            raise UnknownLineError(f"the parser writes {container} twice")
        written.add(container)
        values[container] = values.get(container, 0) | value if container in self._joined else value
