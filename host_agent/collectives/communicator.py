# SPDX-License-Identifier: Apache-2.0
"""A group of workers, and the one operation on lanes that everything else is built from."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NoReturn, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from weir.host_agent.collectives import bindings
from weir.host_agent.collectives.dtypes import Lanes, pack_bits, set_bits
from weir.host_agent.collectives.operation import Call, fingerprint
from weir.host_agent.collectives.packing import Precision
from weir.host_agent.transport.pieces import Piece, Pieces, Use
from weir.host_agent.transport.report import ReduceReport
from weir.host_agent.transport.service_class import LOSSLESS, ServiceClass
from weir.host_agent.transport.slot_transport import FloatScales
from weir.wire.definition import AUDIENCE_EXCEPT, GROUP_LANES, SLOT_LANES, Op

P = ParamSpec("P")
T = TypeVar("T")

Audience = npt.NDArray[np.int16]
"""For each block, who wants its result: r, rank r alone; ~r, all but rank r, which alone contributes to it.
"""


def wanted(audience: Audience, rank: int) -> npt.NDArray[np.bool_]:
    """Return which blocks' results a rank wants."""
    return np.asarray((audience == rank) | ((audience < 0) & (~audience != rank)))


def named(audience: Audience) -> npt.NDArray[np.int16]:
    """Return for each block the rank that its audience names: the only one that is in it, or that is not."""
    return np.where(audience < 0, ~audience, audience)


def audience_codes(audience: Audience, paths: npt.NDArray[np.uint16]) -> npt.NDArray[np.uint16]:
    """Return audiences as packets have them (``weir.wire.definition``); paths: of all ranks."""
    only = paths[named(audience)]
    return np.where(audience < 0, only | AUDIENCE_EXCEPT, only).astype(np.uint16)


class Scratch:
    """Memory for lanes, kept from one operation to the next: fresh pages cost more than the arithmetic."""

    def __init__(self) -> None:
        self._lanes: npt.NDArray[np.int32] = np.empty(0, np.int32)

    def take(self, count: int) -> npt.NDArray[np.int32]:
        """Return ``count`` lanes of any content, the caller's until the next call."""
        if count > self._lanes.size:
            self._lanes = np.empty(count, np.int32)
        return self._lanes[:count]


