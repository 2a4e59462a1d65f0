# SPDX-License-Identifier: Apache-2.0
"""BMv2 JSON primitives (action bodies, parser method calls) to `program_ir` statements."""

from bisect import bisect_left
from collections.abc import Callable, Collection
from typing import Final

from softp4.program.errors import ProgramError, UnsupportedConstruct
from softp4.program.expressions import (
    ExpressionReader,
    HeaderName,
    Operand,
    StackName,
    UnionName,
    Whole,
)
from softp4.program.ir import (
    Assert,
    Assign,
    Binary,
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
    HeaderRef,
    Jump,
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
    StackLast,
    Statement,
    Truncate,
    Unary,
)
from softp4.program.json import Json, checked, objects, text
from softp4.program.messages import assertion_place, message_parts
from softp4.program.source import Source, source_of

# `dst = dst op operand`, and `dst = left op right`: P4-14's primitives, which BMv2 still has
_IN_PLACE: Final = {"add_to_field": "+", "subtract_from_field": "-"}
_THREE_OPERANDS: Final = {
    "add": "+",
    "subtract": "-",
    "bit_and": "&",
    "bit_or": "|",
    "bit_xor": "^",
    "shift_left": "<<",
    "shift_right": ">>",
}
_ARITY: Final = {
    "assign": 2,
    "modify_field": 2,
    "assign_VL": 2,
    "assign_header": 2,
    "copy_header": 2,
    "assign_union": 2,
    "assign_header_stack": 2,
    "assign_union_stack": 2,
    "add_header": 1,
    "remove_header": 1,
    "push": 2,
    "pop": 2,
    "register_read": 3,
    "register_write": 3,
    "count": 2,
    "execute_meter": 3,
    "generate_digest": 2,
    "mark_to_drop": 1,
    "drop": 0,
    "no_op": 0,
    "modify_field_with_hash_based_offset": 4,
    "modify_field_rng_uniform": 3,
    "clone_ingress_pkt_to_egress": 2,
    "clone_egress_pkt_to_egress": 2,
    "resubmit": 1,
    "recirculate": 1,
    "truncate": 1,
    "log_msg": 2,
    "assert": 1,
    "assume": 1,
    "exit": 0,
    "_jump": 1,
    "_jump_if_zero": 2,
    **dict.fromkeys(_IN_PLACE, 2),
    **dict.fromkeys(_THREE_OPERANDS, 3),
}
_SILENT: Final = frozenset(("no_op",))


