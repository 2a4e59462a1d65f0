# SPDX-License-Identifier: Apache-2.0
"""The ideal model of a training step: it agrees with simulations where both run, and a slow hub is slow."""

import pytest

from weir.bench.simulated.servers import Setting, ring
from weir.bench.simulated.step import WAYS as SIMULATED
from weir.bench.simulated.step import simulate
from weir.bench.simulated.worth import MODELS, RING, WAYS, Parameters, step
from weir.network import NetworkSpec

RATE, WORKERS, VALUES = 100_000_000, 4, 500_000
BY_NAME = {way.name: way for way in WAYS}


@pytest.mark.parametrize("name", ["Weir, 32 bits", "Weir, 16 bits"])
def test_sums_take_as_long_as_in_a_simulation(name: str) -> None:
    simulated = {"Weir, 32 bits": "Weir, lossless"}.get(name, name)
    (way,) = (each for each in SIMULATED if each.name == simulated)
    found = simulate(way, NetworkSpec(rate_bps=RATE), WORKERS, VALUES, 0.0)
    ideal = BY_NAME[name].seconds(VALUES, WORKERS, RATE)
    assert ideal < found.times[0] < 1.15 * ideal


@pytest.mark.parametrize("workers", [2, 4])
def test_a_ring_takes_as_long_as_in_a_simulation(workers: int) -> None:
    found = ring(Setting(workers, VALUES, RATE)).seconds
    ideal = RING.seconds(VALUES, workers, RATE)
    assert ideal < found < 1.15 * ideal


def test_a_hubs_processor_limits_where_lines_do_not() -> None:
    model, way, given = MODELS["gpt2"], BY_NAME["Weir, 32 bits"], Parameters()
    slow, fast = (step(model, way, 4, rate, given) for rate in (100_000_000_000, 1_000_000_000_000))
    assert slow[0] == fast[0] > given.switch * 4 * 4e-9 * model.parameters
    assert slow[1] == pytest.approx(given.switch * 4 * 4e-9 * model.parameters)
    more = step(model, way, 4, 100_000_000_000, Parameters(cores=4))
    assert more[0] < slow[0]
    computing = 6 * given.tokens / (given.teraflops * 1e12) * model.parameters
    assert computing < step(model, RING, 4, 1_000_000_000_000, given)[0] < 1.2 * computing
