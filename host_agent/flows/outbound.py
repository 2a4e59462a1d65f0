# SPDX-License-Identifier: Apache-2.0
"""One tensor on its way out: the state of each chunk, and what its accounts can still do without."""

from collections import deque
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

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
from weir.host_agent.flows.verdict import FlowVerdict
from weir.host_agent.transport.report import Account
from weir.host_agent.transport.service_class import ServiceClass
from weir.wire.definition import MAGNITUDE_CLASSES

Floats = npt.NDArray[np.float32]

EXPOSED: Final = 3
"""How many times its budget of an account's lanes a switch may trim. What it trims beyond the budget is only
sent again: where queues are short, that costs less than to drop what may not be trimmed."""

_REMEMBERED: Final = 64
"""Probes whose answers still tell what is lost; older ones only tell what came."""


class ChunkState(IntEnum):
    """State of a chunk, as far as its sender knows. MISSING: lost, and its account can do without it."""

    UNSENT = 0
    UNDER_WAY = 1
    RECEIVED = 2
    MISSING = 3
    TO_RESEND = 4


_UNSENT, _UNDER_WAY, _RECEIVED, _MISSING, _TO_RESEND = (int(state) for state in ChunkState)


@dataclass(frozen=True)
class Progress:
    """Chunks whose fate a packet made known, those of them that met congestion, and how long one took."""

    settled: int = 0
    marked: int = 0
    round_trip: int | None = None


