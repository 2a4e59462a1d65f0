# SPDX-License-Identifier: Apache-2.0
"""P4Runtime to one switch, in the controller's terms. What goes wrong is a ``SwitchError`` that names it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import grpc

from softp4.p4runtime.schema import p4runtime_pb2
from softp4.p4runtime.session import HANDSHAKE_TIMEOUT_S, Session, SessionError
from weir.agent_service.tls import TlsError, TlsFiles
from weir.controller.codec import Codec, UnknownNameError
from weir.controller.entries import SwitchState, TableEntry
from weir.controller.p4rt_errors import describe
from weir.controller.program import CompiledProgram
from weir.controller.qos import QueueSpec
from weir.controller.queue_driver import QueueDriverError, set_queues
from weir.controller.sync import Batch
from weir.controller.tables import TABLES
from weir.controller.wiring import Switch, SwitchTls

PROBE_TIMEOUT_S = 2.0
MAX_BATCH = 256  # updates in one write: well below gRPC's 4 MB message limit

_Entity = p4runtime_pb2.Entity
_TableEntry = p4runtime_pb2.TableEntry


class SwitchError(Exception):
    """A switch cannot be reached, or refused something. The message names it and says what."""


@dataclass(frozen=True)
class Count:
    """The reading of a counter."""

    packets: int = 0
    bytes: int = 0

    def __add__(self, other: "Count") -> "Count":
        return Count(self.packets + other.packets, self.bytes + other.bytes)


class Opened(Protocol):
    """A session of any interface."""

    @property
    def alive(self) -> bool:
        """Return whether the session is up."""

    def close(self) -> None:
        """End the session."""


S = TypeVar("S", bound=Opened)


class SessionClient(Generic[S]):
    """A session with one switch, and errors that name it: what the clients of all interfaces share.

    Args:
        switch: which one, from the topology.
        opened: opens the session.

    Raises:
        SwitchError: it cannot be opened.
    """

    def __init__(self, switch: Switch, opened: Callable[[], S]) -> None:
        self.switch = switch
        try:
            self._session = opened()
        except (SessionError, TlsError) as error:
            why = str(error)
            if switch.tls is not None and isinstance(error, SessionError):
                why = _files(switch.tls).problem(switch.grpc) or why
            raise self._error(f"cannot be reached: {why}") from None

    @property
    def alive(self) -> bool:
        """True while the session is up."""
        return self._session.alive

    def close(self) -> None:
        """End the session; what the switch holds stays."""
        self._session.close()

    def _error(self, what: str) -> SwitchError:
        return SwitchError(f"switch {self.switch.name} at {self.switch.grpc} {what}")


class SwitchClient(SessionClient[Session]):
    """A session with one switch. Calls block, for a limited time; reads may run beside a write.

    Args:
        switch: which one, from the topology.
        election_id: which controller wins when several claim the switch: the one with the largest.
        changed: called, from another thread, when the session ends or another controller takes over.

    Raises:
        SwitchError: the switch cannot be reached or does not speak P4Runtime.
    """

    def __init__(self, switch: Switch, election_id: int, changed: Callable[[], None] = lambda: None) -> None:
        self._codec: Codec | None = None
        self._decoded: dict[bytes, TableEntry] = {}  # of the last reading: most are in the next one, too
        super().__init__(
            switch,
            lambda: Session(
                switch.grpc,
                device_id=switch.device_id,
                election_id=election_id,
                credentials=credentials_of(switch.tls),
                follow=True,
                changed=changed,
                timeout=HANDSHAKE_TIMEOUT_S,
            ),
        )

    @property
    def primary(self) -> bool:
        """May this controller write? False when another one with a larger election id took over."""
        return self._session.primary

    def probe(self) -> None:
        """Ask the switch for very little. Raises SwitchError when it does not answer in two seconds."""
        try:
            self._session.cookie(PROBE_TIMEOUT_S)
        except grpc.RpcError as error:
            raise self._error(f"does not answer: {describe(error)}") from None

    def ensure_program(self, program: CompiledProgram) -> bool:
        """Make the switch run ``program``; True if it had to be pushed, which empties the switch."""
        p4info = program.p4info
        pushed = self._running_cookie() != program.cookie
        if pushed:
            try:
                self._session.push(p4info, program.device_config, program.cookie)
            except grpc.RpcError as error:
                raise self._error(f"refuses program {program.name}: {describe(error)}") from None
        self._codec = Codec(p4info)
        return pushed

    def read(self) -> SwitchState:
        """Return all entries of the controller's tables, and all multicast groups."""
        codec = self._loaded()
        selections = [_Entity(table_entry=_TableEntry(table_id=codec.table_id(table))) for table in TABLES]
        groups_wanted = _Entity()
        groups_wanted.packet_replication_engine_entry.multicast_group_entry.SetInParent()
        entries: dict[bytes, TableEntry] = {}
        groups = {}
        for entity in self._read(*selections, groups_wanted):
            if entity.HasField("table_entry"):
                if not entity.table_entry.is_default_action:
                    data = entity.table_entry.SerializeToString()
                    entries[data] = self._decoded.get(data) or codec.decode(entity.table_entry)
            else:
                group, replicas = codec.decode_group(
                    entity.packet_replication_engine_entry.multicast_group_entry
                )
                groups[group] = replicas
        self._decoded = entries
        return SwitchState(frozenset(entries.values()), groups)

    def write(self, batches: Iterable[Batch]) -> None:
        """Write batches one after the other. The first refusal ends it; what was written stays."""
        codec = self._loaded()
        for batch in batches:
            for start in range(0, len(batch), MAX_BATCH):
                part = batch[start : start + MAX_BATCH]
                try:
                    self._session.write([codec.update(update) for update in part])
                except grpc.RpcError as error:
                    raise self._error(f"refuses a write: {describe(error, part)}") from None
                except UnknownNameError as error:
                    raise self._error(f"runs another program: {error}") from None

    def set_queues(self, queues: Iterable[QueueSpec]) -> None:
        """Set rates and depths of a BMv2's queues, over Thrift; P4Runtime has no words for it."""
        if self.switch.thrift is None:
            return
        try:
            set_queues(self.switch.thrift, queues)
        except QueueDriverError as error:
            raise self._error(f"cannot set queues: {error}") from None

    def read_counter(self, name: str) -> list[Count]:
        """Return all cells of an indirect counter, by index."""
        wanted = _Entity()
        wanted.counter_entry.counter_id = self._loaded().counter_id(name)
        cells = {entity.counter_entry.index.index: entity.counter_entry.data for entity in self._read(wanted)}
        return [_count(cells[index]) for index in sorted(cells)]

    def read_table_counts(self, table: str) -> dict[TableEntry, Count]:
        """Return the entries of a table with their direct counters."""
        codec = self._loaded()
        wanted = _Entity(table_entry=_TableEntry(table_id=codec.table_id(table)))
        wanted.table_entry.counter_data.SetInParent()
        return {
            codec.decode(entity.table_entry): _count(entity.table_entry.counter_data)
            for entity in self._read(wanted)
            if not entity.table_entry.is_default_action
        }

    def _running_cookie(self) -> int | None:
        try:
            return self._session.cookie()
        except grpc.RpcError as error:
            if error.code() in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.NOT_FOUND):
                return None
            raise self._error(f"does not say which program it runs: {describe(error)}") from None

    def _read(self, *selections: Any) -> list[Any]:
        try:
            return list(self._session.read(*selections))
        except grpc.RpcError as error:
            raise self._error(f"refuses a read: {describe(error)}") from None

    def _loaded(self) -> Codec:
        if self._codec is None:
            raise self._error("was not given a program yet")
        return self._codec


def credentials_of(tls: SwitchTls | None) -> grpc.ChannelCredentials | None:
    """Return what TLS towards a switch needs. Raises TlsError when a file cannot be used."""
    return None if tls is None else _files(tls).channel_credentials()


def _files(tls: SwitchTls) -> TlsFiles:
    return TlsFiles(tls.cert, tls.key, tls.ca)


def _count(data: Any) -> Count:
    return Count(data.packet_count, data.byte_count)
