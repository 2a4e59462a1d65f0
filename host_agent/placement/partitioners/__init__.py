# SPDX-License-Identifier: Apache-2.0
"""Ways to deal samples to machines. Each is a function of samples, machines, slack and a seed."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from weir.host_agent.placement.partitioners.greedy import greedy
from weir.host_agent.placement.partitioners.packages import metis, mtkahypar
from weir.host_agent.placement.partitioners.refined import refined
from weir.host_agent.placement.partitioners.simple import by_hash, random
from weir.host_agent.placement.samples import Integers, Samples

Partitioner = Callable[[Samples, int, float, int], Integers]

PARTITIONERS: Final[Mapping[str, Partitioner]] = MappingProxyType(
    {
        "random": random,
        "hash": by_hash,
        "greedy": greedy,
        "metis": metis,
        "mtkahypar": mtkahypar,
        "refined": refined,
    }
)
