# SPDX-License-Identifier: Apache-2.0
"""Schemes of updates in one process: compress there is compress, and all of them lose nothing."""

from functools import partial

import pytest
import torch

from weir.bench.gradients.ahead import SCHEMES, WHOLE_STEPS, Compress, Scheme, Setting
from weir.host_agent.collectives import InMemoryGroup
from weir.host_agent.compression.updates.layout import UpdateLayout
from weir.host_agent.compression.updates.rules import OPTIONS
from weir.host_agent.compression.updates.stage import UpdateSettings, UpdateStage

SHAPES = (torch.Size((40, 60)), torch.Size((30,)), torch.Size((300,)))
PLACE = UpdateLayout(["a", "b", "c"], SHAPES)
WORKERS, RATE, DECAY = 3, 0.01, 0.1


def start() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape) for shape in SHAPES]


def scheme(name: str, decay: float = 0.0) -> Scheme:
    setting = Setting(PLACE, SHAPES, WORKERS, decay, 0.2, seed=1)
    return SCHEMES[name](setting, PLACE.gather(start(), PLACE.empty()))


def gradients(step: int) -> list[list[torch.Tensor]]:
    torch.manual_seed(step + 1)
    return [[torch.randn(shape) + 0.3 for shape in SHAPES] for _ in range(WORKERS)]


def in_rows(each: list[list[torch.Tensor]]) -> torch.Tensor:
    return torch.stack([PLACE.gather(own, PLACE.empty()) for own in each])


def test_compress_here_makes_the_steps_of_compress() -> None:
    """Until rounding turns the sign of a value near zero, and in the sum of all steps, ever.

    Samples begin to rotate on the way.
    """
    here = scheme("compress", DECAY)
    assert isinstance(here, Compress)
    here.rounds = False
    settings = UpdateSettings(sample_bits=32, sample_whole_steps=WHOLE_STEPS, seed=1)
    stages = [UpdateStage(PLACE, settings, "adam", WORKERS) for _ in range(WORKERS)]
    weights = [start() for _ in stages]
    for stage in stages:
        stage.begin_from(start())
    values = {"lr": RATE, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": DECAY, "decoupled": 1.0}
    options = {name: torch.full((3,), values[name], dtype=torch.float64) for name in OPTIONS["adam"]}
    group = InMemoryGroup(WORKERS)
    for step in range(WHOLE_STEPS + 10):
        given = gradients(step)
        group.run(
            [
                partial(stages[rank].step, group.communicators[rank], weights[rank], given[rank], options)
                for rank in range(WORKERS)
            ]
        )
        here.step(in_rows(given), RATE)
        if step < 8:
            torch.testing.assert_close(here.shared, stages[0].shared, rtol=0, atol=1e-6)
    end = in_rows(weights).mean(0)
    torch.testing.assert_close(here.end(), end, rtol=0, atol=2e-4)
    assert (end - in_rows([start()])[0]).abs().max() > 0.1


def test_dense_here_is_torchs_adamw() -> None:
    here, found = scheme("dense", DECAY), [torch.nn.Parameter(one) for one in start()]
    optimizer = torch.optim.AdamW(found, lr=RATE, weight_decay=DECAY)
    for step in range(20):
        given = gradients(step)
        for parameter, *each in zip(found, *given, strict=True):
            parameter.grad = torch.stack(each).mean(0)
        optimizer.step()
        here.step(in_rows(given), RATE)
    torch.testing.assert_close(here.shared, PLACE.gather(found, PLACE.empty()), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in SCHEMES if isinstance(scheme(name), Compress)])
def test_what_was_wanted_was_delivered_or_is_pending(name: str) -> None:
    """The end of a scheme is where the mean of the workers' steps leads, however little is sent."""
    here = scheme(name)
    assert isinstance(here, Compress)
    start_at, deliver, ahead = here.shared.clone(), here.deliver, list[torch.Tensor]()

    def watched(chosen: torch.Tensor) -> None:
        ahead.append(here.pending.clone())
        deliver(chosen)

    here.deliver = watched  # type: ignore[method-assign]
    wanted, sent = torch.zeros_like(start_at), 0.0
    for step in range(30):
        before = here.pending.clone()
        here.step(in_rows(gradients(step)), RATE)
        wanted += (ahead[-1] - before).mean(0)
        sent += here.sent / 30
    torch.testing.assert_close(here.end(), start_at + wanted, rtol=0, atol=1e-5)
    assert 0.01 < sent <= 1
    assert not torch.equal(here.shared, start_at)


def test_blocks_in_rotation_all_have_their_turn() -> None:
    here = scheme("rotation-256")
    assert isinstance(here, Compress)
    turns = [here.chosen()[0].any(1) for _ in range(5)]
    assert set(torch.stack(turns).sum(0).tolist()) <= {1, 2}
