# SPDX-License-Identifier: Apache-2.0
"""Rounds: one reduction in which gradients go up and what servers changed comes down, both at once.

Links carry as much in one direction as in the other, at the same time. A push of fixed-point lanes is an ADD
with a server as audience. Words that one member alone contributes are their own sum, so they can ride in the
same reduction, with all others as audience; blocks of either kind take turns.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np

from weir.host_agent.collectives.communicator import Audience, Communicator
from weir.host_agent.collectives.dtypes import Lanes
from weir.host_agent.transport.report import ReduceReport
from weir.host_agent.transport.service_class import LOSSLESS, ServiceClass
from weir.wire.definition import SLOT_LANES, Op

T = TypeVar("T")

_BATCH: Final = 16
"""Packets of one kind before those of the other kind: the kernel cuts a batch into packets of one size, and
so many are worth one. A quarter of the slots where a job has few, so that both kinds are under way.
"""


@dataclass(frozen=True)
class Rider:
    """Words that members send to all others.

    lanes: zeros where this member has nothing to say; overwritten by what the others said. senders: of each
    SLOT_LANES of them, the rank that may say something.
    """

    lanes: Lanes
    senders: np.ndarray[tuple[int], np.dtype[np.int16]]


Riding = Generator[Rider, None, None]
"""A member's riders, one after another, and its use of what the others said: each is yielded, and
holds what the others said when the generator goes on."""


class RidingCommunicator(Communicator):
    """A group's communicator whose next sum takes ``riders`` along. slots: of the group's job."""

    def __init__(self, group: Communicator, slots: int) -> None:
        super().__init__(group.rank, group.size)
        self._group = group
        self._turn = max(1, min(_BATCH, slots // 4))
        self.riders: Sequence[Rider] = ()

    def reduce_lanes(
        self,
        lanes: Lanes,
        op: Op,
        block: int = SLOT_LANES,
        service: ServiceClass = LOSSLESS,
        audience: Audience | None = None,
    ) -> ReduceReport:
        """Reduce as the group does; a sum for one member each takes the riders along."""
        if not self.riders or op is not Op.ADD or audience is None:
            return self._group.reduce_lanes(lanes, op, block, service, audience)
        riders, self.riders = self.riders, ()
        times = SLOT_LANES // block
        parts = [lanes.reshape(-1, block), *(rider.lanes.reshape(-1, block) for rider in riders)]
        order = _taking_turns(len(parts[0]), sum(map(len, parts[1:])), self._turn * times)
        places = np.split(np.argsort(order), np.cumsum([len(part) for part in parts[:-1]]))
        whole = np.empty((len(order), block), lanes.dtype)
        for part, place in zip(parts, places, strict=True):
            whole[place] = part
        wanted = np.concatenate([audience, *(np.repeat(~rider.senders, times) for rider in riders)])
        report = self._group.reduce_lanes(whole.reshape(-1), op, block, service, wanted[order])
        for part, place in zip(parts, places, strict=True):
            np.take(whole, place, axis=0, out=part, mode="clip")  # the mode that writes without a buffer
        return report

    def ride(self, riders: Sequence[Rider]) -> None:
        """Reduce riders by themselves."""
        lanes = np.concatenate([rider.lanes for rider in riders])
        senders = np.concatenate([rider.senders for rider in riders])
        self._group.reduce_lanes(lanes, Op.ADD, SLOT_LANES, audience=~senders)
        start = 0
        for rider in riders:
            rider.lanes[:] = lanes[start : start + rider.lanes.size]
            start += rider.lanes.size


def _taking_turns(first: int, second: int, turn: int) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """Return an order of ``first`` things and then ``second`` others in which both are spread evenly, some at
    a time.
    """
    places = [(np.arange(count) // turn * turn + turn / 2) / max(count, 1) for count in (first, second)]
    return np.argsort(np.concatenate(places), kind="stable")


class Riders:
    """The riders that wait, one of each of several generators."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Riding, Rider]] = []

    def add(self, riding: Riding) -> None:
        """Take one more."""
        self._advance(riding)

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def take_along(self, reduce: Callable[[Sequence[Rider]], T]) -> T:
        """Return what ``reduce`` does of what waits now, and let the generators go on with what came of it.

        What waits still waits where it raised.
        """
        waiting = self._waiting
        result = reduce([rider for _, rider in waiting])
        self._waiting = []
        for riding, _ in waiting:
            self._advance(riding)
        return result

    def _advance(self, riding: Riding) -> None:
        rider = next(riding, None)
        if rider is not None:
            self._waiting.append((riding, rider))
