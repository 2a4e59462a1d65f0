# SPDX-License-Identifier: Apache-2.0
"""Several workers in one process, whose lanes are reduced in memory by the arithmetic of the switch.

For replays, calibrations and tests: nothing becomes a packet. The workers run one at a time and in
the order of their ranks, each from one reduction to the next; so a run repeats itself bit for bit, and the
time that a worker takes between two reductions is its own.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar, cast

import numpy as np
import numpy.typing as npt

from weir.host_agent.collectives.communicator import Audience, Communicator, wanted
from weir.host_agent.collectives.dtypes import Lanes
from weir.host_agent.transport.report import NOTHING, Account, ReduceReport, ReturnedLanes
from weir.host_agent.transport.service_class import LOSSLESS, ServiceClass
from weir.wire.definition import SLOT_LANES, Op

T = TypeVar("T")

Loss = Callable[[int, ServiceClass, int], npt.NDArray[np.bool_]]
"""Return which of this many blocks are lost of what a rank contributes to a reduction with loss budgets."""

Watch = Callable[[npt.NDArray[np.bool_], int], None]

_OPERATORS: Final[dict[Op, np.ufunc]] = {Op.ADD: np.add, Op.MAX: np.maximum, Op.OR: np.bitwise_or}


class OutOfStepError(RuntimeError):
    """The workers of a group did not all make the same reduction."""


@dataclass(eq=False)
class _Call:
    """One worker's part in a reduction."""

    rank: int
    lanes: Lanes
    op: Op
    block: int
    service: ServiceClass
    audience: Audience | None
    operation: int
    report: ReduceReport | None = None

    @property
    def shape(self) -> tuple[int, Op, int, int, bytes]:
        audience = b"" if self.audience is None else self.audience.tobytes()
        return self.lanes.size, self.op, self.block, self.operation, audience

    def take(self, total: Lanes) -> None:
        """Overwrite this worker's lanes by the result, but for blocks that only others want."""
        if self.audience is None:
            self.lanes[:] = total
            return
        for block in np.flatnonzero(wanted(self.audience, self.rank)):
            lanes = slice(block * self.block, (block + 1) * self.block)
            self.lanes[lanes] = total[lanes]


@dataclass(eq=False)
class _Round:
    """One reduction. done: the workers' lanes hold its result."""

    calls: list[_Call] = field(default_factory=list)
    done: bool = False


