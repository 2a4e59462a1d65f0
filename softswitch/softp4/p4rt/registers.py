# SPDX-License-Identifier: Apache-2.0
"""P4Runtime's RegisterEntry (specification 9.8), for registers of numbers and enums that are numbers."""

from collections.abc import Iterator

from softp4.p4rt.counters import cells
from softp4.p4rt.keys import Message, invalid
from softp4.p4rt.pipeline import Pipeline
from softp4.p4rt.values import decode, decode_signed, encode, encode_signed
from softp4.p4runtime.schema import p4runtime_pb2


def write_register(pipeline: Pipeline, update: int, message: Message) -> None:
    """Apply a MODIFY of a RegisterEntry; without an index, of all its cells. Raises ControlError."""
    if update != p4runtime_pb2.Update.MODIFY:
        raise invalid("registers are always there; only MODIFY changes them")
    register = pipeline.info.register(message.register_id)
    indexes = cells(register, message)
    kind = message.data.WhichOneof("data")
    if kind != register.data:
        raise invalid(f"register {register.name} takes {register.data}, not {kind or 'nothing'}")
    bits = pipeline.switch.program.registers[register.name].bits
    data = getattr(message.data, register.data)
    value = (decode_signed if register.signed else decode)(data, bits, register.name)
    for index in indexes:
        pipeline.switch.register(register.name).write(index, value)


def read_registers(pipeline: Pipeline, wanted: Message) -> Iterator[Message]:
    """Yield the RegisterEntry messages that a read selects. Raises ControlError."""
    info = pipeline.info
    ids = [wanted.register_id] if wanted.register_id else list(info.registers)
    for register in map(info.register, ids):
        bits = pipeline.switch.program.registers[register.name].bits
        for index in cells(register, wanted):
            pattern = pipeline.switch.register(register.name).read(index)
            message = p4runtime_pb2.RegisterEntry(register_id=register.id)
            message.index.index = index
            data = encode_signed(pattern, bits) if register.signed else encode(pattern)
            setattr(message.data, register.data, data)
            yield message
