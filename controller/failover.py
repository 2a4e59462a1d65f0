# SPDX-License-Identifier: Apache-2.0
"""The way in which running jobs leave a spine that was given up: first nobody hears it, then nobody sends to
it.

A spine that only the controller cannot reach may go on summing. Were its slots summed elsewhere at the same
time, a round could end twice, with different workers included (one's lanes were trimmed on one way only), and
replicas would differ. So a job moves in two steps: its leaves stop accepting results of the spine (fence);
once all of them are known to hold that, they send to the other spines (move). What is on its way meanwhile is
lost, and sent again by workers' timers.

For the same reason a job never takes a spine back, and one that has no other left keeps the one it has.
"""

from collections.abc import Callable, Collection, Iterable

from weir.controller.jobs import Job


class Failover:
    """The choice of the spines that each job uses: a state machine without I/O or a clock."""

    def __init__(self) -> None:
        self._jobs: list[Job] = []
        # By job and leaf: the version of the leaf's entries that lacks the spines which were given up.
        self._fences: dict[int, dict[str, int]] = {}

    def update(self, jobs: Iterable[Job], alive: Collection[str], spines: Collection[str]) -> None:
        """Take over the jobs there are now. New ones use the spines that are alive, or all if none is."""
        self._jobs = [job for job in jobs if job.spans_racks]
        for job in self._jobs:
            if job.parents is None:
                job.parents = job.uplinks = frozenset(alive) or frozenset(spines)
        ids = {job.id for job in self._jobs}
        self._fences = {job_id: fence for job_id, fence in self._fences.items() if job_id in ids}

    def fence(self, alive: Collection[str]) -> bool:
        """Let jobs stop accepting results of spines that are not alive; True if some job did.

        What the leaves must hold has changed then; ``fenced`` is to be called when the change has a number.
        """
        changed = False
        for job in self._jobs:
            left = (job.parents or frozenset()) & frozenset(alive)
            if left and left != job.parents:
                job.parents = left
                self._fences.pop(job.id, None)
                changed = True
        return changed

    def fenced(self, version_of: Callable[[str], int]) -> None:
        """Note that the leaves were told to stop accepting; ``version_of`` numbers what each leaf was told
        last.
        """
        for job in self._jobs:
            if job.uplinks != job.parents and job.id not in self._fences:
                self._fences[job.id] = {leaf: version_of(leaf) for leaf in job.leaves}

    def move(self, holds: Callable[[str, int], bool]) -> list[Job]:
        """Move jobs whose leaves all hold their fence to the other spines, and return those jobs.

        ``holds``: is a leaf known to hold this version?
        """
        moved = []
        for job in self._jobs:
            fence = self._fences.get(job.id)
            if fence is not None and all(holds(leaf, version) for leaf, version in fence.items()):
                job.uplinks = job.parents
                del self._fences[job.id]
                moved.append(job)
        return moved
