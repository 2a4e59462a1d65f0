# SPDX-License-Identifier: Apache-2.0
"""Weights through a hub: trainer and engines reach the switch by ports over IP, which lose packets."""

import contextlib
from collections.abc import Iterator
from typing import Final

import pytest
import torch

import weir.torch
from tests.harness.forked import forked_clusters
from tests.harness.ports import free_port, udp_ports
from weir.hub import Hub
from weir.network import NetworkSpec

__all__ = ["forked_clusters"]

VALUES: Final = 300_000
TIMEOUT_S: Final = 60.0


class Place:
    """A hub, and who publishes and subscribes there, in this process."""

    def __init__(self, hub: Hub, ends: contextlib.ExitStack) -> None:
        self._controller, self._ends = hub.controller, ends

    def publish(
        self, weights: dict[str, torch.Tensor], host: int, name: str = "policy"
    ) -> weir.torch.Publication:
        made = weir.torch.publish(weights, name, controller=self._controller, host=f"h{host}")
        return self._ends.enter_context(made)

    def subscribe(
        self, host: int, name: str = "policy"
    ) -> tuple[weir.torch.Subscription, dict[str, torch.Tensor]]:
        weights = {"w": torch.zeros(VALUES, dtype=torch.bfloat16)}
        made = weir.torch.subscribe(weights, name, controller=self._controller, host=f"h{host}")
        return self._ends.enter_context(made), weights


@pytest.fixture(params=[0.0, 0.02], ids=["clean", "lossy"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    hub = Hub(4, listen=f"127.0.0.1:{free_port()}", udp=udp_ports(4))
    hub.network = NetworkSpec(loss=request.param)
    hub.start()
    with contextlib.ExitStack() as ends:
        ends.callback(hub.stop)
        yield Place(hub, ends)


def change(weights: dict[str, torch.Tensor], number: int) -> None:
    """Change every twentieth value, others each time."""
    weights["w"].view(torch.int16)[number % 20 :: 20] += 1


def test_engines_equal_the_trainer_at_every_version(place: Place) -> None:
    """Two engines share a host, as members of one group; one comes late."""
    weights = {"w": torch.randn(VALUES).bfloat16()}
    early = [place.subscribe(host) for host in (2, 3, 3)]
    publication = place.publish(weights, 1)
    engines = list(early)
    for number in range(6):
        if number == 3:
            engines.append(place.subscribe(4))
        if number:
            change(weights, number)
            assert publication.update() == number + 1
        for subscription, own in engines:
            assert subscription.wait(publication.version, TIMEOUT_S) == publication.version
            assert subscription.swap()
            assert subscription.digest == weir.torch.weights_digest(own) == publication.digest
    assert not publication.stats.refused
    refused = {reason for subscription, _ in engines for reason in subscription.stats.refused}
    assert refused <= {"not_wanted"}, refused  # repairs that others asked for


def test_publications_on_one_hosts_port_do_not_mix(place: Place) -> None:
    """As an engine's shards do: each has a group of its own."""
    ours = {name: {"w": torch.randn(VALUES).bfloat16()} for name in ("one", "two")}
    publications = {name: place.publish(ours[name], 1, name) for name in ours}
    engines = {name: place.subscribe(2, name) for name in ours}
    for number in range(2):
        for name, (subscription, own) in engines.items():
            if number:
                change(ours[name], number)
                publications[name].update()
            assert subscription.wait(number + 1, TIMEOUT_S) == number + 1
            assert subscription.swap()
            assert subscription.digest == weir.torch.weights_digest(own) == publications[name].digest
    for subscription, _ in engines.values():
        stats = subscription.stats
        assert not stats.refused
        assert stats.payload_bytes < 2.2 * VALUES  # its own snapshot and update, and not those of the other
