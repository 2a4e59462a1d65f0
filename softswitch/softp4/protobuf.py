# SPDX-License-Identifier: Apache-2.0
"""Protobuf messages and gRPC services from serialized descriptors, in a descriptor pool of their own.

Generated ``_pb2.py`` modules load only under the protobuf versions that their protoc knew of, and two copies
of one definition cannot share a process. Descriptors in a pool of their own load under protobuf 3.20 to 7,
beside anything else that the process has loaded.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper


@dataclass(frozen=True)
class Method:
    """A method of a gRPC service: its name and path, its messages' classes, and which sides stream."""

    name: str
    path: str
    request: Any
    reply: Any
    client_streams: bool
    server_streams: bool

    @property
    def kind(self) -> str:
        """Return gRPC's word for the method: ``unary_stream`` answers one request with a stream."""
        return "_".join(
            "stream" if streams else "unary" for streams in (self.client_streams, self.server_streams)
        )


class Schema:
    """The messages, enums and services of a serialized FileDescriptorSet.

    Args:
        descriptors: files in the order of their dependencies, as ``protoc --include_imports`` writes them.
    """

    def __init__(self, descriptors: bytes) -> None:
        self._pool = descriptor_pool.DescriptorPool()
        self._files = descriptor_pb2.FileDescriptorSet.FromString(descriptors).file
        for file in self._files:
            self._pool.AddSerializedFile(file.SerializeToString())

    def module(self, path: str) -> Any:
        """Return what protoc's ``_pb2`` module of a .proto file has: messages, enums and their values."""
        file = self._pool.FindFileByName(path)
        found: dict[str, Any] = {"DESCRIPTOR": file}
        for enum in file.enum_types_by_name.values():
            found[enum.name] = EnumTypeWrapper(enum)
            found.update(EnumTypeWrapper(enum).items())
        for name, message in file.message_types_by_name.items():
            found[name] = _message_class(message)
        return SimpleNamespace(**found)

    def service(self, name: str) -> tuple[Method, ...]:
        """Return the methods of a service, given by its full name."""
        [methods] = [
            service.method
            for file in self._files
            for service in file.service
            if f"{file.package}.{service.name}" == name
        ]
        return tuple(
            Method(
                method.name,
                f"/{name}/{method.name}",
                self._class_named(method.input_type),
                self._class_named(method.output_type),
                method.client_streaming,
                method.server_streaming,
            )
            for method in methods
        )

    def _class_named(self, name: str) -> Any:
        return _message_class(self._pool.FindMessageTypeByName(name.removeprefix(".")))


def _message_class(descriptor: Any) -> Any:
    """Return a message's class, with the messages and enums defined in it as attributes."""
    factory: Any = message_factory
    if hasattr(factory, "GetMessageClass"):
        made = factory.GetMessageClass(descriptor)
    else:  # before protobuf 4.22
        made = factory.MessageFactory(descriptor.file.pool).GetPrototype(descriptor)
    for nested in descriptor.nested_types:
        if not hasattr(made, nested.name):
            setattr(made, nested.name, _message_class(nested))
    for enum in descriptor.enum_types:
        if not hasattr(made, enum.name):
            setattr(made, enum.name, EnumTypeWrapper(enum))
    return made


def stub(channel: grpc.Channel, methods: tuple[Method, ...]) -> Any:
    """Return an object with one callable for each method, as gRPC's generated stubs have."""
    return SimpleNamespace(
        **{
            method.name: getattr(channel, method.kind)(
                method.path,
                request_serializer=method.request.SerializeToString,
                response_deserializer=method.reply.FromString,
            )
            for method in methods
        }
    )


def handler(
    servicer: object,
    methods: tuple[Method, ...],
    *,
    parse: Callable[[Any, bytes], Any] = lambda message, data: message.FromString(data),
    serialize: Callable[[Any], bytes] = lambda message: message.SerializeToString(),
    raw: Collection[str] = (),
) -> grpc.GenericRpcHandler:
    """Return what makes a gRPC server call ``servicer``, which has a method for each of the service's.

    Args:
        parse: turns bytes into a message of the class it is given first.
        serialize: turns what the servicer's methods return or yield into bytes.
        raw: names of methods that are given requests as bytes.
    """
    handlers = {}
    for method in methods:

        def deserialize(data: bytes, message: Any = method.request) -> Any:
            return parse(message, data)

        make = getattr(grpc, f"{method.kind}_rpc_method_handler")
        handlers[method.name] = make(
            getattr(servicer, method.name),
            request_deserializer=None if method.name in raw else deserialize,
            response_serializer=serialize,
        )
    service = methods[0].path.split("/")[1]
    return grpc.method_handlers_generic_handler(service, handlers)
