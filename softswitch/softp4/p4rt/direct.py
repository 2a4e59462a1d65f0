# SPDX-License-Identifier: Apache-2.0
"""The common part of direct counters and direct meters: they belong to the entries of their table."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from softp4.errors import Code, ControlError
from softp4.p4rt.keys import Message, invalid, stored_with
from softp4.p4rt.p4info import P4InfoIndex
from softp4.p4rt.p4info_objects import TableInfo
from softp4.p4rt.pipeline import Pipeline
from softp4.p4runtime.schema import p4runtime_pb2
from softp4.state.entry import Entry


@dataclass(frozen=True)
class Direct:
    """A kind of direct resource: what it is called, and whether a table has one."""

    kind: str
    has: Callable[[P4InfoIndex, TableInfo], bool]

    def check(self, info: P4InfoIndex, table: TableInfo) -> None:
        """Raise ControlError INVALID_ARGUMENT unless the table has one."""
        if not self.has(info, table):
            raise invalid(f"table {table.name} has no direct {self.kind}")

    def modified_table(self, pipeline: Pipeline, update: int, entry: Message) -> TableInfo:
        """Return the table of an entry whose resource an update of this type changes. Raises ControlError."""
        if update != p4runtime_pb2.Update.MODIFY:
            raise invalid(f"a direct {self.kind} lives with its entry; only MODIFY changes it")
        return self._table(pipeline, entry)

    def entries(self, pipeline: Pipeline, wanted: Message) -> Iterator[tuple[TableInfo, Entry]]:
        """Yield the entries, with their tables, whose resources a read of this TableEntry selects.

        Raises ControlError, NOT_FOUND when it has a match and there is no such entry.
        """
        if wanted.table_id:
            tables = [self._table(pipeline, wanted)]
        else:
            tables = [table for table in pipeline.info.tables.values() if self.has(pipeline.info, table)]
        for table in tables:
            found = list(stored_with(pipeline.switch.table(table.name), table, wanted))
            if wanted.match and not found:
                raise ControlError(Code.NOT_FOUND, f"table {table.name} has no such entry")
            store = pipeline.switch.table(table.name)
            for stored in found:
                yield table, store.unpacked(stored)

    def _table(self, pipeline: Pipeline, entry: Message) -> TableInfo:
        table = pipeline.info.table(entry.table_id)
        self.check(pipeline.info, table)
        if entry.is_default_action:
            message = f"table {table.name}: {self.kind}s of default actions are not supported"
            raise ControlError(Code.UNIMPLEMENTED, message)
        return table
