# SPDX-License-Identifier: Apache-2.0
"""A P4Info message, indexed by id and checked against the program it describes."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from softp4.errors import Code, ControlError
from softp4.p4rt.p4info_objects import (
    ActionInfo,
    ArrayInfo,
    FieldInfo,
    MeterInfo,
    ProfileInfo,
    TableInfo,
    ValueSetInfo,
    action_info,
    digest_info,
    field_info,
    meter_info,
    profile_info,
    register_info,
    table_info,
)
from softp4.p4runtime.schema import API_VERSION, p4info_pb2
from softp4.program.errors import ProgramError
from softp4.program.loader import Program
from softp4.program.types import Counter, MatchKind, Meter, Register

_T = TypeVar("_T")
_log = logging.getLogger(__name__)
P4Info = Any
"""``p4.config.v1.P4Info``; the stubs carry no types."""

_KINDS: Final = {
    p4info_pb2.MatchField.EXACT: MatchKind.EXACT,
    p4info_pb2.MatchField.LPM: MatchKind.LPM,
    p4info_pb2.MatchField.TERNARY: MatchKind.TERNARY,
    p4info_pb2.MatchField.RANGE: MatchKind.RANGE,
    p4info_pb2.MatchField.OPTIONAL: MatchKind.TERNARY,
}

_ORDERED: Final = (p4info_pb2.MatchField.LPM, p4info_pb2.MatchField.RANGE)  # a match depends on the width


class P4InfoIndex:
    """A P4Info as the P4Runtime server asks it: objects by id, and actions by name.

    Attributes:
        removed: tables, by id, that the compiler has left out of the program, because no packet reaches them.
            They are not among `tables`, nor are their meters among `direct_meters`.
    """

    def __init__(self, info: P4Info) -> None:
        self.message = info
        self.removed: dict[int, TableInfo] = {}
        counted = {counter.direct_table_id for counter in info.direct_counters}
        self.actions = {a.preamble.id: action_info(a) for a in info.actions}
        self.tables = {t.preamble.id: table_info(t, counted) for t in info.tables}
        self.profiles = {p.preamble.id: profile_info(p) for p in info.action_profiles}
        self.counters = {
            c.preamble.id: ArrayInfo(c.preamble.id, c.preamble.name, c.size) for c in info.counters
        }
        self.registers = {r.preamble.id: register_info(r, info.type_info) for r in info.registers}
        self.meters = {m.preamble.id: meter_info(m, m.size) for m in info.meters}
        self.direct_meters = {m.direct_table_id: meter_info(m, 0) for m in info.direct_meters}
        self.digests = {d.preamble.id: digest_info(d, info.type_info) for d in info.digests}
        self.value_sets = {
            v.preamble.id: ValueSetInfo(
                v.preamble.id, v.preamble.name, tuple(map(field_info, v.match)), v.size
            )
            for v in info.value_sets
        }
        self.packet_headers = {
            header.preamble.name: tuple(field_info(m) for m in header.metadata)
            for header in info.controller_packet_metadata
        }
        self._action_ids = {action.name: action.id for action in self.actions.values()}

    def table(self, number: int) -> TableInfo:
        """Return the table with that id. Raises ControlError: NOT_FOUND, UNIMPLEMENTED if removed."""
        if number in self.removed:
            raise ControlError(
                Code.UNIMPLEMENTED,
                f"table {self.removed[number].name} is not in the program: the compiler removed it, "
                "as no packet reaches it",
            )
        return _find(self.tables, number, "table")

    def profile(self, number: int) -> ProfileInfo:
        """Return the action profile with that id. Raises ControlError NOT_FOUND."""
        return _find(self.profiles, number, "action profile")

    def action(self, number: int) -> ActionInfo:
        """Return the action with that id. Raises ControlError INVALID_ARGUMENT."""
        if number not in self.actions:
            raise ControlError(Code.INVALID_ARGUMENT, f"P4Info has no action with id {number}")
        return self.actions[number]

    def action_named(self, name: str) -> ActionInfo | None:
        """Return the action of that name, or None (actions that the compiler made are not in P4Info)."""
        number = self._action_ids.get(name)
        return None if number is None else self.actions[number]

    def counter(self, number: int) -> ArrayInfo:
        """Return the indirect counter with that id. Raises ControlError NOT_FOUND."""
        return _find(self.counters, number, "counter")

    def meter(self, number: int) -> MeterInfo:
        """Return the indirect meter with that id. Raises ControlError NOT_FOUND."""
        return _find(self.meters, number, "meter")

    def register(self, number: int) -> ArrayInfo:
        """Return the register with that id. Raises ControlError NOT_FOUND."""
        return _find(self.registers, number, "register")

    def value_set(self, number: int) -> ValueSetInfo:
        """Return the parser value set with that id. Raises ControlError NOT_FOUND."""
        return _find(self.value_sets, number, "value set")

    def check_against(self, program: Program) -> None:
        """Raise ProgramError, naming the first difference, unless P4Info describes ``program``.

        What P4Info, which p4c writes before it optimises, cannot know is taken from the program: which tables
        are left, and the width of fields of type error.
        """
        _check_ids(self.message)
        _check_served(self.message)
        self._set_removed_apart(program)
        for table in list(self.tables.values()):
            self._check_table(table, program)
        for header, fields in self.packet_headers.items():
            for field in fields:
                if self._translation(field) is not None:
                    raise ProgramError(
                        f"P4Info: {field.name} of controller header {header} is translated: not supported"
                    )
        for profile in self.profiles.values():
            self._check_profile(profile, program)
        for counter in self.counters.values():
            _check_array("counter", counter, program.counters)
        for register in self.registers.values():
            _check_array("register", register, program.registers)
        for meter in self.meters.values():
            _check_array("meter", meter, program.meters)
            _check_meter(meter, None, program)
        for table_id, meter in self.direct_meters.items():
            if table_id not in self.tables:
                raise ProgramError(f"P4Info: direct meter {meter.name} is of an unknown table {table_id}")
            _check_meter(meter, self.tables[table_id].name, program)
        for listed in program.digests.values():  # of one name, maybe: p4c names a digest after its type
            widths = tuple(program.field(ref).bits for ref in listed.fields)
            for digest in self.digests.values():
                encoded = digest.encode is not None and digest.name == listed.name
                if encoded and digest.widths != widths:
                    raise _mismatch(f"digest {digest.name}", f"its fields have {widths} bits")
        for value_set in self.value_sets.values():
            _check_value_set(value_set, program)

    def _set_removed_apart(self, program: Program) -> None:
        """Note which tables are not in the program. Raises ProgramError when it rather has others."""
        self.removed = {n: table for n, table in self.tables.items() if table.name not in program.tables}
        if not self.removed:
            return
        names = ", ".join(table.name for table in self.removed.values())
        described = {table.name for table in self.tables.values()}
        for known in program.tables.values():
            # The compiler's own tables have no key or no entries but constant ones.
            if known.name not in described and known.keys and not known.immutable:
                raise _mismatch(f"table {names}", f"the program does not have it, but {known.name}")
        _log.warning("the compiler removed table %s, which no packet reaches: it takes no entries", names)
        self.tables = {n: table for n, table in self.tables.items() if n not in self.removed}
        self.direct_meters = {n: meter for n, meter in self.direct_meters.items() if n not in self.removed}
        self.profiles = {
            n: replace(profile, tables=tuple(table for table in profile.tables if table not in self.removed))
            for n, profile in self.profiles.items()
            if profile.name in program.action_profiles or not self.removed.keys() >= {*profile.tables}
        }

    def _check_table(self, table: TableInfo, program: Program) -> None:
        known = program.tables[table.name]
        if [key.kind for key in known.keys] != [_KINDS.get(field.match_type) for field in table.fields]:
            raise _mismatch(f"table {table.name}", "its key is another")
        if table.counted and not known.counted:
            raise _mismatch(f"table {table.name}", "it has no direct counter")
        if table.idle_timeout and not known.ages:
            raise _mismatch(f"table {table.name}", "its entries have no idle timeout")
        widths = [key.bits for key in known.keys]
        self.tables[table.id] = replace(
            table, fields=self._checked(f"table {table.name}", table.fields, widths)
        )
        profile = self.profiles[table.profile].name if table.profile in self.profiles else None
        if known.profile != profile:
            raise _mismatch(f"table {table.name}", "its action profile is another")
        for number in table.entry_actions | table.default_actions:
            if number not in self.actions:
                raise ProgramError(f"P4Info: table {table.name} has an action with unknown id {number}")
            action = self.actions[number]
            run = program.table_action(known, action.name)
            if run is None:
                raise _mismatch(f"table {table.name}", f"it has no action {action.name}")
            if len(run.params) != len(action.params):
                raise _mismatch(f"action {action.name}", f"it has {len(run.params)} parameters")
            widths = [param.bits for param in run.params]
            self.actions[number] = replace(
                action, params=self._checked(f"action {action.name}", action.params, widths)
            )

    def _checked(
        self, where: str, fields: Sequence[FieldInfo], widths: Sequence[int]
    ) -> tuple[FieldInfo, ...]:
        """Return fields that have these widths, a field of type error the program's. Raises ProgramError."""
        found = []
        for field, bits in zip(fields, widths, strict=True):
            settled = (
                field if field.bits or self._translation(field) is not None else replace(field, bits=bits)
            )
            self._check_field(where, settled, bits)
            found.append(settled)
        return tuple(found)

    def _check_field(self, where: str, field: FieldInfo, bits: int) -> None:
        """Raise ProgramError unless a field has this many bits, or is translated to another number of "
        "them."""
        translation = self._translation(field)
        if translation is None:
            if field.bits != bits:
                raise _mismatch(f"{where}, {field.name}", f"it has {bits} bits, not {field.bits}")
        elif translation.HasField("sdn_string") or field.match_type in _ORDERED:
            kind = "a string" if translation.HasField("sdn_string") else "another width"
            raise ProgramError(
                f"P4Info: {where}: {field.name} is translated to {kind}, which is not supported"
            )

    def _translation(self, field: FieldInfo) -> Any:
        """Return the P4NewTypeTranslation of a field's type, or None."""
        if field.type_name not in self.message.type_info.new_types:
            return None
        spec = self.message.type_info.new_types[field.type_name]
        return spec.translated_type if spec.HasField("translated_type") else None

    def _check_profile(self, profile: ProfileInfo, program: Program) -> None:
        if profile.name not in program.action_profiles:
            raise _mismatch(f"action profile {profile.name}", "the program does not have it")
        for number in profile.tables:
            if number not in self.tables or self.tables[number].profile != profile.id:
                raise ProgramError(f"P4Info: action profile {profile.name} has an unknown table {number}")


