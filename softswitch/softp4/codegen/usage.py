# SPDX-License-Identifier: Apache-2.0
"""Usage of fields: what statements and expressions read and write."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Final, cast

from softp4.program.calculations import Calculation, InputField
from softp4.program.ir import (
    Advance,
    Assert,
    Assign,
    Binary,
    Clone,
    CopyHeader,
    CopyStack,
    CopyUnion,
    CopyVarbit,
    CounterAdd,
    Element,
    ExecuteMeter,
    Expr,
    Extract,
    ExtractNext,
    FieldRef,
    Hash,
    HeaderRef,
    Jump,
    LogMessage,
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
    VarbitsEqual,
    Verify,
)
from softp4.program.types import Action, Pipeline, Program, Table

# Expressions whose value depends on more than fields, parameters and header validity.
STATEFUL: Final = (RegisterRef, StackField, StackLast, StackCount, StackValid, VarbitsEqual)


_CHILDREN: Final[dict[type, tuple[str, ...]]] = {
    StackField: ("index",),
    StackValid: ("index",),
    RegisterRef: ("index",),
    Unary: ("operand",),
    Binary: ("left", "right"),
    VarbitsEqual: ("left", "right"),
    Ternary: ("condition", "yes", "no"),
}


def walk(expr: Expr) -> Iterator[Expr]:
    """Yield an expression and everything in it."""
    stack = [expr]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(getattr(node, name) for name in _CHILDREN.get(type(node), ()))


def rewrite(expr: Expr, change: Callable[[Expr], Expr | None]) -> Expr:
    """Replace subexpressions for which `change` returns something, outermost first, left to right."""
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
    """Return the fields an expression reads (stack fields reached at run time are not among them)."""
    return (node for node in walk(expr) if isinstance(node, FieldRef))


_INPUTS: Final[dict[type, tuple[str, ...]]] = {
    Assign: ("src",),
    RegisterRead: ("index", "otherwise"),
    RegisterWrite: ("index", "value"),
    CounterAdd: ("index",),
    ExecuteMeter: ("index",),
    Hash: ("base", "modulus"),
    Random: ("low", "high"),
    Clone: ("session",),
    Truncate: ("length",),
    Assert: ("condition",),
    Jump: ("unless",),
}


# What a statement works on other than expressions that it evaluates; may have an index of its own.
_OPERANDS: Final[dict[type, tuple[str, ...]]] = {
    CopyHeader: ("dst", "src"),
    CopyVarbit: ("dst", "src"),
    SetValid: ("header",),
    Assign: ("dst",),
    RegisterRead: ("dst",),
    ExecuteMeter: ("dst",),
    Hash: ("dst",),
    Random: ("dst",),
}


def inputs(statement: Statement) -> tuple[Expr, ...]:
    """Return the expressions a statement evaluates."""
    if isinstance(statement, LogMessage):
        return statement.operands
    values = (getattr(statement, name) for name in _INPUTS.get(type(statement), ()))
    operands = (getattr(statement, name) for name in _OPERANDS.get(type(statement), ()))
    found = tuple(value for value in values if value is not None)
    return (*found, *(each.index for each in operands if isinstance(each, StackField | Element)))


_ASSIGNING: Final = (Assign, RegisterRead, ExecuteMeter, Hash, Random)


def destination(statement: Statement) -> Lvalue | None:
    """Return the field a statement assigns, if it assigns one."""
    return statement.dst if isinstance(statement, _ASSIGNING) else None


def with_destination(statement: Statement, dst: Lvalue) -> Statement:
    """Return the statement with another destination."""
    match statement:
        case Assign() | RegisterRead() | ExecuteMeter() | Hash() | Random():
            return dataclasses.replace(statement, dst=dst)
        case _:
            return statement


def map_inputs(statement: Statement, change: Callable[[Expr], Expr | None]) -> Statement:
    """Return the statement with `change` applied within all expressions it evaluates, in order."""
    changed: dict[str, object] = {}
    for name in _OPERANDS.get(type(statement), ()):
        operand = getattr(statement, name)
        if isinstance(operand, StackField | Element):
            changed[name] = dataclasses.replace(operand, index=rewrite(operand.index, change))
    if isinstance(statement, LogMessage):
        changed["operands"] = tuple(rewrite(each, change) for each in statement.operands)
    for name in _INPUTS.get(type(statement), ()):
        value = getattr(statement, name)
        if value is not None:
            new = rewrite(value, change)
            if new is not value:
                changed[name] = new
    return cast(Statement, dataclasses.replace(cast(Any, statement), **changed)) if changed else statement


def storage_changed(program: Program, statement: Statement) -> set[str]:
    """Return the headers whose storage a statement may change; validity is kept apart (codegen/layout.py)."""
    if isinstance(statement, SetValid) and not statement.valid:
        return set()
    return headers_changed(program, statement)


def headers_changed(program: Program, statement: Statement) -> set[str]:
    """Return the headers whose storage or validity a statement may change."""
    match statement:
        case CopyHeader(dst) | SetValid(dst):
            return header_and_siblings(program, dst)
        case CopyUnion(union):
            return set(program.unions[union])
        case CopyStack(stack) | ShiftStack(stack):
            return {name for column in columns(program, stack) for name in program.stacks[column].headers}
        case CopyVarbit(target):
            return _holding(program, target)
    field = destination(statement)
    return set() if field is None else _holding(program, field)


def _holding(program: Program, field: Lvalue) -> set[str]:
    """Return the header that holds a field, or all that may."""
    return {field.header} if isinstance(field, FieldRef) else set(program.stacks[field.stack].headers)


def columns(program: Program, stack: str) -> tuple[str, ...]:
    """Return the stacks of headers that make up a stack: itself, or a stack of unions' columns."""
    union_stack = program.union_stacks.get(stack)
    return (stack,) if union_stack is None else union_stack.columns