class OutboundTensor:
    """A tensor's chunks, from ``submit`` to the receiver's stop.

    Of every account, missing <= budget always holds; the receiver sees to it that no more is given up.
    """

    def __init__(self, config: FlowConfig, number: int, values: Floats, service: ServiceClass) -> None:
        self.number, self.layer = number, service.layer
        self.lanes = values.size
        self.count = config.chunks(self.lanes)
        self._head = Head(config.flow, config.worker, number, self.count, service.layer)
        self._bytes = 4 * config.chunk_lanes
        self._wire = memoryview(np.ascontiguousarray(values).view(np.uint32).astype(">u4").tobytes())
        self._lanes = np.full(self.count, config.chunk_lanes, np.int64)
        self._lanes[-1] = self.lanes - (self.count - 1) * config.chunk_lanes
        self._magnitudes = _per_chunk(service.magnitudes, self.count, "magnitudes", np.uint8)
        self._accounts = _per_chunk(service.accounts, self.count, "accounts", np.uint16)
        self.budgets = _budgets(service, self._accounts)
        totals = np.zeros_like(self.budgets)
        np.add.at(totals, self._accounts, self._lanes)
        self.budgets = np.minimum(self.budgets, totals)
        self.terms = Terms(tuple(totals.tolist()), tuple(self.budgets.tolist()))
        self.has_terms = bool(self.budgets.any())
        self.entered = self.account(np.ones(self.count, np.bool_))

        self._states = np.zeros(self.count, np.uint8)
        self._sent = np.zeros(self.count, np.int64)  # time of the chunk's latest copy
        self._order = np.zeros(self.count, np.int64)  # place of that copy among all packets of its kind
        self._orders = 0
        self._newest = [0, 0]  # by kind (first copies, repeats): the latest packet known to have arrived
        self._newest_took = [0, 0]
        self.reorder_at: int | None = None
        self._droppable = _droppable(self._magnitudes, self._accounts, self._lanes, self.budgets, number)
        self._again = np.zeros(self.count, np.bool_)  # sent more than once
        self._missing = np.zeros_like(self.budgets)
        self._next = self._low = 0  # first chunk never sent; first one not known to be received
        self._resend: deque[int] = deque()
        self._final = np.zeros(self.count, np.bool_)
        self._covered = np.zeros(self.count, np.bool_)  # of _final

        self.under_way = 0
        self.least = 0  # shortest round trip of a chunk; 0 before the first
        self.probes = 0
        self.unanswered = 0  # number of the latest probe while its answer is not complete
        self._parts: set[int] = set()  # of that answer, by first chunk
        self._asked: dict[int, tuple[int, int, int]] = {}  # of the latest probes: place, time, kind
        self._sent_at = 0  # time of the latest chunk
        self.began: int | None = None  # time of the first packet
        self._undecided = False  # chunks were given up of which the receiver may not know
        self.ask_at_once = False  # an answer came without its data
        self.deadline: int | None = None
        self.timeouts_in_a_row = 0
        self.resent = self.trimmed = self.timeouts = 0

    @property
    def unsent(self) -> bool:
        """Return whether chunks are left that were never sent."""
        return self._next < self.count

    @property
    def to_resend(self) -> bool:
        """Return whether lost chunks wait to be sent again."""
        while self._resend and self._states[self._resend[0]] != _TO_RESEND:
            self._resend.popleft()
        return bool(self._resend)

    @property
    def resending(self) -> bool:
        """Return whether the latest chunk sent was a repeat."""
        return not self.unsent and self.resent > 0

    @property
    def awaits_answer(self) -> bool:
        """Return whether the receiver has to say something before this can go on; else it waits for its
        turn.
        """
        return bool(self.under_way or self.unanswered) or not (self.unsent or self.to_resend)

    def send_next(self, now: int) -> Chunk:
        """Return the next chunk never sent."""
        index = self._next
        self._next += 1
        return self._chunk(index, now, protected=not self._droppable[index])

    def send_again(self, now: int) -> Chunk:
        """Return the next lost chunk that its account cannot do without."""
        index = self._resend.popleft()
        self._again[index] = True
        self.resent += 1
        return self._chunk(index, now, protected=True)

    @property
    def must_decide(self) -> bool:
        """Return whether only the receiver's word is missing, and it may not know that it is its turn."""
        return (
            self._undecided
            and not (self.under_way or self.unsent or self.to_resend)
            and bool(self._missing.any())
        )

    def ask(self, now: int, patience: int, kind: int) -> Probe:
        """Return a probe about every chunk sent that is not known to have arrived.

        patience: for how long a chunk may be on its way when what was sent after it has arrived. kind: whose
        queue it waits in: 0, that of first copies; 1, that of repeats.
        """
        self.probes += 1
        self.unanswered = self.probes
        self._orders += 1
        self._asked[self.probes] = self._orders, now, kind
        self._asked.pop(self.probes - _REMEMBERED, None)
        waited = now - self._sent_at >= patience
        final = not self.unsent and (waited or not self.under_way)
        self._undecided = self.ask_at_once = False
        states = self._states
        while self._low < self._next and states[self._low] == _RECEIVED:
            self._low += 1
        first = min(self._low, self.count - 1)
        end = max(self._next, first + 1)
        self._parts = set(range(first, end, 8 * MAX_BITMAP))
        return Probe(self._head, self.probes, first, end, final, self.terms)

    def confirm(self, answers: int) -> Stop:
        """Tell the receiver that its stop came."""
        return Stop(self._head, answers, 0, None)

    def find_lost(self, now: int, reordering: int, patience: int) -> int:
        """Take for lost what was sent well before something that has arrived; return how many chunks.

        As RACK does (RFC 8985). Only packets of one kind take the same way: first copies and repeats wait in
        different queues, so a repeat that arrived says something of first copies after ``patience`` only.
        """
        span = slice(self._low, self._next)
        under_way = self._states[span] == _UNDER_WAY
        self.reorder_at = None
        if not under_way.any():
            return 0
        order, sent, kinds = self._order[span], self._sent[span], self._again[span].astype(np.intp)
        newest, took = np.array(self._newest), np.array(self._newest_took)
        never = np.iinfo(np.int64).max
        due = np.where(order < newest[kinds], sent + took[kinds] + reordering, never)
        other = np.where(order < newest[1 - kinds], sent + took[1 - kinds] + patience, never)
        due = np.where(under_way, np.minimum(due, other), never)
        lost = due <= now
        rest = due[~lost]
        if rest.size and (earliest := int(rest.min())) < never:
            self.reorder_at = earliest
        self._undecided |= bool(lost.any())
        return self._lose(self._low + np.flatnonzero(lost))

    def on_bitmap(self, packet: Bitmap, now: int) -> Progress | FlowVerdict:
        """Take in what the receiver has. Whatever its age, it can only tell more."""
        if packet.bits is None:
            self._ask_if_latest(packet.answers)
            return FlowVerdict.TRIMMED
        span = slice(packet.first, packet.first + packet.bits.size)
        states = self._states[span]
        if (packet.bits & (states == _UNSENT)).any():
            return FlowVerdict.BAD_BITMAP
        if packet.trimmed:
            # A repeat is not given up by an old report of its first copy.
            lost = packet.bits & (states == _UNDER_WAY) & ~self._again[span]
            count = self._lose(packet.first + np.flatnonzero(lost))
            self.trimmed += count
            return Progress(count, count)
        received, took = self._receive(
            packet.first + np.flatnonzero(packet.bits & (states != _RECEIVED)), now
        )
        if packet.answers and packet.answers == self.unanswered:
            self._parts.discard(packet.first)
            if not self._parts:
                self.unanswered = 0
                asked = self._on_answer(packet.answers, now)
                took = asked if took is None else took
        return Progress(received, received if packet.congested else 0, took)

    def on_stop(self, packet: Stop, now: int) -> Progress | FlowVerdict:
        """Take in a part of the final word; see ``stopped``."""
        if packet.cut:
            self._ask_if_latest(packet.answers)
            return FlowVerdict.TRIMMED
        first = packet.first
        bits = np.ones(self.count, np.bool_) if packet.bits is None else packet.bits
        span = slice(first, first + bits.size)
        states = self._states[span]
        # What it once had, it has; what was never sent, it cannot have.
        if (bits & (states == _UNSENT)).any() or (~bits & (states == _RECEIVED)).any():
            return FlowVerdict.BAD_BITMAP
        final = self._final.copy()
        final[span] = bits
        covered = self._covered.copy()
        covered[span] = True
        if covered.all() and (self.missing(final) > self.budgets).any():
            return FlowVerdict.BEYOND_BOUND
        self._final, self._covered = final, covered
        received, took = self._receive(first + np.flatnonzero(bits & (states != _RECEIVED)), now)
        return Progress(received, received if packet.congested else 0, took)

    @property
    def stopped(self) -> Bits | None:
        """Return the chunks that were delivered, once the whole of the receiver's final word came."""
        return self._final if self._covered.all() else None

    def missing(self, delivered: Bits) -> npt.NDArray[np.int64]:
        """Return how many lanes of each account are not in these chunks."""
        lanes = np.zeros_like(self.budgets)
        np.add.at(lanes, self._accounts[~delivered], self._lanes[~delivered])
        return lanes

    def account(self, chunks: Bits) -> Account:
        """Return the number of lanes of these chunks and the sum of their bit patterns."""
        words = self._words(chunks)
        return Account(words.size, int(words.view(np.int32).sum(dtype=np.int64)))

    def values(self, chunks: Bits) -> Floats:
        """Return the tensor with zeros in all other chunks."""
        kept = np.repeat(chunks, self._lanes)
        words = np.frombuffer(self._wire, ">u4").astype(np.uint32)
        words[~kept] = 0
        return words.view(np.float32)

    def _words(self, chunks: Bits) -> npt.NDArray[np.uint32]:
        return np.frombuffer(self._wire, ">u4")[np.repeat(chunks, self._lanes)].astype(np.uint32)

    def _chunk(self, index: int, now: int, protected: bool) -> Chunk:
        self._states[index] = _UNDER_WAY
        self._orders += 1
        self._sent[index], self._order[index] = now, self._orders
        self.under_way += 1
        self._sent_at = now
        head = self._head
        if magnitude := int(self._magnitudes[index]):
            head = Head(head.flow, head.worker, head.tensor, head.count, head.layer, magnitude)
        data = bytes(self._wire[index * self._bytes : (index + 1) * self._bytes])
        return Chunk(head, index, int(self._accounts[index]), data, protected)

    def _ask_if_latest(self, answers: int) -> None:
        """Ask again at once, as an answer came without its data, unless a later question is under way."""
        if answers in {0, self.probes}:
            self.ask_at_once = True

    def _on_answer(self, number: int, now: int) -> int | None:
        """Take in that a probe was answered; return how long that took if it waited as chunks do."""
        place, then, kind = self._asked.get(number, (0, 0, 0))
        if place > self._newest[kind]:
            self._newest[kind], self._newest_took[kind] = place, now - then
        return now - then if place and not kind else None

    def _receive(self, indexes: npt.NDArray[np.intp], now: int) -> tuple[int, int | None]:
        """Refund what was reserved or missing for chunks that arrived; return how many were under way, and
        how long the last of them took that were sent once.
        """
        under_way, latest, took = 0, -1, None
        for index in indexes.tolist():
            state, account, lanes = self._states[index], self._accounts[index], self._lanes[index]
            if state == _UNDER_WAY:
                under_way += 1
                kind, order = int(self._again[index]), int(self._order[index])
                elapsed = now - int(self._sent[index])
                if order > self._newest[kind] and (not kind or elapsed >= self.least):
                    self._newest[kind], self._newest_took[kind] = order, elapsed
                if not kind and order > latest:
                    latest, took = order, elapsed
            if state == _MISSING:
                self._missing[account] -= lanes
            self._states[index] = _RECEIVED
        self.under_way -= under_way
        if took is not None:
            self.least = min(self.least, took) if self.least else took
        return under_way, took

    def _lose(self, indexes: npt.NDArray[np.intp]) -> int:
        """Take chunks for lost: each is missing while its account has room, else it is sent again."""
        for index in indexes.tolist():
            account, lanes = self._accounts[index], self._lanes[index]
            if self._missing[account] + lanes <= self.budgets[account]:
                self._missing[account] += lanes
                self._states[index] = _MISSING
            else:
                self._states[index] = _TO_RESEND
                self._resend.append(index)
        self.under_way -= len(indexes)
        return len(indexes)


