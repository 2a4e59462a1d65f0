# SPDX-License-Identifier: Apache-2.0
"""A switch in virtual time: the real one, stepped when its queues have something due, and its links."""

from collections.abc import Callable
from functools import partial

from simulator.clock import Clock
from simulator.link import Link
from softswitch.switch import Switch


class Node:
    """A switch of a network. ``down``: it takes in nothing and sends nothing."""

    __slots__ = ("_clock", "_links", "_wake", "down", "switch")

    def __init__(self, clock: Clock, switch: Switch) -> None:
        self._clock, self.switch = clock, switch
        self._links: dict[int, Link] = {}
        self._wake: int | None = None  # the earliest time at which a step is scheduled
        self.down = False

    def attach(self, port: int, link: Link) -> None:
        """What leaves by ``port`` goes into ``link``."""
        self._links[port] = link

    def receiver(self, port: int) -> Callable[[bytes], None]:
        """What takes in the frames that arrive at ``port``."""
        return partial(self._receive, port)

    def _receive(self, port: int, frame: bytes) -> None:
        if not self.down:
            self._send(self.switch.process(port, frame, self._clock.now))

    def _step(self) -> None:
        if self._wake != self._clock.now:
            return  # an earlier step has seen to it
        self._wake = None
        if not self.down:
            self._send(self.switch.step(self._clock.now))

    def _send(self, frames: list[tuple[int, bytes]]) -> None:
        links = self._links
        for port, frame in frames:
            link = links.get(port)
            if link is not None:
                link.send(frame)
        deadline = self.switch.deadline()
        if deadline is not None and (self._wake is None or deadline < self._wake):
            self._wake = deadline
            self._clock.at(deadline, self._step)
