# SPDX-License-Identifier: Apache-2.0
"""A host's network interface: what its programs send leaves one frame at a time, at the link's rate.

That a host serves its queues by DSCP, as the switches do, is a choice of ours: a host's own background
traffic would otherwise stand in the way of its gradients before the network could do anything about it.
"""

from collections import deque
from typing import Protocol

from weir.simulator.clock import Clock
from weir.simulator.link import Link

QUEUES = 8
_TOS = 15  # offset of the traffic class byte in an Ethernet frame with IPv4


class Source(Protocol):
    """Something that makes its frames when the link is free, and so never fills the interface's queue."""

    def next_frame(self, now: int) -> bytes | None:
        """Return the frame to send now; None when there is none, until the source asks to be served again."""


class Nic:
    """Eight queues, the one of the greatest DSCP class first; one queue for all without ``priorities``.

    Frames wait without limit, as a host has memory for what it sends; sources of one queue alternate.
    """

    __slots__ = ("_clock", "_free_at", "_link", "_queues", "_scheduled", "_waiting", "priorities")

    def __init__(self, clock: Clock, link: Link, priorities: bool = True) -> None:
        self._clock, self._link = clock, link
        self.priorities = priorities
        self._queues: tuple[deque[bytes | Source], ...] = tuple(deque() for _ in range(QUEUES))
        self._waiting = 0  # a bit for each queue that is not empty
        self._free_at = 0
        self._scheduled = False

    def send(self, frame: bytes) -> None:
        """Send the frame when its turn comes."""
        self._put(frame[_TOS] >> 5 if self.priorities else 0, frame)

    def serve(self, source: Source, queue: int = 0) -> None:
        """Let ``source`` send until it returns None; only then may it be served again."""
        self._put(queue if self.priorities else 0, source)

    def _put(self, queue: int, item: bytes | Source) -> None:
        self._queues[queue].append(item)
        self._waiting |= 1 << queue
        if not self._scheduled:
            now = self._clock.now
            if self._free_at <= now:
                self._next()
            else:
                self._scheduled = True
                self._clock.at(self._free_at, self._wake)

    def _wake(self) -> None:
        self._scheduled = False
        self._next()

    def _next(self) -> None:
        """Send the next frame, as the link is free, and come back when it is free again."""
        clock, link = self._clock, self._link
        while self._waiting:
            frame = self._take()
            if frame is None:
                continue
            self._free_at = clock.now + link.duration(frame)
            link.send(frame)
            if self._waiting and self._free_at > clock.now:
                self._scheduled = True
                clock.at(self._free_at, self._wake)
                return

    def _take(self) -> bytes | None:
        number = self._waiting.bit_length() - 1
        queue = self._queues[number]
        item = queue.popleft()
        frame = item if isinstance(item, bytes) else item.next_frame(self._clock.now)
        if frame is not None and frame is not item:
            queue.append(item)  # there may be more
        elif not queue:
            self._waiting &= ~(1 << number)
        return frame
