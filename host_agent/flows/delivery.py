# SPDX-License-Identifier: Apache-2.0
"""Fates of tensors: what a receiver delivers, and what its sender knows of it."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from weir.host_agent.flows.codec import Bits
from weir.host_agent.transport.ledger import Direction, Posting
from weir.host_agent.transport.report import Account

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Delivery:
    """A tensor as it was delivered: what both ends agree on.

    received: the chunks that came. values: float32, zero where nothing came. account: lanes that came,
    and the sum of their bit patterns. missing, budgets: lanes per account, known when something is missing.
    """

    flow: int
    worker: int
    tensor: int
    layer: int
    chunk_lanes: int
    received: Bits
    values: Floats
    account: Account
    missing: tuple[int, ...] = ()
    budgets: tuple[int, ...] = ()

    @property
    def complete(self) -> bool:
        """Return whether all of it came."""
        return self.account.lanes == self.values.size

    def lanes_received(self) -> Bits:
        """Return for each lane whether it came."""
        return np.repeat(self.received, self.chunk_lanes)[: self.values.size]


@dataclass(frozen=True)
class Settlement:
    """Fate of one tensor, as both ends know it.

    delivered: chunks that the receiver has and used. entered = kept + returned, exactly: lanes, and the sums
    of their bit patterns. missing, budgets: lanes per account. trimmed: chunks that came without their data;
    resent: chunks sent again; probes, timeouts: questions asked, and those of them that a timer asked.
    began, ended: times of the first packet and of the receiver's final word.
    """

    tensor: int
    layer: int
    lanes: int
    delivered: Bits
    entered: Account
    kept: Account
    returned: Account
    missing: npt.NDArray[np.uint64]
    budgets: npt.NDArray[np.uint64]
    resent: int
    trimmed: int
    probes: int
    timeouts: int
    began: int
    ended: int
    chunk_lanes: int
    _values: Floats = field(repr=False)

    @property
    def complete(self) -> bool:
        """Return whether all of it was delivered."""
        return self.returned.lanes == 0

    def posting(self, step: int, bucket: str) -> Posting:
        """Return the settlement as an entry of the ledger."""
        missing, budgets = (tuple(lanes.tolist()) for lanes in (self.missing, self.budgets))
        return Posting(step, bucket, Direction.UP, self.entered, self.kept, self.returned, missing, budgets)

    def residual(self) -> Floats:
        """Return the values that were not delivered, zero elsewhere."""
        lost = np.repeat(~self.delivered, self.chunk_lanes)[: self.lanes]
        return np.where(lost, self._values, np.float32(0))
