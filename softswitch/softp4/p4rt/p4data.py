# SPDX-License-Identifier: Apache-2.0
"""P4Data (specification 8.4.3): values of a type that P4Info describes, made of plain integers."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from softp4.p4rt.values import encode, encode_signed
from softp4.p4runtime.schema import p4data_pb2
from softp4.program.errors import UnsupportedConstruct

Message = Any
Encoder = Callable[[Iterator[int]], Message]
"""Takes as many integers as the type has fields, in order; makes a P4Data."""


def encoder(spec: Message, types: Message, where: str) -> tuple[Encoder, list[int]]:
    """Return how to encode values of a P4DataTypeSpec, and the widths of the fields that it consists of.

    Args:
        spec: the type.
        types: P4Info's P4TypeInfo, which it may refer to.
        where: for messages.

    Raises:
        UnsupportedConstruct: a type with headers, varbits or errors in it.
    """
    kind = spec.WhichOneof("type_spec")
    if kind == "bitstring":
        return _bitstring(spec.bitstring, where)
    if kind == "bool":
        return (lambda values: p4data_pb2.P4Data(bool=bool(next(values)))), [1]
    if kind == "tuple":
        return _aggregate("tuple", list(spec.tuple.members), types, where)
    if kind == "struct":
        members = _named(types.structs, spec.struct.name, where).members
        return _aggregate("struct", [member.type_spec for member in members], types, where)
    if kind == "new_type":
        new = _named(types.new_types, spec.new_type.name, where)
        if new.WhichOneof("representation") == "original_type":
            return encoder(new.original_type, types, where)
    if kind == "serializable_enum":
        bits = _named(types.serializable_enums, spec.serializable_enum.name, where).underlying_type.bitwidth
        return (lambda values: p4data_pb2.P4Data(enum_value=encode(next(values)))), [bits]
    raise UnsupportedConstruct(f"P4Info's type '{kind}' in this place", where)


def _named(types: Mapping[str, Any], name: str, where: str) -> Message:
    if name not in types:
        raise UnsupportedConstruct(f"P4Info's unknown type '{name}'", where)
    return types[name]


def _bitstring(spec: Message, where: str) -> tuple[Encoder, list[int]]:
    kind = spec.WhichOneof("type_spec")
    if kind == "bit":
        return (lambda values: p4data_pb2.P4Data(bitstring=encode(next(values)))), [spec.bit.bitwidth]
    if kind == "int":
        bits = spec.int.bitwidth
        return (lambda values: p4data_pb2.P4Data(bitstring=encode_signed(next(values), bits))), [bits]
    raise UnsupportedConstruct(f"P4Info's type '{kind}' in this place", where)


def _aggregate(kind: str, specs: list[Any], types: Message, where: str) -> tuple[Encoder, list[int]]:
    parts = [encoder(spec, types, where) for spec in specs]

    def encode_all(values: Iterator[int]) -> Message:
        message = p4data_pb2.P4Data()
        members = getattr(message, kind).members
        members.extend(part(values) for part, _ in parts)
        getattr(message, kind).SetInParent()
        return message

    return encode_all, [bits for _, widths in parts for bits in widths]
