# SPDX-License-Identifier: Apache-2.0
"""Rounds: one reduction in which gradients go up and what servers changed comes down, both at once.

Links carry as much in one direction as in the other, at the same time. A push of fixed-point lanes is an ADD
with a server as audience. Words that one member alone contributes are their own sum, so they can be
piggybacked in the same reduction, with all others as audience; blocks of either kind alternate.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np

from weir.host_agent.collectives.communicator import Audience, Communicator, Scratch
from weir.host_agent.collectives.dtypes import Lanes
from weir.host_agent.transport.report import ReduceReport
from weir.host_agent.transport.service_class import LOSSLESS, ServiceClass
from weir.wire.definition import SLOT_LANES, Op

T = TypeVar("T")

_BATCH: Final = 32
"""Packets of one kind before those of the other kind: the kernel cuts a batch into packets of one size, and
this many are worth one. A quarter of the slots where a job has few, so that both kinds are under way.
"""


@dataclass(frozen=True)
class Piggyback:
    """Words that members send to all others.

    lanes: zeros where this member has nothing to say; overwritten by what the others said. senders: of each
    SLOT_LANES of them, the rank that may say something.
    """

    lanes: Lanes
    senders: np.ndarray[tuple[int], np.dtype[np.int16]]


PiggybackSteps = Generator[Piggyback, None, None]
"""A member's piggybacks, one after another, and its use of what the others said: each is yielded, and
holds what the others said when the generator goes on."""


class PiggybackCommunicator(Communicator):
    """A group's communicator whose next sum takes ``piggybacks`` along. slots: of the group's job."""

    def __init__(self, group: Communicator, slots: int) -> None:
        super().__init__(group.rank, group.size)
        self._group = group
        self._turn = max(1, min(_BATCH, slots // 4))
        self._together = Scratch()
        self.piggybacks: Sequence[Piggyback] = ()

    def reduce_lanes(
        self,
        lanes: Lanes,
        op: Op,
        block: int = SLOT_LANES,
        service: ServiceClass = LOSSLESS,
        audience: Audience | None = None,
    ) -> ReduceReport:
        """Reduce as the group does; a sum for one member each takes the piggybacks along."""
        if not self.piggybacks or op is not Op.ADD or audience is None:
            return self._group.reduce_lanes(lanes, op, block, service, audience)
        piggybacks, self.piggybacks = self.piggybacks, ()
        times = SLOT_LANES // block
        parts = [lanes.reshape(-1, block), *(piggyback.lanes.reshape(-1, block) for piggyback in piggybacks)]
        order = _taking_turns(len(parts[0]), sum(map(len, parts[1:])), self._turn * times)
        places = np.split(np.argsort(order), np.cumsum([len(part) for part in parts[:-1]]))
        whole = self._together.take(len(order) * block).view(lanes.dtype).reshape(-1, block)
        for part, place in zip(parts, places, strict=True):
            whole[place] = part
        wanted = np.concatenate(
            [audience, *(np.repeat(~piggyback.senders, times) for piggyback in piggybacks)]
        )
        report = self._group.reduce_lanes(whole.reshape(-1), op, block, service, wanted[order])
        for part, place in zip(parts, places, strict=True):
            np.take(whole, place, axis=0, out=part, mode="clip")  # the mode that writes without a buffer
        return report

    def reduce_piggybacks(self, piggybacks: Sequence[Piggyback]) -> None:
        """Reduce piggybacks by themselves; a single one in its own memory."""
        if len(piggybacks) == 1:
            (one,) = piggybacks
            self._group.reduce_lanes(one.lanes, Op.ADD, SLOT_LANES, audience=~one.senders)
            return
        lanes = np.concatenate([piggyback.lanes for piggyback in piggybacks])
        senders = np.concatenate([piggyback.senders for piggyback in piggybacks])
        self._group.reduce_lanes(lanes, Op.ADD, SLOT_LANES, audience=~senders)
        start = 0
        for piggyback in piggybacks:
            piggyback.lanes[:] = lanes[start : start + piggyback.lanes.size]
            start += piggyback.lanes.size


def _taking_turns(first: int, second: int, turn: int) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """Return an order of ``first`` things and then ``second`` others in which both are spread evenly, some at
    a time.
    """
    places = [(np.arange(count) // turn * turn + turn / 2) / max(count, 1) for count in (first, second)]
    return np.argsort(np.concatenate(places), kind="stable")


class PiggybackQueue:
    """The piggybacks that wait, one of each of several generators."""

    def __init__(self) -> None:
        self._waiting: list[tuple[PiggybackSteps, Piggyback]] = []

    def add(self, steps: PiggybackSteps) -> None:
        """Take one more."""
        self._advance(steps)

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def take_along(self, reduce: Callable[[Sequence[Piggyback]], T]) -> T:
        """Return what ``reduce`` does of what waits now, and let the generators go on with what came of it.

        What waits still waits where it raised.
        """
        waiting = self._waiting
        result = reduce([piggyback for _, piggyback in waiting])
        self._waiting = []
        for steps, _ in waiting:
            self._advance(steps)
        return result

    def _advance(self, steps: PiggybackSteps) -> None:
        piggyback = next(steps, None)
        if piggyback is not None:
            self._waiting.append((steps, piggyback))
