# SPDX-License-Identifier: Apache-2.0
"""The common part of publications and subscriptions: tensors, a place in a job, the thread of packets."""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

import torch

from weir.agent_service.client import AgentClient, AgentError, Membership
from weir.host_agent.torch.link_choice import wanted_link
from weir.host_agent.torch.weights.carriers import Carrier, choose_carrier, open_socket
from weir.host_agent.weights.versions import digest_of

LONGEST_WAIT_S: Final = 0.005
"""How long a thread of packets sleeps at most, so that what another thread wants is done soon."""

_INTERRUPT_S: Final = 0.2


class WeightsError(RuntimeError):
    """Weights cannot be published or subscribed to; the message says why."""


def tensors_of(model: torch.nn.Module | Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return a model's weights by name: its state's tensors, each once, where they are."""
    state = model.state_dict() if isinstance(model, torch.nn.Module) else model
    found: dict[str, torch.Tensor] = {}
    seen = set()
    for name, tensor in state.items():
        if not isinstance(tensor, torch.Tensor) or not tensor.numel():
            continue
        place = tensor.data_ptr(), tensor.shape, tensor.stride()
        if tensor.is_contiguous() and place not in seen:
            seen.add(place)
            found[name] = tensor.detach()
        elif place not in seen:
            raise WeightsError(f"{name} is not contiguous in memory")
    if not found:
        raise WeightsError("there are no weights")
    return found


def address_of_controller(controller: str | None) -> str:
    """Return the controller's address, by default WEIR_CONTROLLER's."""
    address = controller or os.environ.get("WEIR_CONTROLLER", "")
    if not address:
        raise WeightsError("no controller: set WEIR_CONTROLLER, or pass controller=")
    return address


def own_host(host: str | None) -> str:
    """Return this host's name in the topology, by default WEIR_HOST's."""
    name = host or os.environ.get("WEIR_HOST", "")
    if not name:
        raise WeightsError("which host is this? Set WEIR_HOST to its name in the topology, or pass host=")
    return name


def weights_digest(model: torch.nn.Module | Mapping[str, torch.Tensor]) -> str:
    """Return the SHA-256 of weights, in hexadecimal, as publications and subscriptions have it.

    Args:
        model: whose weights; or tensors by name.
    """
    return digest_of(tensors_of(model)).hex()


class Member:
    """A member of a publisher's job, with its carrier."""

    def __init__(self, client: AgentClient, membership: Membership, carrier: Carrier) -> None:
        self.client, self.membership, self.carrier = client, membership, carrier

    @classmethod
    def enter(
        cls, controller: str, join: Callable[[AgentClient, int], Membership], *, listens: bool
    ) -> "Member":
        """Join by ``join(client, udp_port)``, and open the carrier.

        Raises:
            AgentError, ValueError, OSError: it is not possible; the message says why.
        """
        wanted = wanted_link()
        with contextlib.ExitStack() as undo:
            own: socket.socket | None = open_socket(wanted)
            if own is not None:
                undo.callback(own.close)
            client = AgentClient(controller)
            undo.callback(client.close)
            membership = join(client, own.getsockname()[1] if own is not None else 0)
            client.leaves_at_exit()
            carrier = choose_carrier(membership, wanted, own, listens=listens)
            undo.pop_all()
            return cls(client, membership, carrier)

    def leave(self) -> None:
        """Leave the job, and detach."""
        with contextlib.suppress(AgentError):
            self.client.leave()
        self.client.close()
        self.carrier.close()


class PacketThread(threading.Thread):
    """A thread that calls ``step()`` until it is told to stop; ``step`` returns for how long it may sleep."""

    def __init__(self, name: str, step: Callable[[], float], carrier: Callable[[], Carrier | None]) -> None:
        super().__init__(name=name, daemon=True)
        self._step, self._carrier, self._ended = step, carrier, threading.Event()

    def run(self) -> None:
        """See threading.Thread."""
        while not self._ended.is_set():
            pause = min(self._step(), LONGEST_WAIT_S)
            carrier = self._carrier()
            if carrier is None:
                self._ended.wait(pause)
            elif pause > 0:
                carrier.wait(pause)

    def end(self, interrupt: Callable[[], object] = lambda: None) -> None:
        """Stop, and wait until it has. interrupt: ends what ``step`` may be waiting for, or is about to."""
        self._ended.set()
        while self.is_alive():
            interrupt()
            self.join(_INTERRUPT_S)


def now_ns() -> int:
    """Return the machines' time."""
    return time.monotonic_ns()
