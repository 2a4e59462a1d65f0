# SPDX-License-Identifier: Apache-2.0
"""P4Runtime's CounterEntry and DirectCounterEntry (specification 9.3)."""

from collections.abc import Iterator
from typing import Final

from softp4.errors import Code, ControlError
from softp4.p4rt.direct import Direct
from softp4.p4rt.keys import Message, decode_key, encode_key, invalid
from softp4.p4rt.p4info_objects import ArrayInfo
from softp4.p4rt.pipeline import Pipeline
from softp4.p4runtime.schema import p4runtime_pb2
from softp4.state.entry import Count

DIRECT_COUNTERS: Final = Direct("counter", lambda _, table: table.counted)


def decode_count(data: Message) -> Count:
    """Return a CounterData. Raises ControlError INVALID_ARGUMENT for a negative one."""
    if data.packet_count < 0 or data.byte_count < 0:
        raise invalid("a counter cannot be negative")
    return Count(data.packet_count, data.byte_count)


def encode_count(count: Count) -> Message:
    """Return a CounterData, cut to its 63 bits."""
    largest = (1 << 63) - 1
    return p4runtime_pb2.CounterData(packet_count=count.packets & largest, byte_count=count.bytes & largest)


def write_direct_counter(pipeline: Pipeline, update: int, message: Message) -> None:
    """Apply a MODIFY of a DirectCounterEntry. Raises ControlError."""
    entry = message.table_entry
    table = DIRECT_COUNTERS.modified_table(pipeline, update, entry)
    key = decode_key(table, entry)
    pipeline.switch.table(table.name).count(key, entry.priority)  # NOT_FOUND also when there is no data
    if message.HasField("data"):
        count = decode_count(message.data)
        pipeline.switch.table(table.name).set_count(key, count, entry.priority)


def read_direct_counters(pipeline: Pipeline, wanted: Message) -> Iterator[Message]:
    """Yield the DirectCounterEntry messages that a read selects. Raises ControlError."""
    for table, entry in DIRECT_COUNTERS.entries(pipeline, wanted.table_entry):
        count = pipeline.switch.table(table.name).count(entry.key, entry.priority)
        yield p4runtime_pb2.DirectCounterEntry(
            table_entry=encode_key(table, entry.key, entry.priority), data=encode_count(count)
        )


def cells(array: ArrayInfo, message: Message) -> list[int]:
    """Return the cells that an entity means: the one at its index, or all when it has none. Raises
    ControlError.
    """
    if not message.HasField("index"):
        return list(range(array.size))
    index = message.index.index
    if index < 0:
        raise invalid(f"{array.name}: index {index} is negative")
    if index >= array.size:
        raise ControlError(Code.OUT_OF_RANGE, f"{array.name} has cells 0..{array.size - 1}, not {index}")
    return [index]


def write_counter(pipeline: Pipeline, update: int, message: Message) -> None:
    """Apply a MODIFY of a CounterEntry. Raises ControlError."""
    if update != p4runtime_pb2.Update.MODIFY:
        raise invalid("counters are always there; only MODIFY changes them")
    counter = pipeline.info.counter(message.counter_id)
    indexes = cells(counter, message)
    if message.HasField("data"):
        count = decode_count(message.data)
        for index in indexes:
            pipeline.switch.counter(counter.name).write(index, count)


def read_counters(pipeline: Pipeline, wanted: Message) -> Iterator[Message]:
    """Yield the CounterEntry messages that a read selects. Raises ControlError."""
    info = pipeline.info
    for counter in [info.counter(wanted.counter_id)] if wanted.counter_id else list(info.counters.values()):
        for index in cells(counter, wanted):
            message = p4runtime_pb2.CounterEntry(counter_id=counter.id)
            message.index.index = index
            message.data.CopyFrom(encode_count(pipeline.switch.counter(counter.name).read(index)))
            yield message
