# SPDX-License-Identifier: Apache-2.0
"""Tables as a Tofino describes them, in ``bf-rt.json``: names, ids, and how values are written.

p4c-barefoot writes one for each program; the driver has others for what every chip has (multicast, mirrors,
ports). A switch hands out both, so the ids that are used are always its own.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from softp4.native.json_text import parse_object
from weir.controller.codec import UnknownNameError

PRIORITY: Final = "$MATCH_PRIORITY"
_PIPE: Final = "pipe."  # before every name of a program with one pipeline
_WIDTHS: Final = {
    "bool": 1,
    **{f"{sign}int{width}": width for sign in ("", "u") for width in (8, 16, 32, 64)},
}


@dataclass(frozen=True)
class Field:
    """A key, or a datum, of a table.

    Attributes:
        kind: ``bytes``, ``uint32``, ``bool``, ``string`` and so on.
        width: in bits; 0 for what has none.
        match: of a key, ``Exact`` or ``Ternary``; of a datum, nothing.
        needed: it must be given.
        settable: it may be given.
    """

    id: int
    name: str
    kind: str
    width: int
    repeated: bool = False
    match: str = ""
    needed: bool = False
    settable: bool = True

    @property
    def bytes(self) -> int:
        """Length of a value on the wire, which has its leading zeros."""
        return (self.width + 7) // 8

    @property
    def shape(self) -> tuple[object, ...]:
        """Return what a client must know of the field to use it."""
        return (self.name, self.kind, self.width, self.repeated, self.match)


@dataclass(frozen=True)
class Table:
    """A table. ``actions``: data by action, with the id of it; ``data``: what entries have whatever their
    action.
    """

    id: int
    name: str
    kind: str
    size: int
    keys: tuple[Field, ...]
    actions: Mapping[str, tuple[int, tuple[Field, ...]]]
    data: tuple[Field, ...]

    def key(self, name: str) -> Field:
        """Return a key by name. Raises UnknownNameError."""
        return _named(self.keys, name, f"table {self.name} has no key")

    def action(self, name: str) -> tuple[int, tuple[Field, ...]]:
        """Return id and data of an action; of none, 0 and nothing. Raises UnknownNameError."""
        if not name:
            return 0, ()
        if name not in self.actions:
            raise UnknownNameError(f"table {self.name} has no action {name!r}")
        return self.actions[name]

    def action_with_id(self, number: int) -> str:
        """Return the name of an action; of id 0, nothing. Raises UnknownNameError."""
        for name, (own, _) in self.actions.items():
            if own == number:
                return name
        if number:
            raise UnknownNameError(f"table {self.name} has no action with id {number}")
        return ""

    def fields(self, action: str) -> tuple[Field, ...]:
        """Return all data that an entry with this action may have."""
        return (*self.action(action)[1], *self.data)

    @property
    def shape(self) -> tuple[object, ...]:
        """Return what a client must know of the table to use it."""
        actions = {name: [field.shape for field in fields] for name, (_, fields) in self.actions.items()}
        keys, data = ([field.shape for field in fields] for fields in (self.keys, self.data))
        return (self.kind, keys, sorted(actions.items()), data)


class Schema:
    """Tables of one or several ``bf-rt.json``, by name and by id."""

    def __init__(self, tables: Iterable[Table]) -> None:
        self.tables = {table.name: table for table in tables}
        self._by_id = {table.id: table for table in self.tables.values()}

    @classmethod
    def parse(cls, *documents: bytes) -> "Schema":
        """Return what these files describe. Raises ValueError for what is no ``bf-rt.json``."""
        try:
            return cls(_table(table) for text in documents for table in parse_object(text)["tables"])
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"no tables as bf-rt.json has them: {error!r}") from None

    def table(self, name: str) -> Table:
        """Return a table. Raises UnknownNameError."""
        if name not in self.tables:
            raise UnknownNameError(f"there is no table {name}")
        return self.tables[name]

    def with_id(self, number: int) -> Table:
        """Return a table. Raises UnknownNameError."""
        if number not in self._by_id:
            raise UnknownNameError(f"there is no table with id {number}")
        return self._by_id[number]

    def lacks(self, wanted: "Schema") -> Iterator[str]:
        """Yield the tables of ``wanted`` that are not here, or not as there."""
        for name, table in wanted.tables.items():
            if name not in self.tables:
                yield f"table {name} is missing"
            elif self.tables[name].shape != table.shape:
                yield f"table {name} has other keys, actions or data"
            elif self.tables[name].size < table.size:
                yield f"table {name} has {self.tables[name].size} entries, not {table.size}"


def _table(said: Mapping[str, Any]) -> Table:
    singles = [(datum, datum["singleton"]) for datum in said["data"] if "singleton" in datum]
    return Table(
        id=said["id"],
        name=said["name"].removeprefix(_PIPE),
        kind=said["table_type"],
        size=said["size"],
        keys=tuple(_field(key, match=key["match_type"], needed=key["mandatory"]) for key in said["key"]),
        actions={
            action["name"]: (action["id"], tuple(map(_action_field, action["data"])))
            for action in said.get("action_specs", ())
        },
        data=tuple(
            _field(single, needed=datum["mandatory"], settable=not datum["read_only"])
            for datum, single in singles
        ),
    )


def _action_field(said: Mapping[str, Any]) -> Field:
    field = said.get("singleton", said)  # a program's actions and the chip's own are written differently
    return _field(field, needed=said.get("mandatory", False), settable=not said.get("read_only", False))


def _field(said: Mapping[str, Any], *, match: str = "", needed: bool = False, settable: bool = True) -> Field:
    kind = said["type"]["type"]
    width = said["type"].get("width") or _WIDTHS.get(kind, 0)
    repeated = said.get("repeated", False)
    return Field(said["id"], said["name"], kind, width, repeated, match, needed, settable)


def _named(fields: Iterable[Field], name: str, otherwise: str) -> Field:
    for field in fields:
        if field.name == name:
            return field
    raise UnknownNameError(f"{otherwise} {name!r}")
