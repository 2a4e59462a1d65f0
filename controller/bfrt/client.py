# SPDX-License-Identifier: Apache-2.0
"""BfRuntime to one Tofino, in the controller's terms: what ``SwitchClient`` is for P4Runtime."""

from collections.abc import Callable, Iterable, Iterator
from itertools import product
from typing import Any

import grpc

from softp4.p4runtime.session import HANDSHAKE_TIMEOUT_S
from weir.controller.bfrt import groups, queues
from weir.controller.bfrt.codec import datum, decode, encode, key_message, set_datum
from weir.controller.bfrt.messages import bfruntime_pb2
from weir.controller.bfrt.program import TofinoProgram
from weir.controller.bfrt.schema import Schema
from weir.controller.bfrt.session import Session, refused
from weir.controller.codec import UnknownNameError
from weir.controller.entries import SwitchState, TableEntry
from weir.controller.p4rt_errors import describe_update
from weir.controller.switch_client import PROBE_TIMEOUT_S, Count, SessionClient, credentials_of
from weir.controller.sync import Batch, EntryUpdate, Update, Verb
from weir.controller.tables import admission, tofino
from weir.controller.tofino import QueueLimits
from weir.controller.wiring import Switch

MAX_BATCH = 1024  # entries in one write: well below gRPC's 4 MB message limit
_SHOWN = 5  # refused updates of one batch; what fails fails often in the same way
_PACKETS, _BYTES = "$COUNTER_SPEC_PKTS", "$COUNTER_SPEC_BYTES"


