# SPDX-License-Identifier: Apache-2.0
"""The process groups of a schedule, made before training: with Weir, each a job that the controller programs.

So a step sets nothing up: it picks a group that is there.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import torch.distributed as dist

from weir.agent_service import MOST_SLOTS
from weir.agent_service.client import AgentError
from weir.host_agent.torch.backend import GroupOptions
from weir.host_agent.torch.connection import FreeSlots
from weir.host_agent.torch.process_group import WeirProcessGroup

_SHARE = 3 / 4  # of what is free on a switch goes to the groups; the rest is for other jobs

Ranks = tuple[int, ...]


class NoSlotsError(RuntimeError):
    """A switch has too few slots for a group each. The message says which and what to do."""


@dataclass(frozen=True)
class Place:
    """A worker's place in the network. switch: that it is on, which is its rack; empty: unknown."""

    switch: str = ""

    @classmethod
    def own(cls) -> "Place":
        """Return this process's, as the controller told its default group."""
        world = dist.group.WORLD
        return cls(world.connection.facts.switch_name) if isinstance(world, WeirProcessGroup) else cls()


def make_groups(memberships: Sequence[Ranks], places: Sequence[Place]) -> dict[Ranks, dist.ProcessGroup]:
    """Make a group for each of ``memberships``, those without this process included; returns its own.

    Every rank of the default group must call it with the same arguments. The backend is the default group's.
    places: of every rank. Raises NoSlotsError on every rank.
    """
    world = dist.group.WORLD
    assert world is not None, "init_process_group comes first"
    everybody = tuple(range(dist.get_world_size()))
    options, timeout = None, None
    if isinstance(world, WeirProcessGroup):
        options, timeout = GroupOptions(_slots_each(world, memberships, places)), world.timeout
    own = {}
    for ranks in memberships:
        if ranks == everybody:
            own[ranks] = world
            continue
        group = dist.new_group(list(ranks), timeout=timeout, pg_options=options)
        if dist.get_rank() in ranks:
            own[ranks] = group
    return own


def _slots_each(world: WeirProcessGroup, memberships: Sequence[Ranks], places: Sequence[Place]) -> int:
    """Return the slots of each group as rank 0 finds the switches, told to all."""
    answer: list[object] = [None]
    if dist.get_rank() == 0:
        switches = [frozenset(places[rank].switch for rank in ranks) for ranks in memberships]
        try:
            answer = [divide(world.connection.free_slots(), switches)]
        except (NoSlotsError, AgentError) as error:
            answer = [str(error)]
    dist.broadcast_object_list(answer)
    if not isinstance(answer[0], int):
        raise NoSlotsError(answer[0])
    return answer[0]


def divide(free: Iterable[FreeSlots], switches: Sequence[Collection[str]]) -> int:
    """Return slots for each of several jobs to be made at once: a power of two.

    switches: for each job, those that its workers are on. A job that is on several needs its slots on all
    spines, too. NoSlotsError when there are too few.
    """
    spanning = sum(len(names) > 1 for names in switches)
    most = MOST_SLOTS
    for there in free:
        jobs = spanning if there.spine else sum(there.switch in names for names in switches)
        if there.count < jobs:
            raise NoSlotsError(
                f"switch {there.switch} has {there.count} free slots, but DS-Sync needs {jobs} groups there: "
                "take larger groups (group_size), or fewer of them (shuffles), or wait for other jobs to end"
            )
        if jobs:
            most = min(most, max(1, int(there.count * _SHARE) // jobs))
    return int(1 << most.bit_length() - 1)
