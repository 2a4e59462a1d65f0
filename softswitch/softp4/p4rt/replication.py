# SPDX-License-Identifier: Apache-2.0
"""P4Runtime's packet replication: multicast groups and clone sessions (specification 9.6)."""

from collections.abc import Iterable, Iterator

from softp4.errors import Code, ControlError
from softp4.p4rt.keys import Message, invalid
from softp4.p4rt.pipeline import Pipeline, ReplicaNotes
from softp4.p4rt.values import decode, encode
from softp4.p4runtime.schema import p4runtime_pb2
from softp4.state.entry import Replica

_PORT_BITS = 9
_INSTANCE_BITS = 16


def _decode_replicas(messages: Iterable[Message], where: str) -> list[Replica]:
    replicas: list[Replica] = []
    for message in messages:
        if message.backup_replicas:
            raise ControlError(Code.UNIMPLEMENTED, f"{where}: backup_replicas are not supported")
        if message.WhichOneof("port_kind") == "port":
            port = decode(message.port, _PORT_BITS, f"{where}, replica port")
        else:
            port = message.egress_port
        if port >= 1 << _PORT_BITS:
            raise invalid(f"{where}: port {port} does not fit into bit<{_PORT_BITS}>")
        if message.instance >= 1 << _INSTANCE_BITS:
            raise invalid(f"{where}: instance {message.instance} does not fit into bit<{_INSTANCE_BITS}>")
        replica = Replica(port, message.instance)
        if replica in replicas:
            raise invalid(f"{where}: port {port} with instance {message.instance} is given twice")
        replicas.append(replica)
    return replicas


def _notes(message: Message, metadata: bytes = b"") -> ReplicaNotes:
    return ReplicaNotes(metadata, tuple(r.WhichOneof("port_kind") == "port" for r in message.replicas))


def _encode_replicas(replicas: Iterable[Replica], notes: ReplicaNotes, message: Message) -> None:
    for number, replica in enumerate(replicas):
        if number < len(notes.byte_ports) and notes.byte_ports[number]:
            message.replicas.add(port=encode(replica.port), instance=replica.rid)
        else:
            message.replicas.add(egress_port=replica.port, instance=replica.rid)


def write_replication(pipeline: Pipeline, update: int, message: Message) -> None:
    """Apply an INSERT, MODIFY or DELETE of a PacketReplicationEngineEntry. Raises ControlError."""
    kind = message.WhichOneof("type")
    if kind == "multicast_group_entry":
        _write_group(pipeline, update, message.multicast_group_entry)
    elif kind == "clone_session_entry":
        _write_session(pipeline, update, message.clone_session_entry)
    else:
        raise invalid("a packet replication entry needs a multicast group or a clone session")


def _check_presence(update: int, present: bool, where: str) -> None:
    if update == p4runtime_pb2.Update.INSERT and present:
        raise ControlError(Code.ALREADY_EXISTS, f"{where} already exists")
    if update != p4runtime_pb2.Update.INSERT and not present:
        raise ControlError(Code.NOT_FOUND, f"there is no {where}")


def _write_group(pipeline: Pipeline, update: int, message: Message) -> None:
    group = message.multicast_group_id
    where = f"multicast group {group}"
    if group == 0:
        raise invalid("multicast group 0 means no multicast: groups start at 1")
    _check_presence(update, group in pipeline.switch.multicast_groups.all(), where)
    if update == p4runtime_pb2.Update.DELETE:
        pipeline.switch.multicast_groups.delete(group)
        pipeline.group_notes.pop(group, None)
        return
    pipeline.switch.multicast_groups.set(group, _decode_replicas(message.replicas, where))
    pipeline.group_notes[group] = _notes(message, message.metadata)


def _write_session(pipeline: Pipeline, update: int, message: Message) -> None:
    session = message.session_id
    where = f"clone session {session}"
    if session == 0:
        raise invalid("clone session 0 stands for all sessions: sessions start at 1")
    _check_presence(update, session in pipeline.switch.clone_sessions.all(), where)
    if update == p4runtime_pb2.Update.DELETE:
        pipeline.switch.clone_sessions.delete(session)
        pipeline.session_notes.pop(session, None)
        return
    if message.class_of_service:
        raise ControlError(Code.UNIMPLEMENTED, f"{where}: class_of_service is not supported")
    if message.packet_length_bytes < 0:
        raise invalid(f"{where}: packet_length_bytes is negative")
    replicas = _decode_replicas(message.replicas, where)
    pipeline.switch.clone_sessions.set(session, replicas, message.packet_length_bytes)
    pipeline.session_notes[session] = _notes(message)


def read_replication(pipeline: Pipeline, wanted: Message) -> Iterator[Message]:
    """Yield the PacketReplicationEngineEntry messages that a read selects; id 0 selects all."""
    kind = wanted.WhichOneof("type")
    if kind in (None, "multicast_group_entry"):
        yield from _read_groups(pipeline, wanted.multicast_group_entry.multicast_group_id)
    if kind in (None, "clone_session_entry"):
        yield from _read_sessions(pipeline, wanted.clone_session_entry.session_id)


def _read_groups(pipeline: Pipeline, wanted: int) -> Iterator[Message]:
    for group, replicas in sorted(pipeline.switch.multicast_groups.all().items()):
        if wanted in (0, group):
            message = p4runtime_pb2.PacketReplicationEngineEntry()
            entry = message.multicast_group_entry
            entry.multicast_group_id = group
            notes = pipeline.group_notes.get(group, ReplicaNotes())
            entry.metadata = notes.metadata
            _encode_replicas(replicas, notes, entry)
            yield message


def _read_sessions(pipeline: Pipeline, wanted: int) -> Iterator[Message]:
    for number, session in sorted(pipeline.switch.clone_sessions.all().items()):
        if wanted in (0, number):
            message = p4runtime_pb2.PacketReplicationEngineEntry()
            entry = message.clone_session_entry
            entry.session_id = number
            entry.packet_length_bytes = session.packet_length
            _encode_replicas(session.replicas, pipeline.session_notes.get(number, ReplicaNotes()), entry)
            yield message
