# SPDX-License-Identifier: Apache-2.0
"""Finds loops in straight-line code.

P4 has no loops that p4c-bm2-ss keeps: 32 lanes are 32 copies of the same statements with the constants
and field positions one further each time. This pass finds such sequences, groups of statements equal but
for constants, field positions and register indices that grow linearly, and gives them back as loops.
The loop runs the very same statements in the very same order, so nothing about aliasing has to be
proved here.
"""

import dataclasses
import functools
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final, cast

from softp4.codegen.layout import LOCAL, Layout
from softp4.codegen.ranges import Ranges
from softp4.codegen.usage import (
    STATEFUL,
    destination,
    fields_in,
    inputs,
    map_inputs,
    rewrite,
    walk,
    with_destination,
)
from softp4.program.ir import (
    Assign,
    Binary,
    Const,
    Expr,
    FieldRef,
    RegisterRead,
    RegisterWrite,
    Statement,
)

MIN_COUNT: Final = 4
_MAX_PERIOD: Final = 16
_INDEX_BITS: Final = 32


@dataclass(frozen=True)
class Stepping:
    """A leaf of the loop body that changes: value `first` in iteration 0, `step` more each time."""

    first: int
    step: int


@dataclass(frozen=True)
class Loop:
    """`count` iterations of `body`.

    `consts` are the temporaries in the body that stand for constants that step, `fields` those that
    stand for the elements of a run of fields: by C name of the array and position in it.

    A register read out of range leaves its variable as it was, which `body` does not say: `carried` has the
    temporaries that keep their value from one iteration to the next, with what they are before the first.
    Where it is not as simple, `unrolled` has all iterations as they are in the program, else nothing.
    """

    count: int
    body: tuple[Statement, ...]
    consts: dict[FieldRef, Stepping]
    fields: dict[FieldRef, tuple[str, Stepping]]
    carried: Mapping[FieldRef, Expr] = field(default_factory=dict)
    unrolled: tuple[Statement, ...] = ()


Item = Statement | Loop
_Leaf = tuple[str, int] | tuple[str, str]


