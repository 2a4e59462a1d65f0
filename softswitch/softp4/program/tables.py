# SPDX-License-Identifier: Apache-2.0
"""BMv2 JSON pipelines: tables with their constant entries, conditionals and what follows what."""

from collections.abc import Mapping
from typing import Final

from softp4.program.errors import ProgramError, UnsupportedConstruct
from softp4.program.expressions import ExpressionReader
from softp4.program.ir import FieldRef, Valid
from softp4.program.json import Json, checked, hexstr, member, number, objects, text
from softp4.program.source import source_of
from softp4.program.types import (
    Action,
    ActionCall,
    ActionProfile,
    Conditional,
    ConstEntry,
    FieldMatch,
    HeaderType,
    MatchKind,
    Meter,
    Pipeline,
    Table,
    TableKey,
)


class PipelineReader:
    """Reads the pipelines of one program."""

    def __init__(
        self,
        expressions: ExpressionReader,
        actions: Mapping[int, Action],
        headers: Mapping[str, HeaderType],
        meters: Mapping[str, Meter],
        profiles: Mapping[str, ActionProfile],
    ) -> None:
        self._expressions = expressions
        self._actions = actions
        self._headers = headers
        self._meters = meters
        self._profiles = profiles

    def pipeline(self, node: Json) -> Pipeline:
        """Read one pipeline and checks that every node it names exists and that it cannot loop."""
        name = text(node, "name", "pipeline")
        where = f"pipeline {name}"
        tables = [self._table(each, where) for each in objects(node, "tables", where)]
        conditionals = [self._conditional(each, where) for each in objects(node, "conditionals", where)]
        names = [*(each.name for each in tables), *(each.name for each in conditionals)]
        for each in names:
            if names.count(each) > 1:
                raise ProgramError(f"{where}: '{each}' is declared twice")
        pipeline = Pipeline(
            name,
            _name(node, "init_table", where),
            {table.name: table for table in tables},
            {conditional.name: conditional for conditional in conditionals},
        )
        _check_graph(pipeline, where)
        return pipeline

    def _conditional(self, node: Json, where: str) -> Conditional:
        where = f"{where}, conditional {text(node, 'name', where)}"
        return Conditional(
            node["name"],
            self._expressions.boolean(member(node, "expression", dict, where), where),
            _name(node, "true_next", where),
            _name(node, "false_next", where),
            source_of(node),
        )

    def _table(self, node: Json, where: str) -> Table:
        name = text(node, "name", where)
        where = f"table {name}"
        keys = tuple(self._key(each, where) for each in objects(node, "key", where))
        _check_kinds(_kind(node, where), [key.kind for key in keys], where)
        actions = tuple(self._action_ids(node, where))
        entries = tuple(self._entry(each, keys, actions, where) for each in objects(node, "entries", where))
        default = member(node, "default_entry", dict, where) if node.get("default_entry") else None
        next_tables = member(node, "next_tables", dict, where)
        by_hit = "__HIT__" in next_tables or "__MISS__" in next_tables
        base = _name(node, "base_default_next", where) if "base_default_next" in node else None
        return Table(
            name=name,
            kind=_kind(node, where),
            keys=keys,
            actions=actions,
            size=number(node, "max_size", where) or len(entries),
            default=self._call(default, actions, where) if default else None,
            default_const=bool(
                default and (default.get("action_const") or default.get("action_entry_const"))
            ),
            by_hit=by_hit,
            next_by_action={} if by_hit else self._next_by_action(next_tables, actions, where),
            next_hit=_name(next_tables, "__HIT__", where) if "__HIT__" in next_tables else None,
            next_miss=_name(next_tables, "__MISS__", where) if "__MISS__" in next_tables else None,
            base_next=base,
            counted=bool(node.get("with_counters", False)),
            immutable="entries" in node,
            entries=entries,
            meter=self._meter(node, name, where),
            ages=bool(node.get("support_timeout", False)),
            profile=self._profile(node, where),
        )

    def _meter(self, node: Json, table: str, where: str) -> Meter | None:
        name = _name(node, "direct_meters", where) if "direct_meters" in node else None
        if name is None:
            return None
        if name not in self._meters or self._meters[name].table != table:
            raise ProgramError(f"{where}: no direct meter '{name}' of this table")
        return self._meters[name]

    def _profile(self, node: Json, where: str) -> str | None:
        kind = text(node, "type", where)
        if kind == "simple":
            return None
        if kind not in ("indirect", "indirect_ws"):
            raise UnsupportedConstruct(f"table type '{kind}'", where)
        profile = text(node, "action_profile", where)
        if profile not in self._profiles:
            raise ProgramError(f"{where}: no action profile '{profile}'")
        if kind == "indirect_ws" and self._profiles[profile].selector is None:
            raise ProgramError(f"{where}: action profile '{profile}' has no selector")
        if node.get("entries"):
            raise UnsupportedConstruct("constant entries of a table with an action profile", where)
        return profile

    def _action_ids(self, node: Json, where: str) -> list[int]:
        ids = [checked(each, int, f"{where}, 'action_ids'") for each in objects(node, "action_ids", where)]
        for action in ids:
            if action not in self._actions:
                raise ProgramError(f"{where}: no action {action}")
        return ids

    def _next_by_action(
        self, next_tables: Json, actions: tuple[int, ...], where: str
    ) -> dict[int, str | None]:
        result: dict[int, str | None] = {}
        for action in actions:
            name = self._actions[action].name
            if name not in next_tables:
                raise ProgramError(f"{where}, 'next_tables': nothing for action {name}")
            result[action] = _name(next_tables, name, where)
        return result

    def _key(self, node: Json, where: str) -> TableKey:
        where = f"{where}, key"
        target = member(node, "target", (list, str), where)
        kind = text(node, "match_type", where)
        if kind == "valid":
            field: FieldRef | Valid = self._expressions.field([target, "$valid$"], where)
            match_kind = MatchKind.EXACT
        else:
            field = self._expressions.field(target, where)
            match_kind = _kind(node, where)
        mask = hexstr(node["mask"], where) if node.get("mask") is not None else None
        if isinstance(field, Valid):
            name = str(node.get("name") or f"{field.header}.$valid$")
            return TableKey(name, field, match_kind, 1, mask)
        header = self._headers[field.header]
        bits = header.fields[header.index(field.field)].bits
        name = str(node.get("name") or f"{field.header}.{field.field}")
        return TableKey(name, field, match_kind, bits, mask)

    def _call(self, node: Json, actions: tuple[int, ...], where: str) -> ActionCall:
        action = number(node, "action_id", where)
        if action not in actions:
            raise ProgramError(f"{where}: action {action} is not one of the table's")
        params = self._actions[action].params
        data = objects(node, "action_data", where)
        if len(data) != len(params):
            raise ProgramError(
                f"{where}: action {self._actions[action].name} takes {len(params)} arguments, not {len(data)}"
            )
        args = (hexstr(each, where) % (1 << param.bits) for each, param in zip(data, params, strict=True))
        return ActionCall(action, tuple(args))

    def _entry(
        self, node: Json, keys: tuple[TableKey, ...], actions: tuple[int, ...], where: str
    ) -> ConstEntry:
        where = f"{where}, entry"
        fields = objects(node, "match_key", where)
        if len(fields) != len(keys):
            raise ProgramError(f"{where}: {len(fields)} key fields for a key of {len(keys)}")
        return ConstEntry(
            tuple(_match(field, key, where) for field, key in zip(fields, keys, strict=True)),
            self._call(member(node, "action_entry", dict, where), actions, where),
            number(node, "priority", where) if "priority" in node else 0,
        )


