# SPDX-License-Identifier: Apache-2.0
"""The peers of an outer step over simulated TCP: parts that all fetch from a store, and Gloo's ring.

Two peers, and a peer and the store, are a round trip apart. Routers before a peer's link hold what the link
carries in a round trip. The second step counts, on connections that are open, with windows of the first.
"""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from weir.bench.simulated.outer_links import Links, Outcome, counted
from weir.bench.simulated.paths import CUBIC
from weir.bench.simulated.transports import Rings
from weir.controller.topology import leaf_spine
from weir.simulator.clock import SECOND
from weir.simulator.link import Bottleneck, Faults
from weir.simulator.network import LinkSpec, Network

_BACKBONE: Final = 100_000_000_000
_STEPS: Final = 2


def fetched(peers: int, part: int, links: Links) -> Outcome:
    """Simulate that each peer uploads its part to a store once, and fetches those of all others.

    Args:
        part: bytes of a peer.
    """
    with _network(peers, 1, links.round_trip, links) as (network, names):
        *hosts, store = names
        ups = [network.stream(host, store, CUBIC) for host in hosts]
        downs = [network.stream(store, host, CUBIC) for host in hosts]

        def forward(rank: int, total: int) -> None:
            for other in range(peers):
                if other != rank and total == ups[rank].sender.size:  # the whole part is there
                    downs[other].write(part)

        for rank, stream in enumerate(ups):
            stream.on_bytes = partial(forward, rank)

        def begin(number: int) -> Callable[[], bool]:
            for stream in ups:
                stream.write(part)
            wanted = number * (peers - 1) * part
            return lambda: all(stream.receiver.expected == wanted for stream in downs)

        return _last(network, names[0], begin)


def ring(peers: int, size: int, links: Links) -> Outcome:
    """Simulate an all-reduce of ``size`` bytes by a ring."""
    with _network(peers, 0, links.round_trip / 2, links) as (network, names):
        rings = Rings(network, names, CUBIC, size)
        return _last(network, names[0], lambda _: rings.begin())


@contextlib.contextmanager
def _network(peers: int, others: int, round_trip: float, links: Links) -> Iterator[tuple[Network, list[str]]]:
    """Yield a network and its hosts: peers, at this round trip to the switch, and others close to it."""
    with Network(leaf_spine(1, 1, peers + others), seed=1, link=LinkSpec(_BACKBONE)) as network:
        names = [host.name for host in network.topology.hosts]
        switch = network.stations[names[0]].host.switch
        for name in names[:peers]:
            for ends, rate in (((name, switch), links.up_bps), ((switch, name), links.down_bps)):
                held = Bottleneck(rate, round(rate * links.round_trip / 8))
                network.link(*ends).faults = Faults(delay=round(round_trip / 2 * SECOND), bottleneck=held)
        yield network, names


def _last(network: Network, first: str, begin: Callable[[int], Callable[[], bool]]) -> Outcome:
    """Make the steps; return the last one's outcome, of this peer."""
    for number in range(1, _STEPS + 1):
        with counted(network, first) as outcome:
            network.run(begin(number))
    return outcome()
