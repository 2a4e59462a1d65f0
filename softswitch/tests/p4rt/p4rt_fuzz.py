# SPDX-License-Identifier: Apache-2.0
"""P4Runtime requests that are almost right: good ones of a program, changed in structure or in bytes."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import strategies as st

from softp4.p4runtime.schema import p4info_pb2
from softp4.p4runtime.schema import p4runtime_pb2 as p4rt

ELECTION: Final = p4rt.Uint128(high=(1 << 64) - 1, low=(1 << 64) - 1)
"""Of the controller that requests come from: no stream that is fuzzed can have a higher one."""
_FIELD: Final = p4info_pb2.MatchField
_NUMBERS: Final = (0, 1, 2, 3, 7, 8, 15, 16, 255, 256, 511, 512, 65535, 65536, (1 << 31) - 1)
_BYTES: Final = (
    b"",
    b"\0",
    b"\1",
    b"\xff",
    b"\1\xff",
    b"\2\0",
    b"\0\0\0\1",
    b"\xff" * 6,
    b"\xff" * 16,
    b"\5" * 300,
)
_STRINGS: Final = ("", "routing", "x" * 300, "ż", "p4.org/v1", "\n")


class Generator:
    """What a fuzzer needs to know of one program."""

    def __init__(self, info: Any) -> None:
        self.info = info
        self.entities = list(self._entities())
        self.questions = list(self._questions())
        objects = [
            *info.tables,
            *info.actions,
            *info.action_profiles,
            *info.counters,
            *info.direct_counters,
            *info.meters,
            *info.direct_meters,
            *info.value_sets,
            *info.registers,
            *info.digests,
        ]
        self.ids = [0, 1, *(each.preamble.id for each in objects), (1 << 32) - 1]

    # -- good requests -------------------------------------------------------------------------------

    def _entities(self) -> Iterator[Any]:
        actions = {action.preamble.id: action for action in self.info.actions}
        tables = {table.preamble.id: table for table in self.info.tables}
        for profile in self.info.action_profiles:
            names = {"action_profile_id": profile.preamble.id}
            member = p4rt.Entity(action_profile_member={**names, "member_id": 1})
            ref = tables[profile.table_ids[0]].action_refs[0]
            _action(actions[ref.id], member.action_profile_member.action)
            yield member
            members = [{"member_id": 1, "weight": 1}]
            yield p4rt.Entity(action_profile_group={**names, "group_id": 1, "members": members})
        for table in self.info.tables:
            for number, ref in enumerate(table.action_refs):
                for way in _ways(table):
                    entity = p4rt.Entity()
                    entry = entity.table_entry
                    entry.table_id = table.preamble.id
                    if way == "default":
                        entry.is_default_action = True
                    else:
                        _match(table.match_fields, number, entry)
                    if way in ("action", "default"):
                        _action(actions[ref.id], entry.action.action)
                    elif way == "one-shot":
                        weighted = entry.action.action_profile_action_set.action_profile_actions.add(weight=2)
                        _action(actions[ref.id], weighted.action)
                    else:
                        setattr(entry.action, way, 1)
                    yield entity
            key = p4rt.TableEntry(table_id=table.preamble.id)
            _match(table.match_fields, 0, key)
            yield p4rt.Entity(
                direct_counter_entry=p4rt.DirectCounterEntry(table_entry=key, data={"packet_count": 5})
            )
            yield p4rt.Entity(direct_meter_entry=p4rt.DirectMeterEntry(table_entry=key))
        for counter in self.info.counters:
            yield p4rt.Entity(
                counter_entry={"counter_id": counter.preamble.id, "index": {"index": 1}, "data": {}}
            )
        for register in self.info.registers:
            cell = {"register_id": register.preamble.id, "index": {"index": 1}, "data": {"bitstring": b"\5"}}
            yield p4rt.Entity(register_entry=cell)
        rates = {"cir": 100, "cburst": 10, "pir": 200, "pburst": 20}
        for meter in self.info.meters:
            cell = {"meter_id": meter.preamble.id, "index": {"index": 1}, "config": rates}
            yield p4rt.Entity(meter_entry=cell)
        for digest in self.info.digests:
            config = {"max_timeout_ns": 1000, "max_list_size": 4, "ack_timeout_ns": 1000}
            yield p4rt.Entity(digest_entry={"digest_id": digest.preamble.id, "config": config})
        for value_set in self.info.value_sets:
            entity = p4rt.Entity(value_set_entry={"value_set_id": value_set.preamble.id})
            for number in range(2):
                _match(value_set.match, number, entity.value_set_entry.members.add())
            yield entity
        replicas = [{"egress_port": 1, "instance": 1}, {"port": b"\2", "instance": 1}]
        for kind in (
            {"multicast_group_entry": {"multicast_group_id": 3}},
            {"clone_session_entry": {"session_id": 3}},
        ):
            entity = p4rt.Entity(packet_replication_engine_entry=kind)
            chosen = getattr(entity.packet_replication_engine_entry, next(iter(kind)))
            chosen.replicas.extend(p4rt.Replica(**replica) for replica in replicas)
            yield entity

    def _questions(self) -> Iterator[Any]:
        yield from self.entities
        for field in p4rt.Entity.DESCRIPTOR.fields:
            everything = p4rt.Entity()
            getattr(everything, field.name).SetInParent()
            yield everything

    # -- strategies ------------------------------------------------------------------------------------

    def writes(self) -> st.SearchStrategy[Any]:
        """WriteRequests of the primary, changed here and there."""

        @st.composite
        def build(draw: st.DrawFn) -> Any:
            request = p4rt.WriteRequest(device_id=1, election_id=ELECTION)
            request.atomicity = draw(st.sampled_from([0, 0, 1, 2]))
            for _ in range(draw(st.integers(1, 6))):
                update = request.updates.add(type=draw(st.sampled_from([1, 1, 2, 3])))
                update.entity.CopyFrom(draw(st.sampled_from(self.entities)))
            return self._changed(draw, request)

        return build()

    def reads(self) -> st.SearchStrategy[Any]:
        """ReadRequests, changed here and there."""

        @st.composite
        def build(draw: st.DrawFn) -> Any:
            request = p4rt.ReadRequest(device_id=1)
            for _ in range(draw(st.integers(1, 4))):
                request.entities.add().CopyFrom(draw(st.sampled_from(self.questions)))
            return self._changed(draw, request)

        return build()

    def configs(self, program: bytes) -> st.SearchStrategy[Any]:
        """SetForwardingPipelineConfigRequests, changed in P4Info's structure and in the program's bytes."""

        @st.composite
        def build(draw: st.DrawFn) -> Any:
            request = p4rt.SetForwardingPipelineConfigRequest(device_id=1, election_id=ELECTION)
            request.action = draw(st.sampled_from([1, 2, 3, 4, 5]))
            if request.action != request.COMMIT:
                request.config.p4info.CopyFrom(self.info)
                text = bytearray(program)
                if draw(st.integers(0, 3)) == 0:
                    place = draw(st.integers(0, len(text) - 1))
                    text[place] = draw(st.sampled_from(b'"{}[],0129a\0\xff'))
                request.config.p4_device_config = bytes(text)
            return self._changed(draw, request)

        return build()

    def gets(self) -> st.SearchStrategy[Any]:
        """GetForwardingPipelineConfigRequests."""
        return st.composite(
            lambda draw: self._changed(
                draw,
                p4rt.GetForwardingPipelineConfigRequest(device_id=1, response_type=draw(st.integers(0, 3))),
            )
        )()

    def stream(self) -> st.SearchStrategy[list[Any]]:
        """Messages of one StreamChannel."""

        @st.composite
        def one(draw: st.DrawFn) -> Any:
            request = p4rt.StreamMessageRequest()
            kind = draw(st.sampled_from(["arbitration", "packet", "packet", "digest_ack", "other"]))
            getattr(request, kind).SetInParent()
            if kind == "arbitration":
                request.arbitration.device_id = 1
                request.arbitration.election_id.low = draw(st.integers(0, 9))
            elif kind == "packet":
                request.packet.payload = bytes(draw(st.sampled_from([0, 1, 60, 4216, 4217, 5000])))
                for header in self.info.controller_packet_metadata:
                    if header.preamble.name == "packet_out":
                        for field in header.metadata:
                            request.packet.metadata.add(metadata_id=field.id, value=b"\1")
            elif kind == "digest_ack":
                request.digest_ack.digest_id = draw(st.sampled_from(self.ids))
            return self._changed(draw, request)

        return st.lists(one(), min_size=1, max_size=5)

    def _changed(self, draw: st.DrawFn, request: Any) -> Any:
        for _ in range(draw(st.sampled_from([0, 0, 1, 1, 2, 3]))):
            self._change(draw, draw(st.sampled_from(list(_messages(request)))))
        return request

    def _change(self, draw: st.DrawFn, message: Any) -> None:
        """Change one field of a message."""
        fields = message.DESCRIPTOR.fields
        if not fields:
            return
        present = [field for field, _ in message.ListFields()]
        field = draw(st.sampled_from(present if present and draw(st.booleans()) else list(fields)))
        if draw(st.integers(0, 3)) == 0:
            message.ClearField(field.name)
        elif _repeated(message, field):
            self._change_list(draw, field, message)
        elif field.message_type is not None:
            getattr(message, field.name).SetInParent()
        else:
            setattr(message, field.name, draw(self._scalars(field)))

    def _change_list(self, draw: st.DrawFn, field: Any, message: Any) -> None:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            return
        members = getattr(message, field.name)
        if len(members) and draw(st.booleans()):
            del members[draw(st.integers(0, len(members) - 1))]
        elif field.message_type is None:
            members.append(draw(self._scalars(field)))
        elif len(members):
            members.add().CopyFrom(members[draw(st.integers(0, len(members) - 1))])
        else:
            members.add()

    def _scalars(self, field: Any) -> st.SearchStrategy[Any]:
        kind = field.cpp_type
        if kind == FieldDescriptor.CPPTYPE_BOOL:
            return st.booleans()
        if kind == FieldDescriptor.CPPTYPE_STRING:
            if field.type == FieldDescriptor.TYPE_BYTES:
                return st.sampled_from(_BYTES) | st.binary(max_size=9)
            return st.sampled_from(_STRINGS)
        if kind == FieldDescriptor.CPPTYPE_ENUM:
            return st.sampled_from([*(v.number for v in field.enum_type.values), 99])
        if kind in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
            return st.floats(width=32)
        bits = 64 if "64" in _TYPE_NAMES[kind] else 32
        largest = (1 << bits) - 1 if "U" in _TYPE_NAMES[kind] else (1 << (bits - 1)) - 1
        numbers = [*_NUMBERS, largest, *([] if "U" in _TYPE_NAMES[kind] else [-1, -largest - 1])]
        if field.name.endswith("_id"):
            numbers += [number for number in self.ids if number <= largest]
        return st.sampled_from(numbers)


_TYPE_NAMES: Final = {
    getattr(FieldDescriptor, name): name for name in dir(FieldDescriptor) if name.startswith("CPPTYPE_")
}


def spoilt(data: bytes) -> st.SearchStrategy[bytes]:
    """Return bytes that were a message: some changed, cut out or put in."""

    @st.composite
    def build(draw: st.DrawFn) -> bytes:
        changed = bytearray(data)
        for _ in range(draw(st.integers(1, 4))):
            place = draw(st.integers(0, len(changed)))
            match draw(st.integers(0, 3)):
                case 0:
                    changed[place : place + 1] = draw(st.binary(max_size=2))
                case 1:
                    del changed[place:]
                case 2:
                    changed[place:place] = draw(st.binary(max_size=8))
                case _:
                    del changed[place : place + draw(st.integers(1, 8))]
        return bytes(changed)

    return build()


def _repeated(message: Any, field: Any) -> bool:
    return not isinstance(getattr(message, field.name), Message | bool | int | float | str | bytes)


def _messages(message: Any) -> Iterator[Any]:
    """Yield a message and all in it."""
    yield message
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for each in (value,) if isinstance(value, Message) else value:
            yield from _messages(each)


def _ways(table: Any) -> tuple[str, ...]:
    """Return how entries of a table name what they do."""
    if table.implementation_id:
        return "action_profile_member_id", "action_profile_group_id", "one-shot"
    return "action", "default"


def _action(action: Any, message: Any) -> None:
    message.action_id = action.preamble.id
    for param in action.params:
        message.params.add(param_id=param.id, value=b"\1")


def _match(fields: Sequence[Any], number: int, entry: Any) -> None:
    """A key, or a member of a value set, that differs with ``number``; every field is matched."""
    for field in fields:
        match = entry.match.add(field_id=field.id)
        if field.match_type == _FIELD.LPM:
            match.lpm.value, match.lpm.prefix_len = bytes(-(-field.bitwidth // 8) or 1), number + 1
        elif field.match_type == _FIELD.TERNARY:
            match.ternary.value, match.ternary.mask = bytes([number & 1]), b"\1"
        elif field.match_type == _FIELD.RANGE:
            match.range.low, match.range.high = bytes([number & 1]), b"\1"
        elif field.match_type == _FIELD.OPTIONAL:
            match.optional.value = bytes([number & 1])
        else:
            match.exact.value = bytes([number & 1 if field.bitwidth == 1 else number])
        if field.match_type not in (_FIELD.EXACT, _FIELD.LPM) and isinstance(entry, p4rt.TableEntry):
            entry.priority = number + 1
