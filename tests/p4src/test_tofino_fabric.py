# SPDX-License-Identifier: Apache-2.0
"""Four Tofinos in one process: leaves and spines that run the compiled program, filled by the controller's
own translation, and workers in both racks that reduce through them over links that lose packets.
"""

import random
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from softp4.switch import Switch
from tests.controller.helpers import job
from tests.harness.effort import effort
from tests.harness.target import EVENTS
from tests.harness.tofino import BfaTarget
from tests.host_agent.transport.answers import combine
from weir.controller.desired import desired_state
from weir.controller.job_tree import paths
from weir.controller.jobs import Job
from weir.controller.tofino import tofino_state
from weir.controller.topology import Topology, leaf_spine
from weir.controller.wiring import Switch as SwitchConfig
from weir.host_agent.transport.frames import Addresses, Endpoint, Framer
from weir.host_agent.transport.slot_transport import Lanes, SlotTransport, TransportConfig
from weir.p4src import PROGRAM
from weir.simulator.entries import install
from weir.wire.definition import MAX_CHILDREN, Event, Op

MS = 1_000_000
LANES = 1000
SLOTS = 32

End = tuple[str, int]  # a switch, or a host, and its port
Frames = list[tuple[int, bytes]]


class Fabric:
    """Switches and workers, and the links between them."""

    def __init__(self, soft: set[str], loss: float, seed: int, lanes: int) -> None:
        self._random, self._loss, self._lanes = random.Random(seed), loss, lanes
        self.topology: Topology = leaf_spine(2, 2, 2)
        running = job("job", self.topology, size=4, slot_base=SLOTS, slot_count=SLOTS)
        self.chips: dict[str, BfaTarget] = {}
        self._softs: list[Switch] = []
        self._switches = {
            switch.name: (self._soft if switch.name in soft else self._chip)(switch, running)
            for switch in self.topology.switches
        }
        self._wires: dict[End, End] = {
            (host.switch, host.port): (host.name, 0) for host in self.topology.hosts
        }
        for link in self.topology.links:
            ends = [(end.switch, end.port) for end in link.ends]
            self._wires |= {ends[0]: ends[1], ends[1]: ends[0]}
        self.workers: dict[str, tuple[SlotTransport, Framer]] = {}
        for host, path in zip(self.topology.hosts, paths(self.topology, running), strict=True):
            leaf = self.topology.switch(host.switch).aggregation
            place = TransportConfig(running.id, path % MAX_CHILDREN, 4, SLOTS, path=path, max_lanes=lanes)
            framer = Framer(Addresses(Endpoint(host.mac, host.ip), Endpoint(leaf.mac, leaf.ip)))
            self.workers[host.name] = SlotTransport(place), framer

    def _chip(self, switch: SwitchConfig, running: Job) -> Callable[[int, bytes], Frames]:
        state = desired_state(self.topology, switch, [running])
        state = tofino_state(self.topology, switch, state, {running.id: self._lanes})
        chip = self.chips[switch.name] = BfaTarget()
        for entry in state.entries:
            if not entry.table.startswith("$"):  # the chip's own: ports, mirrors
                chip.change("INSERT", entry)
        for group, replicas in state.groups.items():
            chip.set_group(group, [(replica.port, replica.rid) for replica in replicas])
        return lambda port, frame: [(out.port, out.frame) for out in chip.send(port, frame)]

    def _soft(self, switch: SwitchConfig, running: Job) -> Callable[[int, bytes], Frames]:
        made = Switch(PROGRAM)
        self._softs.append(made)
        install(made, desired_state(self.topology, switch, [running]))
        return lambda port, frame: [(out, data) for out, data in made.process(port, frame, now=0)]

    def close(self) -> None:
        """Free what soft switches hold."""
        for switch in self._softs:
            switch.close()

    def reduce(self, op: Op, arrays: Sequence[Lanes]) -> None:
        """Replace the workers' vectors by their reduction."""
        for (transport, _), lanes in zip(self.workers.values(), arrays, strict=True):
            transport.begin_reduction(op, self._lanes, lanes)
        now = 0
        while not all(transport.done for transport, _ in self.workers.values()):
            due = []
            for host in self.topology.hosts:
                transport, framer = self.workers[host.name]
                datagrams, deadline = transport.poll(now)
                due += [] if deadline is None else [deadline]
                for datagram in datagrams:
                    self._travel((host.switch, host.port), framer.wrap(*datagram), now)
            now = max(now + MS // 10, min(due, default=now))
            assert now < 600_000 * MS, [transport.waiting() for transport, _ in self.workers.values()]

    def _travel(self, first: End, frame: bytes, now: int) -> None:
        under_way = deque([(first, frame)])
        while under_way:
            (there, port), data = under_way.popleft()
            if self._random.random() < self._loss:
                continue
            if there in self.workers:
                transport, framer = self.workers[there]
                if (datagram := framer.unwrap(data)) is not None:
                    transport.on_packet(datagram.payload, now, datagram.traffic_class)
                continue
            for out, sent in self._switches[there](port, data):
                under_way.append((self._wires[there, out], sent))


CASES = [
    *((op, "", 32) for op in Op),
    *((Op.ADD, "leaf1", lanes) for lanes in (32, 64)),
    (Op.ADD, "spine1", 32),
    (Op.ADD, "", 64),
]


@pytest.mark.parametrize("loss", effort([0.03], [0.0, 0.03]))
@pytest.mark.parametrize(("op", "soft", "lanes"), CASES)
def test_two_racks_reduce_through_four_tofinos(op: Op, soft: str, loss: float, lanes: int) -> None:
    """Or three, and a soft switch among them: the same bytes are legal on both."""
    fabric = Fabric({soft}, loss, seed=1, lanes=lanes)
    rng = np.random.default_rng(2)
    before = [rng.integers(0, 2**32, LANES, dtype=np.uint32) for _ in range(4)]
    for vector in before:
        for group in np.flatnonzero(rng.random(-(-LANES // 32)) < 0.5):
            vector[32 * group : 32 * group + 32] = 0
    after = [vector.copy() for vector in before]
    try:
        fabric.reduce(op, after)
    finally:
        fabric.close()
    for vector in after:
        np.testing.assert_array_equal(vector, combine(op, before))
    for name, chip in fabric.chips.items():
        counted = {event for event in Event if chip.counter(EVENTS, event).packets}
        own = Event.PARTIAL_SENT if name.startswith("leaf") else Event.ROUND_COMPLETE
        assert {own, Event.CONTRIBUTION} <= counted
        assert Event.DROP_MALFORMED not in counted
