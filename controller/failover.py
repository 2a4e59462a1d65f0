# SPDX-License-Identifier: Apache-2.0
"""The way in which running jobs leave a spine or core that was given up: first nobody hears it, then nobody
sends to it.

A spine that only the controller cannot reach may go on summing. Were its slots summed elsewhere at the same
time, a round could end twice, with different workers included (one's lanes were trimmed on one way only), and
replicas would differ. So a job moves in two steps: its leaves stop accepting results of the spine (fence);
once all of them are known to hold that, they send to the other spines (move). What is on its way meanwhile is
lost, and sent again by workers' timers. A core is left in the same way by the spines below it.

For the same reason a job never takes a spine back, and one that has no other left keeps the one it has.
Below, a spine is any switch that joins others.
"""

import zlib
from collections.abc import Callable, Collection, Iterable

from weir.controller.job_tree import JobTree
from weir.controller.jobs import Job
from weir.controller.wiring import Wiring


class Failover:
    """The choice of the spines that each job uses: a state machine without I/O or a clock."""

    def __init__(self) -> None:
        self._jobs: list[Job] = []
        self._trees: dict[int, JobTree] = {}
        # By job and switch: the version of the switch's entries that lacks the spines which were given up.
        self._fences: dict[int, dict[str, int]] = {}

    def update(self, jobs: Iterable[Job], alive: Collection[str], topology: Wiring) -> None:
        """Take over the jobs there are now. New ones use the spines that are alive; of spines that stand for
        one another, all if none is. Where paths are hashed, a job is a flow: it uses one of these.
        """
        self._jobs = [job for job in jobs if job.spans_racks]
        self._trees = {job.id: JobTree.of(topology, job) for job in self._jobs}
        for job in self._jobs:
            if job.parents is None:
                every = frozenset(self._trees[job.id].joining)
                kept = self._kept(job, every, alive)
                job.parents = job.uplinks = self._hashed(job, kept) if topology.qos.spray == "hash" else kept
        self._fences = {job_id: fence for job_id, fence in self._fences.items() if job_id in self._trees}

    def fence(self, alive: Collection[str]) -> bool:
        """Let jobs stop accepting results of spines that are not alive; True if some job did.

        What the switches below must hold has changed then; ``fenced`` must be called when the change has a
        number.
        """
        changed = False
        for job in self._jobs:
            left = self._kept(job, job.parents or frozenset(), alive)
            if left != job.parents:
                job.parents = left
                self._fences.pop(job.id, None)
                changed = True
        return changed

    def _kept(self, job: Job, spines: frozenset[str], alive: Collection[str]) -> frozenset[str]:
        """Return those of a job's spines that are alive, or where none of a kind is, all of them."""
        kinds = [spines & frozenset(names) for names in self._trees[job.id].choices]
        return frozenset().union(*(kind & frozenset(alive) or kind for kind in kinds))

    def _hashed(self, job: Job, spines: frozenset[str]) -> frozenset[str]:
        """Return one of each kind of a job's spines, by its name."""
        kinds = [sorted(spines & frozenset(names)) for names in self._trees[job.id].choices]
        drawn = zlib.crc32(job.name.encode())
        return frozenset(kind[drawn % len(kind)] for kind in kinds)

    def fenced(self, version_of: Callable[[str], int]) -> None:
        """Note that the switches below must stop accepting.

        Args:
            version_of: gives the number of the last entries sent to a switch.
        """
        for job in self._jobs:
            if job.uplinks != job.parents and job.id not in self._fences:
                tree, parents = self._trees[job.id], job.parents or frozenset()
                below = (
                    *tree.leaves,
                    *sorted(parents - frozenset(tree.cores if tree.tiers == 3 else parents)),
                )
                self._fences[job.id] = {switch: version_of(switch) for switch in below}

    def move(self, holds: Callable[[str, int], bool]) -> list[Job]:
        """Move jobs whose switches all hold their fence to the other spines, and return those jobs.

        ``holds``: is a switch known to hold this version?
        """
        moved = []
        for job in self._jobs:
            fence = self._fences.get(job.id)
            if fence is not None and all(holds(switch, version) for switch, version in fence.items()):
                job.uplinks = job.parents
                del self._fences[job.id]
                moved.append(job)
        return moved
