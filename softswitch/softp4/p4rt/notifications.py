# SPDX-License-Identifier: Apache-2.0
"""Notifications: the running program tells controllers of digests, and of entries that have timed out."""

import logging
import time
from typing import Any

from softp4.errors import Code, ControlError
from softp4.p4rt.idle import idle_notifications
from softp4.p4rt.pipeline import Pipeline, PipelineStore
from softp4.p4rt.sessions import Sessions, Stream
from softp4.p4runtime.schema import p4runtime_pb2

_log = logging.getLogger(__name__)


class Notifications:
    """Asks the switch and tells the primary controllers. Thread-safe.

    Args:
        pipelines: the device's programs.
        sessions: the controllers' streams.
    """

    def __init__(self, pipelines: PipelineStore, sessions: Sessions) -> None:
        self._pipelines = pipelines
        self._sessions = sessions
        self._lost = 0

    def tick(self, now: int) -> bool:
        """Send what is due at ``now``, in nanoseconds of the switch's time; to be called often.

        Returns whether the running program has anything to tell at all.
        """
        running = self._pipelines.running
        if running is None or not (running.tells or running.ages):
            return False
        with self._pipelines.lock:
            pipeline = self._pipelines.running
            if pipeline is not None and pipeline.ages:
                self._tell_idle(pipeline, now)
            if pipeline is not None and pipeline.tells:
                self._tell_digests(pipeline, now)
        return True

    def _tell_idle(self, pipeline: Pipeline, now: int) -> None:
        expired = pipeline.switch.expired(now)
        for message in idle_notifications(pipeline, expired, time.time_ns()):
            response = p4runtime_pb2.StreamMessageResponse(idle_timeout_notification=message)
            self._sessions.notify(response, len(message.table_entry))

    def _tell_digests(self, pipeline: Pipeline, now: int) -> None:
        for digest in pipeline.switch.digests.take():
            pipeline.digests.add(digest, now)
        for message in pipeline.digests.due(now):
            message.timestamp = time.time_ns()
            response = p4runtime_pb2.StreamMessageResponse(digest=message)
            if not self._sessions.notify(response, len(message.data)):
                pipeline.digests.forget(message.digest_id, message.list_id)
        lost = pipeline.switch.digests.lost()
        if lost.bit_length() > self._lost.bit_length():  # a log that cannot flood
            _log.warning("digests arrive faster than they can be sent: %d digests lost", lost)
        self._lost = lost

    def acknowledge(self, stream: Stream, request: Any) -> None:
        """Take a DigestListAck from a controller. Raises ControlError."""
        self._sessions.check_primary(stream, "acknowledge digests")
        with self._pipelines.lock:
            pipeline = self._pipelines.running
            if pipeline is None:
                raise ControlError(Code.FAILED_PRECONDITION, "no pipeline is loaded")
            pipeline.digests.acknowledge(request.digest_ack)
