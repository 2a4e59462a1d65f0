# SPDX-License-Identifier: Apache-2.0
"""Ingress or egress: parser, stages in which all is read before anything is written, deparser."""

import copy
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from tests.harness.bfa.assembly import Section, Text, UnknownLineError, bounds, read, words
from tests.harness.bfa.containers import Names
from tests.harness.bfa.deparser import Deparsed, Deparser
from tests.harness.bfa.parser import Parser
from tests.harness.bfa.stateful import Register
from tests.harness.bfa.tables import END, Attached, Context, Layout, Table

_MATCHES: Final = ("ternary_match", "exact_match", "hash_action")
_TABLE: Final = re.compile(r"(\w+) (\S+)(?: (\d+))?")


class Gress:
    """One of the two pipelines."""

    def __init__(self, program: Section, name: str) -> None:
        names = Names(_part(program, f"phv {name}"))
        self._parser = Parser(_part(program, f"parser {name}"), names)
        self._deparser = Deparser(_part(program, f"deparser {name}"), names)
        self.registers: dict[str, Register] = {}
        self.counters: dict[str, dict[int, int]] = {}
        self._stages: list[dict[str, Table]] = []
        self._order: dict[str, tuple[int, int]] = {}
        for match, key, node in program.take(rf"stage (\d+) {name}"):
            if not isinstance(node, Section) or int(match[1]) != len(self._stages):
                key.refuse("stages in their order were expected")
            self._stages.append(self._stage(node, len(self._stages), names))
        self.tables = {table.name: table for stage in self._stages for table in stage.values()}
        self._first = min(self._order, key=lambda name: self._order[name])

    def _stage(self, section: Section, stage: int, names: Names) -> dict[str, Table]:
        section.not_modelled("dependency")  # whether the next stage may begin before this one ends
        kinds: dict[str, dict[str, Section]] = {}
        matches: list[tuple[str, str, int, Section]] = []
        for match, key, node in section.each(Section, "a table was expected", _TABLE.pattern):
            if match[1] in _MATCHES and match[3] is not None:
                matches.append((match[1], match[2], int(match[3]), node))
            elif match[1] in ("ternary_indirect", "stateful", "counter", "action", "phase0_match"):
                kinds.setdefault(match[1], {})[match[2]] = node
            else:
                key.refuse("a table of an unknown kind")
        section.done()
        for phase0 in kinds.pop("phase0_match", {}).values():
            # Data of the port in front of each packet; this program skips them.
            phase0.not_modelled("p4", "size", "p4_param_order", "format", "constant_value", "actions")
            phase0.done()
        attached = self._attached(kinds, names, stage)
        tables: dict[str, Table] = {}
        indirects = kinds.get("ternary_indirect", {})
        for kind, called, number, node in matches:
            indirect = node.get("indirect")
            if isinstance(indirect, Text):
                if indirect.value not in indirects:
                    indirect.refuse("there is no such table")
                result = indirects.pop(indirect.value)
                _said_twice(node, result)
            else:
                result = node
            tables[called] = Table(kind, node, result, names, stage, attached)
            self._order[called] = (stage, number)
        for name, node in indirects.items():
            raise UnknownLineError(f"line {node.line}: {name} belongs to no table")
        return tables

    def _attached(self, kinds: dict[str, dict[str, Section]], names: Names, stage: int) -> Attached:
        attached = Attached({}, {}, {}, {})
        for name, node in kinds.get("stateful", {}).items():
            register = Register(node, names, stage)
            attached.registers[name] = self.registers[register.name] = register
        for name, node in kinds.get("counter", {}).items():
            attached.counters[name] = self.counters.setdefault(_counter(node), {})
        for name, node in kinds.get("action", {}).items():
            node.not_modelled("p4", "row", "logical_bus", "column", "vpns", "home_row", "word")
            attached.layouts[name] = {
                match[1]: _layout(key, layout) for match, key, layout in node.take("format (.*)")
            }
            attached.buses[name] = node.section("action_bus")
            node.done()
        return attached

    def run(self, data: bytes) -> Deparsed:
        """Let a packet through, metadata in front.

        Raises:
            TooShortError: the parser drops it.
            UnknownLineError: the program does what the chip has no answer to.
        """
        values, payload = self._parser.parse(data)
        following = self._first
        for number, stage in enumerate(self._stages):
            context = Context(values, dict(values))
            at = (number, -1)
            while following in stage:
                if self._order[following] <= at:
                    raise UnknownLineError(f"{following} comes after a later table")
                at = self._order[following]
                following = stage[following].run(context)
            if following != END and self._order.get(following, (-1, 0))[0] <= number:
                raise UnknownLineError(f"{following} is not in a later stage")
            values = context.left
        return self._deparser.deparse(values, payload)


def _said_twice(match: Section, indirect: Section) -> None:
    """Take from an indirect table what the one before it says, too; refuse it if they differ."""
    for key in ("input_xbar", "hash_dist"):
        if words(match.look(key)) != words(indirect.look(key)):
            raise UnknownLineError(f"line {indirect.line}: another {key} than the table has")
    match.not_modelled("hash_dist")
    indirect.not_modelled("input_xbar")


def _part(program: Section, key: str) -> Section:
    section = program.section(key)
    if section is None:
        raise UnknownLineError(f"there is no {key}")
    return section


def _counter(section: Section) -> str:
    section.not_modelled("row", "logical_bus", "column", "maprams", "vpns", "home_row")
    described = section.section("p4")
    if described is None:
        raise UnknownLineError(f"line {section.line}: a counter without a name")
    name = described.text("name").value
    described.not_modelled("size")
    described.done()
    if (kind := section.text("count")).value != "packets_and_bytes":
        kind.refuse("unknown counter")
    layout = section.section("format")
    if layout is None or len(list(layout.take())) != 2:
        raise UnknownLineError(f"line {section.line}: a counter of one entry in a word was expected")
    section.done()
    return name


def _layout(key: Text, layout: object) -> Layout:
    if not isinstance(layout, Section):
        key.refuse("action data fields were expected")
    places: Layout = {}
    for _, name, place in layout.each(Text, "bits were expected"):
        places[name.value] = bounds(place.value)
    return places


@dataclass(frozen=True)
class Program:
    """All of an assembly."""

    ingress: Gress
    egress: Gress


def load(text: str) -> Program:
    """Return a program without entries, from its assembly.

    Raises:
        UnknownLineError: a line is not known; nothing is ignored.
    """
    # Copies share the functions that lines were made into, which hold nothing of a packet or an entry.
    return copy.deepcopy(_load(text))


@lru_cache(maxsize=2)
def _load(text: str) -> Program:
    section = read(text)
    version = _part(section, "version")
    version.not_modelled("run_id")
    if (target := version.text("target")).value != "Tofino":
        target.refuse("another chip")
    version.done()
    # What memory errors do; and two files for debuggers.
    section.not_modelled("error_mode", "primitives", "dynhash")
    program = Program(Gress(section, "ingress"), Gress(section, "egress"))
    section.done()
    return program
