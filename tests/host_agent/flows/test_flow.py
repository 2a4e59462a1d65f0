# SPDX-License-Identifier: Apache-2.0
"""The promise of a flow: it ends, both ends agree, no account loses more than its budget, nothing vanishes."""

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from host_agent.flows import FlowConfig
from host_agent.tagging import LOSSLESS, Tagging
from simulator.link import Faults
from tests.host_agent.flows.world import FLOW_ID, Floats, Meddling, World, check

MS = 1_000_000
EXAMPLES = 300

probabilities = st.sampled_from([0.0, 0.01, 0.1, 0.3])
faults = st.builds(
    Faults,
    delay=st.sampled_from([1_000, 100_000, 10 * MS]),
    jitter=st.sampled_from([0, 100_000, 20 * MS]),
    loss=probabilities,
    duplicate=probabilities,
    late=st.sampled_from([0.0, 0.05]),
    lateness=st.sampled_from([100 * MS, 5_000 * MS]),
)
meddlings = st.builds(
    Meddling,
    trim=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    trim_any=st.sampled_from([0.0, 0.0, 0.05, 0.3]),
    mark=st.sampled_from([0.0, 0.1, 1.0]),
    garbage=st.sampled_from([0.0, 0.2]),
)
worlds = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**32 - 1),
        "there": faults,
        "back": faults,
        "meddling": meddlings,
        "meddling_back": meddlings,
    }
)
configs = st.builds(
    FlowConfig,
    flow=st.just(FLOW_ID),
    worker=st.integers(0, 31),
    chunk_lanes=st.sampled_from([1, 7, 32, 352]),
    open_tensors=st.integers(1, 5),
    ack_every=st.sampled_from([1, 2, 8, 100]),
    congestion=st.booleans(),
    first_window=st.sampled_from([1, 2, 32]),
)


def random_values(rng: np.random.Generator, lanes: int) -> Floats:
    """Any bit patterns: also infinities and NaNs must arrive as they were."""
    return rng.integers(0, 2**32, lanes, dtype=np.uint32).view(np.float32)


def random_tagging(rng: np.random.Generator, config: FlowConfig, lanes: int, lossy: bool) -> Tagging:
    chunks, layer = config.chunks(lanes), int(rng.integers(0, 6))
    magnitudes = rng.integers(0, 4, chunks, dtype=np.uint8)
    if not lossy:
        return Tagging(layer, magnitudes)
    accounts = int(rng.integers(1, 9))
    share = rng.choice([0.0, 0.03, 0.3, 1.0], accounts)
    return Tagging(
        layer,
        magnitudes,
        rng.integers(0, accounts, chunks, dtype=np.uint16),
        (share * lanes / accounts).astype(np.uint64),
    )


def transfer(config: FlowConfig, shape: dict[str, Any], lossy: bool) -> tuple[World, list[Floats]]:
    """A few tensors, some at once and some one after the other, and the checks that hold of each."""
    rng = np.random.default_rng(shape["seed"])
    world = World(config, **shape)
    vectors = []
    for _ in range(int(rng.integers(1, 7))):
        lanes = int(rng.integers(1, 60 * config.chunk_lanes))
        vectors.append(random_values(rng, lanes))
        world.submit(vectors[-1], random_tagging(rng, config, lanes, lossy))
        for _ in range(int(rng.integers(0, 50))):
            world.clock.step()
    world.run()
    assert sorted(world.deliveries) == sorted(world.settlements) == list(range(1, len(vectors) + 1))
    for number, values in enumerate(vectors, 1):
        check(values, world.deliveries[number], world.settlements[number])
    return world, vectors


@settings(max_examples=EXAMPLES, deadline=None, print_blob=True, suppress_health_check=list(HealthCheck))
@given(config=configs, shape=worlds)
def test_a_flow_ends_within_its_budgets_and_loses_no_account(
    config: FlowConfig, shape: dict[str, Any]
) -> None:
    note(f"World({config!r}, **{shape!r})")
    transfer(config, shape, lossy=True)


@settings(max_examples=EXAMPLES, deadline=None, print_blob=True, suppress_health_check=list(HealthCheck))
@given(config=configs, shape=worlds)
def test_without_budgets_every_bit_arrives(config: FlowConfig, shape: dict[str, Any]) -> None:
    note(f"World({config!r}, **{shape!r})")
    world, vectors = transfer(config, shape, lossy=False)
    for number, values in enumerate(vectors, 1):
        assert world.deliveries[number].complete
        np.testing.assert_array_equal(world.deliveries[number].values.view(np.uint32), values.view(np.uint32))
    assert world.sender.counts.droppable == 0


def test_all_of_it_follows_from_the_seed() -> None:
    def story(seed: int) -> list[Any]:
        lossy = Faults(jitter=MS, loss=0.2, duplicate=0.2)
        world = World(FlowConfig(FLOW_ID), seed, lossy, lossy, Meddling(trim=0.3, mark=0.3))
        world.submit(np.arange(100_000, dtype=np.float32), Tagging(budgets=np.array([10_000], np.uint64)))
        world.run()
        return [world.clock.now, world.sender.counts, world.settlements[1].delivered.tolist()]

    assert story(5) == story(5)
    assert story(5) != story(6)


@pytest.mark.parametrize("tagging", [LOSSLESS, Tagging(budgets=np.array([20_000], np.uint64))])
def test_an_undisturbed_transfer_asks_once_and_repeats_nothing(tagging: Tagging) -> None:
    world = World(FlowConfig(FLOW_ID, first_window=1000))
    values = np.arange(100_000, dtype=np.float32)
    world.submit(values, tagging)
    world.run()
    counts = world.sender.counts
    chunks = -(-100_000 // 352)
    assert (counts.chunks, counts.resent, counts.probes, counts.timeouts) == (chunks, 0, 1, 0)
    assert counts.packets == chunks + 2  # the probe, and that its answer came
    assert world.deliveries[1].complete
    assert world.receiver.settled
