# SPDX-License-Identifier: Apache-2.0
"""What one training step did, as the DDP hook counted it."""

from dataclasses import dataclass, field, fields

from weir.host_agent.transport.report import Account


@dataclass(frozen=True)
class StepStats:
    """What one training step did on this worker, over all buckets.

    elements: of the gradients; sent_elements: those that this worker chose and that are not zero;
    union_elements: those that some worker chose, the same on all of them. blocks: of the packets, in what the
    format made of the gradients; blocks_sent: those of which this worker sent lanes.
    seconds: in the hook's operations, from the copy out of the buckets to the copy back; selection_seconds:
    of that, in choosing what is sent; reduce_seconds: in reductions. Packets and bytes are on the wire, all
    headers included. entered = included + returned, in fixed-point lanes.
    timeouts: timers that fired; retransmissions: packets sent again, of which releases gave their lanes up;
    repeats_asked: by the aggregator; marked: results that told of congestion; trimmed: rounds whose result
    lacks this worker's lanes. missing: lanes that no result included, at most budget of them.
    """

    step: int = 0
    elements: int = 0
    sent_elements: int = 0
    union_elements: int = 0
    seconds: float = 0.0
    selection_seconds: float = 0.0
    reduce_seconds: float = 0.0
    packets_up: int = 0
    packets_down: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    blocks: int = 0
    blocks_sent: int = 0
    timeouts: int = 0
    retransmissions: int = 0
    releases: int = 0
    repeats_asked: int = 0
    trimmed: int = 0
    marked: int = 0
    missing: int = 0
    budget: int = 0
    entered: Account = field(default_factory=Account)
    included: Account = field(default_factory=Account)
    returned: Account = field(default_factory=Account)

    @property
    def density(self) -> float:
        """Share of the elements that this worker chose."""
        return self.sent_elements / self.elements if self.elements else 0.0

    @property
    def union_density(self) -> float:
        """Share of the elements that some worker chose."""
        return self.union_elements / self.elements if self.elements else 0.0

    def plus(self, other: "StepStats") -> "StepStats":
        """Return the sum of two parts of one step."""
        sums = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        return StepStats(**{**sums, "step": other.step})
