# SPDX-License-Identifier: Apache-2.0
"""Controllers' streams: what must be sent to each, and who of them is primary."""

import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from softp4.errors import Code, ControlError
from softp4.p4rt.arbitration import Arbiter, Notice
from softp4.p4rt.status import shortened
from softp4.p4runtime.schema import p4runtime_pb2

MAX_OPEN: Final = 64
"""Streams open at a time, over all roles, whether or not they have arbitrated."""
SILENT_S: Final = 10.0
"""What a stream gets to arbitrate; later one that has not makes room for a new one."""

_BACKLOG: Final = 4096  # messages waiting for a slow controller; of those it can do without, more are dropped
_MAX_ENTRIES: Final = 4 * _BACKLOG  # in lists that wait
_MAX_BACKLOG: Final = 2 * _BACKLOG  # of all
_log = logging.getLogger(__name__)


class Stream:
    """One controller's StreamChannel: what must be sent to it, until it ends.

    Args:
        number: to tell it from others.
        cut: breaks it off.
    """

    def __init__(self, number: int, cut: Callable[[], object]) -> None:
        self.number = number
        self._cut = cut
        self._out: queue.Queue[Any] = queue.Queue()

    def send(self, response: Any) -> None:
        """Send what the controller must hear of; who does not even read that is cut off."""
        if self._out.qsize() < _MAX_BACKLOG:
            self._out.put(response)
        else:
            _log.warning("controller %d does not read its stream: cut off", self.number)
            self.cut()

    def cut(self) -> None:
        """Break it off."""
        self._cut()

    def offer(self, response: Any, entries: int = 1) -> bool:
        """Send what the controller can do without; False when it does not keep up, and it is dropped.

        ``entries``: how many a list has. The longer the lists, the fewer may wait.
        """
        if self._out.qsize() >= min(_BACKLOG, _MAX_ENTRIES // entries):
            return False
        self._out.put(response)
        return True

    def end(self, error: ControlError | None = None) -> None:
        """Nothing is sent after what has been sent by now."""
        self._out.put(error)

    def responses(self) -> Iterator[Any]:
        """Yield everything that is sent, until ``end``; an error given to it is raised."""
        while (response := self._out.get()) is not None:
            if isinstance(response, ControlError):
                raise response
            yield response


class Sessions:
    """The streams of one device and their roles. Thread-safe.

    Args:
        device_id: of the device, for notices.
        settle: waits until every Write that has begun is done. A new primary is told that it is one only
            then, so that it never sees what the one before it writes.
    """

    def __init__(self, device_id: int, settle: Callable[[], None]) -> None:
        self._device_id = device_id
        self._settle = settle
        self._arbiter = Arbiter()
        self._lock = threading.Lock()
        self._turns = threading.Lock()  # changes are told in the order in which they were made
        self._numbers = itertools.count(1)
        self._open = 0
        self._silent: dict[Stream, float] = {}  # that have not arbitrated, oldest first: since when
        self._lost = 0

    def join(self, cut: Callable[[], object]) -> Stream:
        """Return a new stream, which ``cut`` breaks off. Raises ControlError RESOURCE_EXHAUSTED for one too
        many, unless one is open that has not said for SILENT_S whose it is: that one is broken off.
        """
        now = time.monotonic()
        with self._lock:
            silent = next((each for each, since in self._silent.items() if now - since > SILENT_S), None)
            if self._open >= MAX_OPEN and silent is None:
                raise ControlError(Code.RESOURCE_EXHAUSTED, f"{MAX_OPEN} streams are open already")
            full = self._open >= MAX_OPEN
            self._open += 1
            stream = Stream(next(self._numbers), cut)
            self._silent[stream] = now
            if silent is None or not full:
                return stream
            del self._silent[silent]
        _log.warning("stream %d has not arbitrated: cut off, as a new one needs its place", silent.number)
        silent.cut()
        return stream

    def leave(self, stream: Stream) -> None:
        """Forget a stream that has ended."""
        with self._turns:
            with self._lock:
                self._open -= 1
                self._silent.pop(stream, None)
                notices = self._arbiter.leave(stream)
            self._tell(notices)

    def arbitrate(self, stream: Stream, update: Any) -> None:
        """Take a MasterArbitrationUpdate. Raises ControlError when the stream must be ended."""
        with self._lock:
            known = self._arbiter.knows(stream)
        if update.device_id != self._device_id:
            raise ControlError(
                Code.FAILED_PRECONDITION if known else Code.NOT_FOUND,
                f"there is no device {update.device_id}; this is {self._device_id}",
            )
        if update.role.HasField("config"):
            raise ControlError(
                Code.INVALID_ARGUMENT,
                f"role.config of type {update.role.config.type_url!r}: no scheme is agreed with this switch; "
                "leave it unset (every role may do everything)",
            )
        check_role_id(update.role.id)
        election = election_id(update)
        with self._turns:
            with self._lock:
                notices = self._arbiter.update(stream, update.role.name, election)
                self._silent.pop(stream, None)
            self._tell(notices)

    def check_writer(self, request: Any) -> None:
        """Raise ControlError unless a request comes from its role's primary."""
        check_role_id(request.role_id)
        with self._lock:
            self._arbiter.check_writer(request.role, election_id(request))

    def check_primary(self, stream: Stream, what: str) -> None:
        """Raise ControlError PERMISSION_DENIED, naming ``what``, unless a stream is a primary's."""
        with self._lock:
            if stream not in self._arbiter.primaries():
                raise ControlError(Code.PERMISSION_DENIED, f"only the primary controller may {what}")

    def notify(self, response: Any, entries: int = 1) -> bool:
        """Offer a message, a list of this many entries, to the primaries of all roles.

        False when one of them did not keep up, so that it was dropped, or when there is none.
        """
        with self._lock:
            primaries = self._arbiter.primaries()
        taken = [_stream(each).offer(response, entries) for each in primaries]
        if not all(taken):
            self._lost += 1
            if self._lost.bit_count() == 1:  # 1, 2, 4, 8 ...: a log that cannot flood
                _log.warning("the controller does not keep up: %d messages lost", self._lost)
        return bool(taken) and all(taken)

    def _tell(self, notices: Iterable[Notice]) -> None:
        for notice in notices:  # a primary is the last
            if notice.code == Code.OK:
                self._settle()
            _stream(notice.stream).send(self._message(notice))

    def _message(self, notice: Notice) -> Any:
        response = p4runtime_pb2.StreamMessageResponse()
        update = response.arbitration
        update.device_id = self._device_id
        if notice.role:
            update.role.name = notice.role
        if notice.election_id is not None:
            update.election_id.high = notice.election_id >> 64
            update.election_id.low = notice.election_id & ((1 << 64) - 1)
        update.status.code = notice.code
        update.status.message = _text(notice)
        return response


def _stream(each: object) -> Stream:
    assert isinstance(each, Stream)
    return each


def _text(notice: Notice) -> str:
    if notice.code == Code.OK:
        return "you are the primary controller"
    if notice.code == Code.ALREADY_EXISTS:
        return "another controller is primary"
    if notice.election_id is None:
        return "there is no primary controller, and has been none"
    return f"there is no primary controller; one needs an election id of at least {notice.election_id}"


def election_id(message: Any) -> int | None:
    """Return the election id of a request or an arbitration update; None when it has none."""
    if not message.HasField("election_id"):
        return None
    return int(message.election_id.high) << 64 | int(message.election_id.low)


def check_role_id(number: int) -> None:
    """Raise ControlError for a role given by number, which would otherwise count as the default role."""
    if number:
        raise ControlError(
            Code.INVALID_ARGUMENT, f"role id {number}: roles have names since P4Runtime 1.4, not numbers"
        )


def stream_error(error: ControlError, request: Any) -> Any:
    """Return the StreamMessageResponse that tells of a bad StreamMessageRequest."""
    response = p4runtime_pb2.StreamMessageResponse()
    response.error.canonical_code = int(error.code)
    response.error.message = shortened(error.message)
    kind = request.WhichOneof("update")
    if kind == "packet":
        response.error.packet_out.SetInParent()
        if request.ByteSize() <= _MAX_ECHO:
            response.error.packet_out.packet_out.CopyFrom(request.packet)
    elif kind == "digest_ack":
        response.error.digest_list_ack.digest_list_ack.CopyFrom(request.digest_ack)
    else:
        response.error.other.SetInParent()
        if kind == "other" and request.ByteSize() <= _MAX_ECHO:
            response.error.other.other.CopyFrom(request.other)
    return response


_MAX_ECHO: Final = 4096  # bytes: what is longer is not sent back, and waits nowhere
