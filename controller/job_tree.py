# SPDX-License-Identifier: Apache-2.0
"""The tree by which a job is summed: which switches, who is whose child, and under which number.

Workers are children of their leaf; where there are several leaves, these are children of their pod's spines,
and where there are several pods, these are children of the cores::

    tiers    root        its children           theirs           theirs
    1        the leaf    workers
    2        a spine     leaves of the pod      workers
    3        a core      pods: their spines     leaves of each   workers

A class of slots has one spine in each pod and one core, so a tree of its own; numbers are the same in all of
them. Children of a point are numbered from 0 by their lowest ranks.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from weir.controller.jobs import Job, JobError, Member, Refusal
from weir.controller.wiring import Pod, Wiring
from weir.wire.definition import MAX_CHILDREN, path


@dataclass(frozen=True)
class JobTree:
    """The switches of a job and their places in its tree.

    Attributes:
        pods: the pods that it has workers in, by number, each with the job's leaves, by number, and all
        spines.
        cores: the cores that join the pods; empty if there is one pod.
    """

    pods: tuple[Pod, ...]
    cores: tuple[str, ...] = ()

    @classmethod
    def of(cls, topology: Wiring, job: Job) -> "JobTree":
        """Return the tree over the members that have joined."""
        pod_of = {leaf: pod for pod in topology.pods() for leaf in pod.leaves}
        leaves: dict[Pod, list[str]] = {}
        for leaf in job.leaves:
            leaves.setdefault(pod_of[leaf], []).append(leaf)
        single = len(job.leaves) == 1
        return cls(
            tuple(Pod(tuple(names), () if single else pod.spines) for pod, names in leaves.items()),
            tuple(core.name for core in topology.cores) if len(leaves) > 1 else (),
        )

    @property
    def tiers(self) -> int:
        """Number of tiers that sum."""
        if len(self.pods) > 1:
            return 3
        return 2 if len(self.pods[0].leaves) > 1 else 1

    @property
    def linked(self) -> bool:
        """Return whether there are switches that join the leaves."""
        return all(self.choices) if self.tiers > 1 else True

    @property
    def leaves(self) -> tuple[str, ...]:
        """Leaves, pod by pod."""
        return tuple(leaf for pod in self.pods for leaf in pod.leaves)

    @property
    def choices(self) -> tuple[tuple[str, ...], ...]:
        """Switches among which classes of slots are spread: spines of each pod, then the cores."""
        spines = tuple(pod.spines for pod in self.pods) if self.tiers > 1 else ()
        return (*spines, self.cores) if self.tiers == 3 else spines

    @property
    def joining(self) -> tuple[str, ...]:
        """Switches above the leaves: all spines of the pods, and the cores."""
        return tuple(name for names in self.choices for name in names)

    def place(self, leaf: str) -> tuple[int, int]:
        """Return the number of a leaf's pod, and of the leaf in it."""
        return next(
            (number, pod.leaves.index(leaf)) for number, pod in enumerate(self.pods) if leaf in pod.leaves
        )

    def pod_of_spine(self, spine: str) -> int | None:
        """Return the number of the pod that a spine joins; None if it has no part in the job."""
        return next((number for number, pod in enumerate(self.pods) if spine in pod.spines), None)


def members_of(job: Job, leaf: str) -> list[Member]:
    """Return the members on a leaf: the index of each is its number there."""
    return [member for _rank, member in sorted(job.members.items()) if member.host.switch == leaf]


def paths(topology: Wiring, job: Job) -> list[int]:
    """Return the path of each worker, by rank: its number at its leaf, its leaf's, its pod's."""
    tree, found = JobTree.of(topology, job), {}
    for leaf in tree.leaves:
        pod, number = tree.place(leaf)
        for own, member in enumerate(members_of(job, leaf)):
            found[member.rank] = path(own, number, pod)
    return [found[rank] for rank in sorted(found)]


def refuse_misfit(topology: Wiring, job: Job, member: Member) -> None:
    """Refuse the member that was added last if it cannot be reached, or one point has too many children now.

    Raises:
        JobError: it says why, and where.
    """
    tree, host = JobTree.of(topology, job), member.host
    if not tree.linked:
        raise JobError(
            Refusal.INVALID,
            f"host {host.name} is on switch {host.switch}, but {job.first} is on {job.first.host.switch}, "
            "and no spine links them; a job's workers are on one switch or on linked ones",
        )
    for what, count in _crowds(tree, job):
        if count > MAX_CHILDREN:
            raise JobError(
                Refusal.INVALID,
                f"job {job.name!r} would have {count} {what}: a switch sums at most {MAX_CHILDREN} children;"
                " spread its workers over more",
            )


def _crowds(tree: JobTree, job: Job) -> Iterable[tuple[str, int]]:
    """Yield the numbers of children, with what and where they are."""
    for leaf, count in Counter(member.host.switch for member in job.members.values()).items():
        yield f"workers on switch {leaf}", count
    if tree.tiers > 1:
        for pod in tree.pods:
            yield f"leaves below {', '.join(pod.spines)}", len(pod.leaves)
    if tree.tiers > 2:
        yield f"pods below {', '.join(tree.cores)}", len(tree.pods)
