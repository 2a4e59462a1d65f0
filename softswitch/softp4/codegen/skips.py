# SPDX-License-Identifier: Apache-2.0
"""Chains of tests that are passed by at once when all of them fail.

P4 has no loops, so what a program does for each of many blocks is a long row of conditionals, each of which
asks for a bit or two (`if (mask & 4 != 0)`). For most packets nearly all of them fail. Every few tests, one
test of all the bits that are left says whether the rest can be left out: then nothing would happen in between
but assignments that p4c puts before an inlined control, of metadata that nobody reads afterwards.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from softp4.codegen.layout import Layout
from softp4.codegen.usage import outside_actions, pipeline_actions, statement_fields
from softp4.program.ir import Assign, Binary, Const, Expr, FieldRef, Unary, Valid
from softp4.program.tables import successors
from softp4.program.types import Pipeline, Program, Table

_EVERY: Final = 8  # tests


@dataclass(frozen=True)
class Skip:
    """Goes on at node `to` (None: the end) when C text `condition` is zero."""

    condition: str
    to: str | None


@dataclass(frozen=True)
class _Link:
    """A node of a chain: what follows when nothing happens, the bits it tests, the metadata it assigns.

    Bits are masks by the C integer that they are of; one must be set for the test to hold.
    """

    name: str
    following: str | None
    bits: Mapping[str, int]
    assigns: frozenset[FieldRef] = frozenset()


def skips(layout: Layout, pipeline: Pipeline, order: Sequence[str]) -> dict[str, Skip]:
    """By conditional, what goes in front of its test. `order`: nodes before those that may follow them."""
    program = layout.program
    links = {link.name: link for link in _links(layout, pipeline)}
    found: dict[str, Skip] = {}
    seen: set[str] = set()
    for name in order:
        if name in seen or name not in links or not links[name].bits:
            continue
        chain = list(_chain(links, name))
        seen.update(link.name for link in chain)
        tests = [at for at, link in enumerate(chain) if link.bits]
        if len(tests) < 2 * _EVERY:
            continue
        to = chain[tests[-1]].following
        read = _read_from(program, pipeline, to)
        for at in tests[_EVERY : 1 - _EVERY : _EVERY]:
            rest = chain[at : tests[-1] + 1]
            if not any(link.assigns & read for link in rest):
                found[chain[at].name] = Skip(_any_holds(rest), to)
    return found


def _chain(links: Mapping[str, _Link], head: str) -> Iterator[_Link]:
    at: str | None = head
    while at is not None and at in links:
        yield links[at]
        at = links[at].following


def _any_holds(rest: list[_Link]) -> str:
    """Return the C text, not zero when one of the tests holds."""
    masks: dict[str, int] = {}
    for link in rest:
        for word, mask in link.bits.items():
            masks[word] = masks.get(word, 0) | mask
    words: dict[int, list[str]] = {}
    for word, mask in masks.items():
        words.setdefault(mask, []).append(word)
    return " | ".join(f"(({' | '.join(each)}) & 0x{mask:x}ull)" for mask, each in words.items())


# -- what a chain is made of ---------------------------------------------------------------------------


def _links(layout: Layout, pipeline: Pipeline) -> Iterator[_Link]:
    for name, conditional in pipeline.conditionals.items():
        if bits := _bits(layout, conditional.condition):
            yield _Link(name, conditional.false_next, bits)
    for name, table in pipeline.tables.items():
        assigns = _assigns(layout.program, table)
        if assigns is not None:
            yield _Link(name, table.fixed_next, {}, assigns)


def _bits(layout: Layout, condition: Expr) -> dict[str, int]:
    """Return bits, by C integer, of which one must be set for a condition to hold; {} for another kind."""
    match condition:
        case Unary("d2b", Valid(header)) if header in layout.header_index:
            word, bit = layout.valid_bit(header)
            return {word: 1 << bit}
        case Binary("!=", Binary("&", FieldRef() as ref, Const(mask)), Const(0)):
            slot = layout.slot(ref)
            if not slot.signed and slot.bits <= 64 and 0 < mask < 1 << slot.bits:
                return {slot.access: mask}
    return {}


def _assigns(program: Program, table: Table) -> frozenset[FieldRef] | None:
    """Return the metadata that a table assigns which always runs one action; None when it may do more."""
    if table.fixed is None:
        return None
    assigned = set()
    for statement in program.actions[table.fixed.action].body:
        match statement:
            case Assign(FieldRef() as ref) if program.headers[ref.header].metadata:
                assigned.add(ref)
            case _:
                return None
    return frozenset(assigned)


def _read_from(program: Program, pipeline: Pipeline, start: str | None) -> set[FieldRef]:
    """Return the fields that may be read from a node on, or by whatever comes after the pipeline."""
    read = outside_actions(program)
    standard = program.headers["standard_metadata"].type
    read |= {FieldRef("standard_metadata", field.name) for field in standard.fields}
    read |= set(program.aliases.values())
    actions = [] if pipeline is program.egress else pipeline_actions(program, program.egress)
    seen = {start}
    waiting = [] if start is None else [start]
    while waiting:
        name = waiting.pop()
        if name in pipeline.tables:
            actions += program.table_actions(pipeline.tables[name])
        new = set(successors(pipeline, name)) - seen
        seen |= new
        waiting += new
    for action in actions:
        for statement in action.body:
            read |= statement_fields(program, statement)
    return read
