# SPDX-License-Identifier: Apache-2.0
"""P4Runtime to one switch, through p4runtime-shell's client layer.

What is used of it: ``P4RuntimeClient`` for channel, TLS, stream and arbitration, and ``Context`` (in
``weir.controller.codec``) for P4Info's names and ids. What is done differently here, and why:

- its handshake and its reader of PEM files end the process, and its stream logs to the root logger; here a
  failure is a ``SwitchError`` that names the switch and its address;
- its calls have no time limit, so a switch that hangs hangs the caller; here every call has one;
- its decoder of write errors never returns when a batch has accepted updates before a refused one (0.0.6
  does not step over them); here ``weir.controller.p4rt_errors`` decodes;
- its push of a program sends no cookie; here the cookie says which program a switch runs.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from google.rpc import code_pb2
from p4.v1 import p4runtime_pb2
from p4runtime_sh.p4runtime import P4RuntimeClient, SSLOptions

from weir.controller.codec import Codec, UnknownNameError
from weir.controller.entries import SwitchState, TableEntry
from weir.controller.p4rt_errors import describe
from weir.controller.program import CompiledProgram
from weir.controller.sync import Batch
from weir.controller.tables import TABLES
from weir.controller.wiring import Switch

HANDSHAKE_TIMEOUT_S = 5.0
RPC_TIMEOUT_S = 10.0
PROBE_TIMEOUT_S = 2.0
PUSH_TIMEOUT_S = 120.0  # a soft switch compiles the program it is given
MAX_BATCH = 256  # updates in one write: well below gRPC's 4 MB message limit

_Push = p4runtime_pb2.SetForwardingPipelineConfigRequest
_Pull = p4runtime_pb2.GetForwardingPipelineConfigRequest


class SwitchError(Exception):
    """A switch cannot be reached, or refused something. The message names it and says what."""


@dataclass(frozen=True)
class Count:
    """What a counter says."""

    packets: int = 0
    bytes: int = 0

    def __add__(self, other: "Count") -> "Count":
        return Count(self.packets + other.packets, self.bytes + other.bytes)


class SwitchClient:
    """A session with one switch. Calls block, for a limited time; reads may run beside a write.

    Args:
        switch: which one, from the topology.
        election_id: which controller wins when several claim the switch: the one with the largest.
        changed: called, from another thread, when the session ends or another controller takes over.

    Raises:
        SwitchError: the switch cannot be reached or does not speak P4Runtime.
    """

    def __init__(self, switch: Switch, election_id: int, changed: Callable[[], None] = lambda: None) -> None:
        self.switch = switch
        self._codec: Codec | None = None
        try:
            self._client = _Client(switch, election_id, changed)
        except (_HandshakeError, grpc.RpcError) as error:
            raise SwitchError(f"switch {switch.name} at {switch.grpc} cannot be reached: {error}") from None

    @property
    def alive(self) -> bool:
        """Is the session up?"""
        return bool(self._client.stream_recv_thread.is_alive())

    @property
    def primary(self) -> bool:
        """May this controller write? False when another one with a larger election id took over."""
        return self._client.is_primary()

    def close(self) -> None:
        """End the session; what the switch holds stays."""
        self._client.tear_down()

    def probe(self) -> None:
        """Ask the switch for very little. Raises SwitchError when it does not answer in two seconds."""
        request = _Pull(device_id=self.switch.device_id, response_type=_Pull.COOKIE_ONLY)
        try:
            self._client.stub.GetForwardingPipelineConfig(request, timeout=PROBE_TIMEOUT_S)
        except grpc.RpcError as error:
            raise self._error(f"does not answer: {describe(error)}") from None

    def ensure_program(self, program: CompiledProgram) -> bool:
        """Make the switch run ``program``; True if it had to be pushed, which empties the switch."""
        pushed = self._running_cookie() != program.cookie
        if pushed:
            request = self._claimed(_Push(action=_Push.VERIFY_AND_COMMIT))
            request.config.p4info.CopyFrom(program.p4info)
            request.config.p4_device_config = program.device_config
            request.config.cookie.cookie = program.cookie
            self._call(
                f"refuses program {program.name}",
                lambda: self._client.stub.SetForwardingPipelineConfig(request),
            )
        self._codec = Codec(program.p4info)
        return pushed

    def read(self) -> SwitchState:
        """Return all entries of the controller's tables, and all multicast groups."""
        codec = self._loaded()
        request = p4runtime_pb2.ReadRequest(device_id=self.switch.device_id)
        for table in TABLES:
            request.entities.add().table_entry.table_id = codec.table_id(table)
        request.entities.add().packet_replication_engine_entry.multicast_group_entry.SetInParent()
        entries: set[TableEntry] = set()
        groups = {}
        for entity in self._read(request):
            if entity.HasField("table_entry"):
                if not entity.table_entry.is_default_action:
                    entries.add(codec.decode(entity.table_entry))
            else:
                group, replicas = codec.decode_group(
                    entity.packet_replication_engine_entry.multicast_group_entry
                )
                groups[group] = replicas
        return SwitchState(frozenset(entries), groups)

    def write(self, batches: Iterable[Batch]) -> None:
        """Write batches one after the other. The first refusal ends it; what was written stays."""
        codec = self._loaded()
        for batch in batches:
            for start in range(0, len(batch), MAX_BATCH):
                part = batch[start : start + MAX_BATCH]
                request = self._claimed(p4runtime_pb2.WriteRequest())
                try:
                    request.updates.extend(codec.update(update) for update in part)
                    self._client.stub.Write(request)
                except grpc.RpcError as error:
                    raise self._error(f"refuses a write: {describe(error, part)}") from None
                except UnknownNameError as error:
                    raise self._error(f"runs another program: {error}") from None

    def read_counter(self, name: str) -> list[Count]:
        """Return all cells of an indirect counter, by index."""
        request = p4runtime_pb2.ReadRequest(device_id=self.switch.device_id)
        request.entities.add().counter_entry.counter_id = self._loaded().counter_id(name)
        cells = {
            entity.counter_entry.index.index: entity.counter_entry.data for entity in self._read(request)
        }
        return [_count(cells[index]) for index in sorted(cells)]

    def read_table_counts(self, table: str) -> dict[TableEntry, Count]:
        """Return the entries of a table with their direct counters."""
        codec = self._loaded()
        request = p4runtime_pb2.ReadRequest(device_id=self.switch.device_id)
        wanted = request.entities.add().table_entry
        wanted.table_id = codec.table_id(table)
        wanted.counter_data.SetInParent()
        return {
            codec.decode(entity.table_entry): _count(entity.table_entry.counter_data)
            for entity in self._read(request)
            if not entity.table_entry.is_default_action
        }

    def _running_cookie(self) -> int | None:
        request = _Pull(device_id=self.switch.device_id, response_type=_Pull.COOKIE_ONLY)
        try:
            return int(self._client.stub.GetForwardingPipelineConfig(request).config.cookie.cookie)
        except grpc.RpcError as error:
            if error.code() in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.NOT_FOUND):
                return None
            raise self._error(f"does not say which program it runs: {describe(error)}") from None

    def _claimed(self, request: Any) -> Any:
        request.device_id = self.switch.device_id
        request.election_id.high, request.election_id.low = self._client.election_id
        return request

    def _read(self, request: Any) -> Iterator[Any]:
        def entities() -> list[Any]:
            return [entity for reply in self._client.stub.Read(request) for entity in reply.entities]

        yield from self._call("refuses a read", entities)

    def _call(self, problem: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except grpc.RpcError as error:
            raise self._error(f"{problem}: {describe(error)}") from None
        except UnknownNameError as error:
            raise self._error(f"runs another program: {error}") from None

    def _error(self, what: str) -> SwitchError:
        return SwitchError(f"switch {self.switch.name} at {self.switch.grpc} {what}")

    def _loaded(self) -> Codec:
        if self._codec is None:
            raise self._error("was not given a program yet")
        return self._codec


class _HandshakeError(Exception):
    """Why there is no session."""


class _Client(P4RuntimeClient):  # type: ignore[misc]
    """p4runtime-shell's client without what the module's documentation says of it."""

    stub: Any

    def __init__(self, switch: Switch, election_id: int, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._primary = False
        election = (election_id >> 64, election_id & ((1 << 64) - 1))
        super().__init__(switch.device_id, switch.grpc, election, ssl_options=_ssl_options(switch))

    def set_up_stream(self) -> None:
        self.stub = _TimedStub(self.stub, self._on_arbitration)
        super().set_up_stream()

    def _on_arbitration(self, message: Any) -> None:
        """From the stream's thread: an arbitration update, or None at the end of the stream."""
        if message is None:
            self.stream_in_q["arbitration"].put(None)
        elif message.arbitration.status.code == code_pb2.NOT_FOUND:
            self._follow(message.arbitration.election_id)
        self._changed()

    def _follow(self, highest: Any) -> None:
        """The switch has no primary any more: ask to be the next. Of several that ask, the first gets it."""
        number = (highest.high << 64 | highest.low) + 1
        self.election_id = (number >> 64, number & ((1 << 64) - 1))
        self._claim()

    def _claim(self) -> None:
        request = p4runtime_pb2.StreamMessageRequest()
        request.arbitration.device_id = self.device_id
        request.arbitration.election_id.high, request.arbitration.election_id.low = self.election_id
        self.stream_out_q.put(request)

    def handshake(self) -> None:
        self._claim()
        reply = self.get_stream_packet("arbitration", timeout=HANDSHAKE_TIMEOUT_S)
        if reply is None:
            reason = (
                self.stream.failure() or f"no answer in {HANDSHAKE_TIMEOUT_S:g} s; is it a P4Runtime server?"
            )
            self.tear_down()
            raise _HandshakeError(reason)
        self._primary = reply.arbitration.status.code == code_pb2.OK

    def is_primary(self) -> bool:
        queue = self.stream_in_q["arbitration"]
        while not queue.empty():
            message = queue.get_nowait()
            if message is not None:
                self._primary = message.arbitration.status.code == code_pb2.OK
        return self._primary

    def tear_down(self) -> None:
        """Unlike the original, also when the switch does not end the stream."""
        self.stream.cancel()
        super().tear_down()


class _TimedStub:
    """The P4Runtime stub with a time limit on every call, and a stream that ends instead of raising."""

    def __init__(self, stub: Any, on_arbitration: Callable[[Any], None]) -> None:
        self._stub = stub
        self._on_arbitration = on_arbitration

    def StreamChannel(self, requests: Iterator[Any]) -> "_Stream":  # noqa: N802 - the RPC's name
        return _Stream(self._stub.StreamChannel(requests), self._on_arbitration)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call = getattr(self._stub, name)
        limit = PUSH_TIMEOUT_S if name == "SetForwardingPipelineConfig" else RPC_TIMEOUT_S
        return lambda request, timeout=limit: call(request, timeout=timeout)


class _Stream:
    """The session's stream: iterates over messages, tells of arbitration, keeps why it ended."""

    def __init__(self, call: Any, on_arbitration: Callable[[Any], None]) -> None:
        self._call = call
        self._on_arbitration = on_arbitration

    def __iter__(self) -> Iterator[Any]:
        try:
            for message in self._call:
                yield message
                if message.HasField("arbitration"):
                    self._on_arbitration(message)
        except grpc.RpcError:
            pass  # why is in failure()
        finally:
            self._on_arbitration(None)

    def cancel(self) -> None:
        self._call.cancel()

    def failure(self) -> str:
        """Return why the stream ended, or nothing while it is up."""
        return "" if self._call.is_active() else f"{self._call.code().name}: {self._call.details()}"


def _ssl_options(switch: Switch) -> SSLOptions:
    if switch.tls is None:
        return SSLOptions(insecure=True)
    for path in (switch.tls.ca, switch.tls.cert, switch.tls.key):
        if path is not None:
            _readable(path)
    paths = (str(path) if path else None for path in (switch.tls.ca, switch.tls.cert, switch.tls.key))
    return SSLOptions(False, *paths)


def _readable(path: Path) -> None:
    try:
        path.read_bytes()
    except OSError as error:
        raise _HandshakeError(f"cannot read {path}: {error.strerror}") from None


def _count(data: Any) -> Count:
    return Count(data.packet_count, data.byte_count)