def header_and_siblings(program: Program, header: HeaderRef) -> set[str]:
    """Return a header, or all it may be, and those that are in one union with it."""
    if isinstance(header, Element):
        return set().union(*(program.stacks[each].headers for each in sibling_stacks(program, header.stack)))
    return {header, *siblings(program, header)}


def siblings(program: Program, header: str) -> tuple[str, ...]:
    """Return the other members of the union that a header is in."""
    for members in program.unions.values():
        if header in members:
            return tuple(each for each in members if each != header)
    return ()


def sibling_stacks(program: Program, stack: str) -> tuple[str, ...]:
    """Return all columns of the stack of unions that a stack of headers is a column of; else itself alone."""
    union_stack = program.stacks[stack].union_stack
    return (stack,) if union_stack is None else program.union_stacks[union_stack].columns


def pipeline_actions(program: Program, pipeline: Pipeline) -> list[Action]:
    """Return the actions tables of a pipeline may run, each once."""
    ids = dict.fromkeys(action for table in pipeline.tables.values() for action in table.actions)
    for table in pipeline.tables.values():
        if table.default is not None:
            ids[table.default.action] = None
    return [program.actions[action] for action in ids]


def calculation_fields(program: Program, calculation: Calculation) -> Iterator[FieldRef]:
    """Yield the fields a calculation reads."""
    for each in calculation.inputs:
        if isinstance(each, InputField):
            yield each.field


def outside_actions(program: Program) -> set[FieldRef]:
    """Return the fields that something other than an action body reads or writes.

    That is: parser, keys, direct meters, conditions, deparser, checksums, calculations, field lists, digests.
    """
    used: set[FieldRef] = set()
    for state in program.parser.states.values():
        for expr in state.key:
            used.update(fields_in(expr))
        for op in state.ops:
            match op:
                case Extract(_, length) | ExtractNext(_, length):
                    used.update(fields_in(length) if length is not None else ())
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
    for statement in program.deparser_body:
        used.update(statement_fields(program, statement))
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
    """Yield the field that a hit in the table sets to its entry's colour, if there is one."""
    if table.meter is not None and table.meter.target is not None:
        yield table.meter.target


def statement_fields(program: Program, statement: Statement) -> set[FieldRef]:
    """Return every field a statement reads or writes by name."""
    used = {ref for expr in inputs(statement) for ref in fields_in(expr)}
    dst = destination(statement)
    if isinstance(dst, FieldRef):
        used.add(dst)
    if isinstance(statement, CopyHeader):
        for header in (statement.dst, statement.src):
            if isinstance(header, str):
                used.update(FieldRef(header, field.name) for field in program.headers[header].type.fields)
    if isinstance(statement, CopyVarbit):
        used.update(each for each in (statement.dst, statement.src) if isinstance(each, FieldRef))
    if isinstance(statement, MarkToDrop):
        used.update(program.intrinsic_fields("egress_spec", "mcast_grp"))
    return used
