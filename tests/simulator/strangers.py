# SPDX-License-Identifier: Apache-2.0
"""Traffic of others in the simulated network."""

from weir.background import Sender, Victim, frame
from weir.simulator.network import Network
from weir.wire.definition import dscp


class Strangers:
    """A host that sends bursts of full frames to one worker, in the class of the workers' front layers."""

    def __init__(
        self, network: Network, sender: str, receiver: str, burst: int, period_ms: float, first_ms: float = 0
    ) -> None:
        self._network, self._burst, self._period = network, burst, int(period_ms * 1e6)
        self._station, there = network.stations[sender], network.stations[receiver].host
        host = self._station.host
        mac = there.mac
        if host.switch != there.switch:
            mac = network.topology.switch(host.switch).aggregation.mac
        from_ = Sender(ip=host.ip, mac=host.mac, victims=())
        self._frame = frame(from_, Victim(ip=there.ip, mac=mac), dscp(0), 0)
        network.clock.after(int(first_ms * 1e6), self)

    def __call__(self) -> None:
        for _ in range(self._burst):
            self._station.send(self._frame)
        self._network.clock.after(self._period, self)
