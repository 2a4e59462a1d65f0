# SPDX-License-Identifier: Apache-2.0
"""A P4Info message, indexed by id and checked against the program it describes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from p4.config.v1 import p4info_pb2

from softswitch.errors import Code, ControlError, ProgramError
from softswitch.program import Program
from softswitch.program_types import Counter, MatchKind, Register

_T = TypeVar("_T")
P4Info = Any
"""``p4.config.v1.P4Info``; the stubs carry no types."""

_KINDS: Final = {
    p4info_pb2.MatchField.EXACT: MatchKind.EXACT,
    p4info_pb2.MatchField.LPM: MatchKind.LPM,
    p4info_pb2.MatchField.TERNARY: MatchKind.TERNARY,
    p4info_pb2.MatchField.RANGE: MatchKind.RANGE,
    p4info_pb2.MatchField.OPTIONAL: MatchKind.TERNARY,
}


@dataclass(frozen=True)
class FieldInfo:
    """A key field or action parameter. ``match_type`` is a MatchField.MatchType, 0 for a parameter."""

    id: int
    name: str
    bits: int
    match_type: int = 0


@dataclass(frozen=True)
class ActionInfo:
    """An action and its parameters, in order."""

    id: int
    name: str
    params: tuple[FieldInfo, ...]


@dataclass(frozen=True)
class TableInfo:
    """A table: key fields in order, and which actions its entries and its default may have."""

    id: int
    name: str
    fields: tuple[FieldInfo, ...]
    entry_actions: frozenset[int]
    default_actions: frozenset[int]
    const_default: bool
    constant: bool
    counted: bool
    idle_timeout: bool

    @property
    def prioritised(self) -> bool:
        """Whether entries carry a priority."""
        return any(
            field.match_type
            in (p4info_pb2.MatchField.TERNARY, p4info_pb2.MatchField.RANGE, p4info_pb2.MatchField.OPTIONAL)
            for field in self.fields
        )


@dataclass(frozen=True)
class ArrayInfo:
    """An indirect counter or a register. ``signed``: a register of ``int<W>``."""

    id: int
    name: str
    size: int
    signed: bool = False


class P4InfoIndex:
    """What the P4Runtime server asks a P4Info: objects by id, and actions by name."""

    def __init__(self, info: P4Info) -> None:
        self.message = info
        counted = {counter.direct_table_id for counter in info.direct_counters}
        self.actions = {a.preamble.id: _action(a) for a in info.actions}
        self.tables = {t.preamble.id: _table(t, counted) for t in info.tables}
        self.counters = {
            c.preamble.id: ArrayInfo(c.preamble.id, c.preamble.name, c.size) for c in info.counters
        }
        self.registers = {
            r.preamble.id: ArrayInfo(
                r.preamble.id, r.preamble.name, r.size, r.type_spec.bitstring.HasField("int")
            )
            for r in info.registers
        }
        self.packet_headers = {
            header.preamble.name: tuple(FieldInfo(m.id, m.name, m.bitwidth) for m in header.metadata)
            for header in info.controller_packet_metadata
        }
        self._action_ids = {action.name: action.id for action in self.actions.values()}

    def table(self, number: int) -> TableInfo:
        """The table with that id. Raises ControlError NOT_FOUND."""
        return _find(self.tables, number, "table")

    def action(self, number: int) -> ActionInfo:
        """The action with that id. Raises ControlError INVALID_ARGUMENT."""
        if number not in self.actions:
            raise ControlError(Code.INVALID_ARGUMENT, f"P4Info has no action with id {number}")
        return self.actions[number]

    def action_named(self, name: str) -> ActionInfo | None:
        """The action of that name, or None (actions that the compiler made are not in P4Info)."""
        number = self._action_ids.get(name)
        return None if number is None else self.actions[number]

    def counter(self, number: int) -> ArrayInfo:
        """The indirect counter with that id. Raises ControlError NOT_FOUND."""
        return _find(self.counters, number, "counter")

    def register(self, number: int) -> ArrayInfo:
        """The register with that id. Raises ControlError NOT_FOUND."""
        return _find(self.registers, number, "register")

    def check_against(self, program: Program) -> None:
        """Raises ProgramError, naming the first difference, unless P4Info describes ``program``."""
        for table in self.tables.values():
            self._check_table(table, program)
        for counter in self.counters.values():
            _check_array("counter", counter, program.counters)
        for register in self.registers.values():
            _check_array("register", register, program.registers)

    def _check_table(self, table: TableInfo, program: Program) -> None:
        known = program.tables.get(table.name)
        if known is None:
            raise _mismatch(f"table {table.name}", "the program does not have it")
        if [key.kind for key in known.keys] != [_KINDS.get(field.match_type) for field in table.fields]:
            raise _mismatch(f"table {table.name}", "its key is another")
        for number in table.entry_actions | table.default_actions:
            if number not in self.actions:
                raise ProgramError(f"P4Info: table {table.name} has an action with unknown id {number}")
            action = self.actions[number]
            run = program.table_action(known, action.name)
            if run is None:
                raise _mismatch(f"table {table.name}", f"it has no action {action.name}")
            if len(run.params) != len(action.params):
                raise _mismatch(f"action {action.name}", f"it has {len(run.params)} parameters")


def _find(objects: dict[int, _T], number: int, kind: str) -> _T:
    if number not in objects:
        raise ControlError(Code.NOT_FOUND, f"P4Info has no {kind} with id {number}")
    return objects[number]


def _mismatch(what: str, difference: str) -> ProgramError:
    return ProgramError(
        f"P4Info and program are not from one compilation: {what} is in P4Info, but {difference}"
    )


def _action(action: Any) -> ActionInfo:
    params = tuple(FieldInfo(p.id, p.name, p.bitwidth) for p in action.params)
    return ActionInfo(action.preamble.id, action.preamble.name, params)


def _table(table: Any, counted: set[int]) -> TableInfo:
    ref = p4info_pb2.ActionRef
    return TableInfo(
        id=table.preamble.id,
        name=table.preamble.name,
        fields=tuple(FieldInfo(m.id, m.name, m.bitwidth, m.match_type) for m in table.match_fields),
        entry_actions=frozenset(a.id for a in table.action_refs if a.scope != ref.DEFAULT_ONLY),
        default_actions=frozenset(a.id for a in table.action_refs if a.scope != ref.TABLE_ONLY),
        const_default=table.const_default_action_id != 0,
        constant=table.is_const_table,
        counted=table.preamble.id in counted,
        idle_timeout=table.idle_timeout_behavior != p4info_pb2.Table.NO_TIMEOUT,
    )


def _check_array(kind: str, array: ArrayInfo, known: Mapping[str, Counter] | Mapping[str, Register]) -> None:
    if array.name not in known:
        raise _mismatch(f"{kind} {array.name}", "the program does not have it")
    if known[array.name].size != array.size:
        raise _mismatch(f"{kind} {array.name}", f"its size is {known[array.name].size}, not {array.size}")
