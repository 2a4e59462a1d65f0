# SPDX-License-Identifier: Apache-2.0
"""States that older code saved are loaded; a method that is written for older code is refused in words."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.host_agent.models import Parts
from weir.host_agent.collectives.in_memory import InMemoryGroup
from weir.host_agent.compression.bucket_layout import BucketLayout
from weir.host_agent.compression.encodings import SCALE_BLOCK
from weir.host_agent.compression.exchange import GradientExchange
from weir.host_agent.compression.loss_policy import LossPolicy
from weir.host_agent.compression.sparsifiers import Sparsifier, SparsifierOptions, create_sparsifier

SIZES = [(40, 30), (40,), (700,)]
OLD = Path(__file__).parent / "saved" / "hook-state-with-formats.pt"
"""Of rank 0 of 2: ``torch.save({"state": state.state_dict(), "slots": 256})`` after three steps of ``steps``,
with encodings called formats and mask blocks called masks."""


def gradients(rank: int, step: int, length: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(length, generator=generator) * torch.randn(length, generator=generator) ** 4


def two_workers(slots: int) -> tuple[InMemoryGroup, list[GradientExchange]]:
    group, workers = InMemoryGroup(2), []
    for communicator in group.communicators:
        sparsifier = create_sparsifier("topk", SparsifierOptions(density=0.1))
        workers.append(GradientExchange(sparsifier, LossPolicy.of(1e-9)))
        workers[-1].join(Parts(SIZES), communicator, slots)
    return group, workers


def steps(group: InMemoryGroup, workers: list[GradientExchange], numbers: range) -> list[torch.Tensor]:
    named = list(Parts(SIZES).named_parameters())
    layout = BucketLayout.of(0, [name for name, _ in named], [p for _, p in named], SCALE_BLOCK)
    averages = []
    for number in numbers:
        buckets = [gradients(rank, number, layout.elements) for rank in range(2)]
        group.run([partial(w.exchange_bucket, layout, b) for w, b in zip(workers, buckets, strict=True)])
        averages.append(buckets[0])
    return averages


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return bool(one == other)


def test_a_state_saved_with_the_old_words_goes_on_bit_for_bit() -> None:
    old = torch.load(OLD)
    straight, resumed = two_workers(old["slots"]), two_workers(old["slots"])
    steps(*straight, range(3))
    assert "formats" in old["state"]
    # How long a mask is kept follows from what packets cost, and headers were shorter then.
    for name, now in straight[1][0].state_dict()["encodings"].items():
        old["state"]["formats"][name] |= {"period": now["period"], "wait": now["wait"]}
    resumed[1][0].load_state_dict(old["state"])
    resumed[1][1].load_state_dict(straight[1][1].state_dict())
    assert same(resumed[1][0].state_dict(), straight[1][0].state_dict())
    for one, other in zip(steps(*straight, range(3, 8)), steps(*resumed, range(3, 8)), strict=True):
        assert torch.equal(one, other)


def test_a_state_of_other_parameters_is_refused_by_name() -> None:
    (first, _) = two_workers(256)[1]
    state = torch.load(OLD)["state"]
    state["residuals"]["gone.weight"] = torch.zeros(3)
    with pytest.raises(ValueError, match=r"residuals of parameters this module lacks: gone\.weight"):
        first.load_state_dict(state)
    assert first.step == 0


@pytest.mark.parametrize(
    ("old", "new"), [("format", "encoding"), ("mask", "mask_block"), ("mask_of", "mask_block_of")]
)
def test_a_sparsifier_written_with_the_old_words_is_refused(old: str, new: str) -> None:
    with pytest.raises(TypeError, match=f"sparsifier Mine: {old} is called {new} now"):
        type("Mine", (Sparsifier,), {old: 1})
