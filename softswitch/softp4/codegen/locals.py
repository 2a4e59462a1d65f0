# SPDX-License-Identifier: Apache-2.0
"""Temporaries that never leave an action become C variables.

p4c keeps every local variable of every action in one metadata struct, `scalars`. Most are written and
read within one action body and nowhere else. This pass finds them, gives each *assignment* within a
basic block its own name (static single assignment), and substitutes small expressions where they are
used, so that what remains of a lane's work is a register read, an addition and a register write:
the shape that `codegen.reroll` looks for.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from softp4.codegen.layout import LOCAL, Layout
from softp4.codegen.ranges import Ranges
from softp4.codegen.usage import (
    STATEFUL,
    calculation_fields,
    destination,
    fields_in,
    headers_changed,
    inputs,
    map_inputs,
    statement_fields,
    walk,
    with_destination,
)
from softp4.program.ir import (
    Assign,
    Binary,
    Const,
    CopyHeader,
    Expr,
    FieldRef,
    Hash,
    Jump,
    MarkToDrop,
    RegisterRead,
    Statement,
    Valid,
)
from softp4.program.types import Action, Program

_SMALL = 6  # nodes; an expression up to this size may be substituted at several places


def private_fields(
    program: Program, actions: Iterable[Action], outside: Collection[FieldRef]
) -> set[FieldRef]:
    """Return metadata fields that live only inside single actions, always written before they are read.

    Args:
        program: the program.
        actions: all that its pipelines may run.
        outside: the fields that something other than an action uses, see ``outside_actions``.
    """
    candidates: set[FieldRef] = set()
    refused = set(outside)
    for action in actions:
        for statement in action.body:
            candidates |= statement_fields(program, statement)
            if isinstance(statement, CopyHeader):
                refused |= statement_fields(program, statement)
        refused |= _read_before_written(action)
    return {
        ref
        for ref in candidates - refused
        if program.headers[ref.header].metadata
        and ref.header != "standard_metadata"
        and ref not in program.aliases.values()
        and program.field(ref).bits <= 128
        and not program.field(ref).varbit
    }


def _read_before_written(action: Action) -> set[FieldRef]:
    """Return fields some path through the action may read before writing (forward data flow, to a fixed
    point).
    """
    body = action.body
    written: list[frozenset[FieldRef] | None] = [None] * (len(body) + 1)
    written[0] = frozenset()
    exposed: set[FieldRef] = set()
    pending = [0]
    while pending:
        at = pending.pop()
        if at >= len(body):
            continue
        before = written[at] or frozenset()
        statement = body[at]
        for expr in inputs(statement):
            exposed.update(ref for ref in fields_in(expr) if ref not in before)
        dst = destination(statement)
        after = before | {dst} if isinstance(dst, FieldRef) else before
        for following in _following(statement, at):
            known = written[following]
            merged = after if known is None else known & after
            if merged != known:
                written[following] = merged
                pending.append(following)
    return exposed


def _following(statement: Statement, at: int) -> Iterator[int]:
    if isinstance(statement, Jump):
        yield statement.target
        if statement.unless is None:
            return
    yield at + 1


@dataclass(frozen=True)
class Block:
    """A straight run of statements, entered only at its start; `label` is its number in the action."""

    label: int
    statements: tuple[Statement, ...]


def blocks(body: tuple[Statement, ...]) -> list[Block]:
    """Split an action body at jumps and their targets."""
    leaders = {0, len(body)}
    for at, statement in enumerate(body):
        if isinstance(statement, Jump):
            leaders |= {statement.target, at + 1}
    starts = sorted(leaders)
    return [Block(start, body[start:end]) for start, end in pairwise(starts)]


class Renamer:
    """Renames and substitutes the private fields of one action, block by block.

    `shared` lists the C variables that live across blocks; those of one block are assigned once.
    """

    def __init__(self, layout: Layout, action: Action, private: set[FieldRef]) -> None:
        self._layout = layout
        self._action = action
        self._ranges = Ranges(layout, action.params, f"action {action.name}")
        self.blocks = blocks(action.body)
        places: dict[FieldRef, set[int]] = {}
        for block in self.blocks:
            for statement in block.statements:
                for ref in statement_fields(layout.program, statement) & private:
                    places.setdefault(ref, set()).add(block.label)
        self._single = {ref for ref, where in places.items() if len(where) == 1}
        self._shared: dict[FieldRef, FieldRef] = {}
        for ref in sorted(set(places) - self._single, key=str):
            kind = layout.field_type(ref)
            name = f"t{action.id}_{len(self._shared)}"
            self._shared[ref] = layout.add_local(name, kind.bits, kind.signed)
        self.shared = list(self._shared.values())
        self._count = 0

    def block(self, block: Block) -> tuple[Statement, ...]:
        """Return the block's statements with private fields as single-assignment temporaries."""
        renamed = self._rename(block.statements)
        return _drop_unused(self._substitute(renamed))

    def _rename(self, statements: tuple[Statement, ...]) -> list[Statement]:
        current: dict[FieldRef, FieldRef] = dict(self._shared)
        promoted = self._promoted(statements)

        def renamed(expr: Expr) -> Expr | None:
            if not isinstance(expr, FieldRef):
                return None
            # never assigned on this path: if-conversion made a read whose value does not matter
            return current.get(expr) or (Const(0) if expr in self._single else None)

        result: list[Statement] = []
        for statement in statements:
            new = map_inputs(statement, renamed)
            dst = destination(new)
            if isinstance(dst, FieldRef):
                if dst in self._single or dst in promoted:
                    if isinstance(new, RegisterRead):  # out of range, the variable stays as it was
                        new = replace(new, otherwise=current.get(dst, dst if dst in promoted else None))
                    self._count += 1
                    kind = self._layout.field_type(dst)
                    name = f"v{self._action.id}_{self._count}"
                    current[dst] = self._layout.add_local(name, kind.bits, kind.signed)
                    new = with_destination(new, current[dst])
                elif dst in self._shared:
                    new = with_destination(new, self._shared[dst])
            result.append(new)
        at_end = [Assign(ref, current[ref]) for ref in promoted]
        before_jump = len(result) - 1 if result and isinstance(result[-1], Jump) else len(result)
        return [*result[:before_jump], *at_end, *result[before_jump:]]

    def _promoted(self, statements: tuple[Statement, ...]) -> list[FieldRef]:
        """Return other metadata fields that the block assigns more than once: kept in temporaries, stored
        once.

        So a field that counts through a block (`at = at + 1` after each lane) becomes `at + constant`.
        """
        counts: dict[FieldRef, int] = {}
        hidden: set[FieldRef] = set()
        program = self._layout.program
        for statement in statements:
            dst = destination(statement)
            if isinstance(dst, FieldRef):
                counts[dst] = counts.get(dst, 0) + 1
            if isinstance(statement, CopyHeader | MarkToDrop):
                hidden |= statement_fields(program, statement)
            if isinstance(statement, Hash):
                hidden.update(calculation_fields(program, program.calculations[statement.calculation]))
        return [
            ref
            for ref, count in counts.items()
            if count > 1
            and self._layout.field_type(ref).bits <= 128
            and ref not in hidden
            and ref not in self._single
            and ref not in self._shared
            and program.headers[ref.header].metadata
        ]

    def _substitute(self, statements: list[Statement]) -> list[Statement]:
        """Put the defining expression of a temporary where it is used, while its operands still hold."""
        uses: dict[FieldRef, int] = {}
        for statement in statements:
            for expr in inputs(statement):
                for ref in fields_in(expr):
                    uses[ref] = uses.get(ref, 0) + 1
        known: dict[FieldRef, Expr] = {}
        result: list[Statement] = []
        for statement in statements:
            new = map_inputs(statement, lambda e: known.get(e) if isinstance(e, FieldRef) else None)
            if isinstance(new, Assign):
                new = Assign(new.dst, _fold(new.src))
            result.append(new)
            self._forget(known, new)
            if isinstance(new, Assign) and isinstance(new.dst, FieldRef) and new.dst.header == LOCAL:
                if new.dst in self._shared.values() or not _pure(new.src):
                    continue
                size = sum(1 for _ in walk(new.src))
                if uses.get(new.dst, 0) <= 1 or size <= _SMALL:
                    known[new.dst] = self._cut(new.src, new.dst)
        return result

    def _forget(self, known: dict[FieldRef, Expr], statement: Statement) -> None:
        if not known:
            return
        dst = destination(statement)
        if isinstance(dst, FieldRef):
            if dst.header == LOCAL and dst not in self._shared.values():
                return  # assigned once: nothing that is known can contain it
            gone = [name for name, expr in known.items() if dst in set(fields_in(expr))]
        else:
            headers = headers_changed(self._layout.program, statement)
            if not headers and dst is None:
                return
            gone = [
                name
                for name, expr in known.items()
                if any(ref.header in headers for ref in fields_in(expr))
                or any(isinstance(node, Valid) and node.header in headers for node in walk(expr))
            ]
        for name in gone:
            del known[name]

    def _cut(self, expr: Expr, ref: FieldRef) -> Expr:
        """Return the expression as it reads back from a field of this width."""
        kind = self._layout.field_type(ref)
        interval = self._ranges(expr)
        if kind.signed:
            low, high = -(1 << kind.bits - 1), (1 << kind.bits - 1) - 1
            if low <= interval.low and interval.high <= high:
                return expr
            return Binary("two_comp_mod", expr, Const(kind.bits))
        if interval.low >= 0 and interval.high < 1 << kind.bits:
            return expr
        return Binary("&", expr, Const((1 << kind.bits) - 1))


def _fold(expr: Expr) -> Expr:
    """Fold sums: (((x + a) & mask) + b) & mask is (x + (a + b)) & mask."""
    match expr:
        case Binary("&", Binary("+", Binary("&", Binary("+", x, Const(a)), Const(n)), Const(b)), Const(m)):
            if m & (m + 1) == 0 and n & m == m:
                return Binary("&", Binary("+", x, Const((a + b) & m)), Const(m))
    return expr


def _pure(expr: Expr) -> bool:
    """Return whether an expression depends on nothing but fields, parameters and header validity."""
    return not any(isinstance(node, STATEFUL) for node in walk(expr))


def _drop_unused(statements: list[Statement]) -> tuple[Statement, ...]:
    """Remove single-assignment temporaries nobody reads, from the last to the first."""
    live: set[FieldRef] = set()
    kept: list[Statement] = []
    for statement in reversed(statements):
        dst = destination(statement)
        if (
            isinstance(statement, Assign)
            and isinstance(dst, FieldRef)
            and dst.header == LOCAL
            and dst.field.startswith("v")
            and dst not in live
        ):
            continue
        kept.append(statement)
        for expr in inputs(statement):
            live.update(fields_in(expr))
    return tuple(reversed(kept))
