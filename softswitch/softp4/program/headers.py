# SPDX-License-Identifier: Apache-2.0
"""Header types, headers, stacks and unions of BMv2 JSON."""

from collections.abc import Mapping
from dataclasses import dataclass

from softp4.program.errors import ProgramError, UnsupportedConstruct
from softp4.program.json import Json, checked, member, number, objects, text
from softp4.program.types import MAX_WIDTH, FieldType, Header, HeaderType, Stack, UnionStack

_MAX_HEADER_BYTES = 1 << 16


@dataclass(frozen=True)
class Headers:
    """Headers, stacks and unions of a program, by name.

    `union_types` gives a union's or a stack of unions' members as the program calls them, in order.
    """

    headers: Mapping[str, Header]
    stacks: Mapping[str, Stack]
    unions: Mapping[str, tuple[str, ...]]
    union_stacks: Mapping[str, UnionStack]
    union_types: Mapping[str, tuple[str, ...]]


def read_headers(root: Json) -> Headers:
    """Read all of them. Raises ProgramError, UnsupportedConstruct."""
    types = {each.name: each for each in map(_header_type, objects(root, "header_types", "program"))}
    headers, by_id = _headers(root, types)
    stacks = _stacks(root, types, headers, by_id)
    union_types = {
        text(each, "name", "header union type"): _members(each, types)
        for each in objects(root, "header_union_types", "program")
    }
    unions, union_by_id, kinds = _unions(root, union_types, headers, by_id)
    union_stacks = {}
    for node in objects(root, "header_union_stacks", "program"):
        columns = _union_stack(node, union_types, unions, union_by_id, headers)
        name = node["name"]
        union_stacks[name] = UnionStack(name, tuple(each.name for each in columns))
        kinds[name] = union_types[node["union_type"]]
        for column in columns:
            if column.name in stacks:
                raise ProgramError(f"header union stack {name}: '{column.name}' is declared twice")
            stacks[column.name] = column
    _check_elements(stacks)
    names = {name: tuple(each for each, _ in kind) for name, kind in kinds.items()}
    return Headers(headers, stacks, unions, union_stacks, names)


def _header_type(node: Json) -> HeaderType:
    where = f"header type {text(node, 'name', 'header type')}"
    fields = []
    for each in objects(node, "fields", where):
        if not isinstance(each, list) or len(each) < 2 or not isinstance(each[0], str):
            raise ProgramError(f"{where}: field {each!r:.60}")
        varbit = each[1] == "*"
        bits = 0 if varbit else checked(each[1], int, f"{where}, field {each[0]}")
        if bits < 1 and not varbit:
            raise ProgramError(f"{where}: field {each[0]} is {bits} bits wide")
        if bits > MAX_WIDTH:
            raise UnsupportedConstruct(
                f"a field of {bits} bits (more than {MAX_WIDTH})", f"{where}, field {each[0]}"
            )
        if len(each) > 3 and each[3]:
            raise UnsupportedConstruct("saturating fields", f"{where}, field {each[0]}")
        fields.append(FieldType(each[0], bits, bool(len(each) > 2 and each[2]), varbit))
    if len({field.name for field in fields}) != len(fields):
        raise ProgramError(f"{where}: two fields of one name")
    kind = HeaderType(node["name"], tuple(fields))
    return kind if kind.varbit is None else _with_varbit(kind, node, where)


def _with_varbit(kind: HeaderType, node: Json, where: str) -> HeaderType:
    """Return the type with its varbit field as wide as the longest header leaves it."""
    if sum(field.varbit for field in kind.fields) > 1:
        raise ProgramError(f"{where}: two varbit fields")
    if node.get("length_exp") is not None:
        raise UnsupportedConstruct("a header length computed from its fields (P4_14)", where)
    most = number(node, "max_length", where)
    bits = (8 * most - kind.fixed_bits) // 8 * 8
    if not 0 < bits <= 8 * _MAX_HEADER_BYTES:
        raise ProgramError(f"{where}: {most} bytes at most leave no room for the varbit field")
    fields = (FieldType(each.name, bits, False, True) if each.varbit else each for each in kind.fields)
    return HeaderType(kind.name, tuple(fields))