def _find(objects: dict[int, _T], number: int, kind: str) -> _T:
    if number not in objects:
        raise ControlError(Code.NOT_FOUND, f"P4Info has no {kind} with id {number}")
    return objects[number]


def _mismatch(what: str, difference: str) -> ProgramError:
    return ProgramError(
        f"P4Info and program are not from one compilation: {what} is in P4Info, but {difference}"
    )


def _check_ids(info: P4Info) -> None:
    """Raise ProgramError unless every object has an id of its own, as every part of it has within it."""
    for objects in (
        info.tables,
        info.actions,
        info.action_profiles,
        info.counters,
        info.direct_counters,
        info.meters,
        info.direct_meters,
        info.value_sets,
        info.registers,
        info.digests,
        info.controller_packet_metadata,
    ):
        _check_distinct([each.preamble.id for each in objects], ", ".join(e.preamble.name for e in objects))
    for objects, members in (
        (info.tables, "match_fields"),
        (info.actions, "params"),
        (info.value_sets, "match"),
        (info.controller_packet_metadata, "metadata"),
    ):
        for each in objects:
            _check_distinct(
                [member.id for member in getattr(each, members)], f"{members} of {each.preamble.name}"
            )


def _check_served(info: P4Info) -> None:
    """Raise ProgramError for what this switch does not serve of a P4Info that is newer than P4Runtime 1.4."""
    for profile in info.action_profiles:
        if profile.weights_disallowed:
            raise ProgramError(
                f"P4Info: action profile {profile.preamble.name}: weights_disallowed is not supported"
            )
    for table in info.tables:
        for ref in table.action_refs:
            if ref.scope not in p4info_pb2.ActionRef.Scope.values():
                raise ProgramError(
                    f"P4Info: table {table.preamble.name} has an action of scope {ref.scope}, "
                    f"which is newer than P4Runtime {API_VERSION}"
                )


