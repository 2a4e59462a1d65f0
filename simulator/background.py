# SPDX-License-Identifier: Apache-2.0
"""Other people's traffic: bursts in which several hosts answer one at the same time (incast), over DCTCP."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from weir.simulator.clock import SECOND
from weir.simulator.network import Network
from weir.simulator.tcp import TcpConfig


@dataclass(frozen=True)
class IncastBursts:
    """Bursts come as a Poisson process: at one time ``fan_in`` senders in other racks each begin to send
    ``length`` bytes to the same receiver, all drawn at random.

    bits_per_second: what all bursts together bring, headers not counted, on average.
    """

    bits_per_second: float
    fan_in: int = 8
    length: int = 64_000

    @property
    def interval(self) -> float:
        """Mean time between bursts, in seconds."""
        return self.fan_in * self.length * 8 / self.bits_per_second


class Background:
    """IncastBursts traffic between the hosts of a network, from now until ``stop``."""

    def __init__(
        self,
        network: Network,
        incast: IncastBursts,
        *,
        senders: Sequence[str],
        receivers: Sequence[str],
        seed: int,
        config: TcpConfig | None = None,
    ) -> None:
        self._network, self._incast, self._config = network, incast, config
        self._random = Random(f"{seed} background")
        self._receivers = list(receivers)
        racks = {name: network.stations[name].host.switch for name in [*senders, *receivers]}
        self._senders = {
            receiver: [name for name in senders if racks[name] != racks[receiver]] for receiver in receivers
        }
        few = min(map(len, self._senders.values()))
        if few < incast.fan_in:
            raise ValueError(f"a burst of {incast.fan_in} senders, but a receiver has {few} in other racks")
        self._running = True
        self.timeouts = 0
        self.times: list[int] = []  # of the flows that are done: how long they took
        self._plan()

    def stop(self) -> None:
        """Begin no more bursts."""
        self._running = False

    def _plan(self) -> None:
        wait = self._random.expovariate(1 / self._incast.interval)
        self._network.clock.after(round(wait * SECOND), self._burst)

    def _burst(self) -> None:
        if not self._running:
            return
        receiver = self._random.choice(self._receivers)
        for sender in self._random.sample(self._senders[receiver], self._incast.fan_in):
            self._flow(sender, receiver)
        self._plan()

    def _flow(self, sender: str, receiver: str) -> None:
        clock = self._network.clock
        stream, begun = self._network.stream(sender, receiver, self._config), clock.now

        def done() -> None:
            self.times.append(clock.now - begun)
            self.timeouts += stream.sender.timeouts
            clock.after(SECOND, stream.close)  # late copies still find their port

        stream.on_done = done
        stream.write(self._incast.length)
