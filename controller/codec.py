# SPDX-License-Identifier: Apache-2.0
"""Names to ids and back: entries and groups as the controller has them, and as P4Runtime has them.

Numbers are written as P4Runtime's canonical byte strings (specification 1.3, section 8.4): no leading zeros.
"""

from collections.abc import Iterator
from typing import Any

from softp4.p4runtime.names import Names
from softp4.p4runtime.schema import p4info_pb2, p4runtime_pb2
from weir.controller.entries import Lpm, Match, Replica, TableEntry, Ternary
from weir.controller.sync import EntryUpdate, Update


class UnknownNameError(LookupError):
    """The P4 program does not have something that the controller needs. The message says what."""


class Codec:
    """Translates for one P4Info."""

    def __init__(self, p4info: Any) -> None:
        self._names = Names(p4info)

    def table_id(self, name: str) -> int:
        """Return the id of a table."""
        return int(self._object("tables", name).preamble.id)

    def counter_id(self, name: str) -> int:
        """Return the id of an indirect counter."""
        return int(self._object("counters", name).preamble.id)

    def update(self, update: Update) -> Any:
        """Return a P4Runtime ``Update``."""
        message = p4runtime_pb2.Update(type=p4runtime_pb2.Update.Type.Value(update.verb.value))
        if isinstance(update, EntryUpdate):
            message.entity.table_entry.CopyFrom(self.entry(update.entry))
        else:
            group = message.entity.packet_replication_engine_entry.multicast_group_entry
            group.multicast_group_id = update.group
            for replica in sorted(update.replicas):
                group.replicas.add(egress_port=replica.port, instance=replica.rid)
        return message

    def entry(self, entry: TableEntry) -> Any:
        """Return a P4Runtime ``TableEntry``."""
        message = p4runtime_pb2.TableEntry(table_id=self.table_id(entry.table), priority=entry.priority)
        for name, value in entry.match:
            field = self._names.field(entry.table, name)
            if field is None:
                raise UnknownNameError(f"the P4 program's table {entry.table} has no key {name!r}")
            _encode_match(message, field, value)
        action = self._object("actions", entry.action)
        message.action.action.action_id = action.preamble.id
        for name, number in entry.params:
            param = self._names.param(entry.action, name)
            if param is None:
                raise UnknownNameError(f"the P4 program's action {entry.action} has no parameter {name!r}")
            message.action.action.params.add(param_id=param.id, value=_bytes(int(number)))
        return message

    def decode(self, message: Any) -> TableEntry:
        """Return the entry that a P4Runtime ``TableEntry`` read from a switch describes."""
        table = self._names.with_id(message.table_id)
        action = self._names.with_id(message.action.action.action_id)
        given = {param.param_id: param.value for param in message.action.action.params}
        return TableEntry(
            table.preamble.name,
            tuple(_decode_match(message, table)),
            action.preamble.name,
            tuple((param.name, _number(given[param.id])) for param in action.params),
            message.priority,
        )

    def decode_group(self, message: Any) -> tuple[int, frozenset[Replica]]:
        """Return number and replicas of a P4Runtime ``MulticastGroupEntry``."""
        replicas = frozenset(Replica(copy.egress_port, copy.instance) for copy in message.replicas)
        return message.multicast_group_id, replicas

    def _object(self, kind: str, name: str) -> Any:
        found = self._names.get(kind, name)
        if found is None:
            raise UnknownNameError(f"the P4 program has no {kind.removesuffix('s')} {name}: is it Weir's?")
        return found


def _encode_match(message: Any, field: Any, value: Match) -> None:
    if isinstance(value, Ternary) and not value.mask:
        return  # what matches everything is left out (specification 1.3, section 9.1.1)
    match = message.match.add(field_id=field.id)
    if isinstance(value, Lpm):
        match.lpm.value, match.lpm.prefix_len = _bytes(value.value), value.length
    elif isinstance(value, Ternary):
        match.ternary.value, match.ternary.mask = _bytes(value.value), _bytes(value.mask)
    else:
        match.exact.value = _bytes(value)


def _decode_match(message: Any, table: Any) -> Iterator[tuple[str, Match]]:
    given = {match.field_id: match for match in message.match}
    for field in table.match_fields:
        match = given.get(field.id)
        if field.match_type == p4info_pb2.MatchField.EXACT and match is not None:
            yield field.name, _number(match.exact.value)
        elif field.match_type == p4info_pb2.MatchField.LPM:  # left out: matches everything
            lpm = match.lpm if match is not None else None
            yield field.name, Lpm(_number(lpm.value), lpm.prefix_len) if lpm is not None else Lpm(0, 0)
        elif field.match_type == p4info_pb2.MatchField.TERNARY:
            ternary = match.ternary if match is not None else None
            wanted = Ternary(_number(ternary.value), _number(ternary.mask)) if ternary is not None else None
            yield field.name, wanted or Ternary(0, 0)
        else:
            raise UnknownNameError(
                f"an entry of {table.preamble.name} matches {field.name!r} as the controller never does"
            )


def _bytes(number: int) -> bytes:
    return number.to_bytes(max(1, (number.bit_length() + 7) // 8), "big")


def _number(data: bytes) -> int:
    return int.from_bytes(data, "big")