def _per_chunk(
    given: npt.NDArray[np.unsignedinteger] | None, count: int, what: str, dtype: type[np.unsignedinteger]
) -> npt.NDArray[np.unsignedinteger]:
    if given is None:
        return np.zeros(count, dtype)
    if given.size != count:
        raise ValueError(f"the service class has {given.size} {what}, and the tensor {count} chunks")
    return given.astype(dtype)


def _droppable(
    magnitudes: npt.NDArray[np.unsignedinteger],
    accounts: npt.NDArray[np.unsignedinteger],
    lanes: npt.NDArray[np.int64],
    budgets: npt.NDArray[np.int64],
    tensor: int,
) -> Bits:
    """Return which chunks a switch may trim: of every account ``EXPOSED`` times its budget, the smallest
    magnitude classes first.

    Of the class that fits in part, chunks at even distances, others with every tensor, lest the same values
    always be those that are lost.
    """
    chosen = np.zeros(lanes.size, np.bool_)
    for account in np.flatnonzero(budgets):
        room = EXPOSED * int(budgets[account])
        for magnitude in range(MAGNITUDE_CLASSES):
            of_class = np.flatnonzero((accounts == account) & (magnitudes == magnitude))
            size = int(lanes[of_class].sum())
            if size > room:
                fit = room // int(lanes[0])
                places = (np.arange(fit) * of_class.size // max(fit, 1) + tensor) % of_class.size
                chosen[of_class[places]] = True
                break
            chosen[of_class] = True
            room -= size
    return chosen


def _budgets(service: ServiceClass, accounts: npt.NDArray[np.unsignedinteger]) -> npt.NDArray[np.int64]:
    """Return how many lanes may go missing per account; one of 0 lanes stands for every account of a lossless
    tensor.
    """
    if service.budgets.size == 0:
        accounts[:] = 0
        return np.zeros(1, np.int64)
    if service.budgets.size > MAX_ACCOUNTS:
        raise ValueError(f"{service.budgets.size} accounts: a tensor of a flow has at most {MAX_ACCOUNTS}")
    if int(accounts.max()) >= service.budgets.size:
        raise ValueError(f"account {int(accounts.max())} has no budget: there are {service.budgets.size}")
    return np.minimum(service.budgets, np.uint64(0xFFFFFFFF)).astype(np.int64)
