# SPDX-License-Identifier: Apache-2.0
"""A BfRuntime client's session with one device.

It lasts as long as a stream that the client opens and subscribes on. There is no election: a device knows its
clients by number, and refuses a second one with the same. All of Weir's controllers have one number, so that
only one of them has a switch.
"""

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import grpc

from softp4 import protobuf
from softp4.channels import open_channel
from softp4.p4runtime.codes import Code
from softp4.p4runtime.errors import DETAILS_KEY
from softp4.p4runtime.session import HANDSHAKE_TIMEOUT_S, RPC_TIMEOUT_S, SessionError
from weir.controller.bfrt.messages import METHODS, bfruntime_pb2, status_pb2

CLIENT_ID: Final = 0x574549  # ours alone; a device keeps 24 bits
_CLOSE_TIMEOUT_S: Final = 1.0
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", 256 << 20),  # a read is answered in one message
    ("grpc.max_metadata_size", 1 << 20),  # a refused batch's details
)
_ALL: Final = {"pipe_id": 0xFFFF, "direction": 0xFF, "prsr_id": 0xFF}  # entries are the same in all pipes
_Config: Final = bfruntime_pb2.SetForwardingPipelineConfigRequest


class Session:
    """A session with one device. Every call is limited in time.

    Args:
        address: where the device serves BfRuntime.
        device_id: the device's number, 0 for the only one.
        credentials: for TLS; None for none.
        changed: called, from another thread, when the stream ends.

    Raises:
        SessionError: the device cannot be reached, does not speak BfRuntime, or has such a client already.
    """

    def __init__(
        self,
        address: str,
        *,
        device_id: int,
        credentials: grpc.ChannelCredentials | None = None,
        changed: Callable[[], None] = lambda: None,
        timeout: float = HANDSHAKE_TIMEOUT_S,
    ) -> None:
        self._target = bfruntime_pb2.TargetDevice(device_id=device_id, **_ALL)
        self._changed = changed
        self._ended = False
        self._welcome = False
        self._answered = threading.Event()
        self._outgoing: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._channel = open_channel(address, credentials, _OPTIONS)
        self._stub = protobuf.stub(self._channel, METHODS)
        subscribe = bfruntime_pb2.Subscribe(device_id=device_id)
        self._outgoing.put(bfruntime_pb2.StreamMessageRequest(client_id=CLIENT_ID, subscribe=subscribe))
        self._stream = self._stub.StreamChannel(iter(self._outgoing.get, None))
        self._reader = threading.Thread(target=self._read_stream, name=f"bfrt-{address}", daemon=True)
        self._reader.start()
        self._answered.wait(timeout)
        if not self._welcome:
            why = f"no answer in {timeout:g} s; is it a BfRuntime server?"
            if not self._stream.is_active():
                why = f"{self._stream.code().name}: {self._stream.details()}"
            self.close()
            raise SessionError(why)

    @property
    def alive(self) -> bool:
        """Return whether the stream is open."""
        return not self._ended

    def config(self) -> Any:
        """Return what the device runs: its programs, megabytes of them, and tables. Raises grpc.RpcError."""
        request = bfruntime_pb2.GetForwardingPipelineConfigRequest(
            device_id=self._target.device_id, client_id=CLIENT_ID
        )
        return self._stub.GetForwardingPipelineConfig(request, timeout=RPC_TIMEOUT_S)

    def bind(self, program: str) -> None:
        """Say which of the device's programs is meant from now on. Raises grpc.RpcError."""
        request = _Config(device_id=self._target.device_id, client_id=CLIENT_ID, action=_Config.BIND)
        request.config.add(p4_name=program)
        self._stub.SetForwardingPipelineConfig(request, timeout=RPC_TIMEOUT_S)

    def write(self, updates: Iterable[tuple[str, Any]]) -> None:
        """Write (verb, ``TableEntry``) in this order. Raises grpc.RpcError; ``refused`` has details."""
        request = bfruntime_pb2.WriteRequest(target=self._target, client_id=CLIENT_ID)
        for verb, entry in updates:
            update = request.updates.add(type=bfruntime_pb2.Update.Type.Value(verb))
            update.entity.table_entry.CopyFrom(entry)
        self._stub.Write(request, timeout=RPC_TIMEOUT_S)

    def read(self, *selections: Any) -> Iterator[Any]:
        """Yield the ``TableEntry`` that these select, all of a table if they have no key; default entries are
        left out. Raises grpc.RpcError.
        """
        request = bfruntime_pb2.ReadRequest(target=self._target, client_id=CLIENT_ID)
        for selection in selections:
            request.entities.add().table_entry.CopyFrom(selection)
        for reply in self._stub.Read(request, timeout=RPC_TIMEOUT_S):
            for entity in reply.entities:
                if not entity.table_entry.is_default_entry:
                    yield entity.table_entry

    def usage(self, table_id: int, timeout: float) -> int:
        """Return how many entries a table has. Raises grpc.RpcError."""
        request = bfruntime_pb2.ReadRequest(target=self._target, client_id=CLIENT_ID)
        request.entities.add().table_usage.table_id = table_id
        replies = self._stub.Read(request, timeout=timeout)
        return sum(entity.table_usage.usage for reply in replies for entity in reply.entities)

    def close(self) -> None:
        """End the session; what the device holds stays. A device that answers has let go of us by then."""
        self._outgoing.put(None)
        if self._welcome:
            self._reader.join(_CLOSE_TIMEOUT_S)
        self._stream.cancel()
        self._reader.join()
        self._channel.close()

    def _read_stream(self) -> None:
        try:
            for message in self._stream:
                if message.WhichOneof("update") == "subscribe":
                    self._welcome = message.subscribe.status.code == Code.OK
                    self._answered.set()
        except grpc.RpcError:
            pass  # the stream says why
        finally:
            self._ended = True
            self._answered.set()
            self._changed()


def refused(error: grpc.RpcError) -> dict[int, str]:
    """Return why parts of a batch were refused, by their index; nothing if the error does not say."""
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY:
            return dict(_refused(status_pb2.Status.FromString(value)))
    return {}


def _refused(status: Any) -> Iterator[tuple[int, str]]:
    for index, detail in enumerate(status.details):
        error = bfruntime_pb2.Error()
        if detail.Unpack(error) and error.canonical_code != Code.OK:
            code = error.canonical_code
            name = Code(code).name if code in tuple(Code) else f"code {code}"
            yield index, f"{name}: {error.message}"
