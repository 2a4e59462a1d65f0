# SPDX-License-Identifier: Apache-2.0
"""Weir's partition: the best that published programs find, improved for what they do not know of.

They minimise the sum over features of users - 1. That is all that travels only if every parameter can be with
one of its users; but a machine has no room for more than its share of the parameters. And they know no
bottleneck: one machine may get all the long samples.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Final

import numpy as np

from weir.host_agent.placement.partitioners.greedy import greedy
from weir.host_agent.placement.partitioners.local_search import LocalSearch
from weir.host_agent.placement.partitioners.packages import KEPT, MissingPackageError, metis, mtkahypar
from weir.host_agent.placement.partitioners.simple import by_hash, random
from weir.host_agent.placement.samples import Integers, Samples
from weir.host_agent.placement.servers import place_parameters
from weir.host_agent.placement.traffic import Placement, Traffic, traffic, users

_TARGET: Final = 0.9  # of a bound is aimed at, as loads are estimates until parameters are placed
_TRIES: Final = 4


@lru_cache(maxsize=KEPT)
def refined(samples: Samples, machines: int, slack: float, seed: int) -> Integers:
    """Improve what Mt-KaHyPar, METIS (where they are installed) and the greedy way find, and return the best.

    That is the one with the least total traffic among those that are no worse than the best of a random, a
    hashed and the greedy partition, in total and at the bottleneck; otherwise the one that is least beyond
    these.
    """
    simple = [make(samples, machines, slack, seed) for make in (random, by_hash, greedy)]
    starts = list(simple[2:])
    for make in (metis, mtkahypar):
        try:
            starts.append(make(samples, machines, slack, seed))
        except MissingPackageError:
            continue
    costs = [cost_of(samples, places, machines, slack) for places in simple]
    bound, least = (min(getattr(cost, what) for cost in costs) for what in ("bottleneck", "total"))

    def rank(places: Integers) -> tuple[float, int]:
        cost = cost_of(samples, places, machines, slack)
        beyond = max(cost.bottleneck / max(bound, 1), 1.0) * max(cost.total / max(least, 1), 1.0)
        return beyond, cost.total

    found = [*simple, *starts]
    for places in starts:
        found += _within(samples, places, machines, slack, seed, bound)
    return min(found, key=rank)


def cost_of(samples: Samples, places: Integers, machines: int, slack: float) -> Traffic:
    """Return the traffic of a partition, its parameters placed as well as they can be."""
    parameters = place_parameters(users(samples, places, machines), slack)
    return traffic(samples, Placement(machines, places, parameters))


def improve(
    samples: Samples, places: Integers, machines: int, slack: float, seed: int, bound: float
) -> Integers:
    """Return a better partition than ``places``. bound: bytes of any machine, see ``LocalSearch``."""
    search = LocalSearch(samples, places, machines, slack, bound)
    search.improve(np.random.default_rng(seed))
    return search.places


def _within(
    samples: Samples, places: Integers, machines: int, slack: float, seed: int, bound: int
) -> Iterator[Integers]:
    """Yield better partitions than ``places``, until one's bottleneck is within the bound."""
    target = _TARGET * bound
    for _ in range(_TRIES):
        places = improve(samples, places, machines, slack, seed, target)
        yield places
        bottleneck = cost_of(samples, places, machines, slack).bottleneck
        if bottleneck <= bound:
            break
        target *= _TARGET * bound / bottleneck
