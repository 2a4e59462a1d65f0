# SPDX-License-Identifier: Apache-2.0
"""The P4Runtime calls: checks that concern a whole call, and the streams of controllers."""

import itertools
import logging
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final, NoReturn

import grpc
from google.rpc import code_pb2
from p4.v1 import p4runtime_pb2, p4runtime_pb2_grpc

from softswitch.errors import Code, ControlError
from softswitch.p4rt import entities
from softswitch.p4rt.arbitration import Arbiter, Notice
from softswitch.p4rt.packet_io import frame_of_packet_out, packet_in_of_frame
from softswitch.p4rt.pipeline import PipelineStore
from softswitch.p4rt.status import batch_status, grpc_code

API_VERSION: Final = "1.4.1"
_READ_CHUNK: Final = 256  # entities per ReadResponse: well below gRPC's 4 MiB at any entity's size
_STREAM_BACKLOG: Final = 4096  # packets waiting for a slow controller; more are dropped
_log = logging.getLogger(__name__)


class _Stream:
    """One controller's StreamChannel: what is to be sent to it, until it ends."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._out: queue.Queue[Any] = queue.Queue()
        self._packets = threading.BoundedSemaphore(_STREAM_BACKLOG)

    def send(self, response: Any) -> None:
        self._out.put(response)

    def send_packet(self, response: Any) -> bool:
        """False when the controller does not keep up: the packet is dropped."""
        if not self._packets.acquire(blocking=False):
            return False
        self._out.put(response)
        return True

    def end(self, error: ControlError | None = None) -> None:
        self._out.put(error)

    def responses(self) -> Iterator[Any]:
        """Everything that is sent, until ``end``; an error given to it is raised."""
        while (response := self._out.get()) is not None:
            if isinstance(response, ControlError):
                raise response
            if response.HasField("packet"):
                self._packets.release()
            yield response


class P4RuntimeService(p4runtime_pb2_grpc.P4RuntimeServicer):  # type: ignore[misc]
    """P4Runtime for one device.

    Args:
        device_id: what controllers must ask for.
        pipelines: the device's programs.
        packet_out: puts a frame in at the CPU port; may raise ControlError.
    """

    def __init__(self, device_id: int, pipelines: PipelineStore, packet_out: Callable[[bytes], None]) -> None:
        self._device_id = device_id
        self._pipelines = pipelines
        self._packet_out = packet_out
        self._arbiter = Arbiter()
        self._arbitration = threading.Lock()
        self._state = threading.Lock()  # reads and writes see whole batches
        self._numbers = itertools.count(1)
        self._lost_packet_ins = 0

    # -- calls -------------------------------------------------------------------------------------

    def Write(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802 - gRPC's name
        """Applies updates one by one; every one is tried (CONTINUE_ON_ERROR)."""
        with self._state:
            self._check(context, lambda: self._check_writer(request))
            if request.atomicity != p4runtime_pb2.WriteRequest.CONTINUE_ON_ERROR:
                name = p4runtime_pb2.WriteRequest.Atomicity.Name(request.atomicity)
                _abort(context, ControlError(Code.UNIMPLEMENTED, f"atomicity {name} is not supported"))
            pipeline = self._check(context, self._pipelines.current)
            results = [_attempt(partial(entities.write, pipeline, update)) for update in request.updates]
        if any(results):
            context.abort_with_status(batch_status("Write", results))
        return p4runtime_pb2.WriteResponse()

    def Read(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:  # noqa: N802
        """Streams what the request's entities select."""
        with self._state:
            self._check(context, lambda: self._check_device(request.device_id))
            pipeline = self._check(context, self._pipelines.current)
            found: list[Any] = []

            def gather(entity: Any) -> None:
                found.extend(entities.read(pipeline, entity))

            results = [_attempt(partial(gather, entity)) for entity in request.entities]
        for start in range(0, len(found), _READ_CHUNK):
            yield p4runtime_pb2.ReadResponse(entities=found[start : start + _READ_CHUNK])
        if any(results):
            context.abort_with_status(batch_status("Read", results))

    def SetForwardingPipelineConfig(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        """Verifies, saves or runs a program."""
        with self._state:
            self._check(context, lambda: self._check_writer(request))
            config = request.config if request.HasField("config") else None
            self._check(context, lambda: self._pipelines.set(request.action, config))
        action = p4runtime_pb2.SetForwardingPipelineConfigRequest.Action.Name(request.action)
        _log.info("pipeline config: %s done", action)
        return p4runtime_pb2.SetForwardingPipelineConfigResponse()

    def GetForwardingPipelineConfig(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        """The newest config, in as much detail as asked for; empty when there is none."""
        self._check(context, lambda: self._check_device(request.device_id))
        response = p4runtime_pb2.GetForwardingPipelineConfigResponse()
        with self._state:
            pipeline = self._pipelines.newest
            if pipeline is None:
                return response
            config = pipeline.config
            if config.HasField("cookie"):
                response.config.cookie.CopyFrom(config.cookie)
            kinds = p4runtime_pb2.GetForwardingPipelineConfigRequest
            response.config.SetInParent()
            if request.response_type in (kinds.ALL, kinds.P4INFO_AND_COOKIE):
                response.config.p4info.CopyFrom(config.p4info)
            if request.response_type in (kinds.ALL, kinds.DEVICE_CONFIG_AND_COOKIE):
                response.config.p4_device_config = config.p4_device_config
        return response

    def Capabilities(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        """The API version."""
        return p4runtime_pb2.CapabilitiesResponse(p4runtime_api_version=API_VERSION)

    def StreamChannel(  # noqa: N802
        self, request_iterator: Iterable[Any], context: grpc.ServicerContext
    ) -> Iterator[Any]:
        """Arbitration and controller packets, for as long as the controller stays."""
        stream = _Stream(next(self._numbers))
        context.add_callback(stream.end)
        reader = threading.Thread(
            target=self._read_stream, args=(stream, request_iterator), name=f"p4rt-stream-{stream.number}"
        )
        reader.daemon = True  # it ends with the call, which the server's stop ends
        reader.start()
        try:
            yield from stream.responses()
        except ControlError as error:
            _abort(context, error)
        finally:
            with self._arbitration:
                self._tell(self._arbiter.leave(stream))

    # -- streams -----------------------------------------------------------------------------------

    def _read_stream(self, stream: _Stream, requests: Iterable[Any]) -> None:
        try:
            for request in requests:
                kind = request.WhichOneof("update")
                if kind == "arbitration":
                    self._arbitrate(stream, request.arbitration)
                elif kind == "packet":
                    self._take_packet_out(stream, request.packet)
                else:
                    stream.send(
                        _stream_error(ControlError(Code.UNIMPLEMENTED, f"{kind} is not supported"), request)
                    )
        except ControlError as error:
            stream.end(error)
        except grpc.RpcError:
            pass  # the controller went away; the call's own callback ends the stream
        except Exception:
            _log.exception("a controller's stream failed")
        stream.end()

    def _arbitrate(self, stream: _Stream, update: Any) -> None:
        self._check_device(update.device_id)
        if update.role.HasField("config"):
            raise ControlError(
                Code.UNIMPLEMENTED, "role configurations are not supported: leave role.config unset"
            )
        election = _election_id(update) if update.HasField("election_id") else None
        with self._arbitration:
            self._tell(self._arbiter.update(stream, update.role.name, election))

    def _tell(self, notices: Iterable[Notice]) -> None:
        for notice in notices:
            response = p4runtime_pb2.StreamMessageResponse()
            update = response.arbitration
            update.device_id = self._device_id
            if notice.role:
                update.role.name = notice.role
            if notice.election_id is not None:
                update.election_id.high = notice.election_id >> 64
                update.election_id.low = notice.election_id & ((1 << 64) - 1)
            update.status.code = notice.code
            update.status.message = _ARBITRATION_TEXT[notice.code]
            assert isinstance(notice.stream, _Stream)
            notice.stream.send(response)

    def _take_packet_out(self, stream: _Stream, packet: Any) -> None:
        def put() -> None:
            with self._arbitration:
                if stream not in self._arbiter.primaries():
                    raise ControlError(Code.PERMISSION_DENIED, "only the primary controller may send packets")
            with self._state:
                pipeline = self._pipelines.running
                if pipeline is None:
                    raise ControlError(Code.FAILED_PRECONDITION, "no pipeline is loaded")
                frame = frame_of_packet_out(pipeline.info, packet)
            self._packet_out(frame)

        error = _attempt(put)
        if error is not None:
            response = p4runtime_pb2.StreamMessageResponse()
            response.error.canonical_code = int(error.code)
            response.error.message = error.message
            response.error.packet_out.packet_out.CopyFrom(packet)
            stream.send(response)

    def packet_in(self, frame: bytes) -> None:
        """Hand a frame that left at the CPU port to the primary controllers."""
        pipeline = self._pipelines.running
        if pipeline is None:
            return
        response = p4runtime_pb2.StreamMessageResponse()
        try:
            response.packet.CopyFrom(packet_in_of_frame(pipeline.info, frame))
        except ControlError as error:
            _log.warning("packet-in dropped: %s", error.message)
            return
        with self._arbitration:
            primaries = self._arbiter.primaries()
        for stream in primaries:
            assert isinstance(stream, _Stream)
            if not stream.send_packet(response):
                self._lost_packet_ins += 1
                if self._lost_packet_ins.bit_count() == 1:  # 1, 2, 4, 8 ...: a log that cannot flood
                    _log.warning("the controller does not keep up: %d packet-ins lost", self._lost_packet_ins)

    # -- checks ------------------------------------------------------------------------------------

    def _check_device(self, device_id: int) -> None:
        if device_id != self._device_id:
            raise ControlError(Code.NOT_FOUND, f"there is no device {device_id}; this is {self._device_id}")

    def _check_writer(self, request: Any) -> None:
        self._check_device(request.device_id)
        with self._arbitration:
            self._arbiter.check_writer(request.role, _election_id(request))

    @staticmethod
    def _check(context: grpc.ServicerContext, action: Callable[[], Any]) -> Any:
        """The action's result; its ControlError ends the call."""
        try:
            return action()
        except ControlError as error:
            _abort(context, error)


_ARBITRATION_TEXT: Final = {
    code_pb2.OK: "you are the primary controller",
    code_pb2.ALREADY_EXISTS: "another controller is primary",
    code_pb2.NOT_FOUND: "there is no primary controller",
}


def _abort(context: grpc.ServicerContext, error: ControlError) -> NoReturn:
    context.abort(grpc_code(int(error.code)), error.message)
    raise AssertionError("abort returned")


def _attempt(action: Callable[[], None]) -> ControlError | None:
    try:
        action()
    except ControlError as error:
        return error
    return None


def _election_id(message: Any) -> int:
    return int(message.election_id.high) << 64 | int(message.election_id.low)


def _stream_error(error: ControlError, request: Any) -> Any:
    response = p4runtime_pb2.StreamMessageResponse()
    response.error.canonical_code = int(error.code)
    response.error.message = error.message
    if request.WhichOneof("update") == "digest_ack":
        response.error.digest_list_ack.digest_list_ack.CopyFrom(request.digest_ack)
    else:
        response.error.other.SetInParent()
    return response