def _check_distinct(ids: Sequence[int], what: str) -> None:
    if 0 in ids or len(set(ids)) != len(ids):
        raise ProgramError(f"P4Info: the ids of {what} are {list(ids)}: each needs a different id, not 0")


def _check_value_set(value_set: ValueSetInfo, program: Program) -> None:
    known = program.value_sets.get(value_set.name)
    if known is None:
        raise _mismatch(f"value set {value_set.name}", "the program does not have it")
    widths = tuple(field.bits for field in value_set.fields)
    if sum(widths) != known.bits or known.fields not in ((), widths):
        raise _mismatch(f"value set {value_set.name}", "its members are others")
    if value_set.size != known.size:
        raise _mismatch(f"value set {value_set.name}", f"its size is {known.size}, not {value_set.size}")


def _check_meter(meter: MeterInfo, table: str | None, program: Program) -> None:
    known = program.meters.get(meter.name)
    if known is None or known.table != table:
        raise _mismatch(f"meter {meter.name}", f"the program has no such meter of {table or 'no table'}")
    if known.bytes != meter.bytes:
        raise _mismatch(f"meter {meter.name}", f"it counts {'bytes' if known.bytes else 'packets'}")


def _check_array(
    kind: str,
    array: ArrayInfo,
    known: Mapping[str, Counter] | Mapping[str, Register] | Mapping[str, Meter],
) -> None:
    if array.name not in known:
        raise _mismatch(f"{kind} {array.name}", "the program does not have it")
    if known[array.name].size != array.size:
        raise _mismatch(f"{kind} {array.name}", f"its size is {known[array.name].size}, not {array.size}")
