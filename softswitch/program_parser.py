# SPDX-License-Identifier: Apache-2.0
"""BMv2 JSON parsers."""

from collections.abc import Mapping

from softswitch.errors import ProgramError, UnsupportedConstruct
from softswitch.program_expressions import ExpressionReader
from softswitch.program_ir import (
    Advance,
    Assign,
    CopyHeader,
    CopyStack,
    Expr,
    Extract,
    ExtractNext,
    FieldRef,
    Lookahead,
    ParserOp,
    SetValid,
    ShiftStack,
    StackLast,
    Valid,
    Verify,
)
from softswitch.program_json import Json, hexstr, member, objects, text
from softswitch.program_primitives import PrimitiveReader
from softswitch.program_types import HeaderType, Parser, ParserState, Transition

_SILENT = frozenset(("log_msg",))


class ParserReader:
    """Reads the parser of one program."""

    def __init__(
        self,
        expressions: ExpressionReader,
        primitives: PrimitiveReader,
        headers: Mapping[str, HeaderType],
        stacks: Mapping[str, HeaderType],
    ) -> None:
        self._expressions = expressions
        self._primitives = primitives
        self._headers = headers
        self._stacks = stacks

    def parser(self, node: Json) -> Parser:
        """Reads a parser and checks that every state it names exists."""
        states = [self._state(each) for each in objects(node, "parse_states", "parser")]
        by_name = {state.name: state for state in states}
        init: str | None = member(node, "init_state", (str, type(None)), "parser")
        for state in states:
            for following in [state.default, *(case.next_state for case in state.transitions)]:
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
        padded = sum((each + 7) // 8 * 8 for each in bits)
        transitions: list[Transition] = []
        default: str | None = None
        for each in objects(node, "transitions", where):
            kind = each.get("type", "hexstr") if isinstance(each, dict) else "hexstr"
            target: str | None = member(each, "next_state", (str, type(None)), where)
            if kind == "default" or each.get("value") == "default":
                default = target
            elif kind == "hexstr":
                value = hexstr(each.get("value"), where)
                mask = hexstr(each["mask"], where) if each.get("mask") is not None else None
                if not 0 <= value < 1 << padded or (mask is not None and not 0 <= mask < 1 << padded):
                    raise ProgramError(
                        f"{where}: transition on {each['value']} exceeds the key's {padded} bits"
                    )
                transitions.append(Transition(value if mask is None else value & mask, mask, target))
            else:
                raise UnsupportedConstruct(f"transition type '{kind}' (value set)", where)
        return ParserState(
            name, tuple(op for op in ops if op is not None), tuple(key), bits, tuple(transitions), default
        )

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

    def _op(self, node: Json, where: str) -> ParserOp | None:
        op = text(node, "op", where)
        parameters = objects(node, "parameters", where)
        where = f"{where}, {op}"
        match op, parameters:
            case "extract", [target]:
                return self._extract(target, where)
            case "set", [_, source]:
                dst = self._primitives.lvalue(parameters[0], where)
                return Assign(dst, self._expressions.integer(source, where))
            case "advance", [amount]:
                return Advance(self._expressions.integer(amount, where))
            case "verify", [condition, error]:
                return Verify(
                    self._expressions.boolean(condition, where), self._expressions.integer(error, where)
                )
            case "primitive", [call]:
                if text(call, "op", where) in _SILENT:
                    return None
                statement = self._primitives.statement(call, where)
                if isinstance(statement, Assign | CopyHeader | CopyStack | SetValid | ShiftStack):
                    return statement
                raise UnsupportedConstruct(f"primitive '{call['op']}' in a parser", where)
        if op in ("extract", "set", "advance", "verify", "primitive"):
            raise ProgramError(f"{where}: {len(parameters)} parameters")
        raise UnsupportedConstruct(f"parser operation '{op}'", where)

    def _extract(self, target: Json, where: str) -> ParserOp:
        kind = text(target, "type", where)
        if kind not in ("regular", "stack"):
            raise UnsupportedConstruct(f"extract to '{kind}'", where)
        name = text(target, "value", where)
        if kind == "regular":
            if name not in self._headers:
                raise ProgramError(f"{where}: no header '{name}'")
            return Extract(name)
        if name not in self._stacks:
            raise ProgramError(f"{where}: no header stack '{name}'")
        return ExtractNext(name)
