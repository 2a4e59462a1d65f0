# SPDX-License-Identifier: Apache-2.0
"""Values, expressions and statements of a program as text for people."""

import ipaddress
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from softp4.program.ir import (
    Advance,
    Assert,
    Assign,
    Binary,
    BoolConst,
    Clone,
    Const,
    CopyHeader,
    CopyStack,
    CopyUnion,
    CopyVarbit,
    CounterAdd,
    Element,
    ExecuteMeter,
    Exit,
    Expr,
    FieldRef,
    GenerateDigest,
    Hash,
    HeadersEqual,
    Jump,
    LogMessage,
    Lookahead,
    Lvalue,
    MarkToDrop,
    ParamRef,
    ParserOp,
    Random,
    Recirculate,
    RegisterRead,
    RegisterRef,
    RegisterWrite,
    Resubmit,
    SetValid,
    ShiftStack,
    StackCount,
    StackField,
    StackLast,
    StackValid,
    Statement,
    Ternary,
    Truncate,
    Unary,
    Valid,
    VarbitsEqual,
    Verify,
)
from softp4.program.types import HeaderType, Param, Program

_ADDRESS: Final = re.compile(r"addr|ip|src|dst|hop|gateway", re.I)
_COUNT: Final = re.compile(r"len|ttl|port|count|num|size|idx|index|depth|priority", re.I)
_SYMBOLS: Final = {"and": "&&", "or": "||", "==b": "==", "!=b": "!="}
_SUFFIX_CASTS: Final = frozenset(("two_comp_mod", "sat_cast", "usat_cast"))


def value_text(value: int, bits: int, name: str = "") -> str:
    """Return a value as a network engineer would write it, going by its width and its name."""
    if 0 <= value < 1 << bits and bits == 48:
        return ":".join(f"{byte:02x}" for byte in value.to_bytes(6, "big"))
    if 0 <= value < 1 << bits and bits in (32, 128) and _ADDRESS.search(name):
        return str(ipaddress.IPv4Address(value) if bits == 32 else ipaddress.IPv6Address(value))
    if abs(value) < 1000 or (_COUNT.search(name) and bits <= 32):
        return str(value)
    return f"-0x{-value:x}" if value < 0 else f"0x{value:x}"


def header_text(
    name: str, kind: HeaderType, fields: Mapping[str, int], before: Mapping[str, int] | None = None
) -> str:
    """Return a header with its values; with those of `before`, only what has changed."""

    def shown(value: int, field: str) -> str:
        return value_text(value, kind.fields[kind.index(field)].bits, field)

    if before is None:
        parts = [f"{field}={shown(value, field)}" for field, value in fields.items()]
        return f"{name}{{{' '.join(parts)}}}"
    changed = [
        f"{field} {shown(before[field], field)}→{shown(value, field)}"
        for field, value in fields.items()
        if before.get(field) is not None and before[field] != value
    ]
    return f"{name}{{{', '.join(changed)}}}" if changed else name


def arguments_text(params: Sequence[Param], args: Sequence[int]) -> str:
    """Return an action's arguments by name."""
    pairs = zip(params, args, strict=True)
    return ", ".join(f"{param.name}={value_text(value, param.bits, param.name)}" for param, value in pairs)


def field_text(ref: FieldRef) -> str:
    """Return a field's name; p4c's one struct of all local variables is not worth naming."""
    return ref.field if ref.header in ("scalars", "userMetadata") else f"{ref.header}.{ref.field}"


def expression_text(expr: Expr, params: Sequence[Param] = ()) -> str:
    """Return an expression in P4's way of writing."""

    def inner(each: Expr) -> str:
        text = expression_text(each, params)
        return f"({text})" if isinstance(each, Binary | Ternary | HeadersEqual) else text

    match expr:
        case Const(value):
            return value_text(value, 64)
        case BoolConst(value):
            return str(value).lower()
        case FieldRef():
            return field_text(expr)
        case Valid(header):
            return f"{header}.isValid()"
        case ParamRef(index):
            return params[index].name if index < len(params) else f"argument {index}"
        case Lookahead(offset, bits):
            return f"lookahead<bit<{bits}>>" + (f"[{offset}:]" if offset else "")
        case StackLast(stack, name):
            return f"{stack}.last.{name}"
        case StackField(stack, index, _):
            return f"{stack}[{expression_text(index, params)}]"
        case StackValid(stack, index):
            return f"{stack}[{expression_text(index, params)}].isValid()"
        case StackCount(stack, minus):
            return f"{stack}.lastIndex" if minus else f"{stack}.nextIndex"
        case RegisterRef(register, index):
            return f"{register}[{expression_text(index, params)}]"
        case Unary("d2b" | "b2d", operand):
            return expression_text(operand, params)
        case Unary(op, operand):
            return f"{'!' if op == 'not' else op}{inner(operand)}"
        case Binary(op, left, _) if op in _SUFFIX_CASTS:
            return inner(left)
        case Binary(op, left, right):
            return f"{inner(left)} {_SYMBOLS.get(op, op)} {inner(right)}"
        case VarbitsEqual(left_field, right_field):
            return f"{inner(left_field)} == {inner(right_field)}"
        case HeadersEqual(left_name, right_name):
            return f"{left_name} == {right_name}"
        case Ternary(condition, yes, no):
            return f"{inner(condition)} ? {inner(yes)} : {inner(no)}"
    return type(expr).__name__


