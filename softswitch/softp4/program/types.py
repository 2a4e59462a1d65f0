# SPDX-License-Identifier: Apache-2.0
"""A v1model program as the soft switch holds it: frozen, typed, checked.

Names are BMv2's, which are those of P4Info.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from softp4.program.calculations import Calculation
from softp4.program.ir import Expr, FieldRef, ParserOp, Statement, Valid
from softp4.program.source import Source

DROP_PORT: Final = 511
MAX_WIDTH: Final = 2048  # bits of a field, register cell or parameter that is computed with: p4c's own limit
GROUPS: Final = ("intrinsic_metadata", "queueing_metadata")
"""Headers of metadata, or names in aliases, that BMv2 knows besides ``standard_metadata``."""


@dataclass(frozen=True)
class FieldType:
    """A field of a header type: width in bits and whether it is two's complement.

    A varbit field holds up to `bits` bits, always whole bytes; nothing can be computed with it.
    """

    name: str
    bits: int
    signed: bool = False
    varbit: bool = False


@dataclass(frozen=True)
class HeaderType:
    """An ordered run of fields; a whole number of bytes unless only used for metadata."""

    name: str
    fields: tuple[FieldType, ...]

    @property
    def bits(self) -> int:
        """Return width of all fields together, a varbit field counted with what it can hold."""
        return sum(field.bits for field in self.fields)

    @property
    def fixed_bits(self) -> int:
        """Return width of all fields together but the varbit one."""
        return sum(field.bits for field in self.fields if not field.varbit)

    @property
    def varbit(self) -> FieldType | None:
        """Varbit field, of which there is at most one."""
        return next((field for field in self.fields if field.varbit), None)

    def index(self, name: str) -> int:
        """Return position of a field; KeyError when there is none."""
        for position, field in enumerate(self.fields):
            if field.name == name:
                return position
        raise KeyError(name)


@dataclass(frozen=True)
class Header:
    """A header instance, or a metadata struct (always readable, zero at the start of a packet)."""

    name: str
    type: HeaderType
    metadata: bool


@dataclass(frozen=True)
class Stack:
    """A header stack; `headers` are the names of its elements in order.

    `union_stack`: the stack of unions whose column this is (see `UnionStack`).
    """

    name: str
    type: HeaderType
    headers: tuple[str, ...]
    union_stack: str | None = None


@dataclass(frozen=True)
class UnionStack:
    """A stack of header unions, held as one `Stack` per member of the union.

    `columns` are their names, in the order of the members; they fill, shift and are counted together.
    """

    name: str
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Transition:
    """One select case. `mask` None: every bit of the key counts. `next_state` None: accept.

    `value_set`: the key is looked up there, `value` means nothing, `mask` is as wide as the set's members.
    """

    value: int
    mask: int | None
    next_state: str | None
    value_set: str | None = None


@dataclass(frozen=True)
class ParserState:
    """A parser state: operations, then the first matching transition on the concatenated key.

    Key elements are padded to whole bytes in `Transition` values, most significant element first.
    """

    name: str
    ops: tuple[ParserOp, ...]
    key: tuple[Expr, ...]
    key_bits: tuple[int, ...]
    transitions: tuple[Transition, ...]
    default: str | None

    @property
    def following(self) -> tuple[str | None, ...]:
        """States it may lead to, with repetitions; None: accept."""
        return (self.default, *(case.next_state for case in self.transitions))


@dataclass(frozen=True)
class ValueSet:
    """A parser value set of up to `size` members.

    `bits` is the width of a member, `fields` that of its parts, which are the elements of the select key; no
    state looks into a set without fields.
    """

    name: str
    bits: int
    size: int
    fields: tuple[int, ...]


@dataclass(frozen=True)
class Parser:
    """The parser; `states` by name."""

    init_state: str | None
    states: Mapping[str, ParserState]


@dataclass(frozen=True)
class Param:
    """An action parameter."""

    name: str
    bits: int


@dataclass(frozen=True)
class Action:
    """An action; several P4 actions may share a name, so the JSON id tells them apart.

    `sources` says where the statements of a loaded action's body come from.
    """

    id: int
    name: str
    params: tuple[Param, ...]
    body: tuple[Statement, ...]
    sources: tuple[Source | None, ...] = ()


class MatchKind(Enum):
    """Way in which a key field, or a whole table, matches (BMv2 writes P4's `optional` as ternary)."""

    EXACT = "exact"
    LPM = "lpm"
    TERNARY = "ternary"
    RANGE = "range"


@dataclass(frozen=True)
class TableKey:
    """One key field. `mask`, when given, is ANDed to the field's value before matching."""

    name: str
    target: FieldRef | Valid
    kind: MatchKind
    bits: int
    mask: int | None = None


@dataclass(frozen=True)
class ActionCall:
    """An action with its arguments."""

    action: int  # Action.id
    args: tuple[int, ...]


@dataclass(frozen=True)
class FieldMatch:
    """One field of a constant entry: value and, by kind, mask, prefix length or upper bound."""

    kind: MatchKind
    value: int
    mask: int = 0
    prefix_len: int = 0
    high: int = 0


@dataclass(frozen=True)
class ConstEntry:
    """A `const entries` row. `priority` is BMv2's: the smaller number wins."""

    key: tuple[FieldMatch, ...]
    call: ActionCall
    priority: int


@dataclass(frozen=True)
class Meter:
    """A meter array of `size` meters, or (`table` set) one for each entry of a table.

    `bytes`: it counts bytes, not packets. `target`: where a table's meter puts the colour.
    """

    name: str
    size: int
    bytes: bool
    table: str | None
    target: FieldRef | None


@dataclass(frozen=True)
class Table:
    """A match-action table.

    `next_by_action` maps an action id to the next node; `next_hit` / `next_miss` are used instead when
    `by_hit`. A node name of None ends the pipeline. `immutable`: its entries are the program's own.
    `meter` is its direct meter; `ages`: its entries can have idle timeouts.
    `profile`: the action profile that its entries refer to, instead of having actions of their own.
    """

    name: str
    kind: MatchKind
    keys: tuple[TableKey, ...]
    actions: tuple[int, ...]
    size: int
    default: ActionCall | None
    default_const: bool
    by_hit: bool
    next_by_action: Mapping[int, str | None]
    next_hit: str | None
    next_miss: str | None
    base_next: str | None
    counted: bool
    immutable: bool
    entries: tuple[ConstEntry, ...]
    meter: Meter | None = None
    ages: bool = False
    profile: str | None = None

    @property
    def prioritised(self) -> bool:
        """Return whether entries have priorities (some field is ternary, optional or range)."""
        return self.kind in (MatchKind.TERNARY, MatchKind.RANGE)

    @property
    def fixed(self) -> ActionCall | None:
        """Return what the table always does: it has no key, and its default action stays as the program has
        it.
        """
        return self.default if not self.keys and self.default_const else None

    @property
    def fixed_next(self) -> str | None:
        """Node after a table that always does the same."""
        if self.by_hit or self.fixed is None:
            return self.next_miss
        return self.next_by_action.get(self.fixed.action, self.base_next)


@dataclass(frozen=True)
class ActionProfile:
    """Actions with their data, for entries of tables to refer to.

    `selector` names the calculation that chooses a member of a group; None: there are no groups. `size` is
    the number of members that the program asks for.
    """

    name: str
    size: int
    selector: str | None


@dataclass(frozen=True)
class Conditional:
    """An `if` between tables."""

    name: str
    condition: Expr
    true_next: str | None
    false_next: str | None
    source: Source | None = None


@dataclass(frozen=True)
class Pipeline:
    """Ingress or egress: a graph of tables and conditionals, by name."""

    name: str
    init: str | None
    tables: Mapping[str, Table]
    conditionals: Mapping[str, Conditional]


@dataclass(frozen=True)
class Register:
    """A register array of `size` cells of `bits` bits."""

    name: str
    size: int
    bits: int


@dataclass(frozen=True)
class Counter:
    """An indirect counter array, or (`table` set) the direct counter of a table."""

    name: str
    size: int
    table: str | None


@dataclass(frozen=True)
class DigestList:
    """A digest: the fields that one packet tells the control plane."""

    id: int
    name: str
    fields: tuple[FieldRef, ...]


@dataclass(frozen=True)
class Checksum:
    """A checksum the deparser writes (`update`) or the parser checks (`verify`)."""

    name: str
    target: FieldRef
    calculation: str
    condition: Expr | None
    verify: bool
    update: bool


@dataclass(frozen=True)
class Program:
    """A whole program.

    `digest` is the SHA-256 of the JSON text, `tables` every table of both pipelines by name, `errors`
    the parser errors' values by name, `field_lists` the metadata kept by clone, resubmit and recirculate,
    `digests` what is told to the control plane, by the program's number for it,
    `aliases` the fields that stand for BMv2's intrinsic metadata, `unions` the members of each header union,
    `deparser_body` what runs before the headers `deparser` are written, `assertions` the places of its assert
    and assume by number.
    """

    digest: str
    headers: Mapping[str, Header]
    stacks: Mapping[str, Stack]
    unions: Mapping[str, tuple[str, ...]]
    union_stacks: Mapping[str, UnionStack]
    value_sets: Mapping[str, ValueSet]
    parser: Parser
    deparser: tuple[str, ...]
    deparser_body: tuple[Statement, ...]
    actions: Mapping[int, Action]
    ingress: Pipeline
    egress: Pipeline
    registers: Mapping[str, Register]
    counters: Mapping[str, Counter]
    meters: Mapping[str, Meter]
    digests: Mapping[int, DigestList]
    calculations: Mapping[str, Calculation]
    checksums: tuple[Checksum, ...]
    errors: Mapping[str, int]
    field_lists: Mapping[int, tuple[FieldRef, ...]]
    aliases: Mapping[str, FieldRef]
    action_profiles: Mapping[str, ActionProfile]
    assertions: tuple[str, ...]

    @property
    def tables(self) -> dict[str, Table]:
        """Return every table by its fully qualified name, ingress first."""
        return {**self.ingress.tables, **self.egress.tables}

    @property
    def conditionals(self) -> dict[str, Conditional]:
        """Return every conditional by name, ingress first."""
        return {**self.ingress.conditionals, **self.egress.conditionals}

    def table_actions(self, table: Table) -> list[Action]:
        """Return the actions a table can run, its default one included."""
        ids = dict.fromkeys([*table.actions, *([table.default.action] if table.default else [])])
        return [self.actions[number] for number in ids]

    def profile_actions(self, profile: str) -> dict[str, Action]:
        """Return the actions that a profile's members can have, by name.

        The compiler makes one action for each table out of an action that several use; here is the first.
        """
        found: dict[str, Action] = {}
        for table in self.tables.values():
            if table.profile == profile:
                for number in table.actions:
                    found.setdefault(self.actions[number].name, self.actions[number])
        return found

    @property
    def stateful_calculations(self) -> list[Calculation]:
        """Calculations that keep something between packets, in the order of their storage."""
        return [each for each in self.calculations.values() if each.algorithm.stateful]

    def intrinsic(self, name: str) -> FieldRef | None:
        """Return the field that holds a piece of BMv2's metadata, if any does."""
        for group in GROUPS:
            if (alias := self.aliases.get(f"{group}.{name}")) is not None:
                return alias
        header = self.headers.get("standard_metadata")
        known = header is not None and any(field.name == name for field in header.type.fields)
        return FieldRef("standard_metadata", name) if known else None

    def intrinsic_fields(self, *names: str) -> list[FieldRef]:
        """Return those of the fields `intrinsic` that the program has."""
        return [ref for ref in map(self.intrinsic, names) if ref is not None]

    def field(self, ref: FieldRef) -> FieldType:
        """Return the type of a field."""
        kind = self.headers[ref.header].type
        return kind.fields[kind.index(ref.field)]

    def table_action(self, table: Table, name: str) -> Action | None:
        """Return the action of that name which a table may run, or None."""
        for number in table.actions:
            if self.actions[number].name == name:
                return self.actions[number]
        return None
