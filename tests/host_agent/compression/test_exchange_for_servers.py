# SPDX-License-Identifier: Apache-2.0
"""The gradient step towards servers: they get the averages that workers get without them, bit for bit."""

from itertools import product
from typing import Any

import pytest
import torch

from tests.harness.effort import effort
from tests.host_agent.models import Parts
from weir.host_agent.collectives.communicator import Communicator
from weir.host_agent.collectives.float_sum import Contribution
from weir.host_agent.collectives.in_memory import InMemoryGroup
from weir.host_agent.collectives.packing import LaneBits
from weir.host_agent.compression.bucket_layout import BucketLayout
from weir.host_agent.compression.destination import ALL_WORKERS, Destination, Servers
from weir.host_agent.compression.encodings import SCALE_BLOCK
from weir.host_agent.compression.exchange import GradientExchange
from weir.host_agent.compression.loss_policy import LossPolicy
from weir.host_agent.compression.packed_vector import InMemory
from weir.host_agent.compression.sparsifiers import SparsifierOptions, create_sparsifier, sparsifier_names

WORKERS, SERVERS, STEPS, SLOTS = 3, 2, 5, 16
SIZES = [(40, 30), (40,), (3000,), (7, 5), (200_000,)]
BITS: tuple[LaneBits, ...] = (32, 16)
ALL = list(product(sparsifier_names(), BITS))
ALTERNATELY = [(name, BITS[number % 2]) for number, name in enumerate(sparsifier_names())]


def gradient(rank: int, step: int, length: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * step + rank)
    found = torch.randn(length, generator=generator) * torch.randn(length, generator=generator) ** 4
    found[length // 3 : length // 2] = 0
    return found


def layout_of(module: torch.nn.Module) -> BucketLayout:
    named = list(module.named_parameters())
    return BucketLayout.of(0, [name for name, _ in named], [p for _, p in named], SCALE_BLOCK)


def run(name: str, bits: LaneBits, exclude: tuple[str, ...], destination: Destination) -> list[Any]:
    """Return by member: its averages step by step, and what of its state all have alike."""
    module = Parts(SIZES)
    layout = layout_of(module)
    group = InMemoryGroup(2 * WORKERS - destination.workers(WORKERS))

    def train(communicator: Communicator) -> Any:
        exchange = GradientExchange(
            create_sparsifier(name, SparsifierOptions(density=0.1)),
            LossPolicy.of(0.0),
            exclude=exclude,
            lane_bits=bits,
        )
        exchange.join(module, communicator, SLOTS, destination)
        averages = []
        for step in range(STEPS):
            bucket = torch.zeros(layout.elements)
            if communicator.rank < WORKERS:
                bucket = gradient(communicator.rank, step, layout.elements)
            exchange.exchange_bucket(layout, bucket)
            averages.append(bucket)
        return averages, exchange.shared_state()

    return group.run([lambda c=c: train(c) for c in group.communicators])


@pytest.mark.parametrize(("name", "bits"), effort(ALTERNATELY, ALL))
def test_servers_get_what_workers_would(name: str, bits: LaneBits) -> None:
    exclude = ("parts.1",)
    layout = layout_of(Parts(SIZES))
    owner = {segment.name: index % SERVERS for index, segment in enumerate(layout)}
    servers = Servers(SERVERS, {name: WORKERS + index for name, index in owner.items()})
    expected, _ = run(name, bits, exclude, ALL_WORKERS)[0]
    members = run(name, bits, exclude, servers)
    for index in range(SERVERS):
        averages, _ = members[WORKERS + index]
        for step in range(STEPS):
            for segment in layout:
                if owner[segment.name] == index:
                    place = segment.in_bucket
                    assert torch.equal(averages[step][place], expected[step][place]), (step, segment.name)
    states = [str(state) for _, state in members]
    assert len(set(states)) == 1, "all members plan alike"


def test_workers_do_not_decode_sums_that_are_for_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[int] = []
    decode = InMemory.decoded

    def counted(vector: InMemory, total: Contribution) -> torch.Tensor:
        decoded.append(vector.size)
        return decode(vector, total)

    monkeypatch.setattr(InMemory, "decoded", counted)
    names = [segment.name for segment in layout_of(Parts(SIZES))]
    run("dense", 32, (), Servers(1, dict.fromkeys(names, WORKERS)))
    assert len(decoded) == STEPS, "the server alone"