class PrimitiveReader:
    """Reads statements of one program; knows what they may name.

    `assertions` tells the place of each assertion read so far.
    """

    def __init__(
        self,
        expressions: ExpressionReader,
        counters: Collection[str],
        registers: Collection[str],
        calculations: Collection[str],
        field_lists: Collection[int],
        meters: Collection[str],
        digests: Collection[int],
    ) -> None:
        self._expressions = expressions
        self._names: dict[str, Collection[str]] = {
            "counter_array": counters,
            "register_array": registers,
            "calculation": calculations,
            "meter_array": meters,
        }
        self._field_lists = field_lists
        self._digests = digests
        self.assertions: list[str] = []
        self._readers: dict[str, Callable[[list[Json], str], Statement]] = {
            "assign": self._assign,
            "modify_field": self._assign,
            "assign_header": lambda p, w: CopyHeader(self._header(p[0], w), self._header(p[1], w)),
            "copy_header": lambda p, w: CopyHeader(self._header(p[0], w), self._header(p[1], w)),
            "assign_VL": lambda p, w: CopyVarbit(self._varbit(p[0], w), self._varbit(p[1], w)),
            "assign_union": lambda p, w: CopyUnion(self._union(p[0], w), self._union(p[1], w)),
            "assign_header_stack": lambda p, w: CopyStack(self._stack(p[0], w), self._stack(p[1], w)),
            "assign_union_stack": lambda p, w: CopyStack(self._stack(p[0], w), self._stack(p[1], w)),
            "add_header": lambda p, w: SetValid(self._header(p[0], w), True),
            "remove_header": lambda p, w: SetValid(self._header(p[0], w), False),
            "push": lambda p, w: ShiftStack(self._stack(p[0], w), self._constant(p[1], w)),
            "pop": lambda p, w: ShiftStack(self._stack(p[0], w), -self._constant(p[1], w)),
            "register_read": self._register_read,
            "register_write": self._register_write,
            "count": lambda p, w: CounterAdd(self._name(p[0], "counter_array", w), self._integer(p[1], w)),
            "execute_meter": self._execute_meter,
            "generate_digest": self._generate_digest,
            "mark_to_drop": lambda _, __: MarkToDrop(),
            "drop": lambda _, __: MarkToDrop(),
            "modify_field_with_hash_based_offset": self._hash,
            "modify_field_rng_uniform": self._random,
            "clone_ingress_pkt_to_egress": self._clone,
            "clone_egress_pkt_to_egress": self._clone,
            "resubmit": lambda p, w: Resubmit(self._field_list(p[0], w)),
            "recirculate": lambda p, w: Recirculate(self._field_list(p[0], w)),
            "truncate": lambda p, w: Truncate(self._integer(p[0], w)),
            "log_msg": self._log_message,
            "exit": lambda _, __: Exit(),
            "_jump": lambda p, w: Jump(self._constant(p[0], w)),
            "_jump_if_zero": lambda p, w: Jump(
                self._constant(p[1], w), unless=self._expressions.boolean(p[0], w)
            ),
        }

    def body(self, primitives: list[Json], where: str) -> tuple[Statement, ...]:
        """Read an action's primitives. Jumps are renumbered over the primitives that do nothing."""
        kept = _kept(primitives, where)
        renumbered = {old: bisect_left(kept, old) for old in range(len(primitives) + 1)}
        statements = [self.statement(primitives[index], where) for index in kept]
        return tuple(
            self._jump(statement, at, _target(statement.target, renumbered, where), where)
            if isinstance(statement, Jump)
            else statement
            for at, statement in enumerate(statements)
        )

    def _jump(self, jump: Jump, at: int, target: int, where: str) -> Jump:
        if target > at:
            return Jump(target, jump.unless)
        return Jump(target, jump.unless, self._assertion(f"{where}: a loop without end"))

    def _assertion(self, place: str) -> int:
        """Return the number of a further assertion at a place."""
        number = len(self.assertions)
        self.assertions.append(place if place not in self.assertions else f"{place} ({number})")
        return number

    def sources(self, primitives: list[Json], where: str) -> tuple[Source | None, ...]:
        """Return where the statements of `body` come from, one by one."""
        return tuple(source_of(primitives[index]) for index in _kept(primitives, where))

    def statement(self, node: Json, where: str) -> Statement:
        """Read one primitive call; refuses by name what the switch does not run."""
        op = text(node, "op", where)
        if op not in _ARITY:
            raise UnsupportedConstruct(f"primitive '{op}'", where)
        parameters = objects(node, "parameters", where)
        if len(parameters) != _ARITY[op]:
            raise ProgramError(f"{where}: '{op}' takes {_ARITY[op]} parameters, not {len(parameters)}")
        inside = f"{where}, {op}"
        if op in ("assert", "assume"):
            number = self._assertion(assertion_place(node, inside))
            return Assert(self._expressions.boolean(parameters[0], inside), number)
        if op in _IN_PLACE or op in _THREE_OPERANDS:
            return self._arithmetic(op, parameters, inside)
        return self._readers[op](parameters, inside)

    # -- one primitive each ------------------------------------------------------------------------

    def _assign(self, parameters: list[Json], where: str) -> Statement:
        return Assign(self.lvalue(parameters[0], where), self._integer(parameters[1], where))

    def _arithmetic(self, op: str, parameters: list[Json], where: str) -> Statement:
        target = self.lvalue(parameters[0], where)
        *first, last = (self._integer(each, where) for each in parameters[1:])
        operator = _IN_PLACE.get(op) or _THREE_OPERANDS[op]
        return Assign(target, Binary(operator, first[0] if first else target, last))

    def _log_message(self, parameters: list[Json], where: str) -> Statement:
        parts = message_parts(text(parameters[0], "value", where), where)
        listed = parameters[1].get("value") if isinstance(parameters[1], dict) else None
        operands = checked(listed or [], list, where)
        if len(parts) != len(operands) + 1:
            raise ProgramError(f"{where}: {len(parts) - 1} placeholders for {len(operands)} values")
        return LogMessage(parts, tuple(self._integer(each, where) for each in operands))

    def _register_read(self, parameters: list[Json], where: str) -> Statement:
        return RegisterRead(
            self.lvalue(parameters[0], where),
            self._name(parameters[1], "register_array", where),
            self._integer(parameters[2], where),
        )

    def _register_write(self, parameters: list[Json], where: str) -> Statement:
        return RegisterWrite(
            self._name(parameters[0], "register_array", where),
            self._integer(parameters[1], where),
            self._integer(parameters[2], where),
        )

    def _execute_meter(self, parameters: list[Json], where: str) -> Statement:
        name = self._name(parameters[0], "meter_array", where)
        return ExecuteMeter(self.lvalue(parameters[2], where), name, self._integer(parameters[1], where))

    def _generate_digest(self, parameters: list[Json], where: str) -> Statement:
        digest = self._constant(parameters[1], where)  # the first, a receiver, means nothing in v1model
        if digest not in self._digests:
            raise ProgramError(f"{where}: no learn list {digest}")
        return GenerateDigest(digest)

    def _hash(self, parameters: list[Json], where: str) -> Statement:
        return Hash(
            self.lvalue(parameters[0], where),
            self._integer(parameters[1], where),
            self._name(parameters[2], "calculation", where),
            self._integer(parameters[3], where),
        )

    def _random(self, parameters: list[Json], where: str) -> Statement:
        return Random(
            self.lvalue(parameters[0], where),
            self._integer(parameters[1], where),
            self._integer(parameters[2], where),
        )

    def _clone(self, parameters: list[Json], where: str) -> Statement:
        return Clone(self._integer(parameters[0], where), self._field_list(parameters[1], where))

    # -- parameters --------------------------------------------------------------------------------

    def _integer(self, node: Json, where: str) -> Expr:
        return self._expressions.integer(node, where)

    def _constant(self, node: Json, where: str) -> int:
        expr = self._expressions.integer(node, where)
        if not isinstance(expr, Const):
            raise UnsupportedConstruct("a parameter that is not constant", where)
        return expr.value

    def lvalue(self, node: Json, where: str) -> Lvalue:
        """Read something that can be assigned to."""
        target = self._expressions.operand(node, where)
        if isinstance(target, Unary) and target.op == "d2b":  # a boolean variable read back as one
            target = target.operand
        if not isinstance(target, FieldRef | StackField | StackLast):
            raise UnsupportedConstruct("assignment to something that is no field", where)
        return target

    def _operand(self, node: Json, where: str) -> Operand:
        return self._expressions.operand(node, where)

    def _header(self, node: Json, where: str) -> HeaderRef:
        operand = self._operand(node, where)
        if isinstance(operand, Element):
            return operand
        if isinstance(operand, HeaderName):
            return operand.name
        raise ProgramError(f"{where}: expected a header")

    def _union(self, node: Json, where: str) -> str:
        operand = self._operand(node, where)
        if isinstance(operand, UnionName):
            return operand.name
        raise UnsupportedConstruct("a header union chosen at run time", where)

    def _varbit(self, node: Json, where: str) -> Lvalue:
        operand = self._operand(node, where)
        if not isinstance(operand, Whole) and self._expressions.is_varbit(operand):
            return operand
        raise ProgramError(f"{where}: expected a varbit field")

    def _stack(self, node: Json, where: str) -> str:
        operand = self._operand(node, where)
        if isinstance(operand, StackName):
            return operand.name
        raise ProgramError(f"{where}: expected a header stack")

    def _name(self, node: Json, kind: str, where: str) -> str:
        name = node.get("value") if text(node, "type", where) == kind else None
        if not isinstance(name, str) or name not in self._names[kind]:
            raise ProgramError(f"{where}: no {kind} '{node.get('value')!s:.60}'")
        return name

    def _field_list(self, node: Json, where: str) -> int:
        number = self._constant(node, where)
        if number not in self._field_lists:
            raise ProgramError(f"{where}: no field list {number}")
        return number


def _kept(primitives: list[Json], where: str) -> list[int]:
    """Return which primitives do something."""
    return [index for index, node in enumerate(primitives) if text(node, "op", where) not in _SILENT]


def _target(target: int, renumbered: dict[int, int], where: str) -> int:
    if target not in renumbered:
        raise ProgramError(f"{where}: jump to primitive {target}, which does not exist")
    return renumbered[target]
