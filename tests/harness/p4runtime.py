# SPDX-License-Identifier: Apache-2.0
"""A P4Runtime client as small as packet tests need: one writer, one entry per request."""

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import grpc
from google.protobuf import text_format
from google.rpc import status_pb2
from p4.config.v1 import p4info_pb2
from p4.v1 import p4runtime_pb2 as p4rt
from p4.v1 import p4runtime_pb2_grpc

from tests.harness.target import Count, Key, Lpm, Optional, Range, Ternary

_PATIENCE: Final = 30.0


class P4Runtime:
    """A connection to a switch that runs the given program."""

    def __init__(
        self, address: str, device_id: int, p4info: Path, program: Path, alive: Callable[[], None]
    ) -> None:
        """Connect, become primary, and load the program. `alive` raises when the switch has died."""
        self._device = device_id
        self._info = text_format.Parse(p4info.read_text(), p4info_pb2.P4Info())
        self._channel = grpc.insecure_channel(address)
        self._wait_ready(alive)
        self._stub = p4runtime_pb2_grpc.P4RuntimeStub(self._channel)
        self._outgoing: queue.Queue[Any] = queue.Queue()
        self._packets: queue.Queue[bytes] = queue.Queue()
        self._primary = threading.Event()
        self._stream = self._stub.StreamChannel(iter(self._outgoing.get, None))
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self._arbitrate()
        request = p4rt.SetForwardingPipelineConfigRequest(
            device_id=device_id,
            election_id=p4rt.Uint128(low=1),
            action=p4rt.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT,
        )
        request.config.p4info.CopyFrom(self._info)
        request.config.p4_device_config = program.read_bytes()
        self._stub.SetForwardingPipelineConfig(request, timeout=_PATIENCE)

    def _wait_ready(self, alive: Callable[[], None]) -> None:
        ready = grpc.channel_ready_future(self._channel)
        deadline = time.monotonic() + _PATIENCE
        while True:
            alive()
            try:
                ready.result(timeout=0.2)
                return
            except grpc.FutureTimeoutError:
                if time.monotonic() > deadline:
                    raise RuntimeError("the switch does not open its P4Runtime port") from None

    def _arbitrate(self) -> None:
        request = p4rt.StreamMessageRequest()
        request.arbitration.device_id = self._device
        request.arbitration.election_id.low = 1
        self._outgoing.put(request)
        if not self._primary.wait(_PATIENCE):
            raise RuntimeError("the switch does not answer arbitration")

    def _read(self) -> None:
        try:
            for message in self._stream:
                kind = message.WhichOneof("update")
                if kind == "arbitration":
                    self._primary.set()
                elif kind == "packet":
                    port = int.from_bytes(message.packet.metadata[0].value, "big")
                    self._packets.put((port << 7).to_bytes(2, "big") + message.packet.payload)
        except grpc.RpcError:
            pass  # closed: by us, or the switch has gone, which the next call reports

    def packet_out(self, port: int, frame: bytes) -> None:
        """Send a packet-out whose header names `port`."""
        request = p4rt.StreamMessageRequest()
        request.packet.payload = frame
        request.packet.metadata.add(metadata_id=1, value=_bytes(port))
        request.packet.metadata.add(metadata_id=2, value=b"\0")
        self._outgoing.put(request)

    def packet_in(self, timeout: float) -> bytes:
        """Return the next packet-in, its header in front as on the wire. Raises queue.Empty."""
        return self._packets.get(timeout=timeout)

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
        entry.table_id = self._find("tables", table).preamble.id
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
        query.counter_entry.counter_id = self._find("counters", name).preamble.id
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
        """End the stream and the connection."""
        self._outgoing.put(None)
        self._stream.cancel()
        self._channel.close()
        self._reader.join(_PATIENCE)

    def write(self, update: Any) -> None:
        """Apply one Update. Raises RuntimeError when it is refused."""
        request = p4rt.WriteRequest(device_id=self._device, election_id=p4rt.Uint128(low=1), updates=[update])
        try:
            self._stub.Write(request, timeout=_PATIENCE)
        except grpc.RpcError as error:
            raise RuntimeError(f"{_details(error)}, for {update}") from error

    def read(self, query: Any) -> list[Any]:
        """Return the entities that a request entity selects."""
        request = p4rt.ReadRequest(device_id=self._device, entities=[query])
        answers: Iterator[Any] = self._stub.Read(request, timeout=_PATIENCE)
        return [entity for answer in answers for entity in answer.entities]

    def _find(self, kind: str, name: str) -> Any:
        for item in getattr(self._info, kind):
            if item.preamble.name == name:
                return item
        raise KeyError(f"the P4Info has no {name} among its {kind}")

    def _entry(self, table: str, key: Sequence[Key]) -> Any:
        described = self._find("tables", table)
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
        described = self._find("actions", name)
        action = p4rt.Action(action_id=described.preamble.id)
        for param, value in zip(described.params, args, strict=True):
            action.params.add(param_id=param.id, value=_bytes(value))
        return action


def _details(error: Any) -> str:
    """Return what a refused write says: P4Runtime packs the reason for each update into the status
    details.
    """
    status = status_pb2.Status()
    status.ParseFromString(dict(error.trailing_metadata()).get("grpc-status-details-bin", b""))
    reasons = [p4rt.Error() for _ in status.details]
    for packed, reason in zip(status.details, reasons, strict=True):
        packed.Unpack(reason)
    return f"{error.code()} {error.details()} {[reason.message for reason in reasons]}"


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