def selector_name(profile: str) -> str:
    """Return the name of the calculation that chooses a member of a profile's groups."""
    return f"{profile}.$selector$"


def action_profile(node: Json, where: str) -> ActionProfile:
    """Read an action profile; its selector is a calculation of its own."""
    name = text(node, "name", where)
    selector = selector_name(name) if node.get("selector") else None
    return ActionProfile(name, number(node, "max_size", where), selector)


def _match(node: Json, key: TableKey, where: str) -> FieldMatch:
    limit = (1 << key.bits) - 1
    match key.kind:
        case MatchKind.EXACT:
            value = node.get("key") if isinstance(node, dict) else None
            return FieldMatch(
                key.kind, int(value) if isinstance(value, bool) else hexstr(value, where) & limit
            )
        case MatchKind.LPM:
            length = min(number(node, "prefix_length", where), key.bits)
            return FieldMatch(key.kind, hexstr(node.get("key"), where) & limit, prefix_len=length)
        case MatchKind.TERNARY:
            mask = hexstr(member(node, "mask", str, where), where) & limit
            return FieldMatch(key.kind, hexstr(node.get("key"), where) & mask, mask=mask)
        case MatchKind.RANGE:
            low, high = (hexstr(member(node, bound, str, where), where) for bound in ("start", "end"))
            return FieldMatch(key.kind, low & limit, high=high & limit)


