# SPDX-License-Identifier: Apache-2.0
"""Ring all-reduce over TCP streams, as Gloo does it: what dense training without Weir waits for.

The vector is cut into as many chunks as there are hosts, each in two segments that are under way at the same
time. In 2(n - 1) steps every host passes a chunk to its right neighbour, each segment as soon as the same
segment of the step before has arrived from the left. Additions take no time.
"""

from collections.abc import Callable, Sequence

from weir.simulator.network import Network
from weir.simulator.stream import Stream
from weir.simulator.tcp import TcpConfig

SEGMENTS = 2  # of a chunk


class Ring:
    """A persistent stream from each host to its right neighbour; all-reduces are done one after another."""

    def __init__(self, network: Network, hosts: Sequence[str], config: TcpConfig | None = None) -> None:
        self._members = [_RingHost(len(hosts)) for _ in hosts]
        for left, member in enumerate(self._members):
            right = (left + 1) % len(hosts)
            member.to_right = network.stream(hosts[left], hosts[right], config)
            member.to_right.on_bytes = self._members[right].on_bytes

    @property
    def streams(self) -> list[Stream]:
        """Return all streams, by sending host."""
        return [member.to_right for member in self._members]

    def all_reduce(self, rank: int, length: int, done: Callable[[], None]) -> None:
        """Begin to all-reduce ``length`` bytes at host ``rank``, as all must; ``done``: it has the result."""
        self._members[rank].begin(length, done)


class _RingHost:
    """One host: counts segments in, and lets as many out."""

    def __init__(self, size: int) -> None:
        self._steps = 2 * (size - 1)
        self._size = size
        self.to_right: Stream
        self._arrived = 0  # bytes, over all all-reduces
        self._finished = 0  # the bytes of those that are done here
        self._work: list[tuple[int, Callable[[], None]]] = []  # (bytes of a segment, done)
        self._sent = 0  # segments of the current one

    def begin(self, length: int, done: Callable[[], None]) -> None:
        parts = self._size * SEGMENTS
        self._work.append((max(1, (length + parts - 1) // parts), done))
        if len(self._work) == 1:
            self._start()

    def on_bytes(self, total: int) -> None:
        self._arrived = total
        self._advance()

    def _start(self) -> None:
        self._sent = SEGMENTS
        self.to_right.write(self._work[0][0] * SEGMENTS)
        self._advance()

    def _advance(self) -> None:
        while self._work:
            segment, done = self._work[0]
            have = min((self._arrived - self._finished) // segment, self._steps * SEGMENTS)
            may_send = min(have + SEGMENTS, self._steps * SEGMENTS)
            if may_send > self._sent:
                self.to_right.write((may_send - self._sent) * segment)
                self._sent = may_send
            if have < self._steps * SEGMENTS:
                return
            self._finished += have * segment
            self._work.pop(0)
            done()
            if self._work:
                self._sent = SEGMENTS
                self.to_right.write(self._work[0][0] * SEGMENTS)
