# SPDX-License-Identifier: Apache-2.0
"""Entries of one table: from P4Runtime's messages to the native table's bytes, and back."""

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Final, NamedTuple

from softp4.errors import Code, ControlError
from softp4.p4rt.actions import decode_action, encode_action
from softp4.p4rt.keys import Message, Reader, by_field, invalid, missing, reader, wildcard
from softp4.p4rt.p4info import P4InfoIndex
from softp4.p4rt.p4info_objects import FieldInfo, TableInfo
from softp4.p4runtime.schema import p4runtime_pb2
from softp4.program.types import MatchKind, TableKey
from softp4.state.packed_keys import Put, check_fits
from softp4.state.table_store import TableStore

_ACTIONS: Final = 4096  # remembered: entries of a table often share few actions, with their arguments

_SHORT: Final = 512  # bytes of an Action that is remembered; more may be padding


class PackedAction(NamedTuple):
    """An action's number in the program and its argument words. ``canonical``: reads give the same bytes."""

    number: int
    args: bytes
    canonical: bool


class _Field(NamedTuple):
    info: FieldInfo
    read: Reader[int]  # placed
    wildcard: int | None  # placed


class TableCodec:
    """A table of P4Info and the store of its entries, with what is worked out once for all of them."""

    def __init__(
        self, info: P4InfoIndex, table: TableInfo, keys: tuple[TableKey, ...], store: TableStore
    ) -> None:
        self.info: Final = info
        self.table: Final = table
        self.keys: Final = keys
        self.store: Final = store
        self._seal = store.keys.seal
        self._order = [field.id for field in table.fields]
        self._fields = tuple(
            _field(table, *each) for each in zip(table.fields, keys, store.keys.put, strict=True)
        )
        self._remembered: Callable[[bytes], PackedAction] = lru_cache(_ACTIONS)(self._packed_action)

    def action(self, wire: bytes) -> PackedAction:
        """Return the PackedAction of a serialized Action that an entry names. Raises ControlError."""
        return self._remembered(wire) if len(wire) <= _SHORT else self._packed_action(wire)

    def pack_key(self, matches: Iterable[Message], priority: int) -> tuple[bytes, bool]:
        """Return the packed key, and whether a read gives the same matches in this order.

        Byte strings are shortened in the messages to what they are when read. Raises ControlError.
        """
        messages = list(matches)
        found: list[Message | None] = messages
        extra = None
        complete = [message.field_id for message in messages] == self._order
        if not complete:
            found, extra = by_field(self.table.title, self._order, messages)
        bits = 0
        for message, (info, read, without) in zip(found, self._fields, strict=True):
            if message is not None:
                bits |= read(message)
            elif without is not None:
                bits |= without
            else:
                raise missing(info, self.table.title)
        if extra is not None:
            raise extra
        return self._seal(bits, priority), complete

    def check_action(self, message: Message, *, default: bool) -> tuple[str, tuple[int, ...]]:
        """Return the action and the arguments of an Action of this table. Raises ControlError."""
        table = self.table
        action, args = decode_action(self.info, message)
        if action.id not in (table.default_actions if default else table.entry_actions):
            if action.id in table.entry_actions | table.default_actions:
                place = "default action" if default else "entry"
                raise ControlError(
                    Code.PERMISSION_DENIED,
                    f"table {table.name}: {action.name} may not be the action of a {place}",
                )
            raise invalid(f"table {table.name} has no action {action.name}")
        return action.name, args

    def _packed_action(self, wire: bytes) -> PackedAction:
        name, args = self.check_action(p4runtime_pb2.Action.FromString(wire), default=False)
        number, packed = self.store.pack_action(name, args)
        read = p4runtime_pb2.Action()
        encode_action(self.info, name, args, read)
        return PackedAction(number, packed, read.SerializeToString() == wire)


def _field(table: TableInfo, info: FieldInfo, key: TableKey, put: Put) -> _Field:
    if info.bits != key.bits:
        put = _translated(key, put, table.name)
    without = wildcard(info)
    return _Field(info, reader(info, table.title, put), None if without is None else put(*without))


def _translated(key: TableKey, put: Put, table: str) -> Put:
    """Return what places a match of a field that has another width for controllers than in the program."""
    full = (1 << key.bits) - 1

    def put_checked(value: int, mask: int) -> int:
        check_fits(value, key, table)
        if key.kind is MatchKind.EXACT:
            return put(value, full)
        check_fits(mask, key, table)
        return put(value, mask)

    return put_checked
