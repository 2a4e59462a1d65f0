# SPDX-License-Identifier: Apache-2.0
"""A run of both pipelines in which fields have bits of the frame for values (see `codegen/sharding.py`)."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from softp4.codegen import bits as of
from softp4.codegen.bits import Bits
from softp4.codegen.usage import destination, headers_changed, inputs, meter_targets, walk
from softp4.program.ir import (
    Assign,
    Binary,
    BoolConst,
    Clone,
    Const,
    ExecuteMeter,
    Expr,
    FieldRef,
    GenerateDigest,
    MarkToDrop,
    ParamRef,
    Random,
    Recirculate,
    RegisterRead,
    RegisterRef,
    RegisterWrite,
    Resubmit,
    Statement,
    Ternary,
    Unary,
)
from softp4.program.types import Action, FieldType, Pipeline, Program, Table

_MOST: Final = 512  # paths that are kept apart
_WIDEST: Final = 64  # fields whose bits are followed
_AGAIN: Final = "frames start again, with other headers than those they came with"
FORBIDDEN: Final[Mapping[type[Statement], str]] = {
    Random: "random numbers come from one sequence",
    GenerateDigest: "digests are one list, in the order of the frames",
    Clone: _AGAIN,
    Recirculate: _AGAIN,
    Resubmit: _AGAIN,
}
PORT: Final = FieldRef("standard_metadata", "ingress_port")

Calls = Mapping[int, tuple[Bits | None, ...]]
"""By action id: what is known of each argument."""


@dataclass(frozen=True)
class Facts:
    """What tables do: by name, the actions that a hit or a miss may run."""

    calls: Mapping[str, Calls]

    def allow(self, table: str, action: int, args: Sequence[int]) -> bool:
        """Return whether a call is among them."""
        known = self.calls.get(table, {}).get(action)
        return known is not None and all(
            bits is None or not of.differ(bits, of.constant(arg) or ())
            for bits, arg in zip(known, args, strict=True)
        )


_Env = dict[FieldRef, Bits]


@dataclass(frozen=True)
class Prepared:
    """What does not depend on facts.

    Attributes:
        steps: the statements of each action that matter.
        jumping: actions some of whose statements may not run, or not once.
        order: nodes of a pipeline, each before its successors.
        flags: metadata of one bit.
        loose: registers that are not looked at.
    """

    steps: Mapping[int, tuple[Statement, ...]]
    jumping: set[int]
    order: Mapping[str, list[str]]
    flags: Sequence[FieldRef]
    loose: frozenset[str]


class Run:
    """One run: `pipeline` for ingress, then for egress; what was found is in the attributes.

    Attributes:
        accesses: of each register and meter, the indices, and where.
        reasons: why threads cannot share frames, whatever the indices are.
    """

    def __init__(self, program: Program, prepared: Prepared, facts: Facts) -> None:
        self._program = program
        self._is = prepared
        self._facts = facts
        self._args: tuple[Bits | None, ...] = ()  # of the action that is being run
        self.accesses: dict[str, dict[Bits | None, str]] = {}
        self.reasons: dict[str, None] = {}

    def parsed(self, relevant: set[FieldRef]) -> _Env:
        """Return what fields hold after parsing: metadata is zero unless parser or switch set it."""
        env: _Env = {}
        for ref in relevant:
            kind = self._program.field(ref)
            metadata = self._program.headers[ref.header].metadata
            if not can_decide(kind):
                env[ref] = of.unknown(kind.bits)
            elif ref == PORT or not metadata:
                env[ref] = tuple((ref, place) for place in range(kind.bits))
            elif ref.header == "standard_metadata" or ref in self._program.aliases.values():
                env[ref] = of.unknown(kind.bits)
            else:
                env[ref] = (0,) * kind.bits
        for state in self._program.parser.states.values():
            for op in state.ops:
                if isinstance(op, Statement):
                    self._lose(env, op)
        return env

    def departing(self, env: _Env) -> _Env:
        """Return what fields hold when egress begins, for which the switch sets some."""
        set_here = {ref for ref in env if ref.header == "standard_metadata" and ref != PORT}
        set_here |= set(self._program.aliases.values()) - {PORT}
        return {ref: of.unknown(len(bits)) if ref in set_here else bits for ref, bits in env.items()}

    def pipeline(self, pipeline: Pipeline, envs: Sequence[_Env]) -> list[_Env]:
        """Run one pipeline; return what fields may hold behind it.

        Paths stay apart as long as they differ in a flag (a known bit of a field of one bit): programs say in
        flags which of their parts a frame went through, and later ask for them.
        """
        waiting: dict[str | None, list[_Env]] = {pipeline.init: list(envs)}
        for name in self._is.order[pipeline.name]:
            for env in self._merged(waiting.pop(name, [])):
                for following, after in self._node(pipeline, name, env):
                    waiting.setdefault(following, []).append(after)
        return self._merged(waiting.get(None, []))

    def _merged(self, envs: list[_Env]) -> list[_Env]:
        by_flags: dict[tuple[Bits, ...], _Env] = {}
        for env in envs:
            flags = tuple(env[ref] for ref in self._is.flags)
            by_flags[flags] = _joined(by_flags[flags], env) if flags in by_flags else env
        found = list(by_flags.values())
        return found if len(found) <= _MOST else [functools.reduce(_joined, found)]

    def _node(self, pipeline: Pipeline, name: str, env: _Env) -> Iterator[tuple[str | None, _Env]]:
        if name in pipeline.conditionals:
            conditional = pipeline.conditionals[name]
            self._look(conditional.condition, env, name)
            holds = self._holds(conditional.condition, env)
            if holds != 0:
                yield conditional.true_next, env
            if holds != 1:
                yield conditional.false_next, env
            return
        table = pipeline.tables[name]
        if table.meter is not None:
            self.reasons.setdefault(f"table {table.name}: its entries have meters")
        if table.ages:
            self.reasons.setdefault(f"table {table.name}: its entries age")
        for ref in meter_targets(table):
            if ref in env:
                env = {**env, ref: of.unknown(len(env[ref]))}
        calls = self._facts.calls.get(table.name, {})
        for number, args in calls.items():
            after = self._action(self._program.actions[number], args, env)
            for following in _following(table, number):
                yield following, after
            if number in self._is.jumping:  # it may have left the pipeline
                yield None, after
        if not calls or table.default is None:
            yield table.next_miss if table.by_hit else table.base_next, env

    def _action(self, action: Action, args: tuple[Bits | None, ...], env: _Env) -> _Env:
        self._args = args
        after = dict(env)
        jumping = action.id in self._is.jumping
        for statement in self._is.steps[action.id] if jumping else ():
            self._lose(after, statement)
        for statement in self._is.steps[action.id]:
            if reason := FORBIDDEN.get(type(statement)):
                self.reasons.setdefault(f"{action.name}: {reason}")
            for expr in inputs(statement):
                self._look(expr, after, action.name)
            if isinstance(statement, RegisterRead | RegisterWrite):
                self._note("register", statement.register, self._value(statement.index, after), action.name)
            if isinstance(statement, ExecuteMeter):
                self._note("meter", statement.meter, self._value(statement.index, after), action.name)
            dst = destination(statement)
            if jumping:
                continue
            if isinstance(statement, Assign) and isinstance(dst, FieldRef) and dst in after:
                after[dst] = of.fitted(self._value(statement.src, after), len(after[dst]))
            else:
                self._lose(after, statement)
        return after

    def _lose(self, env: _Env, statement: Statement) -> None:
        """Forget the fields that a statement may change."""
        if isinstance(statement, MarkToDrop):
            changed = {ref for ref in env if ref.header == "standard_metadata" and ref != PORT}
        else:
            dst = destination(statement)
            if isinstance(dst, FieldRef):
                changed = {dst}
            else:
                headers = headers_changed(self._program, statement)
                changed = {ref for ref in env if ref.header in headers}
        for ref in changed & env.keys():
            env[ref] = of.unknown(len(env[ref]))

    def _look(self, expr: Expr, env: _Env, place: str) -> None:
        """Note the registers that an expression reads."""
        for node in walk(expr):
            if isinstance(node, RegisterRef):
                self._note("register", node.register, self._value(node.index, env), place)

    def _note(self, kind: str, name: str, index: Bits | None, place: str) -> None:
        if name in self._is.loose:
            return
        self.accesses.setdefault(f"{kind} {name}", {}).setdefault(index, place)

    # -- values ----------------------------------------------------------------------------------------

    def _value(self, expr: Expr, env: _Env) -> Bits | None:
        """Return the bits of an unsigned expression."""
        match expr:
            case Const(value):
                return of.constant(value)
            case BoolConst(value):
                return of.constant(int(value))
            case ParamRef(index):
                return self._args[index] if index < len(self._args) else None
            case FieldRef():
                return self._field(expr, env)
            case Ternary(condition, yes, no):
                holds = self._holds(condition, env)
                if holds is not None:
                    return self._value(yes if holds else no, env)
                return of.either(self._value(yes, env), self._value(no, env))
            case Unary("b2d", operand):
                holds = self._holds(operand, env)
                return (holds,)
            case Binary(op, left, right):
                return self._binary(op, left, right, env)
        return None

    def _field(self, ref: FieldRef, env: _Env) -> Bits | None:
        if ref in env:
            return None if self._program.field(ref).signed else env[ref]
        if ref.header in self._program.headers and not self._program.field(ref).signed:
            return of.unknown(self._program.field(ref).bits)
        return None

    def _binary(self, op: str, left: Expr, right: Expr, env: _Env) -> Bits | None:
        a, b = self._value(left, env), self._value(right, env)
        by = right.value if isinstance(right, Const) and right.value >= 0 else None
        match op:
            case "<<" if by is not None:
                return of.shifted_left(a, by)
            case ">>" if by is not None:
                return of.shifted_right(a, by)
            case "&":
                return of.both(a, b)
            case "|":
                return of.any_of(a, b)
            case "+":
                return of.added(a, b)
            case "*" if by is not None and by.bit_count() == 1:
                return of.shifted_left(a, by.bit_length() - 1)
            case "two_comp_mod" if by is not None:
                return None  # signed
        return None

    def _holds(self, condition: Expr, env: _Env) -> int | None:
        """Return whether a condition holds, as 0 or 1; None when that is not known."""
        match condition:
            case BoolConst(value):
                return int(value)
            case Unary("not", operand):
                holds = self._holds(operand, env)
                return None if holds is None else 1 - holds
            case Unary("d2b", operand):
                number = of.number(self._value(operand, env))
                return None if number is None else int(number != 0)
            case Binary("and" | "or" as op, left, right):
                sides = {self._holds(left, env), self._holds(right, env)}
                decides = int(op == "or")
                return decides if decides in sides else None if None in sides else 1 - decides
            case Binary("==" | "!=" as op, left, right):
                a, b = self._value(left, env), self._value(right, env)
                if of.differ(a, b):
                    return int(op == "!=")
                known = of.number(a)
                if known is not None and known == of.number(b):
                    return int(op == "==")
        return None


def can_decide(kind: FieldType) -> bool:
    """Return whether single bits of such a field are followed."""
    return kind.bits <= _WIDEST and not kind.signed and not kind.varbit


def _following(table: Table, action: int) -> Iterator[str | None]:
    if table.fixed is not None:
        yield table.fixed_next
    elif table.by_hit:
        yield table.next_hit
        yield table.next_miss
    else:
        yield table.next_by_action.get(action, table.base_next)


def _joined(one: _Env, other: _Env) -> _Env:
    return {
        ref: bits
        if bits is other[ref] or bits == other[ref]
        else of.fitted(of.either(bits, other[ref]), len(bits))
        for ref, bits in one.items()
    }
