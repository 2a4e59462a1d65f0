# SPDX-License-Identifier: Apache-2.0
"""The conservation ledger: what entered is what a result included plus what was given back. Exactly.

And what was given back is within the bucket's loss budget, account by account.

Every worker keeps one. Sums are of lanes, integers, so "exactly" means equal. What entered is counted before
anything is sent, what was included when a result is applied, by different code over the same memory: a
block lost, applied twice or overwritten early shows as a difference.

Example::

    ledger = Ledger()
    ledger.record(step, "layer4.weight", Direction.UP, report)   # raises ConservationError if it is off
"""

from dataclasses import dataclass
from enum import Enum

from weir.host_agent.transport.report import NOTHING, Account, ReduceReport


class Direction(Enum):
    """UP: this worker's contributions. DOWN: the results that were applied to its replica."""

    UP = "up"
    DOWN = "down"


class ConservationError(AssertionError):
    """Lanes were lost, counted twice or given up beyond the budget: an error in Weir, never in its use."""


@dataclass(frozen=True)
class Posting:
    """One bucket's account of one step and direction.

    missing, budget: per account of its loss budget the lanes that were given back, and how many might have
    been; both empty when none might.
    """

    step: int
    bucket: str
    direction: Direction
    entered: Account
    included: Account
    returned: Account
    missing: tuple[int, ...] = ()
    budget: tuple[int, ...] = ()

    def check(self) -> None:
        """Raise ConservationError unless entered = included + returned, and that is within the budget."""
        where = f"step {self.step}, bucket {self.bucket}, {self.direction.value}"
        if self.entered != self.included + self.returned:
            raise ConservationError(
                f"{where}: entered {self.entered}, but included {self.included} and returned {self.returned}"
            )
        if self.returned.lanes != sum(self.missing):
            raise ConservationError(
                f"{where}: returned {self.returned.lanes} lanes, but the budget's books have "
                f"{sum(self.missing)} missing"
            )
        for account, (missing, budget) in enumerate(zip(self.missing, self.budget, strict=True)):
            if missing > budget:
                raise ConservationError(f"{where}: account {account} misses {missing} lanes of {budget}")


@dataclass(frozen=True)
class Balance:
    """Sums over the postings of one direction. budget: lanes that might have been returned."""

    postings: int = 0
    entered: Account = NOTHING
    included: Account = NOTHING
    returned: Account = NOTHING
    budget: int = 0

    def plus(self, posting: Posting) -> "Balance":
        """Return these sums with one more posting."""
        return Balance(
            self.postings + 1,
            self.entered + posting.entered,
            self.included + posting.included,
            self.returned + posting.returned,
            self.budget + sum(posting.budget),
        )


def posting(step: int, bucket: str, direction: Direction, report: ReduceReport) -> Posting:
    """Return a reduce's report as an entry of the ledger.

    Down, whatever a result brought has been applied: nothing is ever returned.
    """
    if direction is Direction.UP:
        return Posting(
            step,
            bucket,
            direction,
            report.entered,
            report.included,
            report.returned,
            tuple(report.missing.tolist()),
            tuple(report.budgets.tolist()),
        )
    return Posting(step, bucket, direction, report.applied, report.applied, NOTHING)


class Ledger:
    """Balances since the start, by direction. For one thread."""

    def __init__(self) -> None:
        self._balances = {direction: Balance() for direction in Direction}

    def record(self, step: int, bucket: str, direction: Direction, report: ReduceReport) -> Posting:
        """Enter a reduce. Raises ConservationError, and enters nothing, when it does not add up."""
        return self.enter(posting(step, bucket, direction, report))

    def enter(self, entry: Posting) -> Posting:
        """Enter a posting, of a reduce or a flow; see ``record``."""
        entry.check()
        self._balances[entry.direction] = self._balances[entry.direction].plus(entry)
        return entry

    def total(self, direction: Direction) -> Balance:
        """Return the balance of all buckets."""
        return self._balances[direction]