class Reroller:
    """Re-rolls the blocks of one action."""

    def __init__(self, layout: Layout, ranges: Ranges, prefix: str) -> None:
        self._layout = layout
        self._ranges = ranges
        self._prefix = prefix
        self._made = 0

    def block(self, statements: Sequence[Statement]) -> list[Item]:
        """Return the statements with every sequence of at least MIN_COUNT equal groups as a loop."""
        block = [self._canonical(statement) for statement in statements]
        shapes: list[int] = []
        leaves: list[tuple[_Leaf, ...]] = []
        numbers: dict[tuple[object, ...], int] = {}
        for position, statement in enumerate(block):
            shape, found = self._signature(statement)
            # a statement that may not be in a loop has a shape of its own
            shapes.append(numbers.setdefault(shape or ("alone", position), len(numbers)))
            leaves.append(found)
        defined = {
            dst: position
            for position, statement in enumerate(block)
            if isinstance(dst := destination(statement), FieldRef) and _single_assignment(dst)
        }
        items: list[Item] = []
        at = 0
        while at < len(block):
            loop = self._loop_at(block, at, shapes, leaves, defined)
            if loop is None:
                items.append(block[at])
                at += 1
            else:
                items.append(loop)
                at += loop.count * len(loop.body)
        return items

    def _loop_at(
        self,
        block: list[Statement],
        at: int,
        shapes: list[int],
        leaves: list[tuple[_Leaf, ...]],
        defined: dict[FieldRef, int],
    ) -> Loop | None:
        best: tuple[int, int] | None = None
        for period in range(1, min(_MAX_PERIOD, (len(block) - at) // MIN_COUNT) + 1):
            if shapes[at] != shapes[at + period]:
                continue
            count = self._count(at, period, shapes, leaves, defined, block)
            if count >= MIN_COUNT and (best is None or count * period > best[0] * best[1]):
                best = count, period
        if best is None:
            return None
        count, period = best
        steps = [_steps(leaves[at + s], leaves[at + s + period], defined) for s in range(period)]
        loop = self._build([_in_range(each) for each in block[at : at + period]], steps, count)
        unrolled = block[at : at + count * period]
        if all(_in_range(each) is each for each in unrolled):
            return loop
        carried = _carried(unrolled, period)
        return replace(loop, unrolled=tuple(unrolled)) if carried is None else replace(loop, carried=carried)

    def _count(
        self,
        at: int,
        period: int,
        shapes: list[int],
        leaves: list[tuple[_Leaf, ...]],
        defined: dict[FieldRef, int],
        block: list[Statement],
    ) -> int:
        """Return how many groups of `period` statements from `at` on are one group stepping linearly."""
        count = 1
        while at + (count + 1) * period <= len(block):
            here = at + count * period
            if not all(
                shapes[here + s] == shapes[at + s]
                and _fits(
                    leaves[at + s], leaves[at + s + period], leaves[here + s], count, at, period, defined
                )
                for s in range(period)
            ):
                break
            count += 1
        while count >= MIN_COUNT and not _closed(block, at, count * period, defined):
            count -= 1
        if count >= MIN_COUNT and not all(
            self._in_one_run(leaf, second, count)
            for s in range(period)
            for leaf, second in zip(leaves[at + s], leaves[at + s + period], strict=True)
        ):
            return 0
        return count

    def _in_one_run(self, first: _Leaf, second: _Leaf, count: int) -> bool:
        """Return whether a stepping leaf can be written as a C expression of the iteration."""
        kind, a = first
        if kind == "local" or a == second[1]:
            return True
        step = int(second[1]) - int(a)
        last = int(a) + step * (count - 1)
        if kind == "const":
            return int(a) >= 0 and last >= 0
        header = self._layout.program.headers[kind]
        names = [header.type.fields[position].name for position in (int(a), last)]
        arrays = {self._layout.slot(FieldRef(kind, name)).array for name in names}
        return len(arrays) == 1 and None not in arrays

    # -- signatures --------------------------------------------------------------------------------

    def _signature(self, statement: Statement) -> tuple[tuple[object, ...] | None, tuple[_Leaf, ...]]:
        """Return what must be equal in all iterations, and the leaves that may step.

        A leaf is ("const", value), ("local", name) or (header, position of the field).
        """
        if not isinstance(statement, Assign | RegisterRead | RegisterWrite):
            return None, ()
        if not isinstance(getattr(statement, "dst", None), FieldRef | None):
            return None, ()
        if getattr(statement, "register", None) in self._layout.loose:
            return None, ()
        if any(isinstance(node, STATEFUL) for expr in inputs(statement) for node in walk(expr)):
            return None, ()
        leaves: list[_Leaf] = []
        shape = self._shape(_in_range(statement), leaves)
        return shape, tuple(leaves)

    def _shape(self, node: object, leaves: list[_Leaf]) -> tuple[object, ...]:
        match node:
            case Const(value):
                leaves.append(("const", value))
                return (Const,)
            case FieldRef(header, name):
                if header == LOCAL:
                    leaves.append(("local", name))
                else:
                    kind = self._layout.program.headers[header].type
                    leaves.append((header, kind.index(name)))
                bits = self._layout.field_type(node)
                return (FieldRef, header, bits.bits, bits.signed)
            case Binary("two_comp_mod" | "sat_cast" | "usat_cast" | "<<" | ">>" as op, left, Const(width)):
                return (Binary, op, width, self._shape(left, leaves))
        names = _field_names(cast(Hashable, type(node)))
        if names is None:
            return (node,)
        return (type(node), *(self._shape(getattr(node, name), leaves) for name in names))

    def _canonical(self, statement: Statement) -> Statement:
        """Write register indices as (X + constant) & mask, so that "base" matches "base + 1"."""
        if isinstance(statement, RegisterRead | RegisterWrite):
            return dataclasses.replace(statement, index=self._canonical_index(statement.index))
        return statement

    def _canonical_index(self, index: Expr) -> Expr:
        if isinstance(index, Const) or self._ranges(index).signed:
            return index
        mask = None
        body: Expr = index
        while isinstance(body, Binary) and body.op == "&" and isinstance(body.right, Const):
            bits = body.right.value.bit_length()
            if body.right.value != (1 << bits) - 1:
                break
            mask = bits if mask is None else min(mask, bits)
            body = body.left
        inner = self._ranges(body)
        if inner.signed:
            return index
        added = 0
        while isinstance(body, Binary) and isinstance(body.right, Const) and body.right.value >= 0:
            adds = body.op == "+" or (body.op == "|" and body.right.value < 1 << self._zero_bits(body.left))
            if not adds:
                break
            added += body.right.value
            body = body.left
        if mask is None:
            mask = self._ranges(body).bits if added == 0 else inner.bits
        while isinstance(body, Binary) and body.op == "&" and isinstance(body.right, Const):
            if body.right.value & (1 << mask) - 1 != (1 << mask) - 1:
                break
            body = body.left  # (x & m) + c, cut to m, is x + c, cut to m
        if self._ranges(body).signed or mask > 128:
            return index
        return Binary("&", Binary("+", body, Const(added)), Const((1 << mask) - 1))

    def _zero_bits(self, expr: Expr) -> int:
        """Return how many of the lowest bits of an expression are certainly zero."""
        match expr:
            case Binary("<<", _, Const(amount)):
                return amount
            case Binary("&", left, Const()):
                return self._zero_bits(left)
            case _:
                return 0

    # -- loops -------------------------------------------------------------------------------------

    def _build(self, group: list[Statement], steps: list[list[int]], count: int) -> Loop:
        consts: dict[FieldRef, Stepping] = {}
        fields: dict[FieldRef, tuple[str, Stepping]] = {}
        body = []
        for statement, deltas in zip(group, steps, strict=True):
            pending = list(deltas)
            body.append(self._replace(statement, pending, count, consts, fields))
        return Loop(count, tuple(body), consts, fields)

    def _replace(
        self,
        statement: Statement,
        deltas: list[int],
        count: int,
        consts: dict[FieldRef, Stepping],
        fields: dict[FieldRef, tuple[str, Stepping]],
    ) -> Statement:
        """Return the statement with stepping leaves replaced, consuming `deltas` in `_shape`'s order."""

        def leaf(expr: Expr) -> Expr | None:
            if isinstance(expr, Const):
                delta = deltas.pop(0)
                return self._const(Stepping(expr.value, delta), count, consts) if delta else expr
            if isinstance(expr, FieldRef):
                delta = deltas.pop(0)
                return self._field(expr, delta, fields) if delta else expr
            match expr:
                case Binary("two_comp_mod" | "sat_cast" | "usat_cast" | "<<" | ">>", left, Const()):
                    return dataclasses.replace(expr, left=rewrite(left, leaf))
            return None

        dst = destination(statement)
        new_dst = cast(FieldRef, leaf(dst)) if isinstance(dst, FieldRef) else None
        statement = map_inputs(statement, leaf)
        return statement if new_dst is None else with_destination(statement, new_dst)

    def _const(self, step: Stepping, count: int, consts: dict[FieldRef, Stepping]) -> FieldRef:
        for ref, known in consts.items():
            if known == step:
                return ref
        self._made += 1
        most = max(step.first, step.first + step.step * (count - 1))
        ref = self._layout.add_local(f"k{self._prefix}_{self._made}", max(most.bit_length(), 1), False)
        consts[ref] = step
        return ref

    def _field(self, ref: FieldRef, delta: int, fields: dict[FieldRef, tuple[str, Stepping]]) -> FieldRef:
        slot = self._layout.slot(ref)
        assert slot.array is not None
        wanted = slot.array, Stepping(slot.index, delta)
        for known, what in fields.items():
            if what == wanted:
                return known
        self._made += 1
        new = self._layout.add_local(f"f{self._prefix}_{self._made}", slot.bits, slot.signed)
        fields[new] = wanted
        return new


def _carried(unrolled: Sequence[Statement], period: int) -> dict[FieldRef, Expr] | None:
    """Return the temporaries of the first iteration that are, out of range, what they were in the one before.

    None when some read is to leave its variable as another statement made it.
    """
    carried: dict[FieldRef, Expr] = {}
    for position in range(period):
        reads = [each for each in unrolled[position::period] if isinstance(each, RegisterRead)]
        if all(each.otherwise is None for each in reads):
            continue
        if any(each.otherwise != before.dst for before, each in pairwise(reads)):
            return None
        carried[cast(FieldRef, reads[0].dst)] = reads[0].otherwise or Const(0)
    return carried


def _in_range(statement: Statement) -> Statement:
    """Return a register read as it is when its index is in range."""
    if isinstance(statement, RegisterRead) and statement.otherwise is not None:
        return replace(statement, otherwise=None)
    return statement


@functools.cache
def _field_names(kind: Hashable) -> tuple[str, ...] | None:
    if not isinstance(kind, type) or not dataclasses.is_dataclass(kind):
        return None
    return tuple(each.name for each in dataclasses.fields(kind))


def _single_assignment(ref: FieldRef) -> bool:
    return ref.header == LOCAL and ref.field.startswith("v")


def _steps(first: tuple[_Leaf, ...], second: tuple[_Leaf, ...], defined: dict[FieldRef, int]) -> list[int]:
    return [
        0 if kind == "local" else int(b) - int(a) for (kind, a), (_, b) in zip(first, second, strict=True)
    ]


def _fits(
    first: tuple[_Leaf, ...],
    second: tuple[_Leaf, ...],
    here: tuple[_Leaf, ...],
    count: int,
    at: int,
    period: int,
    defined: dict[FieldRef, int],
) -> bool:
    """Return whether the leaves of iteration `count` continue those of iterations 0 and 1 linearly."""
    for (kind, a), (_, b), (_, c) in zip(first, second, here, strict=True):
        if kind == "local":
            start = defined.get(FieldRef(LOCAL, str(a)), -1)
            now = defined.get(FieldRef(LOCAL, str(c)), -1)
            if start < at:  # from before the loop: must be the same one
                if a != c:
                    return False
            elif start >= at + period or now != start + count * period:
                return False
        elif int(c) - int(a) != count * (int(b) - int(a)):
            return False
    return True


def _closed(block: list[Statement], at: int, length: int, defined: dict[FieldRef, int]) -> bool:
    """Return whether nothing behind the loop reads a temporary of the loop."""
    inside = {ref for ref, position in defined.items() if at <= position < at + length}
    behind = (expr for statement in block[at + length :] for expr in inputs(statement))
    return not any(ref in inside for expr in behind for ref in fields_in(expr))
