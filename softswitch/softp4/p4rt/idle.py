# SPDX-License-Identifier: Apache-2.0
"""P4Runtime's idle timeouts (specification 9.1.8 and 16.3)."""

from collections.abc import Iterator, Sequence
from typing import Final

from softp4.p4rt.keys import Message, encode_key, invalid
from softp4.p4rt.p4info_objects import TableInfo
from softp4.p4rt.pipeline import EntryNotes, Pipeline
from softp4.p4runtime.schema import p4runtime_pb2
from softp4.state.entry import Entry

_MOST: Final = 1000  # entries of one message: well below gRPC's 4 MiB


def check_idle_fields(table: TableInfo, entry: Message) -> None:
    """Raise ControlError INVALID_ARGUMENT for idle fields that a TableEntry to be written may not have."""
    if entry.HasField("time_since_last_hit"):
        raise invalid(f"table {table.name}: time_since_last_hit can only be read")
    if not entry.idle_timeout_ns:
        return
    if not table.idle_timeout:
        raise invalid(f"table {table.name} has no idle timeout")
    if entry.is_default_action:
        raise invalid(f"table {table.name}: a default action has no idle timeout")
    if entry.idle_timeout_ns < 0:
        raise invalid(f"table {table.name}: idle timeout {entry.idle_timeout_ns} is negative")


def idle_notifications(
    pipeline: Pipeline, expired: Sequence[tuple[str, Entry]], timestamp: int
) -> Iterator[Message]:
    """Yield the IdleTimeoutNotifications for entries that have timed out.

    Args:
        pipeline: theirs.
        expired: each with its table's name.
        timestamp: nanoseconds since the Epoch.
    """
    tables = {table.name: table for table in pipeline.info.tables.values()}
    for start in range(0, len(expired), _MOST):
        message = p4runtime_pb2.IdleTimeoutNotification(timestamp=timestamp)
        for name, entry in expired[start : start + _MOST]:
            if name not in tables:
                continue  # the compiler's own
            found = encode_key(tables[name], entry.key, entry.priority)
            packed = pipeline.switch.table(name).keys.pack(entry.key, entry.priority)
            notes = pipeline.notes.get((name, packed), EntryNotes())
            found.controller_metadata, found.metadata = notes.controller_metadata, notes.metadata
            found.idle_timeout_ns = entry.timeout_ns
            message.table_entry.append(found)
        if message.table_entry:
            yield message
