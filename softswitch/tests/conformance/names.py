# SPDX-License-Identifier: Apache-2.0
"""From an STF file's words to a program's tables, keys and actions, by the rules of p4c's own runner.

It allows the end of a name for the whole name, and reads values by their digits: a digit of a ternary value
that is `*` is not compared, and digits that are not there are not either.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tests.conformance.stf import Add, Call, SetDefault, StfError
from tests.harness.keys import Key, Lpm, Optional, Range, Ternary

_BITS_PER_DIGIT: Final = {"0x": 4, "0b": 1, "0o": 3}


class Names:
    """The names of one program, from its BMv2 JSON."""

    def __init__(self, program: Mapping[str, Any]) -> None:
        self._actions = program["actions"]
        self._tables = [table for pipeline in program["pipelines"] for table in pipeline["tables"]]
        types = {
            each["name"]: {name: bits for name, bits, *_ in each["fields"]}
            for each in program["header_types"]
        }
        self._widths = {each["name"]: types[each["header_type"]] for each in program["headers"]}

    def entry(self, add: Add) -> tuple[str, list[Key], str, list[int], int]:
        """Table, key, action, arguments and priority of an entry."""
        table = self._table(add.table)
        fields = {_key_name(key): key for key in table["key"]}
        values: dict[str, Key] = {name: self._anything(key) for name, key in fields.items()}
        for name, value in add.key:
            found = _key_field(list(fields), name)
            values[found] = _key_value(fields[found]["match_type"], value)
        action, args = self._call(table, add.call)
        priority = 0
        if table["match_type"] in ("ternary", "range"):
            if add.priority is None:
                raise StfError(f"an entry of {table['name']} needs a priority")
            priority = add.priority + 1  # P4Runtime has no priority 0
        return table["name"], list(values.values()), action, args, priority

    def default(self, statement: SetDefault) -> tuple[str, str, list[int]]:
        """Table, action and arguments of a default action."""
        table = self._table(statement.table)
        return table["name"], *self._call(table, statement.call)

    def _table(self, name: str) -> Any:
        return _by_end(self._tables, name, "table")

    def _call(self, table: Any, call: Call) -> tuple[str, list[int]]:
        action = _by_end([self._actions[number] for number in table["action_ids"]], call.action, "action")
        given = {name: int(value, 0) for name, value in call.args}
        params = [param["name"] for param in action["runtime_data"]]
        if sorted(given) != sorted(params):
            raise StfError(f"{action['name']} takes {params}, not {sorted(given)}")
        return action["name"], [given[param] for param in params]

    def _anything(self, key: Any) -> Key:
        """Return what a key field that is not named has to be."""
        match key["match_type"]:
            case "ternary":
                return Ternary(0, 0)
            case "lpm":
                return Lpm(0, 0)
            case "optional":
                return Optional(None)
            case "range":
                header, field = key["target"]
                return Range(0, (1 << self._widths[header][field]) - 1)
        return 0


def _by_end(candidates: Sequence[Any], name: str, what: str) -> Any:
    """Return the one with that name, or else the only one whose name ends so."""
    for each in candidates:
        if each["name"] == name:
            return each
    found = [each for each in candidates if each["name"].endswith(name)]
    if len(found) != 1:
        raise StfError(f"{what} {name} is {'ambiguous' if found else 'not there'}")
    return found[0]


def _key_name(key: Any) -> str:
    target = key.get("name", key["target"])
    return target if isinstance(target, str) else ".".join(target)


def _key_field(fields: Sequence[str], name: str) -> str:
    name = re.sub(r"^(.*)\$([0-9]+)(.*)$", r"\1[\2]\3", name)
    for candidate in (name, f"{name}$", f"{name}.$valid$"):
        if candidate in fields:
            return candidate
    # The last one that fits, as p4c's runner has it.
    for field in reversed(fields):
        if field.endswith((f".{name}", f".{name}$")) or (name == "valid" and field.endswith("$valid$")):
            return field
    raise StfError(f"no key field {name} among {list(fields)}")


def _key_value(kind: str, value: str) -> Key:
    prefix, digits = value[:2].lower(), value[2:]
    match kind:
        case "ternary":
            if prefix not in _BITS_PER_DIGIT:
                raise StfError(f"ternary value {value} is neither hexadecimal nor binary")
            top = {"0x": "f", "0b": "1", "0o": "7"}[prefix]
            mask = "".join("0" if digit == "*" else top for digit in digits)
            return Ternary(int(prefix + digits.replace("*", "0"), 0), int(prefix + mask, 0))
        case "lpm":
            if "/" in value:
                number, _, length = value.partition("/")
                return Lpm(int(number, 0), int(length, 0))
            if prefix not in _BITS_PER_DIGIT:
                value = hex(int(value))
                prefix, digits = value[:2], value[2:]
            known = len(digits) - digits.count("*")
            return Lpm(int(value.replace("*", "0"), 0), known * _BITS_PER_DIGIT[prefix])
        case "optional":
            return Optional(int(value, 0))
    return int(value, 0)
