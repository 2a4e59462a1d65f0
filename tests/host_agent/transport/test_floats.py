# SPDX-License-Identifier: Apache-2.0
"""Sums of float32 in their own memory: the packets and sums of lanes that were made beforehand."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from softp4.switch import Switch
from tests.harness.effort import effort
from tests.simulator.rack import Rack
from weir.host_agent.collectives import quantize
from weir.host_agent.transport.service_class import ServiceClass
from weir.host_agent.transport.slot_transport import FloatScales, SlotTransport, TransportConfig
from weir.p4src import PROGRAM, WIDE_PROGRAM
from weir.simulator.entries import aggregation
from weir.simulator.host import Work
from weir.simulator.link import Faults
from weir.wire.definition import WIDE_LANES, Op

Vector = npt.NDArray[np.float32]

WORKERS, VALUES = 3, 256
FAULTS = Faults(delay=5_000, jitter=60_000, loss=0.05, duplicate=0.05, trim=0.03, late=0.02, lateness=10**8)


def vectors(count: int, scale: int = 0) -> list[Vector]:
    """Return each worker's, of magnitudes from 2^-40 to 2^40, with blocks of zeros and of minus zeros.

    scale: what magnitudes are multiplied by, as a power of two.
    """
    found = []
    for worker in range(WORKERS):
        random = np.random.default_rng(worker)
        runs = -(-count // 64)
        x = random.standard_normal((runs, 64)) * np.exp2(random.integers(-40, 40, runs) + scale)[:, None]
        x[random.random(runs) < 0.4] = 0.0
        x[random.random(runs) < 0.1] = -0.0
        found.append(x.reshape(-1)[:count].astype(np.float32))
    return found


def exponents_of(made: Sequence[Vector]) -> npt.NDArray[np.uint32]:
    return np.asarray(np.max([quantize.exponents(one, VALUES) for one in made], axis=0))


def summed(works: Sequence[Work], **config: Any) -> tuple[list[bytes], list[tuple[str, int, bytes]]]:
    """Return all workers' vectors after a reduce over a rack with faults, and all frames with their times."""
    frames: list[tuple[str, int, bytes]] = []
    with Switch(WIDE_PROGRAM if config.get("wide") else PROGRAM) as switch:
        table, entry = aggregation()
        switch.table(table).insert(entry)
        with Rack(switch, workers=WORKERS, slots=8, seed=3, up=FAULTS, down=FAULTS, **config) as rack:
            for name, links in ("up", rack.up), ("down", rack.down):
                for number, link in enumerate(links):
                    link.tap = lambda time, frame, who=f"{name} {number}": frames.append((who, time, frame))
            rack.submit(list(works))
            rack.run()
            assert all(host.reports[-1].entered == host.reports[-1].included for host in rack.hosts)
    return [work.lanes.tobytes() for work in works], frames


@pytest.mark.parametrize("config", [{}, {"fill": True}, {"max_lanes": 32}, {"max_lanes": 64}], ids=str)
@pytest.mark.parametrize(
    ("block", "scale"), effort([(32, 0), (256, -115)], [(32, 0), (256, 0), (256, -115), (256, 85)])
)
def test_values_travel_and_end_as_lanes_that_were_made_beforehand(
    block: int, scale: int, config: dict[str, Any]
) -> None:
    count = 60 * 256 + 7
    made = vectors(count, scale)
    exponents, bits = exponents_of(made), quantize.headroom(WORKERS)
    lanes = [quantize.to_fixed(one, exponents, VALUES, WORKERS).view(np.uint32) for one in made]
    scales = FloatScales(exponents, VALUES, bits)
    before, frames = summed([Work(Op.ADD, block, one) for one in lanes], **config)
    after, same = summed([Work(Op.ADD, block, one.view(np.uint32), floats=scales) for one in made], **config)
    assert same == frames
    sums = np.frombuffer(before[0], np.int32)
    assert np.count_nonzero(sums) > count / 2
    expected = quantize.from_fixed(sums, exponents, VALUES, WORKERS).tobytes()
    assert after == [expected] * WORKERS


@pytest.mark.parametrize(
    "count", effort([300, 9 * WIDE_LANES + 700], [1, 300, 9 * WIDE_LANES, 60 * WIDE_LANES + 700])
)
@pytest.mark.parametrize("scale", effort([-115], [0, -115]))
def test_wide_packets_bring_the_same_bits(count: int, scale: int) -> None:
    """Over links that lose, repeat, trim and delay; a block of packets has several scales."""
    made = vectors(count, scale)
    exponents, bits = exponents_of(made), quantize.headroom(WORKERS)
    lanes = [quantize.to_fixed(one, exponents, VALUES, WORKERS).view(np.uint32) for one in made]
    scales = FloatScales(exponents, VALUES, bits)
    sums = [np.asarray(sum(lane.astype(np.uint64) for lane in lanes) & 0xFFFFFFFF, np.uint32)] * WORKERS
    few, _ = summed([Work(Op.ADD, 256, one.view(np.uint32), floats=scales) for one in vectors(count, scale)])
    wide, frames = summed(
        [Work(Op.ADD, WIDE_LANES, one.view(np.uint32), floats=scales) for one in made], wide=True
    )
    assert wide == few
    assert len(set(wide)) == 1
    _, fewer = summed([Work(Op.ADD, WIDE_LANES, one.copy()) for one in lanes], wide=True)
    assert fewer == frames
    whole = [Work(Op.ADD, WIDE_LANES, one.copy()) for one in lanes]
    assert summed(whole, wide=True)[0] == [one.tobytes() for one in sums]


