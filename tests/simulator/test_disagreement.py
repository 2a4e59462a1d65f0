# SPDX-License-Identifier: Apache-2.0
"""Workers in different reduces, over racks and spines that lose packets: all hear of it, none gets a sum."""

import numpy as np
import pytest

from weir.controller.topology import leaf_spine
from weir.simulator.host import Work
from weir.simulator.link import Faults
from weir.simulator.network import LinkSpec, Network
from weir.wire.definition import Op

FAULTS = Faults(delay=5_000, jitter=20_000, loss=0.1, duplicate=0.05, late=0.02, lateness=50_000_000)
WORKERS = ["h1", "h2", "h4", "h5", "h7", "h8"]  # two in each of three racks


def work(op: Op, block: int, count: int) -> Work:
    return Work(op, block, np.arange(1, count + 1, dtype=np.uint32))


OTHERS = {
    "fewer lanes": (Op.ADD, 256, 300),
    "many slots": (Op.ADD, 256, 20_000),
    "another operator": (Op.MAX, 256, 9_000),
    "smaller blocks": (Op.ADD, 32, 9_000),
    "a barrier": (Op.ADD, 256, 0),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("odd", [{0}, {3}, {0, 1}, {1, 2, 5}], ids=str)
@pytest.mark.parametrize("loss", [False, True])
def test_everybody_hears_of_it(other: tuple[Op, int, int], odd: set[int], loss: bool) -> None:
    """One worker of a rack, a whole rack, or some of each."""
    link = LinkSpec(200_000_000, FAULTS if loss else Faults(delay=5_000))
    with Network(leaf_spine(3, 2, 3, target="soft"), seed=len(odd), link=link) as network:
        job = network.admit(WORKERS, slots=16, initial_rto=0.02, min_rto=0.01)
        for worker in job.workers:  # something that all agree on, before
            worker.submit(work(Op.ADD, 256, 5_000))
        network.run(lambda: job.idle, limit=60)
        made = [work(*other) if at in odd else work(Op.ADD, 256, 9_000) for at in range(len(WORKERS))]
        before = [one.lanes.copy() for one in made]
        for worker, one in zip(job.workers, made, strict=True):
            worker.submit(one)
        network.run(lambda: all(worker.transport.disagrees for worker in job.workers), limit=10)
        for worker, one, lanes in zip(job.workers, made, before, strict=True):
            assert not worker.transport.done
            np.testing.assert_array_equal(one.lanes, lanes)
