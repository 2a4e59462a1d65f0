# SPDX-License-Identifier: Apache-2.0
"""Streaming partition: each sample goes where most of its features are known already."""

import numpy as np

from weir.host_agent.placement.samples import Integers, Samples
from weir.host_agent.placement.traffic import cap


def greedy(samples: Samples, machines: int, slack: float, seed: int) -> Integers:
    """Place samples one by one, in random order, where they bring the fewest new features (Parsa, 2015).

    Ties, of which there are many at first, go to the machine with the fewest samples (Fennel's balance).
    """
    known = np.zeros((machines, samples.width), np.bool_)
    room = np.full(machines, cap(len(samples), machines, slack), np.int64)
    places = np.zeros(len(samples), np.int64)
    for sample in np.random.default_rng(seed).permutation(len(samples)):
        features = samples[sample]
        shared = known[:, features].sum(axis=1) + room / (1 + room.max())
        shared[room <= 0] = -1
        machine = int(np.argmax(shared))
        places[sample] = machine
        room[machine] -= 1
        known[machine, features] = True
    return places
