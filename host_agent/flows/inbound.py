# SPDX-License-Identifier: Apache-2.0
"""One tensor on its way in: what arrived of it, and what to tell its sender."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from weir.host_agent.flows.codec import (
    MAX_ACCOUNTS,
    MAX_BITMAP,
    Bitmap,
    Bits,
    Chunk,
    Head,
    Probe,
    Stop,
    Terms,
)
from weir.host_agent.flows.config import FlowConfig
from weir.host_agent.flows.payload import unpack_bytes
from weir.host_agent.flows.verdict import FlowVerdict
from weir.host_agent.transport.report import Account

Floats = npt.NDArray[np.float32]

_SPAN = 8 * MAX_BITMAP  # chunks that one bitmap tells of


@dataclass(frozen=True)
class Delivery:
    """A tensor as it was delivered: what both ends agree on.

    received: the chunks that came. values: float32, zero where nothing came. account: lanes that came,
    and the sum of their bit patterns. missing, budgets: lanes per account, known when something is missing.
    """

    flow: int
    worker: int
    tensor: int
    layer: int
    chunk_lanes: int
    received: Bits
    values: Floats
    account: Account
    missing: tuple[int, ...] = ()
    budgets: tuple[int, ...] = ()

    @property
    def complete(self) -> bool:
        """Return whether all of it came."""
        return self.account.lanes == self.values.size

    def lanes_received(self) -> Bits:
        """Return for each lane whether it came."""
        return np.repeat(self.received, self.chunk_lanes)[: self.values.size]

    def data(self) -> bytes:
        """Return the bytes that were sent with ``FlowSender.submit_bytes``.

        Raises ValueError when some did not come, or when these are no such bytes.
        """
        if not self.complete:
            raise ValueError(f"tensor {self.tensor} is not whole: {self.account.lanes} of {self.values.size}")
        return unpack_bytes(self.values, f"tensor {self.tensor}")

    def onto(self, previous: Floats) -> Floats:
        """Return the values that came, and those of ``previous`` where none did."""
        if previous.shape != self.values.shape:
            raise ValueError(
                f"tensor {self.tensor} has {self.values.size} lanes, its previous value {previous.shape}"
            )
        return np.where(self.lanes_received(), self.values, previous)


class InboundTensor:
    """A tensor's chunks, from the first packet about it to the stop.

    The receiver decides once, when it is asked after everything was sent and nothing is on its way any more:
    what is missing then is forgiven if the terms allow it, account by account, and from then on nothing
    changes.
    """

    def __init__(self, config: FlowConfig, head: Head) -> None:
        self._head = Head(head.flow, head.worker, head.tensor, head.count, head.layer)
        self._config = config
        self.count = head.count
        self._bytes = 4 * config.chunk_lanes
        self._wire: bytearray | None = bytearray(self._bytes * head.count)
        self._received = np.zeros(head.count, np.bool_)
        self._trimmed: set[int] = set()  # not told yet
        self._accounted = np.zeros(head.count, np.bool_)  # received, or known to be lost: trimmed
        self._left = head.count
        self._last_bytes = 0  # of the last chunk, once known
        self._lanes = [0] * MAX_ACCOUNTS  # received, by account
        self._terms: Terms | None = None
        self._congested = False  # the latest chunk met congestion; so did all those not told yet
        self._low, self._high = head.count, -1  # first and last chunk not told yet that came
        self._say_stop = False  # the final word is to be told
        self.stopped = False
        self.confirmed = False

    @property
    def layer(self) -> int:
        """Return the layer class, the same in every packet of a tensor."""
        return self._head.layer

    def on_chunk(self, chunk: Chunk, congested: bool) -> tuple[FlowVerdict, list[bytes]]:
        """Take in a chunk; return its verdict and the bitmaps to send."""
        index, length = chunk.index, len(chunk.data)
        if not chunk.trimmed and not self._fits(index, length):
            return FlowVerdict.BAD_LENGTH, []
        if self.stopped:
            self._say_stop = not self.confirmed  # its sender may not have heard
            return FlowVerdict.LATE, []
        if self._received[index]:
            self._note(index)
            return FlowVerdict.DUPLICATE, []
        if chunk.trimmed:
            self._trimmed.add(index)
            self._accounted[index] = True
            self._decide(final=False)
            return FlowVerdict.TRIMMED, []
        answers = []
        if congested != self._congested:  # as DCTCP: one answer never is about both kinds
            answers = self.tell()
            self._congested = congested
        assert self._wire is not None
        self._wire[index * self._bytes : index * self._bytes + length] = chunk.data
        self._received[index] = self._accounted[index] = True
        self._note(index)
        self._trimmed.discard(index)
        self._left -= 1
        self._lanes[chunk.account] += length // 4
        if index == self.count - 1:
            self._last_bytes = length
        self._decide(final=False)
        return FlowVerdict.ACCEPTED, answers

    def on_probe(self, probe: Probe, congested: bool) -> tuple[FlowVerdict, list[bytes]]:
        """Answer a probe: with the final word if there is nothing to wait for, else with what arrived."""
        if probe.terms is None:
            cut = Bitmap(self._head, probe.number, 0, None, trimmed=True)
            return FlowVerdict.TRIMMED, [cut.encode()]
        refusal = self._refuse_terms(probe.terms)
        if refusal is not None:
            return refusal, []
        self._terms = probe.terms
        self._last_bytes = 4 * sum(probe.terms.lanes) - (self.count - 1) * self._bytes
        congested |= self._congested
        told = self._tell_trimmed()
        self._forget_news()
        self._decide(probe.final and probe.end == self.count)
        if self.stopped:
            self._say_stop = False
            return FlowVerdict.ACCEPTED, list(self._final_word(probe.number, congested))
        first = min(probe.first, self.count - 1)
        for at in range(first, max(probe.end, first + 1), _SPAN):
            bits = self._received[at : min(at + _SPAN, max(probe.end, first + 1))]
            told.append(Bitmap(self._head, probe.number, at, bits, congested).encode())
        return FlowVerdict.ACCEPTED, told

    def deliver(self) -> Delivery:
        """Return the tensor, once stopped; once only."""
        assert self.stopped and self._wire is not None
        size = (self.count - 1) * self._bytes + self._last_bytes
        words = np.frombuffer(self._wire, ">u4", size // 4).astype(np.uint32)
        self._wire = None
        kept = np.repeat(self._received, self._config.chunk_lanes)[: words.size]
        came = words[kept]
        missing: tuple[int, ...] = ()
        if self._left and self._terms:
            pairs = zip(self._terms.lanes, self._lanes, strict=False)
            missing = tuple(total - lanes for total, lanes in pairs)
        return Delivery(
            flow=self._head.flow,
            worker=self._head.worker,
            tensor=self._head.tensor,
            layer=self._head.layer,
            chunk_lanes=self._config.chunk_lanes,
            received=self._received,
            values=words.view(np.float32),
            account=Account(came.size, int(came.view(np.int32).sum(dtype=np.int64))),
            missing=missing,
            budgets=self._terms.budgets if missing and self._terms else (),
        )

    @property
    def delivered(self) -> bool:
        """Return whether ``deliver`` was called."""
        return self._wire is None

    def _fits(self, index: int, length: int) -> bool:
        if index < self.count - 1:
            return length == self._bytes
        return length == self._last_bytes if self._last_bytes else length <= self._bytes

    def _refuse_terms(self, terms: Terms) -> FlowVerdict | None:
        """Return why these cannot be the tensor's terms."""
        if self._terms is not None:
            return None if terms == self._terms else FlowVerdict.BAD_TERMS
        lanes, full = sum(terms.lanes), self._config.chunk_lanes
        last = lanes - (self.count - 1) * full
        if not 1 <= last <= full or (self._last_bytes and self._last_bytes != 4 * last):
            return FlowVerdict.BAD_TERMS
        totals = [*terms.lanes, *[0] * (MAX_ACCOUNTS - len(terms.lanes))]
        if any(came > total for came, total in zip(self._lanes, totals, strict=True)):
            return FlowVerdict.BAD_TERMS
        if any(budget > total for budget, total in zip(terms.budgets, terms.lanes, strict=True)):
            return FlowVerdict.BAD_TERMS
        if sum(terms.budgets) > self._config.max_loss * lanes:
            return FlowVerdict.BEYOND_BOUND
        return None

    def _note(self, index: int) -> None:
        """Tell of a chunk soon."""
        self._low, self._high = min(self._low, index), max(self._high, index)

    def _decide(self, final: bool) -> None:
        """Stop if nothing is on its way any more, and the terms allow what is missing."""
        if self.stopped:
            return
        if self._left:
            if self._terms is None or not (final or self._config.early_stop or self._accounted.all()):
                return
            terms = zip(self._terms.lanes, self._lanes, self._terms.budgets, strict=False)
            if any(total - came > budget for total, came, budget in terms):
                return
        self.stopped = self._say_stop = True

    @property
    def has_news(self) -> bool:
        """Return whether there is something to tell unasked."""
        return self._say_stop or (not self.stopped and (self._high >= 0 or bool(self._trimmed)))

    def tell(self) -> list[bytes]:
        """Return what to tell of what arrived since the last time."""
        if self.stopped:
            if not self._say_stop:
                return []
            self._say_stop = False
            return [*self._tell_trimmed(), *self._final_word(0, self._congested)]
        told = self._tell_trimmed()
        if self._high < 0:
            return told
        for at in range(self._low, self._high + 1, _SPAN):
            bits = self._received[at : min(at + _SPAN, self._high + 1)]
            told.append(Bitmap(self._head, 0, at, bits, self._congested).encode())
        self._forget_news()
        return told

    def _tell_trimmed(self) -> list[bytes]:
        told = []
        while self._trimmed:
            first = min(self._trimmed)
            span = {index for index in self._trimmed if index < first + _SPAN}
            bits = np.zeros(max(span) - first + 1, np.bool_)
            bits[[index - first for index in span]] = True
            told.append(Bitmap(self._head, 0, first, bits, trimmed=True).encode())
            self._trimmed -= span
        return told

    def _forget_news(self) -> None:
        self._low, self._high = self.count, -1

    def _final_word(self, answers: int, congested: bool) -> Iterator[bytes]:
        if not self._left:
            yield Stop(self._head, answers, 0, None, congested).encode()
            return
        for at in range(0, self.count, _SPAN):
            yield Stop(self._head, answers, at, self._received[at : at + _SPAN], congested).encode()
