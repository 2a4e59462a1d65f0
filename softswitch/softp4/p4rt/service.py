# SPDX-License-Identifier: Apache-2.0
"""The P4Runtime calls: checks that concern a whole call, and what comes in on controllers' streams."""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NoReturn, TypeVar

import grpc
from google.protobuf.message import DecodeError

from softp4.errors import Code, ControlError
from softp4.p4rt import batch, entities
from softp4.p4rt.notifications import Notifications
from softp4.p4rt.packet_io import frame_of_packet_out, packet_in_of_frame
from softp4.p4rt.pipeline import PipelineStore
from softp4.p4rt.sessions import Sessions, Stream, stream_error
from softp4.p4rt.status import batch_status, grpc_code, shortened
from softp4.p4runtime.schema import API_VERSION, p4runtime_pb2
from softp4.switch import MAX_FRAME

RAW: Final = ("Write",)
"""Methods that take their request as bytes: most of a Write is decoded natively."""
_READ_CHUNK: Final = 1 << 20  # bytes per ReadResponse: clients take 4 MiB unless told otherwise
_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class P4RuntimeService:
    """P4Runtime for one device.

    Args:
        device_id: what controllers must ask for.
        pipelines: the device's programs.
        packet_out: puts a frame in at the CPU port; may raise ControlError.

    Attributes:
        sessions: the controllers' streams.
        notifications: what the running program tells controllers unasked.
    """

    def __init__(self, device_id: int, pipelines: PipelineStore, packet_out: Callable[[bytes], None]) -> None:
        self._device_id = device_id
        self._pipelines = pipelines
        self._packet_out = packet_out
        self.sessions = Sessions(device_id, self._settle)
        self.notifications = Notifications(pipelines, self.sessions)
        self._stream_messages: dict[str, Callable[[Stream, Any], None]] = {
            "arbitration": lambda stream, request: self.sessions.arbitrate(stream, request.arbitration),
            "packet": self._take_packet_out,
            "digest_ack": self.notifications.acknowledge,
        }

    # -- calls -------------------------------------------------------------------------------------

    def Write(self, request: bytes, context: grpc.ServicerContext) -> bytes:  # noqa: N802 - gRPC's name
        """Apply updates in their order, under the atomicity asked for. The response is empty."""
        results = _answer(context, lambda: self._write(request))
        if any(results):
            context.abort_with_status(batch_status("Write", results))
        return b""

    def Read(self, request: Any, context: grpc.ServicerContext) -> Iterator[bytes]:  # noqa: N802
        """Stream what the request's entities select: ReadResponse messages as they are on the wire."""
        found, results = _answer(context, lambda: self._read(request))
        for part in _chunks(found):
            yield b"".join(part)
        if any(results):
            context.abort_with_status(batch_status("Read", results))

    def SetForwardingPipelineConfig(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        """Verifies, saves or runs a program."""
        _answer(context, lambda: self._set_config(request))
        return p4runtime_pb2.SetForwardingPipelineConfigResponse()

    def GetForwardingPipelineConfig(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        """Return the newest config, in as much detail as asked for; empty when there is none."""
        return _answer(context, lambda: self._get_config(request))

    def Capabilities(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        """Return the API version."""
        if request.device_id:
            _answer(context, lambda: self._check_device(request.device_id))
        return p4runtime_pb2.CapabilitiesResponse(p4runtime_api_version=API_VERSION)

    def StreamChannel(  # noqa: N802
        self, request_iterator: Iterable[Any], context: grpc.ServicerContext
    ) -> Iterator[Any]:
        """Arbitration and controller packets, for as long as the controller stays."""
        stream = _answer(context, lambda: self.sessions.join(context.cancel))
        if not context.add_callback(stream.end):
            stream.end()  # the controller has gone already
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
            self.sessions.leave(stream)

    # -- what they do --------------------------------------------------------------------------------

    def _write(self, data: bytes) -> batch.Results:
        pipeline = self._pipelines.newest
        updates = None if pipeline is None else pipeline.updates.decode(data)
        request = _write_request(data if updates is None else updates.head)
        with self._pipelines.lock:
            self._check_writer(request)
            pipeline_now = self._pipelines.current()
            if updates is None:
                return batch.apply(pipeline_now, request)
            if pipeline is pipeline_now and request.atomicity == request.CONTINUE_ON_ERROR:
                return batch.apply_ordinary(pipeline_now, updates)
            return batch.apply(pipeline_now, _write_request(data))

    def _read(self, request: Any) -> tuple[list[bytes], batch.Results]:
        self._check_device(request.device_id)
        with self._pipelines.lock:
            pipeline = self._pipelines.current()
            found: list[bytes] = []

            def add(entity: Any) -> None:
                found.extend(entities.read_responses(pipeline, entity))

            results = [batch.attempt(add, entity) for entity in request.entities]
        return found, results

    def _set_config(self, request: Any) -> None:
        def check() -> None:
            self._check_writer(request)

        check()
        config = request.config if request.HasField("config") else None
        self._pipelines.set(request.action, config, check)
        action = p4runtime_pb2.SetForwardingPipelineConfigRequest.Action.Name(request.action)
        _log.info("pipeline config: %s done", action)

    def _get_config(self, request: Any) -> Any:
        self._check_device(request.device_id)
        kinds = p4runtime_pb2.GetForwardingPipelineConfigRequest
        if request.response_type not in kinds.ResponseType.values():
            raise ControlError(Code.INVALID_ARGUMENT, f"unknown response type {request.response_type}")
        response = p4runtime_pb2.GetForwardingPipelineConfigResponse()
        with self._pipelines.lock:
            pipeline = self._pipelines.newest
            if pipeline is None:
                return response
            config = pipeline.config
            if config.HasField("cookie"):
                response.config.cookie.CopyFrom(config.cookie)
            response.config.SetInParent()
            if request.response_type in (kinds.ALL, kinds.P4INFO_AND_COOKIE):
                response.config.p4info.CopyFrom(config.p4info)
            if request.response_type in (kinds.ALL, kinds.DEVICE_CONFIG_AND_COOKIE):
                response.config.p4_device_config = config.p4_device_config
        return response

    # -- streams -----------------------------------------------------------------------------------

    def _read_stream(self, stream: Stream, requests: Iterable[Any]) -> None:
        end = None
        try:
            for request in requests:
                self._take(stream, request)
        except ControlError as error:
            end = error
        except grpc.RpcError:
            pass  # the controller went away; the call's own callback ends the stream
        except Exception as error:
            _log.exception("a controller's stream failed")
            end = ControlError(Code.INTERNAL, f"{type(error).__name__}: {error}")
        stream.end(end)

    def _take(self, stream: Stream, request: Any) -> None:
        """One message of a stream. Raises ControlError when that ends the stream."""
        kind = request.WhichOneof("update")
        try:
            if kind is None:
                raise ControlError(Code.INVALID_ARGUMENT, "the stream message is empty")
            if kind not in self._stream_messages:
                raise ControlError(Code.UNIMPLEMENTED, f"{kind} is not supported")
            self._stream_messages[kind](stream, request)
        except ControlError as error:
            if kind == "arbitration":
                raise
            stream.offer(stream_error(error, request))

    def _take_packet_out(self, stream: Stream, request: Any) -> None:
        self.sessions.check_primary(stream, "send packets")
        with self._pipelines.lock:
            pipeline = self._pipelines.running
            if pipeline is None:
                raise ControlError(Code.FAILED_PRECONDITION, "no forwarding pipeline config is set")
            frame = frame_of_packet_out(pipeline.info, request.packet)
        if len(frame) > MAX_FRAME:
            raise ControlError(
                Code.INVALID_ARGUMENT, f"a packet-out of {len(frame)} bytes is longer than {MAX_FRAME}"
            )
        self._packet_out(frame)

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
        self.sessions.notify(response)

    # -- checks ------------------------------------------------------------------------------------

    def _settle(self) -> None:
        with self._pipelines.lock:
            pass

    def _check_device(self, device_id: int) -> None:
        if device_id != self._device_id:
            raise ControlError(Code.NOT_FOUND, f"there is no device {device_id}; this is {self._device_id}")

    def _check_writer(self, request: Any) -> None:
        self._check_device(request.device_id)
        self.sessions.check_writer(request)


def _write_request(data: bytes) -> Any:
    """Return a WriteRequest. Raises ControlError for bytes that are none, as gRPC would put it."""
    try:
        return p4runtime_pb2.WriteRequest.FromString(data)
    except (DecodeError, UnicodeDecodeError) as error:
        raise ControlError(Code.INTERNAL, "Exception deserializing request!") from error


def _chunks(found: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Yield what is read, in parts that clients can receive."""
    start = size = 0
    for number, each in enumerate(found):
        if size and size + len(each) > _READ_CHUNK:
            yield found[start:number]
            start, size = number, 0
        size += len(each)
    if start < len(found):
        yield found[start:]


def _answer(context: grpc.ServicerContext, action: Callable[[], _T]) -> _T:
    """Return the action's result; its error ends the call. What nobody has thought of is INTERNAL, and
    logged.
    """
    try:
        return action()
    except ControlError as error:
        _abort(context, error)
    except Exception as error:
        _log.exception("a call failed")
        _abort(context, ControlError(Code.INTERNAL, f"{type(error).__name__}: {error}"))


def _abort(context: grpc.ServicerContext, error: ControlError) -> NoReturn:
    context.abort(grpc_code(int(error.code)), shortened(error.message))
    raise AssertionError("abort returned")
