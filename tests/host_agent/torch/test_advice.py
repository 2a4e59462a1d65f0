# SPDX-License-Identifier: Apache-2.0
"""Warnings about gradients held back beside Adam: on rank 0, once, with a way out; and no others."""

import logging
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import weir.torch
from tests.host_agent.torch.job_groups import Job
from tests.host_agent.torch.worlds import World

SIZE = 2


class _Said(logging.Handler):
    """What the module of warnings says while this is open."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self._log = logging.getLogger("weir.host_agent.torch.advice")

    def emit(self, record: logging.LogRecord) -> None:
        self.words.append(record.getMessage())

    def __enter__(self) -> "_Said":
        self._log.addHandler(self)
        return self

    def __exit__(self, *_error: object) -> None:
        self._log.removeHandler(self)


def make(kind: str, **options: float) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Linear(20, 20)
    return model, getattr(torch.optim, kind)(model.parameters(), lr=0.01, **options)


def said_of_hook(sparsifier: str, kind: str, **options: float) -> list[str]:
    model, optimizer = make(kind, **options)
    with _Said() as said:
        ddp = DistributedDataParallel(model)
        ddp.register_comm_hook(weir.torch.HookState(ddp, sparsifier=sparsifier), weir.torch.hook)
        for _ in range(2):
            ddp(torch.randn(4, 20)).square().mean().backward()
            optimizer.step()
    return said.words


def test_a_hook_that_holds_gradients_back_warns_beside_adam(world: World) -> None:
    first, other = world.run(said_of_hook, "topk", "AdamW")
    assert len(first) == 1 and not other
    assert "'topk'" in first[0] and "AdamW" in first[0] and "weir.torch.compress" in first[0]


def said_of_momentum() -> list[str]:
    return said_of_hook("topk", "SGD", momentum=0.9)


def test_a_hook_that_holds_gradients_back_warns_beside_momentum(world: World) -> None:
    (words,) = world.run(said_of_momentum)[0]
    assert "SGD repeats those that come late" in words and "weir.torch.compress" in words


def said_of_two_hooks() -> list[str]:
    model, optimizer = make("AdamW")
    with _Said() as said:
        ddp = DistributedDataParallel(model)
        for sparsifier in ("topk", "random-k"):
            weir.torch.HookState(ddp, sparsifier=sparsifier)
        ddp(torch.randn(4, 20)).square().mean().backward()
        optimizer.step()
    return said.words


def test_several_states_of_hooks_wait_for_a_step(world: World) -> None:
    """Each is told, and the step goes on."""
    assert len(world.run(said_of_two_hooks)[0]) == 2


@pytest.mark.parametrize(("sparsifier", "kind"), [("dense", "AdamW"), ("topk", "SGD"), ("topk", "Adagrad")])
def test_whole_gradients_and_other_optimizers_are_no_reason_to_warn(
    world: World, sparsifier: str, kind: str
) -> None:
    assert not any(world.run(said_of_hook, sparsifier, kind))


def said_of_blocks(options: dict[str, Any]) -> list[str]:
    model = torch.nn.Sequential(torch.nn.Linear(60, 60), torch.nn.Linear(60, 10))
    with _Said() as said:
        weir.torch.HookState(model, **options)
    return said.words


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sparsifier": "topk-block"}, "5 % of the blocks of 256 values: 4 of 4 parameters"),
        ({"sparsifier": "omnireduce", "density": 0.05}, "Use sparsifier 'dfs', smaller blocks"),
        ({"sparsifier": "topk-block", "block": 64, "density": 0.05}, ""),
        ({"sparsifier": "topk-block", "density": 0.1}, ""),
        ({"sparsifier": "topk-block", "exclude": ["0.weight"]}, "3 of 3"),
        ({"sparsifier": "topk-block", "exclude": ["*"]}, ""),
        ({"sparsifier": "dfs"}, ""),
    ],
    ids=str,
)
def test_blocks_of_small_parameters_warn(world: World, options: dict[str, Any], said: str) -> None:
    """A parameter of 3,600 values has 15 blocks of 256, and 57 of 64."""
    first, other = world.run(said_of_blocks, options)
    assert [said in words for words in first] == [True] * bool(said)
    assert not other


def said_of_servers(rank: int, kind: str, options: dict[str, Any]) -> list[str]:
    model, optimizer = make(kind)
    with (
        _Said() as said,
        weir.torch.ParameterServer(model, optimizer, consistency="async", **options) as server,
    ):
        server.finish()
    return said.words


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        ("AdamW", {"push_filter": "0.003:lr"}, "push_filter holds gradients back, and AdamW"),
        ("Adam", {"sparsifier": "topk"}, "sparsifier 'topk' holds gradients back, and Adam"),
        ("AdamW", {}, ""),
        ("SGD", {"push_filter": "0.003:lr"}, ""),
    ],
    ids=str,
)
def test_a_filter_of_pushes_warns_beside_adam(kind: str, options: dict[str, Any], said: str) -> None:
    with Job(SIZE, 1, said_of_servers, kind, options) as job:
        first, other, _server = job.results()
    assert [words.startswith(said) for words in first] == [True] * bool(said)
    assert not other
