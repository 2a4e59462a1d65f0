# SPDX-License-Identifier: Apache-2.0
"""A P4Runtime client: one controller's session with one device.

A session is a stream that stays open, on which the controllers of a device agree who of them may write: the
one with the largest election id is primary (specification 1.5, section 5).
"""

import contextlib
import queue
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import grpc

from softp4 import protobuf
from softp4.channels import open_channel
from softp4.p4runtime.codes import Code
from softp4.p4runtime.schema import METHODS, p4runtime_pb2

HANDSHAKE_TIMEOUT_S: Final = 5.0
RPC_TIMEOUT_S: Final = 10.0
_CLOSE_TIMEOUT_S: Final = 1.0
PUSH_TIMEOUT_S: Final = 120.0  # a soft switch compiles the program it is given

_BACKLOG: Final = 4096  # messages of a kind that nobody has received yet; what comes then is lost
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", 256 << 20),  # BMv2 answers a read in one message
    ("grpc.max_metadata_size", 1 << 20),  # a refused batch's details
)
_Push: Final = p4runtime_pb2.SetForwardingPipelineConfigRequest
_Pull: Final = p4runtime_pb2.GetForwardingPipelineConfigRequest


class SessionError(Exception):
    """There is no session. The message says why."""


class Session:
    """A session with one device. Every call is limited in time; calls may be made from several threads.

    Args:
        address: where the device serves P4Runtime.
        device_id: the device's id.
        election_id: of several controllers, the one with the largest may write.
        role: the role to take; none is the one that may do everything.
        credentials: for TLS; None for none.
        follow: when the device has no primary any more, ask to be the next, with a larger election id.
        changed: called, from another thread, at each news of who is primary, and when the stream ends.
        timeout: in seconds, how long to wait for the device's first answer.

    Attributes:
        stub: P4Runtime's calls, without a time limit.
        stream: the stream's gRPC call.
        primary: whether this controller may write.
        highest: the largest election id of the controllers that the device knew of at its last news.

    Raises:
        SessionError: the device cannot be reached or does not speak P4Runtime.
    """

    def __init__(
        self,
        address: str,
        *,
        device_id: int = 1,
        election_id: int = 1,
        role: str = "",
        credentials: grpc.ChannelCredentials | None = None,
        follow: bool = False,
        changed: Callable[[], None] = lambda: None,
        timeout: float = HANDSHAKE_TIMEOUT_S,
    ) -> None:
        self.address = address
        self.device_id = device_id
        self.election_id = election_id
        self.role = role
        self.primary = False
        self.highest = 0
        self._ended = False
        self._follow = follow
        self._changed = changed
        self._outgoing: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._received: defaultdict[str, queue.Queue[Any]] = defaultdict(lambda: queue.Queue(_BACKLOG))
        self._answered = threading.Event()
        self._channel = open_channel(address, credentials, _OPTIONS)
        self.stub = protobuf.stub(self._channel, METHODS)
        self.claim(election_id)
        self.stream = self.stub.StreamChannel(iter(self._outgoing.get, None))
        self._reader = threading.Thread(target=self._read_stream, name=f"p4runtime-{address}", daemon=True)
        self._reader.start()
        self._answered.wait(timeout)
        if "arbitration" not in self._received:
            why = self._failure() or f"no answer in {timeout:g} s; is it a P4Runtime server?"
            self.close()
            raise SessionError(why)

    @property
    def alive(self) -> bool:
        """Return whether the stream is open."""
        return not self._ended

    def claim(self, election_id: int) -> None:
        """Take part in the election with another id."""
        self.election_id = election_id
        request = p4runtime_pb2.StreamMessageRequest()
        request.arbitration.device_id = self.device_id
        request.arbitration.election_id.CopyFrom(_uint128(election_id))
        if self.role:
            request.arbitration.role.name = self.role
        self.send(request)

    def send(self, request: Any) -> None:
        """Send a StreamMessageRequest."""
        self._outgoing.put(request)

    def receive(self, kind: str, timeout: float) -> Any | None:
        """Return the stream's next message of a kind, a field of StreamMessageResponse, or None."""
        try:
            return self._received[kind].get(timeout=timeout)
        except queue.Empty:
            return None

    def call(self, name: str, request: Any, timeout: float = RPC_TIMEOUT_S) -> Any:
        """Make a call of P4Runtime that is answered by one message. Raises grpc.RpcError."""
        return getattr(self.stub, name)(request, timeout=timeout)

    def claimed(self, request: Any) -> Any:
        """Return a request that changes something, with what says that this controller may."""
        request.device_id = self.device_id
        request.election_id.CopyFrom(_uint128(self.election_id))
        if self.role:
            request.role = self.role
        return request

    def write(self, updates: Iterable[Any]) -> None:
        """Write a batch of Update messages. Raises grpc.RpcError, with details on each (see ``errors``)."""
        self.call("Write", self.claimed(p4runtime_pb2.WriteRequest(updates=updates)))

    def read(self, *selections: Any, timeout: float = RPC_TIMEOUT_S) -> Iterator[Any]:
        """Yield the entities that these select. Raises grpc.RpcError."""
        request = p4runtime_pb2.ReadRequest(
            device_id=self.device_id, entities=selections, role=self.role or None
        )
        for reply in self.stub.Read(request, timeout=timeout):
            yield from reply.entities

    def push(self, p4info: Any, device_config: bytes, cookie: int = 0) -> None:
        """Make the device run a program, from the start. Raises grpc.RpcError."""
        request = self.claimed(_Push(action=_Push.VERIFY_AND_COMMIT))
        request.config.p4info.CopyFrom(p4info)
        request.config.p4_device_config = device_config
        request.config.cookie.cookie = cookie
        self.call("SetForwardingPipelineConfig", request, PUSH_TIMEOUT_S)

    def p4info(self) -> Any:
        """Return the P4Info of the program that the device runs. Raises grpc.RpcError."""
        request = _Pull(device_id=self.device_id, response_type=_Pull.P4INFO_AND_COOKIE)
        return self.call("GetForwardingPipelineConfig", request).config.p4info

    def cookie(self, timeout: float = RPC_TIMEOUT_S) -> int:
        """Return the cookie that came with the program, 0 without one. Raises grpc.RpcError."""
        request = _Pull(device_id=self.device_id, response_type=_Pull.COOKIE_ONLY)
        return int(self.call("GetForwardingPipelineConfig", request, timeout).config.cookie.cookie)

    def api_version(self) -> str:
        """Return the version of P4Runtime that the device speaks. Raises grpc.RpcError."""
        request = p4runtime_pb2.CapabilitiesRequest(device_id=self.device_id)
        return str(self.call("Capabilities", request).p4runtime_api_version)

    def close(self) -> None:
        """End the session; what the device holds stays.

        A device that answers has let go of the election id by then.
        """
        self._outgoing.put(None)
        if "arbitration" in self._received:
            self._reader.join(_CLOSE_TIMEOUT_S)
        self.stream.cancel()
        self._reader.join()
        self._channel.close()

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _failure(self) -> str:
        """Return why the stream ended, or nothing while it is open."""
        return "" if self.stream.is_active() else f"{self.stream.code().name}: {self.stream.details()}"

    def _read_stream(self) -> None:
        try:
            for message in self.stream:
                kind = message.WhichOneof("update")
                with contextlib.suppress(queue.Full):
                    self._received[kind].put_nowait(message)
                if kind == "arbitration":
                    self._elected(message.arbitration)
        except grpc.RpcError:
            pass  # _failure() says why
        finally:
            self._ended = True
            self._answered.set()
            self._changed()

    def _elected(self, update: Any) -> None:
        self.primary = update.status.code == Code.OK
        self.highest = update.election_id.high << 64 | update.election_id.low
        self._answered.set()
        if self._follow and update.status.code == Code.NOT_FOUND:
            self.claim(self.highest + 1)
        self._changed()


def _uint128(number: int) -> Any:
    return p4runtime_pb2.Uint128(high=number >> 64, low=number & ((1 << 64) - 1))
