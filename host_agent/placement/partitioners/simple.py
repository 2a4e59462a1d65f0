# SPDX-License-Identifier: Apache-2.0
"""Partitions that look at nothing: what others are compared with."""

import numpy as np

from weir.host_agent.placement.samples import Integers, Samples


def random(samples: Samples, machines: int, slack: float, seed: int) -> Integers:
    """Deal samples at random, equally many to each machine."""
    return np.random.default_rng(seed).permutation(np.arange(len(samples)) % machines)


def by_hash(samples: Samples, machines: int, slack: float, seed: int) -> Integers:
    """Deal samples by their numbers, as a data loader does that gives every rank each ``machines``-th."""
    return np.arange(len(samples)) % machines
