# SPDX-License-Identifier: Apache-2.0
"""Steps of a model whose parameters are sharded, over Weir and over Gloo: the same links, taking turns."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final, cast

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from softp4.bench.contenders import take_turns
from weir.bench.case import Run, parameter
from weir.bench.peers import CONTENDERS, GLOO, group_of
from weir.bench.rank import Place
from weir.bench.ranks import BRIDGED, RATES, check_rates, every_network, run_ranks
from weir.bench.results import Column, Row, Table
from weir.train.models import make_model, parameter_count
from weir.train.models.gpt import SHAPES, Gpt

LAYERS: Final = 4
TOKENS: Final = 64  # of a rank's line, for GPT-2
ROWS: Final = 8  # of a rank's batch: little to compute, so that a step is what it moves
MODELS: Final = ("linear", "gpt2-small", "gpt2-medium")


@dataclass(frozen=True)
class Parameters:
    """The model and the links."""

    workers: int = parameter(4, "Number of workers.", least=1, most=32)
    model: str = parameter(
        "linear", f"That is sharded, layer by layer: {LAYERS} linear layers, or GPT-2.", choices=MODELS
    )
    width: int = parameter(1024, "Width of the linear layers.", least=8)
    rates: tuple[str, ...] = parameter(("200mbit",), RATES)
    contenders: tuple[str, ...] = parameter(
        ("gloo", "weir", "weir-16"), "Who takes part.", choices=("gloo", "weir", "weir-16", "weir-8")
    )

    def __post_init__(self) -> None:
        check_rates(self.rates)
        if "gloo" not in self.contenders:
            raise ValueError("contenders: gloo is among them, as models are compared with its own")


@dataclass(frozen=True)
class Spec:
    """Work that each rank is to time."""

    model: str
    width: int
    contenders: tuple[str, ...]
    repeats: int


def run(given: Parameters, run: Run) -> Iterator[Table]:
    """Measure on links of every rate."""
    rows: list[Row] = []
    spec = Spec(given.model, given.width, given.contenders, run.repeats)
    for links in every_network(given.workers, given.rates, run.say, () if given.rates else (1,)):
        run.say(f"{links.name} ...")
        ranks = run_ranks(measure, spec, links)
        for name in given.contenders:
            steps = [1e3 * max(step) for step in zip(*(rank[name] for rank in ranks), strict=True)]
            rows.append(Row(CONTENDERS[name].words, {"ms": steps}, {"links": links.name}))
    with torch.device("meta"):
        megabytes = 4 * parameter_count(made(given.model, given.width)) / 1e6
    yield Table(
        f"A step of fully_shard, {megabytes:.1f} MB, {given.workers} workers",
        (Column("ms"),),
        tuple(rows),
        peers=(GLOO,),
        notes=(
            "layers are gathered forward and backward, their gradients reduced and scattered",
            f"a rank's batch: {ROWS} rows, so that computing takes next to nothing"
            if given.model == "linear"
            else f"a rank's batch: one line of {TOKENS} tokens",
            BRIDGED,
        ),
    )


def made(model: str, width: int) -> torch.nn.Module:
    """Return a model of ``MODELS``, its parameters drawn from torch's generator."""
    if model != "linear":
        return make_model(model)
    return torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(LAYERS)))


class Sharded:
    """A model whose layers are sharded over a group, and its training by SGD."""

    def __init__(self, model: str, width: int, group: dist.ProcessGroup) -> None:
        torch.manual_seed(1)
        self.model = made(model, width)
        mesh = DeviceMesh.from_group(group, "cpu")
        for layer in self.model.blocks if isinstance(self.model, Gpt) else self.model.children():
            fully_shard(layer, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        own = torch.Generator().manual_seed(dist.get_rank())
        self._batch = (
            torch.randn(ROWS, width, generator=own)
            if model == "linear"
            else torch.randint(SHAPES["gpt2"].vocabulary, (1, TOKENS), generator=own)
        )

    def step(self) -> None:
        """Train on this rank's batch, once."""
        self._optimizer.zero_grad()
        self.model(self._batch).square().mean().backward()
        self._optimizer.step()

    def parameters(self) -> list[torch.Tensor]:
        """Return all parameters, whole. Every rank is to call it."""
        sharded = cast(Iterator[DTensor], self.model.parameters())
        return [parameter.full_tensor() for parameter in sharded]


def measure(place: Place, spec: Spec) -> dict[str, list[float]]:
    """Return the seconds of each step on one rank, by contender.

    Raises:
        AssertionError: a model is not what it is over Gloo.
    """
    models = {
        name: Sharded(spec.model, spec.width, group_of(CONTENDERS[name], place)) for name in spec.contenders
    }

    def timed(model: Sharded) -> float:
        began = place.begin()
        model.step()
        return place.since(began)

    taken = take_turns({name: partial(timed, model) for name, model in models.items()}, spec.repeats)
    theirs = models["gloo"].parameters()
    for model in models.values():
        for ours, expected in zip(model.parameters(), theirs, strict=True):
            torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-4)
    return taken
