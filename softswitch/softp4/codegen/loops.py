# SPDX-License-Identifier: Apache-2.0
"""Re-rolled loops to C that the compiler can vectorise.

Everything a loop reads and does not write is loaded before it; arrays (runs of fields, register cells) are
reached through `restrict` pointers, one per array; and where a register index advances by a constant,
its bounds are checked once, before the loop. When that check fails the loop runs with a check per
iteration, as the program says.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

from softp4.codegen.expressions import Compiler, literal, machine_bits, register_array, unsigned
from softp4.codegen.layout import LOCAL, Layout
from softp4.codegen.reroll import Loop, Stepping
from softp4.codegen.statements import StatementWriter
from softp4.codegen.usage import (
    destination,
    fields_in,
    inputs,
    map_inputs,
    rewrite,
    walk,
    with_destination,
)
from softp4.codegen.widths import c_type, storage_bits
from softp4.program.ir import (
    Binary,
    Const,
    Expr,
    FieldRef,
    ParamRef,
    RegisterRead,
    RegisterWrite,
    Statement,
    Valid,
)


@dataclass(frozen=True)
class _Row:
    """A hoisted register index: cell `name` + step * i of a register, in range for all iterations."""

    name: str
    step: int
    pointer: str


class LoopWriter:
    """Writes the loops of one action."""

    def __init__(self, layout: Layout, compiler: Compiler, writer: StatementWriter) -> None:
        self._layout = layout
        self._compiler = compiler
        self._writer = writer

    def write(self, loop: Loop) -> list[str]:
        """Return the C lines of a loop."""
        return _LoopText(self._layout, self._compiler, self._writer, loop).lines()


class _LoopText:
    def __init__(self, layout: Layout, compiler: Compiler, writer: StatementWriter, loop: Loop) -> None:
        self._layout = layout
        self._compiler = compiler
        self._writer = writer
        self._loop = loop
        self._written = {dst for each in loop.body if isinstance(dst := destination(each), FieldRef)}
        self._before: list[str] = []  # declarations in front of the loop
        self._checks: list[str] = []
        self._arrays: dict[str, str] = {}  # C array -> pointer
        self._names: dict[FieldRef, FieldRef] = {}  # leaf -> temporary whose name is its C text
        self._rows: dict[tuple[str, Expr], _Row] = {}

    def lines(self) -> list[str]:
        """Return the whole loop as a C block."""
        for array, _ in self._loop.fields.values():
            self._pointer(array)
        for ref, (array, step) in self._loop.fields.items():
            self._rename(ref, f"{self._pointer(array)}[{_advance(step)}]")
        for statement in self._loop.body:
            refs = {ref for expr in inputs(statement) for ref in fields_in(expr)}
            dst = destination(statement)
            for ref in sorted(refs | ({dst} if isinstance(dst, FieldRef) else set()), key=str):
                self._leaf(ref)
        body = [self._renamed(statement) for statement in self._loop.body]
        self._hoist_rows([each for each in body if isinstance(each, RegisterRead | RegisterWrite)])
        all_in_range = not (self._loop.carried or self._loop.unrolled) or all(
            (each.register, each.index) in self._rows for each in body if isinstance(each, RegisterRead)
        )
        if self._loop.unrolled and not all_in_range:
            return ["{", *_indent(self._unrolled()), "}"]
        fast = [line for statement in body for line in self._fast(statement)]
        fast = [*self._constants(fast), *self._temporaries(), *fast]
        head = f"for (size_t i = 0; i < {self._loop.count}; i++) {{"
        if not all_in_range:
            return ["{", *_indent([*self._before, *self._slow(head, body)]), "}"]
        if not self._checks:
            return ["{", *_indent([*self._before, head, *_indent(fast), "}"]), "}"]
        slow = self._unrolled() if self._loop.unrolled else self._slow(head, body)
        inner = [
            *self._before,
            f"if ({' && '.join(self._checks)}) {{",
            *_indent([head, *_indent(fast), "}"]),
            "} else {",
            *_indent(slow),
            "}",
        ]
        return ["{", *_indent(inner), "}"]

    def _slow(self, head: str, body: list[Statement]) -> list[str]:
        """Return the loop with a check per access."""
        carried = self._loop.carried
        kinds = {ref: c_type(storage_bits(self._layout.field_type(ref).bits)) for ref in carried}
        outside = [
            f"{kinds[ref]} {ref.field} = {self._compiler.stored(start, self._layout.field_type(ref).bits)};"
            for ref, start in carried.items()
        ]
        declared_outside = {f"{kind} {ref.field};" for ref, kind in kinds.items()}
        declared = [line for line in self._temporaries() if line not in declared_outside]
        lines: list[str] = []
        for statement in body:
            if isinstance(statement, RegisterRead) and statement.dst in carried:
                lines += self._writer.write(replace(statement, otherwise=cast(FieldRef, statement.dst)))
            else:
                lines += self._writer.write(statement)
        return [*outside, head, *_indent([*self._constants(lines), *declared, *lines]), "}"]

    def _unrolled(self) -> list[str]:
        """Return all iterations as the program has them."""
        made = dict.fromkeys(destination(each) for each in self._loop.unrolled)
        declared = [
            f"{c_type(storage_bits(self._layout.field_type(ref).bits))} {ref.field};"
            for ref in made
            if isinstance(ref, FieldRef) and ref.header == LOCAL and ref.field.startswith("v")
        ]
        return [*declared, *(line for each in self._loop.unrolled for line in self._writer.write(each))]

    def _constants(self, users: list[str]) -> list[str]:
        """Declare the stepping constants that some line of `users` names."""
        named = set(re.findall(r"\w+", " ".join(users)))
        lines = []
        for ref, step in self._loop.consts.items():
            if ref.field in named:
                kind = unsigned(machine_bits(self._layout.field_type(ref).bits))
                lines.append(f"const {kind} {ref.field} = ({kind})({_advance(step)});")
        return lines

    def _temporaries(self) -> list[str]:
        """Declare what one iteration writes and reads."""
        return [
            f"{c_type(storage_bits(self._layout.field_type(ref).bits))} {ref.field};"
            for ref in sorted(self._written, key=str)
            if ref.header == LOCAL and ref not in self._loop.fields and ref.field.startswith("v")
        ]

    # -- leaves ------------------------------------------------------------------------------------

    def _leaf(self, ref: FieldRef) -> None:
        """Decide how the loop reaches a field that does not step."""
        if ref.header == LOCAL or ref in self._names:
            return
        slot = self._layout.slot(ref)
        if slot.array in self._arrays and slot.array is not None:
            self._rename(ref, f"{self._pointer(slot.array)}[{slot.index}]")
        elif ref not in self._written and slot.bits <= 128:
            name = f"c{len(self._before)}"
            self._before.append(f"const {c_type(slot.storage)} {name} = {slot.access};")
            self._rename(ref, name)

    def _rename(self, ref: FieldRef, text: str) -> None:
        kind = self._layout.field_type(ref)
        self._names[ref] = self._layout.add_local(text, kind.bits, kind.signed)

    def _pointer(self, array: str) -> str:
        if array not in self._arrays:
            name = f"a{len(self._arrays)}"
            users = (ref for ref, (each, _) in self._loop.fields.items() if each == array)
            bits = self._layout.field_type(next(users)).bits
            self._arrays[array] = name
            self._before.append(f"{c_type(storage_bits(bits))} *restrict const {name} = {array};")
        return self._arrays[array]

    def _renamed(self, statement: Statement) -> Statement:
        changed = map_inputs(statement, lambda e: self._names.get(e) if isinstance(e, FieldRef) else None)
        dst = destination(changed)
        if isinstance(dst, FieldRef) and dst in self._names:
            return with_destination(changed, self._names[dst])
        return changed

    # -- registers ---------------------------------------------------------------------------------

    def _hoist_rows(self, accesses: list[RegisterRead | RegisterWrite]) -> None:
        """Hoist the indices of registers all of whose accesses advance by a constant.

        All of them, because then every access goes through the one `restrict` pointer.
        """
        for register in dict.fromkeys(each.register for each in accesses):
            indices = dict.fromkeys(each.index for each in accesses if each.register == register)
            advances = {index: self._advances(index) for index in indices}
            if None in advances.values():
                continue
            cells = self._layout.program.registers[register]
            pointer = f"g{len(self._before)}"
            kind = c_type(storage_bits(cells.bits))
            array = register_array(self._layout, register)
            self._before.append(f"{kind} *restrict const {pointer} = {array};")
            for index, found in advances.items():
                assert found is not None
                ref, step = found
                start = index if ref is None else rewrite(index, _put(ref, Const(step.first)))
                name = f"x{len(self._before)}"
                self._before.append(f"const uint64_t {name} = {self._compiler.index(start)};")
                self._checks.append(f"{name} + {step.step * (self._loop.count - 1)}u < {cells.size}u")
                self._rows[register, index] = _Row(name, step.step, pointer)

    def _advances(self, index: Expr) -> tuple[FieldRef | None, Stepping] | None:
        """Return the stepping constant of an index of the form (X + constant) & mask, X the same
        throughout.
        """
        consts = self._loop.consts
        if isinstance(index, Const):
            return None, Stepping(index.value, 0)
        if isinstance(index, FieldRef) and index in consts:
            return (index, consts[index]) if consts[index].step > 0 else None
        match index:
            case Binary("&", Binary("+", left, right), Const()):
                if not self._constant(left):
                    return None
                if isinstance(right, Const):
                    return None, Stepping(0, 0)
                if isinstance(right, FieldRef) and right in consts and consts[right].step > 0:
                    return right, consts[right]
        return None

    def _constant(self, expr: Expr) -> bool:
        """Return whether an expression has one value throughout the loop."""
        hoisted = {name.field for name in self._names.values()} - {
            self._names[ref].field for ref in self._loop.fields
        }
        for node in walk(expr):
            if isinstance(node, FieldRef):
                # what is left as p->... is written in the loop; v... are the loop's own temporaries
                constant = node.header == LOCAL and node.field in hoisted and node.field.startswith("c")
                outer = node.header == LOCAL and node.field.startswith("v") and node not in self._written
                if not (constant or outer):
                    return False
            elif not isinstance(node, Binary | Const | ParamRef | Valid):
                return False
        return True

    def _fast(self, statement: Statement) -> list[str]:
        if not isinstance(statement, RegisterRead | RegisterWrite):
            return self._writer.write(statement)
        row = self._rows.get((statement.register, statement.index))
        if row is None:
            return self._writer.write(statement)
        bits = self._layout.program.registers[statement.register].bits
        cell = f"{row.pointer}[{row.name} + {row.step} * i]" if row.step else f"{row.pointer}[{row.name}]"
        if isinstance(statement, RegisterWrite):
            return [f"{cell} = {self._compiler.stored(statement.value, bits)};"]
        width = self._compiler.ranges.field(statement.dst).bits
        if width < bits:
            cell = f"({cell} & {literal((1 << width) - 1, machine_bits(bits))})"
        return self._writer.store(statement.dst, lambda _: cell)


def _put(ref: FieldRef, value: Expr) -> Callable[[Expr], Expr | None]:
    return lambda expr: value if expr == ref else None


def _advance(step: Stepping) -> str:
    return f"{step.first} + {step.step} * i" if step.step else f"{step.first}"


def _indent(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]