def test_wide_packets_are_a_quarter_as_many() -> None:
    """Blocks that no worker has are skipped in them, too."""
    values = np.ones(64 * WIDE_LANES, np.uint32)
    values[16 * WIDE_LANES :] = 0
    full = {}
    for block in (256, WIDE_LANES):
        _, frames = summed([Work(Op.ADD, block, values.copy()) for _ in range(WORKERS)], wide=True)
        sent = [len(frame) for who, _, frame in frames if who == "up 0"]
        assert max(sent) == 42 + 28 + 8 + 4 * block
        full[block] = sum(length == max(sent) for length in sent)
    assert 64 <= full[256] < 80
    assert 16 <= full[WIDE_LANES] < 24


def test_what_does_not_fit_wide_packets_is_refused() -> None:
    lanes = np.zeros(3000, np.uint32)
    with (
        SlotTransport(TransportConfig(1, 0, 2, slots=4)) as transport,
        pytest.raises(ValueError, match="not 1024"),
    ):
        transport.begin_reduction(Op.ADD, WIDE_LANES, lanes)
    with SlotTransport(TransportConfig(1, 0, 2, slots=4, wide=True)) as transport:
        for more in (
            {"op": Op.MAX},
            {"op": Op.OR},
            {"service": ServiceClass(budgets=np.array([9], np.uint64))},
        ):
            with pytest.raises(ValueError, match="are for ADD without loss budgets"):
                transport.begin_reduction(**{"op": Op.ADD, "block": WIDE_LANES, "lanes": lanes, **more})
        transport.begin_reduction(Op.ADD, WIDE_LANES, lanes)
        assert not transport.done
    for wrong in ({"fill": True}, {"max_lanes": 32}):
        with pytest.raises(ValueError, match="wide packets are for switches"):
            TransportConfig(1, 0, 2, slots=4, wide=True, **wrong)


def test_what_does_not_fit_floats_is_refused() -> None:
    lanes, exponents = np.zeros(1000, np.uint32), np.ones(4, np.uint32)
    with SlotTransport(TransportConfig(1, 0, 2, slots=4)) as transport:

        def begin(op: Op = Op.ADD, block: int = 256, values: int = 256, **more: Any) -> None:
            transport.begin_reduction(op, block, lanes, floats=FloatScales(exponents, values, 1), **more)

        for wrong, words in [
            ({"op": Op.MAX}, "for ADD"),
            ({"audiences": np.zeros(4, np.uint16)}, "audiences"),
            ({"service": ServiceClass(budgets=np.array([9], np.uint64))}, "loss budgets"),
            ({"values": 128}, "256 at least"),
            ({"values": 300}, "power of two"),
            ({"values": 512}, "4 exponents for 1000 values"),
        ]:
            with pytest.raises(ValueError, match=words):
                begin(**wrong)
        begin()
        assert not transport.done


def test_values_of_a_reduce_that_is_given_up_become_the_same_lanes_elsewhere() -> None:
    """As when another worker has left the slots that this one had begun to use."""
    (values,) = vectors(40 * VALUES, 1)[:1]
    exponents = exponents_of([values])
    lanes = quantize.to_fixed(values, exponents, VALUES, WORKERS)
    rounded = quantize.from_fixed(lanes, exponents, VALUES, WORKERS)
    scales = FloatScales(exponents, VALUES, quantize.headroom(WORKERS))
    with SlotTransport(TransportConfig(1, 0, WORKERS, slots=4)) as transport:
        transport.begin_reduction(Op.ADD, 256, values.view(np.uint32), floats=scales)
        assert not np.array_equal(values[:VALUES], rounded[:VALUES])
        transport.restore()
    assert np.array_equal(values[:VALUES], rounded[:VALUES])
    assert np.array_equal(quantize.to_fixed(values, exponents, VALUES, WORKERS), lanes)


def test_a_sample_finds_sums_that_are_too_coarse() -> None:
    fine = np.random.default_rng(5).standard_normal(40 * VALUES).astype(np.float32)
    coarse = fine.copy()
    coarse[30 * VALUES : 31 * VALUES : 2] *= 1e-9
    for vector, expected in (fine, None), (coarse, 30):
        exponents = exponents_of([vector])
        sample = quantize.Sample(vector, exponents, VALUES, WORKERS)
        lanes = quantize.to_fixed(vector, exponents, VALUES, WORKERS) * WORKERS
        assert quantize.coarse_block(vector, lanes, None, exponents, VALUES, WORKERS) == expected
        sums = quantize.from_fixed(lanes, exponents, VALUES, WORKERS)
        assert sample.coarse_block(sums) == expected
