# SPDX-License-Identifier: Apache-2.0
"""BMv2 JSON expressions to `program_ir` expressions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from softswitch.errors import ProgramError, UnsupportedConstruct
from softswitch.program_ir import (
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
)
from softswitch.program_json import Json, checked, hexstr, member, number, pair, text
from softswitch.program_types import MAX_WIDTH, HeaderType

VALID_FIELD: Final = "$valid$"
_ARITHMETIC: Final = frozenset(["+", "-", "*", "/", "%", "<<", ">>", "&", "|", "^"])
_COMPARE: Final = frozenset(["==", "!=", "<", ">", "<=", ">="])
_CASTS: Final = frozenset(("two_comp_mod", "sat_cast", "usat_cast"))
_BOOLEAN_BINARY: Final = _COMPARE | {"and", "or", "==b", "!=b"}
_MAX_SHIFT: Final = 1 << 16
_MAX_DEPTH: Final = 400


@dataclass(frozen=True)
class HeaderName:
    """A header instance as an operand."""

    name: str


@dataclass(frozen=True)
class StackElement:
    """An element of a stack whose index is only known at run time, as an operand."""

    stack: str
    index: Expr


@dataclass(frozen=True)
class StackName:
    """A whole stack as an operand."""

    name: str


Operand = Expr | HeaderName | StackElement | StackName


def is_boolean(expr: Expr) -> bool:
    """Whether an expression is of BMv2's boolean type, not an integer."""
    match expr:
        case BoolConst() | HeadersEqual():
            return True
        case Unary(op):
            return op in ("not", "d2b")
        case Binary(op):
            return op in _BOOLEAN_BINARY
        case Ternary(_, yes, _):
            return is_boolean(yes)
        case _:
            return False


