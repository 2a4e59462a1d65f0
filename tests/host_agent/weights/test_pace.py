# SPDX-License-Identifier: Apache-2.0
"""The rate of a publisher: it grows where it is used, and falls from what was sent."""

import pytest

from weir.host_agent.weights.pace import Pace, Rates

MS = 1_000_000
PACKET = 1116


def drive(pace: Pace, start: int, end: int, takes: float = float("inf")) -> int:
    """Send all that the pace and a carrier allow, which takes this many bytes a second; return the bytes."""
    total, room = 0, 0.0
    for now in range(start, end, MS):
        pace.turn(now)
        room = min(room, 0.0) + takes / 1000
        while pace.room(now) > 0 and room > 0:
            pace.sent(PACKET, 1)
            total += PACKET
            room -= PACKET
    return total


def test_it_sends_at_its_rate() -> None:
    pace = Pace(Rates(1e6, 1e6, 1e6))
    assert drive(pace, 0, 1000 * MS) == pytest.approx(1e6, rel=0.03)


def test_it_grows_while_nothing_is_lost_and_stays_within_its_limits() -> None:
    pace = Pace(Rates(1e6, 1e5, 2e7))
    drive(pace, 0, 100 * MS)
    assert 4e6 < pace.rate < 2e7
    drive(pace, 100 * MS, 1000 * MS)
    assert pace.rate == 2e7


def test_it_does_not_outgrow_a_carrier() -> None:
    pace = Pace(Rates(1e6, 1e5, 1e9))
    drive(pace, 0, 2000 * MS, takes=1e7)
    assert 1e7 <= pace.rate < 2.1e7


def test_without_anything_to_send_it_stays() -> None:
    pace = Pace(Rates(1e6, 1e5, 1e9))
    for now in range(0, 1000 * MS, MS):
        pace.turn(now)
        assert pace.room(now) > 0
    assert pace.rate == 1e6


def test_it_falls_from_what_was_sent_when_packets_are_lost() -> None:
    pace = Pace(Rates(8e7, 1e5, 1e9))
    drive(pace, 0, 15 * MS, takes=1e7)
    pace.lost("engine", 50)
    pace.turn(25 * MS)
    assert pace.rate < 1e7
    rate = pace.rate
    drive(pace, 25 * MS, 125 * MS)
    assert rate < pace.rate <= 1.4 * rate  # no longer as fast as at first


def test_it_does_not_fall_to_the_rate_of_late_repairs() -> None:
    pace = Pace(Rates(1e7, 1e5, 1e7))
    drive(pace, 0, 200 * MS)
    for now in range(200 * MS, 1000 * MS, MS):
        pace.turn(now)  # nothing to send, until an engine finds that the last packets are missing
    pace.sent(20 * PACKET, 20)
    pace.lost("engine", 20)
    assert pace.turn(1020 * MS)
    assert pace.rate == pytest.approx(0.5e7, rel=0.1)


def test_losses_of_a_full_queue_slow_it_again_and_again() -> None:
    pace = Pace(Rates(1e7, 1e5, 1e7))
    drive(pace, 0, 200 * MS)
    rates = [pace.rate]
    for now in range(200 * MS, 700 * MS, 100 * MS):
        pace.lost("engine", 100)
        drive(pace, now, now + 100 * MS, takes=1e6)
        assert pace.rate < rates[-1]
        rates.append(pace.rate)
    assert rates[-1] < 1e6


def test_few_losses_do_not_matter_nor_those_of_several_together() -> None:
    pace = Pace(Rates(1e7, 1e7, 1e9))
    drive(pace, 0, 19 * MS)
    for engine in range(8):
        pace.lost(engine, 2)
    pace.turn(21 * MS)
    assert pace.rate > 1e7
