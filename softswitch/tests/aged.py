# SPDX-License-Identifier: Apache-2.0
"""Compiled programs, said as older compilers said them: the inverse of ``softp4.program.older``."""

import copy
import json
from collections import Counter
from typing import Any

from softp4.program.loader import Program, load_program
from tests.programs import raw

_Json = Any


def aged_program(name: str) -> Program:
    """Return a compiled program as p4c-bm would have written it, loaded."""
    return load_program(json.dumps(with_own_metadata(aged(raw(name)))).encode())


def aged(root: _Json) -> _Json:
    """Return a program with everything said in the older way that leaves its metadata where it is."""
    root = with_unique_actions(root)
    root.pop("__meta__")
    for pipeline in root["pipelines"]:
        profiles = {each["name"]: each for each in pipeline["action_profiles"]}
        users = Counter(each.get("action_profile") for each in pipeline["tables"])
        pipeline["action_calls"] = [_call(table) for table in pipeline["tables"] if _is_call(table)]
        pipeline["tables"] = [table for table in pipeline["tables"] if not _is_call(table)]
        for table in pipeline["tables"]:
            del table["action_ids"]
            if "entries" in table:
                del table["max_size"]
            if users[name := table.get("action_profile")] == 1 and name is not None:
                profile = profiles.pop(name)
                table["act_prof_name"] = table.pop("action_profile")
                table.update({"selector": profile["selector"]} if "selector" in profile else {})
        pipeline["action_profiles"] = list(profiles.values())
        for conditional in pipeline["conditionals"]:
            if conditional["true_next"] is not None and conditional["false_next"] is None:
                del conditional["false_next"]
    for header in root["headers"]:
        if not header["metadata"]:
            del header["metadata"]
    return root


def with_unique_actions(root: _Json) -> _Json:
    """Return a program in which no two actions have one name: p4c gives each table an action of its own."""
    root = copy.deepcopy(root)
    names: dict[int, str] = {}
    for action in root["actions"]:
        if action["name"] in names.values():
            action["name"] += f"_{action['id']}"
        names[action["id"]] = action["name"]
    for table in (table for pipeline in root["pipelines"] for table in pipeline["tables"]):
        renamed = dict(zip(table["actions"], (names[each] for each in table["action_ids"]), strict=True))
        table["actions"] = list(renamed.values())
        table["next_tables"] = {renamed.get(key, key): to for key, to in table["next_tables"].items()}
    return root


def _is_call(table: _Json) -> bool:
    default = table.get("default_entry", {})
    always = not table["key"] and default.get("action_const") and len(table["action_ids"]) == 1
    return bool(always) and not default["action_data"] and "__HIT__" not in table["next_tables"]


def _call(table: _Json) -> _Json:
    action, following = table["action_ids"][0], table["base_default_next"]
    found = {"name": table["name"], "id": table["id"], "action_id": action, "next_node": following}
    return found | ({"source_info": table["source_info"]} if "source_info" in table else {})


def with_own_metadata(root: _Json) -> _Json:
    """Return a program whose intrinsic and queueing metadata are headers, as in P4_14.

    What drops a packet has no parameter there.
    """
    places = {tuple(place): tuple(alias.split(".")) for alias, place in root["field_aliases"]}
    root = _moved(root, places)
    root["field_aliases"] = []
    standard = next(each for each in root["header_types"] if each["name"] == "standard_metadata")
    for group in sorted({group for group, _ in places.values()}):
        names = {name for owner, name in places.values() if owner == group}
        fields = [field for field in standard["fields"] if field[0] in names]
        standard["fields"] = [field for field in standard["fields"] if field[0] not in names]
        number = len(root["headers"])
        root["header_types"].append(
            {"name": f"{group}_t", "id": 1000 + number, "fields": _whole_bytes(fields)}
        )
        root["headers"].append({"name": group, "id": number, "header_type": f"{group}_t", "metadata": True})
    standard["fields"] = _whole_bytes(standard["fields"])
    return root


def _whole_bytes(fields: _Json) -> _Json:
    """Return fields with padding: BMv2 asks for whole bytes in metadata, too."""
    fields = [field for field in fields if field[0] != "_padding"]
    left = -sum(field[1] for field in fields) % 8
    return [*fields, *([["_padding", left, False]] if left else [])]


def _moved(node: _Json, places: dict[tuple[str, ...], tuple[str, ...]]) -> _Json:
    if isinstance(node, dict):
        if node.get("op") == "mark_to_drop":
            return {"op": "drop", "parameters": []}
        return {key: _moved(each, places) for key, each in node.items()}
    if isinstance(node, list):
        if len(node) == 2 and all(isinstance(each, str) for each in node) and tuple(node) in places:
            return list(places[tuple(node)])
        return [_moved(each, places) for each in node]
    return node