class ExpressionReader:
    """Reads expressions of one program; knows its headers, stacks and registers."""

    def __init__(
        self,
        headers: Mapping[str, HeaderType],
        stacks: Mapping[str, HeaderType],
        registers: Mapping[str, int],
    ) -> None:
        self._headers = headers
        self._stacks = stacks
        self._registers = registers
        self._depth = 0

    def value(self, node: Json, where: str) -> Expr:
        """Reads an integer or boolean expression."""
        result = self.operand(node, where)
        if isinstance(result, HeaderName | StackElement | StackName):
            raise ProgramError(f"{where}: a header or stack stands where a value is needed")
        return result

    def boolean(self, node: Json, where: str) -> Expr:
        """Reads a condition; an integer counts as true when it is not zero."""
        result = self.value(node, where)
        return result if is_boolean(result) else Unary("d2b", result)

    def integer(self, node: Json, where: str) -> Expr:
        """Reads an integer; a boolean becomes 0 or 1."""
        result = self.value(node, where)
        return Unary("b2d", result) if is_boolean(result) else result

    def field(self, value: Json, where: str) -> FieldRef | Valid:
        """Reads a ``[header, field]`` pair."""
        header, name = pair(value, where)
        self._header(header, where)
        if name == VALID_FIELD:
            return Valid(header)
        _index(self._headers[header], name, where)
        return FieldRef(header, name)

    def operand(self, node: Json, where: str) -> Operand:
        """Reads anything that may stand in an expression or be a primitive's parameter."""
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise UnsupportedConstruct(f"an expression nested more than {_MAX_DEPTH} deep", where)
        try:
            return self._operand(node, where)
        finally:
            self._depth -= 1

    def _operand(self, node: Json, where: str) -> Operand:
        kind = text(node, "type", where)
        value = member(node, "value", object, where)
        match kind:
            case "expression":
                if isinstance(value, dict) and "op" not in value:
                    return self.operand(value, where)
                return self._operation(value, where)
            case "field":
                return self.field(value, where)
            case "hexstr":
                return Const(hexstr(value, where))
            case "bool":
                return BoolConst(bool(checked(value, bool, where)))
            case "local" | "runtime_data":
                return ParamRef(number(node, "value", where))
            case "header":
                return HeaderName(self._header(str(value), where))
            case "header_stack":
                return StackName(self._stack(value, where))
            case "stack_field":
                stack, name = pair(value, where)
                _index(self._stacks[self._stack(stack, where)], name, where)
                return StackLast(stack, name)
            case "lookahead":
                return _lookahead(value, where)
            case "register":
                return self._register(value, where)
        raise UnsupportedConstruct(f"operand type '{kind}'", where)

    def _operation(self, node: Json, where: str) -> Operand:
        op = text(node, "op", where)
        if op == "?":
            condition = self.boolean(member(node, "cond", dict, where), where)
            yes, no = self._values(node, where)
            if is_boolean(yes) != is_boolean(no):
                raise ProgramError(f"{where}: '?' between a boolean and an integer")
            return Ternary(condition, yes, no)
        if op in ("dereference_header_stack", "dereference_stack"):
            stack = self.operand(member(node, "left", dict, where), where)
            if not isinstance(stack, StackName):
                raise ProgramError(f"{where}: '{op}' of something that is no stack")
            return StackElement(stack.name, self.integer(member(node, "right", dict, where), where))
        if op == "access_field":
            return self._access_field(node, where)
        if node.get("left") is None:
            return self._unary(op, node, where)
        if op in ("==", "!="):
            return self._equality(op, node, where)
        if op in _ARITHMETIC or op in _COMPARE or op in _CASTS:
            left, right = self._values(node, where)
            if op in ("<<", ">>") and isinstance(right, Const) and not 0 <= right.value < _MAX_SHIFT:
                raise ProgramError(f"{where}: shift by {right.value}")
            return Binary(op, _integer(left), _integer(right))
        if op in ("and", "or"):
            left, right = self._values(node, where)
            return Binary(op, _boolean(left), _boolean(right))
        raise UnsupportedConstruct(f"operator '{op}'", where)

    def _unary(self, op: str, node: Json, where: str) -> Expr:
        operand = self.operand(member(node, "right", dict, where), where)
        match op, operand:
            case "valid", HeaderName(name):
                return Unary("d2b", Valid(name))
            case "valid", StackElement(stack, index):
                return Unary("d2b", StackValid(stack, index))
            case "last_stack_index", StackName(name):
                return StackCount(name, minus=1)
            case "size_stack", StackName(name):
                return StackCount(name)
        if isinstance(operand, HeaderName | StackElement | StackName):
            raise UnsupportedConstruct(f"operator '{op}' on a header or stack", where)
        match op:
            case "not":
                return Unary("not", _boolean(operand))
            case "d2b":
                return _boolean(operand)
            case "b2d":
                return _integer(operand)
            case "~" | "-":
                return Unary(op, _integer(operand))
            case "+":
                return _integer(operand)
        raise UnsupportedConstruct(f"operator '{op}'", where)

    def _equality(self, op: str, node: Json, where: str) -> Expr:
        left = self.operand(member(node, "left", dict, where), where)
        right = self.operand(member(node, "right", dict, where), where)
        if isinstance(left, HeaderName) and isinstance(right, HeaderName):
            equal = HeadersEqual(left.name, right.name)
            return equal if op == "==" else Unary("not", equal)
        if isinstance(left, HeaderName | StackElement | StackName) or isinstance(
            right, HeaderName | StackElement | StackName
        ):
            raise UnsupportedConstruct(f"operator '{op}' on stacks or stack elements", where)
        if is_boolean(left) and is_boolean(right):
            return Binary(op + "b", left, right)
        return Binary(op, _integer(left), _integer(right))

    def _access_field(self, node: Json, where: str) -> Expr:
        target = self.operand(member(node, "left", dict, where), where)
        index = number(node, "right", where)
        if isinstance(target, StackElement):
            if index >= len(self._stacks[target.stack].fields):
                raise ProgramError(f"{where}: no field {index} in stack {target.stack}")
            return StackField(target.stack, target.index, index)
        if isinstance(target, HeaderName):
            fields = self._headers[target.name].fields
            if index >= len(fields):
                raise ProgramError(f"{where}: no field {index} in header {target.name}")
            return FieldRef(target.name, fields[index].name)
        raise ProgramError(f"{where}: 'access_field' of something that is no header")

    def _values(self, node: Json, where: str) -> tuple[Expr, Expr]:
        return (
            self.value(member(node, "left", dict, where), where),
            self.value(member(node, "right", dict, where), where),
        )

    def _register(self, value: Json, where: str) -> Expr:
        if not (isinstance(value, list) and len(value) == 2 and isinstance(value[0], str)):
            raise ProgramError(f"{where}: expected [register, index], found {value!r:.60}")
        if value[0] not in self._registers:
            raise ProgramError(f"{where}: no register '{value[0]}'")
        return RegisterRef(value[0], self.integer(value[1], where))

    def _header(self, name: str, where: str) -> str:
        if name not in self._headers:
            raise ProgramError(f"{where}: no header '{name}'")
        return name

    def _stack(self, name: Json, where: str) -> str:
        if not isinstance(name, str) or name not in self._stacks:
            raise ProgramError(f"{where}: no header stack '{name}'")
        return name


def _boolean(expr: Expr) -> Expr:
    return expr if is_boolean(expr) else Unary("d2b", expr)


def _integer(expr: Expr) -> Expr:
    return Unary("b2d", expr) if is_boolean(expr) else expr


def _index(kind: HeaderType, name: str, where: str) -> int:
    try:
        return kind.index(name)
    except KeyError:
        raise ProgramError(f"{where}: header type {kind.name} has no field '{name}'") from None


def _lookahead(value: Json, where: str) -> Lookahead:
    if not (isinstance(value, list) and len(value) == 2 and all(type(part) is int for part in value)):
        raise ProgramError(f"{where}: expected [offset, width], found {value!r:.60}")
    offset, bits = value
    if offset < 0 or bits < 1:
        raise ProgramError(f"{where}: lookahead of {bits} bits at {offset}")
    if bits > MAX_WIDTH:
        raise UnsupportedConstruct(f"lookahead of {bits} bits (more than {MAX_WIDTH})", where)
    return Lookahead(offset, bits)
