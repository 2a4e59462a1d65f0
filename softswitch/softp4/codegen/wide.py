# SPDX-License-Identifier: Apache-2.0
"""Values beyond 128 bits to C: the type `sw_wide` of runtime/wide.h.

All of a program's wide values have the same number of words, which is what the widest of them needs
(`Layout.need_wide`). A field of more than 128 bits is an array of bytes; only here and in
`codegen.statements.StatementWriter.store` does it become a number and back.
"""

from typing import TYPE_CHECKING, Final

from softp4.codegen.layout import Layout
from softp4.codegen.ranges import Interval, of_width
from softp4.program.errors import UnsupportedConstruct
from softp4.program.ir import (
    Binary,
    Const,
    Expr,
    FieldRef,
    Lookahead,
    ParamRef,
    RegisterRef,
    StackField,
    StackLast,
    Ternary,
    Unary,
)

if TYPE_CHECKING:
    from softp4.codegen.expressions import Compiler

WIDE: Final = "sw_wide"
MOST_BITS: Final = 1 << 14  # of any value; P4's own types end at 2048, products of two at 4096
_WORD: Final = (1 << 64) - 1
_MODULAR: Final = {"+": "add", "-": "sub", "*": "mul", "&": "and", "|": "or", "^": "xor"}


def wide_literal(value: int) -> str:
    """Return an integer as C text."""
    if value < 0:
        return f"sw_wide_neg({wide_literal(-value)})"
    words = [value >> at & _WORD for at in range(0, max(value.bit_length(), 1), 64)]
    return f"((sw_wide){{{{{', '.join(f'0x{word:x}ull' for word in words)}}}}})"


def extended(text: str, kind: str) -> str:
    """Return the C text of type `kind`, which is of at most 128 bits, as a wide value."""
    return f"sw_wide_i({text})" if kind in ("int32_t", "int64_t", "sw_i128") else f"sw_wide_u({text})"


class WideCompiler:
    """The part of a `Compiler` that deals with values beyond 128 bits."""

    def __init__(self, compiler: "Compiler", layout: Layout, where: str) -> None:
        self._compiler = compiler
        self._layout = layout
        self._where = where

    def need(self, bits: int) -> None:
        """Make sure that values have `bits` bits, the sign bit included."""
        if bits > MOST_BITS:
            raise UnsupportedConstruct(
                f"an intermediate value of {bits} bits (more than {MOST_BITS})", self._where
            )
        self._layout.need_wide(bits)

    def value(self, expr: Expr) -> str:
        """Return the exact value of any integer expression, as a wide one."""
        interval = self._compiler.ranges(expr)
        self.need(interval.bits + 1)
        if isinstance(expr, Const):
            return wide_literal(expr.value)
        if interval.bits <= 128:
            return extended(self._compiler.exact(expr), self._compiler.type_of(expr))
        return self._exact(expr, interval)

    def low(self, expr: Expr, bits: int) -> str:
        """Return a wide value whose lowest `bits` bits are the expression's; what is above is anything."""
        self.need(bits)
        interval = self._compiler.ranges(expr)
        match expr:
            case Const(value):
                return wide_literal(value % (1 << bits))
            case _ if interval.bits <= 128:
                return self.value(expr)
            case Unary("~", operand):
                return f"sw_wide_not({self.low(operand, bits)})"
            case Unary("-", operand):
                return f"sw_wide_neg({self.low(operand, bits)})"
            case Binary("&", left, Const(mask)) if mask & (1 << bits) - 1 == (1 << bits) - 1:
                return self.low(left, bits)
            case Binary(op, left, right) if op in _MODULAR:
                return f"sw_wide_{_MODULAR[op]}({self.low(left, bits)}, {self.low(right, bits)})"
            case Binary("<<", left, right):
                return f"sw_wide_shl({self.low(left, bits)}, {self._compiler.amount(right)})"
            case Binary("two_comp_mod", left, right) if self._compiler.ranges.width(right) >= bits:
                return self.low(left, bits)
            case Ternary(condition, yes, no):
                chosen = f"{self.low(yes, bits)} : {self.low(no, bits)}"
                return f"(({self._compiler.boolean(condition)}) ? {chosen})"
        return self.value(expr)

    def _exact(self, expr: Expr, interval: Interval) -> str:
        match expr:
            case FieldRef() | StackField() | StackLast():
                return self._compiler.exact_field(expr)
            case ParamRef(index):
                return self._compiler.argument(index)
            case Lookahead():
                return self._compiler.lookahead(expr)
            case RegisterRef(name, index):
                return self._compiler.register(name, index)
            case Ternary(condition, yes, no):
                return f"(({self._compiler.boolean(condition)}) ? {self.value(yes)} : {self.value(no)})"
            case Binary(">>", left, right):
                return self.shifted_right(left, right)
            case Binary(op, left, right) if op in ("/", "%"):
                return self.divided(op, left, right)
            case Binary(op, left, right) if op in ("sat_cast", "usat_cast"):
                return self.saturated(left, of_width(self._compiler.ranges.width(right), op == "sat_cast"))
            case Binary("two_comp_mod", left, right):
                return self.sign_extended(left, self._compiler.ranges.width(right))
        extend = "sext" if interval.signed else "zext"
        return f"sw_wide_{extend}({self.low(expr, interval.bits)}, {interval.bits})"

    # -- operations that need exact operands, whatever the width of their results ------------------------

    def shifted_right(self, left: Expr, right: Expr) -> str:
        """Return `left` >> `right`."""
        return f"sw_wide_shr({self.value(left)}, {self._compiler.amount(right)})"

    def divided(self, op: str, left: Expr, right: Expr) -> str:
        """Return `left` / or % `right`, towards zero."""
        both = self._compiler.ranges(left).union(self._compiler.ranges(right))
        self.need(both.bits + 2)  # the magnitude of the least number
        return f"sw_wide_{'div' if op == '/' else 'mod'}({self.value(left)}, {self.value(right)})"

    def saturated(self, operand: Expr, limits: Interval) -> str:
        """Return `operand` kept within limits."""
        self.need(limits.bits + 1)
        bounds = f"{wide_literal(limits.low)}, {wide_literal(limits.high)}"
        return f"sw_wide_clamp({self.value(operand)}, {bounds})"

    def sign_extended(self, operand: Expr, bits: int) -> str:
        """Return the lowest `bits` bits as two's complement."""
        return f"sw_wide_sext({self.low(operand, bits)}, {bits})"

    def compared(self, op: str, left: Expr, right: Expr) -> str:
        """Return `left` op `right`, as a C condition."""
        a, b = self.value(left), self.value(right)
        match op:
            case "==":
                return f"sw_wide_same({a}, {b})"
            case "!=":
                return f"!sw_wide_same({a}, {b})"
            case "<":
                return f"sw_wide_less({a}, {b})"
            case ">":
                return f"sw_wide_less({b}, {a})"
            case "<=":
                return f"!sw_wide_less({b}, {a})"
            case _:
                return f"!sw_wide_less({a}, {b})"

    # -- where values are ----------------------------------------------------------------------------

    def field(self, access: str, bits: int, signed: bool) -> str:
        """Return a field or register cell of more than 128 bits, whose bytes are at `access`."""
        self.need(bits + 1)
        text = f"sw_wide_get({access}, {bits})"
        return f"sw_wide_sext({text}, {bits})" if signed else text
