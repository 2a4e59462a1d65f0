# SPDX-License-Identifier: Apache-2.0
"""What is around the two pipelines: metadata in front of packets, the traffic manager, mirrors.

Metadata that a program has no business with are not zero on the chip, and lie beside what it reads, in the
same bytes. They are drawn at random here.
"""

import random
from collections.abc import Mapping, Sequence
from typing import Final

from tests.harness.bfa.assembly import UnknownLineError
from tests.harness.bfa.deparser import Deparsed
from tests.harness.bfa.parser import TooShortError
from tests.harness.bfa.pipeline import Program

_DROP: Final = 1  # of the drop control: neither sent nor replicated

Out = tuple[int, bytes]


class Chip:
    """One pipe: a packet in, everything that leaves out.

    Args:
        mirrors: sessions to (port, bytes that are left of the packet).
    """

    def __init__(self, program: Program, mirrors: Mapping[int, tuple[int, int]], seed: int = 0) -> None:
        self.program = program
        self.groups: dict[int, Sequence[tuple[int, int]]] = {}  # of (port, replication id)
        self.depth = 0  # of every queue, in cells, when a packet leaves it
        self._mirrors = mirrors
        self._random = random.Random(seed)

    def send(self, port: int, frame: bytes) -> list[Out]:
        """Let a frame in at a port; return what leaves, in the order of replication.

        Raises:
            UnknownLineError: the program asks for what is not modelled, or does what the chip forbids.
        """
        try:
            passed = self.program.ingress.run(self._ingress_metadata(port) + frame)
        except TooShortError:
            return []
        if passed.mirrored is not None:
            raise UnknownLineError("a mirror of ingress")
        told = passed.told
        if _dropped(passed):
            return []
        copies = list(self.groups.get(told.get("group", 0), ()))
        if "egress_unicast_port" in told:
            copies.append((told["egress_unicast_port"], 0))
        return [
            out
            for to, replica in copies
            for out in self._leave(to, replica, told.get("qid", 0), passed.frame)
        ]

    def _leave(self, port: int, replica: int, queue: int, data: bytes) -> list[Out]:
        try:
            passed = self.program.egress.run(self._egress_metadata(port, replica, queue) + data)
        except TooShortError:
            return []
        sent = [] if _dropped(passed) else [(passed.told["egress_unicast_port"], passed.frame)]
        # What is mirrored to a session that nobody has set up goes nowhere.
        if (mirrored := passed.mirrored) is not None and mirrored.session in self._mirrors:
            to, length = self._mirrors[mirrored.session]
            sent += self._leave(to, 0, queue, mirrored.front + passed.frame[:length])
        return sent

    def _ingress_metadata(self, port: int) -> bytes:
        """Return the intrinsic metadata, and the port's of this program, which has none."""
        version = self._random.getrandbits(2)
        return _packed((0, 1), (0, 1), (version, 2), (0, 3), (port, 9)) + self._random.randbytes(6 + 8)

    def _egress_metadata(self, port: int, replica: int, queue: int) -> bytes:
        """Return the intrinsic metadata, whose padding is zero."""
        noise = self._random.getrandbits
        return _packed(
            *((0, 7), (port, 9)),
            *((0, 5), (noise(19), 19)),  # depth when it was enqueued
            *((0, 6), (noise(2), 2)),  # congestion then
            *((0, 14), (noise(18), 18)),  # time then
            *((0, 5), (self.depth, 19)),
            *((0, 6), (noise(2), 2)),  # congestion when it was dequeued
            (noise(8), 8),  # of the application's pools
            *((0, 14), (noise(18), 18)),  # time in the queue
            (replica, 16),
            *((0, 7), (noise(1), 1)),  # first of the group
            *((0, 3), (queue, 5)),
            *((0, 5), (noise(3), 3)),  # class of service
            *((0, 7), (0, 1)),  # deflected
            (noise(16), 16),  # length
        )


def _dropped(passed: Deparsed) -> bool:
    control = passed.told.get("drop_ctl", 0)
    if control not in (0, _DROP):
        raise UnknownLineError(f"drop control {control}")
    return bool(control)


def _packed(*fields: tuple[int, int]) -> bytes:
    """Return (value, bits) one after another."""
    total = bits = 0
    for value, width in fields:
        total, bits = total << width | value, bits + width
    return total.to_bytes(bits // 8, "big")