class BfrtClient(SessionClient[Session]):
    """A session with one Tofino. Calls block, for a limited time; reads may run beside a write.

    Args:
        switch: which one, from the topology.
        changed: called, from another thread, when the session ends.

    Raises:
        SwitchError: the switch cannot be reached, does not speak BfRuntime, or has another controller.
    """

    def __init__(self, switch: Switch, changed: Callable[[], None] = lambda: None) -> None:
        self._schema: Schema | None = None
        self._groups = groups.Groups()
        super().__init__(
            switch,
            lambda: Session(
                switch.grpc,
                device_id=switch.device_id,
                credentials=credentials_of(switch.tls),
                changed=changed,
                timeout=HANDSHAKE_TIMEOUT_S,
            ),
        )

    @property
    def primary(self) -> bool:
        """May this controller write? It may as long as it has a session: there is no second one."""
        return True

    def probe(self) -> None:
        """Ask the switch for very little. Raises SwitchError when it does not answer in two seconds."""
        try:
            self._session.usage(self._loaded().table(admission.WORKERS).id, PROBE_TIMEOUT_S)
        except grpc.RpcError as error:
            raise self._error(f"does not answer: {_describe(error)}") from None

    def ensure_program(self, program: TofinoProgram) -> bool:
        """Bind to ``program``, which the switch must run already; always False: nothing is pushed."""
        try:
            config = self._session.config()
            running = {one.p4_name: one.bfruntime_info for one in config.config}
            if program.name not in running:
                runs = ", ".join(sorted(running)) or "nothing"
                raise self._error(
                    f"does not run program {program.name}, but {runs}: load it with bf_switchd "
                    "(docs/guides/deploy-tofino.md)"
                )
            try:
                schema = Schema.parse(running[program.name], config.non_p4_config.bfruntime_info)
            except ValueError as error:
                raise self._error(f"describes its tables in other words: {error}") from None
            if lacks := list(schema.lacks(program.schema)):
                more = f"; and {len(lacks) - _SHOWN} more" if len(lacks) > _SHOWN else ""
                raise self._error(
                    f"runs another version of program {program.name}: {'; '.join(lacks[:_SHOWN])}{more}; "
                    "compile and load the one that came with this controller"
                )
            if self._schema is None:
                self._session.bind(program.name)
            self._schema = schema
        except grpc.RpcError as error:
            raise self._error(f"does not let itself be bound: {_describe(error)}") from None
        return False

    def read(self) -> SwitchState:
        """Return all entries of the controller's tables, and all multicast groups."""
        schema = self._loaded()
        wanted = [bfruntime_pb2.TableEntry(table_id=schema.table(name).id) for name in tofino.TABLES]
        entries = frozenset(
            entry for entry in (decode(schema, one) for one in self._read(*wanted)) if tofino.is_ours(entry)
        )
        self._groups = groups.read(schema, self._read(*groups.selections(schema)))
        return SwitchState(entries, self._groups.replicas())

    def write(self, batches: Iterable[Batch]) -> None:
        """Write batches one after the other. The first refusal ends it; what was written stays.

        The cells of slots that change hands are zeroed before their new owner gets them, in a call of their
        own: a switch goes on with a batch after a refusal.
        """
        for batch in batches:
            for steps in (self._zeroed, self._steps):
                try:
                    written = [(update, *one) for update in batch for one in steps(update)]
                except UnknownNameError as error:
                    raise self._error(f"cannot write to it: {error}") from None
                for start in range(0, len(written), MAX_BATCH):
                    self._write(written[start : start + MAX_BATCH])

    def set_queues(self, limits: Iterable[QueueLimits]) -> None:
        """Set which queues of ports go first, and what each of them drops. Other queues stay as they are."""
        schema, wanted = self._loaded(), list(limits)
        try:
            found = self._read(*queues.places(schema, sorted({limit.port for limit in wanted})))
            steps = [("MODIFY", entry) for entry in queues.settings(schema, wanted, found)]
        except UnknownNameError as error:
            raise self._error(f"has another traffic manager: {error}") from None
        for start in range(0, len(steps), MAX_BATCH):
            try:
                self._session.write(steps[start : start + MAX_BATCH])
            except grpc.RpcError as error:
                raise self._error(f"refuses settings of queues: {_describe(error)}") from None

    def read_counter(self, name: str) -> list[Count]:
        """Return all cells of a counter, by index; none if the program has no such counter."""
        schema = self._loaded()
        if name not in schema.tables:
            return []
        table = schema.table(name)
        fields = {field.id: field.name for field in table.data}
        cells = {
            int.from_bytes(entry.key.fields[0].exact.value, "big"): _count(fields, entry)
            for entry in self._read(_counted(table.id))
        }
        return [cells[index] for index in sorted(cells)]

    def read_table_counts(self, table: str) -> dict[TableEntry, Count]:
        """Return the entries of a table with their direct counters; none if the program has no such table."""
        schema = self._loaded()
        if table not in schema.tables:
            return {}
        fields = {field.id: field.name for field in schema.table(table).data}
        found = self._read(_counted(schema.table(table).id))
        return {decode(schema, entry): _count(fields, entry) for entry in found}

    def _write(self, steps: list[tuple[Update, str, Any]]) -> None:
        try:
            self._session.write((verb, entry) for _, verb, entry in steps)
        except grpc.RpcError as error:
            what = _describe(error, [update for update, _, _ in steps])
            raise self._error(f"refuses a write: {what}") from None

    def _zeroed(self, update: Update) -> Iterator[tuple[str, Any]]:
        """Yield what zeroes the cells that an update gives away, in the registers that compare rounds."""
        if not isinstance(update, EntryUpdate) or update.entry.table != tofino.RANGES:
            return
        schema = self._loaded()
        if update.verb is not Verb.DELETE:
            cells = tofino.cells(update.entry, schema.table(tofino.CELLS).size)
            for table, cell in product(map(schema.table, tofino.STAMPS), cells):
                entry = bfruntime_pb2.TableEntry(table_id=table.id)
                entry.key.CopyFrom(key_message(table, (("$REGISTER_INDEX", cell),)))
                for field in table.data:
                    set_datum(field, 0, entry.data.fields.add())
                yield "MODIFY", entry

    def _steps(self, update: Update) -> Iterator[tuple[str, Any]]:
        """Yield what must be written, in this order."""
        schema = self._loaded()
        if not isinstance(update, EntryUpdate):
            yield from self._groups.change(schema, update)
            return
        entry = encode(schema, update.entry)
        if update.verb is Verb.DELETE:
            entry.ClearField("data")
        yield update.verb.value, entry

    def _read(self, *selections: Any) -> list[Any]:
        try:
            return list(self._session.read(*selections))
        except grpc.RpcError as error:
            raise self._error(f"refuses a read: {_describe(error)}") from None

    def _loaded(self) -> Schema:
        if self._schema is None:
            raise self._error("was not asked for its program yet")
        return self._schema


def _counted(table_id: int) -> Any:
    """Return a selection of all entries, with counters as they are in the chip now."""
    entry = bfruntime_pb2.TableEntry(table_id=table_id)
    entry.table_flags.from_hw = True
    return entry


def _count(fields: dict[int, str], entry: Any) -> Count:
    values = {fields.get(field.field_id): datum(field) for field in entry.data.fields}
    packets, size = (values.get(name, 0) for name in (_PACKETS, _BYTES))
    assert isinstance(packets, int) and isinstance(size, int)
    return Count(packets, size)


def _describe(error: grpc.RpcError, updates: list[Update] | None = None) -> str:
    """Return what went wrong in one call; for a write, with the refused ones of its ``updates``."""
    said = refused(error)
    if not said:
        return f"{error.code().name}: {error.details() or 'no details'}"
    lines = list(
        dict.fromkeys(
            f"{describe_update(updates[index])}: {why}" if updates and index < len(updates) else why
            for index, why in said.items()
        )
    )
    more = f"; and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
    return "; ".join(lines[:_SHOWN]) + more
