# SPDX-License-Identifier: Apache-2.0
"""BMv2 JSON expressions to `program_ir` expressions."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeGuard

from softp4.program.errors import ProgramError, UnsupportedConstruct
from softp4.program.headers import Headers
from softp4.program.ir import (
    Binary,
    BoolConst,
    Const,
    Element,
    Expr,
    FieldRef,
    HeadersEqual,
    Lookahead,
    Lvalue,
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
from softp4.program.json import Json, checked, hexstr, member, number, pair, text
from softp4.program.types import MAX_WIDTH, HeaderType

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
class StackName:
    """A whole stack, of headers or unions, as an operand."""

    name: str


@dataclass(frozen=True)
class UnionName:
    """A header union as an operand."""

    name: str


@dataclass(frozen=True)
class UnionElement:
    """An element of a stack of unions whose index is only known at run time, as an operand."""

    stack: str
    index: Expr


Whole = HeaderName | Element | StackName | UnionName | UnionElement
"""What an operand can name that is no value."""
Operand = Expr | Whole


def is_boolean(expr: Expr) -> bool:
    """Return whether an expression is of BMv2's boolean type, not an integer."""
    match expr:
        case BoolConst() | HeadersEqual() | VarbitsEqual():
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
    """Reads expressions of one program; knows its headers, stacks, unions and registers."""

    def __init__(self, declared: Headers, registers: Mapping[str, int]) -> None:
        self._headers = {name: header.type for name, header in declared.headers.items()}
        self._stacks = {name: stack.type for name, stack in declared.stacks.items()}
        self._declared = declared
        self._registers = registers
        self._depth = 0

    def value(self, node: Json, where: str) -> Expr:
        """Read an integer or boolean expression."""
        result = self.operand(node, where)
        if isinstance(result, Whole):
            raise ProgramError(f"{where}: a header or stack stands where a value is needed")
        return result

    def boolean(self, node: Json, where: str) -> Expr:
        """Read a condition; an integer counts as true when it is not zero."""
        result = self.value(node, where)
        return result if is_boolean(result) else Unary("d2b", result)

    def integer(self, node: Json, where: str) -> Expr:
        """Read an integer; a boolean becomes 0 or 1."""
        result = self.value(node, where)
        return Unary("b2d", result) if is_boolean(result) else result

    def field(self, value: Json, where: str) -> FieldRef | Valid:
        """Read a ``[header, field]`` pair."""
        header, name = pair(value, where)
        self._header(header, where)
        if name == VALID_FIELD:
            return Valid(header)
        _index(self._headers[header], name, where)
        return FieldRef(header, name)

    def operand(self, node: Json, where: str) -> Operand:
        """Read anything that may stand in an expression or be a primitive's parameter."""
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
                return self._field_operand(value, where)
            case "hexstr":
                return Const(hexstr(value, where))
            case "bool":
                return BoolConst(bool(checked(value, bool, where)))
            case "local" | "runtime_data":
                return ParamRef(number(node, "value", where))
            case "header":
                name = str(value)
                return UnionName(name) if self._is_union(name) else HeaderName(self._header(name, where))
            case "header_union":
                return UnionName(self._union(value, where))
            case "header_stack" | "header_union_stack":
                return StackName(self._any_stack(value, where))
            case "stack_field":
                stack, name = pair(value, where)
                _index(self._stacks[self._stack(stack, where)], name, where)
                return StackLast(stack, name)
            case "union_stack_field":
                if not (isinstance(value, list) and len(value) == 3):
                    raise ProgramError(f"{where}: expected [stack, member, field], found {value!r:.60}")
                return self._last_of_union_stack(value[0], value[1], value[2], where)
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
        if op in ("dereference_header_stack", "dereference_union_stack", "dereference_stack"):
            return self._dereference(op, node, where)
        if op == "access_union_header":
            return self._access_member(node, where)
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
            case "valid", Element(stack, index):
                return Unary("d2b", StackValid(stack, index))
            case "valid" | "valid_union", UnionName() | UnionElement():
                return _any(self._valid(each) for each in self.union_members(operand))
            case "last_stack_index", StackName(name):
                return StackCount(self._counted(name), minus=1)
            case "size_stack", StackName(name):
                return StackCount(self._counted(name))
        if isinstance(operand, Whole):
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
        if isinstance(left, Whole) or isinstance(right, Whole):
            equal = self._wholes_equal(left, right, where)
            return equal if op == "==" else Unary("not", equal)
        if self.is_varbit(left) and self.is_varbit(right):
            return self._varbits_equal(op, left, right)
        if is_boolean(left) and is_boolean(right):
            return Binary(op + "b", left, right)
        return Binary(op, _integer(left), _integer(right))

    def _access_field(self, node: Json, where: str) -> Expr:
        target = self.operand(member(node, "left", dict, where), where)
        index = number(node, "right", where)
        if not isinstance(target, Element | HeaderName):
            raise ProgramError(f"{where}: 'access_field' of something that is no header")
        kind = self._type_of(target)
        if index == len(kind.fields):  # BMv2's hidden field
            return self._valid(target)
        if index > len(kind.fields):
            raise ProgramError(f"{where}: no field {index} in a header of type {kind.name}")
        return _field_of(target, kind, index)

    # -- whole headers, stacks and unions ----------------------------------------------------------

    def _field_operand(self, value: Json, where: str) -> Expr:
        """Return a ``field`` operand: also what p4c writes for elements and unions known at run time only."""
        if isinstance(value, list) and len(value) == 2 and isinstance(value[0], dict):
            element = self.operand({"type": "expression", "value": value[0]}, where)
            if isinstance(element, Element) and value[1] == VALID_FIELD:
                return StackValid(element.stack, element.index)
            raise UnsupportedConstruct(f"'{value[1]}' of an expression", where)
        stack, name = pair(value, where)
        if stack in self._declared.union_stacks and stack not in self._headers:
            first, _, field = name.partition(".")
            return self._last_of_union_stack(stack, first, field, where)
        return self.field(value, where)

    def _last_of_union_stack(self, stack: Json, name: Json, field: Json, where: str) -> StackLast:
        if not isinstance(stack, str) or stack not in self._declared.union_stacks:
            raise ProgramError(f"{where}: no stack of header unions '{stack}'")
        if name not in self._declared.union_types[stack] or not isinstance(field, str):
            raise ProgramError(f"{where}: no member '{name}' in the unions of {stack}")
        column = f"{stack}.{name}"
        _index(self._stacks[column], field, where)
        return StackLast(column, field)

    def _counted(self, stack: str) -> str:
        """Return the stack of headers whose count is this stack's: a column of a stack of unions."""
        union_stack = self._declared.union_stacks.get(stack)
        return stack if union_stack is None else union_stack.columns[0]

    def _dereference(self, op: str, node: Json, where: str) -> Operand:
        stack = self.operand(member(node, "left", dict, where), where)
        if not isinstance(stack, StackName):
            raise ProgramError(f"{where}: '{op}' of something that is no stack")
        index = self.integer(member(node, "right", dict, where), where)
        if stack.name in self._declared.union_stacks:
            return UnionElement(stack.name, index)
        return Element(stack.name, index)

    def _access_member(self, node: Json, where: str) -> HeaderName | Element:
        target = self.operand(member(node, "left", dict, where), where)
        index = number(node, "right", where)
        members = self.union_members(target) if isinstance(target, UnionName | UnionElement) else ()
        if index >= len(members):
            raise ProgramError(f"{where}: no member {index} in a header union")
        return members[index]

    def union_members(self, union: UnionName | UnionElement) -> tuple[HeaderName | Element, ...]:
        """Return the headers of a union, in order."""
        if isinstance(union, UnionName):
            return tuple(HeaderName(each) for each in self._declared.unions[union.name])
        columns = self._declared.union_stacks[union.stack].columns
        return tuple(Element(each, union.index) for each in columns)

    def _valid(self, header: HeaderName | Element) -> Expr:
        if isinstance(header, HeaderName):
            return Valid(header.name)
        return StackValid(header.stack, header.index)

    def _type_of(self, header: HeaderName | Element) -> HeaderType:
        return self._headers[header.name] if isinstance(header, HeaderName) else self._stacks[header.stack]

    def _wholes_equal(self, left: Operand, right: Operand, where: str) -> Expr:
        match left, right:
            case HeaderName(a), HeaderName(b):
                return HeadersEqual(a, b)
            case HeaderName() | Element(), HeaderName() | Element():
                return self._elements_equal(left, right)
            case UnionName() | UnionElement(), UnionName() | UnionElement():
                ours, theirs = self.union_members(left), self.union_members(right)
                if len(ours) == len(theirs):
                    pairs = zip(ours, theirs, strict=True)
                    return _any(self._wholes_equal(a, b, where) for a, b in pairs)
        raise UnsupportedConstruct("comparing a header, stack or union with something else", where)

    def _elements_equal(self, left: HeaderName | Element, right: HeaderName | Element) -> Expr:
        """Compare headers field by field where an index is known at run time only."""
        kind = self._type_of(left)
        if kind != self._type_of(right):
            return BoolConst(False)
        equal: Expr = Binary("and", _boolean(self._valid(left)), _boolean(self._valid(right)))
        for index, field in enumerate(kind.fields):
            a, b = (_field_of(each, kind, index) for each in (left, right))
            equal = Binary("and", equal, VarbitsEqual(a, b) if field.varbit else Binary("==", a, b))
        return equal

    def is_varbit(self, expr: Expr) -> TypeGuard[Lvalue]:
        """Return whether an operand is a varbit field."""
        match expr:
            case FieldRef(header, name):
                kind = self._headers[header]
                return kind.fields[kind.index(name)].varbit
            case StackLast(stack, name):
                kind = self._stacks[stack]
                return kind.fields[kind.index(name)].varbit
            case StackField(stack, _, number_):
                return self._stacks[stack].fields[number_].varbit
        return False

    def _varbits_equal(self, op: str, left: Lvalue, right: Lvalue) -> Expr:
        equal = VarbitsEqual(left, right)
        return equal if op == "==" else Unary("not", equal)

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

    def _is_union(self, name: str) -> bool:
        return name in self._declared.unions and name not in self._headers

    def _union(self, name: Json, where: str) -> str:
        if not isinstance(name, str) or name not in self._declared.unions:
            raise ProgramError(f"{where}: no header union '{name}'")
        return name

    def _any_stack(self, name: Json, where: str) -> str:
        """Return a stack of headers or of unions."""
        if isinstance(name, str) and name in self._declared.union_stacks:
            return name
        return self._stack(name, where)

    def _stack(self, name: Json, where: str) -> str:
        if not isinstance(name, str) or name not in self._stacks:
            raise ProgramError(f"{where}: no header stack '{name}'")
        return name


def _any(conditions: Iterable[Expr]) -> Expr:
    result: Expr | None = None
    for each in map(_boolean, conditions):
        result = each if result is None else Binary("or", result, each)
    return BoolConst(False) if result is None else result


def _field_of(header: HeaderName | Element, kind: HeaderType, index: int) -> Lvalue:
    if isinstance(header, HeaderName):
        return FieldRef(header.name, kind.fields[index].name)
    return StackField(header.stack, header.index, index)


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
