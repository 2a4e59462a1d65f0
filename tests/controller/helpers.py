# SPDX-License-Identifier: Apache-2.0
"""Jobs as tests need them, and timeout."""

import time
from collections.abc import Callable

from weir.controller.job_tree import JobTree
from weir.controller.jobs import Job, JobState, Member
from weir.controller.slots import SlotRange
from weir.controller.topology import Topology


def job(
    name: str, topology: Topology, *, size: int, job_id: int = 1, slot_base: int = 0, slot_count: int = 64
) -> Job:
    """Return a running job with rank i on the i-th host, wherever that is."""
    made = Job(
        id=job_id,
        name=name,
        token="secret",
        size=size,
        slots_wanted=slot_count,
        members={rank: Member(rank, topology.hosts[rank], 9347) for rank in range(size)},
        state=JobState.RUNNING,
        slots=SlotRange(slot_base, slot_count),
    )
    made.switches = (*made.leaves, *JobTree.of(topology, made).joining)
    return made


def until(condition: Callable[[], bool]) -> None:
    """Wait for something that must happen; in vain means pytest's own time limit."""
    while not condition():
        time.sleep(0.02)
