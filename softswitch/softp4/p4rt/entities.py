# SPDX-License-Identifier: Apache-2.0
"""Reads and writes of one entity, by kind. A kind that is not here is refused by its name."""

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Final

from softp4.errors import Code, ControlError
from softp4.p4rt import (
    action_profiles,
    counters,
    digests,
    meters,
    registers,
    replication,
    tables,
    value_sets,
)
from softp4.p4rt.encoding import head, tag
from softp4.p4rt.keys import Message, invalid
from softp4.p4rt.pipeline import Pipeline
from softp4.p4rt.unknown import has_unknown
from softp4.p4runtime.schema import API_VERSION, p4runtime_pb2

Writer = Callable[[Pipeline, int, Message], None]
"""Applies one Update.Type to one entity. Raises ControlError; then nothing has changed."""
Reader = Callable[[Pipeline, Message], Iterator[Message]]
"""The entities that a request selects, in the request's kind. Raises ControlError."""

_TYPES: Final = (p4runtime_pb2.Update.INSERT, p4runtime_pb2.Update.MODIFY, p4runtime_pb2.Update.DELETE)
_WRITERS: Final[Mapping[str, Writer]] = {
    "table_entry": tables.write_table_entry,
    "direct_counter_entry": counters.write_direct_counter,
    "counter_entry": counters.write_counter,
    "direct_meter_entry": meters.write_direct_meter,
    "meter_entry": meters.write_meter,
    "register_entry": registers.write_register,
    "digest_entry": digests.write_digest,
    "packet_replication_engine_entry": replication.write_replication,
    "action_profile_member": action_profiles.write_member,
    "action_profile_group": action_profiles.write_group,
    "value_set_entry": value_sets.write_value_set,
}
_READERS: Final[Mapping[str, Reader]] = {
    "table_entry": tables.read_table_entries,
    "direct_counter_entry": counters.read_direct_counters,
    "counter_entry": counters.read_counters,
    "direct_meter_entry": meters.read_direct_meters,
    "meter_entry": meters.read_meters,
    "register_entry": registers.read_registers,
    "digest_entry": digests.read_digests,
    "packet_replication_engine_entry": replication.read_replication,
    "action_profile_member": action_profiles.read_members,
    "action_profile_group": action_profiles.read_groups,
    "value_set_entry": value_sets.read_value_sets,
}
_ENTITIES: Final = tag(p4runtime_pb2.ReadResponse.DESCRIPTOR.fields_by_name["entities"].number)
_KINDS: Final = {each.name: tag(each.number) for each in p4runtime_pb2.Entity.DESCRIPTOR.fields}


def _kind(entity: Message) -> str:
    kind: str | None = entity.WhichOneof("entity")
    if kind is None:
        raise invalid("the entity is empty")
    if kind not in _WRITERS:
        raise ControlError(Code.UNIMPLEMENTED, f"{kind} is not supported by this switch")
    return kind


def write(pipeline: Pipeline, update: int, entity: Message) -> None:
    """Apply one Update.Type to one entity. Raises ControlError; then nothing has changed."""
    if update not in _TYPES:
        raise invalid(f"the update's type is {update or 'not set'}")
    kind = entity.WhichOneof("entity")
    writer = _WRITERS.get(kind) or _WRITERS[_kind(entity)]
    writer(pipeline, update, getattr(entity, kind))


def write_known(pipeline: Pipeline, update: int, entity: Message) -> None:
    """Do the same, unless the entity has a field that P4Runtime did not have yet: then raise ControlError."""
    if has_unknown(entity):
        raise ControlError(
            Code.UNIMPLEMENTED,
            f"the {entity.WhichOneof('entity')} has a field that is newer than P4Runtime {API_VERSION}",
        )
    write(pipeline, update, entity)


def read(pipeline: Pipeline, entity: Message) -> Iterator[Message]:
    """Yield the Entity messages that a request entity selects. Raises ControlError.

    Of a kind that this switch does not have, "all there are" is nothing.
    """
    for kind, found in _select(pipeline, entity):
        yield p4runtime_pb2.Entity(**{kind: found})


def read_responses(pipeline: Pipeline, entity: Message) -> Iterator[bytes]:
    """Yield the same, each as a ReadResponse on the wire; one behind the other they are one ReadResponse.

    Because putting thousands of messages into others copies each of them.
    """
    if entity.WhichOneof("entity") == "table_entry":
        kind, found = _KINDS["table_entry"], tables.read_serialized(pipeline, entity.table_entry)
        for each in found:
            yield _head(kind, len(each)) + each
        return
    for name, message in _select(pipeline, entity):
        serialized = message.SerializeToString()
        yield _head(_KINDS[name], len(serialized)) + serialized


@lru_cache(4096)
def _head(kind: bytes, length: int) -> bytes:
    """Return what stands before a message of a kind in a ReadResponse."""
    within = head(kind, length)
    return head(_ENTITIES, len(within) + length) + within


def _select(pipeline: Pipeline, entity: Message) -> Iterator[tuple[str, Message]]:
    wanted = entity.WhichOneof("entity")
    if wanted is not None and wanted not in _READERS and not getattr(entity, wanted).ByteSize():
        return
    kind = _kind(entity)
    for found in _READERS[kind](pipeline, getattr(entity, kind)):
        yield kind, found
