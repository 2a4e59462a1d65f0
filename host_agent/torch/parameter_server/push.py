# SPDX-License-Identifier: Apache-2.0
"""Steps: buckets of gradients are summed on their way to the servers, and what those change comes back."""

import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Protocol

import numpy as np
import torch

from weir.host_agent.collectives.float_sum import sum_float64
from weir.host_agent.collectives.non_finite import NonFiniteError
from weir.host_agent.compression.bucket_layout import BucketLayout
from weir.host_agent.compression.destination import Servers
from weir.host_agent.compression.encodings import SCALE_BLOCK
from weir.host_agent.compression.exchange import ExchangeResult, GradientExchange
from weir.host_agent.compression.loss_policy import LossPolicy
from weir.host_agent.compression.sparsifiers import SparsifierOptions, create_sparsifier
from weir.host_agent.parameter_server.routing import Piece, Table
from weir.host_agent.parameter_server.terms import Terms
from weir.host_agent.parameter_server.value_filter import parse_filter
from weir.host_agent.torch.parameter_server.job_group import JobGroup
from weir.host_agent.torch.parameter_server.rounds import (
    Piggyback,
    PiggybackCommunicator,
    PiggybackQueue,
    PiggybackSteps,
)
from weir.host_agent.torch.parameter_server.value_sparsifier import ValueSparsifier
from weir.host_agent.torch.work import QueuedWork


class Member(Protocol):
    """The part that a worker or a server has in a step."""

    def gradient(self, index: int) -> torch.Tensor:
        """Return a bucket's gradients, flat; of a server memory for their averages."""

    def settle(self, buckets: Mapping[int, torch.Tensor]) -> None:
        """Do what must be done when buckets were pushed: a server steps."""

    def pull(self, index: int) -> PiggybackSteps:
        """Send, or take, what was changed of a bucket."""


