# SPDX-License-Identifier: Apache-2.0
"""Consistency: how far workers may be ahead of one another, counted in steps.

Reference: Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server",
NIPS 2013. A worker's clock is the number of its pushes that the server has applied. A worker that has made c
steps may begin the next one when the model that it has seen contains all pushes of all workers up to number
c - s: s = 0 is the synchronous model, no bound the asynchronous one.
"""

import re
from dataclasses import dataclass
from typing import Final

_FORM: Final = re.compile(r"ssp:([0-9]{1,9})")


@dataclass(frozen=True)
class Consistency:
    """A consistency model. bound: steps that a worker's view may be behind its own clock; None: any."""

    bound: int | None

    def allows(self, made: int, floor: int) -> bool:
        """Return whether a worker that has made this many steps may begin the next one.

        floor: the model that it has seen contains this many pushes of every worker.
        """
        return self.bound is None or floor >= made - self.bound

    def __str__(self) -> str:
        return {None: "async", 0: "sync"}.get(self.bound, f"ssp:{self.bound}")


def parse_consistency(text: str) -> Consistency:
    """Return the model that a text stands for: "sync", "ssp:S" or "async". ValueError says what there is."""
    if text == "sync":
        return Consistency(0)
    if text == "async":
        return Consistency(None)
    if found := _FORM.fullmatch(text):
        return Consistency(int(found[1]))
    raise ValueError(
        f"consistency {text!r} is not one of sync, ssp:S (a worker may be S steps ahead of the slowest) and "
        "async"
    )


class Clocks:
    """The clocks of a server's workers. A worker that joins begins where the slowest one is.

    Attributes:
        of: pushes applied, by worker.
        finished: workers whose pushes nobody waits for any more.
        floor: this many pushes of each other worker are applied; the last one while there is none.
    """

    def __init__(
        self, clocks: dict[int, int] | None = None, finished: set[int] | None = None, floor: int = 0
    ) -> None:
        self.of = clocks or {}
        self.finished = finished or set()
        self.floor = floor

    @property
    def running(self) -> list[int]:
        """Workers whose pushes are waited for."""
        return [worker for worker in self.of if worker not in self.finished]

    def join(self, worker: int) -> int:
        """Count a worker's pushes from the floor on, and return that."""
        if worker in self.of:
            raise ValueError(f"worker {worker} is here already")
        self.of[worker] = self.floor
        return self.floor

    def leave(self, worker: int) -> None:
        """Wait for this worker no more."""
        del self.of[worker]
        self.finished.discard(worker)
        self._raise_floor()

    def finish(self, worker: int) -> None:
        """Wait for this worker no more, though it is there."""
        self.finished.add(worker)
        self._raise_floor()

    def tick(self, worker: int) -> None:
        """Count a push that was applied."""
        self.of[worker] += 1
        self._raise_floor()

    def _raise_floor(self) -> None:
        self.floor = max(self.floor, min((self.of[worker] for worker in self.running), default=self.floor))
