# SPDX-License-Identifier: Apache-2.0
"""P4Runtime's MeterEntry and DirectMeterEntry (specification 9.4)."""

from collections.abc import Iterator
from typing import Final

from softp4.errors import Code, ControlError
from softp4.p4rt.counters import cells, encode_count
from softp4.p4rt.direct import Direct
from softp4.p4rt.keys import Message, decode_key, encode_key, invalid
from softp4.p4rt.p4info_objects import MeterInfo, TableInfo
from softp4.p4rt.pipeline import Pipeline
from softp4.p4runtime.schema import p4info_pb2, p4runtime_pb2
from softp4.state.entry import Marked, MeterConfig

_TYPES: Final = p4info_pb2.MeterSpec
_DIRECT: Final = Direct("meter", lambda info, table: table.id in info.direct_meters)


def decode_config(meter: MeterInfo, config: Message) -> MeterConfig:
    """Return a MeterConfig for a meter of this type. Raises ControlError, INVALID_ARGUMENT when it does not
    fit.
    """
    if config.eburst and meter.type != _TYPES.SINGLE_RATE_THREE_COLOR:
        raise invalid(f"meter {meter.name} has no excess burst: leave eburst unset")
    if meter.type != _TYPES.TWO_RATE_THREE_COLOR and (config.pir, config.pburst) != (
        config.cir,
        config.cburst,
    ):
        raise invalid(f"meter {meter.name} has a single rate: pir and pburst must be cir and cburst")
    if config.eburst:
        raise ControlError(Code.UNIMPLEMENTED, f"meter {meter.name}: excess bursts are not supported")
    return MeterConfig(config.cir, config.cburst, config.pir, config.pburst)


def encode_config(config: MeterConfig) -> Message:
    """Return a MeterConfig."""
    return p4runtime_pb2.MeterConfig(**vars(config))


def encode_marked(marked: Marked) -> Message:
    """Return a MeterCounterData."""
    return p4runtime_pb2.MeterCounterData(
        green=encode_count(marked.green), yellow=encode_count(marked.yellow), red=encode_count(marked.red)
    )


def check_zero(data: Message) -> None:
    """Raise ControlError INVALID_ARGUMENT unless a MeterCounterData is all zero: it can only be reset."""
    if any(part.packet_count or part.byte_count for part in (data.green, data.yellow, data.red)):
        raise invalid("counters of colours can only be set to zero")


# -- indirect ------------------------------------------------------------------------------------------


def write_meter(pipeline: Pipeline, update: int, message: Message) -> None:
    """Apply a MODIFY of a MeterEntry; without an index, of all the array's meters. Raises ControlError."""
    if update != p4runtime_pb2.Update.MODIFY:
        raise invalid("meters are always there; only MODIFY changes them")
    meter = pipeline.info.meter(message.meter_id)
    indexes = cells(meter, message)
    index = indexes[0] if message.HasField("index") else None
    config = decode_config(meter, message.config) if message.HasField("config") else None
    if message.HasField("counter_data"):
        check_zero(message.counter_data)
    pipeline.switch.meter(meter.name).configure(config, index)
    if message.HasField("counter_data"):
        pipeline.switch.meter(meter.name).clear_marked(index)


def read_meters(pipeline: Pipeline, wanted: Message) -> Iterator[Message]:
    """Yield the MeterEntry messages that a read selects. Raises ControlError."""
    info = pipeline.info
    for meter in [info.meter(wanted.meter_id)] if wanted.meter_id else list(info.meters.values()):
        array = pipeline.switch.meter(meter.name)
        for index in cells(meter, wanted):
            message = p4runtime_pb2.MeterEntry(meter_id=meter.id)
            message.index.index = index
            config = array.config(index)
            if config is not None:
                message.config.CopyFrom(encode_config(config))
            if wanted.HasField("counter_data"):
                message.counter_data.CopyFrom(encode_marked(array.marked(index)))
            yield message


# -- direct --------------------------------------------------------------------------------------------


def direct_meter(pipeline: Pipeline, table: TableInfo) -> MeterInfo:
    """Return a table's direct meter. Raises ControlError INVALID_ARGUMENT when it has none."""
    _DIRECT.check(pipeline.info, table)
    return pipeline.info.direct_meters[table.id]


def write_direct_meter(pipeline: Pipeline, update: int, message: Message) -> None:
    """Apply a MODIFY of a DirectMeterEntry. Raises ControlError."""
    entry = message.table_entry
    table = _DIRECT.modified_table(pipeline, update, entry)
    meter = pipeline.info.direct_meters[table.id]
    key = decode_key(table, entry)
    config = decode_config(meter, message.config) if message.HasField("config") else None
    if message.HasField("counter_data"):
        check_zero(message.counter_data)
    pipeline.switch.table(table.name).set_meter(key, config, entry.priority)
    if message.HasField("counter_data"):
        pipeline.switch.table(table.name).clear_marked(key, entry.priority)


def read_direct_meters(pipeline: Pipeline, wanted: Message) -> Iterator[Message]:
    """Yield the DirectMeterEntry messages that a read selects. Raises ControlError."""
    for table, entry in _DIRECT.entries(pipeline, wanted.table_entry):
        message = p4runtime_pb2.DirectMeterEntry(table_entry=encode_key(table, entry.key, entry.priority))
        if entry.meter is not None:
            message.config.CopyFrom(encode_config(entry.meter))
        if wanted.HasField("counter_data"):
            marked = pipeline.switch.table(table.name).marked(entry.key, entry.priority)
            message.counter_data.CopyFrom(encode_marked(marked))
        yield message
