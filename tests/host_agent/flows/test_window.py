# SPDX-License-Identifier: Apache-2.0
"""The window's rule by numbers, and round trip times."""

import pytest

from weir.host_agent.flows import FlowConfig
from weir.host_agent.flows.timer import RoundTrip
from weir.host_agent.flows.window import GAIN, Window

MS = 1_000_000


def round_trip(window: Window, marked: int = 0) -> None:
    """The fate of a whole window becomes known, while more would have been sent."""
    window.on_limit()
    window.on_settled(window.chunks, marked)


def test_it_doubles_until_the_first_mark() -> None:
    window = Window(4)
    for wanted in (8, 16, 32):
        round_trip(window)
        assert window.chunks == wanted


def test_the_first_mark_halves_and_then_it_grows_by_one() -> None:
    window = Window(32)
    round_trip(window, marked=32)
    assert (window.alpha, window.chunks, window.shrunk) == (1.0, 16, 1)
    round_trip(window)
    assert window.chunks == 17
    round_trip(window)
    assert window.chunks == 18


def test_it_shrinks_by_half_the_estimated_share_of_marks() -> None:
    window = Window(100)
    round_trip(window, marked=100)
    alpha = 1.0
    for marked in (5, 0, 10):
        share, before = marked / window.chunks, window.chunks
        round_trip(window, marked)
        alpha += GAIN * (share - alpha)
        assert window.alpha == pytest.approx(alpha)
        wanted = before * (1 - alpha / 2) if marked else before + 1
        assert window.chunks == pytest.approx(wanted, abs=1)


def test_it_shrinks_once_a_round_trip() -> None:
    window = Window(64)
    for _ in range(64):
        window.on_settled(1, 1)
    assert window.shrunk == 1


def test_it_never_closes() -> None:
    window = Window(8)
    for _ in range(100):
        round_trip(window, marked=window.chunks)
    assert window.chunks == 1


def test_silence_halves() -> None:
    window = Window(64)
    window.on_silence()
    assert window.chunks == 32
    round_trip(window)
    assert window.chunks == 33  # and ends the doubling


def test_without_congestion_control_it_does_not_matter() -> None:
    window = Window(1, enabled=False)
    round_trip(window, marked=1)
    assert window.chunks >= 1 << 16


def test_the_time_out_follows_rfc_6298() -> None:
    timer = RoundTrip(FlowConfig(1, initial_rto=0.2, min_probe=0.001, max_rto=1.0))
    assert timer.timeout() == 200 * MS
    timer.sample(10 * MS)
    assert (timer.smoothed, timer.timeout()) == (10 * MS, 30 * MS)
    timer.sample(18 * MS)
    assert (timer.smoothed, timer.timeout()) == (11 * MS, (11 + 23) * MS)  # variation 5 + (8 - 5) / 4
    assert timer.timeout(backoff=1) == 2 * timer.timeout()
    assert timer.timeout(backoff=30) == 1000 * MS


def test_the_time_out_has_a_floor() -> None:
    timer = RoundTrip(FlowConfig(1))
    timer.sample(1000)
    assert timer.timeout() == 1000 + MS // 5


def test_it_grows_only_while_it_is_what_limits() -> None:
    window = Window(4)
    window.on_settled(4, 0)
    assert window.chunks == 4
    window.on_limit()
    window.on_settled(4, 0)
    assert window.chunks == 8
