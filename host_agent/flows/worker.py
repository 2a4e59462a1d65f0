# SPDX-License-Identifier: Apache-2.0
"""A worker's side of a parameter server: push a gradient, pull what the server made of it.

Example::

    client = ServerClient(WorkerFlows(push, pull))
    client.attach(mux, server_address)
    number = client.push(gradient, service, previous=parameters)
    ...                                    # drive the mux until client.idle
    for result in client.results():
        parameters, residual = result.values, result.pushed.residual()
"""

from dataclasses import dataclass

import numpy as np

from weir.host_agent.flows.delivery import Delivery, Floats, Settlement
from weir.host_agent.flows.frames import Address
from weir.host_agent.flows.mux import FlowMux
from weir.host_agent.flows.receiver import FlowReceiver
from weir.host_agent.flows.sender import FlowSender
from weir.host_agent.flows.server import WorkerFlows
from weir.host_agent.transport.service_class import LOSSLESS, ServiceClass


@dataclass(frozen=True)
class PullResult:
    """One tensor's round trip.

    values: what the server sent, and the previous value where that was lost. stale: lanes that kept it.
    pushed: what became of the gradient; its residual belongs to the next one.
    """

    tensor: int
    values: Floats
    stale: int
    pulled: Delivery
    pushed: Settlement


class ServerClient:
    """Pushes tensors, in the same order on all workers, and pulls their updates. For one thread at a time."""

    def __init__(self, flows: WorkerFlows) -> None:
        self.sender = FlowSender(flows.push)
        self.receiver = FlowReceiver(flows.pull)
        self._previous: dict[int, Floats] = {}
        self._pushed: dict[int, Settlement] = {}
        self._pulled: dict[int, Delivery] = {}

    def attach(self, mux: FlowMux, server: Address) -> None:
        """Serve both flows through ``mux``."""
        mux.add(self.sender, server)
        mux.add(self.receiver, server)

    def push(self, values: Floats, service: ServiceClass = LOSSLESS, previous: Floats | None = None) -> int:
        """Push a vector of float32, which is copied, and return its number.

        previous: what a lane keeps when the pulled value of it is lost, not to be changed until then; zeros
        when not given, which is right only for what the server pulls without loss.
        """
        number = self.sender.submit(values, service)
        self._previous[number] = np.zeros_like(values) if previous is None else previous
        return number

    @property
    def idle(self) -> bool:
        """Return whether every tensor pushed was pulled, and both its ends were told."""
        return self.sender.idle and self._previous.keys() <= self._ready() and not self.receiver.urgency(0)

    def results(self) -> list[PullResult]:
        """Return the round trips completed since the last call, by number."""
        results = []
        for number in sorted(self._ready()):
            delivery, previous = self._pulled.pop(number), self._previous.pop(number)
            stale = delivery.values.size - delivery.account.lanes
            values = delivery.onto(previous) if stale else delivery.values
            results.append(PullResult(number, values, stale, delivery, self._pushed.pop(number)))
        return results

    def _ready(self) -> set[int]:
        self._pushed.update((settled.tensor, settled) for settled in self.sender.settlements())
        self._pulled.update((delivery.tensor, delivery) for delivery in self.receiver.deliveries())
        return self._pushed.keys() & self._pulled.keys()
