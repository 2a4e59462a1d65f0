# SPDX-License-Identifier: Apache-2.0
"""A P4Info by name: what people write, and the ids that P4Runtime wants instead."""

from typing import Any, Final

_KINDS: Final = (
    "tables",
    "actions",
    "action_profiles",
    "counters",
    "direct_counters",
    "meters",
    "direct_meters",
    "digests",
    "registers",
    "value_sets",
    "controller_packet_metadata",
)


class Names:
    """Finds a P4Info's objects by their kind, which is a field of P4Info, and their name or alias."""

    def __init__(self, p4info: Any) -> None:
        self._named: dict[tuple[str, str], Any] = {}
        self._by_id: dict[int, Any] = {}
        for kind in _KINDS:
            for each in getattr(p4info, kind):
                self._by_id[each.preamble.id] = each
                self._named.setdefault((kind, each.preamble.alias), each)
                self._named[kind, each.preamble.name] = each

    def get(self, kind: str, name: str) -> Any | None:
        """Return an object, or None."""
        return self._named.get((kind, name))

    def id(self, kind: str, name: str) -> int:
        """Return an object's id. Raises KeyError."""
        return int(self._named[kind, name].preamble.id)

    def with_id(self, number: int) -> Any:
        """Return the object with that id, which says of what kind it is. Raises KeyError."""
        return self._by_id[number]

    def field(self, table: str, name: str) -> Any | None:
        """Return a table's match field, or None."""
        return _named(self._named["tables", table].match_fields, name)

    def param(self, action: str, name: str) -> Any | None:
        """Return an action's parameter, or None."""
        return _named(self._named["actions", action].params, name)


def _named(members: Any, name: str) -> Any | None:
    return next((each for each in members if each.name == name), None)