class Communicator(ABC):
    """A group of workers as one of them sees it. For one thread at a time.

    Attributes:
        rank: of this worker.
        size: how many workers there are.
        scratch: memory for lanes.
        precision: of float sums; the same on every worker.
        warns: whether this worker warns of sums that lose much: one of a job does, and not of gradients,
            since training stands it.
        wide: whether dense sums of floats may travel in blocks of WIDE_LANES; the same on every worker.
        in_pieces: whether ``reduce_pieces`` leaves lanes where they are, and takes float32 values; the same
            on every worker.
        sparse: whether the last float sum of this many blocks was so sparse that the workers do well to ask
            each other first which of them are zero; the same on every worker.
        call: what this worker is in; None between operations.
        number: how many operations it has begun.
        fingerprint: of the operation: 32 bits, the same on every worker, or they disagree.
        exchanged: something of the operation was reduced.
    """

    def __init__(self, rank: int, size: int) -> None:
        bindings.library()  # compiled now if need be, and not while others wait
        self.rank, self.size = rank, size
        self.scratch = Scratch()
        self.precision = Precision()
        self.warns = rank == 0
        self.wide = self.in_pieces = False
        self.sparse: dict[int, bool] = {}
        self.call: Call | None = None
        self.number = self.fingerprint = 0
        self.exchanged = False
        self._announced: Exception | None = None  # the failure that the others know of

    def attempt(self, work: Callable[[], T]) -> T:
        """Return what ``work`` does: some operations, and what goes on before and after them.

        Where this worker alone fails in that, the next operation raises on every other worker, and says why.
        Where all fail, nothing is broken.
        """
        try:
            return work()
        except Exception as error:
            if self._announced is not error:
                self.run_call(Call(""), _raise, error)
            raise
        finally:
            self._announced = None

    def run_call(self, call: Call, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what ``work`` does with the arguments: what a call is made of, as its packets say.

        Every worker must be in the same operation at a time; where one is not, a reduction raises on every
        worker. An operation that reduces nothing ends with a barrier. Inside another it is a part of that.

        Where ``work`` raises, this worker takes part in a last round, as one that failed. So the others,
        which wait for it, are told. Where all have failed, they agree, and go on.
        """
        if self.call is not None:
            return work(*args, **kwargs)
        self.number += 1
        self._enter(call)
        self.exchanged = False
        try:
            result = work(*args, **kwargs)
            if not self.exchanged:
                self.barrier()
            return result
        except Exception as error:
            self._announced = error
            self._enter(call.failed(error))
            with contextlib.suppress(Exception), self.last_round(error):
                self.barrier()  # where it fails, the group is over, and its next operation says why
            raise
        finally:
            self.call, self.fingerprint = None, 0

    def last_round(self, error: Exception) -> contextlib.AbstractContextManager[None]:
        """Return what the last round of an operation in which this worker failed must be within.

        error: raised when the others know of it, or do not come to hear it.
        """
        return contextlib.nullcontext()

    def _enter(self, call: Call) -> None:
        """Let packets say that this worker is in a call, or that it has failed in it."""
        self.call = call
        self.fingerprint = fingerprint(self.number, call)

    @abstractmethod
    def reduce_lanes(
        self,
        lanes: Lanes,
        op: Op,
        block: int = SLOT_LANES,
        service: ServiceClass = LOSSLESS,
        audience: Audience | None = None,
    ) -> ReduceReport:
        """Replace ``lanes`` by their reduction over all workers, losslessly but for what the budgets allow.

        The one operation that a network offers. Without any lanes it is a barrier.

        Args:
            lanes: C-contiguous uint32; the same number of them on every worker.
            op: how lanes are combined.
            block: lanes in a block, 32 to 256: the unit of what is skipped when zero.
            service: this worker's packet class and loss budget.
            audience: who wants which blocks, the same on every worker; None: all want all. Blocks that this
                worker does not want keep what they held, or hold nothing of use. Not together with budgets.
        """

    def reduce_pieces(
        self, pieces: Pieces, block: int, audience: Audience, service: ServiceClass = LOSSLESS
    ) -> ReduceReport:
        """Replace the lanes of several pieces by their sums, as ``reduce_lanes`` does, in one reduction.

        Args:
            pieces: whose blocks have the same sizes and order on every worker; with exponents only where
                ``in_pieces`` says so.
            block: as in ``reduce_lanes``; or WIDE_LANES, where ``wide`` allows.
            audience: who wants which blocks, in their order.
            service: the packets' class, without budgets.
        """
        if len(pieces.pieces) == 1 and pieces.pieces[0].use is Use.SUM and _ascending(pieces.order):
            return self.reduce_lanes(pieces.pieces[0].lanes, Op.ADD, block, service, audience)
        rows = self.scratch.take(pieces.order.size * block).view(np.uint32).reshape(-1, block)
        places = np.split(
            np.argsort(pieces.order), np.cumsum([piece.blocks(block) for piece in pieces.pieces])[:-1]
        )
        for piece, place in zip(pieces.pieces, places, strict=True):
            _gather(piece, rows, place)
        report = self.reduce_lanes(rows.reshape(-1), Op.ADD, block, service, audience)
        unheard = np.logical_not(wanted(audience, self.rank))
        for piece, place in zip(pieces.pieces, places, strict=True):
            if piece.use is Use.CHANGE:
                rows[place[unheard[place]]] = 0
            _scatter(piece, rows, place)
        return report

    def sum_floats(
        self,
        values: npt.NDArray[np.float32],
        scales: FloatScales,
        block: int,
        service: ServiceClass = LOSSLESS,
        audience: Audience | None = None,
    ) -> ReduceReport | None:
        """Replace float32 values by their sums over all workers, where this can be done in their own memory.

        Return how it was done; None: it cannot be done, and nothing has happened. All workers get the same
        answer of the two.

        Args:
            values: C-contiguous; undefined if the reduction fails.
            scales: that all workers agreed on.
            block: as in ``reduce_lanes``; or WIDE_LANES, where ``wide`` allows.
            service: the packets' class, without budgets.
            audience: as there. Values that this worker does not want are undefined afterwards.
        """
        return None

    def reduce_vector(
        self,
        lanes: Lanes,
        op: Op,
        block: int | None = None,
        service: ServiceClass = LOSSLESS,
        audience: Audience | None = None,
    ) -> Lanes:
        """Reduce ``lanes`` in place, in blocks that fit, and return them; no lanes, no packets."""
        if lanes.size:
            self.reduce_lanes(lanes, op, block or fitting_block(lanes.size), service, audience)
        return lanes

    def any_of(self, flags: npt.NDArray[np.bool_], service: ServiceClass = LOSSLESS) -> npt.NDArray[np.bool_]:
        """Return which flags are set on some worker, in the shape of ``flags``; a bit each on the wire."""
        words = self.reduce_vector(pack_bits(flags), Op.OR, service=service)
        return set_bits(words, flags.size).reshape(flags.shape)

    def barrier(self) -> None:
        """Return when every worker has called it."""
        self.reduce_lanes(np.empty(0, np.uint32), Op.ADD)


def _ascending(order: npt.NDArray[np.intp]) -> bool:
    return bool((order[1:] > order[:-1]).all())


def _gather(piece: Piece, rows: Lanes, place: npt.NDArray[np.intp]) -> None:
    """Copy a piece's blocks to these rows, filled up with zeros; zeros alone where it is not contributed."""
    if piece.use is not Use.SUM:
        rows[place] = 0
        return
    block, lanes = rows.shape[1], piece.lanes.view(np.uint32)
    whole = lanes.size // block
    rows[place[:whole]] = lanes[: whole * block].reshape(-1, block)
    if whole < place.size:
        rows[place[whole]] = 0
        rows[place[whole], : lanes.size - whole * block] = lanes[whole * block :]


def _scatter(piece: Piece, rows: Lanes, place: npt.NDArray[np.intp]) -> None:
    """Put the results in these rows into a piece's memory."""
    found, lanes = rows[place].reshape(-1)[: piece.lanes.size], piece.lanes.view(np.uint32)
    if piece.use is Use.CHANGE:
        lanes ^= found
    else:
        lanes[:] = found


def _raise(error: Exception) -> NoReturn:
    raise error


def fitting_block(lanes: int) -> int:
    """Return the smallest block that holds ``lanes`` lanes, else the largest: short vectors send short
    packets.
    """
    block = GROUP_LANES
    while block < lanes and block < SLOT_LANES:
        block *= 2
    return block