def _headers(root: Json, types: dict[str, HeaderType]) -> tuple[dict[str, Header], dict[int, str]]:
    headers: dict[str, Header] = {}
    by_id: dict[int, str] = {}
    for node in objects(root, "headers", "program"):
        name = text(node, "name", "header")
        where = f"header {name}"
        kind = types.get(text(node, "header_type", where))
        if kind is None:
            raise ProgramError(f"{where}: no header type '{node['header_type']}'")
        metadata = bool(member(node, "metadata", bool, where))
        if not metadata and kind.fixed_bits % 8:
            raise ProgramError(f"{where}: {kind.fixed_bits} bits are no whole number of bytes")
        if name in headers:
            raise ProgramError(f"{where}: declared twice")
        headers[name] = Header(name, kind, metadata)
        by_id[number(node, "id", where)] = name
    return headers, by_id


def _stacks(
    root: Json, types: dict[str, HeaderType], headers: dict[str, Header], by_id: dict[int, str]
) -> dict[str, Stack]:
    stacks: dict[str, Stack] = {}
    for node in objects(root, "header_stacks", "program"):
        where = f"header stack {text(node, 'name', 'header stack')}"
        kind = types.get(text(node, "header_type", where))
        names = _named(objects(node, "header_ids", where), by_id)
        if kind is None or not names:
            raise ProgramError(f"{where}: unknown header type or elements")
        for name in names:
            if headers[name].type != kind or headers[name].metadata:
                raise ProgramError(f"{where}: '{name}' cannot be an element")
        if node["name"] in stacks:
            raise ProgramError(f"{where}: declared twice")
        stacks[node["name"]] = Stack(node["name"], kind, names)
    return stacks


def _named(ids: list[Json], by_id: Mapping[int, str]) -> tuple[str, ...]:
    """Return the names of these ids, in order; none when one is unknown or there twice."""
    if not all(type(each) is int and each in by_id for each in ids) or len(set(ids)) != len(ids):
        return ()
    return tuple(by_id[each] for each in ids)


_Members = tuple[tuple[str, HeaderType], ...]  # of a union type


def _members(node: Json, types: dict[str, HeaderType]) -> _Members:
    where = f"header union type {node['name']}"
    found = []
    for each in objects(node, "headers", where):
        if not (isinstance(each, list) and len(each) == 2 and each[0] and isinstance(each[0], str)):
            raise ProgramError(f"{where}: member {each!r:.60}")
        if not isinstance(each[1], str) or each[1] not in types:
            raise ProgramError(f"{where}: no header type '{each[1]}'")
        found.append((each[0], types[each[1]]))
    if not found or len({name for name, _ in found}) != len(found):
        raise ProgramError(f"{where}: no members, or two of one name")
    return tuple(found)


def _unions(
    root: Json, kinds: dict[str, _Members], headers: dict[str, Header], by_id: dict[int, str]
) -> tuple[dict[str, tuple[str, ...]], dict[int, str], dict[str, _Members]]:
    """Return header names and members by the unions' names, and the names by id."""
    unions: dict[str, tuple[str, ...]] = {}
    union_by_id: dict[int, str] = {}
    members: dict[str, _Members] = {}
    taken: set[str] = set()
    for node in objects(root, "header_unions", "program"):
        name = text(node, "name", "header union")
        where = f"header union {name}"
        kind = kinds.get(text(node, "union_type", where))
        names = _named(objects(node, "header_ids", where), by_id)
        if kind is None or name in unions or [headers[each].type for each in names] != [t for _, t in kind]:
            raise ProgramError(f"{where}: declared twice, or its members differ from its type's")
        if taken & set(names) or any(headers[each].metadata for each in names):
            raise ProgramError(f"{where}: a member is metadata, or in another union")
        taken |= set(names)
        unions[name], members[name] = names, kind
        union_by_id[number(node, "id", where)] = name
    return unions, union_by_id, members


def _union_stack(
    node: Json,
    kinds: dict[str, _Members],
    unions: dict[str, tuple[str, ...]],
    by_id: dict[int, str],
    headers: dict[str, Header],
) -> list[Stack]:
    """Return the columns of a stack of unions."""
    name = text(node, "name", "header union stack")
    where = f"header union stack {name}"
    kind = kinds.get(text(node, "union_type", where))
    rows = [unions[each] for each in _named(objects(node, "header_union_ids", where), by_id)]
    if (
        kind is None
        or not rows
        or any([headers[h].type for h in row] != [t for _, t in kind] for row in rows)
    ):
        raise ProgramError(f"{where}: unknown union type or elements")
    return [
        Stack(f"{name}.{each}", each_type, tuple(row[position] for row in rows), name)
        for position, (each, each_type) in enumerate(kind)
    ]


def _check_elements(stacks: dict[str, Stack]) -> None:
    taken: set[str] = set()
    for stack in stacks.values():
        if taken & set(stack.headers):
            raise ProgramError(f"header stack {stack.name}: an element is in another stack")
        taken |= set(stack.headers)
