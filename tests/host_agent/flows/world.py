# SPDX-License-Identifier: Apache-2.0
"""Two hosts and a network between them that does everything a network can do to a packet, in virtual time."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import numpy as np
import numpy.typing as npt

from weir.host_agent.flows import Delivery, FlowConfig, FlowReceiver, FlowSender, Settlement
from weir.host_agent.flows.frames import Address
from weir.host_agent.transport.ledger import Ledger
from weir.host_agent.transport.report import FRAME_OVERHEAD
from weir.host_agent.transport.service_class import LOSSLESS, ServiceClass
from weir.simulator.clock import SECOND, Clock, StuckError
from weir.simulator.flowhost import FlowHost
from weir.simulator.link import Faults, Link
from weir.wire.definition import CE, ECT, FLOW, RELIABLE_DSCP, Flag, FlowType

FLOW_ID = 0xC0FFEE42
A, B = Address("10.0.0.1"), Address("10.0.0.2")
MACS = {A.ip: "02:00:00:00:00:01", B.ip: "02:00:00:00:00:02"}

Floats = npt.NDArray[np.float32]
_NEVER = 1 << 62


def is_chunk(frame: bytes) -> bool:
    return frame[FRAME_OVERHEAD] & 15 == FlowType.CHUNK


def is_protected(frame: bytes) -> bool:
    return bool(frame[FRAME_OVERHEAD + 1] & Flag.PROTECTED)


def set_class(frame: bytearray, traffic_class: int) -> None:
    """Change DSCP and ECN, and the header checksum with them."""
    frame[15] = traffic_class
    frame[24:26] = b"\0\0"
    total = sum(int.from_bytes(frame[at : at + 2], "big") for at in range(14, 34, 2))
    total = (total & 0xFFFF) + (total >> 16)
    frame[24:26] = (0xFFFF ^ ((total & 0xFFFF) + (total >> 16))).to_bytes(2, "big")


def trim(frame: bytes) -> bytes:
    """Return what a switch makes of a packet that it has no room for."""
    cut = bytearray(frame[: FRAME_OVERHEAD + FLOW.size])
    cut[FRAME_OVERHEAD + 1] |= Flag.TRIMMED
    cut[16:18] = (len(cut) - 14).to_bytes(2, "big")
    cut[38:40] = (len(cut) - 34).to_bytes(2, "big")
    set_class(cut, RELIABLE_DSCP << 2 | ECT)
    return bytes(cut)


def mark(frame: bytes) -> bytes:
    """Return what a switch does to a protected packet instead."""
    marked = bytearray(frame)
    if marked[15] & 3:
        set_class(marked, marked[15] | CE)
    return bytes(marked)


@dataclass(frozen=True)
class Meddling:
    """Probabilities of one frame.

    trim: of chunks that may be. trim_any: of whatever has data. garbage: something else arrives beside it.
    """

    trim: float = 0.0
    trim_any: float = 0.0
    mark: float = 0.0
    garbage: float = 0.0


@dataclass
class Path:
    """One direction: a link with faults, behind something that trims, marks and spoils."""

    clock: Clock
    random: Random
    faults: Faults
    meddling: Meddling
    deliver: Callable[[bytes], None]
    seen: list[bytes] = field(default_factory=list)
    drop: Callable[[bytes], bool] = lambda frame: False
    change: Callable[[bytes], bytes] = lambda frame: frame

    def __post_init__(self) -> None:
        self.link = Link(self.clock, self.random, self.faults, self.deliver)

    def send(self, frame: bytes) -> None:
        self.seen.append(frame)
        if self.drop(frame):
            return
        frame = self.change(frame)
        may_trim = is_chunk(frame) and not is_protected(frame)
        has_data = len(frame) > FRAME_OVERHEAD + FLOW.size
        draw = self.random.random
        if has_data and draw() < (self.meddling.trim if may_trim else 0) + self.meddling.trim_any:
            frame = trim(frame)
        elif draw() < self.meddling.mark:
            frame = mark(frame)
        if draw() < self.meddling.garbage:
            self.link.send(self._garbage(frame))
        self.link.send(frame)

    def _garbage(self, frame: bytes) -> bytes:
        """Return a relative of the frame that UDP's checksum would not catch, since nobody sent it: other
        versions,
        types, flags, flows, workers, lengths."""
        spoiled = bytearray(frame)
        match self.random.randrange(4):
            case 0:
                spoiled[FRAME_OVERHEAD + self.random.choice([0, 1])] ^= 1 << self.random.randrange(4, 8)
            case 1:
                spoiled[FRAME_OVERHEAD + self.random.randrange(3, 8)] ^= 1 << self.random.randrange(8)
            case 2:
                cut = self.random.randrange(FRAME_OVERHEAD, FRAME_OVERHEAD + FLOW.size)
                return bytes(frame[:cut])
            case _:
                spoiled[FRAME_OVERHEAD:] = self.random.randbytes(len(frame) - FRAME_OVERHEAD)
        return bytes(spoiled)


class World:
    """A sender at A, a receiver at B."""

    def __init__(
        self,
        config: FlowConfig,
        seed: int = 0,
        there: Faults | None = None,
        back: Faults | None = None,
        meddling: Meddling | None = None,
        meddling_back: Meddling | None = None,
    ) -> None:
        self.clock = Clock()
        random = Random(seed)
        self.sender, self.receiver = FlowSender(config), FlowReceiver(config)
        self.there = Path(self.clock, random, there or Faults(), meddling or Meddling(), self._at_right)
        self.back = Path(self.clock, random, back or Faults(), meddling_back or Meddling(), self._at_left)
        self.left = FlowHost(self.clock, A, MACS[A.ip], MACS.__getitem__, self.there.send)
        self.right = FlowHost(self.clock, B, MACS[B.ip], MACS.__getitem__, self.back.send)
        self.left.add(self.sender, B)
        self.right.add(self.receiver, A)
        self.deliveries: dict[int, Delivery] = {}
        self.settlements: dict[int, Settlement] = {}

    def submit(self, values: Floats, service: ServiceClass = LOSSLESS, number: int | None = None) -> int:
        submitted = self.sender.submit(values, service, number)
        self.left.pump()
        return submitted

    def run(self, limit: float = 3600.0) -> None:  # one packet in the air, two of three lost: ten minutes
        """Until the sender has settled everything, and nothing is in the air any more."""
        if not self.clock.run(self.clock.now + round(limit * SECOND), self._is_settled):
            raise StuckError(f"tensors {self.sender.waiting()} at {self.clock.now / SECOND:.3f} s")
        self.clock.run(_NEVER, lambda: False)
        self._collect()

    def step(self, actions: int) -> None:
        """Let this many things happen, or all that will."""
        left = iter(range(actions))
        self.clock.run(_NEVER, lambda: next(left, None) is None)

    def _is_settled(self) -> bool:
        self._collect()
        return self.sender.idle

    def _at_left(self, frame: bytes) -> None:
        self.left.receive(frame)

    def _at_right(self, frame: bytes) -> None:
        self.right.receive(frame)

    def _collect(self) -> None:
        for delivery in self.receiver.deliveries():
            assert delivery.tensor not in self.deliveries, "delivered twice"
            self.deliveries[delivery.tensor] = delivery
        for settlement in self.sender.settlements():
            assert settlement.tensor not in self.settlements, "settled twice"
            self.settlements[settlement.tensor] = settlement


def check(values: Floats, delivery: Delivery, settlement: Settlement) -> None:
    """What holds of every transfer, whatever happened to it."""
    # both ends agree on what was delivered
    np.testing.assert_array_equal(delivery.received, settlement.delivered)
    assert delivery.account == settlement.kept
    # conservation, in the books and in the data, bit by bit
    assert settlement.entered == settlement.kept + settlement.returned
    words = values.view(np.uint32)
    residual = settlement.residual().view(np.uint32)
    came = delivery.lanes_received()
    np.testing.assert_array_equal(delivery.values.view(np.uint32), np.where(came, words, 0))
    np.testing.assert_array_equal(residual, np.where(came, 0, words))
    np.testing.assert_array_equal(residual | delivery.values.view(np.uint32), words)
    # never more than the budget of any account
    Ledger().enter(settlement.posting(1, "tensor"))
    assert (settlement.missing <= settlement.budgets).all()
    assert int(settlement.missing.sum()) == settlement.returned.lanes == int((~came).sum())
