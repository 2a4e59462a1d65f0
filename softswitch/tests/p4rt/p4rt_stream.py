# SPDX-License-Identifier: Apache-2.0
"""A bare P4Runtime connection, for what no well-behaved client library sends."""

import queue
from collections.abc import Iterable, Iterator
from typing import Any

import grpc

from softp4 import protobuf
from softp4.channels import open_channel
from softp4.p4runtime.codes import Code
from softp4.p4runtime.errors import details
from softp4.p4runtime.schema import METHODS
from softp4.p4runtime.schema import p4runtime_pb2 as p4rt
from tests.p4rt.p4rt_client import TIMEOUT


def arbitration(election: int | None, role: str = "", device: int = 1) -> Any:
    """Return a MasterArbitrationUpdate in its StreamMessageRequest."""
    request = p4rt.StreamMessageRequest()
    request.arbitration.device_id = device
    if role:
        request.arbitration.role.name = role
    if election is not None:
        request.arbitration.election_id.high = election >> 64
        request.arbitration.election_id.low = election & ((1 << 64) - 1)
        request.arbitration.election_id.SetInParent()
    return request


def write_errors(error: grpc.RpcError) -> list[tuple[str, str]]:
    """Return the code and the message of each part of a batch that failed."""
    return [(Code(each.canonical_code).name, each.message) for each in details(error)]


class Connection:
    """A channel with the P4Runtime stub on it."""

    def __init__(self, address: str, options: Iterable[tuple[str, int]] = ()) -> None:
        self.channel = open_channel(address, options=tuple(options))
        self.stub = protobuf.stub(self.channel, METHODS)
        self._streams: list[OpenStream] = []

    def stream(self, *first: Any, timeout: float | None = 2 * TIMEOUT) -> "OpenStream":
        """Return a StreamChannel on which these messages are sent first."""
        made = OpenStream(self.stub, timeout)
        self._streams.append(made)
        for message in first:
            made.send(message)
        return made

    def close(self) -> None:
        """Break all streams off."""
        for stream in self._streams:
            stream.cancel()
        self.channel.close()

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class OpenStream:
    """A StreamChannel; answers are received when asked for."""

    def __init__(self, stub: Any, timeout: float | None) -> None:
        self._outgoing: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.call = stub.StreamChannel(iter(self._outgoing.get, None), timeout=timeout)

    def send(self, message: Any) -> None:
        """Send a StreamMessageRequest."""
        self._outgoing.put(message)

    def receive(self) -> Any:
        """Return the next StreamMessageResponse; raises RpcError when the stream ended with one."""
        return next(self.call)

    def status(self) -> tuple[str, int | None]:
        """Return the next message, which must be of arbitration: its code's name, and the election id."""
        update = self.receive().arbitration
        election = update.election_id.low if update.HasField("election_id") else None
        return Code(update.status.code).name, election

    def ended(self) -> tuple[str, str]:
        """Return the code and the details with which the stream ends."""
        try:
            for _ in self.call:
                pass
        except grpc.RpcError as error:
            return error.code().name, error.details()
        return "OK", ""

    def close(self) -> None:
        """End it in order."""
        self._outgoing.put(None)

    def cancel(self) -> None:
        """Break it off."""
        self._outgoing.put(None)
        self.call.cancel()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.call)
