# SPDX-License-Identifier: Apache-2.0
"""Streaming partition: each sample goes where most of its features are known already."""

import numpy as np

from weir.host_agent.placement.partitioners.local_search import library
from weir.host_agent.placement.samples import Integers, Samples
from weir.host_agent.placement.traffic import cap


def greedy(samples: Samples, machines: int, slack: float, seed: int) -> Integers:
    """Place samples one by one, in random order, where they bring the fewest new features (Parsa, 2015).

    Ties, of which there are many at first, go to the machine with the fewest samples (Fennel's balance).
    """
    known = np.zeros((samples.width, machines), np.uint8)
    room = np.full(machines, cap(len(samples), machines, slack), np.int64)
    places = np.zeros(len(samples), np.int64)
    order = np.random.default_rng(seed).permutation(len(samples)).astype(np.int64)
    starts, features = (np.ascontiguousarray(one, np.int64) for one in (samples.starts, samples.features))
    library().weir_greedy(
        machines,
        *(array.ctypes.data for array in (starts, features, order)),
        order.size,
        *(array.ctypes.data for array in (room, known, places)),
    )
    return places