def _kind(node: Json, where: str) -> MatchKind:
    name = text(node, "match_type", where)
    try:
        return MatchKind(name)
    except ValueError:
        raise UnsupportedConstruct(f"match type '{name}'", where) from None


_KEY_KINDS: Final = {
    MatchKind.EXACT: {MatchKind.EXACT},
    MatchKind.LPM: {MatchKind.EXACT, MatchKind.LPM},
    MatchKind.TERNARY: {MatchKind.EXACT, MatchKind.LPM, MatchKind.TERNARY},
    MatchKind.RANGE: set(MatchKind),
}


def _check_kinds(table: MatchKind, keys: list[MatchKind], where: str) -> None:
    if unexpected := set(keys) - _KEY_KINDS[table]:
        raise ProgramError(
            f"{where}: a key field of kind {min(k.value for k in unexpected)} in a table of {table.value}"
        )
    if table is MatchKind.LPM and keys.count(MatchKind.LPM) != 1:
        raise ProgramError(f"{where}: {keys.count(MatchKind.LPM)} fields of kind lpm, not one")


def _name(node: Json, key: str, where: str) -> str | None:
    name: str | None = member(node, key, (str, type(None)), where)
    return name


def _check_graph(pipeline: Pipeline, where: str) -> None:
    """Check that every successor exists and that there is no cycle (BMv2's compiler never makes one)."""
    known = {*pipeline.tables, *pipeline.conditionals}
    state: dict[str, int] = {}
    stack: list[tuple[str, int]] = []
    if pipeline.init is not None:
        stack.append((pipeline.init, 0))
    while stack:
        name, position = stack.pop()
        if name not in known:
            raise ProgramError(f"{where}: no table or conditional '{name}'")
        following = successors(pipeline, name)
        if position == 0:
            state[name] = 1
        if position == len(following):
            state[name] = 2
            continue
        stack.append((name, position + 1))
        following_name = following[position]
        if state.get(following_name) == 1:
            raise ProgramError(f"{where}: '{following_name}' can follow itself")
        if following_name not in state:
            stack.append((following_name, 0))


def successors(pipeline: Pipeline, name: str) -> list[str]:
    """Return the nodes that may follow a node."""
    if name in pipeline.conditionals:
        conditional = pipeline.conditionals[name]
        names = [conditional.true_next, conditional.false_next]
    else:
        table = pipeline.tables[name]
        names = [*table.next_by_action.values(), table.next_hit, table.next_miss, table.base_next]
    return list(dict.fromkeys(each for each in names if each is not None))
