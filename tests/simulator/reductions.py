# SPDX-License-Identifier: Apache-2.0
"""Reductions over simulated networks: vectors, what may happen to their packets, and what must result."""

import numpy as np
import numpy.typing as npt
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from tests.harness.effort import examples
from tests.host_agent.transport.answers import combine
from weir.host_agent.transport.service_class import LOSSLESS, ServiceClass
from weir.host_agent.transport.slot_transport import Audiences
from weir.simulator.host import Work
from weir.simulator.link import Faults
from weir.simulator.network import Allocation
from weir.wire.definition import AUDIENCE_EXCEPT, WHOLE_PATH, Op

MS = 1_000_000
BLOCK = 256

Lanes = npt.NDArray[np.uint32]

_probabilities = st.sampled_from([0.0, 0.01, 0.1, 0.3])
network_faults = st.builds(
    Faults,
    delay=st.sampled_from([1_000, 1 * MS]),
    jitter=st.sampled_from([0, 100_000, 20 * MS]),
    loss=_probabilities,
    duplicate=_probabilities,
    late=st.sampled_from([0.0, 0.05]),
    lateness=st.sampled_from([100 * MS, 2_000 * MS]),
    trim=_probabilities,
    mark=_probabilities,
)
"""Everything that links of a whole network may do."""


def drawn(number: int) -> settings:
    """Return the settings of a test that draws whole runs.

    One that is stuck takes long, and its seed says all: it is not looked for a smaller one.
    """
    phases = (Phase.explicit, Phase.reuse, Phase.generate)
    return settings(
        max_examples=examples(number), print_blob=True, suppress_health_check=list(HealthCheck), phases=phases
    )


def vectors(seed: int, workers: int, blocks: int) -> list[Lanes]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 2**32, blocks * BLOCK, dtype=np.uint32) for _ in range(workers)]


def submit(
    job: Allocation,
    arrays: list[Lanes],
    service: ServiceClass = LOSSLESS,
    audiences: Audiences | None = None,
    op: Op = Op.ADD,
    block: int = BLOCK,
) -> list[Lanes]:
    """Begin to reduce copies of the vectors, which are returned."""
    copies = [array.copy() for array in arrays]
    for worker, lanes in zip(job.workers, copies, strict=True):
        worker.submit(Work(op, block, lanes, service=service, audiences=audiences))
    return copies


def delivered(before: list[Lanes], job: Allocation) -> list[Lanes]:
    """Return the vectors without what came back to their workers from the last reduction."""
    kept = []
    for lanes, worker in zip(before, job.workers, strict=True):
        given_back = worker.reports[-1].given_back
        rest = lanes.copy()
        for number, values in zip(given_back.blocks, given_back.lanes, strict=True):
            rest[number * BLOCK : (number + 1) * BLOCK] -= values
        kept.append(rest)
    return kept


def check_exact(before: list[Lanes], after: list[Lanes], op: Op = Op.ADD) -> None:
    expected = combine(op, before)
    for result in after:
        np.testing.assert_array_equal(result, expected)


def check_wanted(audiences: Audiences, path: int, block: int, result: Lanes, expected: Lanes) -> None:
    """The blocks that the worker of this path wants are the expected ones."""
    only = audiences == path
    but = (audiences & AUDIENCE_EXCEPT != 0) & (audiences & WHOLE_PATH != path)
    wanted = np.repeat(only | but, block)[: result.size]
    np.testing.assert_array_equal(result[wanted], expected[wanted])
