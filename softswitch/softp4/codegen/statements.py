# SPDX-License-Identifier: Apache-2.0
"""Statements of actions and parser states to C, one by one."""

from collections.abc import Callable

from softp4.codegen.expressions import Compiler, literal, register_cell
from softp4.codegen.header_statements import HeaderStatement, HeaderStatementWriter
from softp4.codegen.layout import Layout, Slot, is_temporary
from softp4.codegen.wide import extended
from softp4.program.errors import UnsupportedConstruct
from softp4.program.ir import (
    Assert,
    Assign,
    Clone,
    Const,
    CopyHeader,
    CopyStack,
    CopyUnion,
    CopyVarbit,
    CounterAdd,
    ExecuteMeter,
    Exit,
    Expr,
    FieldRef,
    GenerateDigest,
    Hash,
    LogMessage,
    Lvalue,
    MarkToDrop,
    Random,
    Recirculate,
    RegisterRead,
    RegisterWrite,
    Resubmit,
    SetValid,
    ShiftStack,
    StackField,
    Statement,
    Truncate,
)
from softp4.program.types import DROP_PORT, Meter, Program


class StatementWriter:
    """Writes single statements as C lines.

    `leave` is the C statement that leaves the action or parser for good.
    """

    def __init__(self, layout: Layout, compiler: Compiler, leave: str = "return;") -> None:
        self._leave = leave
        self._layout = layout
        self._program: Program = layout.program
        self._compiler = compiler

    def write(self, statement: Statement) -> list[str]:
        """Return the C lines of any statement but a jump."""
        compiler = self._compiler
        match statement:
            case Assign(dst, src):
                return self.store(dst, lambda bits: compiler.stored(src, bits))
            case RegisterRead():
                return self._register_read(statement)
            case RegisterWrite(name, index, value):
                register = self._program.registers[name]
                at = compiler.index(index)
                cell = register_cell(self._layout, name, at)
                write = assignment(cell, compiler.stored(value, register.bits), register.bits)
                if name in self._layout.loose:
                    write = f"SW_LOOSE_PUT({cell}, {compiler.stored(value, register.bits)});"
                return [f"if ({at} < {register.size}) {write}"]
            case CounterAdd(name, index):
                number = list(self._program.counters).index(name)
                size = self._program.counters[name].size
                at = compiler.index(index)
                cell = f"s->counters[{number}][{at}]"
                return [f"if ({at} < {size}) {{ {cell}.packets++; {cell}.bytes += m->ingress_length; }}"]
            case ExecuteMeter(dst, name, index):
                return self._execute_meter(dst, name, index)
            case GenerateDigest(digest):
                return [f"m->digest = {digest};"]
            case MarkToDrop():
                return self._mark_to_drop()
            case CopyHeader() | CopyUnion() | CopyStack() | CopyVarbit() | SetValid() | ShiftStack():
                return self._of_headers(statement)
            case _:
                return self._extern(statement)

    def store(self, dst: Lvalue, text_of_width: Callable[[int], str]) -> list[str]:
        """Assign to any lvalue; an element outside its stack is left alone."""
        kind = self._compiler.ranges.field(dst)
        text = text_of_width(kind.bits)
        if isinstance(dst, FieldRef):
            return [assignment(self._layout.slot(dst).access, text, kind.bits)]
        stack = self._program.stacks[dst.stack]
        if isinstance(dst, StackField):
            index, name = self._compiler.index(dst.index), stack.type.fields[dst.field].name
        else:
            index, name = f"(uint64_t)({self._layout.next_index(dst.stack)} - 1u)", dst.field
        access, _, _ = self._layout.member_access(stack.type, name)
        target = f"{self._layout.stack(dst.stack)}[{index}].{access}"
        return [f"if ({index} < {len(stack.headers)}) {assignment(target, text, kind.bits)}"]

    def _register_read(self, statement: RegisterRead) -> list[str]:
        dst, name, index = statement.dst, statement.register, statement.index
        register = self._program.registers[name]
        at = self._compiler.index(index)
        bits = self._compiler.ranges.field(dst).bits
        cell = self._compiler.cell_of_width(name, at, bits)
        if isinstance(dst, FieldRef) and is_temporary(dst):
            before = "0" if statement.otherwise is None else self._compiler.stored(statement.otherwise, bits)
            return [f"{dst.field} = {at} < {register.size} ? {cell} : {before};"]
        return [f"if ({at} < {register.size}) {{ {' '.join(self.store(dst, lambda _: cell))} }}"]

    def _execute_meter(self, dst: Lvalue, name: str, index: Expr) -> list[str]:
        number, meter = list(self._program.meters).index(name), self._program.meters[name]
        at = self._compiler.index(index)
        colour = meter_colour(meter, f"&s->meters[{number}][{at}]")
        if isinstance(dst, FieldRef) and is_temporary(dst):
            return [f"{dst.field} = {at} < {meter.size} ? {colour} : 0;"]
        return [
            f"if ({at} < {meter.size}) {{ {' '.join(self.store(dst, lambda bits: _cut(colour, bits)))} }}"
        ]

    def _mark_to_drop(self) -> list[str]:
        lines = []
        for name, value in (("egress_spec", DROP_PORT), ("mcast_grp", 0)):
            fields = self._program.intrinsic_fields(name)
            lines += [f"{self._layout.slot(ref).access} = {value};" for ref in fields]
        return lines

    def _of_headers(self, statement: HeaderStatement) -> list[str]:
        writer = HeaderStatementWriter(self._layout, self._compiler)
        if isinstance(statement, CopyHeader):
            fields = writer.metadata_copy(statement)
            if fields is not None:
                return [line for each in fields for line in self.write(each)]
        return writer.write(statement)

    def _extern(self, statement: Statement) -> list[str]:
        compiler = self._compiler
        match statement:
            case Hash(dst, base, calculation, modulus):
                number = list(self._program.calculations).index(calculation)
                low, size = compiler.low(base, 64), compiler.low(modulus, 64)
                value = f"(calculation_{number}(s, p, m) % ({size} ? {size} : 1) + {low})"
                return self.store(dst, lambda bits: _cut(value, bits))
            case Random(dst, low_expr, high_expr):
                low, high = compiler.low(low_expr, 64), compiler.low(high_expr, 64)
                draw = " ".join(self.store(dst, lambda bits: _cut(f"sw_random(s, {low}, {high})", bits)))
                return [draw if low_expr == Const(0) else f"if ({low} <= {high}) {{ {draw} }}"]
            case Clone(session, fields):
                return [
                    f"m->clone_session = ({compiler.low(session, 32)} & 0x7fffu) | 0x8000u;",
                    f"m->clone_list = {fields};",
                ]
            case Resubmit(fields):
                return [f"m->resubmit = {fields};"]
            case Recirculate(fields):
                return [f"m->recirculate = {fields};"]
            case Truncate(length):
                text = compiler.low(length, 32)
                return [f"if ({text} < m->truncate) m->truncate = {text};"]
            case LogMessage():
                return []
            case Assert(condition, number):
                return [f"if (SW_RARE(!({compiler.boolean(condition)}))) {failure(number, self._leave)}"]
            case Exit():
                return ["m->exit = 1;"]
        raise UnsupportedConstruct(type(statement).__name__, compiler.where)


