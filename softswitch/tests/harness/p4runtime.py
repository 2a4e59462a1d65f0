# SPDX-License-Identifier: Apache-2.0
"""A P4Runtime client as small as packet tests need: one writer, one entry per request."""

import queue
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import grpc
from google.protobuf import text_format

from softp4.p4runtime.errors import details
from softp4.p4runtime.names import Names
from softp4.p4runtime.schema import p4info_pb2
from softp4.p4runtime.schema import p4runtime_pb2 as p4rt
from softp4.p4runtime.session import Session, SessionError
from tests.harness.keys import Count, Key, Lpm, Optional, Range, Ternary

_TIMEOUT: Final = 30.0


class P4Runtime:
    """A connection to a switch that runs the given program."""

    def __init__(
        self, address: str, device_id: int, p4info: Path, program: Path, alive: Callable[[], None]
    ) -> None:
        """Connect, become primary, and load the program. `alive` raises when the switch has died."""
        self._info = text_format.Parse(p4info.read_text(), p4info_pb2.P4Info())
        self._names = Names(self._info)
        self._session = _session(address, device_id, alive)
        self._session.push(self._info, program.read_bytes())

    def packet_out(self, port: int, frame: bytes) -> None:
        """Send a packet-out whose header names `port`."""
        request = p4rt.StreamMessageRequest()
        request.packet.payload = frame
        request.packet.metadata.add(metadata_id=1, value=_bytes(port))
        request.packet.metadata.add(metadata_id=2, value=b"\0")
        self._session.send(request)

    def packet_in(self, timeout: float) -> bytes:
        """Return the next packet-in, its header in front as on the wire. Raises queue.Empty."""
        message = self._session.receive("packet", timeout)
        if message is None:
            raise queue.Empty
        port = int.from_bytes(message.packet.metadata[0].value, "big")
        return (port << 7).to_bytes(2, "big") + bytes(message.packet.payload)

    def insert(
        self, table: str, key: Sequence[Key], action: str, args: Sequence[int], priority: int = 0
    ) -> None:
        """Insert a table entry."""
        self._write_entry(p4rt.Update.INSERT, table, key, action, args, priority)

    def modify(self, table: str, key: Sequence[Key], action: str, args: Sequence[int]) -> None:
        """Modify a table entry."""
        self._write_entry(p4rt.Update.MODIFY, table, key, action, args, 0)

    def _write_entry(
        self, verb: int, table: str, key: Sequence[Key], action: str, args: Sequence[int], priority: int = 0
    ) -> None:
        update = p4rt.Update(type=verb)
        entry = update.entity.table_entry
        entry.CopyFrom(self._entry(table, key))
        entry.priority = priority
        entry.action.action.CopyFrom(self._action(action, args))
        self.write(update)

    def set_default(self, table: str, action: str, args: Sequence[int]) -> None:
        """Modify a table's default action."""
        update = p4rt.Update(type=p4rt.Update.MODIFY)
        entry = update.entity.table_entry
        entry.table_id = self._names.id("tables", table)
        entry.is_default_action = True
        entry.action.action.CopyFrom(self._action(action, args))
        self.write(update)

    def set_group(self, group: int, replicas: Sequence[tuple[int, int]]) -> None:
        """Insert a multicast group."""
        update = p4rt.Update(type=p4rt.Update.INSERT)
        wanted = update.entity.packet_replication_engine_entry.multicast_group_entry
        wanted.multicast_group_id = group
        for port, rid in replicas:
            wanted.replicas.add(egress_port=port, instance=rid)
        self.write(update)

    def set_session(self, session: int, replicas: Sequence[tuple[int, int]]) -> None:
        """Insert a clone session."""
        update = p4rt.Update(type=p4rt.Update.INSERT)
        wanted = update.entity.packet_replication_engine_entry.clone_session_entry
        wanted.session_id = session
        for port, rid in replicas:
            wanted.replicas.add(egress_port=port, instance=rid)
        self.write(update)

    def counter(self, name: str, index: int) -> Count:
        """Read one cell of an indirect counter."""
        query = p4rt.Entity()
        query.counter_entry.counter_id = self._names.id("counters", name)
        query.counter_entry.index.index = index
        [found] = self.read(query)
        data = found.counter_entry.data
        return Count(data.packet_count, data.byte_count)

    def entry_counter(self, table: str, key: Sequence[Key]) -> Count:
        """Read the direct counter of an entry."""
        query = p4rt.Entity()
        query.direct_counter_entry.table_entry.CopyFrom(self._entry(table, key))
        [found] = self.read(query)
        data = found.direct_counter_entry.data
        return Count(data.packet_count, data.byte_count)

    def clear(self) -> None:
        """Delete all entries and groups, and put default actions back."""
        for table in self._info.tables:
            query = p4rt.Entity()
            query.table_entry.table_id = table.preamble.id
            for found in self.read(query):
                update = p4rt.Update(type=p4rt.Update.DELETE)
                update.entity.CopyFrom(found)
                self.write(update)
            if not table.const_default_action_id:
                update = p4rt.Update(type=p4rt.Update.MODIFY)
                update.entity.table_entry.table_id = table.preamble.id
                update.entity.table_entry.is_default_action = True
                self.write(update)
        groups = p4rt.Entity()
        groups.packet_replication_engine_entry.multicast_group_entry.multicast_group_id = 0
        for found in self.read(groups):
            update = p4rt.Update(type=p4rt.Update.DELETE)
            update.entity.CopyFrom(found)
            self.write(update)

    def close(self) -> None:
        """End the session."""
        self._session.close()

    def write(self, update: Any) -> None:
        """Apply one Update. Raises RuntimeError when it is refused."""
        try:
            self._session.write([update])
        except grpc.RpcError as error:
            raise RuntimeError(f"{_reasons(error)}, for {update}") from error

    def read(self, query: Any) -> list[Any]:
        """Return the entities that a request entity selects."""
        return list(self._session.read(query, timeout=_TIMEOUT))

    def _entry(self, table: str, key: Sequence[Key]) -> Any:
        described = self._names.with_id(self._names.id("tables", table))
        entry = p4rt.TableEntry(table_id=described.preamble.id)
        for field, part in zip(described.match_fields, key, strict=True):
            if _is_anything(part, field.bitwidth):
                continue
            match = entry.match.add(field_id=field.id)
            if isinstance(part, Ternary):
                match.ternary.value, match.ternary.mask = _bytes(part.value), _bytes(part.mask)
            elif isinstance(part, Lpm):
                match.lpm.value, match.lpm.prefix_len = _bytes(part.value), part.prefix_len
            elif isinstance(part, Range):
                match.range.low, match.range.high = _bytes(part.low), _bytes(part.high)
            elif isinstance(part, Optional):
                match.optional.value = _bytes(part.value or 0)
            else:
                match.exact.value = _bytes(part)
        return entry

    def _action(self, name: str, args: Sequence[int]) -> Any:
        described = self._names.with_id(self._names.id("actions", name))
        action = p4rt.Action(action_id=described.preamble.id)
        for param, value in zip(described.params, args, strict=True):
            action.params.add(param_id=param.id, value=_bytes(value))
        return action


def _session(address: str, device_id: int, alive: Callable[[], None]) -> Session:
    """Return a session with a switch that may still be starting."""
    deadline = time.monotonic() + _TIMEOUT
    while True:
        alive()
        try:
            return Session(address, device_id=device_id)
        except SessionError as error:
            if time.monotonic() > deadline:
                raise RuntimeError(f"the switch does not open its P4Runtime port: {error}") from None
            time.sleep(0.1)


def _reasons(error: Any) -> str:
    return f"{error.code()} {error.details()} {[reason.message for reason in details(error)]}"


def _is_anything(part: Key, bits: int) -> bool:
    """Return whether a key field may be anything: P4Runtime wants it left out then."""
    match part:
        case Ternary(_, mask):
            return mask == 0
        case Lpm(_, length):
            return length == 0
        case Range(low, high):
            return low == 0 and high == (1 << bits) - 1
        case Optional(value):
            return value is None
    return False


def _bytes(value: int) -> bytes:
    """P4Runtime's canonical form: no leading zero bytes, at least one byte."""
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")
