# SPDX-License-Identifier: Apache-2.0
"""Somebody who is in no job sends packets in the names of workers and switches: no sum changes.

The forger knows all that a packet of the job says, even its check. What it lacks is the sender's place: it is
on another host, or it is another user's process on the same one, which cannot have the worker's UDP port.
"""

import dataclasses
from collections import Counter, deque
from random import Random
from typing import Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.harness.effort import examples
from tests.simulator.reductions import MS, check_exact, submit, vectors
from weir.controller.topology import leaf_spine
from weir.host_agent.transport.codec import Packet
from weir.host_agent.transport.frames import Addresses, Endpoint, Framer
from weir.simulator.link import Faults
from weir.simulator.network import LinkSpec, Network
from weir.wire.definition import BEST_EFFORT_DSCP, GROUP_LANES, GROUPS, Event, PacketType

WORKERS: Final = ("h1", "h2", "h4", "h5")  # two in each of two racks; h3 and h6 are in no job
OTHER_PORT: Final = 40_000  # of another process on a worker's host
EVERY: Final = MS // 5  # a fifth of what a link carries
LINK: Final = LinkSpec(200_000_000, Faults(delay=20_000, jitter=20_000, loss=0.02, duplicate=0.02))
TRAFFIC_CLASS: Final = BEST_EFFORT_DSCP << 2


class Forger:
    """Sends, from one host's link, changed copies of contributions that it has seen on their way.

    honest: it cannot choose the addresses that it sends from, only the UDP port is its own.
    """

    def __init__(self, network: Network, seed: int, where: str, *, honest: bool) -> None:
        self._network, self._where, self._honest = network, where, honest
        self._random = Random(seed)
        self._seen: deque[Packet] = deque(maxlen=32)
        for worker in WORKERS:
            leaf = network.stations[worker].host.switch
            network.link(worker, leaf).tap = self._look
        topology = network.topology
        self._switches = [Endpoint(s.aggregation.mac, s.aggregation.ip) for s in topology.switches]
        others = [network.stations[name].host for name in WORKERS if name != where]
        self._hosts = [Endpoint(host.mac, host.ip) for host in others]
        own = network.stations[where].host
        self._own = Endpoint(own.mac, own.ip, OTHER_PORT)
        leaf = topology.switch(own.switch).aggregation
        self._gateway = Endpoint(leaf.mac, leaf.ip)
        self.sent: set[bytes] = set()

    def _look(self, _time: int, frame: bytes) -> None:
        if frame not in self.sent:
            self._seen.append(Packet.decode(frame[42:]))

    def run(self) -> None:
        """Send one packet now, and go on."""
        if self._seen:
            self.sent.add(frame := self._forged())
            self._network.stations[self._where].send(frame)
        self._network.clock.after(EVERY, self.run)

    def _forged(self) -> bytes:
        random = self._random
        to = random.choice([*[self._gateway] * 3, *self._switches, *self._hosts])
        source = self._own if self._honest else random.choice([self._own, *self._switches, *self._hosts])
        hop = random.choice([to, self._gateway])  # directly, or routed
        addresses = Addresses(source, dataclasses.replace(to, mac=hop.mac))
        return Framer(addresses).wrap(self._packet().encode(), TRAFFIC_CLASS)

    def _packet(self) -> Packet:
        random = self._random
        seen = random.choice(self._seen)
        kind = random.choice(list(PacketType))
        groups = {g: tuple(random.getrandbits(32) for _ in range(GROUP_LANES)) for g in range(GROUPS)}
        return dataclasses.replace(
            seen,
            type=kind,
            worker=random.choice([0, 0, seen.worker, random.randrange(4)]),
            round=(seen.round + random.choice([0, 0, 0, 1, 2, 4, 1000, 2**30])) % 2**32,
            groups={} if kind == PacketType.REPEAT else groups,
            included=0b11 if kind == PacketType.RESULT else 0,
            count=len(WORKERS) if kind == PacketType.RESULT else 1,
        )


def refused(network: Network) -> Counter[Event]:
    """Return what all switches together have dropped, by event."""
    return Counter(
        {
            event: sum(
                node.switch.counter("WeirIngress.events").read(event).packets
                for node in network.nodes.values()
            )
            for event in Event
            if event.name.startswith("DROP_")
        }
    )


FORGERS: Final = {
    "a host of the rack": ("h3", False),
    "a host of the other rack": ("h6", False),
    "root on a worker's host, in the name of others": ("h1", False),
    "another user of a worker's host": ("h1", True),
}


@pytest.mark.parametrize(("where", "honest"), FORGERS.values(), ids=FORGERS.keys())
@settings(max_examples=examples(6), print_blob=True, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32 - 1), racks=st.integers(1, 2))
def test_what_a_forger_sends_changes_no_sum_and_stops_no_job(
    where: str, honest: bool, seed: int, racks: int
) -> None:
    names = [name for name in WORKERS if racks == 2 or name in ("h1", "h2")]
    with Network(leaf_spine(2, 2, 3, target="soft"), seed=seed, link=LINK) as network:
        job = network.admit(names, slots=8, initial_rto=0.02, min_rto=0.01)
        forger = Forger(network, seed, where, honest=honest)
        forger.run()
        for step in range(3):
            before = vectors(seed + step, len(names), 40)
            after = submit(job, before)
            network.run(lambda: job.idle, limit=5)
            check_exact(before, after)
        assert all(not report.refused for worker in job.workers for report in worker.reports)
        drops = refused(network)
        assert len(forger.sent) > 20
        assert drops[Event.DROP_WRONG_SENDER if honest else Event.DROP_FORGED_SOURCE]
