# SPDX-License-Identifier: Apache-2.0
"""A parameter server's accumulator: tensors pushed by n workers are summed, then pulled by all of them.

Example::

    server = ParameterServer([WorkerFlows(push, pull) for push, pull in agreed])
    server.attach(mux, communicator)
    while serving:
        ...                     # drive the mux; after packets came:
        server.advance()
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from weir.host_agent.flows.config import FlowConfig
from weir.host_agent.flows.delivery import Delivery, Floats, Settlement
from weir.host_agent.flows.frames import Address
from weir.host_agent.flows.mux import FlowMux
from weir.host_agent.flows.receiver import FlowReceiver
from weir.host_agent.flows.sender import FlowSender
from weir.host_agent.transport.service_class import ServiceClass


class PushMismatchError(ValueError):
    """Workers pushed tensors of one number that cannot be added. The message says how they differ."""


@dataclass(frozen=True)
class WorkerFlows:
    """A worker's two flows: what it pushes to the server, and what it pulls from it."""

    push: FlowConfig
    pull: FlowConfig


@dataclass(frozen=True)
class Aggregate:
    """The sum of what all workers pushed as one tensor.

    values: float32. contributors: per chunk, how many workers' values are in the sum: the others' were lost.
    missing: per worker, how many of its lanes.
    """

    tensor: int
    layer: int
    values: Floats
    chunk_lanes: int
    contributors: npt.NDArray[np.uint8]
    missing: tuple[int, ...]

    def mean(self) -> Floats:
        """Return the sum divided by the number of values in it; zero where none came."""
        counts = np.repeat(self.contributors, self.chunk_lanes)[: self.values.size]
        return np.divide(self.values, np.maximum(counts, 1), dtype=np.float32)


Update = Callable[[Aggregate], Floats]


def bounded(lanes: int, share: float, layer: int = 0) -> ServiceClass:
    """Return a service class with one account that may lose this share of the lanes, rounded down."""
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"{share} is no share from 0 to 1")
    return ServiceClass(layer=layer, budgets=np.array([int(share * lanes)], np.uint64))


@dataclass(frozen=True)
class ServerConfig:
    """update: from the sum to what workers pull, in the order in which sums are complete; the sum itself by
    default. push_loss: greatest share of a tensor that a push may lose; pull_loss: likewise of a pull, not
    more than that, as each pulled value stands for those of many workers.
    """

    update: Update = field(default=lambda aggregate: aggregate.values)
    push_loss: float = 1.0
    pull_loss: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.pull_loss <= self.push_loss <= 1.0:
            raise ValueError(
                "losses must satisfy 0 <= pull_loss <= push_loss <= 1, not "
                f"{self.pull_loss} and {self.push_loss}"
            )


class _Sum:
    """Adds vectors in the order of the workers, whatever order they come in.

    Float addition is not associative, so the order is fixed: each vector is added once those of all
    workers before it were. The sum is kept in float64 and rounded to float32 once, so its error is that of
    one rounding unless summands cancel almost entirely. (Fixed point would need no order, but a shared
    exponent first, which would cost another round trip.)
    """

    def __init__(self, first: Delivery, workers: int) -> None:
        self._next = 0
        self._waiting: dict[int, Delivery] = {}
        self._shape = _shape(first)
        self._values = np.zeros(first.values.size, np.float64)
        self._contributors = np.zeros(first.received.size, np.uint8)
        self._missing = [0] * workers

    def add(self, worker: int, delivery: Delivery) -> None:
        """Add one worker's vector, when its turn comes."""
        if _shape(delivery) != self._shape:
            raise PushMismatchError(
                f"tensor {delivery.tensor}: worker {delivery.worker} pushed (lanes, lanes in a chunk, layer) "
                f"{_shape(delivery)}, another one {self._shape}: all must push the same tensors in one order"
            )
        self._waiting[worker] = delivery
        while (ready := self._waiting.pop(self._next, None)) is not None:
            self._values += ready.values
            self._contributors += ready.received
            self._missing[self._next] = ready.values.size - ready.account.lanes
            self._next += 1

    @property
    def complete(self) -> bool:
        """Return whether every worker's vector is in it."""
        return self._next == len(self._missing)

    def aggregate(self, tensor: int) -> Aggregate:
        """Return the sum, rounded."""
        _, chunk_lanes, layer = self._shape
        values = self._values.astype(np.float32)
        return Aggregate(tensor, layer, values, chunk_lanes, self._contributors, tuple(self._missing))


def _shape(delivery: Delivery) -> tuple[int, int, int]:
    return delivery.values.size, delivery.chunk_lanes, delivery.layer


class ParameterServer:
    """Sums tensor t of all workers' pushes and sends the update of it to each as tensor t of its pull.

    What is added is exactly what was delivered: lost values count as zero, and are in their worker's
    residual. For one thread at a time.
    """

    def __init__(self, workers: Sequence[WorkerFlows], config: ServerConfig | None = None) -> None:
        self.config = config or ServerConfig()
        self.receivers = [
            FlowReceiver(replace(flows.push, max_loss=min(flows.push.max_loss, self.config.push_loss)))
            for flows in workers
        ]
        self.senders = [FlowSender(flows.pull) for flows in workers]
        self._sums: dict[int, _Sum] = {}

    def attach(self, mux: FlowMux, communicator: Sequence[Address]) -> None:
        """Serve all flows through ``mux``; ``communicator[w]`` is where worker w is."""
        for receiver, sender, peer in zip(self.receivers, self.senders, communicator, strict=True):
            mux.add(receiver, peer)
            mux.add(sender, peer)

    def advance(self) -> list[Aggregate]:
        """Add what was delivered, send what is complete, and return the sums completed by this.

        Raises PushMismatchError when workers push different tensors under one number.
        """
        aggregates = []
        for worker, receiver in enumerate(self.receivers):
            for delivery in receiver.deliveries():
                tensor = delivery.tensor
                total = self._sums.get(tensor)
                if total is None:
                    total = self._sums[tensor] = _Sum(delivery, len(self.receivers))
                total.add(worker, delivery)
                if total.complete:
                    del self._sums[tensor]
                    aggregates.append(total.aggregate(tensor))
                    self._send(aggregates[-1])
        return aggregates

    def settlements(self) -> list[list[Settlement]]:
        """Return for each worker how its pulls ended since the last call."""
        return [sender.settlements() for sender in self.senders]

    @property
    def idle(self) -> bool:
        """Return whether all that was delivered here was summed and pulled by every worker.

        Some worker may not know yet how its push ended: go on answering for a while (``FlowMux.settled``).
        """
        return all(sender.idle for sender in self.senders) and not self._sums

    def _send(self, aggregate: Aggregate) -> None:
        values = np.ascontiguousarray(self.config.update(aggregate), np.float32)
        service = bounded(values.size, self.config.pull_loss, aggregate.layer)
        for sender in self.senders:
            sender.submit(values, service, aggregate.tensor)
