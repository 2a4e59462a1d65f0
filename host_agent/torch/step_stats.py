# SPDX-License-Identifier: Apache-2.0
"""Counts of one training step, as the DDP hook made them."""

from dataclasses import dataclass, field, fields
from operator import add, attrgetter, sub

from weir.host_agent.compression.exchange import ExchangeResult
from weir.host_agent.transport.counters import COUNTERS, TransportCounters
from weir.host_agent.transport.reducer import ReducerStats
from weir.host_agent.transport.report import Account

_OF_THE_VALUES = frozenset({"blocks", "blocks_sent"})  # of their reduction alone
_COUNTED = (*(name for name in COUNTERS if name not in _OF_THE_VALUES), "missing", "budget", "reduces")
_counted = attrgetter(*_COUNTED)


@dataclass(frozen=True, kw_only=True)
class StepStats(TransportCounters):
    """One training step on this worker, over all buckets: the transport's counters, and what the hook counts.

    entered = included + returned, in fixed-point lanes. ``blocks`` are those of the values, in what the
    encoding made of the gradients, and ``blocks_sent`` those of them of which this worker sent lanes; the
    other counters are of every reduction of the step.

    Attributes:
        step: from 1.
        elements: of the gradients.
        sent_elements: those that this worker chose and that are not zero.
        union_elements: those that some worker chose, the same on all of them.
        seconds: in the hook's operations, from the copy out of the buckets to the copy back.
        selection_seconds: of that, in choosing what is sent.
        reduce_seconds: in reductions.
        reduces: how many they were, one after another: each waits for a round trip at least.
        missing: lanes that no result included, at most ``budget`` of them.
    """

    step: int = 0
    elements: int = 0
    sent_elements: int = 0
    union_elements: int = 0
    seconds: float = 0.0
    selection_seconds: float = 0.0
    reduce_seconds: float = 0.0
    reduces: int = 0
    missing: int = 0
    budget: int = 0
    entered: Account = field(default_factory=Account)
    included: Account = field(default_factory=Account)
    returned: Account = field(default_factory=Account)

    @classmethod
    def of(
        cls,
        done: ExchangeResult,
        before: ReducerStats,
        after: ReducerStats,
        *,
        step: int,
        elements: int,
        seconds: float,
    ) -> "StepStats":
        """Return one bucket's part of a step. before, after: the group's, at its begin and its end."""
        return cls(
            step=step,
            elements=elements,
            sent_elements=done.chosen_elements,
            union_elements=done.union_elements,
            seconds=seconds,
            selection_seconds=done.seconds.choice + done.seconds.mask,
            blocks=done.blocks,
            reduce_seconds=after.seconds - before.seconds,
            blocks_sent=done.report.blocks_sent,
            entered=done.report.entered,
            included=done.report.included,
            returned=done.report.returned,
            **dict(zip(_COUNTED, map(sub, _counted(after), _counted(before)), strict=True)),
        )

    @property
    def density(self) -> float:
        """Share of the elements that this worker chose."""
        return self.sent_elements / self.elements if self.elements else 0.0

    def plus(self, other: "StepStats") -> "StepStats":
        """Return the sum of two parts of one step.

        Args:
            other: the other part.
        """
        sums = map(add, _all(self), _all(other))
        return StepStats(**{**dict(zip(_ALL, sums, strict=True)), "step": other.step})


_ALL = tuple(field.name for field in fields(StepStats))
_all = attrgetter(*_ALL)
