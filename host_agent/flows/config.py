# SPDX-License-Identifier: Apache-2.0
"""Settings of a flow, on which both ends agree before its first packet."""

import secrets
from dataclasses import dataclass
from typing import Final

from weir.wire.definition import FLOW, FLOW_WORKERS

MAX_DATA: Final = 1500 - 20 - 8 - FLOW.size
"""Bytes behind the flow header in an IPv4 packet of 1500 bytes: no packet of a flow needs a larger MTU."""

MAX_CHUNK_LANES: Final = MAX_DATA // 4
CHUNK_LANES: Final = 352
"""Lanes in a chunk unless said otherwise: eleven lane groups, 1474 bytes on the wire."""


@dataclass(frozen=True)
class FlowConfig:
    """One flow: who it is of, how it cuts tensors, and how patient its sender is.

    flow: the 32-bit id that packets carry; take it from ``new_flow_id``, so that a stranger must guess it.
    worker: whose flow this is, whichever end sends.
    chunk_lanes: float32 values in a chunk, the same at both ends.
    open_tensors: how many tensors may be under way at once, the same at both ends: what a receiver remembers.
    max_lanes: longest tensor that the receiver makes room for.
    max_loss: greatest share of a tensor's lanes that the receiver lets any sender's budgets give up.
    early_stop: the receiver takes a tensor for delivered as soon as its budgets allow what is missing, even
    if that may be on its way still (MLT's rule); otherwise only when nothing is.
    Times in seconds. initial_rto, max_rto: how long to wait for an answer before a round trip was measured,
    and at most. min_probe: by how much longer than a round trip, at least; all that a timer does is to ask.
    congestion: keep a window at all.
    first_window: chunks under way before the first answer.
    """

    flow: int
    worker: int = 0
    chunk_lanes: int = CHUNK_LANES
    open_tensors: int = 16
    max_lanes: int = 1 << 28
    max_loss: float = 1.0
    early_stop: bool = False
    initial_rto: float = 0.05
    min_probe: float = 0.0002
    max_rto: float = 1.0
    congestion: bool = True
    first_window: int = 32

    def __post_init__(self) -> None:
        if not 0 <= self.flow <= 0xFFFFFFFF:
            raise ValueError(f"flow id {self.flow} is no 32-bit number")
        if not 0 <= self.worker < FLOW_WORKERS:
            raise ValueError(f"worker {self.worker} is not in 0..{FLOW_WORKERS - 1}")
        if not 1 <= self.chunk_lanes <= MAX_CHUNK_LANES:
            raise ValueError(f"a chunk has 1 to {MAX_CHUNK_LANES} lanes, not {self.chunk_lanes}")
        for name in ("open_tensors", "max_lanes", "first_window"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.max_lanes > 0xFFFFFFFF:
            raise ValueError(f"max_lanes {self.max_lanes}: a tensor has fewer than 2^32 lanes")
        if not 0.0 <= self.max_loss <= 1.0:
            raise ValueError(f"max_loss {self.max_loss} is no share from 0 to 1")
        if not 0 < self.min_probe <= self.initial_rto <= self.max_rto:
            raise ValueError(
                "times must satisfy 0 < min_probe <= initial_rto <= max_rto, not "
                f"{self.min_probe}, {self.initial_rto}, {self.max_rto}"
            )

    def chunks(self, lanes: int) -> int:
        """Return how many chunks a tensor of this many lanes has."""
        return -(-lanes // self.chunk_lanes)


def new_flow_id() -> int:
    """Return a random flow id."""
    return secrets.randbits(32)