class InMemoryGroup:
    """The workers of a group, each with its communicator.

    Args:
        size: how many workers there are.
        loss: what is lost of contributions that have a loss budget, whatever the budgets say; None: nothing.
        watch: is shown of each reduction which blocks each worker sent, bool[workers, blocks], and how many
            lanes they have.

    Example::

        group = InMemoryGroup(2)
        vectors = [np.array([1, 2], np.uint32), np.array([3, 4], np.uint32)]
        group.run([lambda c=c, v=v: c.reduce_vector(v, Op.ADD) for c, v in zip(group.communicators, vectors)])
    """

    def __init__(self, size: int, loss: Loss | None = None, watch: Watch | None = None) -> None:
        self.communicators = [_InMemoryCommunicator(self, rank, size) for rank in range(size)]
        self._loss = loss
        self._watch = watch
        self._round = _Round()
        self._turns: list[threading.Semaphore] = []
        self._at_work: dict[int, None] = {}  # those that have not ended yet

    def run(self, work: Sequence[Callable[[], T]]) -> list[T]:
        """Run a function for each worker, which may use its communicator, and return what they return.

        Raises:
            BaseException: what the function of the lowest rank raised, if any did.
            OutOfStepError: the functions did not make the same reductions.
        """
        results: list[T | None] = [None] * len(work)
        errors: list[BaseException] = []
        self._round, self._at_work = _Round(), dict.fromkeys(range(len(work)))
        self._turns = [threading.Semaphore(0) for _ in work]

        def take_turns(rank: int) -> None:
            self._turns[rank].acquire()
            try:
                results[rank] = work[rank]()
            except BaseException as error:  # it is the caller's
                errors.append(error)
            del self._at_work[rank]
            self._pass_on(rank)

        threads = [threading.Thread(target=take_turns, args=(rank,)) for rank in range(len(work))]
        for thread in threads:
            thread.start()
        self._turns[0].release()
        for thread in threads:
            thread.join()
        for error in sorted(errors, key=lambda error: isinstance(error, OutOfStepError)):
            raise error
        return cast(list[T], results)

    def reduce_call(self, call: _Call) -> ReduceReport:
        """Add one worker's part; return when it is that worker's turn again and the result is there."""
        this = self._round
        this.calls.append(call)
        if len(this.calls) == len(self._turns) and len({one.shape for one in this.calls}) == 1:
            self._finish(this)
            self._round = _Round()
        self._pass_on(call.rank)
        self._turns[call.rank].acquire()
        if not this.done:
            raise OutOfStepError(f"rank {call.rank} is in a reduction that not all workers have begun")
        assert call.report is not None
        return call.report

    def _pass_on(self, rank: int) -> None:
        """Let the next worker work that has not ended: this one, where there is no other."""
        others = [other for other in self._at_work if other != rank] or [rank]
        self._turns[next((other for other in others if other > rank), others[0])].release()

    def _finish(self, this: _Round) -> None:
        """Reduce the lanes of all workers but for what is lost, and write the result to each worker's."""
        total = np.zeros_like(this.calls[0].lanes)
        in_result = np.zeros(-(-total.size // this.calls[0].block), np.bool_)
        reports, sent = [], []
        for call in this.calls:
            occupied = _occupied(call.lanes, call.block)
            sent.append(occupied)
            lost = np.zeros_like(occupied)
            if self._loss is not None and call.service.budgets.size:
                lost = self._loss(call.rank, call.service, occupied.size) & occupied
            reports.append(_report(call, occupied, lost))
            given_back = reports[-1].given_back
            delivered = call.lanes
            if given_back.blocks.size:
                delivered = call.lanes.copy()
                delivered.reshape(-1, call.block)[given_back.blocks] = 0
            _OPERATORS[call.op](total, delivered, out=total)
            in_result |= occupied & ~lost
        if self._watch is not None:
            self._watch(np.stack(sent), this.calls[0].block)
        applied = _account(total, _lengths(total.size, this.calls[0].block)[in_result])
        for call, report in zip(this.calls, reports, strict=True):
            call.take(total)
            call.report = replace(report, applied=applied)
        this.done = True


class _InMemoryCommunicator(Communicator):
    """One worker of a group in memory."""

    def __init__(self, group: InMemoryGroup, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._group = group

    def reduce_lanes(
        self,
        lanes: Lanes,
        op: Op,
        block: int = SLOT_LANES,
        service: ServiceClass = LOSSLESS,
        audience: Audience | None = None,
    ) -> ReduceReport:
        """Reduce as ``Communicator.reduce_lanes``."""
        self.exchanged = True
        call = _Call(self.rank, lanes.reshape(-1), op, block, service, audience, self.fingerprint)
        return self._group.reduce_call(call)


def _lengths(lanes: int, block: int) -> npt.NDArray[np.int64]:
    """Return how many lanes each block of a vector has: the last one may have fewer."""
    starts = np.arange(0, lanes, block)
    return np.minimum(lanes - starts, block)


def _occupied(lanes: Lanes, block: int) -> npt.NDArray[np.bool_]:
    """Return which blocks are not zero."""
    whole = lanes.size // block * block
    found: npt.NDArray[np.bool_] = np.zeros(-(-lanes.size // block), np.bool_)
    lanes[:whole].reshape(-1, block).any(axis=1, out=found[: whole // block])
    found[whole // block :] = lanes[whole:].any()
    return found


def _account(lanes: Lanes, lengths: npt.NDArray[np.int64]) -> Account:
    """Return the account of lanes that are not zero outside of blocks of these lengths."""
    return Account(int(lengths.sum()), int(lanes.view(np.int32).sum(dtype=np.int64)))


def _report(call: _Call, occupied: npt.NDArray[np.bool_], lost: npt.NDArray[np.bool_]) -> ReduceReport:
    """Return how one worker's contribution fared; nothing of it was a packet."""
    lengths = _lengths(call.lanes.size, call.block)
    blocks = np.flatnonzero(lost).astype(np.uint32)
    lanes = (
        call.lanes.reshape(-1, call.block)[blocks] if blocks.size else np.empty((0, call.block), np.uint32)
    )
    entered, returned = _account(call.lanes, lengths[occupied]), _account(lanes, lengths[lost])
    accounts, count = call.service.accounts, call.service.budgets.size
    missing = budgets = np.empty(0, np.uint64)
    if count:
        accounts = np.zeros(lost.size, np.uint16) if accounts is None else accounts
        missing = np.bincount(accounts, lengths * lost, minlength=count).astype(np.uint64)
        budgets = np.bincount(accounts, lengths * occupied, minlength=count).astype(np.uint64)
    return ReduceReport(
        op=call.op,
        lanes=call.lanes.size,
        block=call.block,
        blocks=occupied.size,
        blocks_sent=int(np.count_nonzero(occupied)),
        given_back=ReturnedLanes(blocks, lanes),
        entered=entered,
        included=Account(entered.lanes - returned.lanes, entered.total - returned.total),
        returned=returned,
        applied=NOTHING,
        missing=missing,
        budgets=budgets,
        refused={},
        window=0,
    )
