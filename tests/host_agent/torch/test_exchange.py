# SPDX-License-Identifier: Apache-2.0
"""The gradient step over the switch and over workers in memory: the same bits, step after step."""

import functools
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import weir
import weir.torch
from tests.host_agent.models import Parts
from tests.host_agent.torch.worlds import World
from weir.host_agent.collectives.in_memory import InMemoryGroup
from weir.host_agent.collectives.packing import LaneBits
from weir.host_agent.compression.bucket_layout import BucketLayout
from weir.host_agent.compression.encodings import SCALE_BLOCK
from weir.host_agent.compression.exchange import GradientExchange
from weir.host_agent.compression.loss_policy import LossPolicy
from weir.host_agent.compression.sparsifiers import (
    SparsifierOptions,
    create_sparsifier,
    sparsifier_names,
)

SIZE, STEPS, DENSITY = 3, 4, 0.1
SIZES = [(40, 30), (40,), (3000,), (7, 5)]

Outcome = tuple[list[torch.Tensor], dict[str, Any], list[tuple[int, int, int]]]


def layout_of(module: torch.nn.Module) -> BucketLayout:
    named = list(module.named_parameters())
    return BucketLayout.of(0, [name for name, _ in named], [p for _, p in named], SCALE_BLOCK)


def gradients(rank: int, step: int, length: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(length, generator=generator) * torch.randn(length, generator=generator) ** 4


def through_the_switch(name: str, bits: LaneBits) -> tuple[Outcome, int]:
    """Return one rank's averages, its state, its counts; and how many slots the job has."""
    state = weir.torch.HookState(
        DistributedDataParallel(Parts(SIZES)), sparsifier=name, density=DENSITY, lane_bits=bits
    )
    layout, averages, counts = layout_of(Parts(SIZES)), [], []
    rank = torch.distributed.get_rank()
    for step in range(STEPS):
        bucket = gradients(rank, step, layout.elements)
        state.group.submit(functools.partial(state.average_bucket, layout, bucket, True)).wait()
        averages.append(bucket)
        last = state.last_step
        assert last is not None
        counts.append((last.sent_elements, last.union_elements, last.blocks_sent))
    return (averages, state.state_dict(), counts), state.group.connection.membership.slot_count


def in_memory(name: str, bits: LaneBits, slots: int) -> list[Outcome]:
    module, group = Parts(SIZES), InMemoryGroup(SIZE)
    layout, workers = layout_of(module), []
    for communicator in group.communicators:
        sparsifier = create_sparsifier(name, SparsifierOptions(density=DENSITY))
        workers.append(GradientExchange(sparsifier, LossPolicy.of(0.0), lane_bits=bits))
        workers[-1].join(module, communicator, slots)
    outcomes: list[Outcome] = [([], {}, []) for _ in workers]
    for step in range(STEPS):
        buckets = [gradients(rank, step, layout.elements) for rank in range(SIZE)]
        done = group.run(
            [functools.partial(w.exchange_bucket, layout, b) for w, b in zip(workers, buckets, strict=True)]
        )
        for (averages, _, counts), bucket, one in zip(outcomes, buckets, done, strict=True):
            averages.append(bucket)
            counts.append((one.chosen_elements, one.union_elements, one.report.blocks_sent))
    return [
        (averages, w.state_dict(), counts) for (averages, _, counts), w in zip(outcomes, workers, strict=True)
    ]


def in_bits(thing: Any) -> Any:
    """Return something that is equal only where every bit is."""
    if isinstance(thing, torch.Tensor):
        return thing.dtype, tuple(thing.shape), thing.contiguous().view(-1).view(torch.uint8).tolist()
    if isinstance(thing, dict):
        return {key: in_bits(value) for key, value in thing.items()}
    return [in_bits(one) for one in thing] if isinstance(thing, list | tuple) else thing


PACKED: list[tuple[str, LaneBits]] = [("dense", 16), ("dense", 8), ("topk", 8), ("exdyna", 16)]


@pytest.mark.parametrize(("name", "bits"), [*((name, 32) for name in sparsifier_names()), *PACKED])
def test_a_step_in_memory_is_a_step_over_the_switch(world: World, name: str, bits: LaneBits) -> None:
    outcomes = world.run(through_the_switch, name, bits)
    for (switched, slots), here in zip(outcomes, in_memory(name, bits, outcomes[0][1]), strict=True):
        assert slots == outcomes[0][1]
        assert in_bits(switched) == in_bits(here)
    assert in_bits(outcomes[0][0][0]) == in_bits(outcomes[1][0][0])