class Push:
    """The steps of a job_group: every member makes the same calls, in which servers add nothing.

    Attributes:
        buckets: the pieces that are pushed together, in the order in which they are.
        layouts: of the buckets.
        exchange: the gradient step.
    """

    def __init__(self, job_group: JobGroup) -> None:
        terms = job_group.terms
        table = terms.table()
        self._job_group = job_group
        self._communicator = PiggybackCommunicator(job_group.connection, job_group.slots, terms.workers)
        self.buckets = table.buckets(terms.bucket_bytes // 4)
        self.layouts = [layout_of(index, bucket) for index, bucket in enumerate(self.buckets)]
        self.exchange = make_exchange(terms)
        servers = Servers(terms.servers, {piece.title: terms.rank_of(piece.server) for piece in table.pieces})
        max_lanes = job_group.connection.facts.max_lanes
        self.exchange.join(_Pieces(table), self._communicator, job_group.slots, servers, max_lanes=max_lanes)

    def step(self, member: Member, whole: Callable[[], bool]) -> list[ExchangeResult]:
        """Push all buckets; what was changed of one comes down while the next ones go up.

        See ``begin_step``.
        """
        self.begin_step(member, whole)
        for index in range(len(self.buckets)):
            self.queue(index)
        return self.end()

    def begin_step(self, member: Member, whole: Callable[[], bool]) -> None:
        """Begin a step, whose buckets are then queued one after another; returns at once.

        member: asked on the thread of the group's operations. whole: likewise, whether nothing is settled
        before everything was pushed, so that what raises has changed nothing.
        """
        self._step = _Step(member, whole)

    def queue(self, index: int) -> None:
        """Queue the push of the next bucket."""
        step = self._step
        step.handles.append(self._job_group.submit(lambda: self._one(step, index)))

    def end(self) -> list[ExchangeResult]:
        """Wait for the step that was begun, and return its buckets' exchanges.

        Raises:
            NonFiniteError: some worker's gradient has NaN or infinity; on every member.
        """
        step = self._step
        step.handles.append(self._job_group.submit(lambda: self._rest(step)))
        for handle in step.handles:
            self._job_group.wait(handle)
        if step.refused is not None:
            raise step.refused
        return step.done

    def flush(self, member: Member) -> None:
        """Take down what was changed of all buckets, without a push."""

        def work() -> None:
            piggybacks = PiggybackQueue()
            for index in range(len(self.buckets)):
                piggybacks.add(member.pull(index))
                while piggybacks:
                    piggybacks.take_along(self._reduce_piggybacks)

        self._job_group.wait(self._job_group.submit(work))

    def _one(self, step: "_Step", index: int) -> None:
        """Push one bucket, unless one before it has failed: on this member, or on all alike."""
        if step.refused is not None or step.failed:
            return
        step.failed = True
        bucket = step.member.gradient(index)
        try:
            step.done.append(step.piggybacks.take_along(partial(self._push, index, bucket)))
        except NonFiniteError as error:
            step.refused, step.failed = error, False
            step.taken.clear()
            return
        step.taken[index] = bucket
        if not step.whole():
            step.settle()
        step.failed = False

    def _rest(self, step: "_Step") -> None:
        if step.failed:
            return
        step.settle()
        while step.piggybacks:
            step.piggybacks.take_along(self._reduce_piggybacks)

    def norm(self, gradients: Mapping[str, torch.Tensor]) -> float:
        """Return the norm of all servers' gradients together; workers have none."""
        squares = np.zeros(1)
        for gradient in gradients.values():
            squares += float(torch.linalg.vector_norm(gradient, dtype=torch.float64)) ** 2
        name = "the squared norm of the gradient"
        self._job_group.run_now(
            "weir.parameter_server.norm",
            (),
            lambda: sum_float64(self._job_group.connection, squares, lambda _index: name),
        )
        return math.sqrt(squares[0])

    def _push(self, index: int, bucket: torch.Tensor, piggybacks: Sequence[Piggyback]) -> ExchangeResult:
        layout, last = self.layouts[index], index == len(self.buckets) - 1
        names = zlib.crc32(" ".join(segment.name for segment in layout).encode())

        def work() -> ExchangeResult:
            self._communicator.piggybacks = piggybacks
            try:
                found = self.exchange.exchange_bucket(layout, bucket, last)
                if left := self._communicator.piggybacks:  # sums that all members get take nobody along
                    self._communicator.reduce_piggybacks(left)
                return found
            finally:
                self._communicator.piggybacks = ()

        facts = (index, layout.elements, names, self.exchange.settings, _size(piggybacks))
        return self._job_group.run_now("weir.parameter_server.push", facts, work)

    def _reduce_piggybacks(self, piggybacks: Sequence[Piggyback]) -> None:
        self._job_group.run_now(
            "weir.parameter_server.pull",
            (_size(piggybacks),),
            lambda: self._communicator.reduce_piggybacks(piggybacks),
        )


class _Step:
    """A step under way.

    Attributes:
        taken: what was pushed and is not settled. refused: some gradient is not finite, as all members know.
        failed: something was raised that ends the step on this member.
    """

    def __init__(self, member: Member, whole: Callable[[], bool]) -> None:
        self.member, self.whole = member, whole
        self.piggybacks = PiggybackQueue()
        self.handles: list[QueuedWork] = []
        self.done: list[ExchangeResult] = []
        self.taken: dict[int, torch.Tensor] = {}
        self.refused: NonFiniteError | None = None
        self.failed = False

    def settle(self) -> None:
        """Have what was pushed settled, and what was changed by it wait to be piggybacked."""
        self.member.settle(self.taken)
        for index in self.taken:
            self.piggybacks.add(self.member.pull(index))
        self.taken.clear()


def _size(piggybacks: Sequence[Piggyback]) -> int:
    return sum(words.lanes.size for piggyback in piggybacks for words in piggyback)


class _Pieces:
    """The pieces of a model as the gradient step knows a module: names, sizes and dimensions, no values."""

    def __init__(self, table: Table) -> None:
        with torch.device("meta"):
            self._named = [
                (piece.title, torch.nn.Parameter(torch.empty(piece.form))) for piece in table.pieces
            ]

    def named_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """Yield the pieces in the order of the model."""
        return iter(self._named)


def layout_of(index: int, pieces: Sequence[Piece]) -> BucketLayout:
    """Return the layout of a bucket of pieces."""
    with torch.device("meta"):
        forms = [torch.empty(piece.form) for piece in pieces]
    return BucketLayout.of(index, [piece.title for piece in pieces], forms, SCALE_BLOCK)


def make_exchange(terms: Terms) -> GradientExchange:
    """Return the gradient step of a job. ValueError for a method that there is not, or options that do not
    fit together.
    """
    method, rule = terms.method, parse_filter(terms.push_filter)
    options = SparsifierOptions(
        method.density, method.threshold, method.block, method.warmup_steps, method.seed
    )
    return GradientExchange(
        ValueSparsifier(rule, terms.optimizer.rate)
        if rule.threshold
        else create_sparsifier(method.sparsifier, options),
        LossPolicy.of(0.0),
        encoding=method.encoding,
        exclude=method.exclude,
        lane_bits=method.lane_bits,
        lane_error=method.lane_error,
    )
