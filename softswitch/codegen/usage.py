# SPDX-License-Identifier: Apache-2.0
"""What statements and expressions read and write."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Final, cast

from softswitch.program_ir import (
    Advance,
    Assign,
    Binary,
    Calculation,
    Clone,
    CopyHeader,
    CopyStack,
    CounterAdd,
    ExecuteMeter,
    Expr,
    Extract,
    ExtractNext,
    FieldRef,
    Hash,
    InputField,
    Jump,
    Lvalue,
    MarkToDrop,
    Random,
    RegisterRead,
    RegisterRef,
    RegisterWrite,
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
    Verify,
)
from softswitch.program_types import Action, Pipeline, Program, Table

# Expressions whose value depends on more than fields, parameters and header validity.
STATEFUL: Final = (RegisterRef, StackField, StackLast, StackCount, StackValid)


_CHILDREN: Final[dict[type, tuple[str, ...]]] = {
    StackField: ("index",),
    StackValid: ("index",),
    RegisterRef: ("index",),
    Unary: ("operand",),
    Binary: ("left", "right"),
    Ternary: ("condition", "yes", "no"),
}


def walk(expr: Expr) -> Iterator[Expr]:
    """An expression and everything in it."""
    stack = [expr]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(getattr(node, name) for name in _CHILDREN.get(type(node), ()))


def rewrite(expr: Expr, change: Callable[[Expr], Expr | None]) -> Expr:
    """Replaces subexpressions for which `change` returns something, outermost first, left to right."""
    replaced = change(expr)
    if replaced is not None:
        return replaced
    changed = {}
    for name in _CHILDREN.get(type(expr), ()):
        value = getattr(expr, name)
        new = rewrite(value, change)
        if new is not value:
            changed[name] = new
    return cast(Expr, dataclasses.replace(cast(Any, expr), **changed)) if changed else expr


def fields_in(expr: Expr) -> Iterator[FieldRef]:
    """The fields an expression reads (stack fields reached at run time are not among them)."""
    return (node for node in walk(expr) if isinstance(node, FieldRef))


_INPUTS: Final[dict[type, tuple[str, ...]]] = {
    Assign: ("src",),
    RegisterRead: ("index",),
    RegisterWrite: ("index", "value"),
    CounterAdd: ("index",),
    ExecuteMeter: ("index",),
    Hash: ("base", "modulus"),
    Random: ("low", "high"),
    Clone: ("session",),
    Truncate: ("length",),
    Jump: ("unless",),
}


def inputs(statement: Statement) -> tuple[Expr, ...]:
    """The expressions a statement evaluates."""
    values = (getattr(statement, name) for name in _INPUTS.get(type(statement), ()))
    dst = destination(statement)
    found = tuple(value for value in values if value is not None)
    return (*found, dst.index) if isinstance(dst, StackField) else found


_ASSIGNING: Final = (Assign, RegisterRead, ExecuteMeter, Hash, Random)


def destination(statement: Statement) -> Lvalue | None:
    """The field a statement assigns, if it assigns one."""
    return statement.dst if isinstance(statement, _ASSIGNING) else None


def with_destination(statement: Statement, dst: Lvalue) -> Statement:
    """The statement with another destination."""
    match statement:
        case Assign() | RegisterRead() | ExecuteMeter() | Hash() | Random():
            return dataclasses.replace(statement, dst=dst)
        case _:
            return statement


def map_inputs(statement: Statement, change: Callable[[Expr], Expr | None]) -> Statement:
    """The statement with `change` applied within all expressions it evaluates, in order."""
    changed: dict[str, object] = {}
    dst = destination(statement)
    if isinstance(dst, StackField):
        changed["dst"] = dataclasses.replace(dst, index=rewrite(dst.index, change))
    for name in _INPUTS.get(type(statement), ()):
        value = getattr(statement, name)
        if value is not None:
            new = rewrite(value, change)
            if new is not value:
                changed[name] = new
    return cast(Statement, dataclasses.replace(cast(Any, statement), **changed)) if changed else statement


def headers_changed(program: Program, statement: Statement) -> set[str]:
    """Headers whose storage or validity a statement may change."""
    match statement:
        case CopyHeader(dst) | SetValid(dst):
            return {dst}
        case CopyStack(dst) | ShiftStack(dst):
            return set(program.stacks[dst].headers)
    match destination(statement):
        case FieldRef(header):
            return {header}
        case StackField(stack) | StackLast(stack):
            return set(program.stacks[stack].headers)
    return set()


def pipeline_actions(program: Program, pipeline: Pipeline) -> list[Action]:
    """The actions tables of a pipeline may run, each once."""
    ids = dict.fromkeys(action for table in pipeline.tables.values() for action in table.actions)
    for table in pipeline.tables.values():
        if table.default is not None:
            ids[table.default.action] = None
    return [program.actions[action] for action in ids]


def calculation_fields(program: Program, calculation: Calculation) -> Iterator[FieldRef]:
    """The fields a calculation reads."""
    for each in calculation.inputs:
        if isinstance(each, InputField):
            yield each.field


def outside_actions(program: Program) -> set[FieldRef]:
    """Fields that something other than an action body reads or writes: parser, keys, direct meters,
    conditions, checksums, calculations, field lists, digests."""
    used: set[FieldRef] = set()
    for state in program.parser.states.values():
        for expr in state.key:
            used.update(fields_in(expr))
        for op in state.ops:
            match op:
                case Extract() | ExtractNext():
                    pass
                case Advance(bits):
                    used.update(fields_in(bits))
                case Verify(condition, error):
                    used.update(fields_in(condition), fields_in(error))
                case _:
                    used.update(statement_fields(program, op))
    for pipeline in (program.ingress, program.egress):
        for table in pipeline.tables.values():
            used.update(key.target for key in table.keys if isinstance(key.target, FieldRef))
            used.update(meter_targets(table))
        for conditional in pipeline.conditionals.values():
            used.update(fields_in(conditional.condition))
    for checksum in program.checksums:
        used.add(checksum.target)
        if checksum.condition is not None:
            used.update(fields_in(checksum.condition))
    for calculation in program.calculations.values():
        used.update(calculation_fields(program, calculation))
    for fields in program.field_lists.values():
        used.update(fields)
    for digest in program.digests.values():
        used.update(digest.fields)
    return used


def meter_targets(table: Table) -> Iterator[FieldRef]:
    """The field that a hit in the table sets to its entry's colour, if there is one."""
    if table.meter is not None and table.meter.target is not None:
        yield table.meter.target


def statement_fields(program: Program, statement: Statement) -> set[FieldRef]:
    """Every field a statement reads or writes by name."""
    used = {ref for expr in inputs(statement) for ref in fields_in(expr)}
    dst = destination(statement)
    if isinstance(dst, FieldRef):
        used.add(dst)
    if isinstance(statement, CopyHeader):
        for name in (statement.dst, statement.src):
            used.update(FieldRef(name, field.name) for field in program.headers[name].type.fields)
    if isinstance(statement, MarkToDrop):
        used.update(
            (FieldRef("standard_metadata", "egress_spec"), FieldRef("standard_metadata", "mcast_grp"))
        )
    return used
