# SPDX-License-Identifier: Apache-2.0
"""BMv2 JSON parsers."""

from collections.abc import Mapping

from softp4.program.errors import ProgramError, UnsupportedConstruct
from softp4.program.expressions import ExpressionReader
from softp4.program.headers import Headers
from softp4.program.ir import (
    Advance,
    Assert,
    Assign,
    Const,
    CopyHeader,
    CopyStack,
    CopyUnion,
    CopyVarbit,
    Expr,
    Extract,
    ExtractNext,
    FieldRef,
    LogMessage,
    Lookahead,
    ParserOp,
    SetValid,
    ShiftStack,
    StackLast,
    Valid,
    Verify,
)
from softp4.program.json import Json, hexstr, member, objects, pair, text
from softp4.program.primitives import PrimitiveReader
from softp4.program.types import HeaderType, Parser, ParserState, Transition, ValueSet

_ALLOWED = (
    Assign,
    CopyHeader,
    CopyUnion,
    CopyStack,
    CopyVarbit,
    SetValid,
    ShiftStack,
    LogMessage,
    Assert,
)


class ParserReader:
    """Reads the parser of one program."""

    def __init__(
        self,
        expressions: ExpressionReader,
        primitives: PrimitiveReader,
        declared: Headers,
        value_sets: Mapping[str, ValueSet],
    ) -> None:
        self._expressions = expressions
        self._primitives = primitives
        self._headers = {name: header.type for name, header in declared.headers.items()}
        self._stacks = {name: stack.type for name, stack in declared.stacks.items()}
        self._metadata = {name for name, header in declared.headers.items() if header.metadata}
        self._value_sets = value_sets

    def parser(self, node: Json) -> Parser:
        """Read a parser and checks that every state it names exists."""
        states = [self._state(each) for each in objects(node, "parse_states", "parser")]
        by_name = {state.name: state for state in states}
        init: str | None = member(node, "init_state", (str, type(None)), "parser")
        for state in states:
            for following in state.following:
                if following is not None and following not in by_name:
                    raise ProgramError(f"parser state {state.name}: no state '{following}'")
        if init is not None and init not in by_name:
            raise ProgramError(f"parser: no state '{init}'")
        return Parser(init, by_name)

    def _state(self, node: Json) -> ParserState:
        name = text(node, "name", "parser state")
        where = f"parser state {name}"
        ops = [self._op(each, where) for each in objects(node, "parser_ops", where)]
        key = [self._key(each, where) for each in objects(node, "transition_key", where)]
        bits = tuple(self._bits(each) for each in key)
        transitions: list[Transition] = []
        default: str | None = None
        for each in objects(node, "transitions", where):
            target: str | None = member(each, "next_state", (str, type(None)), where)
            kind = each.get("type", "hexstr")
            if kind == "default" or each.get("value") == "default":
                default = target
            elif kind == "hexstr":
                transitions.append(_case(each, bits, target, where))
            elif kind == "parse_vset":
                transitions.append(self._in_value_set(each, bits, target, where))
            else:
                raise UnsupportedConstruct(f"transition type '{kind}'", where)
        return ParserState(name, tuple(ops), tuple(key), bits, tuple(transitions), default)

    def _in_value_set(self, node: Json, bits: tuple[int, ...], target: str | None, where: str) -> Transition:
        name = text(node, "value", where)
        if name not in self._value_sets:
            raise ProgramError(f"{where}: no parser value set '{name}'")
        width = self._value_sets[name].bits
        if sum(bits) != width:
            raise ProgramError(f"{where}: the key has {sum(bits)} bits, members of {name} have {width}")
        mask = hexstr(node["mask"], where) if node.get("mask") is not None else None
        if mask is not None and not 0 <= mask < 1 << width:
            raise ProgramError(f"{where}: mask {node['mask']} exceeds the {width} bits of {name}")
        return Transition(0, mask, target, name)

    def _key(self, node: Json, where: str) -> Expr:
        expr = self._expressions.integer(node, where)
        if not isinstance(expr, FieldRef | StackLast | Lookahead | Valid):
            raise UnsupportedConstruct("a select key that is no field or lookahead", where)
        return expr

    def _bits(self, expr: Expr) -> int:
        match expr:
            case FieldRef(header, name):
                kind = self._headers[header]
                return kind.fields[kind.index(name)].bits
            case StackLast(stack, name):
                kind = self._stacks[stack]
                return kind.fields[kind.index(name)].bits
            case Lookahead(_, bits):
                return bits
            case _:
                return 1

    def _op(self, node: Json, where: str) -> ParserOp:
        op = text(node, "op", where)
        parameters = objects(node, "parameters", where)
        where = f"{where}, {op}"
        match op, parameters:
            case "extract", [target]:
                return self._extract(target, None, where)
            case "extract_VL", [target, length]:
                return self._extract(target, self._expressions.integer(length, where), where)
            case "shift", [int() as amount] if amount >= 0:
                return Advance(Const(8 * amount))
            case "set", [_, source]:
                dst = self._primitives.lvalue(parameters[0], where)
                return Assign(dst, self._expressions.integer(source, where))
            case "advance", [amount]:
                return Advance(self._expressions.integer(amount, where))
            case "verify", [condition, error]:
                code = Const(error) if type(error) is int else self._expressions.integer(error, where)
                return Verify(self._expressions.boolean(condition, where), code)
            case "primitive", [call]:
                statement = self._primitives.statement(call, where)
                if isinstance(statement, _ALLOWED):
                    return statement
                raise UnsupportedConstruct(f"primitive '{call['op']}' in a parser", where)
        if op in ("extract", "extract_VL", "shift", "set", "advance", "verify", "primitive"):
            raise ProgramError(f"{where}: {len(parameters)} parameters")
        raise UnsupportedConstruct(f"parser operation '{op}'", where)

    def _extract(self, target: Json, length: Expr | None, where: str) -> ParserOp:
        kind = text(target, "type", where)
        if kind == "regular":
            name = text(target, "value", where)
            if name not in self._headers:
                raise ProgramError(f"{where}: no header '{name}'")
            if name in self._metadata:
                raise UnsupportedConstruct(f"extraction into metadata ({name})", where)
            self._check_length(self._headers[name], length, where)
            return Extract(name, length)
        if kind == "stack":
            name = text(target, "value", where)
        elif kind == "union_stack":
            name = ".".join(pair(member(target, "value", list, where), where))
        else:
            raise UnsupportedConstruct(f"extract to '{kind}'", where)
        if name not in self._stacks:
            raise ProgramError(f"{where}: no header stack '{name}'")
        self._check_length(self._stacks[name], length, where)
        return ExtractNext(name, length)

    def _check_length(self, kind: HeaderType, length: Expr | None, where: str) -> None:
        if (kind.varbit is None) != (length is None):
            what = "no" if kind.varbit is None else "a"
            raise ProgramError(f"{where}: header type {kind.name} has {what} varbit field")


def _case(node: Json, bits: tuple[int, ...], target: str | None, where: str) -> Transition:
    """Return a case of constants: the concatenation of the key's elements, each padded to whole bytes."""
    padded = sum((each + 7) // 8 * 8 for each in bits)
    value = hexstr(node.get("value"), where)
    mask = hexstr(node["mask"], where) if node.get("mask") is not None else None
    if not 0 <= value < 1 << padded or (mask is not None and not 0 <= mask < 1 << padded):
        raise ProgramError(f"{where}: transition on {node['value']} exceeds the key's {padded} bits")
    return Transition(value if mask is None else value & mask, mask, target)
