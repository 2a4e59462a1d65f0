# SPDX-License-Identifier: Apache-2.0
"""Queue rates and depths of BMv2, for which P4Runtime has no words, set over BMv2's own Thrift service.

A Thrift library and BMv2's generated client are not on PyPI, and two calls do not need them. Spoken here is
Thrift's strict binary protocol, unframed, with the multiplexing prefix that BMv2's server expects.
"""

import socket
import struct
from collections.abc import Iterable

from weir.controller.qos import QueueSpec

TIMEOUT_S = 5.0
_SERVICE = "simple_switch"
_VERSION = 0x80010000
_CALL, _REPLY = 1, 2
_LONGEST_NAME = 1000  # bytes
_STOP, _I32, _I64 = 0, 8, 10


class QueueDriverError(Exception):
    """The switch's management service cannot be reached, or refuses. The message says which and what."""


def set_queues(address: str, queues: Iterable[QueueSpec]) -> None:
    """Set rate and depth of all queues of these ports of the BMv2 whose Thrift service is at ``address``.

    Raises:
        QueueDriverError: not all of it could be set.
    """
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as connection:
            for queue in queues:
                if queue.depth is not None:
                    arguments = _i32(1, queue.port) + _i32(2, queue.depth)
                    _call(connection, "set_egress_queue_depth", arguments)
                if queue.rate_pps is not None:
                    arguments = _i32(1, queue.port) + _i64(2, queue.rate_pps)
                    _call(connection, "set_egress_queue_rate", arguments)
    except (OSError, ValueError, struct.error) as error:
        raise QueueDriverError(f"Thrift service at {address}: {error}") from None


def _call(connection: socket.socket, method: str, arguments: bytes) -> None:
    name = f"{_SERVICE}:{method}".encode()
    header = struct.pack(">II", _VERSION | _CALL, len(name)) + name + struct.pack(">I", 1)
    connection.sendall(header + arguments + bytes([_STOP]))
    kind, length = struct.unpack(">II", _exactly(connection, 8))
    if length > _LONGEST_NAME:
        raise QueueDriverError(f"{method} got an answer that is not Thrift: is this a simple_switch?")
    _exactly(connection, length + 4)  # the name again, and the number of the call
    if kind != _VERSION | _REPLY:
        raise QueueDriverError(f"{method} is refused: is it a simple_switch?")
    field, number = struct.unpack(">BH", _exactly(connection, 3))
    if (field, number) != (_I32, 0):
        raise QueueDriverError(f"{method} got an answer that is not a number")
    (status,) = struct.unpack(">i", _exactly(connection, 4))
    _exactly(connection, 1)  # the end of the answer
    if status:
        raise QueueDriverError(f"{method} failed with {status}: does this port exist?")


def _i32(number: int, value: int) -> bytes:
    return struct.pack(">BHi", _I32, number, value)


def _i64(number: int, value: int) -> bytes:
    return struct.pack(">BHq", _I64, number, value)


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise OSError("the connection was closed")
        data += more
    return data
