# SPDX-License-Identifier: Apache-2.0
"""The one operation that everything else is built from: reduce a vector of lanes over a job's workers.

Example::

    reducer = Reducer(UdpLink(("10.0.0.1", 0), ("10.0.0.254", 9347)), TransportConfig(7, 0, 4, slots=64))
    lanes = np.array([1, 2, 3], np.uint32)
    report = reducer.reduce_blocks(lanes, Op.ADD)         # lanes now holds the sums
"""

import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import add, attrgetter
from types import TracebackType
from typing import Final, Self

import numpy as np

from weir.host_agent.transport.counters import COUNTERS, TransportCounters
from weir.host_agent.transport.links import Aborted, Link
from weir.host_agent.transport.pieces import Pieces
from weir.host_agent.transport.report import NOTHING, Account, ReduceReport, Verdict
from weir.host_agent.transport.service_class import LOSSLESS, ServiceClass
from weir.host_agent.transport.slot_transport import (
    Audiences,
    FloatScales,
    Lanes,
    SlotTransport,
    TransportConfig,
)
from weir.wire.definition import SLOT_LANES, Op

DEFAULT_TIMEOUT_S: Final = 1800.0
"""As long as torch.distributed waits for a collective."""


@dataclass(frozen=True, kw_only=True)
class ReducerStats(TransportCounters):
    """Sums over all reduces of a reducer; the names are ReduceReport's.

    Attributes:
        reduces: how many they were.
        rto: the current retransmission timeout, in seconds.
        window: the current one, in slots.
        missing, budget: in lanes, of all accounts.
    """

    reduces: int = 0
    lanes: int = 0
    seconds: float = 0.0
    rto: float = 0.0
    window: int = 0
    missing: int = 0
    budget: int = 0
    refused: Mapping[Verdict, int] = field(default_factory=dict)
    entered: Account = NOTHING
    included: Account = NOTHING
    returned: Account = NOTHING
    applied: Account = NOTHING

    def plus(self, report: ReduceReport, rto: float) -> "ReducerStats":
        """Return these sums with one more reduce in them."""
        return ReducerStats.made(
            reduces=self.reduces + 1,
            rto=rto,
            window=report.window,
            missing=self.missing + (sum(report.missing.tolist()) if report.missing.size else 0),
            budget=self.budget + (sum(report.budgets.tolist()) if report.budgets.size else 0),
            refused=Counter(self.refused) + Counter(report.refused) if report.refused else self.refused,
            **dict(zip(_SUMMED, map(add, _summed(self), _summed(report)), strict=True)),
        )


_SUMMED: Final = (*COUNTERS, "lanes", "seconds", "entered", "included", "returned", "applied")
_summed = attrgetter(*_SUMMED)


class Reducer:
    """Reduces vectors over the workers of a job, one at a time.

    All workers must make the same calls in the same order. Who calls from several threads submits to an
    OperationQueue; here a second caller is refused. ``abort`` and ``close`` may come from any thread.
    A reduce that fails (TransportTimeout, DisagreementError, Aborted, OSError, or an interrupt) leaves the
    workers in different rounds: every later call raises Aborted with that reason, and the job needs a new
    membership.

    Args:
        link: owned from now on, closed with the reducer.
        config: this worker's place in the job.
        timeout_s: how long a reduce may go without progress, for example because a worker is late. An
            attribute, too: a change holds from the next call on.

    Attributes:
        operation: 32-bit fingerprint of what the next calls are a part of, the same on all workers.
    """

    def __init__(self, link: Link, config: TransportConfig, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self.config = config
        self._link = link
        self._transport = SlotTransport(config)
        self.timeout_s = timeout_s
        self.operation = 0
        self._in_use = threading.Lock()
        self._abort = threading.Event()
        self._reason: str | None = None
        self._stats = ReducerStats()
        self._closed = False

    def reduce_blocks(
        self,
        lanes: Lanes | Pieces,
        op: Op,
        block: int = SLOT_LANES,
        service: ServiceClass = LOSSLESS,
        audiences: Audiences | None = None,
        floats: FloatScales | None = None,
    ) -> ReduceReport:
        """Replace ``lanes`` by their reduction over all workers.

        lanes: C-contiguous, writeable uint32 or int32 of any shape; the same size on every worker. Or pieces.
        block: lanes in a block, 32 to 256: the unit of what is skipped when zero.
        service: this worker's classes and loss budgets; with budgets, the report's ``given_back`` holds what
        no result included.
        audiences, floats: see ``SlotTransport.begin_reduction``.
        Raises TypeError or ValueError before anything is sent, and RuntimeError while another thread is in a
        reduce; Aborted, TransportTimeout, DisagreementError, OSError after.
        """
        held = self._in_use.acquire(blocking=False)
        try:
            if self._reason is not None:
                raise Aborted(self._reason)
            if not held:
                raise RuntimeError("a reduce is in progress in another thread: submit to an OperationQueue")
            start = time.perf_counter()
            self._transport.begin_reduction(op, block, lanes, service, self.operation, audiences, floats)
            self._drive()
            report = self._transport.report(time.perf_counter() - start)
            self._transport.forget_tensors()
            self._stats = self._stats.plus(report, self._transport.rto)
            return report
        finally:
            if held:
                self._in_use.release()

    def _drive(self) -> None:
        """Run what was begun until it is done; from an error on there is no other reduce."""
        try:
            self._link.drive(self._transport, self.timeout_s, self._abort)
        except BaseException as error:
            if self._reason is None:
                self._reason = f"an earlier reduce of job {self.config.job} failed: {error!r}"
            if isinstance(error, Aborted):
                self._transport.restore()
                raise Aborted(self._reason) from None
            raise

    def barrier(self) -> ReduceReport:
        """Return when every worker has called it: one round without lanes."""
        return self.reduce_blocks(np.empty(0, np.uint32), Op.ADD)

    def rest(self) -> float | None:
        """Repeat, between two reduces, what others may need to complete the last ones (protocol.md).

        Returns after how many seconds to call again; None: not before the next reduce.
        """
        if not self._in_use.acquire(blocking=False):
            return None
        try:
            if self._closed or self._reason is not None:
                return None
            return self._link.rest(self._transport)
        except OSError:
            return None  # the next reduce says so
        finally:
            self._in_use.release()

    @property
    def stats(self) -> ReducerStats:
        """Snapshot of the sums over all finished reduces."""
        return self._stats

    @property
    def round_trip(self) -> float:
        """Seconds of the shortest round trip to the switch of late, where it is measured: on a
        path that others share; else 0.
        """
        return self._transport.round_trip

    @property
    def waiting_since(self) -> float | None:
        """Return when the reduce in progress made progress last, by ``time.monotonic``; None when there is
        none, or nothing to wait for yet. From any thread.
        """
        return self._transport.waiting_since

    def abort(self, reason: str) -> None:
        """Make the reduce in progress, and every later call, raise Aborted(reason). From any thread."""
        if self._reason is None:
            self._reason = reason
        self._abort.set()

    def close(self) -> None:
        """Abort what is in progress, then detach and free everything. Closing twice is harmless."""
        self.abort(f"the reducer of job {self.config.job} is closed")
        with self._in_use:
            if not self._closed:
                self._closed = True
                self._transport.close()
                self._link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
