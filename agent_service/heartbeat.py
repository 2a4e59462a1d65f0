# SPDX-License-Identifier: Apache-2.0
"""The heartbeats that keep a worker a member, and the news of its job that comes back, in one thread.

A stream that breaks because the controller is gone, or has no room for it, is opened again for as long as the
lease lasts, so that a controller that restarts and remembers its jobs (``--state-file``) finds its members
again.
"""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from weir.agent_service.proto import agent_pb2

POLL_S = 0.25  # how soon a program that ends without leaving is noticed
RETRY_S = 0.1
_BROKEN = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.RESOURCE_EXHAUSTED,  # too much is asked of the controller by others of this address
)


class HeartbeatThread:
    """A membership's stream, open until ``close`` or the end of the job.

    Args:
        attend: the stub's ``Attend``.
        beat: the heartbeat to send, at three times the rate that the lease demands.
        lease_s: the lease.
        heard: called in its thread with every ``JobEvent``; the last one is STOPPED, made up here
            when the controller itself is lost.
    """

    def __init__(self, attend: Any, beat: Any, lease_s: float, heard: Callable[[Any], None]) -> None:
        self._attend = attend
        self._beat = beat
        self._lease_s = lease_s
        self._heard = heard
        self.program_ends_cleanly = False
        """Somebody else ends the membership when the program ends without having done so."""
        self._ended = threading.Event()
        self._speak = threading.Event()  # wakes the sender: at the end, and for an answer
        self._busy = False
        self._silent = threading.Event()
        self._lock = threading.Lock()
        self._call: Any = None
        self._thread = threading.Thread(target=self._run, name=f"weir-agent-{beat.rank}")
        self._thread.start()

    def leaving(self) -> None:
        """Expect the stream to break: from now on that is no news."""
        self._silent.set()

    def say_busy(self) -> None:
        """Send a heartbeat at once that says that the job needs its slots."""
        self._busy = True
        self._speak.set()

    def close(self) -> None:
        """End stream and thread; may be called from ``heard``."""
        self._silent.set()
        self._ended.set()
        self._speak.set()
        with self._lock:
            if self._call is not None:
                self._call.cancel()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        lost_at: float | None = None
        while self._open():
            attended, reason = self._listen()
            if reason is None or self._ended.is_set():
                return
            now = time.monotonic()
            lost_at = now if attended or lost_at is None else lost_at
            if self._call.code() not in _BROKEN or now - lost_at >= self._lease_s:
                self._stopped(reason)
                return
            self._ended.wait(RETRY_S)

    def _open(self) -> bool:
        with self._lock:
            if self._ended.is_set() or self._deserted:
                return False
            self._call = self._attend(self._heartbeats())
            return True

    def _listen(self) -> tuple[bool, str | None]:
        """Pass on events; return whether there were any, and why the stream broke: None if the job ended."""
        attended = False
        try:
            for event in self._call:
                attended = True
                if event.kind == agent_pb2.JobEvent.STOPPED:
                    self._stopped(event.reason)
                    return attended, None
                self._heard(event)
        except grpc.RpcError as error:
            code, details = error.code(), error.details() or ""
            return attended, f"lost the controller: {details or code.name}" if code in _BROKEN else details
        return attended, "the controller ended the membership without a reason"

    @property
    def _deserted(self) -> bool:
        """Return whether the program has ended, and nobody ends the membership."""
        return not self.program_ends_cleanly and not threading.main_thread().is_alive()

    def _stopped(self, reason: str) -> None:
        if not self._silent.is_set():
            self._heard(agent_pb2.JobEvent(kind=agent_pb2.JobEvent.STOPPED, reason=reason))

    def _heartbeats(self) -> Iterator[Any]:
        """Run in a thread of grpc's, which stops asking when the stream is over."""
        while True:
            yield self._beat
            if self._busy:
                self._busy = False
                yield agent_pb2.Heartbeat(busy=True)
            if self._pause(self._lease_s / 3):
                return

    def _pause(self, seconds: float) -> bool:
        """Wait until then or until there is something to say; return True when the stream is to end.

        That is at close, or when the program has ended without one.

        This thread keeps an interpreter from exiting. A worker that dies of an exception must not
        live on in its heartbeats while the others wait for it.
        """
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if self._speak.wait(left if self.program_ends_cleanly else min(left, POLL_S)):
                self._speak.clear()
                if not self._ended.is_set():
                    return False
                self._speak.set()  # the sender of an earlier stream may still wait
                return True
            if self._deserted:
                self.leaving()
                self._ended.set()
                self._call.cancel()
                return True
        return False