def failure(number: int, leave: str = "return;") -> str:
    """Return the C block that ends the packet because assertion `number` has failed."""
    return f"{{ s->assertions[{number}]++; m->exit = SW_ASSERTION_FAILED; {leave} }}"


def assignment(target: str, text: str, bits: int) -> str:
    """Return the C statement that stores what `Compiler.stored` says in a field or cell of `bits` bits."""
    return f"sw_wide_put({target}, {bits}, {text});" if bits > 128 else f"{target} = {text};"


def meter_colour(meter: Meter, place: str) -> str:
    """Return the C expression: the colour that the meter at `place` gives the packet."""
    units = "m->ingress_length" if meter.bytes else "1"
    return f"sw_meter_mark({place}, s->now, {units}, m->ingress_length)"


def word_assignment(layout: Layout, slot: Slot, text: str) -> str:
    """Return the C statement that assigns an integer of at most 64 bits, which fits the field, to a field."""
    if slot.bits > 128:
        layout.need_wide(slot.bits)
        text = extended(text, "uint64_t")
    return assignment(slot.access, text, slot.bits)


def _cut(text: str, bits: int) -> str:
    if bits > 128:
        return extended(text, "uint64_t")
    return text if bits >= 64 else f"(({text}) & {literal((1 << bits) - 1, 64)})"
