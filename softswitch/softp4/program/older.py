# SPDX-License-Identifier: Apache-2.0
"""BMv2 JSON of older compilers and of hand, rewritten as p4c writes it today.

BMv2 still takes what p4c-bm and p4c's first releases wrote. The rest of the loader knows one way to say each
thing; what follows is said in another:

- a table names its actions, where it has no numbers of actions;
- a table declares its action profile (``act_prof_name``), where its pipeline has none;
- a pipeline calls actions of its own (``action_calls``), as p4c does by tables without a key;
- a checksum is of type ``ipv4``, without a calculation;
- intrinsic and queueing metadata are headers of their own, without ``field_aliases``;
- what has one sensible value is left out.
"""

from collections.abc import Mapping
from typing import Any

from softp4.program.errors import ProgramError
from softp4.program.json import Json, checked, member, number, objects, pair, text
from softp4.program.types import GROUPS


def rewritten(root: dict[str, Any]) -> dict[str, Any]:
    """Return the program as p4c writes it today. Raises ProgramError for what contradicts itself."""
    new = dict(root)
    new["headers"] = [_with(each, metadata=False) for each in objects(root, "headers", "program")]
    new["field_aliases"] = [*objects(root, "field_aliases", "program"), *_implied_aliases(root)]
    named = _actions_by_name(root)
    new["pipelines"] = [_pipeline(each, named) for each in objects(root, "pipelines", "program")]
    checksums = objects(root, "checksums", "program")
    if any(isinstance(each, dict) and each.get("type") == "ipv4" for each in checksums):
        new["checksums"], calculations = _with_calculations(root, checksums)
        new["calculations"] = [*objects(root, "calculations", "program"), *calculations]
    return new


def _with(node: Json, **defaults: object) -> Json:
    """Return an object with what it leaves out; anything else as it is, for the reader to refuse."""
    return {**defaults, **node} if isinstance(node, dict) else node


def _implied_aliases(root: Json) -> list[Json]:
    """Return aliases for the fields of metadata headers that are called as BMv2 calls them."""
    given = [each[0] for each in objects(root, "field_aliases", "program") if isinstance(each, list) and each]
    types, headers = _by_name(root, "header_types"), _by_name(root, "headers")
    groups = [name for name in GROUPS if headers.get(name, {}).get("metadata") is True]
    fields = [(group, name) for group in groups for name in _fields(types, headers[group], group)]
    return [[f"{group}.{name}", [group, name]] for group, name in fields if f"{group}.{name}" not in given]


def _by_name(root: Json, key: str) -> dict[str, Json]:
    nodes = (each for each in objects(root, key, "program") if isinstance(each, dict))
    return {each["name"]: each for each in nodes if isinstance(each.get("name"), str)}


def _fields(types: Mapping[str, Json], header: Json, where: str) -> list[str]:
    """Return the names of a header's fields."""
    kind = header.get("header_type")
    fields = objects(types.get(kind, {}) if isinstance(kind, str) else {}, "fields", where)
    return [each[0] for each in fields if isinstance(each, list) and each and isinstance(each[0], str)]


def _actions_by_name(root: Json) -> dict[str, list[int]]:
    named: dict[str, list[int]] = {}
    for action in objects(root, "actions", "program"):
        if isinstance(action, dict) and isinstance(action.get("name"), str):
            named.setdefault(action["name"], []).append(number(action, "id", f"action {action['name']}"))
    return named


def _pipeline(node: Json, named: Mapping[str, list[int]]) -> Json:
    if not isinstance(node, dict):
        return node
    where = f"pipeline {node.get('name')!s:.60}"
    tables, profiles = [], objects(node, "action_profiles", where)
    for each in objects(node, "tables", where):
        table, profile = _table(each, named, where)
        tables.append(table)
        profiles = profiles if profile is None else [*profiles, profile]
    called = [_called(each, named, where) for each in objects(node, "action_calls", where)]
    return {
        **node,
        "tables": [*tables, *called],
        "action_profiles": profiles,
        "conditionals": [_conditional(each) for each in objects(node, "conditionals", where)],
    }


def _conditional(node: Json) -> Json:
    """Return a conditional with both its ends, of which BMv2 asks for one."""
    has_end = isinstance(node, dict) and ("true_next" in node or "false_next" in node)
    return _with(node, true_next=None, false_next=None) if has_end else node


def _table(node: Json, named: Mapping[str, list[int]], where: str) -> tuple[Json, Json | None]:
    """Return a table, and the action profile that it declared itself."""
    if not isinstance(node, dict):
        return node, None
    where = f"{where}, table {node.get('name')!s:.60}"
    new, profile = dict(node), None
    if "action_ids" not in node:
        new["action_ids"] = [_number_of(each, named, where) for each in objects(node, "actions", where)]
    if "max_size" not in node and "entries" in node:
        new["max_size"] = len(objects(node, "entries", where))
    if "act_prof_name" in node and "action_profile" not in node:
        new["action_profile"] = text(node, "act_prof_name", where)
        profile = {"name": new["action_profile"], "max_size": 0}  # BMv2 sets no limit
        if node.get("type") == "indirect_ws":
            profile["selector"] = node.get("selector")
    return new, profile


def _number_of(name: Json, named: Mapping[str, list[int]], where: str) -> int:
    numbers = named.get(checked(name, str, f"{where}, 'actions'"), [])
    if len(numbers) != 1:
        found = "no action has that name" if not numbers else f"{len(numbers)} actions have that name"
        raise ProgramError(f"{where}, 'actions': {name!r:.60}: {found}")
    return numbers[0]


def _called(node: Json, named: Mapping[str, list[int]], where: str) -> Json:
    """Return a call of an action as a table without a key that has nothing but it."""
    where = f"{where}, action call {text(node, 'name', where)}"
    action, following = number(node, "action_id", where), node.get("next_node")
    names = [name for name, numbers in named.items() if action in numbers]
    if not names:
        raise ProgramError(f"{where}: no action {action}")
    default = {"action_id": action, "action_const": True, "action_data": [], "action_entry_const": True}
    return {
        "name": node["name"],
        "match_type": "exact",
        "type": "simple",
        "key": [],
        "max_size": 1024,  # as p4c has it
        "action_ids": [action],
        "next_tables": {names[0]: following},
        "base_default_next": following,
        "default_entry": default,
        **({"source_info": node["source_info"]} if "source_info" in node else {}),
    }


def _with_calculations(root: Json, checksums: list[Json]) -> tuple[list[Json], list[Json]]:
    """Return the checksums with a calculation each, and the calculations of those that had none."""
    types, headers = _by_name(root, "header_types"), _by_name(root, "headers")
    new: list[Json] = []
    calculations: list[Json] = []
    for node in checksums:
        if not isinstance(node, dict) or node.get("type") != "ipv4":
            new.append(node)
            continue
        where = f"checksum {text(node, 'name', 'checksum')}"
        header, field = pair(member(node, "target", list, where), where)
        others = [name for name in _fields(types, headers.get(header, {}), where) if name != field]
        inputs = [{"type": "field", "value": [header, name]} for name in others]
        calculation = f"{node['name']}.$ipv4$"
        calculations.append({"name": calculation, "algo": "csum16", "input": inputs})
        new.append({**node, "type": "generic", "calculation": calculation})
    return new, calculations
