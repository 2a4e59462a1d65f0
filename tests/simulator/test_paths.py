# SPDX-License-Identifier: Apache-2.0
"""Long, lossy paths to a hub that others use, too: they are filled, and TCP gets its part of them."""

from random import Random

import numpy as np
import pytest

from weir.bench.simulated.paths import Path, hub, simulate, simulate_sharing
from weir.host_agent.transport.growth import PACKET, slots_for
from weir.host_agent.transport.slot_transport import Congestion
from weir.simulator.clock import Clock
from weir.simulator.host import Work
from weir.simulator.link import Bottleneck, Faults, Link
from weir.simulator.network import Network
from weir.wire.definition import Op

MS = 1_000_000
PATH = Path(5e6, 0.05, loss=0.01)


def test_a_bottleneck_sends_in_order_at_its_rate_and_drops_what_finds_no_room() -> None:
    clock = Clock()
    arrived: list[tuple[int, bytes]] = []

    def arrive(frame: bytes) -> None:
        arrived.append((clock.now, frame))

    faults = Faults(delay=5 * MS, bottleneck=Bottleneck(8_000_000, 3000))  # 1 ms for 1,000 bytes
    link = Link(clock, Random(0), faults, arrive)
    frames = [bytes([number]) * 1000 for number in range(5)]
    for frame in frames:
        link.send(frame)
    clock.run(100 * MS, lambda: False)
    assert arrived == [((6 + number) * MS, frames[number]) for number in range(3)]
    assert link.dropped == 2
    link.send(frames[4])
    clock.run(200 * MS, lambda: False)
    assert arrived[-1] == (14 * MS, frames[4]), "there is room again"


def test_slots_fill_a_path_of_a_gigabit_twice() -> None:
    for seconds in (0.01, 0.05, 0.15):
        held = seconds * 1e9 / 8 / PACKET
        assert 2 * held <= slots_for(seconds) < 4 * held
    assert slots_for(0.0) <= 1


@pytest.mark.parametrize(("sums", "least"), [(1, 0.6), (2, 0.7)])
def test_a_lossy_path_is_filled(sums: int, least: float) -> None:
    """1 % of the packets is lost in each direction, at random: CUBIC's window would fill 0.4 of the line.

    Of the seeds 1 to 16, the first sum, which opens the window, fills 0.68 to 0.81, the second 0.78 to 0.93.
    """
    seconds, counts = simulate("b", PATH, workers=2, lanes=1500 * 256, sums=sums)
    line = 1500 * PACKET * 8 / PATH.bits_per_second
    assert line / seconds > least
    if sums > 1:
        assert counts["timeouts"] == 0, "what is lost is found by what arrives"


def test_random_losses_do_not_close_the_window_of_a_fast_path() -> None:
    """The path holds 5,600 packets. With losses counted over 1,024 results, a sum filled 0.28 of the line."""
    path = Path(1e9, 0.05, loss=0.01)
    seconds, _ = simulate("b", path, workers=2, lanes=45_000 * 256, sums=2)
    assert 45_000 * PACKET * 8 / path.bits_per_second / seconds > 0.42


def test_the_first_sum_does_not_flood_a_short_queue() -> None:
    """The queue holds half a round trip: with the window twice what filled it, 506 packets went again."""
    _, counts = simulate("b", Path(20e6, 0.05, buffer=0.5), workers=2, lanes=2930 * 256, sums=1)
    assert counts["retransmissions"] < 350


@pytest.mark.parametrize("up", [True, False])
def test_tcp_gets_its_part_of_a_full_queue(up: bool) -> None:
    found = simulate_sharing(Path(5e6, 0.05), up=up, lead_s=2, seconds=8)
    assert 0.5 < found.fair < 2
    assert found.job + sum(found.streams) > 0.9 * 5e6


def test_a_path_that_is_cut_for_seconds_delays_and_does_no_more() -> None:
    with Network(hub(2), seed=1, link=PATH.link) as network:
        job = network.admit(["h1", "h2"], slots=64, congestion=Congestion.PATH)
        lanes = [np.full(800 * 256, rank + 1, np.uint32) for rank in range(2)]
        for worker, own in zip(job.workers, lanes, strict=True):
            worker.submit(Work(Op.ADD, 256, own))
        uplink = network.link("h1", network.stations["h1"].host.switch)
        network.run_for(0.5)
        uplink.down = True
        network.run_for(5)
        uplink.down = False
        network.run(lambda: job.idle, limit=10)
        assert all((own == 3).all() for own in lanes)