def _header(operand: str | Element, params: Sequence[Param]) -> str:
    if isinstance(operand, str):
        return operand
    return f"{operand.stack}[{expression_text(operand.index, params)}]"


def _lvalue(dst: Lvalue, program: Program, params: Sequence[Param]) -> tuple[str, int, str]:
    """Return text, width and field name of what is assigned."""
    match dst:
        case FieldRef():
            return field_text(dst), program.field(dst).bits, dst.field
        case StackField(stack, _, number):
            field = program.stacks[stack].type.fields[number]
            return f"{expression_text(dst, params)}.{field.name}", field.bits, field.name
        case StackLast(stack, name):
            kind = program.stacks[stack].type
            return expression_text(dst, params), kind.fields[kind.index(name)].bits, name
    raise AssertionError(dst)


def _cell(name: str, index: int, size: int) -> str:
    return f"{name}[{index}]" if index < size else f"{name}[{index}] (no such cell, {size} in all)"


def statement_text(
    statement: Statement, values: Sequence[int], program: Program, params: Sequence[Param] = ()
) -> str | None:
    """Return what a statement did, given what it read and then what it assigned; None: nothing to see."""
    number: Callable[[int], str] = lambda at: value_text(values[at], 64)  # noqa: E731

    def assigned(dst: Lvalue) -> str:
        name, bits, field = _lvalue(dst, program, params)
        value = values[-1] if values[-1] < 0 else values[-1] & (1 << bits) - 1
        return f"{name} = {value_text(value, bits, field)}"

    match statement:
        case Assign(dst, _):
            return assigned(dst)
        case RegisterRead(dst, name, _):
            return f"{assigned(dst)}, read from {_cell(name, values[0], program.registers[name].size)}"
        case RegisterWrite(name, _, _):
            bits = program.registers[name].bits
            cell = _cell(name, values[0], program.registers[name].size)
            return f"{cell} = {value_text(values[1] & (1 << bits) - 1, bits)}"
        case CounterAdd(name, _):
            return f"count in {_cell(name, values[0], program.counters[name].size)}"
        case ExecuteMeter(dst, name, _):
            return f"{assigned(dst)}, colour of {_cell(name, values[0], program.meters[name].size)}"
        case GenerateDigest():
            return "digest"
        case MarkToDrop():
            return "mark_to_drop"
        case SetValid(header, valid):
            return f"{_header(header, params)}.{'setValid' if valid else 'setInvalid'}()"
        case CopyHeader(to, source):
            return f"{_header(to, params)} = {_header(source, params)}"
        case CopyStack(to, source) | CopyUnion(to, source):
            return f"{to} = {source}"
        case CopyVarbit(to, source):
            return f"{_lvalue(to, program, params)[0]} = {_lvalue(source, program, params)[0]}"
        case ShiftStack(stack, count):
            return f"{stack}.{'push_front' if count > 0 else 'pop_front'}({abs(count)})"
        case Hash(dst, _, calculation, _):
            return f"{assigned(dst)}, hash {calculation}"
        case Random(dst, _, _):
            return f"{assigned(dst)}, random in {number(0)}..{number(1)}"
        case Clone():
            return f"clone to session {number(0)}"
        case Resubmit():
            return "resubmit"
        case Recirculate():
            return "recirculate"
        case LogMessage(parts, operands):
            texts = (str(value) for value in values[: len(operands)])
            return "".join([parts[0], *(text + part for text, part in zip(texts, parts[1:], strict=True))])
        case Assert(condition, place):
            held = "holds" if values[0] else "FAILS"
            return f"{program.assertions[place]}: {expression_text(condition, params)} {held}"
        case Truncate():
            return f"truncate to {number(0)} bytes"
        case Exit():
            return "exit"
        case Jump(_, None):
            return None
        case Jump(_, condition):
            assert condition is not None
            return f"if ({expression_text(condition, params)}) → {'false' if values[0] else 'true'}"
    return " ".join([type(statement).__name__, *map(str, values)])


def parser_op_text(op: ParserOp, values: Sequence[int], program: Program) -> str | None:
    """Return what an operation of the parser other than an extraction did."""
    match op:
        case Advance(bits):
            return f"advance {expression_text(bits)} bits"
        case Verify():
            return None  # it went on
        case _ if isinstance(op, Statement):
            return statement_text(op, values, program)
    return type(op).__name__
