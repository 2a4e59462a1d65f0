# SPDX-License-Identifier: Apache-2.0
"""Ranges of expressions: interval arithmetic over BMv2's unlimited integers."""

from dataclasses import dataclass

from softp4.codegen.layout import Layout
from softp4.program.errors import UnsupportedConstruct
from softp4.program.ir import (
    Binary,
    BoolConst,
    Const,
    Expr,
    FieldRef,
    HeadersEqual,
    Lookahead,
    ParamRef,
    RegisterRef,
    StackCount,
    StackField,
    StackLast,
    StackValid,
    Ternary,
    Unary,
    Valid,
    VarbitsEqual,
)
from softp4.program.types import MAX_WIDTH, FieldType, Param

MAX_SHIFT = 1 << 16  # what a longer shift leaves is beyond every width that can be computed with


@dataclass(frozen=True)
class Interval:
    """All integers from `low` to `high`."""

    low: int
    high: int

    @property
    def signed(self) -> bool:
        """Return whether it holds negative numbers."""
        return self.low < 0

    @property
    def bits(self) -> int:
        """Return bits of the C type needed, the sign bit included."""
        if self.low >= 0:
            return self.high.bit_length()
        return max(self.high.bit_length(), (-self.low - 1).bit_length()) + 1

    def union(self, other: "Interval") -> "Interval":
        """Return the smallest interval that holds both."""
        return Interval(min(self.low, other.low), max(self.high, other.high))


BIT = Interval(0, 1)


def of_width(bits: int, signed: bool = False) -> Interval:
    """Return all values of a field."""
    return Interval(-(1 << bits - 1), (1 << bits - 1) - 1) if signed else Interval(0, (1 << bits) - 1)


class Ranges:
    """Intervals of the expressions in one action (or parser, or condition).

    Args:
        layout: knows the fields.
        params: the action's parameters.
        where: named when something is refused.
    """

    def __init__(self, layout: Layout, params: tuple[Param, ...], where: str) -> None:
        self._layout = layout
        self._params = params
        self._where = where
        self._known: dict[Expr, Interval] = {}

    def __call__(self, expr: Expr) -> Interval:
        """Return the interval of an integer expression; booleans count as 0 or 1."""
        found = self._known.get(expr)
        if found is None:
            found = self._known[expr] = self._interval(expr)
        return found

    def field(self, expr: FieldRef | StackField | StackLast) -> FieldType:
        """Return type of a field that can be computed with, wherever it is."""
        kind = self.any_field(expr)
        if kind.varbit:
            raise UnsupportedConstruct("computing with a varbit field", self._where)
        return kind

    def any_field(self, expr: FieldRef | StackField | StackLast) -> FieldType:
        """Return type of any field."""
        match expr:
            case FieldRef():
                return self._layout.field_type(expr)
            case StackField(stack, _, number):
                return self._layout.program.stacks[stack].type.fields[number]
            case StackLast(stack, name):
                header = self._layout.program.stacks[stack].type
                return header.fields[header.index(name)]

    def _interval(self, expr: Expr) -> Interval:
        match expr:
            case Const(value):
                return Interval(value, value)
            case FieldRef() | StackField() | StackLast():
                kind = self.field(expr)
                return of_width(kind.bits, kind.signed)
            case Valid() | StackValid() | BoolConst() | HeadersEqual() | VarbitsEqual():
                return BIT
            case ParamRef(index):
                if index >= len(self._params):
                    raise UnsupportedConstruct(f"parameter {index} outside an action", self._where)
                return of_width(self._params[index].bits)
            case Lookahead(_, bits):
                return of_width(bits)
            case StackCount(stack, minus):
                return Interval(-minus, len(self._layout.program.stacks[stack].headers) - minus)
            case RegisterRef(name, _):
                return of_width(self._layout.program.registers[name].bits)
            case Ternary(_, yes, no):
                return self(yes).union(self(no))
            case Unary(op, operand):
                return self._unary(op, operand)
            case Binary(op, left, right):
                return self._binary(op, left, right)

    def _unary(self, op: str, operand: Expr) -> Interval:
        inner = self(operand)
        if op == "~":
            return Interval(-inner.high - 1, -inner.low - 1)
        if op == "-":
            return Interval(-inner.high, -inner.low)
        return BIT

    def _binary(self, op: str, left: Expr, right: Expr) -> Interval:
        a, b = self(left), self(right)
        match op:
            case "+":
                return Interval(a.low + b.low, a.high + b.high)
            case "-":
                return Interval(a.low - b.high, a.high - b.low)
            case "*":
                corners = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
                return Interval(min(corners), max(corners))
            case "/":
                most = max(-a.low, a.high)
                return Interval(-most if a.low < 0 or b.low < 0 else 0, most)
            case "%":
                most = max(min(max(-a.low, a.high), max(-b.low, b.high) - 1), 0)
                return Interval(-most if a.low < 0 else 0, most)
            case "&":
                return self._and(a, b)
            case "|" | "^":
                if a.low >= 0 and b.low >= 0:
                    return of_width(max(a.high.bit_length(), b.high.bit_length(), 1))
                return of_width(max(a.bits, b.bits) + 1, signed=True)
            case "<<":
                shift = min(max(b.high, 0), MAX_SHIFT)
                least = 0 if a.low >= 0 else a.low << shift
                return Interval(least, max(a.high, 0) << shift)
            case ">>":
                if isinstance(right, Const):
                    return Interval(a.low >> right.value, a.high >> right.value)
                return Interval(min(a.low, 0), max(a.high, 0))
            case "two_comp_mod" | "sat_cast":
                return of_width(self.width(right), signed=True)
            case "usat_cast":
                return of_width(self.width(right))
            case _:
                return BIT  # comparisons, and, or

    def _and(self, a: Interval, b: Interval) -> Interval:
        positive = [each.high for each in (a, b) if each.low >= 0]
        if positive:
            return Interval(0, min(positive))
        return of_width(max(a.bits, b.bits), signed=True)

    def width(self, expr: Expr) -> int:
        """Return the constant width of a cast."""
        if not isinstance(expr, Const) or not 1 <= expr.value <= MAX_WIDTH:
            raise UnsupportedConstruct(
                f"a cast to a width that is not a constant from 1 to {MAX_WIDTH}", self._where
            )
        return expr.value
