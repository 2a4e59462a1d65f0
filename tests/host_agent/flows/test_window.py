# SPDX-License-Identifier: Apache-2.0
"""The window's rule by numbers, and time-outs: of a sender whose packets are answered by hand."""

from itertools import pairwise

import numpy as np
import pytest

from weir.host_agent.flows import FlowConfig, FlowSender, FlowVerdict
from weir.host_agent.flows.codec import Bitmap, Chunk, Head, decode

MS = 1_000_000
FLOW, CHUNKS = 7, 8192


class Answered:
    """A sender of one long tensor, and all that it has sent."""

    def __init__(self, first_window: int, chunks: int = CHUNKS, congestion: bool = True) -> None:
        config = FlowConfig(
            FLOW, chunk_lanes=1, first_window=first_window, congestion=congestion, initial_rto=0.2, max_rto=1
        )
        self.sender = FlowSender(config)
        self.sender.submit(np.ones(chunks, np.float32))
        self.head = Head(FLOW, 0, 1, chunks)
        self.sent = self.told = 0
        self.now = 0

    def send(self) -> int:
        """Send what may be sent; return how many chunks."""
        payloads = [datagram.payload for datagram in self.sender.poll(self.now)[0]]
        assert all(isinstance(decode(payload), Chunk) for payload in payloads)
        self.sent += len(payloads)
        return len(payloads)

    def answer(self, chunks: int, congested: bool = False, took: int = MS) -> None:
        """Tell that this many more have arrived."""
        self.now += took
        bitmap = Bitmap(self.head, 0, self.told, np.ones(chunks, np.bool_), congested)
        assert self.sender.on_packet(bitmap.encode(), self.now) is FlowVerdict.ACCEPTED
        self.told += chunks

    def round_trip(self, marked: int = 0) -> None:
        """Send a window, and answer all of it, the last this many as marked."""
        sent = self.send()
        if sent - marked:
            self.answer(sent - marked)
        if marked:
            self.answer(marked, congested=True)

    @property
    def window(self) -> int:
        return self.sender.window.chunks


def test_it_doubles_until_the_first_mark() -> None:
    flow = Answered(4)
    for wanted in (8, 16, 32):
        flow.round_trip()
        assert flow.window == wanted


def test_the_first_mark_halves_and_then_it_grows_by_one() -> None:
    flow = Answered(32)
    flow.round_trip(marked=32)
    assert (flow.window, flow.sender.window.shrunk) == (16, 1)
    flow.round_trip()
    assert flow.window == 17
    flow.round_trip()
    assert flow.window == 18


def test_it_shrinks_by_half_the_share_of_marks_before() -> None:
    """Alpha follows with gain 1/16, and is what it was when the round trip's first mark comes (RFC 8257)."""
    flow = Answered(128)
    flow.round_trip(marked=128)
    size, alpha = 64.0, 1.0
    for marked in (5, 0, 10, 0, 3):
        share = marked / flow.window
        flow.round_trip(marked)
        size = size * (1 - alpha / 2) if marked else size + 1
        alpha += (share - alpha) / 16
        assert flow.window == pytest.approx(size, abs=1)


def test_it_shrinks_once_a_round_trip() -> None:
    flow = Answered(64)
    flow.send()
    for _ in range(64):
        flow.answer(1, congested=True)
    assert flow.sender.window.shrunk == 1


def test_it_never_closes() -> None:
    flow = Answered(8)
    for _ in range(100):
        flow.round_trip(marked=flow.window)
    assert flow.window == 1


def test_what_was_lost_counts_as_marked() -> None:
    """The first of four did not come, the others did: soon it is lost."""
    flow = Answered(4)
    flow.send()
    flow.told = 1
    flow.answer(3)
    window = flow.window
    flow.now += MS + MS
    flow.send()
    assert flow.sender.counts.resent == 1
    assert flow.window < window


def test_without_congestion_control_it_does_not_matter() -> None:
    flow = Answered(1, congestion=False)
    assert flow.send() == CHUNKS
    flow.answer(CHUNKS // 2, congested=True)
    assert flow.window >= CHUNKS


def test_it_grows_only_while_it_is_what_limits() -> None:
    flow = Answered(8, chunks=8)
    flow.send()
    flow.answer(7)
    assert flow.window == 8


def test_the_time_out_follows_rfc_6298() -> None:
    flow = Answered(1)
    flow.send()
    assert flow.sender.deadline == 200 * MS
    flow.answer(1, took=10 * MS)
    flow.send()
    assert flow.sender.deadline == flow.now + 30 * MS
    flow.answer(1, took=18 * MS)
    assert flow.sender.deadline == flow.now + (11 + 23) * MS  # variation 5 + (8 - 5) / 4


def test_unanswered_questions_are_further_and_further_apart() -> None:
    flow = Answered(1)
    flow.send()
    flow.answer(1, took=10 * MS)
    flow.send()
    times = [flow.now]
    for _ in range(8):
        deadline = flow.sender.deadline
        assert deadline is not None
        times.append(deadline)
        flow.sender.poll(deadline)
    apart = [(after - before) // MS for before, after in pairwise(times)]
    assert apart == [30, 30, 60, 120, 240, 480, 960, 1000]


def test_the_time_out_has_a_floor() -> None:
    flow = Answered(1)
    flow.send()
    flow.answer(1, took=1000)
    flow.send()
    assert flow.sender.deadline == flow.now + 1000 + MS // 5
