# SPDX-License-Identifier: Apache-2.0
"""Rounds: one reduction in which gradients go up and what servers changed comes down, both at once.

Links carry as much in one direction as in the other, at the same time. A push of fixed-point lanes is an ADD
with a server as audience. Words that one member alone contributes are their own sum, so they can be
piggybacked in the same reduction, with all others as audience; blocks of either kind alternate.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from weir.host_agent.collectives.communicator import Audience, Communicator
from weir.host_agent.collectives.dtypes import Lanes
from weir.host_agent.collectives.float_sum import MOST_ZEROS, WIDE_VALUES
from weir.host_agent.transport.pieces import Piece, Pieces, Use
from weir.host_agent.transport.report import ReduceReport
from weir.host_agent.transport.service_class import LOSSLESS, ServiceClass
from weir.host_agent.transport.slot_transport import FloatScales
from weir.wire.definition import SLOT_LANES, WIDE_LANES, Op

T = TypeVar("T")

_BATCH: Final = 32
"""Packets of one kind before those of the other kind: the kernel cuts a batch into packets of one size, and
this many are worth one. A quarter of the slots where a job has few, so that both kinds are under way.
"""


@dataclass(frozen=True)
class Words:
    """Words that one member may send to all others.

    Attributes:
        lanes: uint32 or int32. They are overwritten by the sender's words, but for blocks of zeros, or
            changed by these.
        sender: its rank.
        changes: the sender says by exclusive or how lanes change. Its own stay as they are.
    """

    lanes: npt.NDArray[Any]
    sender: int
    changes: bool = False


Piggyback = Sequence[Words]
"""Words that members send to all others, in the same order and of the same lengths on every member."""

PiggybackSteps = Generator[Piggyback, None, None]
"""A member's piggybacks, one after another, and its use of what the others said: each is yielded, and
holds what the others said when the generator goes on."""


def runs_of(values: npt.NDArray[Any]) -> Iterator[tuple[int, int, int]]:
    """Yield each run of equal values: the index of its first, the index after its last, and the value."""
    edges = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist(), values.size]
    for first, last in pairwise(edges):
        if first < last:
            yield first, last, int(values[first])


@dataclass(frozen=True)
class _Part:
    """A piece of a round, and who wants it, as ``Audience`` has it."""

    piece: Piece
    audience: int


class PiggybackCommunicator(Communicator):
    """A group's communicator whose next sum takes ``piggybacks`` along.

    Args:
        group: the communicator.
        slots: of the group's job.
        workers: members that contribute to sums: the first ones.
    """

    def __init__(self, group: Communicator, slots: int, workers: int) -> None:
        super().__init__(group.rank, group.size)
        self._group, self._workers = group, workers
        self._turn = max(1, min(_BATCH, slots // 4))
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
        if op is not Op.ADD or audience is None:
            return self._group.reduce_lanes(lanes, op, block, service, audience)
        return self._round(self._pushed(lanes, block, audience), block, service)

    def sum_floats(
        self,
        values: npt.NDArray[np.float32],
        scales: FloatScales,
        block: int,
        service: ServiceClass = LOSSLESS,
        audience: Audience | None = None,
    ) -> ReduceReport | None:
        """Sum as the group does; a sum for one member each takes the piggybacks along."""
        if audience is None or not self._group.in_pieces or scales.values != block:
            return None
        return self._round(self._pushed(values, block, audience, scales), block, service, scales)

    def reduce_piggybacks(self, piggybacks: Sequence[Piggyback]) -> None:
        """Reduce piggybacks by themselves."""
        self.piggybacks = piggybacks
        self._round([], SLOT_LANES, LOSSLESS)

    def _pushed(
        self,
        lanes: npt.NDArray[Any],
        block: int,
        audience: Audience,
        scales: FloatScales | None = None,
    ) -> list[_Part]:
        """Return a sum's lanes as parts of one audience each. scales: they hold values, as many to an
        exponent as in a block.
        """
        use = Use.SUM if self.rank < self._workers else Use.SILENT
        return [
            _Part(
                Piece(
                    lanes[first * block : last * block],
                    use,
                    None if scales is None else scales.exponents[first:last],
                ),
                receiver,
            )
            for first, last, receiver in runs_of(audience)
        ]

    def _said(self, words: Words) -> _Part:
        use = Use.CHANGE if words.changes else Use.SILENT
        return _Part(Piece(words.lanes, Use.SUM if words.sender == self.rank else use), ~words.sender)

    def _round(
        self, pushed: list[_Part], block: int, service: ServiceClass, scales: FloatScales | None = None
    ) -> ReduceReport:
        """Reduce what is pushed, and the piggybacks with it."""
        piggybacks, self.piggybacks = self.piggybacks, ()
        pulled = [self._said(words) for piggyback in piggybacks for words in piggyback if words.lanes.size]
        parts = [*pushed, *pulled]
        if not parts:
            return self._group.reduce_lanes(np.empty(0, np.uint32), Op.ADD, block, service)
        turn = self._turn * (SLOT_LANES // block)
        if self._are_wide(parts, block):
            block, turn = WIDE_LANES, max(1, self._turn * SLOT_LANES // WIDE_LANES)
        blocks = [part.piece.blocks(block) for part in parts]
        order = _taking_turns(sum(blocks[: len(pushed)]), sum(blocks[len(pushed) :]), turn)
        pieces = Pieces(
            [part.piece for part in parts],
            order,
            0 if scales is None else scales.values,
            0 if scales is None else scales.headroom,
        )
        wanted = np.repeat(np.array([part.audience for part in parts], np.int16), blocks)
        return self._group.reduce_pieces(pieces, block, wanted[order], service)

    def _are_wide(self, parts: Sequence[_Part], block: int) -> bool:
        """Return whether a round travels in wide packets: the answer is the same on every member.

        Only dense rounds do, as with other sums. The members tell one another whether theirs is dense.
        """
        lanes = sum(part.piece.lanes.size for part in parts)
        if not self._group.wide or block != SLOT_LANES or lanes < WIDE_VALUES:
            return False
        return not self._group.any_of(np.array([_is_sparse(parts)]))[0]


def _is_sparse(parts: Sequence[_Part]) -> bool:
    """Return whether more than one in MOST_ZEROS of a member's blocks is zero, in its sums or its words."""
    for pushes in (True, False):
        own = [
            part.piece.lanes for part in parts if part.piece.use is Use.SUM and (part.audience >= 0) is pushes
        ]
        if sum(map(_zero_blocks, own)) * SLOT_LANES * MOST_ZEROS > sum(lanes.size for lanes in own):
            return True
    return False


def _zero_blocks(lanes: npt.NDArray[Any]) -> int:
    """Return how many whole blocks of SLOT_LANES are zero. Few others begin with zero, so few are read."""
    rows = lanes[: lanes.size // SLOT_LANES * SLOT_LANES].reshape(-1, SLOT_LANES)
    suspects = rows[rows[:, 0] == 0]
    return len(suspects) - int(np.count_nonzero(suspects.any(axis=1)))


@lru_cache(maxsize=64)
def _taking_turns(first: int, second: int, turn: int) -> npt.NDArray[np.intp]:
    """Return an order of ``first`` things and then ``second`` others in which both are spread evenly, some at
    a time. It is not to be changed.
    """
    places = [(np.arange(count) // turn * turn + turn / 2) / max(count, 1) for count in (first, second)]
    order = np.argsort(np.concatenate(places), kind="stable")
    order.flags.writeable = False
    return order


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
