# SPDX-License-Identifier: Apache-2.0
"""The objects of a P4Info message (tables, actions, profiles, arrays, digests) as the server asks them."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from softp4.p4rt.p4data import Encoder, encoder
from softp4.p4runtime.schema import p4info_pb2
from softp4.program.errors import ProgramError, UnsupportedConstruct
from softp4.state.action_profiles import ProfileLimits


@dataclass(frozen=True)
class FieldInfo:
    """A key field, action parameter or field of a controller header.

    ``match_type`` is a MatchField.MatchType, 0 for what is none. ``type_name``: of a user-defined type.
    """

    id: int
    name: str
    bits: int
    match_type: int = 0
    type_name: str = ""

    @cached_property
    def place(self) -> str:
        """Return how messages name a key field, behind the name of what has the key."""
        return f", field {self.name}" if self.name else ""


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
    profile: int  # its action profile's id, or 0

    @cached_property
    def title(self) -> str:
        """Return how messages name it."""
        return f"table {self.name}"

    @cached_property
    def prioritised(self) -> bool:
        """Return whether entries carry a priority."""
        return any(
            field.match_type
            in (p4info_pb2.MatchField.TERNARY, p4info_pb2.MatchField.RANGE, p4info_pb2.MatchField.OPTIONAL)
            for field in self.fields
        )


@dataclass(frozen=True)
class ProfileInfo:
    """An action profile and the tables that use it."""

    id: int
    name: str
    tables: tuple[int, ...]
    limits: ProfileLimits


@dataclass(frozen=True)
class ArrayInfo:
    """An indirect counter or a register.

    ``signed``: a register of ``int<W>``. ``data``: which field of P4Data a register's cells are in.
    """

    id: int
    name: str
    size: int
    signed: bool = False
    data: str = "bitstring"


@dataclass(frozen=True)
class MeterInfo(ArrayInfo):
    """A meter array, or (of size 0) a table's meter. ``type`` is a MeterSpec.Type; ``bytes``: not packets."""

    type: int = p4info_pb2.MeterSpec.TWO_RATE_THREE_COLOR
    bytes: bool = False


@dataclass(frozen=True)
class DigestInfo:
    """A digest. ``encode`` makes a P4Data of its fields; None when that cannot be, as ``obstacle`` says."""

    name: str
    encode: Encoder | None
    widths: tuple[int, ...]
    obstacle: str = ""


@dataclass(frozen=True)
class ValueSetInfo:
    """A parser value set: the fields of its members, in order, and how many it holds."""

    id: int
    name: str
    fields: tuple[FieldInfo, ...]
    size: int


def field_info(message: Any) -> FieldInfo:
    """Return a key field, a parameter, or a field of a controller header."""
    kind = getattr(message, "match_type", 0)
    return FieldInfo(message.id, message.name, message.bitwidth, kind, message.type_name.name)


def action_info(action: Any) -> ActionInfo:
    """Return an action."""
    return ActionInfo(action.preamble.id, action.preamble.name, tuple(field_info(p) for p in action.params))


def table_info(table: Any, counted: set[int]) -> TableInfo:
    """Return a table. ``counted``: ids of tables with direct counters."""
    ref = p4info_pb2.ActionRef
    return TableInfo(
        id=table.preamble.id,
        name=table.preamble.name,
        fields=tuple(field_info(m) for m in table.match_fields),
        entry_actions=frozenset(a.id for a in table.action_refs if a.scope != ref.DEFAULT_ONLY),
        default_actions=frozenset(a.id for a in table.action_refs if a.scope != ref.TABLE_ONLY),
        const_default=table.const_default_action_id != 0,
        constant=table.is_const_table,
        counted=table.preamble.id in counted,
        idle_timeout=table.idle_timeout_behavior != p4info_pb2.Table.NO_TIMEOUT,
        profile=table.implementation_id,
    )


def profile_info(profile: Any) -> ProfileInfo:
    """Return an action profile."""
    by_members = profile.WhichOneof("selector_size_semantics") == "sum_of_members"
    limits = ProfileLimits(
        size=profile.size,
        by_members=by_members,
        group_size=profile.max_group_size,
        member_weight=profile.sum_of_members.max_member_weight if by_members else 0,
    )
    return ProfileInfo(profile.preamble.id, profile.preamble.name, tuple(profile.table_ids), limits)


def register_info(register: Any, types: Any) -> ArrayInfo:
    """Return a register array, of the TypeInfo ``types``. Raises ProgramError for one without numbers."""
    spec, name = register.type_spec, register.preamble.name
    if spec.HasField("new_type") and spec.new_type.name in types.new_types:
        new_type = types.new_types[spec.new_type.name]
        if new_type.HasField("translated_type"):
            return ArrayInfo(register.preamble.id, name, register.size)
        spec = new_type.original_type
    data = "enum_value" if spec.HasField("serializable_enum") else "bitstring"
    if data == "bitstring" and not spec.HasField("bitstring"):
        raise ProgramError(f"P4Info: register {name} holds {spec.WhichOneof('type_spec')}, not numbers")
    return ArrayInfo(
        register.preamble.id, name, register.size, signed=spec.bitstring.HasField("int"), data=data
    )


def meter_info(meter: Any, size: int) -> MeterInfo:
    """Return a meter array of ``size`` meters."""
    spec = meter.spec
    return MeterInfo(
        meter.preamble.id,
        meter.preamble.name,
        size,
        type=spec.type,
        bytes=spec.unit == p4info_pb2.MeterSpec.BYTES,
    )


def digest_info(digest: Any, types: Any) -> DigestInfo:
    """Return a digest, of the TypeInfo ``types``."""
    name = digest.preamble.name
    try:
        encode, widths = encoder(digest.type_spec, types, f"digest {name}")
    except UnsupportedConstruct as error:
        return DigestInfo(name, None, (), str(error))
    return DigestInfo(name, encode, tuple(widths))
